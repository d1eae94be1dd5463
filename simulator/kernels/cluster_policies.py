"""Compiled policies on the multi-resource machine, and the loop that runs them.

A decision works on the waiting jobs in the policy's order (`Machine.rank`). Jobs of one shape
(equal parts, demand and types) that failed to fit fail again until something is released, so a
shape is looked at once per release.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from dtgym.simulator.kernels.cluster_machine import (
    ALIGNED,
    ARRIVED,
    CPU,
    EVENTS,
    GPU,
    GPU_STAGE,
    INTERLEAVED,
    NEVER,
    RELEASED,
    RUNNING,
    RUNNING_COUNT,
    WAITING_COUNT,
    advance,
    find_places,
    log_has_room,
    next_instant,
    preempt,
    settle,
    start,
    take,
)
from dtgym.simulator.kernels.job_speed import combine_stages, interleaved_period, shared_gpu_speed

IN_ORDER = 0
EASY = 1
CONSERVATIVE = 2
DOMINANT_SHARE = 3
ALIGNMENT = 4
PREEMPTIVE = 5

REMAINING = 0
REMAINING_GPU_TIME = 1
LEVEL = 2

FINISHED = 0
LOG_FULL = 1
STUCK = 2


@njit(cache=True, nogil=True)
def _fit_now(m: Any, job: int, choices: Any, rule: int, seed: int) -> bool:
    """Looks for places with the first CPU share that fits; leaves share and places in the job."""
    for choice in range(choices.shape[1]):
        if choices[job, choice] < 0:
            break
        m.held[job, CPU] = choices[job, choice]
        count = find_places(m, m.free, job, m.held[job], rule, seed, m.place_node, m.place_units)
        if count >= 0:
            m.place_count[job] = count
            return True
    return False


@njit(cache=True, nogil=True)
def _in_order(
    m: Any, choices: Any, shut: Any, rule: int, skip: bool, seed: int, pairing: int
) -> None:
    """Starts waiting jobs in order; stops at or skips one that does not fit."""
    spot = 0
    while spot < m.counters[WAITING_COUNT]:
        job = m.waiting[spot]
        if not shut[m.shape[job]] and _fit_now(m, job, choices, rule, seed):
            start(m, job, -1, pairing)
            continue
        shut[m.shape[job]] = True
        if not skip:
            return
        spot += 1


@njit(cache=True, nogil=True)
def _pack(m: Any, threshold: float, pairing: int) -> None:
    """Puts waiting jobs beside running ones of the same gang where both stay fast enough.

    Contending pairs: each predicted speed at least `threshold`. Interleaved pairs: the sum of both
    speeds at least `threshold`. The fastest host is taken, the first to start on a tie.
    """
    spot = 0
    while spot < m.counters[WAITING_COUNT]:
        job = m.waiting[spot]
        spot += 1
        if not m.has_stages[job] or m.gpus[job] == 0:
            continue
        mine_s = combine_stages(
            m.stage_s[job, 0], m.stage_s[job, 1], m.stage_s[job, 2], m.stage_s[job, 3], 0.0
        )
        best = threshold
        chosen = -1
        for place in range(m.counters[RUNNING_COUNT]):
            host = m.running[place]
            if (
                m.partner[host] >= 0
                or m.units[host] != m.units[job]
                or m.demand[host, GPU] != m.demand[job, GPU]
                or not m.has_stages[host]
            ):
                continue
            theirs_s = combine_stages(
                m.stage_s[host, 0], m.stage_s[host, 1], m.stage_s[host, 2], m.stage_s[host, 3], 0.0
            )
            if mine_s <= 0 or theirs_s <= 0:
                continue
            if pairing == INTERLEAVED:
                value = (mine_s + theirs_s) / interleaved_period(m.stage_s[job], m.stage_s[host])
            else:
                value = shared_gpu_speed(
                    m.stage_s[job, GPU_STAGE] / mine_s + m.stage_s[host, GPU_STAGE] / theirs_s, 0.0
                )
            better = value > best or (
                chosen >= 0 and value == best and m.begun_ms[host] < m.begun_ms[chosen]
            )
            if not (better or (chosen < 0 and value >= best)):
                continue
            fits = True
            for at in range(m.place_base[host], m.place_base[host] + m.place_count[host]):
                node = m.place_node[at]
                fits = fits and bool((m.kinds_ok[job] >> m.kind[node]) & 1)
                for r in range(1, 5):
                    fits = fits and m.demand[job, r] * m.place_units[at] <= m.free[node, r]
            if fits:
                best = value
                chosen = host
        if chosen < 0:
            continue
        for r in range(5):
            m.held[job, r] = m.demand[job, r]
        m.place_count[job] = m.place_count[chosen]
        for at in range(m.place_count[chosen]):
            m.place_node[m.place_base[job] + at] = m.place_node[m.place_base[chosen] + at]
            m.place_units[m.place_base[job] + at] = m.place_units[m.place_base[chosen] + at]
        start(m, job, chosen, pairing)
        spot -= 1


@njit(cache=True, nogil=True)
def _estimated_end(m: Any, job: int) -> int:
    """When a running job is thought to end; one that runs over is thought to end at once."""
    return max(m.begun_ms[job] + m.estimate_ms[job], m.now[0] + 1)


@njit(cache=True, nogil=True)
def _easy(m: Any, choices: Any, lifted: Any, ends: Any, rule: int, seed: int, pairing: int) -> None:
    """EASY backfilling: later jobs start if the head's reserved start does not move."""
    while m.counters[WAITING_COUNT] > 0 and _fit_now(m, m.waiting[0], choices, rule, seed):
        start(m, m.waiting[0], -1, pairing)
    if m.counters[WAITING_COUNT] < 2:
        return
    head = m.waiting[0]
    running = m.counters[RUNNING_COUNT]
    for place in range(running):
        ends[place] = _estimated_end(m, m.running[place])
    order = np.argsort(ends[:running], kind="mergesort")
    for node in range(lifted.shape[0]):
        for r in range(5):
            lifted[node, r] = m.free[node, r]
    reserved = NEVER
    place = 0
    while place < running:
        until = ends[order[place]]
        while place < running and ends[order[place]] == until:
            job = m.running[order[place]]
            take(m, lifted, job, m.held[job], -1)
            place += 1
        if (
            find_places(m, lifted, head, m.demand[head], rule, seed, m.place_node, m.place_units)
            >= 0
        ):
            reserved = until
            break
    spot = 1
    while spot < m.counters[WAITING_COUNT]:
        job = m.waiting[spot]
        spot += 1
        if not _fit_now(m, job, choices, rule, seed):
            continue
        if m.now[0] + m.estimate_ms[job] > reserved:
            take(m, lifted, job, m.held[job], 1)
            if (
                find_places(
                    m, lifted, head, m.demand[head], rule, seed, m.place_node, m.place_units
                )
                < 0
            ):
                take(m, lifted, job, m.held[job], -1)
                continue
        start(m, job, -1, pairing)
        spot -= 1


@njit(cache=True, nogil=True)
def _conservative(m: Any, choices: Any, depth: int, rule: int, seed: int, pairing: int) -> None:
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
    ends = np.empty(running, np.int64)
    for place in range(running):
        ends[place] = _estimated_end(m, m.running[place])
    order = np.argsort(ends, kind="mergesort")
    steps = 1
    times[0] = m.now[0]
    for node in range(nodes):
        for r in range(5):
            levels[0, node, r] = m.free[node, r]
    for place in range(running):
        job = m.running[order[place]]
        if ends[order[place]] != times[steps - 1]:
            times[steps] = ends[order[place]]
            for node in range(nodes):
                for r in range(5):
                    levels[steps, node, r] = levels[steps - 1, node, r]
            steps += 1
        take(m, levels[steps - 1], job, m.held[job], -1)
    spot = 0
    while planned > 0:
        planned -= 1
        job = m.waiting[spot]
        m.held[job, CPU] = choices[job, 0]
        length = max(m.estimate_ms[job], 1)
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
            count = find_places(m, floor, job, m.held[job], rule, seed, m.place_node, m.place_units)
            if count < 0:
                continue
            m.place_count[job] = count
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
                take(m, levels[step], job, m.held[job], 1)
            if first == 0:
                start(m, job, -1, pairing)
                spot -= 1
            break
        spot += 1


@njit(cache=True, nogil=True)
def _dominant_share(
    m: Any, choices: Any, owner: Any, owners: int, shut: Any, rule: int, seed: int, pairing: int
) -> None:
    """Dominant-resource fairness: who holds least of his dominant resource starts the next job."""
    total = np.zeros(5)
    for node in range(m.capacity.shape[0]):
        for r in range(5):
            total[r] += m.capacity[node, r]
    held = np.zeros((owners, 5))
    for place in range(m.counters[RUNNING_COUNT]):
        job = m.running[place]
        for r in range(5):
            held[owner[job], r] += float(m.held[job, r] * m.units[job])
    first = np.empty(owners, np.int64)
    while True:
        for user in range(owners):
            first[user] = -1
        for spot in range(m.counters[WAITING_COUNT] - 1, -1, -1):
            job = m.waiting[spot]
            if not shut[m.shape[job]]:
                first[owner[job]] = job
        chosen = -1
        least = np.inf
        for user in range(owners):
            if first[user] < 0:
                continue
            share = 0.0
            for r in range(5):
                if total[r] > 0:
                    share = max(share, held[user, r] / total[r])
            if share < least or (share == least and m.rank[first[user]] < m.rank[first[chosen]]):
                least = share
                chosen = user
        if chosen < 0:
            return
        job = first[chosen]
        if not _fit_now(m, job, choices, rule, seed):
            shut[m.shape[job]] = True
            continue
        start(m, job, -1, pairing)
        for r in range(5):
            held[chosen, r] += float(m.held[job, r] * m.units[job])


@njit(cache=True, nogil=True)
def _alignment(m: Any, choices: Any, shut: Any, shortest: bool, seed: int, pairing: int) -> None:
    """Tetris: the job whose demand points most along a node's free vector starts there."""
    while True:
        chosen = -1
        best = -np.inf
        for spot in range(m.counters[WAITING_COUNT]):
            job = m.waiting[spot]
            if shut[m.shape[job]]:
                continue
            if not _fit_now(m, job, choices, ALIGNED, seed):
                shut[m.shape[job]] = True
                continue
            node = m.place_node[m.place_base[job]]
            value = 0.0
            for r in range(5):
                if m.capacity[node, r] > 0:
                    asked = m.demand[job, r] * m.place_units[m.place_base[job]]
                    value += (asked / m.capacity[node, r]) * (m.free[node, r] / m.capacity[node, r])
            if shortest:
                value /= max(m.estimate_ms[job], 1)
            if value > best:
                best = value
                chosen = job
        if chosen < 0:
            return
        _fit_now(m, chosen, choices, ALIGNED, seed)
        start(m, chosen, -1, pairing)


@njit(cache=True, nogil=True)
def _refill(
    m: Any, key_kind: int, level_key: Any, level: Any, shut: Any, lifted: Any, rule: int, seed: int,
    pairing: int,
) -> None:  # fmt: skip
    """Ranks all active jobs and fills the empty cluster with them in that order.

    A running job keeps its places as long as they are left to it and is preempted otherwise. A
    waiting one takes what nobody holds; only if that does not do, it takes from those ranked lower.
    """
    running, waiting = m.counters[RUNNING_COUNT], m.counters[WAITING_COUNT]
    if waiting == 0:
        return
    active = np.empty(running + waiting, np.int64)
    for place in range(running):
        active[place] = m.running[place]
        settle(m, m.running[place])
    for place in range(waiting):
        active[running + place] = m.waiting[place]
    active.sort()
    keys = np.empty(len(active), np.float64)
    for place in range(len(active)):
        job = active[place]
        if key_kind == REMAINING:
            keys[place] = m.left_ms[job]
        elif key_kind == REMAINING_GPU_TIME:
            keys[place] = m.left_ms[job] * m.gpus[job]
        else:
            keys[place] = float(level_key[level[job]])
    order = np.argsort(keys, kind="mergesort")
    for node in range(lifted.shape[0]):
        for r in range(5):
            lifted[node, r] = m.capacity[node, r]
    for shape in range(shut.shape[0]):
        shut[shape] = False
    chosen = np.empty(waiting, np.int64)
    count = 0
    for place in range(len(active)):
        job = active[order[place]]
        if m.status[job] == RUNNING:
            fits = True
            for at in range(m.place_base[job], m.place_base[job] + m.place_count[job]):
                for r in range(5):
                    need = m.held[job, r] * m.place_units[at]
                    fits = fits and need <= lifted[m.place_node[at], r]
            if fits:
                take(m, lifted, job, m.held[job], 1)
            else:
                preempt(m, job, pairing)
            continue
        if shut[m.shape[job]]:
            continue
        for r in range(5):
            m.held[job, r] = m.demand[job, r]
        found = find_places(m, m.free, job, m.held[job], rule, seed, m.place_node, m.place_units)
        if found < 0:
            found = find_places(
                m, lifted, job, m.held[job], rule, seed, m.place_node, m.place_units
            )
        if found < 0:
            shut[m.shape[job]] = True
            continue
        m.place_count[job] = found
        take(m, lifted, job, m.held[job], 1)
        take(m, m.free, job, m.held[job], 1)
        chosen[count] = job
        count += 1
    for place in range(count):
        take(m, m.free, chosen[place], m.held[chosen[place]], -1)
        start(m, chosen[place], -1, pairing)


@njit(cache=True, nogil=True)
def _next_level(m: Any, job: int, bound: int, step_ms: int) -> int:
    """First multiple of the step at which an active job's attained service exceeds `bound`."""
    now = m.now[0]
    service = m.attained[job]
    if m.status[job] == RUNNING:
        service += (now - m.begun_ms[job]) * m.gpus[job]
    if service > bound:
        return (now // step_ms + 1) * step_ms
    if m.status[job] != RUNNING or m.gpus[job] == 0:
        return NEVER
    beyond = now + (bound - service) // m.gpus[job] + 1
    return -((-beyond) // step_ms) * step_ms


@njit(cache=True, nogil=True)
def run_policy(
    m: Any,
    policy: int,
    rule: int,
    skip: bool,
    choices: Any,
    key_kind: int,
    level_bound: Any,
    level_key: Any,
    level_step_ms: int,
    level: Any,
    owner: Any,
    owners: int,
    shapes: int,
    depth: int,
    shortest: bool,
    pack: bool,
    threshold: float,
    pairing: int,
    interval_ms: int,
    seed: int,
) -> int:
    """Runs a machine until all is done or the log is full; it can be called again.

    Args:
        m: The machine.
        policy: IN_ORDER, EASY, CONSERVATIVE, DOMINANT_SHARE, ALIGNMENT or PREEMPTIVE.
        rule: Placement.
        skip: Whether IN_ORDER goes on behind a job that does not fit.
        choices: CPU of one part to try, in order, ending at a negative one, (J, choices).
        key_kind: Of PREEMPTIVE: REMAINING, REMAINING_GPU_TIME or LEVEL.
        level_bound: Ends of service levels, GPU-ms.
        level_key: Rank of each level.
        level_step_ms: Grid of the clock on which levels change.
        level: Level of each job, (J,); kept between calls.
        owner: User of each job, (J,).
        owners: Number of users.
        shapes: Number of shapes.
        depth: Reservations of CONSERVATIVE.
        shortest: Whether ALIGNMENT divides by the estimated duration.
        pack: Whether jobs that found no room of their own may share GPUs.
        threshold: Least speed of a shared pair.
        pairing: CONTENDING or INTERLEAVED.
        interval_ms: Decisions only at multiples of this; 0 decides at every event.
        seed: Of RANDOM_FIT.

    Returns:
        FINISHED, LOG_FULL or STUCK (jobs wait, nothing runs, nothing will come).
    """
    shut = np.zeros(shapes, np.bool_)
    lifted = np.empty_like(m.free)
    ends = np.empty(m.submit_ms.shape[0], np.int64)
    levels = level_key.shape[0]
    while True:
        if not log_has_room(m):
            return LOG_FULL
        when = next_instant(m)
        if policy == PREEMPTIVE and key_kind == LEVEL:
            for place in range(m.counters[RUNNING_COUNT]):
                job = m.running[place]
                if level[job] < levels - 1:
                    when = min(when, _next_level(m, job, level_bound[level[job]], level_step_ms))
            for place in range(m.counters[WAITING_COUNT]):
                job = m.waiting[place]
                if level[job] < levels - 1 and m.attained[job] > level_bound[level[job]]:
                    when = min(when, _next_level(m, job, level_bound[level[job]], level_step_ms))
        if interval_ms > 0 and m.counters[WAITING_COUNT] > 0:
            when = min(when, (m.now[0] // interval_ms + 1) * interval_ms)
        if when == NEVER:
            return STUCK if m.counters[WAITING_COUNT] > 0 else FINISHED
        if (
            interval_ms > 0
            and m.counters[RUNNING_COUNT] == 0
            and m.counters[ARRIVED] == m.submit_ms.shape[0]
            and m.now[0] % interval_ms == 0
            and when > m.now[0]
            and m.counters[EVENTS] > 0
        ):
            # Nothing runs, nothing will come, and the last decision started nothing.
            return STUCK
        m.counters[RELEASED] = 0
        advance(m, when, pairing)
        if m.counters[RELEASED] > 0:
            for shape in range(shapes):
                shut[shape] = False
        if policy == PREEMPTIVE and key_kind == LEVEL and when % level_step_ms == 0:
            for place in range(m.counters[RUNNING_COUNT] + m.counters[WAITING_COUNT]):
                if place < m.counters[RUNNING_COUNT]:
                    job = m.running[place]
                    service = m.attained[job] + (when - m.begun_ms[job]) * m.gpus[job]
                else:
                    job = m.waiting[place - m.counters[RUNNING_COUNT]]
                    service = m.attained[job]
                while level[job] < levels - 1 and service > level_bound[level[job]]:
                    level[job] += 1
                    m.counters[EVENTS] += 1
        if interval_ms > 0 and when % interval_ms != 0:
            continue
        if m.counters[WAITING_COUNT] == 0:
            continue
        if policy == IN_ORDER:
            _in_order(m, choices, shut, rule, skip, seed, pairing)
        elif policy == EASY:
            _easy(m, choices, lifted, ends, rule, seed, pairing)
        elif policy == CONSERVATIVE:
            _conservative(m, choices, depth, rule, seed, pairing)
        elif policy == DOMINANT_SHARE:
            _dominant_share(m, choices, owner, owners, shut, rule, seed, pairing)
        elif policy == ALIGNMENT:
            _alignment(m, choices, shut, shortest, seed, pairing)
        else:
            _refill(m, key_kind, level_key, level, shut, lifted, rule, seed, pairing)
        if pack:
            _pack(m, threshold, pairing)
