"""A family with hand-checkable dynamics, for tests of the frame itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from dtgym.envs import seeding
from dtgym.envs.dynamics import Dynamics, Transition
from dtgym.envs.native import NativeEnv, NativeVectorEnv


class CounterDynamics(Dynamics):
    """Counts to a length drawn per episode; action 2 is forbidden on every third step."""

    def __init__(self, num_envs: int, *, dictionary: bool = False, cut: bool = False) -> None:
        self.num_envs = num_envs
        self.dictionary = dictionary
        self.cut = cut
        box = spaces.Box(-1, 100, (2,), np.float32)
        self.observation_space = (
            spaces.Dict({"features": box, "action_mask": spaces.MultiBinary(3)})
            if dictionary
            else box
        )
        self.action_space = spaces.Discrete(3)
        self.length = np.zeros(num_envs, dtype=np.int64)
        self.count = np.zeros(num_envs, dtype=np.int64)
        self.noise = np.zeros(num_envs)

    def begin(self, which, episode_keys):
        self.length[which] = 2 + (4 * seeding.uniform(episode_keys, 0)).astype(np.int64)
        self.noise[which] = seeding.uniform(episode_keys, 1)
        self.count[which] = 0

    def advance(self, actions, legal):
        self.count += 1
        reward = np.where(legal, actions, -1) + self.noise
        done = self.count >= self.length
        no = np.zeros_like(done)
        infos = {"vector_reward": np.stack([reward, -reward], axis=1)}
        return Transition(reward, no if self.cut else done, done if self.cut else no, infos)

    def observe(self, which):
        features = np.stack([self.count[which], self.noise[which]], axis=1).astype(np.float32)
        if not self.dictionary:
            return features
        return {"features": features, "action_mask": self.action_masks()[which].astype(np.int8)}

    def action_masks(self):
        masks = np.ones((self.num_envs, 3), dtype=np.bool_)
        masks[self.count % 3 == 2, 2] = False
        return masks

    def infos(self):
        return {"count": self.count.copy()}

    def state(self, index):
        return int(self.count[index])

    def instance(self, index):
        return int(self.length[index])

    def render(self, index, mode):
        if mode == "ansi":
            return f"{self.count[index]} of {self.length[index]}"
        return np.full((4, 4, 3), self.count[index], dtype=np.uint8)


@pytest.fixture
def counter_dynamics() -> type[CounterDynamics]:
    return CounterDynamics


@pytest.fixture
def counter_env() -> Any:
    """Makes a scalar environment that counts."""

    def make(render_mode: str | None = None, **options: Any) -> NativeEnv:
        return NativeEnv(CounterDynamics(1, **options), render_mode)

    return make


@pytest.fixture
def counter_vector_env() -> Any:
    """Makes a batch of environments that count."""

    def make(num_envs: int, render_mode: str | None = None, **options: Any) -> NativeVectorEnv:
        return NativeVectorEnv(CounterDynamics(num_envs, **options), render_mode)

    return make
