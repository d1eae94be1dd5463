"""Compiled policies on the multi-resource machine, and the loop that runs them.

A decision works on the waiting jobs in the policy's order (`Machine.rank`). Jobs of one shape
(equal parts, demand and types) that failed to fit fail again until something is released, so a
shape is looked at once per release.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from dtgym.simulator.kernels.cluster_backfill import conservative, easy, sort_pairs
from dtgym.simulator.kernels.cluster_machine import (
    advance,
    log_has_room,
    next_instant,
    preempt,
    replan,
    settle,
    start,
)
from dtgym.simulator.kernels.cluster_placement import find_places, fit_now, take
from dtgym.simulator.kernels.cluster_state import (
    ARRIVED,
    EVENTS,
    GIVE,
    GPU,
    GPU_STAGE,
    INTERLEAVED,
    NEVER,
    NOBODY,
    NOW,
    RELEASED,
    RUNNING,
    RUNNING_COUNT,
    TAKE,
    WAITING_COUNT,
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
def _in_order(m: Any, choices: Any, shut: Any, rule: Any, skip: bool, seed: Any) -> None:
    """Starts waiting jobs in order; stops at or skips one that does not fit."""
    spot = 0
    while spot < m.counters[WAITING_COUNT]:
        job = m.waiting[spot]
        if not shut[m.jobs[job].shape] and fit_now(m, job, choices, rule, seed):
            start(m, job, NOBODY)
            continue
        shut[m.jobs[job].shape] = True
        if not skip:
            return
        spot += 1


@njit(cache=True, nogil=True)
def _pack(m: Any, threshold: Any, pairing: Any) -> None:
    """Puts waiting jobs beside running ones of the same gang where both stay fast enough.

    Contending pairs: each predicted speed at least `threshold`. Interleaved pairs: the sum of both
    speeds at least `threshold`. The fastest host is taken, the first to start on a tie.
    """
    spot = 0
    while spot < m.counters[WAITING_COUNT]:
        job = m.waiting[spot]
        spot += 1
        if not m.jobs[job].has_stages or m.jobs[job].gpus == 0:
            continue
        mine_s = combine_stages(
            m.stage_s[job, 0], m.stage_s[job, 1], m.stage_s[job, 2], m.stage_s[job, 3], 0.0
        )
        best = threshold
        chosen = NOBODY
        for place in range(m.counters[RUNNING_COUNT]):
            host = m.running[place]
            if (
                m.jobs[host].partner >= 0
                or m.jobs[host].units != m.jobs[job].units
                or m.demand[host, GPU] != m.demand[job, GPU]
                or not m.jobs[host].has_stages
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
                chosen >= 0 and value == best and m.jobs[host].begun_ms < m.jobs[chosen].begun_ms
            )
            if not (better or (chosen < 0 and value >= best)):
                continue
            fits = True
            for at in range(
                m.jobs[host].place_base, m.jobs[host].place_base + m.jobs[host].place_count
            ):
                node = m.places[at].node
                fits = fits and bool((m.jobs[job].kinds_ok >> m.nodes[node].kind) & 1)
                for r in range(1, 5):
                    fits = fits and m.demand[job, r] * m.places[at].units <= m.free[node, r]
            if fits:
                best = value
                chosen = host
        if chosen < 0:
            continue
        for r in range(5):
            m.held[job, r] = m.demand[job, r]
        m.jobs[job].place_count = m.jobs[chosen].place_count
        for at in range(m.jobs[chosen].place_count):
            m.places[m.jobs[job].place_base + at].node = m.places[
                m.jobs[chosen].place_base + at
            ].node
            m.places[m.jobs[job].place_base + at].units = m.places[
                m.jobs[chosen].place_base + at
            ].units
        start(m, job, chosen)
        spot -= 1


@njit(cache=True, nogil=True)
def _dominant_share(
    m: Any, choices: Any, owner: Any, owners: Any, shut: Any, rule: Any, seed: Any
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
            held[owner[job], r] += float(m.held[job, r] * m.jobs[job].units)
    first = np.empty(owners, np.int64)
    while True:
        for user in range(owners):
            first[user] = -1
        for spot in range(m.counters[WAITING_COUNT] - 1, -1, -1):
            job = m.waiting[spot]
            if not shut[m.jobs[job].shape]:
                first[owner[job]] = job
        chosen = NOBODY
        least = np.inf
        for user in range(owners):
            if first[user] < 0:
                continue
            share = 0.0
            for r in range(5):
                if total[r] > 0:
                    share = max(share, held[user, r] / total[r])
            if share < least or (
                share == least and m.jobs[first[user]].rank < m.jobs[first[chosen]].rank
            ):
                least = share
                chosen = user
        if chosen < 0:
            return
        job = first[chosen]
        if not fit_now(m, job, choices, rule, seed):
            shut[m.jobs[job].shape] = True
            continue
        start(m, job, NOBODY)
        for r in range(5):
            held[chosen, r] += float(m.held[job, r] * m.jobs[job].units)


@njit(cache=True, nogil=True)
def _alignment(m: Any, choices: Any, shut: Any, shortest: bool, rule: Any, seed: Any) -> None:
    """Tetris: the job whose demand points most along a node's free vector starts there."""
    while True:
        chosen = NOBODY
        best = -np.inf
        for spot in range(m.counters[WAITING_COUNT]):
            job = m.waiting[spot]
            if shut[m.jobs[job].shape]:
                continue
            if not fit_now(m, job, choices, rule, seed):
                shut[m.jobs[job].shape] = True
                continue
            node = m.places[m.jobs[job].place_base].node
            value = 0.0
            for r in range(5):
                if m.capacity[node, r] > 0:
                    asked = m.demand[job, r] * m.places[m.jobs[job].place_base].units
                    value += (asked / m.capacity[node, r]) * (m.free[node, r] / m.capacity[node, r])
            if shortest:
                value /= max(m.jobs[job].estimate_ms, 1)
            if value > best:
                best = value
                chosen = job
        if chosen < 0:
            return
        fit_now(m, chosen, choices, rule, seed)
        start(m, chosen, NOBODY)


@njit(cache=True, nogil=True)
def _refill(
    m: Any, key_kind: Any, level_key: Any, level: Any, shut: Any, lifted: Any, keys: Any,
    order: Any, rule: Any, seed: Any,
) -> None:  # fmt: skip
    """Ranks all active jobs and fills the empty cluster with them in that order.

    A running job keeps its places as long as they are left to it and is preempted otherwise. A
    waiting one takes what nobody holds; only if that does not do, it takes from those ranked lower.
    """
    running, waiting = m.counters[RUNNING_COUNT], m.counters[WAITING_COUNT]
    if waiting == 0:
        return
    total = running + waiting
    for place in range(total):
        if place < running:
            job = m.running[place]
            settle(m, job)
        else:
            job = m.waiting[place - running]
        order[place] = job
        if key_kind == REMAINING:
            keys[place] = m.jobs[job].left_ms
        elif key_kind == REMAINING_GPU_TIME:
            keys[place] = m.jobs[job].left_ms * m.jobs[job].gpus
        else:
            keys[place] = float(level_key[level[job]])
    sort_pairs(keys, order, total)
    for node in range(lifted.shape[0]):
        for r in range(5):
            lifted[node, r] = m.capacity[node, r]
    for shape in range(shut.shape[0]):
        shut[shape] = False
    chosen = np.empty(waiting, np.int64)
    count = 0
    for place in range(total):
        job = order[place]
        if m.jobs[job].status == RUNNING:
            fits = True
            for at in range(
                m.jobs[job].place_base, m.jobs[job].place_base + m.jobs[job].place_count
            ):
                for r in range(5):
                    need = m.held[job, r] * m.places[at].units
                    fits = fits and need <= lifted[m.places[at].node, r]
            if fits:
                take(m, lifted, job, m.held[job], TAKE)
            else:
                preempt(m, job)
            continue
        if shut[m.jobs[job].shape]:
            continue
        for r in range(5):
            m.held[job, r] = m.demand[job, r]
        found = find_places(m, m.free, job, m.held[job], rule, seed)
        if found < 0:
            found = find_places(m, lifted, job, m.held[job], rule, seed)
        if found < 0:
            shut[m.jobs[job].shape] = True
            continue
        m.jobs[job].place_count = found
        take(m, lifted, job, m.held[job], TAKE)
        take(m, m.free, job, m.held[job], TAKE)
        chosen[count] = job
        count += 1
    for place in range(count):
        take(m, m.free, chosen[place], m.held[chosen[place]], GIVE)
        start(m, chosen[place], NOBODY)


@njit(cache=True, nogil=True)
def _next_level(m: Any, job: Any, bound: Any, step_ms: Any) -> Any:
    """First multiple of the step at which an active job's attained service exceeds `bound`."""
    now = m.counters[NOW]
    service = m.jobs[job].attained
    if m.jobs[job].status == RUNNING:
        service += (now - m.jobs[job].begun_ms) * m.jobs[job].gpus
    if service > bound:
        return (now // step_ms + 1) * step_ms
    if m.jobs[job].status != RUNNING or m.jobs[job].gpus == 0:
        return NEVER
    beyond = now + (bound - service) // m.jobs[job].gpus + 1
    return -((-beyond) // step_ms) * step_ms


@njit(cache=True, nogil=True)
def run_policy(
    m: Any,
    policy: Any,
    rule: Any,
    skip: bool,
    choices: Any,
    key_kind: Any,
    level_bound: Any,
    level_key: Any,
    level_step_ms: Any,
    level: Any,
    owner: Any,
    owners: Any,
    shapes: Any,
    depth: Any,
    shortest: bool,
    pack: bool,
    threshold: Any,
    pairing: Any,
    interval_ms: Any,
    seed: Any,
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
    keys = np.empty(m.jobs.shape[0], np.float64)
    order = np.empty(m.jobs.shape[0], np.int64)
    levels = level_key.shape[0]
    while True:
        replan(m, pairing)
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
                if level[job] < levels - 1 and m.jobs[job].attained > level_bound[level[job]]:
                    when = min(when, _next_level(m, job, level_bound[level[job]], level_step_ms))
        if interval_ms > 0 and m.counters[WAITING_COUNT] > 0:
            when = min(when, (m.counters[NOW] // interval_ms + 1) * interval_ms)
        if when == NEVER:
            return STUCK if m.counters[WAITING_COUNT] > 0 else FINISHED
        if (
            interval_ms > 0
            and m.counters[RUNNING_COUNT] == 0
            and m.counters[ARRIVED] == m.jobs.shape[0]
            and m.counters[NOW] % interval_ms == 0
            and when > m.counters[NOW]
            and m.counters[EVENTS] > 0
        ):
            # Nothing runs, nothing will come, and the last decision started nothing.
            return STUCK
        m.counters[RELEASED] = 0
        advance(m, when)
        if m.counters[RELEASED] > 0:
            for shape in range(shapes):
                shut[shape] = False
        if policy == PREEMPTIVE and key_kind == LEVEL and when % level_step_ms == 0:
            for place in range(m.counters[RUNNING_COUNT] + m.counters[WAITING_COUNT]):
                if place < m.counters[RUNNING_COUNT]:
                    job = m.running[place]
                    service = (
                        m.jobs[job].attained + (when - m.jobs[job].begun_ms) * m.jobs[job].gpus
                    )
                else:
                    job = m.waiting[place - m.counters[RUNNING_COUNT]]
                    service = m.jobs[job].attained
                while level[job] < levels - 1 and service > level_bound[level[job]]:
                    level[job] += 1
                    m.counters[EVENTS] += 1
        if interval_ms > 0 and when % interval_ms != 0:
            continue
        if m.counters[WAITING_COUNT] == 0:
            continue
        if policy == IN_ORDER:
            _in_order(m, choices, shut, rule, skip, seed)
        elif policy == EASY:
            easy(m, choices, shut, lifted, keys, order, rule, seed)
        elif policy == CONSERVATIVE:
            conservative(m, choices, keys, order, depth, rule, seed)
        elif policy == DOMINANT_SHARE:
            _dominant_share(m, choices, owner, owners, shut, rule, seed)
        elif policy == ALIGNMENT:
            _alignment(m, choices, shut, shortest, rule, seed)
        else:
            _refill(m, key_kind, level_key, level, shut, lifted, keys, order, rule, seed)
        if pack:
            _pack(m, threshold, pairing)
