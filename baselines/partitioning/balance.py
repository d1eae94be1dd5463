"""The best layer borders of given stages, for many layouts at once.

A layout says which clusters, accelerators, tensor degrees and micro-batch the stages have. The
borders with the smallest bottleneck follow by parametric search: a greedy fill tells whether a
period can be kept, memory in flight included, and bisection finds the smallest one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dtgym.simulator.partition_space import Candidate, PlanSpace, Stage

BISECTIONS = 24


@dataclass(frozen=True)
class Layouts:
    """Stages without borders; axes: N layouts, S stages (padded).

    Attributes:
        batch: (N,) choice of the micro-batch.
        stages: (N,) stages in use.
        cluster: (N, S).
        gpus: (N, S) choice of the accelerators.
        tensor: (N, S) choice of the tensor degree.
        extra: (N, S) warm-up depth beyond the standard.
    """

    batch: NDArray[np.int64]
    stages: NDArray[np.int64]
    cluster: NDArray[np.int64]
    gpus: NDArray[np.int64]
    tensor: NDArray[np.int64]
    extra: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.batch)


def balanced(space: PlanSpace, layouts: Layouts) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Borders with the smallest bottleneck.

    Returns:
        Borders, (N, S + 1), and the bottleneck, s, (N,): inf where no borders fit the memory.
    """
    arrays = space.arrays
    borders = np.zeros((len(layouts), layouts.cluster.shape[1] + 1), dtype=np.int64)
    bottleneck_s = np.full(len(layouts), np.inf)
    _balance(
        space.stage_time_s,
        arrays.row[0],
        arrays.farthest[0],
        arrays.closes[0],
        arrays.legal[0],
        np.log2(space.tensor_options).astype(np.int64),
        int(arrays.layers[0]),
        layouts.batch,
        np.log2(np.maximum(arrays.microbatch[0], 1)).astype(np.int64),
        layouts.stages,
        layouts.cluster,
        layouts.gpus,
        layouts.tensor,
        layouts.extra,
        borders,
        bottleneck_s,
    )
    return borders, bottleneck_s


def candidates(
    space: PlanSpace,
    layouts: Layouts,
    borders: NDArray[np.int64],
    chosen: NDArray[np.int64],
    wire: int,
) -> list[Candidate]:
    """The layouts `chosen` with their borders as candidates, `wire` on every link."""
    return [
        Candidate(
            int(space.microbatch[0, layouts.batch[n]]),
            tuple(
                Stage(
                    int(layouts.cluster[n, s]),
                    int(space.gpu_options[layouts.gpus[n, s]]),
                    int(space.tensor_options[layouts.tensor[n, s]]),
                    int(borders[n, s + 1]),
                    wire,
                    int(layouts.extra[n, s]),
                )
                for s in range(int(layouts.stages[n]))
            ),
        )
        for n in chosen.tolist()
    ]


@njit(cache=True, nogil=True)
def _fill(times, far, stages, layers, period, borders):
    """Gives each stage all it can take within `period`; whether that places every layer."""
    low = 0
    for s in range(stages):
        high = min(far[s, low], layers - (stages - 1 - s))
        limit = times[s, low] + period
        # Largest border whose time stays within the period.
        first, last = low, high
        while first < last:
            middle = (first + last + 1) // 2
            if times[s, middle] <= limit:
                first = middle
            else:
                last = middle - 1
        if first <= low:
            return False
        low = first
        borders[s + 1] = low
    return low == layers


@njit(cache=True, nogil=True)
def _balance(
    time_s,
    row,
    farthest,
    closes,
    legal,
    tensor_log2,
    layers,
    batch,
    batch_log2,
    stages,
    cluster,
    gpus,
    tensor,
    extra,
    borders,
    bottleneck_s,
):
    width = cluster.shape[1]
    times = np.zeros((width, layers + 1))
    far = np.zeros((width, layers + 1), np.int64)
    trial = np.zeros(width + 1, np.int64)
    for n in range(len(batch)):
        b, used = batch[n], stages[n]
        good = used <= layers
        lowest = 0.0
        total = 0.0
        for s in range(used):
            c, g, t = cluster[n, s], gpus[n, s], tensor[n, s]
            if not good or not legal[c, b, g, t]:
                good = False
                break
            k = batch_log2[b] - (g - tensor_log2[t])
            for border in range(layers + 1):
                times[s, border] = time_s[row[c], t, k, border]
                far[s, border] = farthest[c, b, g, t, used - 1 - s + extra[n, s], border]
                if s == used - 1 and extra[n, s] == 0 and closes[c, b, g, t, border]:
                    far[s, border] = layers
            total = max(total, times[s, layers])
        if not good or not _fill(times, far, used, layers, total, trial):
            continue
        highest = total
        for _ in range(BISECTIONS):
            middle = 0.5 * (lowest + highest)
            if _fill(times, far, used, layers, middle, trial):
                highest = middle
            else:
                lowest = middle
        _fill(times, far, used, layers, highest, trial)
        worst = 0.0
        for s in range(used):
            borders[n, s + 1] = trial[s + 1]
            worst = max(worst, times[s, trial[s + 1]] - times[s, trial[s]])
        bottleneck_s[n] = worst
