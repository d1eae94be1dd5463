"""Writes observations of a batch into fresh arrays; the features are named in `types`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from dtgym.envs.cluster_scheduling.layout import (
    ARRIVED,
    B_FREE,
    B_JOBS,
    B_RUNNING,
    B_SLOTS,
    B_TENTATIVE,
    BUSY,
    BUSY_SCALE,
    CAPACITY,
    CHOSEN,
    COMPILED,
    ESTIMATE,
    FINISHED,
    HELD,
    JOB_WORDS,
    K_JOBS,
    K_NODES,
    N_SIGMA,
    N_TOTAL,
    NODES_USED,
    NOW,
    ORIGIN,
    PHASE,
    RESOURCES,
    RUNNING,
    RUNNING_JOB,
    RUNNING_WORDS,
    SHOWN,
    SLOT_JOB,
    SLOT_WORDS,
    SLOTS_USED,
    START,
    STARTABLE,
    SUBMIT,
    WINDOW,
)

STATIC_JOB = 11
"""Queue features 1 to 11 depend on the job alone and are computed once per stream."""
STATIC_NODE = 3
"""Node features 0 to 2 depend on the node alone."""


_ROOT_HOUR = np.float32(np.sqrt(3_600_000.0))


@njit(**COMPILED)
def squashed_time(milliseconds: int) -> float:
    """``sqrt(t) / (sqrt(t) + sqrt(1 h))``: an hour is 0.5, a minute 0.11, a hundred hours 0.91."""
    root = np.sqrt(np.float32(max(milliseconds, 0)))
    return root / (root + _ROOT_HOUR)


@njit(**COMPILED)
def write_range(
    first: int,
    last: int,
    which: Any,
    s: Any,
    c: Any,
    numbers: Any,
    stream: Any,
    job_features: Any,
    nodes: Any,
    node_features: Any,
    epoch_s: float,
    queue: Any,
    node_out: Any,
    running: Any,
    cluster: Any,
) -> None:
    """Observations of environments which[first:last].

    Args:
        first: First place in `which`.
        last: End of the places.
        which: Environments asked for.
        s: State, see `layout`, as the next three.
        c: See there.
        numbers: See there.
        stream: See there.
        job_features: (stream rows, STATIC_JOB) float32.
        nodes: See `layout`.
        node_features: (nodes, STATIC_NODE) float32.
        epoch_s: Unix time of the stream's origin.
        queue: (places, slots, features) written.
        node_out: (places, nodes, features) written.
        running: (places, rows, features) written.
        cluster: (places, features) written.
    """
    count = c[K_NODES]
    for place in range(first, last):
        i = which[place]
        window = s[i, WINDOW]
        now = s[i, NOW]
        for k in range(s[i, SLOTS_USED], queue.shape[1]):
            for f in range(queue.shape[2]):
                queue[place, k, f] = 0.0
        for spot in range(s[i, RUNNING], running.shape[1]):
            for f in range(running.shape[2]):
                running[place, spot, f] = 0.0
        for n in range(count):
            for f in range(node_out.shape[2]):
                node_out[place, n, f] = 0.0
        for f in range(cluster.shape[1]):
            cluster[place, f] = 0.0
        for k in range(s[i, SLOTS_USED]):
            slot = c[B_SLOTS] + k * SLOT_WORDS
            job = s[i, slot + SLOT_JOB]
            row = window + job
            queue[place, k, 0] = 1.0
            for f in range(STATIC_JOB):
                queue[place, k, 1 + f] = job_features[row, f]
            queue[place, k, 12] = squashed_time(s[i, c[B_JOBS] + job * JOB_WORDS + ESTIMATE])
            queue[place, k, 13] = squashed_time(now - (stream[row, SUBMIT] - s[i, ORIGIN]))
            queue[place, k, 14] = s[i, slot + STARTABLE]
            queue[place, k, 15] = 0.0
        if s[i, CHOSEN] >= 0:
            queue[place, s[i, CHOSEN], 15] = 1.0
        for n in range(count):
            for f in range(STATIC_NODE):
                node_out[place, n, f] = node_features[n, f]
            for r in range(RESOURCES):
                if nodes[n, CAPACITY + r] > 0:
                    free = s[i, c[B_FREE] + n * RESOURCES + r]
                    node_out[place, n, STATIC_NODE + r] = free / nodes[n, CAPACITY + r]
            if nodes[n, CAPACITY] > 0:
                share = s[i, c[B_TENTATIVE] + n] / nodes[n, CAPACITY]
                node_out[place, n, STATIC_NODE + RESOURCES] = share
        for spot in range(min(s[i, RUNNING], running.shape[1])):
            job = s[i, c[B_RUNNING] + spot * RUNNING_WORDS + RUNNING_JOB]
            words = c[B_JOBS] + job * JOB_WORDS
            elapsed = now - s[i, words + START]
            running[place, spot, 0] = 1.0
            running[place, spot, 1] = job_features[window + job, 0]
            running[place, spot, 2] = squashed_time(s[i, words + ESTIMATE] - elapsed)
            running[place, spot, 3] = squashed_time(elapsed)
            running[place, spot, 4] = s[i, words + NODES_USED] / count
        cluster[place, s[i, PHASE]] = 1.0
        for r in range(RESOURCES):
            if numbers[N_TOTAL + r] > 0:
                cluster[place, 5 + r] = s[i, HELD + r] / numbers[N_TOTAL + r]
                cluster[place, 10 + r] = s[i, BUSY + r] / (numbers[N_TOTAL + r] * BUSY_SCALE)
        backlog = s[i, ARRIVED] - s[i, SHOWN]
        cluster[place, 15] = backlog / (8.0 + backlog)
        cluster[place, 16] = (c[K_JOBS] - s[i, ARRIVED]) / c[K_JOBS]
        cluster[place, 17] = (c[K_JOBS] - s[i, FINISHED]) / c[K_JOBS]
        cluster[place, 18] = min(numbers[N_SIGMA], 1.0)
        clock_s = epoch_s + (s[i, ORIGIN] + now) * 1e-3
        day = 2 * np.pi * ((clock_s / 86400.0) % 1.0)
        week = 2 * np.pi * ((clock_s / 604800.0) % 1.0)
        cluster[place, 19] = np.sin(day)
        cluster[place, 20] = np.cos(day)
        cluster[place, 21] = np.sin(week)
        cluster[place, 22] = np.cos(week)
