"""The scalar and the vector interface over one dynamics."""

from __future__ import annotations

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from dtgym.envs import seeding
from dtgym.simulator.errors import InvalidInput


def actions_for(steps: int, environments: int) -> np.ndarray:
    return np.random.default_rng(0).integers(3, size=(steps, environments))


@pytest.mark.parametrize("dictionary", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_environment_i_of_a_batch_lives_what_a_scalar_with_its_child_seed_lives(
    counter_env, counter_vector_env, dictionary, cut
):
    vector = counter_vector_env(4, dictionary=dictionary, cut=cut)
    observations, infos = vector.reset(seed=11)
    actions = actions_for(20, 4)
    scalars = [counter_env(dictionary=dictionary, cut=cut) for _ in range(4)]
    for i, seed in enumerate(seeding.child_seeds(11, 4)):
        observation, info = scalars[i].reset(seed=seed)
        assert same(row(observations, i), observation)
        assert info["count"] == infos["count"][i]
    for step in range(20):
        observations, reward, terminated, truncated, infos = vector.step(actions[step])
        for i, scalar in enumerate(scalars):
            observation, r, term, trunc, info = scalar.step(actions[step, i])
            assert (r, term, trunc) == (reward[i], terminated[i], truncated[i])
            if term or trunc:
                assert infos["_final_obs"][i] and infos["_final_info"][i]
                assert same(row(infos["final_obs"], i), observation)
                final = infos["final_info"]
                assert np.array_equal(final["vector_reward"][i], info["vector_reward"])
                assert final["invalid_actions"][i] == info["invalid_actions"]
                assert not infos["_vector_reward"][i] and not infos["vector_reward"][i].any()
                observation, info = scalar.reset()
            else:
                assert np.array_equal(infos["vector_reward"][i], info["vector_reward"])
                assert not infos.get("_final_obs", np.zeros(4, bool))[i]
            assert same(row(observations, i), observation)
            assert infos["invalid_actions"][i] == info["invalid_actions"]
            assert np.array_equal(infos["action_mask"][i], info["action_mask"])


def row(observations, i):
    if isinstance(observations, dict):
        return {key: value[i] for key, value in observations.items()}
    return observations[i]


def same(a, b) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a.dtype == b.dtype and np.array_equal(a, b)


def test_results_do_not_depend_on_the_size_of_the_batch(counter_vector_env):
    small, large = counter_vector_env(2), counter_vector_env(7)
    actions = actions_for(15, 7)
    assert np.array_equal(small.reset(seed=5)[0], large.reset(seed=5)[0][:2])
    for step in actions:
        of_small, of_large = small.step(step[:2]), large.step(step)
        assert np.array_equal(of_small[0], of_large[0][:2])
        assert np.array_equal(of_small[1], of_large[1][:2])


def test_seeds_may_be_given_one_by_one(counter_vector_env):
    by_root, by_list = counter_vector_env(3), counter_vector_env(3)
    observations, _ = by_root.reset(seed=9)
    assert np.array_equal(observations, by_list.reset(seed=seeding.child_seeds(9, 3))[0])
    with pytest.raises(InvalidInput, match="3 seeds"):
        by_list.reset(seed=[1, 2])
    with pytest.raises(InvalidInput, match="at least 0"):
        by_list.reset(seed=[1, 2, -3])


def test_children_of_neighbouring_seeds_differ():
    children = [child for seed in range(20) for child in seeding.child_seeds(seed, 50)]
    assert len(set(children)) == len(children)


def test_a_reset_without_a_seed_goes_on_with_the_next_episode(counter_env):
    first, second = counter_env(), counter_env()
    a = [first.reset(seed=3)[0], first.reset()[0], first.reset()[0]]
    b = [second.reset(seed=3)[0], second.reset()[0], second.reset()[0]]
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert len({x.tobytes() for x in a}) == 3


def test_unseeded_environments_differ(counter_env):
    assert not np.array_equal(counter_env().reset()[0], counter_env().reset()[0])


def test_counts_forbidden_actions_and_starts_anew_with_the_episode(counter_env):
    env = counter_env()
    seed = next(s for s in range(100) if env.reset(seed=s) and env.dynamics.length[0] == 5)
    env.reset(seed=seed)
    counts = [env.step(2)[4]["invalid_actions"] for _ in range(4)]
    assert counts == [0, 0, 1, 1]
    assert env.reset()[1]["invalid_actions"] == 0


@pytest.mark.parametrize("action", [-1, 3, 1.0, [0, 1], np.array([1])])
def test_refuses_actions_outside_of_the_space(counter_env, action):
    env = counter_env()
    env.reset(seed=0)
    with pytest.raises(InvalidInput, match="action"):
        env.step(action)


@pytest.mark.parametrize("actions", [[0, 1], [0, 1, 3], [0.0, 1.0, 2.0]])
def test_refuses_a_batch_of_actions_outside_of_the_space(counter_vector_env, actions):
    env = counter_vector_env(3)
    env.reset(seed=0)
    with pytest.raises(InvalidInput, match="action"):
        env.step(np.array(actions))


def test_asks_for_a_reset_before_the_first_step(counter_env, counter_vector_env):
    with pytest.raises(gym.error.ResetNeeded):
        counter_env().step(0)
    with pytest.raises(gym.error.ResetNeeded):
        counter_vector_env(2).step([0, 0])


def test_arrays_handed_out_are_never_changed_later(counter_vector_env):
    env = counter_vector_env(3)
    kept = [env.reset(seed=1)]
    for step in actions_for(12, 3):
        kept.append(env.step(step))
        if len(kept) == 2:
            frozen = copy.deepcopy(kept[:2])
    assert pickle.dumps(frozen) == pickle.dumps(copy.deepcopy(kept[:2]))


def test_gymnasiums_own_statistics_agree_with_counting_by_hand(counter_vector_env):
    env = RecordEpisodeStatistics(counter_vector_env(3))
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    env.reset(seed=2)
    returns, lengths = np.zeros(3), np.zeros(3, int)
    ended = 0
    for step in actions_for(25, 3):
        _, reward, terminated, _, infos = env.step(step)
        returns += reward
        lengths += 1
        for i in np.flatnonzero(terminated):
            assert infos["episode"]["l"][i] == lengths[i]
            assert infos["episode"]["r"][i] == pytest.approx(returns[i])
            returns[i] = lengths[i] = 0
            ended += 1
    assert ended > 5


def test_attributes_and_methods_are_answered_for_every_environment(counter_vector_env):
    env = counter_vector_env(3, render_mode="ansi")
    env.reset(seed=0)
    assert env.get_attr("render_mode") == ("ansi",) * 3
    assert np.array_equal(np.stack(env.call("action_masks")), env.action_masks())
    assert env.call("view", oracle=True)[1].instance == env.dynamics.length[1]
    assert env.view(1).instance is None
    assert env.call("render")[0].startswith("0 of")
    env.set_attr("render_mode", [None] * 3)
    assert env.render() is None
    with pytest.raises(InvalidInput, match="same in all"):
        env.set_attr("render_mode", [None, "ansi", None])
    with pytest.raises(AttributeError):
        env.set_attr("no_such_attribute", 1)
    with pytest.raises(AttributeError):
        env.get_attr("no_such_attribute")


def test_refuses_a_render_mode_that_does_not_exist(counter_env):
    with pytest.raises(InvalidInput, match="render_mode"):
        counter_env(render_mode="human")


def test_draws_are_uniform_and_unrelated_between_neighbours():
    keys = seeding.stream_keys(range(64))
    draws = seeding.uniform(keys[:, None], np.arange(512))
    assert abs(draws.mean() - 0.5) < 0.01
    assert abs(draws.var() - 1 / 12) < 0.002
    correlations = [
        np.corrcoef(draws[:, :-1].ravel(), draws[:, 1:].ravel())[0, 1],
        np.corrcoef(draws[:-1].ravel(), draws[1:].ravel())[0, 1],
    ]
    assert max(map(abs, correlations)) < 0.02
    assert len(np.unique(draws)) == draws.size
