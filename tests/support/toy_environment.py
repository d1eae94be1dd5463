"""A toy environment that keeps the contract of ours, and toy methods for it.

``toy/Repeat-v0``: the observation is one of `num_actions` symbols (one-hot), drawn anew each step;
repeating it earns 1, anything else 0. The optimum of an episode is its horizon. The action before
the last symbol is forbidden, so that masks matter.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from dtgym.baselines.method import BaseMethod, Budget, View
from dtgym.envs import seeding
from dtgym.envs.dynamics import Dynamics, Transition
from dtgym.envs.native import NativeEnv, NativeVectorEnv


class RepeatDynamics(Dynamics):
    """Repeat the symbol that you see."""

    def __init__(self, num_envs: int, num_actions: int, horizon: int, bonus: float) -> None:
        self.num_envs = num_envs
        self.observation_space = spaces.Box(0, 1, (num_actions,), dtype=np.float32)
        self.action_space = spaces.Discrete(num_actions)
        self.horizon = horizon
        self.bonus = bonus
        self.keys = np.zeros(num_envs, dtype=np.uint64)
        self.now = np.zeros(num_envs, dtype=np.int64)

    def begin(self, which: NDArray[np.int64], episode_keys: NDArray[np.uint64]) -> None:
        self.keys[which] = episode_keys
        self.now[which] = 0

    def symbols(self) -> NDArray[np.int64]:
        drawn = seeding.uniform(self.keys, self.now)
        return np.minimum(drawn * self.action_space.n, self.action_space.n - 1).astype(np.int64)

    def advance(self, actions: NDArray[np.int64], legal: NDArray[np.bool_]) -> Transition:
        reward = (legal & (actions == self.symbols())).astype(np.float64) * (1 + self.bonus)
        self.now += 1
        vector = np.stack([reward, -np.ones(self.num_envs)], axis=1)
        ended = self.now >= self.horizon
        return Transition(reward, ended, np.zeros_like(ended), {"vector_reward": vector})

    def observe(self, which: NDArray[np.int64]) -> NDArray[np.float32]:
        one_hot = np.eye(self.action_space.n, dtype=np.float32)
        return one_hot[self.symbols()[which]]

    def action_masks(self) -> NDArray[np.bool_]:
        masks = np.ones((self.num_envs, self.action_space.n), dtype=np.bool_)
        masks[np.arange(self.num_envs), self.symbols() - 1] = False
        return masks

    def state(self, index: int) -> int:
        return int(self.symbols()[index])

    def instance(self, index: int) -> dict[str, Any]:
        future = np.arange(self.horizon)
        drawn = seeding.uniform(self.keys[index : index + 1], future) * self.action_space.n
        return {"symbols": np.minimum(drawn, self.action_space.n - 1).astype(int).tolist()}

    def render(self, index: int, mode: str) -> str:
        return f"symbol {self.state(index)}"


class RepeatEnv(NativeEnv):
    def __init__(
        self,
        num_actions: int = 4,
        horizon: int = 8,
        bonus: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(RepeatDynamics(1, num_actions, horizon, bonus), render_mode)


class RepeatVectorEnv(NativeVectorEnv):
    def __init__(
        self,
        num_envs: int = 1,
        num_actions: int = 4,
        horizon: int = 8,
        bonus: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(RepeatDynamics(num_envs, num_actions, horizon, bonus), render_mode)


if "toy/Repeat-v0" not in gym.registry:
    gym.register(
        "toy/Repeat-v0",
        entry_point="toy_environment:RepeatEnv",
        vector_entry_point="toy_environment:RepeatVectorEnv",
    )


@dataclass
class Constant(BaseMethod):
    """Repeats one legal action; blind."""

    name: str = "constant"
    sleep_s: float = 0.0

    def act(self, view: View) -> int:
        time.sleep(self.sleep_s)
        return int(np.flatnonzero(view.action_mask)[0])


@dataclass
class Repeat(BaseMethod):
    """The optimum."""

    name: str = "repeat"

    def act(self, view: View) -> int:
        return int(np.argmax(view.observation))


@dataclass
class Bonus(Repeat):
    """The optimum in a variant of the environment that the method asks for."""

    name: str = "bonus"
    env_overrides: ClassVar[dict[str, Any]] = {"bonus": 0.5}


@dataclass
class Oracle(BaseMethod):
    """Reads the future when the episode begins."""

    name: str = "oracle"
    oracle: bool = True

    def reset(self, view: Any) -> None:
        super().reset(view)
        self.evaluations = 1
        self.plan = list(view.instance["symbols"])

    def act(self, view: View) -> int:
        assert view.instance is None
        return self.plan.pop(0)


@dataclass
class Tuned(BaseMethod):
    """Guesses which of two rules is better on training instances, in `rounds` counted rounds."""

    name: str = "tuned"
    rounds: int = 5
    sleep_s: float = 0.0

    def prepare(self, suite: Any, *, seed: int, budget: Budget) -> None:
        assert suite.test == ()
        rng = np.random.default_rng(seed)
        self.shift = 1
        for best in range(self.rounds):
            time.sleep(self.sleep_s)
            budget.spend(10)
            budget.record({"search/best_objective": float(best)})
        self.shift = int(rng.integers(2))

    def act(self, view: View) -> int:
        choice = (int(np.argmax(view.observation)) + self.shift) % len(view.action_mask)
        return choice if view.action_mask[choice] else int(np.argmax(view.observation))


@dataclass
class Broken(BaseMethod):
    """Fails in its second episode; with `kill` it takes its process along."""

    name: str = "broken"
    kill: bool = False

    def reset(self, view: View) -> None:
        super().reset(view)
        if self.kill:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGKILL)
        raise ArithmeticError("no luck")

    def act(self, view: View) -> int:
        return 0


@dataclass
class Forbidden(BaseMethod):
    """Chooses what the mask forbids."""

    name: str = "forbidden"

    def act(self, view: View) -> int:
        return int(np.flatnonzero(~view.action_mask)[0])
