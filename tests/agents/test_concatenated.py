from __future__ import annotations

import numpy as np
import pytest
from toy_runs import SUITE

from dtgym.agents.concatenated import ConcatenatedVecEnv, training_env
from dtgym.envs import sb3
from dtgym.experiments import suites
from dtgym.simulator.errors import InvalidInput

ENV = "toy_environment:toy/Repeat-v0"


def parts() -> list[sb3.Sb3VecEnv]:
    return [sb3.make(ENV, 3, seed=1, horizon=2), sb3.make(ENV, 2, seed=2, horizon=3)]


def test_the_whole_lives_what_its_parts_live() -> None:
    whole, alone = ConcatenatedVecEnv(parts()), parts()
    assert whole.num_envs == 5
    first = np.concatenate([part.reset() for part in alone])
    assert np.array_equal(whole.reset(), first)
    rng = np.random.default_rng(0)
    for _ in range(7):
        actions = rng.integers(4, size=5)
        found = whole.step(actions)
        expected = [alone[0].step(actions[:3]), alone[1].step(actions[3:])]
        for i in range(3):
            assert np.array_equal(found[i], np.concatenate([part[i] for part in expected]))
        infos = expected[0][3] + expected[1][3]
        assert [sorted(info) for info in found[3]] == [sorted(info) for info in infos]
        for one, other in zip(found[3], infos, strict=True):
            if "episode" in one:
                assert one["episode"]["r"] == other["episode"]["r"]
                assert np.array_equal(one["terminal_observation"], other["terminal_observation"])


def test_masks_and_attributes_are_answered_in_order() -> None:
    whole = ConcatenatedVecEnv(parts())
    whole.reset()
    masks = np.stack(whole.env_method("action_masks"))
    assert masks.shape == (5, 4)
    assert np.array_equal(masks[3:], whole.parts[1].env_method("action_masks"))
    assert np.array_equal(whole.env_method("action_masks", indices=[4])[0], masks[4])
    assert whole.has_attr("action_masks") and not whole.has_attr("nothing")
    assert whole.get_attr("num_envs") == [3, 3, 3, 2, 2]
    with pytest.raises(InvalidInput, match="shared by the batch"):
        whole.set_attr("render_mode", None, indices=[0])


def test_training_takes_every_instance_in_equal_shares_and_its_own_seeds() -> None:
    suite = suites.load(SUITE)
    env = training_env(suite, 5, seed=7)
    assert [part.num_envs for part in env.parts] == [3, 2]
    horizons = [part.env.unwrapped.dynamics.horizon for part in env.parts]  # type: ignore[attr-defined]
    assert horizons == [6, 8]
    again, other = training_env(suite, 5, seed=7), training_env(suite, 5, seed=8)
    rollouts = [[one.reset(), *(one.step(np.zeros(5, int))[0] for _ in range(8))] for one in
                (env, again, other)]  # fmt: skip
    assert np.array_equal(rollouts[0], rollouts[1])
    assert not np.array_equal(rollouts[0], rollouts[2])
    with pytest.raises(InvalidInput, match="num_envs must be at least 2, one for each training"):
        training_env(suite, 1, seed=0)


def test_parts_of_different_spaces_are_refused() -> None:
    with pytest.raises(InvalidInput, match="equal observation, action spaces"):
        ConcatenatedVecEnv([sb3.make(ENV, 1), sb3.make(ENV, 1, num_actions=5)])
