"""Preemptive schedulers of two published simulators, with the habits that set them apart.

These are reconstructions for comparison, in whole seconds: an own engine that decides otherwise
would differ from them job by job (docs/scheduling_engine.md lists how). Jobs come in the order
(submission, id).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from dtgym.simulator.kernels.cluster_queue import CONSOLIDATE, place_gang

LEAST_REMAINING = 0
TWO_QUEUES = 1


@njit(cache=True, nogil=True)
def run_ticks(
    submit_s: Any,
    duration_s: Any,
    gpus: Any,
    cost_s: Any,
    node_gpus: Any,
    kind: Any,
    threshold_gpu_s: Any,
    interval_s: Any,
    start_s: Any,
    finish_s: Any,
    preemptions: Any,
) -> None:
    """Second by second, as Lucid's simulator runs its preemptive policies.

    A job is selected by counting GPUs and placed afterwards; one that is selected and finds no node
    keeps its share of the count. A running job is tested for completion before its second is
    subtracted, so that it occupies a second more than its work. Ties go by the order in which jobs
    came into the list of waiting (first) or running ones.

    Args:
        submit_s: (jobs,).
        duration_s: (jobs,).
        gpus: (jobs,).
        cost_s: Work added by a preemption, (jobs,).
        node_gpus: (nodes,).
        kind: LEAST_REMAINING decides every second, TWO_QUEUES every `interval_s`.
        threshold_gpu_s: Attained service above which a job is in the second queue.
        interval_s: See `kind`.
        start_s: Output, (jobs,).
        finish_s: Output, (jobs,).
        preemptions: Output, (jobs,), zeros on entry.
    """
    jobs = submit_s.shape[0]
    nodes = node_gpus.shape[0]
    total = 0
    free = np.empty(nodes, np.int64)
    for node in range(nodes):
        free[node] = node_gpus[node]
        total += node_gpus[node]
    taken = np.empty(nodes, np.int64)
    place_node = np.empty(jobs * nodes, np.int64)
    place_gpus = np.empty(jobs * nodes, np.int64)
    place_count = np.zeros(jobs, np.int64)
    remaining = np.empty(jobs, np.int64)
    service = np.zeros(jobs, np.int64)
    turn = np.zeros(jobs, np.int64)
    is_running = np.zeros(jobs, np.bool_)
    active = np.empty(jobs, np.int64)  # kept nearly in order from one second to the next
    to_start = np.empty(jobs, np.int64)
    count = waiting = arrived = done = turns = 0
    now = submit_s[0]
    while done < jobs:
        kept = 0
        for at in range(count):
            job = active[at]
            if is_running[job] and remaining[job] == 0:
                finish_s[job] = now
                is_running[job] = False
                done += 1
                for place in range(job * nodes, job * nodes + place_count[job]):
                    free[place_node[place]] += place_gpus[place]
                continue
            if is_running[job]:
                remaining[job] -= 1
                service[job] += gpus[job]
            active[kept] = job
            kept += 1
        count = kept
        while arrived < jobs and submit_s[arrived] == now:
            remaining[arrived] = duration_s[arrived]
            turn[arrived] = turns
            turns += 1
            active[count] = arrived
            count += 1
            waiting += 1
            arrived += 1
        if waiting > 0 and now % interval_s == 0:
            for at in range(1, count):
                job = active[at]
                hole = at
                while hole > 0:
                    other = active[hole - 1]
                    if kind == LEAST_REMAINING:
                        first = remaining[job] - remaining[other]
                        second = np.int64(is_running[job]) - np.int64(is_running[other])
                    else:
                        first = np.int64(service[job] > threshold_gpu_s) - np.int64(
                            service[other] > threshold_gpu_s
                        )
                        second = submit_s[job] - submit_s[other]
                        if second == 0:
                            second = np.int64(is_running[other]) - np.int64(is_running[job])
                    if first > 0 or (
                        first == 0 and (second > 0 or (second == 0 and turn[job] > turn[other]))
                    ):
                        break
                    active[hole] = other
                    hole -= 1
                active[hole] = job
            quota = total
            starts = 0
            for at in range(count):
                job = active[at]
                if gpus[job] <= quota:
                    quota -= gpus[job]
                    if not is_running[job]:
                        to_start[starts] = job
                        starts += 1
                elif is_running[job]:
                    preemptions[job] += 1
                    remaining[job] += cost_s[job]
                    is_running[job] = False
                    turn[job] = turns
                    turns += 1
                    waiting += 1
                    for place in range(job * nodes, job * nodes + place_count[job]):
                        free[place_node[place]] += place_gpus[place]
            for at in range(starts):
                job = to_start[at]
                placed = place_gang(
                    CONSOLIDATE,
                    gpus[job],
                    free,
                    node_gpus,
                    taken,
                    place_node,
                    place_gpus,
                    job * nodes,
                )
                if placed < 0:
                    continue
                place_count[job] = placed
                if preemptions[job] == 0:
                    start_s[job] = now
                is_running[job] = True
                turn[job] = turns
                turns += 1
                waiting -= 1
        # Seconds in which nothing but counting happens.
        until = now + 1
        if waiting == 0 or kind == TWO_QUEUES:
            until = np.int64(2**62)
            if waiting > 0:
                until = (now // interval_s + 1) * interval_s
            if arrived < jobs:
                until = min(until, submit_s[arrived])
            for at in range(count):
                if is_running[active[at]]:
                    until = min(until, now + remaining[active[at]] + 1)
            for at in range(count):
                job = active[at]
                if is_running[job]:
                    remaining[job] -= until - 1 - now
                    service[job] += (until - 1 - now) * gpus[job]
        now = until


@njit(cache=True, nogil=True)
def run_discretised(
    submit_s: Any,
    duration_s: Any,
    gpus: Any,
    total_gpus: Any,
    limit_gpu_s: Any,
    start_s: Any,
    finish_s: Any,
    preemptions: Any,
) -> None:
    """Two-dimensional LAS as the released simulator of Tiresias runs it (`dlas-gpu`).

    Queues are lists: a job joins the end of the next queue when its GPU time reaches the limit, and
    after every decision waiting jobs move behind the running ones of their queue. The next look at
    the limits is planned from run time instead of GPU time, so that it can come late.

    Args:
        submit_s: (jobs,).
        duration_s: (jobs,).
        gpus: (jobs,).
        total_gpus: GPUs of the pool.
        limit_gpu_s: Ends of all queues but the last, (queues - 1,).
        start_s: Output, (jobs,), -1 on entry.
        finish_s: Output, (jobs,).
        preemptions: Output, (jobs,), zeros on entry.
    """
    jobs = submit_s.shape[0]
    queues = limit_gpu_s.shape[0] + 1
    never = np.int64(2**62)
    line = np.empty((queues, jobs), np.int64)
    length = np.zeros(queues, np.int64)
    queue = np.zeros(jobs, np.int64)
    executed = np.zeros(jobs, np.int64)
    is_running = np.zeros(jobs, np.bool_)
    behind = np.empty(jobs, np.int64)
    active = np.empty(jobs, np.int64)
    count = arrived = 0
    checked = np.int64(0)
    end = jump = never
    while arrived < jobs or count > 0:
        arrival = submit_s[arrived] if arrived < jobs else never
        now = min(end, arrival, jump)
        is_event = now == min(end, arrival)
        for at in range(count):
            if is_running[active[at]]:
                executed[active[at]] += now - checked
        checked = now
        kept = 0
        for at in range(count):
            job = active[at]
            if is_event and end == now and is_running[job] and executed[job] == duration_s[job]:
                finish_s[job] = now
                is_running[job] = False
                spot = 0
                row = queue[job]
                while line[row, spot] != job:
                    spot += 1
                length[row] -= 1
                for place in range(spot, length[row]):
                    line[row, place] = line[row, place + 1]
                continue
            active[kept] = job
            kept += 1
        count = kept
        while is_event and arrived < jobs and submit_s[arrived] == now:
            active[count] = arrived
            count += 1
            line[0, length[0]] = arrived
            length[0] += 1
            arrived += 1
        for at in range(count):
            job = active[at]
            row = queue[job]
            if (
                is_running[job]
                and row < queues - 1
                and executed[job] * gpus[job] >= limit_gpu_s[row]
            ):
                spot = 0
                while line[row, spot] != job:
                    spot += 1
                length[row] -= 1
                for place in range(spot, length[row]):
                    line[row, place] = line[row, place + 1]
                queue[job] = row + 1
                line[row + 1, length[row + 1]] = job
                length[row + 1] += 1
        free = total_gpus
        end = jump = never
        for row in range(queues):
            moved = kept = 0
            for spot in range(length[row]):
                job = line[row, spot]
                if gpus[job] <= free:
                    free -= gpus[job]
                    is_running[job] = True
                    if start_s[job] < 0:
                        start_s[job] = now
                    line[row, kept] = job
                    kept += 1
                    end = min(end, now + duration_s[job] - executed[job])
                    if row < queues - 1:
                        left = limit_gpu_s[row] - executed[job]
                        jump = min(jump, now + -((-left) // gpus[job]))
                else:
                    if is_running[job]:
                        preemptions[job] += 1
                    is_running[job] = False
                    behind[moved] = job
                    moved += 1
            for at in range(moved):
                line[row, kept + at] = behind[at]
