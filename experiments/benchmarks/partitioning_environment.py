"""Steps/s of the model partitioning environments, actions drawn from the masks."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np

SIZES = {
    "dtgym.envs:dtgym/ModelPartitioning-v0": (1, 1024),
    "dtgym.envs:dtgym/ModelPartitioning-Improve-v0": (256,),
}
STEPS = 150
ROUNDS = 3


def environment_rates() -> dict[str, Any]:
    """Environment steps per second by id and size of the batch: the best of several rounds.

    Drawing the actions is not counted; masks, observation, reward and automatic resets are.
    """
    return {
        f"{env_id} x {count}": max(_steps_per_s(env_id, count) for _ in range(ROUNDS))
        for env_id, counts in SIZES.items()
        for count in counts
    }


def _steps_per_s(env_id: str, count: int) -> float:
    env = gym.make_vec(env_id, num_envs=count, vectorization_mode="vector_entry_point")
    _, infos = env.reset(seed=0)
    random = np.random.default_rng(0)
    duration_s = 0.0
    for step in range(STEPS + STEPS // 5):
        masks = infos["action_mask"]
        actions = (random.random(masks.shape) * masks).argmax(axis=1)
        started_s = time.perf_counter()
        _, _, _, _, infos = env.step(actions)
        # The first steps warm caches and spread the environments over their episodes.
        duration_s += (time.perf_counter() - started_s) if step >= STEPS // 5 else 0.0
    env.close()
    return STEPS * count / duration_s
