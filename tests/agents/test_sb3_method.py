from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy_runs import SMALL_PPO, SUITE

from dtgym.agents import ALGORITHMS, checkpoints
from dtgym.agents.sb3_method import SB3Method
from dtgym.baselines.method import Budget
from dtgym.experiments import episodes, suites
from dtgym.simulator.errors import InvalidInput

ENV = "toy_environment:toy/Repeat-v0"
OPTIMUM = 8
SMALL: dict[str, dict[str, Any]] = {
    "ppo": SMALL_PPO,
    "maskable_ppo": SMALL_PPO,
    "a2c": {"num_envs": 16, "network": [16], "learning_rate": 0.01, "algorithm": {"gamma": 0.5}},
    "dqn": {
        "num_envs": 16,
        "network": [32],
        "learning_rate": 0.003,
        "algorithm": {
            "learning_starts": 200,
            "buffer_size": 5000,
            "target_update_interval": 200,
            "gamma": 0.5,
        },
    },
}
STEPS = {"ppo": 2048, "maskable_ppo": 2048, "a2c": 5120, "dqn": 4096}


class Stop(Exception):
    """Interrupts training, as a kill would, but in this process."""


class Recorder(Budget):
    """Keeps what is reported, and may interrupt once a number of evaluations is spent."""

    def __init__(self, evaluations: int, folder: Path | None = None, stop_after: int = 0) -> None:
        super().__init__(evaluations, folder=folder)
        self.points: list[tuple[int, dict[str, float]]] = []
        self.stop_after = stop_after

    def record(self, metrics: Any) -> None:
        self.points.append((self.spent_evaluations, dict(metrics)))
        if self.stop_after and self.spent_evaluations >= self.stop_after:
            raise Stop


def agent(algorithm: str, **changes: Any) -> SB3Method:
    return SB3Method(algorithm, ENV, hyperparameters={**SMALL[algorithm], **changes})


def train(method: SB3Method, budget: Budget, seed: int = 0) -> SB3Method:
    method.prepare(suites.load(SUITE).for_preparation(), seed=seed, budget=budget)
    return method


def mean_return(method: SB3Method) -> float:
    env = episodes.make(ENV, {"horizon": OPTIMUM})
    return float(
        np.mean([episodes.play(method, env, seed).objective for seed in range(5000, 5004)])
    )


def weights(method: SB3Method) -> dict[str, torch.Tensor]:
    return method.model.policy.state_dict()


def assert_same_weights(one: SB3Method, other: SB3Method) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_learns_to_repeat_a_symbol(algorithm: str) -> None:
    trained = train(agent(algorithm), Recorder(STEPS[algorithm]))
    assert mean_return(trained) >= OPTIMUM - 0.25
    # The test can fail: before training the same agent is far from the optimum.
    untrained = agent(algorithm)
    untrained._model = untrained._new_model(suites.load(SUITE), seed=0)
    assert mean_return(untrained) < OPTIMUM - 1


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_equal_seeds_train_bit_identical_agents(algorithm: str) -> None:
    budgets = [Recorder(768) for _ in range(2)]
    one, two = (train(agent(algorithm), budget) for budget in budgets)
    assert_same_weights(one, two)
    assert budgets[0].points == budgets[1].points
    other = train(agent(algorithm), Recorder(768), seed=1)
    assert any(not torch.equal(t, weights(other)[name]) for name, t in weights(one).items())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_interrupted_training_goes_on_to_the_same_agent(algorithm: str, tmp_path: Path) -> None:
    whole = Recorder(1024, tmp_path / "whole")
    expected = train(agent(algorithm, checkpoints=4), whole)
    interrupted = Recorder(1024, tmp_path / "broken", stop_after=700)
    with pytest.raises(Stop):
        train(agent(algorithm, checkpoints=4), interrupted)
    resumed = Recorder(1024, tmp_path / "broken")
    found = train(agent(algorithm, checkpoints=4), resumed)
    assert_same_weights(found, expected)
    assert resumed.spent_evaluations == whole.spent_evaluations
    first = resumed.points[0][0]
    assert 256 < first < 1024, "it began again instead of going on"
    assert resumed.points == [point for point in whole.points if point[0] >= first]


@pytest.mark.parametrize(
    "env_id",
    ["dtgym/CommunicationTuning-v0", "dtgym/ModelPartitioning-v0", "dtgym/ClusterScheduling-v0"],
)
def test_the_shipped_environments_are_resumed_in_mid_episode(env_id: str, tmp_path: Path) -> None:
    suite = suites.of_environment(env_id).for_preparation()
    small = {**SMALL_PPO, "num_envs": 4, "checkpoints": 2, "algorithm": {"n_steps": 8}}

    def trained(budget: Recorder) -> SB3Method:
        method = SB3Method("maskable_ppo", env_id, hyperparameters=small)
        method.prepare(suite, seed=0, budget=budget)
        return method

    expected = trained(Recorder(128, tmp_path / "whole"))
    with pytest.raises(Stop):
        trained(Recorder(128, tmp_path / "broken", stop_after=96))
    assert_same_weights(trained(Recorder(128, tmp_path / "broken")), expected)


def test_a_finished_training_is_not_repeated(tmp_path: Path) -> None:
    budget = Recorder(512, tmp_path)
    expected = train(agent("ppo"), budget)
    again = Recorder(512, tmp_path)
    assert_same_weights(train(agent("ppo"), again), expected)
    assert again.points == [] and again.spent_evaluations == 512


def test_only_the_last_checkpoint_is_kept(tmp_path: Path) -> None:
    train(agent("ppo"), Recorder(1024, tmp_path))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["000000001024"]
    assert checkpoints.latest(tmp_path / "nothing") is None


def test_a_saved_agent_acts_as_the_trained_one(tmp_path: Path) -> None:
    trained = train(agent("ppo"), Recorder(512, tmp_path))
    loaded = SB3Method("ppo", ENV, checkpoint=str(tmp_path / "policy.zip"))
    # A loaded agent needs no budget and spends none.
    budget = Recorder(0)
    loaded.prepare(None, seed=0, budget=budget)
    env = episodes.make(ENV, {})
    for seed in range(3):
        assert episodes.play(loaded, env, seed).actions == episodes.play(trained, env, seed).actions
    assert loaded.hyperparameters.keys() == {"checkpoint_sha256"}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_only_legal_actions_are_taken(algorithm: str) -> None:
    method = agent(algorithm)
    method._model = method._new_model(suites.load(SUITE), seed=0)
    env: Any = episodes.make(ENV, {}).unwrapped
    env.reset(seed=0)
    view = env.view()
    method.reset(view)
    for only in range(4):
        mask = np.zeros(4, dtype=np.bool_)
        mask[only] = True
        one = type(view)(view.observation, mask, view.state)
        assert method.act(one) == only


def test_the_budget_is_spent_in_whole_rollouts() -> None:
    budget = Recorder(300)
    train(agent("ppo"), budget)
    assert budget.spent_evaluations == 512  # two rollouts of 16 x 16


def test_figures_are_logged_evenly() -> None:
    budget = Recorder(1024)
    train(agent("ppo", logs=4), budget)
    steps = [step for step, metrics in budget.points if "rollout/ep_rew_mean" in metrics]
    assert steps == [256, 512, 768, 1024]
    assert "train/value_loss" in budget.points[-1][1]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda p: SB3Method("ppo", ENV, checkpoint=str(p / "no.zip")), "no such file"),
        (lambda p: SB3Method("ppo", ENV, checkpoint=str(p / "text.zip")), "is no saved ppo"),
        (lambda p: SB3Method("dqn", ENV, checkpoint=str(p / "policy.zip")), "is no saved dqn"),
        (lambda p: train(agent("ppo"), Budget()), "must be trained: give a budget"),
        (lambda p: train(agent("ppo", num_envs=1), Recorder(64)), "num_envs must be at least"),
        (lambda p: train(agent("ppo", num_minibatches=7), Recorder(64)), "must be a multiple of"),
        (lambda p: mean_return(agent("ppo")), "acts only after it was prepared"),
    ],
)  # fmt: skip
def test_bad_input(trained_folder: Path, use: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        use(trained_folder)


@pytest.fixture(scope="module")
def trained_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train(agent("ppo"), Recorder(256, folder))
    (folder / "text.zip").write_text("not a zip file")
    return folder


def test_an_agent_for_another_environment_is_refused(trained_folder: Path) -> None:
    loaded = SB3Method("ppo", ENV, checkpoint=str(trained_folder / "policy.zip"))
    with pytest.raises(InvalidInput, match="knows 4 actions, the environment has 5"):
        episodes.play(loaded, episodes.make(ENV, {"num_actions": 5}), 0)
