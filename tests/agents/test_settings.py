from __future__ import annotations

import pytest

from dtgym.agents import ALGORITHMS, settings
from dtgym.agents.sb3_method import SB3Method
from dtgym.simulator.errors import InvalidInput


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_shipped_hyperparameters_are_valid(algorithm: str) -> None:
    agent = SB3Method(algorithm, "dtgym/CommunicationTuning-v0")
    assert agent.hyperparameters["num_envs"] >= 1


def test_changes_are_laid_over_the_blocks() -> None:
    base = settings.load("ppo", "x", {})
    changed = settings.load("ppo", "x", {"num_envs": 3, "algorithm": {"gamma": 0.5}})
    assert changed.num_envs == 3
    assert changed.algorithm == {**base.algorithm, "gamma": 0.5}


def test_a_module_prefix_of_the_id_is_ignored() -> None:
    plain = settings.load("ppo", "dtgym/CommunicationTuning-v0", {})
    assert settings.load("ppo", "dtgym.envs:dtgym/CommunicationTuning-v0", {}) == plain


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_envs": 0}, r"ppo\.yaml with the method's hyperparameters: num_envs: must be"),
        ({"gama": 0.9}, "gama: Extra inputs"),
        ({"algorithm": {"gama": 0.9}}, r"algorithm\.gama is no argument of PPO"),
        ({"algorithm": {"batch_size": 64}}, r"algorithm\.batch_size is no argument of PPO"),
        ({"network": []}, "network: List should have at least 1"),
        ({"learning_rate": -1.0}, "learning_rate: must be greater than 0"),
    ],
)
def test_a_wrong_hyperparameter_is_named(changes: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        SB3Method("ppo", "x", hyperparameters=changes)
