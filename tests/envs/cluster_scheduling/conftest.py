"""Players shared by the tests of cluster scheduling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dtgym.envs.cluster_scheduling.env import ClusterSchedulingEnv


@dataclass
class Played:
    """One episode: sums, schedule and the environment at its end."""

    env: ClusterSchedulingEnv
    job_ms: int
    reward: float
    vector: np.ndarray
    steps: int

    @property
    def schedule(self):
        return self.env.dynamics.schedule(0)

    @property
    def jobs(self):
        return self.env.dynamics.instance(0)


def play(
    env: ClusterSchedulingEnv,
    choose: Callable[[ClusterSchedulingEnv, np.ndarray], int],
    seed: int,
    check: Callable[[ClusterSchedulingEnv], None] = lambda env: None,
) -> Played:
    _, info = env.reset(seed=seed)
    job_ms, reward, vector, steps, ended = 0, 0.0, 0.0, 0, False
    while not ended:
        check(env)
        _, r, ended, truncated, info = env.step(choose(env, info["action_mask"]))
        assert not truncated
        job_ms += info["job_ms"]
        reward += r
        vector = vector + info["vector_reward"]
        steps += 1
    return Played(env, job_ms, reward, np.asarray(vector), steps)


@pytest.fixture
def episode() -> Any:
    """Plays one episode."""
    return play
