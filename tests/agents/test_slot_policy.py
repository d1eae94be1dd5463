"""The slot policy: slots are judged alike, unused ones do not count, and it trains and loads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.utils import set_random_seed

import dtgym.envs  # noqa: F401
from dtgym.agents import POLICY
from dtgym.agents.concatenated import ConcatenatedVecEnv
from dtgym.agents.sb3_method import SB3Method
from dtgym.agents.slot_policy import IDLING, SlotPolicy
from dtgym.baselines.method import Budget
from dtgym.envs import sb3
from dtgym.experiments import suites
from dtgym.simulator.errors import InvalidInput

ENV = "dtgym/ClusterScheduling-v0"
SMALL = {
    "num_envs": 12,
    "network": [8],
    "network_kind": "slots",
    "validations": 0,
    "num_minibatches": 1,
    "algorithm": {"n_steps": 8, "n_epochs": 1},
}


def policy_and_observation():
    set_random_seed(0)
    env = sb3.make(ENV, 1, seed=0)
    policy = SlotPolicy(env.observation_space, env.action_space, lambda _: 1e-3, net_arch=[8])
    observation = {
        name: torch.as_tensor(np.array([space.sample()]))
        for name, space in env.observation_space.spaces.items()
    }
    return policy, observation


def logits_and_value(policy, observation):
    with torch.no_grad():
        logits = policy.get_distribution(observation).distribution.logits
        return (logits - logits.logsumexp(1))[0].numpy(), policy.predict_values(observation)[0, 0]


def test_slots_are_judged_by_what_is_in_them_not_by_where_they_are():
    policy, observation = policy_and_observation()
    logits, value = logits_and_value(policy, observation)
    slots = observation["queue"].shape[1]
    order = np.random.default_rng(0).permutation(slots)
    moved, same = logits_and_value(policy, {**observation, "queue": observation["queue"][:, order]})
    assert np.allclose(moved[:slots], logits[:slots][order], atol=1e-5)
    assert np.allclose(moved[slots:], logits[slots:], atol=1e-5)
    assert np.isclose(same, value, atol=1e-5)


def test_unused_slots_change_nothing_but_their_own_score():
    policy, observation = policy_and_observation()
    queue = observation["queue"]
    queue[:, 5:, 0] = queue[:, 5:, -1] = 0
    first, value = logits_and_value(policy, observation)
    other = queue.clone()
    other[:, 5:, 1:-1] = torch.rand_like(other[:, 5:, 1:-1])
    second, same = logits_and_value(policy, {**observation, "queue": other})
    slots = queue.shape[1]
    kept = [*range(5), *range(slots, len(first))]
    # Scores are known up to a constant that all share.
    assert np.allclose(first[kept] - first[0], second[kept] - second[0], atol=1e-5)
    assert np.isclose(same, value, atol=1e-5)


def test_letting_time_pass_is_unlikely_at_the_start():
    policy, observation = policy_and_observation()
    logits, _ = logits_and_value(policy, observation)
    slots = observation["queue"].shape[1]
    assert logits[slots] - logits[0] == pytest.approx(IDLING, abs=0.3)


def test_trains_saves_and_decides_alike_after_loading(tmp_path):
    suite = suites.load("scheduling")
    agent = SB3Method("maskable_ppo", ENV, hyperparameters=SMALL)
    agent.prepare(suite, seed=0, budget=Budget(192, folder=tmp_path))
    loaded = SB3Method("maskable_ppo", ENV, checkpoint=str(tmp_path / POLICY))
    env = sb3.make(ENV, 1, seed=3)
    observation = {name: values[0] for name, values in env.reset().items()}
    assert np.array_equal(agent._preferences(observation), loaded._preferences(observation))


def test_refuses_what_has_no_slots():
    flat = spaces.Dict({"queue": spaces.Box(0, 1, (4, 3))})
    with pytest.raises(InvalidInput, match="nodes is missing"):
        SlotPolicy(flat, spaces.Discrete(5), lambda _: 1e-3, net_arch=[8])
    with pytest.raises(InvalidInput, match="maskable_ppo only"):
        SB3Method("a2c", ENV, hyperparameters={"network_kind": "slots"})


def test_rewards_are_scaled_and_logged_returns_are_not():
    plain, scaled = (
        ConcatenatedVecEnv([sb3.make("dtgym/ClusterScheduling-Toy-v0", 2, seed=1)], scale)
        for scale in (1.0, 0.5)
    )
    observations = [env.reset() for env in (plain, scaled)]
    total, ended = np.zeros(2), False
    while not ended:
        actions = observations[0]["action_mask"].argmax(1)
        first, rewards, dones, infos = plain.step(actions)
        _, half, _, others = scaled.step(actions)
        observations = [first]
        assert np.allclose(half * 2, rewards)
        total += rewards
        ended = bool(dones.all())
    for env in (0, 1):
        assert others[env]["episode"]["r"] == infos[env]["episode"]["r"]
        assert infos[env]["episode"]["r"] == pytest.approx(total[env], rel=1e-4)
