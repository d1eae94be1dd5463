"""Ordered collections of (key, job) for event kernels: heap, indexed heap of alarms, sorted list.

Everything lies in int64 arrays that the caller owns; equal keys go by job.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

NEVER = np.int64(2**62)
COMPILED: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}
"""Options of kernels that allocate nothing: Numba's reference counting (`_nrt`), which cost a third
of their time, is left out."""


@njit(**COMPILED)
def before(key_a: Any, job_a: Any, key_b: Any, job_b: Any) -> bool:
    """Whether (key_a, job_a) ranks before (key_b, job_b)."""
    return key_a < key_b or (key_a == key_b and job_a < job_b)


@njit(**COMPILED)
def push(keys: Any, jobs: Any, base: Any, size: Any, key: Any, job: Any) -> None:
    """Adds (key, job) to the min-heap of `size` entries that begins at `base`."""
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        if not before(key, job, keys[base + parent], jobs[base + parent]):
            break
        keys[base + hole] = keys[base + parent]
        jobs[base + hole] = jobs[base + parent]
        hole = parent
    keys[base + hole] = key
    jobs[base + hole] = job


@njit(**COMPILED)
def pop(keys: Any, jobs: Any, base: Any, size: Any) -> None:
    """Drops the first entry of the min-heap of `size` entries that begins at `base`."""
    size -= 1
    key = keys[base + size]
    job = jobs[base + size]
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and before(
            keys[base + child + 1],
            jobs[base + child + 1],
            keys[base + child],
            jobs[base + child],
        ):
            child += 1
        if not before(keys[base + child], jobs[base + child], key, job):
            break
        keys[base + hole] = keys[base + child]
        jobs[base + hole] = jobs[base + child]
        hole = child
    if size > 0:
        keys[base + hole] = key
        jobs[base + hole] = job


@njit(**COMPILED)
def set_alarm(time: Any, heap: Any, spot: Any, size: Any, job: Any, when: Any) -> int:
    """Sets, moves or (with NEVER) cancels a job's alarm in an indexed min-heap; returns its size.

    Args:
        time: Alarm of each job, (jobs,).
        heap: Jobs in heap order.
        spot: Where each job stands in `heap`; -1 without an alarm.
        size: Entries of `heap`.
        job: Whose alarm.
        when: Its new time.
    """
    hole = spot[job]
    if when == NEVER:
        if hole < 0:
            return size
        spot[job] = -1
        size -= 1
        if hole == size:
            return size
        job = heap[size]
        when = time[job]
    elif hole < 0:
        hole = size
        size += 1
    while hole > 0:
        parent = (hole - 1) >> 1
        other = heap[parent]
        if time[other] <= when:
            break
        heap[hole] = other
        spot[other] = hole
        hole = parent
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and time[heap[child + 1]] < time[heap[child]]:
            child += 1
        other = heap[child]
        if time[other] >= when:
            break
        heap[hole] = other
        spot[other] = hole
        hole = child
    heap[hole] = job
    spot[job] = hole
    time[job] = when
    return size


@njit(**COMPILED)
def _rank(keys: Any, jobs: Any, size: Any, key: Any, job: Any) -> int:
    """How many of the `size` entries in order rank before (key, job)."""
    low = 0
    high = size
    while low < high:
        middle = (low + high) >> 1
        if before(keys[middle], jobs[middle], key, job):
            low = middle + 1
        else:
            high = middle
    return low


@njit(**COMPILED)
def insert(keys: Any, jobs: Any, size: Any, key: Any, job: Any) -> None:
    """Inserts into the ranking of running jobs, `size` entries in order."""
    low = _rank(keys, jobs, size, key, job)
    for place in range(size, low, -1):
        keys[place] = keys[place - 1]
        jobs[place] = jobs[place - 1]
    keys[low] = key
    jobs[low] = job


@njit(**COMPILED)
def remove(keys: Any, jobs: Any, size: Any, key: Any, job: Any) -> None:
    """Removes an entry from the ranking of running jobs, `size` entries in order."""
    low = _rank(keys, jobs, size, key, job)
    for place in range(low, size - 1):
        keys[place] = keys[place + 1]
        jobs[place] = jobs[place + 1]
