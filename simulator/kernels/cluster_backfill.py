"""Backfilling on the multi-resource machine: reservations on nodes, from estimated ends."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from dtgym.simulator.kernels.cluster_machine import start
from dtgym.simulator.kernels.cluster_placement import find_places, fit_now, take
from dtgym.simulator.kernels.cluster_state import (
    CPU,
    GIVE,
    NEVER,
    NOBODY,
    NOW,
    RUNNING_COUNT,
    TAKE,
    WAITING_COUNT,
)


@njit(cache=True, nogil=True)
def sort_pairs(key: Any, item: Any, count: Any) -> None:
    """Sorts the first `count` pairs by key, then item, in place (heap sort)."""
    for step in range(count // 2 + count - 1):
        if step < count // 2:
            hole, end = count // 2 - 1 - step, count
        else:
            end = count - 1 - (step - count // 2)
            key[0], key[end] = key[end], key[0]
            item[0], item[end] = item[end], item[0]
            hole = 0
        top_key, top_item = key[hole], item[hole]
        while 2 * hole + 1 < end:
            child = 2 * hole + 1
            if child + 1 < end and (
                key[child + 1] > key[child]
                or (key[child + 1] == key[child] and item[child + 1] > item[child])
            ):
                child += 1
            if key[child] < top_key or (key[child] == top_key and item[child] < top_item):
                break
            key[hole], item[hole] = key[child], item[child]
            hole = child
        key[hole], item[hole] = top_key, top_item


@njit(cache=True, nogil=True)
def _estimated_end(m: Any, job: Any) -> int:
    """When a running job is thought to end; one that runs over is thought to end at once."""
    return max(m.jobs[job].begun_ms + m.jobs[job].estimate_ms, m.counters[NOW] + 1)


@njit(cache=True, nogil=True)
def easy(
    m: Any, choices: Any, shut: Any, lifted: Any, ends: Any, order: Any, rule: Any, seed: Any
) -> None:
    """EASY backfilling: later jobs start if the head's reserved start does not move."""
    while m.counters[WAITING_COUNT] > 0:
        head = m.waiting[0]
        if shut[m.jobs[head].shape] or not fit_now(m, head, choices, rule, seed):
            shut[m.jobs[head].shape] = True
            break
        start(m, head, NOBODY)
    if m.counters[WAITING_COUNT] < 2:
        return
    head = m.waiting[0]
    running = m.counters[RUNNING_COUNT]
    for place in range(running):
        order[place] = m.running[place]
        ends[place] = float(_estimated_end(m, m.running[place]))
    sort_pairs(ends, order, running)
    for node in range(lifted.shape[0]):
        for r in range(5):
            lifted[node, r] = m.free[node, r]
    reserved = NEVER
    place = 0
    while place < running:
        until = ends[place]
        while place < running and ends[place] == until:
            job = order[place]
            take(m, lifted, job, m.held[job], GIVE)
            place += 1
        if find_places(m, lifted, head, m.demand[head], rule, seed) >= 0:
            reserved = np.int64(until)
            break
    spot = 1
    while spot < m.counters[WAITING_COUNT]:
        job = m.waiting[spot]
        spot += 1
        if shut[m.jobs[job].shape]:
            continue
        if not fit_now(m, job, choices, rule, seed):
            shut[m.jobs[job].shape] = True
            continue
        if m.counters[NOW] + m.jobs[job].estimate_ms > reserved:
            take(m, lifted, job, m.held[job], TAKE)
            if find_places(m, lifted, head, m.demand[head], rule, seed) < 0:
                take(m, lifted, job, m.held[job], GIVE)
                continue
        start(m, job, NOBODY)
        spot -= 1


@njit(cache=True, nogil=True)
def conservative(
    m: Any, choices: Any, ends: Any, order: Any, depth: Any, rule: Any, seed: Any
) -> None:
    """Conservative backfilling: every one of the first `depth` waiting jobs holds a reservation.

    Reservations are made anew in order at every decision from the running jobs' estimated ends; a
    job starts where its reservation begins now.
    """
    if m.counters[WAITING_COUNT] == 0:
        return
    nodes = m.free.shape[0]
    running = m.counters[RUNNING_COUNT]
    planned = min(m.counters[WAITING_COUNT], depth)
    rows = running + 2 * planned + 2
    times = np.empty(rows, np.int64)
    levels = np.empty((rows, nodes, 5), np.int64)
    floor = np.empty((nodes, 5), np.int64)
    for place in range(running):
        order[place] = m.running[place]
        ends[place] = float(_estimated_end(m, m.running[place]))
    sort_pairs(ends, order, running)
    steps = 1
    times[0] = m.counters[NOW]
    for node in range(nodes):
        for r in range(5):
            levels[0, node, r] = m.free[node, r]
    for place in range(running):
        job = order[place]
        if np.int64(ends[place]) != times[steps - 1]:
            times[steps] = np.int64(ends[place])
            for node in range(nodes):
                for r in range(5):
                    levels[steps, node, r] = levels[steps - 1, node, r]
            steps += 1
        take(m, levels[steps - 1], job, m.held[job], GIVE)
    spot = 0
    while planned > 0:
        planned -= 1
        job = m.waiting[spot]
        m.held[job, CPU] = choices[job, 0]
        length = max(m.jobs[job].estimate_ms, 1)
        for first in range(steps):
            until = times[first] + length
            for node in range(nodes):
                for r in range(5):
                    floor[node, r] = levels[first, node, r]
            after = first + 1
            while after < steps and times[after] < until:
                for node in range(nodes):
                    for r in range(5):
                        floor[node, r] = min(floor[node, r], levels[after, node, r])
                after += 1
            count = find_places(m, floor, job, m.held[job], rule, seed)
            if count < 0:
                continue
            m.jobs[job].place_count = count
            if after == steps or times[after] != until:
                for later in range(steps, after, -1):
                    times[later] = times[later - 1]
                    for node in range(nodes):
                        for r in range(5):
                            levels[later, node, r] = levels[later - 1, node, r]
                times[after] = until
                for node in range(nodes):
                    for r in range(5):
                        levels[after, node, r] = levels[after - 1, node, r]
                steps += 1
            for step in range(first, after):
                take(m, levels[step], job, m.held[job], TAKE)
            if first == 0:
                start(m, job, NOBODY)
                spot -= 1
            break
        spot += 1
