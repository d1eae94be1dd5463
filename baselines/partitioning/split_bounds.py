"""Numba kernels of branch and bound: which splits of the layers can beat a given time.

A split is judged by paths that no schedule shortens: a stage's own micro-batches between one trip
to it and back, and the one trip of the first micro-batch to the end, after which a stage still has
all its backwards to do. Transfers count at the cheapest wire, warm-up at the deepest allowed.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.floating[Any]]
Integers: TypeAlias = NDArray[np.integer[Any]]


@njit(cache=True, nogil=True)
def _first_start(
    work: Floats,
    stages: int,
    layers: int,
    share_s: float,
    starts: Integers,
) -> bool:
    """Smallest first layer of each stage's tail that fits `share_s` per stage; whether 0 does."""
    limit = layers
    for s in range(stages - 1, -1, -1):
        start = limit - 1
        if start < s or work[s, limit] - work[s, start] > share_s:
            return False
        while start > s and work[s, limit] - work[s, start - 1] <= share_s:
            start -= 1
        starts[s] = start
        limit = start
    return starts[0] == 0


@njit(cache=True, nogil=True)
def bottleneck(
    work: Floats,
    stages: int,
    layers: int,
    microbatches: Integers,
    first: int,
    last: int,
    bound_s: Floats,
    split: Integers,
) -> None:
    """Least time of the busiest stage over all splits, per shape, and the split that has it.

    Args:
        work: (shapes, stages, layers + 1) forward and backward of one micro-batch, summed up.
        stages: Stages of every shape.
        layers: Layers.
        microbatches: (shapes,).
        first: First shape of this call.
        last: Behind the last shape of this call.
        bound_s: (shapes,) out: micro-batches times the least work of the busiest stage; inf where
            the tables have no entry.
        split: (shapes, stages + 1) out.
    """
    starts = np.zeros(stages, np.int64)
    for shape in range(first, last):
        low = 0.0
        high = 0.0
        for s in range(stages):
            high += work[shape, s, layers]
        if not high < np.inf:
            bound_s[shape] = np.inf
            continue
        for _ in range(40):
            middle = 0.5 * (low + high)
            if _first_start(work[shape], stages, layers, middle, starts):
                high = middle
            else:
                low = middle
        _first_start(work[shape], stages, layers, high, starts)
        # The tail starts as early as it may; stages in front give up what they cannot hold.
        for s in range(stages):
            split[shape, s] = starts[s]
        split[shape, stages] = layers
        bound_s[shape] = microbatches[shape] * low


@njit(cache=True, nogil=True)
def promising_splits(
    forward: Floats,
    backward: Floats,
    transfer_s: Floats,
    stages: int,
    layers: int,
    microbatches: int,
    deepest: Integers,
    limit_s: float,
    splits: Integers,
) -> int:
    """Writes every split that may take less than `limit_s`; returns how many there are.

    Args:
        forward: (stages, layers + 1) summed up over the layers.
        backward: (stages, layers + 1).
        transfer_s: (stages - 1,) both ways over each border, at the cheapest wire.
        stages: Stages.
        layers: Layers.
        microbatches: Micro-batches.
        deepest: (stages,) deepest warm-up allowed.
        limit_s: Time to beat.
        splits: (capacity, stages + 1) out; splits beyond the capacity are counted, not written.
    """
    work = forward + backward
    starts = np.zeros(stages, np.int64)
    if not _first_start(work, stages, layers, limit_s / microbatches, starts):
        return 0
    found = 0
    bound = np.zeros(stages + 1, np.int64)
    around = np.zeros(stages + 1)
    bound[stages] = layers
    s = 0
    bound[1] = 0
    while s >= 0:
        # Next border of stage s; `around` is one trip through the stages before it.
        bound[s + 1] += 1
        stop = bound[s + 1]
        own = work[s, stop] - work[s, bound[s]]
        last = s == stages - 1
        room = stop <= layers - (stages - 1 - s)
        if not room or around[s] + microbatches * own >= limit_s:
            s -= 1
            continue
        if last:
            if stop < layers:
                bound[s + 1] = layers - 1
                continue
        elif stop < starts[s + 1]:
            continue
        if not last:
            around[s + 1] = around[s] + own + transfer_s[s]
            s += 1
            bound[s + 1] = bound[s]
            continue
        # A whole split: after the first trip a stage still has all its backwards to do.
        good = True
        rest = 0.0
        for k in range(stages - 1, -1, -1):
            f = forward[k, bound[k + 1]] - forward[k, bound[k]]
            b = backward[k, bound[k + 1]] - backward[k, bound[k]]
            left = max(0, microbatches - 1 - deepest[k])
            if around[k] + rest + f + microbatches * b + left * f >= limit_s:
                good = False
                break
            rest += f + b
            if k > 0:
                rest += transfer_s[k - 1]
        if good:
            if found < splits.shape[0]:
                for k in range(stages + 1):
                    splits[found, k] = bound[k]
            found += 1
        s -= 1
    return found
