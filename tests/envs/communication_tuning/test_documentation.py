"""The page of the environment says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import gymnasium as gym
import pytest

from dtgym.envs.communication_tuning import SPECS
from dtgym.envs.communication_tuning.generator import SCENARIOS
from dtgym.envs.communication_tuning.types import FEATURES, Parameters


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "envs" / "communication_tuning.md").read_text()


def test_every_entry_of_the_observation_is_there_with_its_range(page):
    rows = dict(re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (-?\d+ … -?\d+) \|", page, re.MULTILINE))
    ranges = {name: limits for names, limits in rows.items() for name in re.findall(r"\w+", names)}
    assert ranges == {f.name: f"{f.low:g} … {f.high:g}" for f in FEATURES}


def test_every_id_and_scenario_is_there(page):
    for spec in SPECS:
        name = spec.id.removeprefix("dtgym/CommunicationTuning")
        assert f"`{name}`" in page or f"`CommunicationTuning{name}`" in page
    for scenario in SCENARIOS:
        assert f"`{scenario}`" in page or scenario == "toy"


def test_its_example_runs_and_the_default_is_the_cell_it_names(page):
    [example, *_] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict = {"gym": gym}
    exec(example, names)
    assert names["ended"] and abs(names["reward"]) < 1e-9
    assert names["env"].unwrapped.view().state.default_action == 22
    assert "is cell 22" in page
    assert Parameters().cells == 81
