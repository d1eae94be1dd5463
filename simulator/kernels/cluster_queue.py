"""Event kernel for schedulers that never preempt: one waiting order, gangs of whole GPUs.

Jobs come in the order (submission, job id), so a job's index is its tie rank. `rank` is the
waiting order as a permutation: the identity for FIFO, the order of durations for SJF and so on.
Because it never changes, waiting jobs lie in binary heaps of ranks: one heap where the head of the
line blocks, one per gang size where jobs that do not fit are skipped. Within one instant free GPUs
only shrink, so a gang size that failed once stays shut until something completes: a decision costs
a few looks at heaps, never a walk through the queue.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

POOLED = 0
CONSOLIDATE = 1
BEST_FIT = 2
WORST_FIT = 3
FIRST_FIT = 4
SPREAD = 5
PLACEMENTS = {
    "pooled": POOLED,
    "consolidate": CONSOLIDATE,
    "best_fit": BEST_FIT,
    "worst_fit": WORST_FIT,
    "first_fit": FIRST_FIT,
    "spread": SPREAD,
}
"""Placement rules; `dtgym.simulator.cluster.simulate` says what each one does."""

NEVER = np.int64(2**62)


@njit(cache=True, nogil=True)
def push_rank(heap: Any, base: Any, size: Any, value: Any) -> None:
    """Adds `value` to the min-heap heap[base : base + size]; the caller counts the size."""
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        above = heap[base + parent]
        if above <= value:
            break
        heap[base + hole] = above
        hole = parent
    heap[base + hole] = value


@njit(cache=True, nogil=True)
def pop_rank(heap: Any, base: Any, size: Any) -> int:
    """Takes the smallest value off the min-heap heap[base : base + size]."""
    top = heap[base]
    last = heap[base + size - 1]
    size -= 1
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and heap[base + child + 1] < heap[base + child]:
            child += 1
        if heap[base + child] >= last:
            break
        heap[base + hole] = heap[base + child]
        hole = child
    if size > 0:
        heap[base + hole] = last
    return top


@njit(cache=True, nogil=True)
def push_finish(times: Any, jobs: Any, size: Any, time: Any, job: Any) -> None:
    """Adds a completion to the min-heap of (time, job)."""
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        if times[parent] <= time:
            break
        times[hole] = times[parent]
        jobs[hole] = jobs[parent]
        hole = parent
    times[hole] = time
    jobs[hole] = job


@njit(cache=True, nogil=True)
def pop_finish(times: Any, jobs: Any, size: Any) -> int:
    """Takes the earliest completion off the min-heap of (time, job)."""
    top = jobs[0]
    size -= 1
    time = times[size]
    job = jobs[size]
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and times[child + 1] < times[child]:
            child += 1
        if times[child] >= time:
            break
        times[hole] = times[child]
        jobs[hole] = jobs[child]
        hole = child
    if size > 0:
        times[hole] = time
        jobs[hole] = job
    return top


@njit(cache=True, nogil=True)
def place_gang(
    rule: Any, gang: Any, free: Any, size: Any, taken: Any, out_node: Any, out_gpus: Any, base: Any
) -> int:
    """Chooses nodes for a gang and takes their GPUs.

    Args:
        rule: A value of `PLACEMENTS` other than POOLED.
        gang: GPUs asked for, all at once.
        free: Free GPUs, (nodes,); reduced where the gang fits.
        size: GPUs of each node, (nodes,).
        taken: Scratch, (nodes,).
        out_node: Receives node numbers from `base` on.
        out_gpus: Receives GPUs on each of them.
        base: Where this job's places begin.

    Returns:
        Number of nodes used; -1 where the gang does not fit. A gang of nothing uses 0 nodes.
    """
    nodes = free.shape[0]
    if gang == 0:
        return 0
    if rule == SPREAD:
        for node in range(nodes):
            taken[node] = 0
        for _ in range(gang):
            widest = -1
            room = 0
            for node in range(nodes):
                if free[node] - taken[node] > room:
                    room = free[node] - taken[node]
                    widest = node
            if widest < 0:
                return -1
            taken[widest] += 1
        used = 0
        for node in range(nodes):
            if taken[node] > 0:
                out_node[base + used] = node
                out_gpus[base + used] = taken[node]
                free[node] -= taken[node]
                used += 1
        return used

    # The whole gang on one node, where one holds it.
    chosen = -1
    for node in range(nodes):
        room = free[node]
        if room < gang:
            continue
        if chosen < 0:
            chosen = node
        elif rule == WORST_FIT:
            if room > free[chosen]:
                chosen = node
        elif rule != FIRST_FIT and room < free[chosen]:
            chosen = node
        if rule == FIRST_FIT or (rule != WORST_FIT and room == gang):
            break
    if chosen >= 0:
        out_node[base] = chosen
        out_gpus[base] = gang
        free[chosen] -= gang
        return 1

    total = 0
    largest = 0
    for node in range(nodes):
        total += free[node]
        largest = max(largest, size[node])
        taken[node] = 0
    if total < gang or (rule == CONSOLIDATE and gang <= largest):
        return -1

    used = 0
    missing = gang
    while missing > 0:
        chosen = -1
        last = False
        if rule == CONSOLIDATE:
            # Wholly free nodes that the gang fills, largest first; the rest is one part-node.
            for node in range(nodes):
                if (
                    taken[node] == 0
                    and free[node] == size[node]
                    and 0 < size[node] <= missing
                    and (chosen < 0 or size[node] > size[chosen])
                ):
                    chosen = node
            last = chosen < 0
        elif rule == FIRST_FIT:
            for node in range(nodes):
                if taken[node] == 0 and free[node] > 0:
                    chosen = node
                    break
        else:
            for node in range(nodes):
                if taken[node] == 0 and (chosen < 0 or free[node] > free[chosen]):
                    chosen = node
            last = rule == BEST_FIT and free[chosen] >= missing
        if last:
            chosen = -1
            for node in range(nodes):
                if (
                    taken[node] == 0
                    and free[node] >= missing
                    and (chosen < 0 or free[node] < free[chosen])
                ):
                    chosen = node
            if chosen < 0:
                return -1
        part = min(missing, free[chosen])
        taken[chosen] = part
        out_node[base + used] = chosen
        out_gpus[base + used] = part
        used += 1
        missing -= part
    for place in range(used):
        free[out_node[base + place]] -= out_gpus[base + place]
    return used


@njit(cache=True, nogil=True)
def run_queue(
    submit_ms: Any,
    duration_ms: Any,
    gpus: Any,
    rank: Any,
    gang_class: Any,
    class_gpus: Any,
    node_gpus: Any,
    placement: Any,
    skip: bool,
    start_ms: Any,
    finish_ms: Any,
    place_base: Any,
    place_node: Any,
    place_gpus: Any,
    place_count: Any,
) -> int:
    """Runs one cluster to the end of its last job.

    Args:
        submit_ms: Submissions, (jobs,), ascending; equal ones in the order of job ids.
        duration_ms: Run times, (jobs,).
        gpus: Gang sizes, (jobs,).
        rank: Waiting order, a permutation of 0..jobs-1.
        gang_class: Index into `class_gpus` of each job.
        class_gpus: The distinct gang sizes, ascending.
        node_gpus: GPUs of each node, (nodes,).
        placement: A value of `PLACEMENTS`.
        skip: Whether jobs behind one that does not fit may start.
        start_ms: Output, (jobs,).
        finish_ms: Output, (jobs,).
        place_base: First place of each job in the three arrays below; not used when pooled.
        place_node: Output: nodes of each job.
        place_gpus: Output: GPUs on each of them.
        place_count: Output: number of nodes of each job.

    Returns:
        Events handled: arrivals and completions; the negative count of jobs left waiting where the
        queue can never drain (a job that the empty cluster cannot hold).
    """
    jobs = submit_ms.shape[0]
    classes = class_gpus.shape[0] if skip else 1
    at_rank = np.empty(jobs, np.int64)
    for job in range(jobs):
        at_rank[rank[job]] = job
    base = np.zeros(classes + 1, np.int64)
    if skip:
        for job in range(jobs):
            base[gang_class[job] + 1] += 1
        for index in range(classes):
            base[index + 1] += base[index]
    heap = np.empty(jobs, np.int64)
    waiting = np.zeros(classes, np.int64)
    shut = np.zeros(classes, np.bool_)
    nodes = node_gpus.shape[0]
    free = np.empty(nodes, np.int64)
    taken = np.empty(nodes, np.int64)
    total_free = 0
    for node in range(nodes):
        free[node] = node_gpus[node]
        total_free += node_gpus[node]
    finish_times = np.empty(jobs, np.int64)
    finish_jobs = np.empty(jobs, np.int64)
    running = 0
    queued = 0
    arrived = 0

    while arrived < jobs or running > 0:
        now = NEVER
        if running > 0:
            now = finish_times[0]
        if arrived < jobs and submit_ms[arrived] < now:
            now = submit_ms[arrived]
        released = False
        while running > 0 and finish_times[0] == now:
            job = pop_finish(finish_times, finish_jobs, running)
            running -= 1
            released = True
            total_free += gpus[job]
            if placement != POOLED:
                for place in range(place_base[job], place_base[job] + place_count[job]):
                    free[place_node[place]] += place_gpus[place]
        if released:
            for index in range(classes):
                shut[index] = False
        while arrived < jobs and submit_ms[arrived] == now:
            index = gang_class[arrived] if skip else 0
            push_rank(heap, base[index], waiting[index], rank[arrived])
            waiting[index] += 1
            if not skip:
                # A new head of the line may fit where the old one did not.
                shut[0] = False
            queued += 1
            arrived += 1
        while queued > 0:
            chosen = -1
            first = jobs
            for index in range(classes):
                if skip and class_gpus[index] > total_free:
                    break
                if waiting[index] > 0 and not shut[index] and heap[base[index]] < first:
                    first = heap[base[index]]
                    chosen = index
            if chosen < 0:
                break
            job = at_rank[first]
            fits = gpus[job] <= total_free
            if fits and placement != POOLED:
                place_count[job] = place_gang(
                    placement,
                    gpus[job],
                    free,
                    node_gpus,
                    taken,
                    place_node,
                    place_gpus,
                    place_base[job],
                )
                fits = place_count[job] >= 0
            if not fits:
                shut[chosen] = True
                continue
            pop_rank(heap, base[chosen], waiting[chosen])
            waiting[chosen] -= 1
            queued -= 1
            total_free -= gpus[job]
            start_ms[job] = now
            finish_ms[job] = now + duration_ms[job]
            push_finish(finish_times, finish_jobs, running, finish_ms[job], job)
            running += 1
    return -queued if queued > 0 else 2 * jobs


@njit(cache=True, nogil=True)
def run_queue_batch(
    case_base: Any,
    submit_ms: Any,
    duration_ms: Any,
    gpus: Any,
    rank: Any,
    gang_class: Any,
    class_base: Any,
    class_gpus: Any,
    node_base: Any,
    node_gpus: Any,
    placement: Any,
    skip: bool,
    start_ms: Any,
    finish_ms: Any,
    place_base: Any,
    place_node: Any,
    place_gpus: Any,
    place_count: Any,
    events: Any,
) -> None:
    """Runs many clusters one after the other; case k owns rows case_base[k] : case_base[k + 1]."""
    for case in range(events.shape[0]):
        low, high = case_base[case], case_base[case + 1]
        events[case] = run_queue(
            submit_ms[low:high],
            duration_ms[low:high],
            gpus[low:high],
            rank[low:high],
            gang_class[low:high],
            class_gpus[class_base[case] : class_base[case + 1]],
            node_gpus[node_base[case] : node_base[case + 1]],
            placement,
            skip,
            start_ms[low:high],
            finish_ms[low:high],
            place_base[low:high],
            place_node,
            place_gpus,
            place_count[low:high],
        )
