"""Oracles: the table of true times, and plans that no other plan beats."""

from __future__ import annotations

import itertools

import gymnasium as gym
import numpy as np
import pytest

from dtgym.envs.communication_tuning.env import CommunicationTuningEnv
from dtgym.simulator.errors import InvalidInput

TINY = {"partition_grid_bytes": [4e6, 32e6], "credit_grid_bytes": [4e6, 64e6]}


def start(seed: int = 0, **arguments) -> CommunicationTuningEnv:
    env = CommunicationTuningEnv(**arguments)
    env.reset(seed=seed)
    return env


def total_reward(env, seed, cells) -> float:
    env.reset(seed=seed)
    return sum(env.step(int(cell))[1] for cell in cells)


@pytest.mark.parametrize("architecture", ["allreduce", "ps"])
def test_the_table_holds_what_the_environment_then_does(architecture):
    env = start(4, architecture=architecture, model="alexnet", horizon=25)
    instance = env.view(oracle=True).instance
    table_s = instance.iteration_time_table_s()
    assert table_s.shape == (25, 81)
    random = np.random.default_rng(0)
    cells = random.integers(81, size=25)
    in_force = env.view().state.default_action // 9
    for step, cell in enumerate(cells):
        info = env.step(int(cell))[4]
        ran = cell if architecture == "ps" else in_force * 9 + cell % 9
        assert info["iteration_time_s"] == table_s[step, ran]
        assert info["default_iteration_time_s"] == instance.default_iteration_time_s()[step]
        in_force = cell // 9


def test_the_instance_belongs_to_the_episode_however_far_it_has_gone():
    env = start(4, horizon=10)
    before = env.view(oracle=True).instance.iteration_time_table_s()
    for _ in range(5):
        env.step(0)
    assert np.array_equal(before, env.view(oracle=True).instance.iteration_time_table_s())


@pytest.mark.parametrize("architecture", ["allreduce", "ps"])
@pytest.mark.parametrize("iterations", [10, 16])
@pytest.mark.parametrize("seed", range(4))
def test_the_best_plan_is_the_best_of_all_plans(architecture, iterations, seed):
    env = start(
        seed,
        architecture=architecture,
        iterations_per_step=iterations,
        horizon=4,
        model="alexnet",
        restart_s=0.3,
        **TINY,
    )
    # States far apart, so that changing pays now and then.
    env.dynamics.factors[0, 2:, 4] = 0.3
    instance = env.view(oracle=True).instance
    plan = instance.best_plan()
    by_hand = {cells: value(instance, cells) for cells in itertools.product(range(4), repeat=4)}
    assert plan.objective == pytest.approx(max(by_hand.values()), abs=1e-12)
    assert by_hand[tuple(plan.cells.tolist())] == pytest.approx(plan.objective, abs=1e-12)
    static = instance.static_plans()
    assert static == pytest.approx([by_hand[(cell,) * 4] for cell in range(4)], abs=1e-12)
    assert instance.best_static_plan().objective == pytest.approx(static.max(), abs=1e-12)


def value(instance, cells) -> float:
    """Reward of a plan, step by step from the rules in words."""
    parameters = instance.parameters
    table_s, default_s = instance.iteration_time_table_s(), instance.default_iteration_time_s()
    k = parameters.iterations_per_step
    held, total = parameters.default_cell[0], 0.0
    for step, cell in enumerate(cells):
        chosen, credit = divmod(cell, 2)
        if parameters.architecture == "ps":
            duration_s = k * table_s[step, cell] + parameters.restart_s * (chosen != held)
        else:
            late = 10 if chosen != held else 0
            old_s, new_s = table_s[step, held * 2 + credit], table_s[step, cell]
            duration_s = late * old_s + (k - late) * new_s
        total -= np.log(duration_s / (k * default_s[step]))
        held = chosen
    return total


@pytest.mark.parametrize("architecture", ["allreduce", "ps"])
@pytest.mark.parametrize("scenario", ["mixed", "incast"])
def test_plans_earn_in_the_environment_what_they_promise(architecture, scenario):
    env = start(7, architecture=architecture, scenario=scenario, model="vgg16")
    instance = env.view(oracle=True).instance
    best, static = instance.best_plan(), instance.best_static_plan()
    assert total_reward(env, 7, best.cells) == pytest.approx(best.objective, abs=1e-9)
    assert total_reward(env, 7, static.cells) == pytest.approx(static.objective, abs=1e-9)
    assert best.objective >= static.objective >= 0 - 1e-9
    random = np.random.default_rng(0)
    assert total_reward(env, 7, random.integers(81, size=100)) < best.objective


def test_the_toys_plan_is_the_known_optimum():
    env = gym.make("dtgym/CommunicationTuning-Toy-v0").unwrapped
    env.reset(seed=0)
    instance = env.view(oracle=True).instance
    assert instance.iteration_time_table_s()[0].tolist() == [14.0, 9.0, 10.5, 15.0, 15.0, 13.0]
    plan = instance.best_plan()
    assert plan.cells.tolist() == [1] * 4
    assert plan.objective == pytest.approx(4 * np.log(13 / 9))


def test_says_what_it_cannot_plan():
    instance = start(0, iterations_per_step=5).view(oracle=True).instance
    with pytest.raises(InvalidInput, match="iterations_per_step must be at least 10"):
        instance.best_plan()
