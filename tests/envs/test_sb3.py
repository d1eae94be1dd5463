"""The adapter to Stable-Baselines3."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

from dtgym.envs import seeding
from dtgym.envs.sb3 import Sb3VecEnv
from dtgym.simulator.errors import InvalidInput


def play(env, actions):
    """Every return value of a play."""
    return [env.step(step) for step in actions]


ACTIONS = np.random.default_rng(3).integers(3, size=(20, 3))


@pytest.mark.parametrize("dictionary", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_equals_dummy_vec_env_over_scalar_environments(
    counter_env, counter_vector_env, dictionary, cut
):
    options = {"dictionary": dictionary, "cut": cut}
    ours = Sb3VecEnv(counter_vector_env(3, **options))
    theirs = DummyVecEnv([lambda: counter_env(**options)] * 3)
    ours.seed(4)
    theirs._seeds = seeding.child_seeds(4, 3)  # type: ignore[assignment]
    assert same(ours.reset(), theirs.reset())
    ended = 0
    for one, other in zip(play(ours, ACTIONS), play(theirs, ACTIONS), strict=True):
        assert same(one[0], other[0])
        assert np.array_equal(one[1], other[1]) and one[1].dtype == other[1].dtype
        assert np.array_equal(one[2], other[2])
        for i in np.flatnonzero(one[2]):
            ended += 1
            assert same(one[3][i]["terminal_observation"], other[3][i]["terminal_observation"])
            assert one[3][i]["TimeLimit.truncated"] == other[3][i]["TimeLimit.truncated"] == cut
            assert same(one[3][i]["vector_reward"], other[3][i]["vector_reward"])
        assert all(one[3][i] == {} for i in np.flatnonzero(~one[2]))
    assert ended > 5


def same(a, b) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a.dtype == b.dtype and np.array_equal(a, b)


def test_counts_episodes_as_vec_monitor_does(counter_vector_env):
    env = VecMonitor(Sb3VecEnv(counter_vector_env(3)))
    plain = Sb3VecEnv(counter_vector_env(3))
    env.seed(1)
    plain.seed(1)
    env.reset()
    plain.reset()
    for monitored, own in zip(play(env, ACTIONS), play(plain, ACTIONS), strict=True):
        for i in np.flatnonzero(own[2]):
            assert own[3][i]["episode"]["l"] == monitored[3][i]["episode"]["l"]
            assert own[3][i]["episode"]["r"] == pytest.approx(monitored[3][i]["episode"]["r"])


def test_answers_masks_from_the_batch(counter_vector_env):
    env = Sb3VecEnv(counter_vector_env(3))
    env.reset()
    assert is_masking_supported(env)
    env.step(np.zeros(3, int))
    masks = get_action_masks(env)
    assert np.array_equal(masks, env.env.action_masks())
    assert np.array_equal(env.env_method("action_masks", indices=[2])[0], masks[2])
    assert not env.has_attr("no_such_attribute")


@pytest.mark.parametrize(
    ("algorithm", "policy", "dictionary"),
    [(PPO, "MlpPolicy", False), (MaskablePPO, "MultiInputPolicy", True)],
)
def test_trains_and_the_same_seed_gives_the_same_weights(
    counter_vector_env, algorithm, policy, dictionary
):
    def weights() -> np.ndarray:
        env = VecMonitor(Sb3VecEnv(counter_vector_env(8, dictionary=dictionary)))
        model = algorithm(policy, env, n_steps=16, batch_size=64, n_epochs=2, seed=1)
        model.learn(256)
        assert len(model.ep_info_buffer) > 10
        parameters = [p.detach().numpy().ravel() for p in model.policy.parameters()]
        return np.concatenate(parameters)

    assert np.array_equal(weights(), weights())


def test_attributes_belong_to_the_batch(counter_vector_env):
    env = Sb3VecEnv(counter_vector_env(2, render_mode="rgb_array"))
    env.reset()
    assert env.get_attr("render_mode") == ["rgb_array"] * 2
    assert env.env_is_wrapped(gym.Wrapper) == [False, False]
    assert env.render().shape == (8, 4, 3)
    env.set_attr("render_mode", None)
    assert env.get_attr("render_mode", indices=0) == [None]
    with pytest.raises(InvalidInput, match="all environments"):
        env.set_attr("render_mode", None, indices=[0])


def test_refuses_another_kind_of_automatic_reset():
    with pytest.raises(InvalidInput, match="SAME_STEP"):
        Sb3VecEnv(gym.make_vec("CartPole-v1", 2, vectorization_mode="sync"))
