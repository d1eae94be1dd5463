"""Numba kernels that build plans decision by decision: masks that never strand, steps of a batch.

A plan is built stage by stage. In every state the kernels know a *witness*: a way to finish with
equal stages on the current cluster and then on unvisited ones. A choice is legal if, after it, some
witness still exists; following the present witness is always legal, so a mask is never empty.
What a choice may be comes from four tables made once per instance by `fill_tables`:

* `farthest[c, b, g, t, f, l]`: up to which layer border every stage from border l fits if it keeps
  f + 1 micro-batches in flight;
* `closes[c, b, g, t, l]`: whether the last stage may begin at border l. It has no message buffer
  behind it, so that it may fit where a shorter stage does not;
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
    D powers of two of data parallelism, R rows (model, accelerator), L + 1 layer borders, S stages,
    F = S + `MAX_EXTRA_WARMUP` micro-batches in flight.
    """

    layers: NDArray[np.int64]  # (I,)
    clusters: NDArray[np.int64]  # (I,)
    stages: NDArray[np.int64]  # (I,) most stages of a plan
    microbatches: NDArray[np.int64]  # (I, B) per iteration; 0 where there is no such size
    wires: NDArray[np.bool_]  # (I, W) payload formats that may cross clusters
    cluster_gpus: NDArray[np.int64]  # (I, C)
    gpu_options: NDArray[np.int64]  # (G,) powers of two: option g is 2 ** g
    tensor_options: NDArray[np.int64]  # (T,); only powers of two are ever legal
    legal: NDArray[np.bool_]  # (I, C, B, G, T)
    microbatch: NDArray[np.int64]  # (I, B) samples; 0 where there is no such size
    row: NDArray[np.int64]  # (I, C) row of the memory tables, -1 pads
    parameters: NDArray[np.float64]  # (R, T, L + 1) cumulative, per accelerator
    stored_bytes: NDArray[np.float64]  # (R, T, L + 1) cumulative, per sample in flight
    sample_bytes: NDArray[np.float64]  # (R, T) per sample, whatever the layers
    border_bytes: NDArray[np.float64]  # (R, L + 1) message buffers per sample; 0 at both ends
    state_bytes: NDArray[np.float64]  # (D,) per parameter, by power of two of data parallelism
    capacity_bytes: NDArray[np.float64]  # (I, C) of one accelerator, after the reserve
    witness: NDArray[np.int64]  # (I, C, B, 2) GPU and tensor choice of the witness stages
    farthest: NDArray[np.int16]  # (I, C, B, G, T, F, L + 1)
    closes: NDArray[np.bool_]  # (I, C, B, G, T, L + 1)
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

    The memory rule is that of `dtgym.simulator.partition`.
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
    borders = space.border_bytes[r, low] + space.border_bytes[r, high]
    room -= (space.sample_bytes[r, t] + borders) * samples
    count = space.microbatches[i, b]
    if room < flight:
        return 0
    if room >= flight * count:
        return UNBOUNDED
    return np.int64(room / flight)


@njit(cache=True, nogil=True)
def fill_tables(space, i):
    """Fills `farthest`, chooses witness stages of instance i, fills `stage_start`, `tail_start`.

    The witness stage of a cluster is the choice of accelerators and tensor degree with which equal
    stages, on that cluster alone, hold the most layers; among equals the one with fewest stages.
    """
    layers = space.layers[i]
    stages = space.tail_start.shape[3] - 1
    for c in range(space.clusters[i]):
        for b in range(space.microbatches.shape[1]):
            for g in range(len(space.gpu_options)):
                for t in range(space.legal.shape[4]):
                    if space.legal[i, c, b, g, t]:
                        _fill_farthest(space, i, c, b, g, t)
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
def _fill_farthest(space, i, c, b, g, t):
    """Both ends of the longest fitting stage move forward: two pointers per depth.

    The first layer stands alone: in front of it there is no message buffer.
    """
    layers = space.layers[i]
    for f in range(space.farthest.shape[5]):
        high = 0
        for low in range(layers + 1):
            high = low if low <= 1 else max(high, low)
            while high < layers and _depth(space, i, c, b, g, t, low, high + 1) > f:
                high += 1
            space.farthest[i, c, b, g, t, f, low] = high
    for low in range(layers):
        space.closes[i, c, b, g, t, low] = _depth(space, i, c, b, g, t, low, layers) > 0


@njit(cache=True, nogil=True)
def _earliest(space, i, c, b, g, t, high, in_flight):
    """Earliest layer from which a stage that ends at `high` fits with `in_flight` micro-batches."""
    low = high
    if high == space.layers[i] and in_flight == 1:
        while low > 0 and space.closes[i, c, b, g, t, low - 1]:
            low -= 1
        return low
    while low > 0 and space.farthest[i, c, b, g, t, in_flight - 1, low - 1] >= high:
        low -= 1
    return low


@njit(inline="always")
def _aligned(placed, size):
    """`placed` rounded up to a multiple of `size`, a power of two."""
    return (placed + size - 1) & ~(size - 1)


@njit(cache=True, nogil=True)
def _finish_starts(stage_start, tail_start, starts):
    """Fills starts[k, j]: earliest start of at most j stages, the first k at most on one cluster.

    Args:
        stage_start: (S, L + 1) of that cluster and micro-batch.
        tail_start: (S + 1,) of the unvisited clusters.
        starts: (S + 1, S + 1) out.
    """
    stages = len(tail_start) - 1
    for j in range(stages + 1):
        starts[0, j] = tail_start[j]
    for k in range(1, stages + 1):
        starts[k, 0] = starts[0, 0]
        for j in range(1, stages + 1):
            here = stage_start[j - 1, starts[k - 1, j - 1]]
            # At most j stages: fewer may reach further, because they keep less in flight.
            starts[k, j] = min(starts[k - 1, j], starts[k, j - 1], here)


@njit(cache=True, nogil=True)
def _can_place(farthest, closes, row, low, layers, most):
    """Whether some number of layers on a stage leaves a way to finish in `most` stages with it.

    For a tail of j stages the fewest layers here are best: they leave the most room in flight.

    Args:
        farthest: (F, L + 1) of the stage's choice.
        closes: (L + 1,) of the stage's choice.
        row: (S + 1,) earliest starts of j stages behind it.
        low: Its first layer.
        layers: Layers of the model.
        most: Stages that may still come, this one included.
    """
    if most < 1:
        return False
    if closes[low]:
        return True
    for j in range(1, min(most, len(row))):
        high = max(row[j], low + 1)
        if high < layers and farthest[j, low] >= high:
            return True
    return False


@njit(cache=True, nogil=True)
def masks(space, builds, rows, first, last, mask):
    """Legal actions of environments `rows[first:last]`, into `mask` (k, A), all False before."""
    # Arrays are taken out of their tuples once: handing tuples on costs more than the work.
    farthest, closes, legal = space.farthest, space.closes, space.legal
    stage_start, tail_start = space.stage_start, space.tail_start
    microbatches, wires, cluster_gpus = space.microbatches, space.wires, space.cluster_gpus
    tensor_options, witness = space.tensor_options, space.witness
    gpu_choices, tensor_choices = legal.shape[3], legal.shape[4]
    stop = cluster_gpus.shape[1]
    size = tail_start.shape[3]
    starts = np.zeros((size, size), np.int64)
    for k in range(first, last):
        n = rows[k]
        i = builds.instance[n]
        head = builds.head[n]
        layers = space.layers[i]
        b = builds.micro_batch[n]
        stage = builds.stage[n]
        low = builds.layer[n]
        limit = builds.stage_limit[n]
        placed = builds.placed[n]
        if head == DONE:
            # A finished plan waits for its reset; any action does nothing.
            mask[k] = True
            continue
        if head == WIRE:
            for wire in range(wires.shape[1]):
                mask[k, wire] = wires[i, wire]
            continue
        unvisited = 0
        for c in range(space.clusters[i]):
            if not builds.visited[n, c]:
                unvisited |= 1 << c
        if head == MICRO_BATCH:
            for choice in range(microbatches.shape[1]):
                if microbatches[i, choice] > 0:
                    mask[k, choice] = tail_start[i, unvisited, choice, space.stages[i]] == 0
            continue
        current = builds.current[n]
        if head == CLUSTER:
            begin_c, end_c = 0, space.clusters[i]
        else:
            begin_c = builds.cluster[n, stage]
            end_c = begin_c + 1
        for c in range(begin_c, end_c):
            if head == CLUSTER and builds.visited[n, c] and c != current:
                continue
            others = unvisited & ~(1 << c)
            _finish_starts(stage_start[i, c, b], tail_start[i, others, b], starts)
            reach, ends = farthest[i, c, b], closes[i, c, b]
            allowed = legal[i, c, b]
            gpus = cluster_gpus[i, c]
            before = placed if c == current or head != CLUSTER else 0
            witness_gpus = witness[i, c, b, 0]
            witness_tensor = 1
            if witness_gpus >= 0:
                witness_tensor = tensor_options[witness[i, c, b, 1]]
            if head in (LAYERS, WARMUP):
                own = 0
                if witness_gpus >= 0:
                    own = max(gpus - _aligned(before, witness_tensor), 0) >> witness_gpus
                row = starts[min(own, size - 1)]
                if head == WARMUP:
                    shallow = builds.extra[n, stage - 1] + 1 if stage > 0 else MAX_EXTRA_WARMUP
                    for extra in range(min(shallow, MAX_EXTRA_WARMUP) + 1):
                        further = min(limit, builds.depth[n] + stage - extra) - stage - 1
                        further = min(further, size - 1)
                        mask[k, extra] = further > 0 and row[further] <= low
                    continue
                g, t = builds.gpus[n, stage], builds.tensor[n, stage]
                here = reach[g, t]
                mask[k, layers - low - 1] = ends[g, t, low] and stage < limit
                depth = len(here)
                for high in range(low + 1, min(here[0, low] + 1, layers)):
                    while here[depth - 1, low] < high:
                        depth -= 1
                    further = min(size - 1, min(limit, depth + stage) - stage - 1)
                    mask[k, high - low - 1] = further > 0 and row[further] <= high
                continue
            # Heads cluster, GPUs and tensor ask for stages that fit and leave a way to finish.
            closing = builds.closing[n] and head != CLUSTER
            found = False
            for choice in range(gpu_choices):
                g = gpu_choices - 1 - choice if head == CLUSTER else choice
                if 1 << g > gpus - before or found:
                    continue
                if head == TENSOR and g != builds.gpus[n, stage]:
                    continue
                for t in range(tensor_choices - 1, -1, -1):
                    if not allowed[g, t]:
                        continue
                    after = _aligned(before, tensor_options[t]) + (1 << g)
                    if after > gpus:
                        continue
                    if closing:
                        good = ends[g, t, low]
                    else:
                        own = 0
                        if witness_gpus >= 0:
                            own = max(gpus - _aligned(after, witness_tensor), 0) >> witness_gpus
                        good = _can_place(
                            reach[g, t],
                            ends[g, t],
                            starts[min(own, size - 1)],
                            low,
                            layers,
                            limit - stage,
                        )
                    if good and head == TENSOR:
                        mask[k, t] = True
                    elif good and head == GPUS:
                        mask[k, g] = True
                        break
                    elif good:
                        mask[k, c] = True
                        found = True
                        break
        if head == CLUSTER and current >= 0 and stage < limit:
            gpus = cluster_gpus[i, current]
            for g in range(gpu_choices - 1, -1, -1):
                for t in range(tensor_choices - 1, -1, -1):
                    if (
                        legal[i, current, b, g, t]
                        and _aligned(placed, tensor_options[t]) + (1 << g) <= gpus
                        and closes[i, current, b, g, t, low]
                    ):
                        mask[k, stop] = True


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
    instance, heads, layer = builds.instance, builds.head, builds.layer
    clusters, gpus, tensor = builds.cluster, builds.gpus, builds.tensor
    farthest, stop = space.farthest, space.cluster_gpus.shape[1]
    for n in range(len(actions)):
        head = heads[n]
        if not legal[n] or head == DONE:
            continue
        i = instance[n]
        stage = builds.stage[n]
        layers = space.layers[i]
        action = actions[n]
        high = -1
        if head == MICRO_BATCH:
            builds.micro_batch[n] = action
            heads[n] = CLUSTER
        elif head == CLUSTER:
            builds.closing[n] = action == stop
            c = builds.current[n] if action == stop else action
            clusters[n, stage] = c
            if c != builds.current[n]:
                builds.placed[n] = 0
                builds.visited[n, c] = True
            heads[n] = GPUS
        elif head == GPUS:
            gpus[n, stage] = action
            heads[n] = TENSOR
        elif head == TENSOR:
            tensor[n, stage] = action
            size = space.tensor_options[action]
            builds.placed[n] = _aligned(builds.placed[n], size) + (1 << gpus[n, stage])
            heads[n] = LAYERS
            if builds.closing[n]:
                high = layers
        elif head == LAYERS:
            high = layer[n] + action + 1
        elif head == WIRE:
            builds.wire[n, stage] = action
            heads[n] = WARMUP
            if layer[n] == layers:
                heads[n] = DONE
                builds.stage[n] = stage + 1
        else:
            builds.extra[n, stage] = action
            limit = builds.depth[n] + stage - action
            builds.stage_limit[n] = min(builds.stage_limit[n], limit)
            builds.current[n] = clusters[n, stage]
            builds.stage[n] = stage + 1
            heads[n] = CLUSTER
        if high < 0:
            continue
        c, b = clusters[n, stage], builds.micro_batch[n]
        low = layer[n]
        # What the last stage keeps in flight limits nobody.
        depth = farthest.shape[5]
        while (
            high < layers
            and farthest[i, c, b, gpus[n, stage], tensor[n, stage], depth - 1, low] < high
        ):
            depth -= 1
        builds.depth[n] = depth
        layer[n] = high
        builds.border[n, stage + 1] = high
        if builds.current[n] >= 0 and c != builds.current[n]:
            heads[n] = WIRE
        elif high == layers:
            heads[n] = DONE
            builds.stage[n] = stage + 1
        else:
            heads[n] = WARMUP


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


@njit(inline="always")
def _keeps_rules(
    b, stages, cluster, gpus, tensor, border, wire, extra, microbatches, legal, farthest, closes,
    tensor_options, cluster_gpus, wires, begin, end,
):  # fmt: skip
    """Whether stages `begin` to `end` - 1 keep every rule, and all stages together their clusters.

    The arrays are those of one plan and one instance. Memory is judged by `farthest`. A move
    changes few stages: the others need not be asked again.
    """
    if b < 0 or b >= len(microbatches) or microbatches[b] == 0:
        return False
    placed = 0
    for s in range(stages):
        c, g, t = cluster[s], gpus[s], tensor[s]
        if not 0 <= g < legal.shape[2] or not 0 <= t < legal.shape[3]:
            return False
        crosses = s > 0 and c != cluster[s - 1]
        if crosses:
            placed = 0
        placed = _aligned(placed, tensor_options[t]) + (1 << g)
        if placed > cluster_gpus[c]:
            return False
        if s < begin or s >= end:
            continue
        low, high, deeper = border[s], border[s + 1], extra[s]
        if high <= low or deeper < 0 or deeper > MAX_EXTRA_WARMUP:
            return False
        if s > 0 and deeper > extra[s - 1] + 1:
            return False
        if crosses and (wire[s] < 0 or wire[s] >= len(wires) or not wires[wire[s]]):
            return False
        if not legal[c, b, g, t]:
            return False
        if s == stages - 1 and deeper == 0:
            if not closes[c, b, g, t, low]:
                return False
        elif farthest[c, b, g, t, stages - s + deeper - 1, low] < high:
            return False
    return True


@njit(inline="always")
def _next_wire(wires, wire, direction):
    """The next allowed format in a direction; out of range where there is none."""
    wire += direction
    while 0 <= wire < len(wires) and not wires[wire]:
        wire += direction
    return wire


@njit(cache=True, nogil=True)
def move_masks(space, builds, moves, rows, first, last, mask):
    """Moves that lead to a feasible plan, into `mask` (k, moves); stopping is always legal.

    The plans themselves must be feasible.
    """
    for k in range(first, last):
        n = rows[k]
        i = builds.instance[n]
        stages = builds.stage[n]
        # Arrays are taken out of their tuples once: handing tuples on costs more than the work.
        cluster, gpus, tensor = builds.cluster[n], builds.gpus[n], builds.tensor[n]
        border, wire, extra = builds.border[n], builds.wire[n], builds.extra[n]
        microbatches, legal = space.microbatches[i], space.legal[i]
        farthest, closes = space.farthest[i], space.closes[i]
        cluster_gpus, wires, degrees = space.cluster_gpus[i], space.wires[i], space.tensor_options
        for m in range(len(moves)):
            kind, place, direction = moves[m, 0], moves[m, 1], moves[m, 2]
            if kind == MOVE_STOP:
                mask[k, m] = True
                continue
            if place >= stages:
                continue
            b = builds.micro_batch[n]
            begin, end = place, place + 1
            old_wire = wire[place]
            changed = True
            if kind == MOVE_MICRO_BATCH:
                b += direction
                begin, end = 0, stages
            elif kind == MOVE_BORDER:
                border[place] += direction
                begin = place - 1
            elif kind == MOVE_TENSOR:
                tensor[place] += direction
            elif kind == MOVE_GPUS:
                gpus[place] += direction
            elif kind == MOVE_WARMUP:
                extra[place] += direction
                changed = place < stages - 1
                end = place + 2
            else:
                wire[place] = _next_wire(wires, old_wire, direction)
                changed = cluster[place] != cluster[place - 1]
            if changed:
                mask[k, m] = _keeps_rules(
                    b, stages, cluster, gpus, tensor, border, wire, extra, microbatches, legal,
                    farthest, closes, degrees, cluster_gpus, wires, begin, end,
                )  # fmt: skip
            if kind == MOVE_BORDER:
                border[place] -= direction
            elif kind == MOVE_TENSOR:
                tensor[place] -= direction
            elif kind == MOVE_GPUS:
                gpus[place] -= direction
            elif kind == MOVE_WARMUP:
                extra[place] -= direction
            wire[place] = old_wire


@njit(cache=True, nogil=True)
def move(space, builds, moves, actions, legal):
    """Carries out one move in every environment; forbidden ones change nothing."""
    for n in range(len(actions)):
        kind, place, direction = moves[actions[n], 0], moves[actions[n], 1], moves[actions[n], 2]
        if not legal[n]:
            continue
        if kind == MOVE_MICRO_BATCH:
            builds.micro_batch[n] += direction
        elif kind == MOVE_BORDER:
            builds.border[n, place] += direction
        elif kind == MOVE_TENSOR:
            builds.tensor[n, place] += direction
        elif kind == MOVE_GPUS:
            builds.gpus[n, place] += direction
        elif kind == MOVE_WARMUP:
            builds.extra[n, place] += direction
        elif kind == MOVE_WIRE:
            wires = space.wires[builds.instance[n]]
            builds.wire[n, place] = _next_wire(wires, builds.wire[n, place], direction)
