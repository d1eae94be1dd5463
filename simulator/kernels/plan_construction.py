"""Numba kernels that build plans decision by decision: masks that never strand, steps of a batch.

A plan is built stage by stage. In every state the kernels know a *witness*: a way to finish with
equal stages on the current cluster and then on unvisited ones. A choice is legal if, after it, some
witness still exists; following the present witness is always legal, so a mask is never empty.
Witnesses come from two tables made once per instance by `fill_witnesses`:

* `stage_start[c, b, r, l]`: the earliest layer from which one witness stage of cluster c reaches
  layer l, when r stages follow it (it then keeps r + 1 micro-batches in flight);
* `tail_start[u, b, j]`: the earliest layer from which at most j witness stages, on clusters of the
  set u (a bit mask) in the best order, hold the rest of the model.

What a stage keeps in flight depends on how many stages follow it, which is open while the plan is
built. So each placed stage caps the number of stages of the finished plan: with room for D
micro-batches, stage s and extra depth e, at most D + s - e stages (`stage_limit`).

All kernels stay in this one file because Numba's on-disk cache does not see changes in others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

# Heads: which decision is due.
MICRO_BATCH, CLUSTER, GPUS, TENSOR, LAYERS, WIRE, WARMUP, DONE = range(8)
HEADS = ("micro_batch", "cluster", "gpus", "tensor", "layers", "wire", "warmup", "done")

MAX_EXTRA_WARMUP = 3
UNBOUNDED = 1 << 30
"""Micro-batches in flight where memory never binds."""


class SpaceArrays(NamedTuple):
    """The spaces of a pool of instances, stacked; axes padded to the largest instance.

    Axes: I instances, C clusters, B micro-batch sizes, G stage sizes, T tensor-parallel degrees,
    D powers of two of data parallelism, R rows (model, accelerator), L + 1 layer borders, S stages.
    """

    layers: NDArray[np.int64]  # (I,)
    clusters: NDArray[np.int64]  # (I,)
    stages: NDArray[np.int64]  # (I,) most stages of a plan
    microbatches: NDArray[np.int64]  # (I, B) per iteration; 0 where there is no such size
    wires: NDArray[np.bool_]  # (I, W) payload formats that may cross clusters
    cluster_gpus: NDArray[np.int64]  # (I, C)
    gpu_options: NDArray[np.int64]  # (G,)
    tensor_options: NDArray[np.int64]  # (T,)
    legal: NDArray[np.bool_]  # (I, C, B, G, T)
    microbatch: NDArray[np.int64]  # (I, B) samples; 0 where there is no such size
    row: NDArray[np.int64]  # (I, C) row of the memory tables, -1 pads
    parameters: NDArray[np.float64]  # (R, T, L + 1) cumulative, per accelerator
    stored_bytes: NDArray[np.float64]  # (R, T, L + 1) cumulative, per sample in flight
    sample_bytes: NDArray[np.float64]  # (R, T) per sample, whatever the layers
    state_bytes: NDArray[np.float64]  # (D,) per parameter, by power of two of data parallelism
    capacity_bytes: NDArray[np.float64]  # (I, C) of one accelerator, after the reserve
    witness: NDArray[np.int64]  # (I, C, B, 2) GPU and tensor choice of the witness stages
    stage_start: NDArray[np.int16]  # (I, C, B, S, L + 1)
    tail_start: NDArray[np.int16]  # (I, 2 ** C, B, S + 1)


class Builds(NamedTuple):
    """Plans under construction; N environments."""

    instance: NDArray[np.int64]  # (N,)
    head: NDArray[np.int64]  # (N,)
    micro_batch: NDArray[np.int64]  # (N,) choice on axis B
    stage: NDArray[np.int64]  # (N,) stage being built
    layer: NDArray[np.int64]  # (N,) first layer not yet placed
    current: NDArray[np.int64]  # (N,) cluster of the last placed stage, -1 before
    placed: NDArray[np.int64]  # (N,) accelerators in use in the cluster of the newest stage
    visited: NDArray[np.bool_]  # (N, C)
    closing: NDArray[np.bool_]  # (N,) the stage being built takes all remaining layers
    stage_limit: NDArray[np.int64]  # (N,) most stages that memory of placed stages allows
    depth: NDArray[np.int64]  # (N,) micro-batches that the newest stage can keep in flight
    cluster: NDArray[np.int64]  # (N, S)
    gpus: NDArray[np.int64]  # (N, S) choice on axis G
    tensor: NDArray[np.int64]  # (N, S) choice on axis T
    border: NDArray[np.int64]  # (N, S + 1)
    wire: NDArray[np.int64]  # (N, S) format on the border before the stage
    extra: NDArray[np.int64]  # (N, S) warm-up beyond the standard


def new_builds(num_envs: int, clusters: int, stages: int) -> Builds:
    """Empty state for `num_envs` environments."""

    def integers(*shape: int) -> NDArray[np.int64]:
        return np.zeros(shape, dtype=np.int64)

    return Builds(
        instance=integers(num_envs),
        head=np.full(num_envs, DONE),
        micro_batch=integers(num_envs),
        stage=integers(num_envs),
        layer=integers(num_envs),
        current=np.full(num_envs, -1),
        placed=integers(num_envs),
        visited=np.zeros((num_envs, clusters), dtype=np.bool_),
        closing=np.zeros(num_envs, dtype=np.bool_),
        stage_limit=integers(num_envs),
        depth=integers(num_envs),
        cluster=np.full((num_envs, stages), -1),
        gpus=integers(num_envs, stages),
        tensor=integers(num_envs, stages),
        border=integers(num_envs, stages + 1),
        wire=integers(num_envs, stages),
        extra=integers(num_envs, stages),
    )


@njit(cache=True, nogil=True)
def _depth(space, i, c, b, g, t, low, high):
    """Micro-batches that fit in flight on a stage of layers [low, high); 0 if weights do not.

    The memory rule is that of `dtgym.simulator.partition`, with message buffers on both sides even
    of the first and last stage: so a stage with fewer layers never needs more.
    """
    replicas = space.gpu_options[g] // space.tensor_options[t]
    r = space.row[i, c]
    samples = space.microbatch[i, b] // replicas
    parameters = space.parameters[r, t, high] - space.parameters[r, t, low]
    flight = (space.stored_bytes[r, t, high] - space.stored_bytes[r, t, low]) * samples
    d = 0
    while replicas >> (d + 1):
        d += 1
    room = space.capacity_bytes[i, c] - parameters * space.state_bytes[d]
    room -= space.sample_bytes[r, t] * samples
    count = space.microbatches[i, b]
    if room < flight:
        return 0
    if room >= flight * count:
        return UNBOUNDED
    return np.int64(room / flight)


@njit(cache=True, nogil=True)
def _placed(space, placed, g, t):
    """Accelerators in use after a stage: tensor-parallel groups never straddle two nodes."""
    size = space.tensor_options[t]
    return (placed + size - 1) // size * size + space.gpu_options[g]


@njit(cache=True, nogil=True)
def fill_witnesses(space, i):
    """Chooses witness stages of instance i and fills `stage_start` and `tail_start`.

    The witness stage of a cluster is the choice of accelerators and tensor degree with which equal
    stages, on that cluster alone, hold the most layers; among equals the one with fewest stages.
    """
    layers = space.layers[i]
    stages = space.tail_start.shape[3] - 1
    for b in range(space.microbatches.shape[1]):
        for c in range(space.clusters[i]):
            best = 0
            space.witness[i, c, b, 0] = -1
            for g in range(len(space.gpu_options)):
                for t in range(space.legal.shape[4]):
                    if not space.legal[i, c, b, g, t]:
                        continue
                    low, used = layers, 0
                    for r in range(min(stages, space.cluster_gpus[i, c] // space.gpu_options[g])):
                        if low > 0:
                            low = _earliest(space, i, c, b, g, t, low, r + 1)
                            used += 1
                    # Stages count less than layers, and there are fewer than 1000 of them.
                    held = (layers - low) * 1000 - used
                    if low < layers and held > best:
                        best = held
                        space.witness[i, c, b, 0] = g
                        space.witness[i, c, b, 1] = t
            g, t = space.witness[i, c, b, 0], space.witness[i, c, b, 1]
            for r in range(stages):
                for high in range(layers + 1):
                    low = high
                    if g >= 0:
                        low = _earliest(space, i, c, b, g, t, high, r + 1)
                    space.stage_start[i, c, b, r, high] = low
        for subset in range(1 << space.clusters[i]):
            space.tail_start[i, subset, b, 0] = layers
            for j in range(1, stages + 1):
                # At most j stages: never later than with one fewer.
                best_start = space.tail_start[i, subset, b, j - 1]
                for c in range(space.clusters[i]):
                    if subset >> c & 1 and space.witness[i, c, b, 0] >= 0:
                        rest = subset & ~(1 << c)
                        size = space.gpu_options[space.witness[i, c, b, 0]]
                        for k in range(1, min(j, space.cluster_gpus[i, c] // size) + 1):
                            start = space.tail_start[i, rest, b, j - k]
                            for r in range(j - k, j):
                                start = space.stage_start[i, c, b, r, start]
                            best_start = min(best_start, start)
                space.tail_start[i, subset, b, j] = best_start


@njit(cache=True, nogil=True)
def _earliest(space, i, c, b, g, t, high, in_flight):
    """Earliest layer from which a stage that ends at `high` fits with `in_flight` micro-batches."""
    low = high
    while low > 0 and _depth(space, i, c, b, g, t, low - 1, high) >= in_flight:
        low -= 1
    return low


@njit(cache=True, nogil=True)
def _finish_starts(space, i, c, b, unvisited, starts):
    """Fills starts[k, j]: earliest start of j stages, at most k of them first on cluster c.

    Cluster -1 (before the first stage) has none.
    """
    stages = starts.shape[1] - 1
    for j in range(stages + 1):
        starts[0, j] = space.tail_start[i, unvisited, b, j]
    for k in range(1, stages + 1):
        starts[k, 0] = starts[0, 0]
        for j in range(1, stages + 1):
            starts[k, j] = starts[k - 1, j]
            if c >= 0:
                after = starts[k - 1, j - 1]
                starts[k, j] = min(starts[k, j], space.stage_start[i, c, b, j - 1, after])


@njit(cache=True, nogil=True)
def _own_stages(space, i, c, b, placed, starts):
    """How many more witness stages fit on cluster c; a row of `starts`."""
    if c < 0 or space.witness[i, c, b, 0] < 0:
        return 0
    tensor = space.tensor_options[space.witness[i, c, b, 1]]
    free = space.cluster_gpus[i, c] - (placed + tensor - 1) // tensor * tensor
    return max(0, min(free // space.gpu_options[space.witness[i, c, b, 0]], starts.shape[0] - 1))


@njit(cache=True, nogil=True)
def _can_finish(space, i, c, b, placed, starts, layer, most):
    """Whether a witness of at most `most` further stages holds the layers from `layer`."""
    if layer == space.layers[i]:
        return most >= 0
    if most < 1:
        return False
    row = starts[_own_stages(space, i, c, b, placed, starts)]
    return row[min(most, len(row) - 1)] <= layer


@njit(cache=True, nogil=True)
def _can_place(space, i, c, b, g, t, low, stage, limit, placed, starts):
    """Whether the stage fits and some number of layers on it leaves a way to finish.

    For a tail of j stages the fewest layers here are best: they leave the most room in flight.
    """
    layers = space.layers[i]
    after = _placed(space, placed, g, t)
    if after > space.cluster_gpus[i, c]:
        return False
    row = starts[_own_stages(space, i, c, b, after, starts)]
    for j in range(min(limit - stage, len(row))):
        high = layers if j == 0 else max(row[j], low + 1)
        if j > 0 and high >= layers:
            continue
        if _depth(space, i, c, b, g, t, low, high) > j:
            return True
    return False


@njit(cache=True, nogil=True)
def _unvisited(space, i, visited, besides):
    """Clusters not yet visited, as a bit mask, without cluster `besides`."""
    subset = 0
    for c in range(space.clusters[i]):
        if not visited[c] and c != besides:
            subset |= 1 << c
    return subset


@njit(cache=True, nogil=True)
def _mask_one(space, builds, n, mask, starts):
    """Writes the legal actions of environment n into `mask`, which holds False throughout."""
    i = builds.instance[n]
    head = builds.head[n]
    layers = space.layers[i]
    stop = space.cluster_gpus.shape[1]
    b = builds.micro_batch[n]
    stage = builds.stage[n]
    low = builds.layer[n]
    limit = builds.stage_limit[n]
    if head == MICRO_BATCH:
        everything = _unvisited(space, i, builds.visited[n], -1)
        for size in range(space.microbatches.shape[1]):
            if space.microbatches[i, size] > 0:
                mask[size] = space.tail_start[i, everything, size, space.stages[i]] == 0
        return
    if head == WIRE:
        for wire in range(space.wires.shape[1]):
            mask[wire] = space.wires[i, wire]
        return
    if head == DONE:
        # A finished plan waits for its reset; any action does nothing.
        mask[:] = True
        return
    if head == CLUSTER:
        current = builds.current[n]
        for c in range(space.clusters[i]):
            if builds.visited[n, c] and c != current:
                continue
            placed = builds.placed[n] if c == current else 0
            others = _unvisited(space, i, builds.visited[n], c)
            _finish_starts(space, i, c, b, others, starts)
            mask[c] = _any_stage(space, i, c, b, low, stage, limit, placed, starts)
        if current >= 0 and stage < limit:
            mask[stop] = _any_last(space, i, current, b, low, builds.placed[n])
        return
    c = builds.cluster[n, stage]
    placed = builds.placed[n]
    _finish_starts(space, i, c, b, _unvisited(space, i, builds.visited[n], c), starts)
    if head == GPUS:
        for g in range(len(space.gpu_options)):
            for t in range(space.legal.shape[4]):
                if space.legal[i, c, b, g, t] and _fits(space, builds, n, g, t, starts):
                    mask[g] = True
                    break
    elif head == TENSOR:
        g = builds.gpus[n, stage]
        for t in range(space.legal.shape[4]):
            if space.legal[i, c, b, g, t]:
                mask[t] = _fits(space, builds, n, g, t, starts)
    elif head == LAYERS:
        g, t = builds.gpus[n, stage], builds.tensor[n, stage]
        for high in range(low + 1, layers + 1):
            depth = _depth(space, i, c, b, g, t, low, high)
            if depth == 0:
                return
            most = min(limit, depth + stage) - stage - 1
            mask[high - low - 1] = _can_finish(space, i, c, b, placed, starts, high, most)
    elif head == WARMUP:
        before = builds.extra[n, stage - 1] if stage > 0 else MAX_EXTRA_WARMUP
        for extra in range(min(before + 1, MAX_EXTRA_WARMUP) + 1):
            most = min(limit, builds.depth[n] + stage - extra) - stage - 1
            mask[extra] = _can_finish(space, i, c, b, placed, starts, low, most)


@njit(cache=True, nogil=True)
def _fits(space, builds, n, g, t, starts):
    """Whether the stage being built can go on with this choice of GPUs and tensor degree."""
    i, stage, low = builds.instance[n], builds.stage[n], builds.layer[n]
    c, b, placed = builds.cluster[n, stage], builds.micro_batch[n], builds.placed[n]
    if builds.closing[n]:
        if _placed(space, placed, g, t) > space.cluster_gpus[i, c]:
            return False
        return _depth(space, i, c, b, g, t, low, space.layers[i]) > 0
    return _can_place(space, i, c, b, g, t, low, stage, builds.stage_limit[n], placed, starts)


@njit(cache=True, nogil=True)
def _any_stage(space, i, c, b, low, stage, limit, placed, starts):
    """Whether any stage on cluster c leaves a way to finish."""
    for g in range(len(space.gpu_options) - 1, -1, -1):
        for t in range(space.legal.shape[4] - 1, -1, -1):
            if space.legal[i, c, b, g, t] and _can_place(
                space, i, c, b, g, t, low, stage, limit, placed, starts
            ):
                return True
    return False


@njit(cache=True, nogil=True)
def _any_last(space, i, c, b, low, placed):
    """Whether any single stage on cluster c holds all layers from `low`."""
    for g in range(len(space.gpu_options) - 1, -1, -1):
        for t in range(space.legal.shape[4] - 1, -1, -1):
            if (
                space.legal[i, c, b, g, t]
                and _placed(space, placed, g, t) <= space.cluster_gpus[i, c]
                and _depth(space, i, c, b, g, t, low, space.layers[i]) > 0
            ):
                return True
    return False


@njit(cache=True, nogil=True)
def masks(space, builds, first, last, mask):
    """Legal actions of environments `first` to `last` - 1, into `mask` (N, A), all False before."""
    size = space.tail_start.shape[3]
    starts = np.zeros((size, size), np.int64)
    for n in range(first, last):
        _mask_one(space, builds, n, mask[n], starts)


@njit(cache=True, nogil=True)
def begin(space, builds, which, instances):
    """Empties the plans of the environments `which`."""
    for k in range(len(which)):
        n = which[k]
        i = instances[k]
        builds.instance[n] = i
        builds.head[n] = MICRO_BATCH
        builds.micro_batch[n] = 0
        builds.stage[n] = 0
        builds.layer[n] = 0
        builds.current[n] = -1
        builds.placed[n] = 0
        builds.visited[n] = False
        builds.closing[n] = False
        builds.stage_limit[n] = space.stages[i]
        builds.depth[n] = 0
        builds.cluster[n] = -1
        builds.gpus[n] = 0
        builds.tensor[n] = 0
        builds.border[n] = 0
        builds.wire[n] = 0
        builds.extra[n] = 0


@njit(cache=True, nogil=True)
def advance(space, builds, actions, legal):
    """Takes the decision that is due in every environment; forbidden ones change nothing."""
    for n in range(len(actions)):
        if not legal[n] or builds.head[n] == DONE:
            continue
        _advance_one(space, builds, n, actions[n])


@njit(cache=True, nogil=True)
def _advance_one(space, builds, n, action):
    i = builds.instance[n]
    head = builds.head[n]
    stage = builds.stage[n]
    layers = space.layers[i]
    if head == MICRO_BATCH:
        builds.micro_batch[n] = action
        builds.head[n] = CLUSTER
    elif head == CLUSTER:
        builds.closing[n] = action == space.cluster_gpus.shape[1]
        c = builds.current[n] if builds.closing[n] else action
        builds.cluster[n, stage] = c
        if c != builds.current[n]:
            builds.placed[n] = 0
            builds.visited[n, c] = True
        builds.head[n] = GPUS
    elif head == GPUS:
        builds.gpus[n, stage] = action
        builds.head[n] = TENSOR
    elif head == TENSOR:
        builds.tensor[n, stage] = action
        builds.placed[n] = _placed(space, builds.placed[n], builds.gpus[n, stage], action)
        builds.head[n] = LAYERS
        if builds.closing[n]:
            _place(space, builds, n, layers)
    elif head == LAYERS:
        _place(space, builds, n, builds.layer[n] + action + 1)
    elif head == WIRE:
        builds.wire[n, stage] = action
        builds.head[n] = DONE if builds.layer[n] == layers else WARMUP
        if builds.head[n] == DONE:
            builds.stage[n] = stage + 1
    elif head == WARMUP:
        builds.extra[n, stage] = action
        builds.stage_limit[n] = min(builds.stage_limit[n], builds.depth[n] + stage - action)
        builds.current[n] = builds.cluster[n, stage]
        builds.stage[n] = stage + 1
        builds.head[n] = CLUSTER


@njit(cache=True, nogil=True)
def _place(space, builds, n, high):
    """Gives layers up to `high` to the stage and moves on to the next head."""
    i = builds.instance[n]
    stage = builds.stage[n]
    c = builds.cluster[n, stage]
    builds.depth[n] = _depth(
        space, i, c, builds.micro_batch[n], builds.gpus[n, stage], builds.tensor[n, stage],
        builds.layer[n], high,
    )  # fmt: skip
    builds.layer[n] = high
    builds.border[n, stage + 1] = high
    if builds.current[n] >= 0 and c != builds.current[n]:
        builds.head[n] = WIRE
    elif high == space.layers[i]:
        builds.head[n] = DONE
        builds.stage[n] = stage + 1
    else:
        builds.head[n] = WARMUP


# Moves on a whole plan, as (kind, direction); the place is a stage, or the stage behind a border.
MOVE_BORDER, MOVE_TENSOR, MOVE_GPUS, MOVE_WIRE, MOVE_WARMUP, MOVE_MICRO_BATCH, MOVE_STOP = range(7)


def move_table(stages: int) -> NDArray[np.int64]:
    """Every move on plans of up to `stages` stages: (moves, 3) kind, place, direction.

    The last move stops.
    """
    rows = [
        (kind, place, direction)
        for kind in (MOVE_BORDER, MOVE_TENSOR, MOVE_GPUS, MOVE_WIRE, MOVE_WARMUP)
        for place in range(int(kind in (MOVE_BORDER, MOVE_WIRE)), stages)
        for direction in (-1, 1)
    ]
    rows += [(MOVE_MICRO_BATCH, 0, -1), (MOVE_MICRO_BATCH, 0, 1), (MOVE_STOP, 0, 0)]
    return np.array(rows, dtype=np.int64)


@njit(cache=True, nogil=True)
def is_feasible(space, builds, n):
    """Whether a whole plan keeps every rule of the evaluator (memory by the rule of `_depth`)."""
    i, b, stages = builds.instance[n], builds.micro_batch[n], builds.stage[n]
    if b < 0 or b >= space.microbatches.shape[1] or space.microbatches[i, b] == 0:
        return False
    placed = 0
    for s in range(stages):
        c, g, t = builds.cluster[n, s], builds.gpus[n, s], builds.tensor[n, s]
        extra = builds.extra[n, s]
        low, high = builds.border[n, s], builds.border[n, s + 1]
        if not 0 <= g < len(space.gpu_options) or not 0 <= t < space.legal.shape[4]:
            return False
        if high <= low or extra < 0 or extra > MAX_EXTRA_WARMUP:
            return False
        if s > 0 and extra > builds.extra[n, s - 1] + 1:
            return False
        if s > 0 and c != builds.cluster[n, s - 1]:
            placed = 0
            wire = builds.wire[n, s]
            if wire < 0 or wire >= space.wires.shape[1] or not space.wires[i, wire]:
                return False
        if not space.legal[i, c, b, g, t]:
            return False
        placed = _placed(space, placed, g, t)
        if placed > space.cluster_gpus[i, c]:
            return False
        wanted = min(stages - s + extra, space.microbatches[i, b])
        if _depth(space, i, c, b, g, t, low, high) < wanted:
            return False
    return True


@njit(cache=True, nogil=True)
def _shift(space, builds, n, kind, place, direction):
    """Carries out a move, legal or not; False where it changes nothing that is read."""
    stages = builds.stage[n]
    if kind == MOVE_MICRO_BATCH:
        builds.micro_batch[n] += direction
        return True
    if place >= stages:
        return False
    if kind == MOVE_BORDER:
        builds.border[n, place] += direction
    elif kind == MOVE_TENSOR:
        builds.tensor[n, place] += direction
    elif kind == MOVE_GPUS:
        builds.gpus[n, place] += direction
    elif kind == MOVE_WARMUP:
        builds.extra[n, place] += direction
        return place < stages - 1
    elif kind == MOVE_WIRE:
        i = builds.instance[n]
        wire = builds.wire[n, place] + direction
        while 0 <= wire < space.wires.shape[1] and not space.wires[i, wire]:
            wire += direction
        builds.wire[n, place] = wire
        return builds.cluster[n, place] != builds.cluster[n, place - 1]
    return True


@njit(cache=True, nogil=True)
def _undo(builds, n, saved, wire, kind, place, direction):
    """Takes back what `_shift` did."""
    if kind == MOVE_MICRO_BATCH:
        builds.micro_batch[n] -= direction
    elif place < saved:
        if kind == MOVE_BORDER:
            builds.border[n, place] -= direction
        elif kind == MOVE_TENSOR:
            builds.tensor[n, place] -= direction
        elif kind == MOVE_GPUS:
            builds.gpus[n, place] -= direction
        elif kind == MOVE_WARMUP:
            builds.extra[n, place] -= direction
        elif kind == MOVE_WIRE:
            builds.wire[n, place] = wire


@njit(cache=True, nogil=True)
def move_masks(space, builds, moves, first, last, mask):
    """Moves that lead to a feasible plan, into `mask` (N, moves); stopping is always legal."""
    for n in range(first, last):
        stages = builds.stage[n]
        for m in range(len(moves)):
            kind, place, direction = moves[m, 0], moves[m, 1], moves[m, 2]
            if kind == MOVE_STOP:
                mask[n, m] = True
                continue
            wire = builds.wire[n, place]
            changed = _shift(space, builds, n, kind, place, direction)
            mask[n, m] = changed and is_feasible(space, builds, n)
            _undo(builds, n, stages, wire, kind, place, direction)


@njit(cache=True, nogil=True)
def move(space, builds, moves, actions, legal):
    """Carries out one move in every environment; forbidden ones change nothing."""
    for n in range(len(actions)):
        kind, place, direction = moves[actions[n], 0], moves[actions[n], 1], moves[actions[n], 2]
        if legal[n] and kind != MOVE_STOP:
            _shift(space, builds, n, kind, place, direction)
