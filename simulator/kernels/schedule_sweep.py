"""One sweep over the events of a finished schedule: who could have started, and what lay idle."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

END, ARRIVAL, START = 0, 1, 2
"""Kinds of events, in the order in which they count within one instant."""


@njit(cache=True, nogil=True)
def sweep(
    time: Any,
    kind: Any,
    job: Any,
    stretch: Any,
    gang: Any,
    node_gpus: Any,
    place_base: Any,
    place_node: Any,
    place_gpus: Any,
    feasible_s: Any,
) -> tuple[float, float]:
    """Goes through the events of a schedule in order.

    Between the arrivals and the starts of each instant, every waiting job that has not been
    feasible yet is looked at: pooled, it is feasible if enough GPUs are free; with places, if one
    node has room for its gang or, for a gang that no node could hold, enough GPUs are free.

    A free GPU is usable if some waiting job could use it: pooled, if any fits; with places, if the
    smallest waiting gang fits its node, or anywhere if that gang is one that no node could hold.

    Args:
        time: Event times, s, ascending; ties by `kind`.
        kind: END, ARRIVAL or START, (events,).
        job: Row of the job, (events,).
        stretch: Row of the stretch of END and START, (events,).
        gang: GPUs of each job, (jobs,).
        node_gpus: GPUs of each node; one entry, the pool, where there are no places.
        place_base: See `Stretches`; empty where there are no places.
        place_node: See there.
        place_gpus: See there.
        feasible_s: First time at which each job was feasible, (jobs,), NaN on entry; written.

    Returns:
        unusable: Integral of (free and unusable / free) over the time with free GPUs and a queue.
        span: Length of that time, s.
    """
    free = node_gpus.copy()
    nodes = node_gpus.shape[0]
    largest = 0
    for n in range(nodes):
        largest = max(largest, node_gpus[n])
    pooled = place_base.shape[0] == 0
    # A job that is preempted and begins again within one instant is there twice for a while.
    waiting = np.empty(time.shape[0], dtype=np.int64)
    count = 0
    unusable = 0.0
    span = 0.0
    event = 0
    events = time.shape[0]
    while event < events:
        now = time[event]
        looked = False
        while event < events and time[event] == now:
            j = job[event]
            if kind[event] == START and not looked:
                looked = True
                _look(now, gang, free, largest, waiting, count, feasible_s)
            if kind[event] == ARRIVAL:
                waiting[count] = j
                count += 1
            else:
                sign = 1 if kind[event] == END else -1
                if pooled:
                    free[0] += sign * gang[j]
                else:
                    for place in range(place_base[stretch[event]], place_base[stretch[event] + 1]):
                        free[place_node[place]] += sign * place_gpus[place]
                if kind[event] == START:
                    for spot in range(count):
                        if waiting[spot] == j:
                            waiting[spot] = waiting[count - 1]
                            count -= 1
                            break
            event += 1
        if not looked:
            _look(now, gang, free, largest, waiting, count, feasible_s)
        if event < events and count > 0:
            total = 0
            for n in range(nodes):
                total += free[n]
            if total > 0:
                smallest = gang[waiting[0]]
                for spot in range(count):
                    smallest = min(smallest, gang[waiting[spot]])
                lost = 0
                for n in range(nodes):
                    fits = free[n] >= smallest or (smallest > largest and total >= smallest)
                    if not fits:
                        lost += free[n]
                unusable += (time[event] - now) * lost / total
                span += time[event] - now
    return unusable, span


@njit(cache=True, nogil=True)
def _look(
    now: float, gang: Any, free: Any, largest: int, waiting: Any, count: int, feasible_s: Any
) -> None:
    """Notes the waiting jobs that are feasible for the first time."""
    total = 0
    most = 0
    for n in range(free.shape[0]):
        total += free[n]
        most = max(most, free[n])
    for spot in range(count):
        j = waiting[spot]
        if np.isnan(feasible_s[j]):
            need = gang[j]
            if need <= most or (need > largest and need <= total):
                feasible_s[j] = now
