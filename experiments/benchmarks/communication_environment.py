"""Steps/s of the communication environment, alone and in a batch."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from dtgym.experiments.benchmarks import median_duration_s

ENV_ID = "dtgym.envs:dtgym/CommunicationTuning-v0"
PARALLEL = 1024
STEPS = 100


def environment_rates() -> dict[str, Any]:
    """Steps/s of the default environment under random actions, resets included.

    Returns:
        ``single_steps_per_s``: the scalar environment without wrappers.
        ``parallel_steps_per_s``: environment steps/s of the native vector environment with
        ``parallel_environments`` environments, on ``NUMBA_NUM_THREADS`` threads.
    """
    actions = np.random.default_rng(0).integers(81, size=(STEPS, PARALLEL))
    single: Any = gym.make(ENV_ID).unwrapped
    vector = gym.make_vec(ENV_ID, PARALLEL, vectorization_mode="vector_entry_point")
    single.reset(seed=0)
    vector.reset(seed=0)

    def play_single() -> None:
        for action in actions[:, 0]:
            if single.step(int(action))[2]:
                single.reset()

    def play_vector() -> None:
        for row in actions:
            vector.step(row)

    return {
        "environment": ENV_ID,
        "parallel_environments": PARALLEL,
        "single_steps_per_s": STEPS / median_duration_s(play_single),
        "parallel_steps_per_s": STEPS * PARALLEL / median_duration_s(play_vector),
    }
