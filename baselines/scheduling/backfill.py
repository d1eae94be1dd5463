"""Backfilling on counted GPUs: EASY and conservative.

Reservations use estimated ends and count GPUs of the whole cluster; on nodes a reserved job may
still find its GPUs scattered. The compiled forms (`cluster.simulate(..., "easy")`) reserve on nodes
and on all resources.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.baselines.scheduling.base import SchedulingMethod


def estimated_ends_s(state: Any) -> NDArray[np.float64]:
    """When running jobs are thought to end; one that runs over is thought to end at once."""
    left_s = state.running.estimate_s - state.running.elapsed_s
    return state.now_s + np.maximum(left_s, 0.001)


def running_gpus(state: Any) -> NDArray[np.int64]:
    """GPUs of the running jobs, (running,)."""
    return state.running.gpus.sum(axis=1)


@dataclass
class Easy(SchedulingMethod):
    """EASY: later jobs may start if the head's reserved start does not move."""

    name: str = "easy"

    def order(self, state: Any) -> NDArray[np.int64]:
        """The head alone if it can start; otherwise the jobs that do not delay it."""
        waiting = state.waiting
        if len(waiting.job) == 0:
            return np.zeros(0, dtype=np.int64)
        if waiting.startable[0]:
            return np.zeros(1, dtype=np.int64)
        free = float(state.free[:, 0].sum())
        ends, gpus = estimated_ends_s(state), running_gpus(state)
        order = np.argsort(ends, kind="stable")
        after = free + np.cumsum(gpus[order])
        enough = np.flatnonzero(after >= waiting.num_gpus[0])
        if len(enough) == 0:
            return np.zeros(0, dtype=np.int64)
        reserved_s = ends[order][enough[0]]
        last = np.searchsorted(ends[order], reserved_s, side="right") - 1
        spare = after[last] - waiting.num_gpus[0]
        fine = (state.now_s + waiting.estimate_s <= reserved_s) | (waiting.num_gpus <= spare)
        fine[0] = False
        return np.flatnonzero(fine & waiting.startable)


@dataclass
class Conservative(SchedulingMethod):
    """Conservative backfilling: every waiting job holds a reservation that no later one moves."""

    name: str = "conservative"

    def order(self, state: Any) -> NDArray[np.int64]:
        """The jobs whose reservation begins now."""
        times, free = reservation_profile(state)
        now: list[int] = []
        for position in range(len(state.waiting.job)):
            gang = int(state.waiting.num_gpus[position])
            length_s = max(float(state.waiting.estimate_s[position]), 0.001)
            for first, begin_s in enumerate(times):
                inside = [
                    step for step in range(first, len(times)) if times[step] < begin_s + length_s
                ]
                if all(free[step] >= gang for step in inside):
                    break
            else:
                continue
            end_s = begin_s + length_s
            if end_s not in times:
                place = inside[-1] + 1
                times.insert(place, end_s)
                free.insert(place, free[place - 1])
            for step in inside:
                free[step] -= gang
            if first == 0:
                now.append(position)
        return np.array(now, dtype=np.int64)


def reservation_profile(state: Any) -> tuple[list[float], list[int]]:
    """Free GPUs over time from the running jobs' estimated ends: times, free from each on."""
    times, free = [float(state.now_s)], [int(state.free[:, 0].sum())]
    ends, gpus = estimated_ends_s(state), running_gpus(state)
    for place in np.argsort(ends, kind="stable"):
        if ends[place] == times[-1]:
            free[-1] += int(gpus[place])
        else:
            times.append(float(ends[place]))
            free.append(free[-1] + int(gpus[place]))
    return times, free
