"""Where tuning pays: regret of static configurations against the dynamic oracle.

The environment's drift is exogenous, so both are well defined. A reader who wants to know whether
a tuner can win anything on a model, an architecture and a scenario looks here first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from dtgym.envs import seeding

SCENARIOS = ("steady", "bandwidth-markov", "latency-shift", "stragglers", "incast", "mixed")
ARCHITECTURES = ("allreduce", "ps")
TIE = 1e-3
"""Cells within this fraction of the best count as equal: the one nearest to the default is taken,
since among equals a tuner has no reason to leave it."""


@dataclass(frozen=True)
class Regret:
    """Regret on one model, architecture and scenario; fractions of the dynamic oracle's time.

    Regret of a choice is its time over all steps, over the time of the best cell of each step,
    minus 1, without costs of changing. Means are over episodes.

    Attributes:
        model: Workload.
        architecture: ``ps`` or ``allreduce``.
        scenario: What drifts.
        episodes: Number of episodes.
        hindsight_static: Best single cell of each episode, chosen in hindsight: mean.
        hindsight_static_largest: The same: largest of the episodes.
        one_static: The one cell that is best over all episodes together: mean.
        tuned_once: The best cell of the first step's state, kept: what a tuner that runs once can
            reach at best: mean.
        tuned_once_largest: The same: largest of the episodes.
        default: The release's default (1 M / 4 M parameters): mean.
        attainable: What an exact plan, which pays for every change of the partition and starts
            from the default, gains in speed over the best single cell of each episode, which pays
            likewise: geometric mean over steps, mean over episodes.
    """

    model: str
    architecture: str
    scenario: str
    episodes: int
    hindsight_static: float
    hindsight_static_largest: float
    one_static: float
    tuned_once: float
    tuned_once_largest: float
    default: float
    attainable: float


def regrets(
    models: Sequence[str],
    architectures: Sequence[str] = ARCHITECTURES,
    scenarios: Sequence[str] = SCENARIOS,
    *,
    episodes: int = 20,
    seed: int = 0,
    **env_kwargs: Any,
) -> list[Regret]:
    """Regret for every combination; 8,100 simulator evaluations an episode at default size.

    Args:
        models: Workloads.
        architectures: Of ``allreduce`` and ``ps``.
        scenarios: Scenario families.
        episodes: Episodes of each combination; they share the drift between models.
        seed: Root of the episodes' seeds.
        **env_kwargs: Further arguments of the environment.

    Raises:
        InvalidInput: An unknown model, architecture or scenario.

    Examples:
        >>> [row] = regrets(["vgg16"], ["ps"], ["steady"], episodes=2, horizon=5)
        >>> row.hindsight_static, row.tuned_once < row.default
        (0.0, True)
    """
    return [
        regret(model, architecture, scenario, episodes=episodes, seed=seed, **env_kwargs)
        for model in models
        for architecture in architectures
        for scenario in scenarios
    ]


def regret(
    model: str,
    architecture: str,
    scenario: str,
    *,
    episodes: int = 20,
    seed: int = 0,
    **env_kwargs: Any,
) -> Regret:
    """Regret for one model, architecture and scenario; see `regrets`."""
    env: Any = gym.make(
        "dtgym.envs:dtgym/CommunicationTuning-v0",
        model=model,
        architecture=architecture,
        scenario=scenario,
        **env_kwargs,
    ).unwrapped
    by_cell: list[NDArray[np.float64]] = []
    first: list[float] = []
    default: list[float] = []
    attainable: list[float] = []
    for child in seeding.child_seeds(seed, episodes):
        env.reset(seed=child)
        instance = env.view(oracle=True).instance
        table_s = instance.iteration_time_table_s()
        best_s = table_s.min(axis=1)
        by_cell.append(_regret(table_s, best_s[:, None]))
        first.append(float(by_cell[-1][tuned_cell(table_s[0], instance.parameters)]))
        default.append(float(_regret(instance.default_iteration_time_s(), best_s)))
        gain = instance.best_plan().objective - instance.best_static_plan().objective
        # No plan of one cell beats the best plan: below 0 is rounding.
        attainable.append(float(np.expm1(max(gain, 0.0) / len(table_s))))
    of_cells = np.array(by_cell)
    hindsight = of_cells.min(axis=1)
    return Regret(
        model=model,
        architecture=architecture,
        scenario=scenario,
        episodes=episodes,
        hindsight_static=float(hindsight.mean()),
        hindsight_static_largest=float(hindsight.max()),
        one_static=float(of_cells.mean(axis=0).min()),
        tuned_once=float(np.mean(first)),
        tuned_once_largest=float(np.max(first)),
        default=float(np.mean(default)),
        attainable=float(np.mean(attainable)),
    )


def _regret(time_s: NDArray[np.float64], best_s: NDArray[np.float64]) -> Any:
    """Time lost over all steps (the first axis), as a fraction of the best time."""
    return (time_s - best_s).sum(axis=0) / best_s.sum(axis=0)


def tuned_cell(times_s: NDArray[np.float64], parameters: Any) -> int:
    """The best cell for one state, (cells,); a tie (see `TIE`) goes to the one nearest the default.

    Examples:
        >>> from dtgym.envs.communication_tuning.types import Parameters
        >>> axes = {"partition_grid_bytes": (2e6, 4e6), "credit_grid_bytes": (8e6, 16e6)}
        >>> tuned_cell(np.array([1.0, 1.0, 1.0, 1.2]), Parameters(**axes))
        1
    """
    partition, credit = np.divmod(np.arange(parameters.cells), len(parameters.credit_grid_bytes))
    default_partition, default_credit = parameters.default_cell
    distance = abs(partition - default_partition) + abs(credit - default_credit)
    tied = times_s <= times_s.min() * (1 + TIE)
    return int(np.where(tied, distance, np.iinfo(np.int64).max).argmin())
