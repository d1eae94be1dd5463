"""The compiled part of the dynamics: one row of the state is one cluster.

Functions take the number `i` of an environment, the state `s`, the `grid` and the shared arrays
(`layout` names all columns). They allocate nothing, not even views of rows (whose reference counts
several threads would fight over), and release the interpreter lock. Events of one instant come in
the engine's order: completions, arrivals, then decisions.

All helpers stand in this one file on purpose: Numba's cache on disk does not notice a change in a
helper of another file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from dtgym.envs.cluster_scheduling.layout import (
    ARRIVED,
    B_FREE,
    B_JOBS,
    B_LEVEL_OK,
    B_PLACE_OK,
    B_RUNNING,
    B_SLOTS,
    B_TENTATIVE,
    BUSY,
    BUSY_SCALE,
    CAPACITY,
    CHOSEN,
    CHOSEN_LEVELS,
    COMPILED,
    CROWD,
    CROWD_AT,
    CROWDING,
    DEMAND,
    DONE,
    DURATION,
    ESTIMATE,
    FINISH,
    FINISHED,
    FIRST_NODE,
    GPUS,
    HELD,
    IDLE,
    IDLE_WATTS,
    JOB_LEVELS,
    JOB_ROW,
    JOB_WEIGHT,
    JOB_WORDS,
    JOULES,
    K_ANY_NODE,
    K_ANYWHERE,
    K_CHOOSE_LEVELS,
    K_CHOOSE_PLACE,
    K_FIRST_WINDOW,
    K_HORIZON,
    K_JOBS,
    K_KINDS,
    K_MULTI,
    K_NODES,
    K_RACKS,
    K_RULES,
    K_SLOTS,
    K_WINDOWS,
    KIND,
    L_ACTIVE_W,
    L_IDLE_W,
    L_LARGEST,
    L_RULES,
    LEVEL_CPU,
    LEVEL_NETWORK,
    LEVELS,
    N_DISCOUNT,
    N_SIGMA,
    N_TOTAL,
    NEXT_FINISH,
    NODES_USED,
    NOW,
    ORIGIN,
    PHASE,
    PICK,
    PLACE,
    PROFILE,
    RACK,
    RESOURCES,
    RUNNING,
    RUNNING_FINISH,
    RUNNING_JOB,
    RUNNING_WORDS,
    SAME_RACK,
    SHOWN,
    SLOT_GANG,
    SLOT_JOB,
    SLOT_ROOM,
    SLOT_WORDS,
    SLOTS_USED,
    SLOWDOWN,
    SPREAD,
    START,
    STARTABLE,
    STEP_COLUMNS,
    STEP_JOB,
    STEP_TIME,
    SUBMIT,
    TYPE_0,
    TYPE_BITS,
    UNFAIRNESS,
    UNIT_LEVELS,
    WATTS,
    WEIGHT,
    WEIGHTED,
    WINDOW,
    WORST_FIT,
)

NEVER = np.int64(2**62)
_LEVEL_COUNT = len(LEVELS)
_TENS = np.array([100, 10, 1], dtype=np.int64)


@njit(**COMPILED)
def _mix(key: Any, counter: Any) -> Any:
    """SplitMix64 at position `counter` of the stream of `key`."""
    x = key + (np.uint64(counter) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(**COMPILED)
def _uniform(key: Any, counter: Any) -> float:
    return float(_mix(key, counter) >> np.uint64(11)) * 2.0**-53


@njit(**COMPILED)
def _level(levels: int, resource: int) -> int:
    """Quarters of resource 1..4 under packed levels; memory (2) is never cut or stretched."""
    if resource == 1:
        return LEVELS[levels // 100]
    if resource == 3:
        return LEVELS[levels // 10 % 10]
    if resource == 4:
        return LEVELS[levels % 10]
    return 4


@njit(**COMPILED)
def _refit(k: int, n: int, i: int, s: Any, grid: Any, c: Any, stream: Any, nodes: Any) -> None:
    """Room for slot k's job on node n, in GPUs, at the least levels that may be chosen."""
    slot = c[B_SLOTS] + k * SLOT_WORDS
    row = s[i, WINDOW] + s[i, slot + SLOT_JOB]
    free = c[B_FREE] + n * RESOURCES
    room = s[i, free]
    if c[K_KINDS] > 1 and (stream[row, TYPE_BITS] >> nodes[n, KIND]) & 1 == 0:
        room = 0
    if room > 0 and c[K_MULTI]:
        for r in range(1, RESOURCES):
            need = stream[row, DEMAND + r - 1]
            if need > 0:
                need *= 2 if c[K_CHOOSE_LEVELS] and r != 2 else 4
                if s[i, free + r] < need * room:
                    room = s[i, free + r] // need
    fit = c[K_JOBS] + k
    s[i, slot + SLOT_ROOM] += room - np.int64(grid[i, fit, n])
    grid[i, fit, n] = room


@njit(**COMPILED)
def _on_nodes(
    gang: int,
    fit: int,
    kind: int,
    emptiest: bool,
    write: bool,
    i: int,
    s: Any,
    grid: Any,
    c: Any,
    nodes: Any,
) -> bool:
    """Best or worst fit, whole nodes for gangs larger than one, as the engine's `consolidate`.

    Gangs up to the largest node's size go whole to the fullest (or emptiest) node with room;
    larger ones take wholly free nodes, largest first, and one part-node.
    """
    count = c[K_NODES]
    any_kind = c[K_KINDS]
    tentative = c[B_TENTATIVE]
    if gang <= c[c[L_LARGEST] + kind]:
        best = -1
        best_free = np.int64(0)
        for n in range(count):
            if grid[i, fit, n] < gang or (kind != any_kind and nodes[n, KIND] != kind):
                continue
            if not write:
                return True
            free = s[i, c[B_FREE] + n * RESOURCES]
            if best < 0 or (emptiest and free > best_free) or (not emptiest and free < best_free):
                best = n
                best_free = free
        if best < 0:
            return False
        for n in range(count):
            s[i, tentative + n] = 0
        s[i, tentative + best] = gang
        return True
    for n in range(count):
        s[i, tentative + n] = 0
    missing = gang
    while missing > 0:
        best = -1
        for n in range(count):
            size = nodes[n, CAPACITY]
            if (
                s[i, tentative + n] == 0
                and 0 < size <= missing
                and grid[i, fit, n] == size
                and (kind == any_kind or nodes[n, KIND] == kind)
                and (best < 0 or size > nodes[best, CAPACITY])
            ):
                best = n
        part = missing
        if best >= 0:
            part = nodes[best, CAPACITY]
        else:
            best_free = np.int64(0)
            for n in range(count):
                free = s[i, c[B_FREE] + n * RESOURCES]
                if (
                    s[i, tentative + n] == 0
                    and grid[i, fit, n] >= missing
                    and (kind == any_kind or nodes[n, KIND] == kind)
                    and (
                        best < 0
                        or (emptiest and free > best_free)
                        or (not emptiest and free < best_free)
                    )
                ):
                    best = n
                    best_free = free
            if best < 0:
                for n in range(count):
                    s[i, tentative + n] = 0
                return False
        s[i, tentative + best] = part
        missing -= part
    if not write:
        for n in range(count):
            s[i, tentative + n] = 0
    return True


@njit(**COMPILED)
def _anywhere(
    gang: int, fit: int, rack: int, write: bool, i: int, s: Any, grid: Any, c: Any, nodes: Any
) -> bool:
    """GPUs wherever there is room (in one rack, or anywhere for -1), roomiest nodes first."""
    count = c[K_NODES]
    tentative = c[B_TENTATIVE]
    total = 0
    for n in range(count):
        if rack < 0 or nodes[n, RACK] == rack:
            total += np.int64(grid[i, fit, n])
    if total < gang:
        return False
    if not write:
        return True
    for n in range(count):
        s[i, tentative + n] = 0
    missing = gang
    while missing > 0:
        best = -1
        for n in range(count):
            if (
                s[i, tentative + n] == 0
                and grid[i, fit, n] > 0
                and (rack < 0 or nodes[n, RACK] == rack)
                and (best < 0 or grid[i, fit, n] > grid[i, fit, best])
            ):
                best = n
        part = min(missing, np.int64(grid[i, fit, best]))
        s[i, tentative + best] = part
        missing -= part
    return True


@njit(**COMPILED)
def _try_rule(
    k: int, rule: int, write: bool, i: int, s: Any, grid: Any, c: Any, nodes: Any
) -> bool:
    """Whether a rule places slot k's job; writes the GPUs per node if asked to."""
    slot = c[B_SLOTS] + k * SLOT_WORDS
    gang = s[i, slot + SLOT_GANG]
    if s[i, slot + SLOT_ROOM] < gang:
        return False
    fit = c[K_JOBS] + k
    if rule == SPREAD:
        return _anywhere(gang, fit, -1, write, i, s, grid, c, nodes)
    if rule == SAME_RACK:
        rack = 0
        while rack < c[K_RACKS] and not _anywhere(gang, fit, rack, write, i, s, grid, c, nodes):
            rack += 1
        return rack < c[K_RACKS]
    kind = rule - TYPE_0 if rule >= TYPE_0 else c[K_KINDS]
    return _on_nodes(gang, fit, kind, rule == WORST_FIT, write, i, s, grid, c, nodes)


@njit(**COMPILED)
def _judge(i: int, s: Any, grid: Any, c: Any, nodes: Any) -> bool:
    """Marks the slots whose jobs some rule can place now; returns whether there is any."""
    anyone = False
    for k in range(s[i, SLOTS_USED]):
        slot = c[B_SLOTS] + k * SLOT_WORDS
        gang = s[i, slot + SLOT_GANG]
        possible = s[i, slot + SLOT_ROOM] >= gang
        if possible and not c[K_ANYWHERE] and not (gang == 1 and c[K_ANY_NODE]):
            possible = False
            for p in range(c[K_RULES]):
                if _try_rule(k, c[c[L_RULES] + p], False, i, s, grid, c, nodes):
                    possible = True
                    break
        s[i, slot + STARTABLE] = possible
        anyone = anyone or possible
    return anyone


@njit(**COMPILED)
def _show_more(i: int, s: Any, grid: Any, c: Any, stream: Any, nodes: Any) -> None:
    """Fills empty slots with the oldest jobs that have arrived and are not shown yet."""
    while s[i, SLOTS_USED] < c[K_SLOTS] and s[i, SHOWN] < s[i, ARRIVED]:
        k = s[i, SLOTS_USED]
        slot = c[B_SLOTS] + k * SLOT_WORDS
        s[i, slot + SLOT_JOB] = s[i, SHOWN]
        s[i, slot + SLOT_GANG] = stream[s[i, WINDOW] + s[i, SHOWN], GPUS]
        s[i, slot + SLOT_ROOM] = 0
        s[i, SLOTS_USED] = k + 1
        s[i, SHOWN] += 1
        for n in range(c[K_NODES]):
            grid[i, c[K_JOBS] + k, n] = 0
            _refit(k, n, i, s, grid, c, stream, nodes)


@njit(**COMPILED)
def _arrive(i: int, s: Any, c: Any, stream: Any) -> None:
    """Takes in all jobs submitted up to now."""
    while s[i, ARRIVED] < c[K_JOBS]:
        job = s[i, ARRIVED]
        row = s[i, WINDOW] + job
        if stream[row, SUBMIT] - s[i, ORIGIN] > s[i, NOW]:
            break
        s[i, c[B_JOBS] + job * JOB_WORDS + CROWD_AT] = s[i, CROWD]
        s[i, WEIGHT] += stream[row, JOB_WEIGHT]
        s[i, ARRIVED] = job + 1


@njit(**COMPILED)
def _table_row(
    job: int, i: int, s: Any, grid: Any, c: Any, stream: Any, nodes: Any, rate: Any
) -> int:
    """Row of the speed tables for a placed job: a gang goes as fast as its slowest member."""
    words = c[B_JOBS] + job * JOB_WORDS
    kinds = np.int64(1) << nodes[s[i, words + FIRST_NODE], KIND]
    locality = 0
    if s[i, words + NODES_USED] > 1:
        locality = 1
        rack = nodes[s[i, words + FIRST_NODE], RACK]
        for n in range(c[K_NODES]):
            if grid[i, job, n] > 0:
                kinds |= np.int64(1) << nodes[n, KIND]
                if nodes[n, RACK] != rack:
                    locality = 2
    levels = s[i, words + JOB_LEVELS]
    profile = stream[s[i, WINDOW] + job, PROFILE]
    best: Any = np.int64(-1)
    for kind in range(c[K_KINDS]):
        if (kinds >> kind) & 1:
            row = (profile * c[K_KINDS] + kind) * 3 + locality
            row = (row * 5 + levels // 100) * 5 + levels // 10 % 10
            row = row * 5 + levels % 10
            if best < 0 or rate[row] < rate[best]:
                best = row
    return best


@njit(**COMPILED)
def _hold_on(
    n: int,
    gpus: int,
    sign: int,
    row: int,
    levels: int,
    share: int,
    i: int,
    s: Any,
    c: Any,
    stream: Any,
    nodes: Any,
) -> None:
    """Takes or gives back what a job holds on one node, and the power it draws there."""
    free = c[B_FREE] + n * RESOURCES
    s[i, free] -= sign * gpus
    if c[K_MULTI]:
        for r in range(1, RESOURCES):
            s[i, free + r] -= sign * stream[row, DEMAND + r - 1] * _level(levels, r) * gpus
    kind = nodes[n, KIND]
    s[i, WATTS] += sign * gpus * share * (c[c[L_ACTIVE_W] + kind] - c[c[L_IDLE_W] + kind])


@njit(**COMPILED)
def _hold(
    job: int, sign: int, i: int, s: Any, grid: Any, c: Any, stream: Any, nodes: Any, busy: Any
) -> None:
    """Takes (sign 1) or gives back (-1) what a placed job holds and uses."""
    row = s[i, WINDOW] + job
    words = c[B_JOBS] + job * JOB_WORDS
    levels = s[i, words + JOB_LEVELS]
    at = s[i, words + JOB_ROW] * RESOURCES
    gang = stream[row, GPUS]
    if s[i, words + NODES_USED] == 1:
        _hold_on(
            s[i, words + FIRST_NODE], gang, sign, row, levels, busy[at], i, s, c, stream, nodes
        )
    else:
        for n in range(c[K_NODES]):
            if grid[i, job, n] > 0:
                gpus: Any = np.int64(grid[i, job, n])
                _hold_on(n, gpus, sign, row, levels, busy[at], i, s, c, stream, nodes)
    s[i, HELD] += sign * gang
    s[i, BUSY] += sign * gang * busy[at] * (BUSY_SCALE // 1000)
    if c[K_MULTI]:
        for r in range(1, RESOURCES):
            amount = stream[row, DEMAND + r - 1] * _level(levels, r) * gang
            s[i, HELD + r] += sign * amount
            s[i, BUSY + r] += sign * amount * busy[at + r] * (BUSY_SCALE // 1000)


@njit(**COMPILED)
def _start(
    i: int, s: Any, grid: Any, c: Any, stream: Any, nodes: Any, rate: Any, busy: Any
) -> None:
    """Starts the chosen slot's job on the tentative nodes at the chosen levels."""
    k = s[i, CHOSEN]
    slots = c[B_SLOTS]
    count = c[K_NODES]
    job = s[i, slots + k * SLOT_WORDS + SLOT_JOB]
    words = c[B_JOBS] + job * JOB_WORDS
    used = 0
    for n in range(count):
        gpus = s[i, c[B_TENTATIVE] + n]
        grid[i, job, n] = gpus
        if gpus > 0:
            if used == 0:
                s[i, words + FIRST_NODE] = n
            used += 1
    s[i, words + NODES_USED] = used
    s[i, words + JOB_LEVELS] = s[i, CHOSEN_LEVELS]
    row = _table_row(job, i, s, grid, c, stream, nodes, rate)
    s[i, words + JOB_ROW] = row
    _hold(job, 1, i, s, grid, c, stream, nodes, busy)
    # Division by 1 is exact, so an exclusive job on the reference GPU takes its duration exactly.
    finish = s[i, NOW] + np.int64(np.ceil(stream[s[i, WINDOW] + job, DURATION] / rate[row]))
    s[i, words + START] = s[i, NOW]
    s[i, words + FINISH] = finish
    s[i, NEXT_FINISH] = min(s[i, NEXT_FINISH], finish)
    entry = c[B_RUNNING] + s[i, RUNNING] * RUNNING_WORDS
    s[i, entry + RUNNING_JOB] = job
    s[i, entry + RUNNING_FINISH] = finish
    s[i, RUNNING] += 1
    last = s[i, SLOTS_USED] - 1
    for word in range(slots + k * SLOT_WORDS, slots + last * SLOT_WORDS):
        s[i, word] = s[i, word + SLOT_WORDS]
    for other in range(c[K_JOBS] + k, c[K_JOBS] + last):
        for n in range(count):
            grid[i, other, n] = grid[i, other + 1, n]
    s[i, slots + last * SLOT_WORDS + STARTABLE] = 0
    s[i, SLOTS_USED] = last
    for n in range(count):
        if s[i, c[B_TENTATIVE] + n] > 0:
            for other in range(last):
                _refit(other, n, i, s, grid, c, stream, nodes)
            s[i, c[B_TENTATIVE] + n] = 0
    _show_more(i, s, grid, c, stream, nodes)
    s[i, PHASE] = PICK
    s[i, CHOSEN] = -1


@njit(**COMPILED)
def _complete_due(
    i: int, s: Any, grid: Any, c: Any, numbers: Any, stream: Any, nodes: Any, busy: Any, step: Any
) -> None:
    """Ends all running jobs that are due now; the running list keeps its order."""
    now = s[i, NOW]
    running = c[B_RUNNING]
    kept = 0
    soonest = NEVER
    for spot in range(s[i, RUNNING]):
        job = s[i, running + spot * RUNNING_WORDS + RUNNING_JOB]
        finish = s[i, running + spot * RUNNING_WORDS + RUNNING_FINISH]
        if finish > now:
            s[i, running + kept * RUNNING_WORDS + RUNNING_JOB] = job
            s[i, running + kept * RUNNING_WORDS + RUNNING_FINISH] = finish
            kept += 1
            soonest = min(soonest, finish)
            continue
        _hold(job, -1, i, s, grid, c, stream, nodes, busy)
        row = s[i, WINDOW] + job
        words = c[B_JOBS] + job * JOB_WORDS
        s[i, WEIGHT] -= stream[row, JOB_WEIGHT]
        s[i, FINISHED] += 1
        jct_ms = now - (stream[row, SUBMIT] - s[i, ORIGIN])
        length_ms = stream[row, DURATION]
        step[i, SLOWDOWN] += max(1.0, jct_ms / max(length_ms, 10_000))
        if jct_ms > 0:
            # Finish-time fairness against a 1/n share, n the mean number of jobs meanwhile.
            crowd = (s[i, CROWD] - s[i, words + CROWD_AT]) / jct_ms
            slowed = max(1.0, stream[row, GPUS] * crowd / numbers[N_TOTAL])
            step[i, UNFAIRNESS] += jct_ms / (max(length_ms, 1) * slowed)
        for n in range(s[i, words + FIRST_NODE], c[K_NODES]):
            if grid[i, job, n] > 0:
                for k in range(s[i, SLOTS_USED]):
                    _refit(k, n, i, s, grid, c, stream, nodes)
                if s[i, words + NODES_USED] == 1:
                    break
    s[i, RUNNING] = kept
    s[i, NEXT_FINISH] = soonest


@njit(**COMPILED)
def _pass_time(until: int, i: int, s: Any, numbers: Any, step: Any) -> None:
    """Moves the clock and integrates everything that is integrated."""
    span = until - s[i, NOW]
    if span <= 0:
        return
    crowd = s[i, ARRIVED] - s[i, FINISHED]
    s[i, STEP_JOB] += crowd * span
    s[i, CROWD] += crowd * span
    step[i, WEIGHTED] += s[i, WEIGHT] * 1e-3 * span
    beta = numbers[N_DISCOUNT]
    if beta > 0:
        weight = np.exp(-beta * s[i, STEP_TIME]) * (1 - np.exp(-beta * span)) / beta
        step[i, CROWDING] += crowd * weight
    else:
        step[i, CROWDING] += crowd * span
    s[i, STEP_TIME] += span
    step[i, JOULES] += (s[i, IDLE_WATTS] + s[i, WATTS]) * 1e-6 * span
    if crowd > s[i, RUNNING]:
        for r in range(RESOURCES):
            if numbers[N_TOTAL + r] > 0:
                step[i, IDLE + r] += (
                    1 - s[i, BUSY + r] / (numbers[N_TOTAL + r] * BUSY_SCALE)
                ) * span
    s[i, NOW] = until


@njit(**COMPILED)
def _advance(
    waits: bool,
    i: int,
    s: Any,
    grid: Any,
    c: Any,
    numbers: Any,
    stream: Any,
    nodes: Any,
    busy: Any,
    step: Any,
) -> None:
    """Handles events (one at least where the agent `waits`) until some job can be started.

    Instants at which nobody could start anything are passed over: they hold no decision.
    """
    while waits or not _judge(i, s, grid, c, nodes):
        waits = False
        event = s[i, NEXT_FINISH]
        if s[i, ARRIVED] < c[K_JOBS]:
            event = min(event, stream[s[i, WINDOW] + s[i, ARRIVED], SUBMIT] - s[i, ORIGIN])
        if event == NEVER:
            # Every job fits the empty cluster, so a queue without events ahead can always start.
            s[i, DONE] = s[i, FINISHED] == c[K_JOBS]
            return
        if 0 <= c[K_HORIZON] <= event:
            _pass_time(c[K_HORIZON], i, s, numbers, step)
            s[i, DONE] = 1
            _judge(i, s, grid, c, nodes)
            return
        _pass_time(event, i, s, numbers, step)
        if s[i, NEXT_FINISH] <= event:
            _complete_due(i, s, grid, c, numbers, stream, nodes, busy, step)
        _arrive(i, s, c, stream)
        _show_more(i, s, grid, c, stream, nodes)


@njit(**COMPILED)
def _offer_levels(i: int, s: Any, c: Any, stream: Any) -> bool:
    """Offers the levels of the present phase; passes over resources the job does not ask for.

    Returns False where no phase is left, so that the job is to be started.
    """
    row = s[i, WINDOW] + s[i, c[B_SLOTS] + s[i, CHOSEN] * SLOT_WORDS + SLOT_JOB]
    while s[i, PHASE] <= LEVEL_NETWORK:
        which = s[i, PHASE] - LEVEL_CPU
        resource = 1 if which == 0 else which + 2
        need = stream[row, DEMAND + resource - 1]
        if need > 0:
            for choice in range(_LEVEL_COUNT):
                good = True
                for n in range(c[K_NODES]):
                    gpus = s[i, c[B_TENTATIVE] + n]
                    free = s[i, c[B_FREE] + n * RESOURCES + resource]
                    if gpus > 0 and free < need * LEVELS[choice] * gpus:
                        good = False
                s[i, c[B_LEVEL_OK] + choice] = good
            return True
        s[i, PHASE] += 1
    return False


@njit(**COMPILED)
def _act(
    action: int,
    i: int,
    s: Any,
    grid: Any,
    c: Any,
    numbers: Any,
    stream: Any,
    nodes: Any,
    rate: Any,
    busy: Any,
    step: Any,
) -> None:
    """One legal action."""
    slots = c[K_SLOTS]
    rules = c[K_RULES]
    phase = s[i, PHASE]
    waits = phase == PICK and action == slots
    if not waits:
        if phase == PICK:
            s[i, CHOSEN] = action
            s[i, CHOSEN_LEVELS] = UNIT_LEVELS
            if c[K_CHOOSE_PLACE]:
                for p in range(rules):
                    s[i, c[B_PLACE_OK] + p] = _try_rule(
                        action, c[c[L_RULES] + p], False, i, s, grid, c, nodes
                    )
                s[i, PHASE] = PLACE
                return
            for p in range(rules):
                if _try_rule(action, c[c[L_RULES] + p], True, i, s, grid, c, nodes):
                    break
            s[i, PHASE] = LEVEL_CPU
        elif phase == PLACE:
            rule = c[c[L_RULES] + action - slots - 1]
            _try_rule(s[i, CHOSEN], rule, True, i, s, grid, c, nodes)
            s[i, PHASE] = LEVEL_CPU
        else:
            choice = action - slots - 1 - (rules if c[K_CHOOSE_PLACE] else 0)
            which = phase - LEVEL_CPU
            old = s[i, CHOSEN_LEVELS] // _TENS[which] % 10
            s[i, CHOSEN_LEVELS] += (choice - old) * _TENS[which]
            s[i, PHASE] = phase + 1
        if c[K_CHOOSE_LEVELS] and _offer_levels(i, s, c, stream):
            return
        _start(i, s, grid, c, stream, nodes, rate, busy)
    _advance(waits, i, s, grid, c, numbers, stream, nodes, busy, step)


@njit(**COMPILED)
def _write_mask(i: int, s: Any, c: Any, masks: Any) -> None:
    """Legal actions of one environment."""
    slots = c[K_SLOTS]
    placements = c[K_RULES] if c[K_CHOOSE_PLACE] else 0
    for action in range(masks.shape[1]):
        masks[i, action] = False
    if s[i, PHASE] == PICK:
        anyone = False
        for k in range(s[i, SLOTS_USED]):
            good = s[i, c[B_SLOTS] + k * SLOT_WORDS + STARTABLE] != 0
            masks[i, k] = good
            anyone = anyone or good
        # Where no event is ahead there is nothing to wait for.
        ahead = s[i, RUNNING] > 0 or s[i, ARRIVED] < c[K_JOBS]
        masks[i, slots] = ahead or not anyone
    elif s[i, PHASE] == PLACE:
        for p in range(placements):
            masks[i, slots + 1 + p] = s[i, c[B_PLACE_OK] + p] != 0
    else:
        for choice in range(_LEVEL_COUNT):
            masks[i, slots + 1 + placements + choice] = s[i, c[B_LEVEL_OK] + choice] != 0


@njit(**COMPILED)
def step_range(
    first: int,
    last: int,
    actions: Any,
    legal: Any,
    s: Any,
    grid: Any,
    c: Any,
    numbers: Any,
    stream: Any,
    nodes: Any,
    rate: Any,
    busy: Any,
    step: Any,
    masks: Any,
) -> None:
    """One step of environments [first, last); a forbidden action changes nothing."""
    for i in range(first, last):
        for column in range(STEP_COLUMNS):
            step[i, column] = 0.0
        s[i, STEP_JOB] = 0
        s[i, STEP_TIME] = 0
        if legal[i] and s[i, DONE] == 0:
            _act(actions[i], i, s, grid, c, numbers, stream, nodes, rate, busy, step)
            _write_mask(i, s, c, masks)


@njit(**COMPILED)
def begin_some(
    which: Any,
    keys: Any,
    s: Any,
    grid: Any,
    c: Any,
    numbers: Any,
    stream: Any,
    nodes: Any,
    masks: Any,
) -> None:
    """Starts new episodes: draws the window of the stream and the errors of the estimates."""
    for place in range(which.shape[0]):
        i = which[place]
        key = keys[place]
        for word in range(c[B_SLOTS]):
            s[i, word] = 0
        window = c[K_FIRST_WINDOW] + np.int64(_mix(key, 0) % np.uint64(c[K_WINDOWS]))
        s[i, WINDOW] = window
        s[i, ORIGIN] = stream[window, SUBMIT]
        s[i, PHASE] = PICK
        s[i, CHOSEN] = -1
        s[i, NEXT_FINISH] = NEVER
        idle = np.int64(0)
        for n in range(c[K_NODES]):
            idle += nodes[n, CAPACITY] * c[c[L_IDLE_W] + nodes[n, KIND]]
            s[i, c[B_TENTATIVE] + n] = 0
            for r in range(RESOURCES):
                s[i, c[B_FREE] + n * RESOURCES + r] = nodes[n, CAPACITY + r]
        s[i, IDLE_WATTS] = idle * 1000
        sigma = numbers[N_SIGMA]
        for job in range(c[K_JOBS]):
            words = c[B_JOBS] + job * JOB_WORDS
            s[i, words + START] = -1
            s[i, words + FINISH] = -1
            length = stream[window + job, DURATION]
            if sigma > 0:
                # Box-Muller; 1 - u keeps the logarithm finite.
                radius = np.sqrt(-2 * np.log(1 - _uniform(key, 1 + 2 * job)))
                z = radius * np.cos(2 * np.pi * _uniform(key, 2 + 2 * job))
                length = np.int64(length * np.exp(sigma * z))
            s[i, words + ESTIMATE] = length
        _arrive(i, s, c, stream)
        _show_more(i, s, grid, c, stream, nodes)
        # The cluster is empty and every job fits it, so the first decision is now.
        _judge(i, s, grid, c, nodes)
        _write_mask(i, s, c, masks)


@njit(**COMPILED)
def fits_first_slot(i: int, s: Any, grid: Any, c: Any, stream: Any, nodes: Any) -> bool:
    """Whether some offered rule places the job in slot 0 of environment i."""
    s[i, c[B_SLOTS] + SLOT_GANG] = stream[s[i, WINDOW], GPUS]
    for n in range(c[K_NODES]):
        _refit(0, n, i, s, grid, c, stream, nodes)
    return _judge(i, s, grid, c, nodes)


@njit(**COMPILED)
def stranded(s: Any, c: Any) -> int:
    """First environment in which jobs wait, nothing can start and no event is ahead; else -1."""
    for i in range(s.shape[0]):
        if s[i, DONE] or s[i, PHASE] != PICK or s[i, RUNNING] > 0 or s[i, ARRIVED] < c[K_JOBS]:
            continue
        anyone = False
        for k in range(s[i, SLOTS_USED]):
            anyone = anyone or s[i, c[B_SLOTS] + k * SLOT_WORDS + STARTABLE] != 0
        if not anyone:
            return i
    return -1
