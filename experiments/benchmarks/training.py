"""Frames per second of PPO on communication tuning, and of its rollouts alone."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from dtgym.baselines.method import Budget
from dtgym.experiments import suites

SUITE = "communication"
NUM_ROLLOUTS = 10
REPEATS = 3


def run() -> dict[str, Any]:
    """Measures on one thread, best of `REPEATS` (another load of the machine only slows).

    Returns:
        ``ppo_frames_per_s``: whole training as shipped (simulation, policy, update);
        ``rollout_frames_per_s``: simulation and policy without updates;
        ``environment_steps_per_s``: simulation with random actions;
        ``rollout_share``: part of the training time that rollouts take.
    """
    import torch

    from dtgym.agents.concatenated import training_env
    from dtgym.agents.sb3_method import SB3Method

    torch.set_num_threads(1)
    suite = suites.load(SUITE).for_preparation()
    method = SB3Method("ppo", suite.env_id, hyperparameters={"validations": 0})
    num_envs = method.settings.num_envs
    frames = NUM_ROLLOUTS * num_envs * int(method.settings.algorithm["n_steps"])
    env = training_env(suite, num_envs, seed=0)
    actions = np.random.default_rng(0).integers(env.action_space.n, size=(frames, num_envs))  # type: ignore[attr-defined]

    def train() -> None:
        method.prepare(suite, seed=0, budget=Budget(frames))

    def step() -> None:
        env.reset()
        for step in range(frames // num_envs):
            env.step(actions[step])

    def roll_out() -> None:
        observations = env.reset()
        policy: Any = method.model.policy
        for _ in range(frames // num_envs):
            with torch.no_grad():
                chosen, _, _ = policy(torch.as_tensor(observations))
            observations, *_ = env.step(chosen.numpy())

    train_s, rollout_s, step_s = (_best_s(call) for call in (train, roll_out, step))
    return {
        "num_envs": num_envs,
        "frames": frames,
        "ppo_frames_per_s": frames / train_s,
        "rollout_frames_per_s": frames / rollout_s,
        "environment_steps_per_s": frames / step_s,
        "rollout_share": rollout_s / train_s,
    }


def _best_s(call: Any) -> float:
    call()
    durations_s: list[float] = []
    for _ in range(REPEATS):
        started_s = time.perf_counter()
        call()
        durations_s.append(time.perf_counter() - started_s)
    return min(durations_s)
