"""Event kernel for preemptive schedulers on a pool of GPUs: exact re-ranking, incrementally.

At every arrival, completion and change of level all active jobs are ranked anew and the pool is
filled greedily in that order, skipping gangs that do not fit. Doing so literally costs a sort of
all active jobs per event. This kernel finds the same set with a few comparisons:

* Among jobs of one gang size the greedy choice is a prefix of the ranking. So of the waiting jobs
  of a size only the first can matter: one heap per size.
* The running set is still the greedy choice unless the first waiting job of some size fits into
  what jobs ranked before it leave. That test needs the free GPUs and the running jobs ranked after
  it, a short walk from the end of the ranking.
* Where it fits, everything ranked before it stays as it is; only the rest is filled anew.
* As time goes by running jobs only rise in the ranking, so that a size whose first waiting job did
  not fit need not be looked at before something completes, changes level or arrives in that size.

Keys are int64 and relative to the present: remaining time, remaining GPU time or a level. Equal
keys go by index, that is by submission and then job id.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from dtgym.simulator.kernels.ordered_lists import (
    COMPILED,
    NEVER,
    before,
    insert,
    pop,
    push,
    remove,
    set_alarm,
)

_RUNNING, _ALARMS, _FREE, _ARRIVED, _EVENTS, _SEGMENTS = 0, 1, 2, 3, 4, 5
_STATE = 6
_COLUMNS = 13

REMAINING = 0
REMAINING_GPU_TIME = 1
LEVEL = 2


@njit(**COMPILED)
def _first_waiting(
    keys: Any, jobs: Any, waiting: Any, base: Any, index: Any, is_running: Any, key: Any
) -> int:
    """First waiting job of a gang size, after dropping entries of an older level; -1 if none."""
    while waiting[index] > 0:
        job = jobs[base[index]]
        if not is_running[job] and keys[base[index]] == key[job]:
            return job
        pop(keys, jobs, base[index], waiting[index])
        waiting[index] -= 1
    return -1


@njit(**COMPILED)
def _level_alarm(now: Any, attained: Any, gpus: Any, bound: Any, step_ms: Any) -> Any:
    """First instant of the clock's grid at which attained service exceeds `bound`.

    Args:
        now: When the job starts running, ms.
        attained: Service so far, GPU-ms.
        gpus: Gang size, at least 1.
        bound: Upper end of the present level, GPU-ms.
        step_ms: Grid of the clock, ms.
    """
    run_ms = (bound - attained) // gpus + 1 if attained <= bound else 0
    return -((-(now + run_ms)) // step_ms) * step_ms


@njit(**COMPILED)
def _next_alarm(
    now: Any, finish_ms: Any, attained: Any, gpus: Any, level: Any, bound: Any, step_ms: Any
) -> Any:
    """When a job that runs from now on completes or leaves its level, whichever is first."""
    if level == bound.shape[0] or attained + (finish_ms - now) * gpus <= bound[level]:
        return finish_ms
    return min(finish_ms, _level_alarm(now, attained, gpus, bound[level], step_ms))


@njit(**COMPILED)
def _advance(
    submit_ms: Any,
    duration_ms: Any,
    gpus: Any,
    gang_class: Any,
    class_gpus: Any,
    key_kind: Any,
    level_bound: Any,
    level_key: Any,
    level_step_ms: Any,
    cost_ms: Any,
    start_ms: Any,
    last_start_ms: Any,
    finish_ms: Any,
    preemptions: Any,
    waited_ms: Any,
    segments: Any,
    log_segments: bool,
    state: Any,
    base: Any,
    waiting: Any,
    may_fit: Any,
    heap: Any,
    columns: Any,
) -> bool:
    """Runs a pool until its last job is done or the log of segments may be too small.

    Args not described at `run_preemptive_batch`, of which it gets one case:
        state: Counters, kept between calls, (_STATE,).
        base: First entry of each gang size in `heap`.
        waiting: Entries of each gang size.
        may_fit: Whether the first waiting job of a size may fit by now, (classes,); an arrival
            concerns its size only.
        heap: Keys and jobs that wait, (2, entries).
        columns: What is known of each job beside the arguments, (_COLUMNS, jobs).

    Returns:
        Whether the last job is done.
    """
    jobs = submit_ms.shape[0]
    classes = class_gpus.shape[0]
    levels = level_key.shape[0]
    heap_key, heap_job = heap[0], heap[1]
    run_key, run_job, tail_key, tail_job = columns[0], columns[1], columns[2], columns[3]
    # Remaining work while waiting; what was attained when the present stretch began.
    remaining, idle_since_ms, attained = columns[4], columns[5], columns[6]
    level, key, is_running = columns[7], columns[8], columns[9]
    alarm_ms, alarm_heap, alarm_spot = columns[10], columns[11], columns[12]
    running, alarms, free = state[_RUNNING], state[_ALARMS], state[_FREE]
    arrived, events, segment_count = state[_ARRIVED], state[_EVENTS], state[_SEGMENTS]

    # Ranked by remaining time, the running jobs are in the order of their completions already.
    by_finish = key_kind == REMAINING
    while True:
        due = NEVER
        if by_finish and running > 0:
            due = run_key[0]
        elif alarms > 0:
            due = alarm_ms[alarm_heap[0]]
        now = due
        if arrived < jobs and submit_ms[arrived] < now:
            now = submit_ms[arrived]
        # An instant takes GPUs from jobs that ran before it only, and from each once.
        log_full = log_segments and segment_count + running > segments.shape[0]
        if now == NEVER or log_full:
            state[_RUNNING], state[_ALARMS], state[_FREE] = running, alarms, free
            state[_ARRIVED], state[_EVENTS], state[_SEGMENTS] = arrived, events, segment_count
            return not log_full

        if due == now:
            for index in range(classes):
                may_fit[index] = True
        while due == now:
            job = run_job[0] if by_finish else alarm_heap[0]
            events += 1
            when = NEVER
            service = attained[job]
            if is_running[job]:
                remove(run_key, run_job, running, key[job], job)
                running -= 1
                service += (now - last_start_ms[job]) * gpus[job]
            if is_running[job] and finish_ms[job] == now:
                is_running[job] = False
                free += gpus[job]
            else:
                # A change of level, perhaps of a job that lost its GPUs within the clock's step.
                while level[job] < levels - 1 and service > level_bound[level[job]]:
                    level[job] += 1
                key[job] = level_key[level[job]] * jobs + job
                if is_running[job]:
                    insert(run_key, run_job, running, key[job], job)
                    running += 1
                    when = _next_alarm(
                        now,
                        finish_ms[job],
                        service,
                        gpus[job],
                        level[job],
                        level_bound,
                        level_step_ms,
                    )
                else:
                    index = gang_class[job]
                    push(heap_key, heap_job, base[index], waiting[index], key[job], job)
                    waiting[index] += 1
            due = NEVER
            if by_finish:
                if running > 0:
                    due = run_key[0]
                continue
            alarms = set_alarm(alarm_ms, alarm_heap, alarm_spot, alarms, job, when)
            if alarms > 0:
                due = alarm_ms[alarm_heap[0]]
        while arrived < jobs and submit_ms[arrived] == now:
            job = arrived
            remaining[job] = duration_ms[job]
            idle_since_ms[job] = now
            alarm_spot[job] = -1
            if key_kind == REMAINING:
                key[job] = remaining[job]
            elif key_kind == REMAINING_GPU_TIME:
                key[job] = remaining[job] * gpus[job]
            else:
                # Jobs rank by level, then submission; all in one number is quickly compared.
                key[job] = level_key[0] * jobs + job
            index = gang_class[job]
            push(heap_key, heap_job, base[index], waiting[index], key[job], job)
            waiting[index] += 1
            may_fit[index] = True
            arrived += 1
            events += 1

        # Running jobs carry keys of the present where keys of running jobs move at unlike pace.
        any_waits = False
        for index in range(classes):
            any_waits = any_waits or (may_fit[index] and waiting[index] > 0)
        if not any_waits:
            continue
        if key_kind == REMAINING_GPU_TIME:
            for place in range(running):
                job = run_job[place]
                value = (finish_ms[job] - now) * gpus[job]
                key[job] = value
                hole = place
                while hole > 0 and before(value, job, run_key[hole - 1], run_job[hole - 1]):
                    run_key[hole] = run_key[hole - 1]
                    run_job[hole] = run_job[hole - 1]
                    hole -= 1
                run_key[hole] = value
                run_job[hole] = job
        # Remaining time is compared as the instant of completion if the job ran from now on.
        shift = now if key_kind == REMAINING else 0

        while True:
            # The first-ranked waiting job that fits into what the jobs before it leave.
            chosen = -1
            chosen_key = np.int64(0)
            chosen_job = np.int64(-1)
            for index in range(classes):
                if waiting[index] == 0 or not may_fit[index]:
                    continue
                job = _first_waiting(heap_key, heap_job, waiting, base, index, is_running, key)
                if job < 0:
                    continue
                value = key[job] + shift
                if chosen >= 0 and not before(value, job, chosen_key, chosen_job):
                    continue
                room = free
                after = running
                while (
                    room < class_gpus[index]
                    and after > 0
                    and before(value, job, run_key[after - 1], run_job[after - 1])
                ):
                    after -= 1
                    room += gpus[run_job[after]]
                may_fit[index] = room >= class_gpus[index]
                if may_fit[index]:
                    chosen = index
                    chosen_key = value
                    chosen_job = job
            if chosen < 0:
                break

            # Everything ranked before the chosen job stays; take off what is ranked after it.
            tail = 0
            room = free
            refill = free < gpus[chosen_job]
            if refill:
                chosen_after = running
                while chosen_after > 0 and before(
                    chosen_key, chosen_job, run_key[chosen_after - 1], run_job[chosen_after - 1]
                ):
                    chosen_after -= 1
                tail = running - chosen_after
                for place in range(tail):
                    tail_key[place] = run_key[chosen_after + place]
                    tail_job[place] = run_job[chosen_after + place]
                    room += gpus[tail_job[place]]
                running = chosen_after
            place = 0
            begin = chosen_job
            evicted = 0
            look = True
            first = -1
            first_key = np.int64(0)
            first_job = np.int64(-1)
            while True:
                if begin >= 0:
                    index = gang_class[begin]
                    waited_ms[begin] += now - idle_since_ms[begin]
                    pop(heap_key, heap_job, base[index], waiting[index])
                    waiting[index] -= 1
                    room -= gpus[begin]
                    if preemptions[begin] == 0:
                        start_ms[begin] = now
                    is_running[begin] = True
                    last_start_ms[begin] = now
                    finish_ms[begin] = now + remaining[begin]
                    when = finish_ms[begin]
                    if key_kind == REMAINING:
                        key[begin] = finish_ms[begin]
                    elif key_kind == LEVEL:
                        when = _next_alarm(
                            now, when, attained[begin], gpus[begin], level[begin], level_bound,
                            level_step_ms,
                        )  # fmt: skip
                    if not by_finish:
                        alarms = set_alarm(alarm_ms, alarm_heap, alarm_spot, alarms, begin, when)
                    insert(run_key, run_job, running, key[begin], begin)
                    running += 1
                    begin = -1
                    look = True
                    if not refill:
                        break
                # The first waiting job stays the same until one leaves or the room is too small.
                if look or (first >= 0 and class_gpus[first] > room):
                    look = False
                    first = -1
                    for index in range(classes):
                        if class_gpus[index] > room:
                            break
                        if waiting[index] == 0:
                            continue
                        job = _first_waiting(
                            heap_key, heap_job, waiting, base, index, is_running, key
                        )
                        if job < 0:
                            continue
                        value = key[job] + shift
                        if first < 0 or before(value, job, first_key, first_job):
                            first = index
                            first_key = value
                            first_job = job
                # The next in rank among those that were running and the first waiting one.
                next_key = np.int64(0)
                next_job = np.int64(-1)
                if place < tail:
                    next_key = tail_key[place]
                    next_job = tail_job[place]
                if first >= 0 and (
                    next_job < 0 or before(first_key, first_job, next_key, next_job)
                ):
                    next_key = first_key
                    next_job = first_job
                if next_job < 0:
                    break
                if not is_running[next_job]:
                    begin = next_job
                    continue
                place += 1
                if gpus[next_job] <= room:
                    run_key[running] = next_key
                    run_job[running] = next_job
                    running += 1
                    room -= gpus[next_job]
                else:
                    tail_job[evicted] = next_job
                    evicted += 1
            free = room
            for place in range(evicted):
                job = tail_job[place]
                if log_segments:
                    segments[segment_count, 0] = job
                    segments[segment_count, 1] = last_start_ms[job]
                    segments[segment_count, 2] = now
                    segment_count += 1
                is_running[job] = False
                idle_since_ms[job] = now
                preemptions[job] += 1
                remaining[job] = finish_ms[job] - now + cost_ms[job]
                attained[job] += (now - last_start_ms[job]) * gpus[job]
                if key_kind == REMAINING:
                    key[job] = remaining[job]
                elif key_kind == REMAINING_GPU_TIME:
                    key[job] = remaining[job] * gpus[job]
                late = (
                    key_kind == LEVEL
                    and level[job] < levels - 1
                    and attained[job] > level_bound[level[job]]
                )
                when = -((-now) // level_step_ms) * level_step_ms if late else NEVER
                if not by_finish:
                    alarms = set_alarm(alarm_ms, alarm_heap, alarm_spot, alarms, job, when)
                index = gang_class[job]
                push(heap_key, heap_job, base[index], waiting[index], key[job], job)
                waiting[index] += 1
            if refill:
                for index in range(classes):
                    may_fit[index] = False
                break


@njit(cache=True, nogil=True)
def run_preemptive_batch(
    case_base: Any,
    submit_ms: Any,
    duration_ms: Any,
    gpus: Any,
    gang_class: Any,
    class_base: Any,
    class_gpus: Any,
    total_gpus: Any,
    key_kind: Any,
    level_bound: Any,
    level_key: Any,
    level_step_ms: Any,
    cost_ms: Any,
    start_ms: Any,
    last_start_ms: Any,
    finish_ms: Any,
    preemptions: Any,
    waited_ms: Any,
    events: Any,
    log_segments: bool,
) -> Any:
    """Runs many pools one after the other, each to the end of its last job.

    Args:
        case_base: Case k owns rows case_base[k] : case_base[k + 1] of what is per job.
        submit_ms: Submissions, (jobs,), ascending in a case; equal ones in the order of job ids.
        duration_ms: Run times, (jobs,).
        gpus: Gang sizes, (jobs,).
        gang_class: Index into its case's part of `class_gpus` of each job.
        class_base: Case k owns rows class_base[k] : class_base[k + 1] of `class_gpus`.
        class_gpus: The distinct gang sizes of each case, ascending.
        total_gpus: GPUs of each pool, (cases,).
        key_kind: REMAINING, REMAINING_GPU_TIME or LEVEL.
        level_bound: Attained service at which a level ends (inclusive), GPU-ms, ascending,
            (levels - 1,); used by LEVEL only.
        level_key: Rank of each level, (levels,).
        level_step_ms: Levels change at multiples of this on the clock.
        cost_ms: Work added to a job by each preemption, (jobs,).
        start_ms: Output: first start, (jobs,).
        last_start_ms: Output: start of the stretch that ended in completion, (jobs,).
        finish_ms: Output, (jobs,).
        preemptions: Output, (jobs,), zeros on entry.
        waited_ms: Output: time without GPUs before completion, (jobs,), zeros on entry.
        events: Output: arrivals, completions and level changes handled, (cases,).
        log_segments: Whether to log stretches that ended by preemption.

    Returns:
        segments, segment_base: rows (job, start ms, end ms) of these stretches; case k owns the
        rows segment_base[k] : segment_base[k + 1].
    """
    segments = np.empty((64 if log_segments else 0, 3), np.int64)
    segment_base = np.zeros(events.shape[0] + 1, np.int64)
    # An entry of a waiting job goes stale where its level changes while it waits.
    copies = level_key.shape[0] if key_kind == LEVEL else 1
    for case in range(events.shape[0]):
        low, high = case_base[case], case_base[case + 1]
        jobs = high - low
        sizes = class_gpus[class_base[case] : class_base[case + 1]]
        base = np.zeros(sizes.shape[0] + 1, np.int64)
        for job in range(low, high):
            base[gang_class[job] + 1] += copies
        base = np.cumsum(base)
        state = np.zeros(_STATE, np.int64)
        state[_FREE] = total_gpus[case]
        state[_SEGMENTS] = segment_base[case]
        waiting = np.zeros(sizes.shape[0], np.int64)
        may_fit = np.zeros(sizes.shape[0], np.bool_)
        heap = np.empty((2, jobs * copies), np.int64)
        columns = np.zeros((_COLUMNS, jobs), np.int64)
        while not _advance(
            submit_ms[low:high],
            duration_ms[low:high],
            gpus[low:high],
            gang_class[low:high],
            sizes,
            key_kind,
            level_bound,
            level_key,
            level_step_ms,
            cost_ms[low:high],
            start_ms[low:high],
            last_start_ms[low:high],
            finish_ms[low:high],
            preemptions[low:high],
            waited_ms[low:high],
            segments,
            log_segments,
            state,
            base,
            waiting,
            may_fit,
            heap,
            columns,
        ):
            grown = np.empty((2 * segments.shape[0] + jobs, 3), np.int64)
            grown[: segments.shape[0]] = segments
            segments = grown
        events[case], segment_base[case + 1] = state[_EVENTS], state[_SEGMENTS]
    return segments, segment_base
