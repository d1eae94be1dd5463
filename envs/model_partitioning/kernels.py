"""Numba kernel that writes the observations of a batch of plans."""

from __future__ import annotations

from math import log2, log10

import numpy as np
from numba import njit

CLAMP = 10.0


@njit(cache=True, nogil=True)
def observe(
    space,
    builds,
    samples_log2,
    time_s,
    reference_stage_s,
    clusters_in,
    links_in,
    model_in,
    which,
    first,
    last,
    clusters,
    links,
    model,
    stages,
    progress,
):
    """Writes rows `first` to `last` - 1 of the observation for the environments `which`.

    Args:
        space: `SpaceArrays`.
        builds: `Builds`.
        samples_log2: Unused sizes are 0: log2 of the micro-batch, (I, B).
        time_s: (R, T, K, L + 1) cumulative time per micro-batch.
        reference_stage_s: (I,) mean time of the reference plan's stages per sample.
        clusters_in: (I, C, F) static features; the last three columns are filled here.
        links_in: (I, C, C, 2).
        model_in: (I, F).
        which: (k,) environments.
        first: First row.
        last: Behind the last row.
        clusters: (k, C, F) out.
        links: (k, C, C, 2) out.
        model: (k, F) out.
        stages: (k, S, F) out.
        progress: (k, F) out.
    """
    width = stages.shape[1]
    for row in range(first, last):
        n = which[row]
        i = builds.instance[n]
        head = builds.head[n]
        clusters[row] = clusters_in[i]
        links[row] = links_in[i]
        model[row] = model_in[i]
        layers = space.layers[i]
        b = builds.micro_batch[n]
        stage = builds.stage[n]
        # A stage under construction shows what has been decided of it.
        open_stage = stage if 2 <= head <= 6 else -1
        newest = builds.cluster[n, stage] if open_stage >= 0 else builds.current[n]
        for c in range(space.clusters[i]):
            is_newest = c == newest
            free = 1.0
            if is_newest:
                free -= builds.placed[n] / space.cluster_gpus[i, c]
            elif builds.visited[n, c]:
                free = 0.0
            clusters[row, c, 7] = free
            clusters[row, c, 8] = 1.0 if builds.visited[n, c] else 0.0
            clusters[row, c, 9] = 1.0 if is_newest else 0.0
        for s in range(width):
            for f in range(stages.shape[2]):
                stages[row, s, f] = 0.0
            if s > stage or (s == stage and open_stage < 0):
                continue
            c = builds.cluster[n, s]
            stages[row, s, 0] = 1.0
            stages[row, s, 1] = (c + 1) / space.clusters[i]
            if s == stage and head <= 2:
                continue
            g = builds.gpus[n, s]
            gpus = space.gpu_options[g]
            stages[row, s, 2] = log2(gpus) / 8
            if s == stage and head <= 3:
                continue
            t = builds.tensor[n, s]
            tensor = space.tensor_options[t]
            stages[row, s, 3] = log2(tensor) / 4
            if s == stage and head <= 4:
                continue
            low, high = builds.border[n, s], builds.border[n, s + 1]
            stages[row, s, 4] = (high - low) / layers
            stages[row, s, 5] = high / layers
            samples = space.microbatch[i, b] // (gpus // tensor)
            k = 0
            while samples >> (k + 1):
                k += 1
            table = time_s[space.row[i, c], t, k]
            each = (table[high] - table[low]) / space.microbatch[i, b]
            ratio = log10(max(each / reference_stage_s[i], 1e-9))
            stages[row, s, 6] = min(max(ratio, -CLAMP), CLAMP)
            stages[row, s, 7] = builds.wire[n, s] / 3
            stages[row, s, 8] = builds.extra[n, s] / 3
        for f in range(progress.shape[1]):
            progress[row, f] = 0.0
        if head < 7:
            progress[row, head] = 1.0
        if head > 0:
            progress[row, 7] = samples_log2[i, b] / 8
            progress[row, 8] = log2(max(space.microbatches[i, b], 1)) / 10
        progress[row, 9] = (layers - builds.layer[n]) / layers
        progress[row, 10] = stage / width
        progress[row, 11] = min(builds.stage_limit[n], width) / width


def empty_observation(
    rows: int, clusters: int, stages: int, sizes: tuple[int, int, int, int]
) -> dict[str, np.ndarray]:
    """Float32 arrays for `rows` observations.

    Args:
        rows: Number of observations.
        clusters: Clusters of the widest instance.
        stages: Stages of the longest plan.
        sizes: Numbers of features of clusters, model, stages and progress.
    """
    return {
        "clusters": np.empty((rows, clusters, sizes[0]), dtype=np.float32),
        "links": np.empty((rows, clusters, clusters, 2), dtype=np.float32),
        "model": np.empty((rows, sizes[1]), dtype=np.float32),
        "stages": np.empty((rows, stages, sizes[2]), dtype=np.float32),
        "progress": np.empty((rows, sizes[3]), dtype=np.float32),
    }
