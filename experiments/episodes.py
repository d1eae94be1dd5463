"""Playing one episode of a method on an instance: the one place where results come from.

The runner, the validation while preparing, and the replay of solution records all step a
Gymnasium environment through `play` or `replay`, so that a claim and its check cannot differ.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

import dtgym.envs
from dtgym.baselines.method import Method
from dtgym.simulator.errors import InvalidInput

gym.register_envs(dtgym.envs)


@dataclass(frozen=True)
class Episode:
    """What one episode came to.

    Attributes:
        actions: One action a step.
        objective: Sum of rewards, undiscounted.
        vector_objective: Sum of ``info["vector_reward"]``, component by component.
        evaluations: Simulator evaluations: the method's own (searches in `reset` or `act`) plus one
            for every environment step.
        decision_s: Wall time the method took, in seconds, `reset` included.
    """

    actions: tuple[int, ...]
    objective: float
    vector_objective: tuple[float, ...]
    evaluations: int
    decision_s: float


def make(env_id: str, env_kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
    """Makes a scalar environment from plain data.

    Raises:
        InvalidInput: Unknown id, or arguments that the environment refuses.
    """
    try:
        # The passive checker costs a tenth of a step; `dtgym.envs.checks` is the thorough one.
        return gym.make(env_id, disable_env_checker=True, **env_kwargs)
    except (gym.error.Error, ModuleNotFoundError, TypeError) as error:
        raise InvalidInput(f"environment {env_id} with {env_kwargs}: {error}") from error


def play(method: Method, env: gym.Env[Any, Any], seed: int) -> Episode:
    """Plays one episode of `method` in `env`, reset with `seed`, to its end.

    An oracle receives the environment's full instance when the episode begins; nobody receives it
    later.

    Raises:
        InvalidInput: The method chose an action that the mask forbids.
    """
    env.reset(seed=seed)
    unwrapped: Any = env.unwrapped
    started_s = time.perf_counter()
    method.reset(unwrapped.view(oracle=method.oracle))
    decision_s = time.perf_counter() - started_s
    actions: list[int] = []
    total = _Total()
    while not total.ended:
        view = unwrapped.view(oracle=False)
        started_s = time.perf_counter()
        action = int(method.act(view))
        decision_s += time.perf_counter() - started_s
        if not view.action_mask[action]:
            raise InvalidInput(
                f"method {method.name} chose action {action} at step {len(actions)}, "
                "which the action mask forbids"
            )
        actions.append(action)
        total.step(env, action)
    searched = int(getattr(method, "evaluations", 0))
    return Episode(
        tuple(actions), total.objective, total.vector, searched + len(actions), decision_s
    )


@dataclass(frozen=True)
class Replay:
    """What a list of actions comes to; see `Episode`.

    Attributes:
        objective: Sum of rewards.
        vector_objective: Sum of vector rewards.
        problem: Why the actions are no full, legal episode; empty if they are.
    """

    objective: float
    vector_objective: tuple[float, ...]
    problem: str = ""


def replay(env: gym.Env[Any, Any], seed: int, actions: Sequence[int]) -> Replay:
    """Steps `env`, reset with `seed`, through recorded actions."""
    env.reset(seed=seed)
    unwrapped: Any = env.unwrapped
    total = _Total()
    for number, action in enumerate(actions):
        if total.ended:
            problem = f"the episode ends after {number} actions, {len(actions)} are recorded"
            return Replay(total.objective, total.vector, problem)
        mask = unwrapped.action_masks()
        if not 0 <= action < len(mask) or not mask[action]:
            problem = f"action {action} at step {number} is not legal"
            return Replay(total.objective, total.vector, problem)
        total.step(env, action)
    problem = "" if total.ended else f"the episode does not end after {len(actions)} actions"
    return Replay(total.objective, total.vector, problem)


class _Total:
    """Running sums of an episode's rewards, added in the order of the steps."""

    def __init__(self) -> None:
        self.objective = 0.0
        self.vector: tuple[float, ...] = ()
        self.ended = False

    def step(self, env: gym.Env[Any, Any], action: int) -> None:
        _, reward, terminated, truncated, info = env.step(action)
        self.objective += float(reward)
        step_vector = np.asarray(info["vector_reward"], dtype=np.float64).tolist()
        before = self.vector or (0.0,) * len(step_vector)
        self.vector = tuple(a + b for a, b in zip(before, step_vector, strict=True))
        self.ended = bool(terminated or truncated)
