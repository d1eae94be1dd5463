from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtgym.experiments import episodes, suites
from dtgym.experiments.suites import Instance
from dtgym.simulator.errors import InvalidInput

GOOD = """
name: demo
version: 1
env_id: toy_environment:toy/Repeat-v0
description: A suite.
train:
  - grid: {horizon: [2, 3], num_actions: [4, 5]}
    env_kwargs: {bonus: 0.5}
    seeds: {first: 0, count: 10}
test:
  - name: only
    seeds: {first: 40, count: 5}
"""


def test_a_grid_stands_for_every_combination() -> None:
    suite = suites.parse(GOOD, source="demo.yaml")
    assert [instance.name for instance in suite.train] == ["2-4", "2-5", "3-4", "3-5"]
    assert suite.train[1].env_kwargs == {"bonus": 0.5, "horizon": 2, "num_actions": 5}
    assert [instance.seeds for instance in suite.train] == [
        range(first, first + 10) for first in (0, 10, 20, 30)
    ]
    assert suite.test == (Instance("only", {}, 40, 5),)


def test_preparation_sees_no_test_instance() -> None:
    suite = suites.parse(GOOD, source="demo.yaml")
    assert suite.for_preparation().test == ()
    assert suite.for_preparation().train == suite.train


@given(st.integers(0, 10**9), st.integers(1, 10**6))
def test_preparation_and_validation_seeds_part_the_range(first: int, count: int) -> None:
    instance = Instance("x", {}, first, count)
    preparing, validating = instance.preparation_seeds, instance.validation_seeds
    assert len(preparing) >= 1
    assert (preparing.start, preparing.stop) == (first, validating.start)
    assert validating.stop == first + count
    assert len(validating) <= max(count // 10, 1)


def test_the_digest_follows_every_instance() -> None:
    suite = suites.parse(GOOD, source="demo.yaml")
    changed = suites.parse(GOOD.replace("bonus: 0.5", "bonus: 0.6"), source="demo.yaml")
    assert suite.digest == suites.parse(GOOD, source="elsewhere.yaml").digest != changed.digest


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version: 1", "version: one", "demo.yaml: version: must be a valid integer"),
        ("env_id:", "environment:", "demo.yaml: env_id: Field required"),
        ("count: 10", "count: 0", "demo.yaml: train.0.seeds.count: must be greater than or equal"),
        ("bonus: 0.5}", "bonus: 0.5}\n    sedes: 3", "demo.yaml: train.0.sedes: Extra inputs"),
        ("- name: only", "- env_kwargs: {}", "demo.yaml: test.0: an entry without a grid"),
        ("[4, 5]", "[4, 4]", "demo.yaml: train: two instances are named 2-4"),
        (
            "first: 40",
            "first: 39",
            "demo.yaml: seeds of train instance 3-5 .* overlap",
        ),
        ("name: demo", "name: [demo", "demo.yaml: not valid YAML"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(InvalidInput, match=message) as caught:
        suites.parse(GOOD.replace(old, new, 1), source="demo.yaml")
    assert "\n" not in str(caught.value)


def test_an_unknown_suite_lists_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match=r"--suite must be one of .*communication.* got 'x'"):
        suites.load("x")
    with pytest.raises(InvalidInput, match=r"no such file: nowhere\.yaml"):
        suites.load("nowhere.yaml")


@pytest.mark.parametrize("name", suites.names())
def test_every_shipped_suite_can_be_played_and_keeps_test_seeds_apart(name: str) -> None:
    suite = suites.load(name)
    assert suite.name == name
    trained = [instance.seeds for instance in suite.train]
    for instance in suite.test:
        assert all(
            seeds.stop <= instance.first_seed or instance.seeds.stop <= seeds.start
            for seeds in trained
        )
    # Making an environment may take a second: a dozen, spread over the suite, with both ends.
    instances = [*suite.train, *suite.test]
    chosen = {round(place) for place in np.linspace(0, len(instances) - 1, 12)}
    spaces = set()
    for instance in (instances[place] for place in sorted(chosen)):
        env = episodes.make(suite.env_id, instance.env_kwargs)
        env.reset(seed=instance.first_seed)
        spaces.add(str((env.observation_space, env.action_space)))
    assert len(spaces) == 1, "an agent trained on one instance could not act in another"
