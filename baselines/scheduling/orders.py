"""Schedulers that rank jobs by one number: FIFO, shortest first, least service, Gittins.

Python forms of the compiled policies of `dtgym.simulator.cluster`; on the engine's slow path they
give the same schedules. In the environment, which has no preemption, the preemptive ones rank the
waiting jobs only.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.baselines.method import View
from dtgym.baselines.scheduling.base import RankingMethod, attained_gpu_s, true_duration_s
from dtgym.simulator.scheduling import Decision, Start
from dtgym.simulator.service_levels import gittins_levels


@dataclass
class Fifo(RankingMethod):
    """First in, first out; strict, or with greedy skipping where `blocks` is False."""

    name: str = "fifo"
    blocks: bool = True

    def order(self, state: Any) -> NDArray[np.int64]:
        """By submission, as the jobs are listed."""
        return np.arange(len(state.waiting.job))


@dataclass
class Shortest(RankingMethod):
    """Shortest job first, by estimated or (as an oracle) true duration."""

    name: str = "sjf"
    blocks: bool = False

    def order(self, state: Any) -> NDArray[np.int64]:
        """Ascending in duration; ties by submission."""
        key = true_duration_s(self, state) if self.oracle else state.waiting.estimate_s
        return np.argsort(key, kind="stable")


@dataclass
class LeastGpuTime(RankingMethod):
    """QSSF: least predicted GPU time first (Helios; also Lucid's order)."""

    name: str = "qssf"
    blocks: bool = False

    def order(self, state: Any) -> NDArray[np.int64]:
        """Ascending in estimated duration x GPUs; ties by submission."""
        key = state.waiting.estimate_s * np.maximum(state.waiting.num_gpus, 1)
        return np.argsort(key, kind="stable")


@dataclass
class RandomOrder(RankingMethod):
    """Starts waiting jobs in a random order, drawn anew at every decision."""

    name: str = "random"
    seed: int = 0
    _random: np.random.Generator = field(
        default_factory=lambda: np.random.default_rng(0), init=False, repr=False
    )

    def reset(self, view: View) -> None:
        """A new instance begins with the same stream of numbers."""
        super().reset(view)
        self._random = np.random.Generator(np.random.PCG64(self.seed))

    def order(self, state: Any) -> NDArray[np.int64]:
        """A random permutation."""
        return self._random.permutation(len(state.waiting.job))


@dataclass
class Preemptive(RankingMethod):
    """Ranks all active jobs at every event and fills the GPUs greedily, skipping what does not fit.

    GPUs are counted over the whole cluster (`placement="pooled"`); on nodes, a job that is counted
    in and finds no room waits.
    """

    @abstractmethod
    def keys(self, state: Any, jobs: NDArray[np.int64]) -> NDArray[np.float64]:
        """Urgency of jobs, the smallest first, (jobs,)."""

    def order(self, state: Any) -> NDArray[np.int64]:
        """The waiting jobs by urgency; ties by submission."""
        return np.argsort(self.keys(state, state.waiting.job), kind="stable")

    def wake_s(self, state: Any) -> float | None:
        """When the ranking changes by itself; None if only events change it."""
        return None

    def decide(self, state: Any) -> Decision:
        """Preempts and starts so that the greedy choice runs."""
        running = np.sort(state.running.job)
        jobs = np.sort(np.concatenate((running, state.waiting.job)))
        gpus = dict(zip(state.running.job.tolist(), state.running.num_gpus.tolist(), strict=True))
        gpus |= dict(zip(state.waiting.job.tolist(), state.waiting.num_gpus.tolist(), strict=True))
        keys = self.keys(state, jobs)
        room = int(state.capacity[:, 0].sum())
        runs = set(running.tolist())
        starts: list[Start] = []
        stops: list[int] = []
        for job in jobs[np.argsort(keys, kind="stable")].tolist():
            if gpus[job] <= room:
                room -= gpus[job]
                if job not in runs:
                    starts.append(Start(job))
            elif job in runs:
                stops.append(job)
        return Decision(start=starts, preempt=stops, wake_s=self.wake_s(state))


@dataclass
class Srtf(Preemptive):
    """Shortest remaining time first, with true remaining times."""

    name: str = "srtf"
    oracle: bool = True

    def keys(self, state: Any, jobs: NDArray[np.int64]) -> NDArray[np.float64]:
        """Remaining time."""
        if not hasattr(state, "remaining_s"):
            return true_duration_s(self, state)
        return np.array([state.remaining_s(int(job)) for job in jobs])


@dataclass
class Srsf(Srtf):
    """Shortest remaining service first: remaining time x GPUs."""

    name: str = "srsf"

    def keys(self, state: Any, jobs: NDArray[np.int64]) -> NDArray[np.float64]:
        """Remaining time x GPUs."""
        left_s = super().keys(state, jobs)
        if not hasattr(state, "remaining_s"):
            return left_s * state.waiting.num_gpus
        return left_s * state.resources.machine.jobs["gpus"][jobs]


@dataclass
class ServiceLevels(Preemptive):
    """Ranks jobs by levels of attained GPU time: LAS (Tiresias-L), Gittins (Tiresias-G).

    Attributes:
        thresholds_gpu_s: Ends of the levels, ascending.
        ranks: Rank of each level; None runs lower levels first (LAS).
        resolution_s: Grid of the clock on which levels change.
    """

    name: str = "las"
    thresholds_gpu_s: Sequence[float] = (18000.0,)
    ranks: Sequence[int] | None = None
    resolution_s: float = 1.0
    _level: dict[int, int] = field(default_factory=lambda: {}, init=False, repr=False)

    def reset(self, view: View) -> None:
        """A new instance begins with all jobs in the first level."""
        super().reset(view)
        self._level = {}

    @property
    def _step_ms(self) -> int:
        # Whole milliseconds, the engine's clock: no rounding error hides a point of the grid.
        return max(round(self.resolution_s * 1000), 1)

    def keys(self, state: Any, jobs: NDArray[np.int64]) -> NDArray[np.float64]:
        """Ranks of the jobs' levels, after moving those that are due."""
        service = self._service(state)
        levels = len(self.thresholds_gpu_s)
        on_grid = round(state.now_s * 1000) % self._step_ms == 0
        keys = np.zeros(len(jobs))
        for place, job in enumerate(jobs.tolist()):
            level = self._level.get(job, 0)
            while on_grid and level < levels and service[job] > self.thresholds_gpu_s[level]:
                level += 1
            self._level[job] = level
            keys[place] = level if self.ranks is None else self.ranks[level]
        return keys

    def wake_s(self, state: Any) -> float | None:
        """First point of the grid at which some job leaves its level."""
        service = self._service(state)
        gpus = dict(zip(state.running.job.tolist(), state.running.num_gpus.tolist(), strict=True))
        step_ms, now_ms = self._step_ms, round(state.now_s * 1000)
        times_ms: list[int] = []
        for job, have in service.items():
            level = self._level.get(job, 0)
            if level >= len(self.thresholds_gpu_s):
                continue
            left = self.thresholds_gpu_s[level] - have
            if left < 0:
                times_ms.append((now_ms // step_ms + 1) * step_ms)
            elif gpus.get(job, 0):
                # Strictly above the threshold: the first whole millisecond after reaching it.
                beyond_ms = now_ms + math.floor(left * 1000 / gpus[job]) + 1
                times_ms.append(-(-beyond_ms // step_ms) * step_ms)
        # Jobs that start in this decision are looked at again when they can have exceeded.
        asked_gpus = state.waiting.num_gpus.tolist()
        for job, asked in zip(state.waiting.job.tolist(), asked_gpus, strict=True):
            level = self._level.get(job, 0)
            if asked and level < len(self.thresholds_gpu_s):
                left = max(self.thresholds_gpu_s[level] - service[job], 0.0)
                beyond_ms = now_ms + math.floor(left * 1000 / asked) + 1
                times_ms.append(-(-beyond_ms // step_ms) * step_ms)
        return min(times_ms) / 1000.0 if times_ms else None

    def _service(self, state: Any) -> dict[int, float]:
        """Attained GPU time of every active job."""
        waiting = zip(state.waiting.job.tolist(), attained_gpu_s(state).tolist(), strict=True)
        attained = getattr(state.running, "attained_gpu_s", np.zeros(len(state.running.job)))
        return dict(waiting) | dict(zip(state.running.job.tolist(), attained.tolist(), strict=True))


def gittins(samples_gpu_s: Sequence[float], *, resolution_s: float = 1.0) -> ServiceLevels:
    """Tiresias-G: ranks jobs by the Gittins index of their attained GPU time.

    Args:
        samples_gpu_s: GPU times of past jobs, the distribution the index is taken from.
        resolution_s: Grid of the clock on which indices change.
    """
    bounds, ranks = gittins_levels(samples_gpu_s)
    return ServiceLevels(
        name="gittins",
        thresholds_gpu_s=tuple(bounds.tolist()),
        ranks=tuple(ranks.tolist()),
        resolution_s=resolution_s,
    )
