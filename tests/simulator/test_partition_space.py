"""The space of plans: masks that never strand, exactness against the evaluator, replay."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtgym.simulator import partition, partition_estimates
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.kernels import plan_construction as kernels
from dtgym.simulator.partition_space import Candidate, PlanSpace, Rules, Stage
from dtgym.simulator.partition_tables import two_cluster_example

RULES = Rules(max_stages=4, recompute="none", zero=0)


def build_at_random(space: PlanSpace, number: int, seed: int) -> kernels.Builds:
    """Random legal decisions until every plan is finished; asserts that no mask is empty."""
    builds = space.new_builds(number)
    everyone = np.arange(number)
    kernels.begin(space.arrays, builds, everyone, everyone % len(space.problem))
    random = np.random.default_rng(seed)
    for _ in range(1 + 6 * space.rules.max_stages):
        if (builds.head == kernels.DONE).all():
            return builds
        mask = space.masks(builds)
        assert mask.any(axis=1).all()
        actions = (random.random(mask.shape) * mask).argmax(axis=1)
        kernels.advance(space.arrays, builds, actions, np.ones(number, dtype=np.bool_))
    raise AssertionError("an episode did not end")


@settings(max_examples=30)
@given(
    memory=st.floats(2.6e9, 8e9),
    recompute=st.sampled_from(["none", "full"]),
    zero=st.integers(0, 3),
    max_stages=st.integers(1, 6),
    seed=st.integers(0, 999),
)
def test_random_construction_ends_in_a_feasible_plan(
    memory: float, recompute: str, zero: int, max_stages: int, seed: int
) -> None:
    problem = replace(two_cluster_example(), memory_bytes=np.array([[memory, memory * 0.8]]))
    space = PlanSpace(problem, Rules(max_stages=max_stages, recompute=recompute, zero=zero))
    if not space.solvable.all():
        return
    builds = build_at_random(space, 64, seed)
    costs = partition.evaluate(problem, space.built_plans(builds, np.arange(64)))
    assert costs.feasible.all(), [costs.why(i) for i in np.flatnonzero(~costs.feasible)[:3]]


def test_tight_memory_is_part_of_the_sample() -> None:
    """Guards the test above: at its lowest memory nothing fits, a little higher something does."""
    solvable = [
        PlanSpace(
            replace(two_cluster_example(), memory_bytes=np.array([[memory, memory * 0.8]])), RULES
        ).solvable.all()
        for memory in (2.6e9, 8e9)
    ]
    assert solvable == [False, True]


def test_a_built_plan_replays_to_itself_and_costs_the_same() -> None:
    space = PlanSpace(two_cluster_example(), RULES)
    builds = build_at_random(space, 200, seed=1)
    plans = space.built_plans(builds, np.arange(200))
    times = partition.evaluate(space.problem, plans).time_s
    candidates = [space.candidate(builds, index) for index in range(200)]
    np.testing.assert_array_equal(space.time_s(candidates), times)
    assert all(space.is_buildable(candidate) for candidate in candidates)


def test_every_feasible_plan_of_ample_memory_is_buildable() -> None:
    """All two-stage plans by brute force: the masks forbid exactly those the evaluator refuses."""
    space = PlanSpace(two_cluster_example(), RULES)
    checked = [0, 0]
    for first, second, high, batch in product(
        product((0, 1), (1, 2, 4), (1, 2, 4)), product((0, 1), (1, 2, 4), (1, 2, 4)), (3,), (1, 8)
    ):
        candidate = Candidate(batch, (Stage(*first, high), Stage(*second, 8, wire=2)))
        feasible = bool(np.isfinite(space.time_s([candidate]))[0])
        assert space.is_buildable(candidate) == feasible, candidate
        checked[feasible] += 1
    assert min(checked) > 50


def test_unknown_choices_are_named() -> None:
    space = PlanSpace(two_cluster_example(), RULES)
    with pytest.raises(InvalidInput, match="gpus must be one of"):
        space.actions(Candidate(4, (Stage(0, 3, 1, 8),)))
    with pytest.raises(InvalidInput, match="1 to 4 stages"):
        space.plans([Candidate(4, tuple(Stage(0, 1, 1, h) for h in range(1, 6)))])


def test_one_instance_of_a_space_is_the_space_of_one_instance() -> None:
    problem = two_cluster_example()
    both = problem.take([0, 0])
    slow = np.array([[[0.0, 1e8], [1e8, 0.0]]])
    both = replace(both, wan_bytes_per_s=np.concatenate([problem.wan_bytes_per_s, slow]))
    space = PlanSpace(both, RULES)
    alone = space.take(1)
    candidate = Candidate(4, (Stage(0, 4, 2, 4), Stage(1, 4, 2, 8, wire=1)))
    assert alone.time_s([candidate]) == space.time_s([candidate], instance=1)
    assert alone.time_s([candidate]) > space.time_s([candidate], instance=0)
    assert alone.is_buildable(candidate)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"wires": ("int3",)}, "int3"),
        ({"wires": ()}, "at least one format"),
        ({"max_stages": 0}, "max_stages"),
        ({"zero": 4}, "zero"),
        ({"recompute": "some"}, "recompute"),
    ],
)
def test_rules_name_what_is_wrong(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Rules(**arguments)  # type: ignore[arg-type]


def test_warmup_never_exceeds_the_micro_batches() -> None:
    """Two micro-batches cannot fill a deeper warm-up; the estimators must not see one either."""
    space = PlanSpace(two_cluster_example(), RULES)
    stages = (Stage(0, 2, 1, 3, extra=0), Stage(0, 2, 1, 5, extra=2), Stage(1, 2, 1, 8))
    plans = space.plans([Candidate(16, stages)])
    assert plans.warmup[0, :3].tolist() == [1, 1, 0]
    costs = partition.stage_costs(space.problem, plans)
    assert costs.feasible.all()
    assert np.isfinite(partition_estimates.period_form_s(costs, plans)).all()
