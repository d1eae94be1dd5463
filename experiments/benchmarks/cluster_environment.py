"""Steps/s of the scheduling environment, alone and in a batch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

ENV_IDS = (
    "dtgym.envs:dtgym/ClusterScheduling-v0",
    "dtgym.envs:dtgym/ClusterScheduling-MultiResource-v0",
)
PARALLEL = 1024
STEPS = 100
SINGLE_STEPS = 1000


def environment_rates() -> dict[str, Any]:
    """Steps/s under random legal actions, resets included, the draw of the actions not.

    Both environments have 32 queue slots, 16 nodes and 5 resources; in the first only GPUs are
    scarce.

    Returns:
        For each environment ``single_steps_per_s`` (the scalar environment without wrappers) and
        ``parallel_steps_per_s`` (environment steps/s of the native vector environment with
        ``parallel_environments`` environments, on ``NUMBA_NUM_THREADS`` threads).
    """
    rates: dict[str, Any] = {"parallel_environments": PARALLEL}
    for env_id in ENV_IDS:
        rates[env_id] = {
            "single_steps_per_s": SINGLE_STEPS / _median_s(_single(env_id)),
            "parallel_steps_per_s": STEPS * PARALLEL / _median_s(_vector(env_id)),
        }
    return rates


def _median_s(play: Callable[[], float], repeats: int = 5) -> float:
    """Median of the seconds that `play` reports, after one run that is not counted."""
    play()
    return statistics.median(play() for _ in range(repeats))


def _single(env_id: str) -> Callable[[], float]:
    env: Any = gym.make(env_id).unwrapped
    mask = env.reset(seed=0)[1]["action_mask"]
    random = np.random.default_rng(0)

    def play() -> float:
        nonlocal mask
        spent_s = 0.0
        for draw in random.random(SINGLE_STEPS).tolist():
            legal = mask.nonzero()[0]
            action = int(legal[int(draw * len(legal))])
            started_s = time.perf_counter()
            _, _, ended, _, info = env.step(action)
            mask = (env.reset()[1] if ended else info)["action_mask"]
            spent_s += time.perf_counter() - started_s
        return spent_s

    return play


def _vector(env_id: str) -> Callable[[], float]:
    env = gym.make_vec(env_id, PARALLEL, vectorization_mode="vector_entry_point")
    masks = env.reset(seed=0)[1]["action_mask"]
    random = np.random.default_rng(0)

    def play() -> float:
        nonlocal masks
        spent_s = 0.0
        for _ in range(STEPS):
            actions = (masks * random.random(masks.shape, dtype=np.float32)).argmax(axis=1)
            started_s = time.perf_counter()
            masks = env.step(actions)[4]["action_mask"]
            spent_s += time.perf_counter() - started_s
        return spent_s

    return play


def random_episodes(episodes: int, *, seed: int = 0) -> int:
    """Plays random masked episodes of every preset and counts the steps.

    Args:
        episodes: Fewest episodes in all; each preset gets an equal share.
        seed: Of the draws.

    Returns:
        Steps played.

    Raises:
        AssertionError: An environment without a legal action, a legal action counted as forbidden,
            a negative free amount or a finished cluster that still holds something.
    """
    from dtgym.envs.cluster_scheduling import SPECS, layout

    steps = 0
    for spec in SPECS:
        vector = gym.make_vec(f"dtgym.envs:{spec.id}", 256, vectorization_mode="vector_entry_point")
        dynamics: Any = vector.unwrapped.dynamics  # type: ignore[attr-defined]
        nodes = len(dynamics.given.nodes)
        random = np.random.default_rng(seed)
        info = vector.reset(seed=seed)[1]
        ended = 0
        while ended < episodes / len(SPECS):
            mask = info["action_mask"]
            assert mask.any(axis=1).all(), f"{spec.id}: no legal action"
            draw = random.random(mask.shape, dtype=np.float32)
            _, _, terminated, truncated, info = vector.step((mask * draw).argmax(axis=1))
            assert not truncated.any()
            assert not info["invalid_actions"].any(), f"{spec.id}: a legal action was refused"
            free = dynamics.rules.block(dynamics.table, layout.B_FREE, nodes, layout.RESOURCES)
            assert (free >= 0).all(), f"{spec.id}: more is held than there is"
            lost = (free.sum(axis=1) + dynamics.table[:, layout.HELD : layout.HELD + 5]) != (
                dynamics.given.nodes[:, : layout.RESOURCES].sum(axis=0)
            )
            assert not lost.any(), f"{spec.id}: held and free do not make up the capacity"
            ended += int(terminated.sum())
            steps += 256
    return steps
