"""Numba kernel of the partition evaluator: what the stages of each plan cost.

One loop over plans, a stage at a time: check the rules, look up prefix sums, add transfers,
synchronisation, update and memory. Meaning and units of the quantities are those of
`partition.Problem`, `partition.Plans` and `partition.StageCosts`; arrays are packed, because every
array that a Numba function takes costs compile time.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.floating[Any]]
Integers: TypeAlias = NDArray[np.integer[Any]]

FEASIBLE = 0
LAYERS = 1
MICROBATCH = 2
CLUSTER = 3
GPUS = 4
TENSOR = 5
REPLICAS = 6
PROFILE = 7
LINK = 8
WARMUP = 9
CODE = 10
SPAN = 11
MEMORY = 12

SINGLE = 0
REPLICA_FLOWS = 1
RANK_FLOWS = 2

# Columns of the packed arrays.
CLUSTER_COLUMNS = (
    "row",
    "layers",
    "nodes",
    "gpus_per_node",
    "memory_bytes",
    "memory_bytes_per_s",
    "intra_bytes_per_s",
    "inter_bytes_per_s",
    "network_bytes_per_s",
    "intra_latency_s",
    "inter_latency_s",
    "gpu_usd_per_hour",
)
ROW, TOP, NODES, PER_NODE, CAPACITY, MEMORY_RATE = range(6)
INTRA_RATE, INTER_RATE, NODE_RATE, INTRA_LATENCY, INTER_LATENCY, PRICE = range(6, 12)
WAN_RATE, WAN_DELAY, WAN_PRICE = range(3)
FORWARD, BACKWARD, SELECTIVE, UPDATE = range(4)
PARAMETERS, OUTPUT, STORED = range(3)
OUT_FORWARD, OUT_BACKWARD, OUT_SYNCHRONISE, OUT_UPDATE, OUT_MEMORY, OUT_SLACK = range(6)
OUT_ACTIVATION, OUT_GRADIENT = range(2)
OUT_USD_PER_S, OUT_TRAFFIC = range(2)


@njit(cache=True, nogil=True, error_model="numpy")
def stage_costs(
    times: Floats,
    amounts: Floats,
    largest_bytes: Floats,
    tensor_index: Integers,
    sample_low: Integers,
    sample_part: Floats,
    clusters: Floats,
    wan: Floats,
    global_batch: Integers,
    instance: Integers,
    stages: Integers,
    cluster: Integers,
    gpus: Integers,
    tp: Integers,
    bound: Integers,
    microbatch: Integers,
    wire: Integers,
    warmup: Integers,
    recompute: Integers,
    zero: Integers,
    spread: Integers,
    settings: Floats,
    wire_bytes: Floats,
    first: int,
    last: int,
    out: Floats,
    borders: Floats,
    money: Floats,
    microbatches: Integers,
    reason: Integers,
    reason_stage: Integers,
) -> None:
    """Fills the costs of plans `first` to `last` - 1.

    Args:
        times: (rows, tensor sizes, samples, layers + 1, 4) prefix sums of forward, backward,
            selective recompute and update.
        amounts: (rows, tensor sizes, layers + 1, 5) prefix sums of parameters, output elements of
            the border, prefix sums of stored bytes by recompute.
        largest_bytes: (rows, tensor sizes) stored bytes of the largest layer.
        tensor_index: Index of each tensor-parallel size, -1 where there is none.
        sample_low: Lower index of each number of samples, -1 where there is none.
        sample_part: Part of the way to the next index.
        clusters: (instances, clusters, columns), see `CLUSTER_COLUMNS`.
        wan: (instances, clusters, clusters, 3) bandwidth, delay, price.
        global_batch: (instances,).
        instance: (plans,); this and the following as in `Plans`.
        stages: (plans,).
        cluster: (plans, stages).
        gpus: (plans, stages).
        tp: (plans, stages).
        bound: (plans, stages + 1).
        microbatch: (plans,).
        wire: (plans, stages - 1).
        warmup: (plans, stages).
        recompute: (plans, stages).
        zero: (plans, stages).
        spread: (plans, stages, clusters), or no plans where no stage spans clusters.
        settings: Flows, compute wire, bytes of weights, gradients, optimizer, synchronised
            gradients, reserve, border buffers, memory fraction, spanning, pipes.
        wire_bytes: Bytes per element by wire.
        first: First plan of this call.
        last: Behind the last plan of this call.
        out: (6, plans, stages) out, zeros: forward, backward, synchronise, update, memory, slack.
        borders: (2, plans, stages - 1) out, zeros: activation, gradient.
        money: (2, plans) out, zeros: USD per s, USD of traffic.
        microbatches: (plans,) out.
        reason: (plans,) out.
        reason_stage: (plans,) out.
    """
    flows = int(settings[0])
    compute_wire = int(settings[1])
    weight, gradient, optimizer, synchronised = settings[2], settings[3], settings[4], settings[5]
    reserve, buffers, fill, spanning = settings[6], settings[7], settings[8], settings[9]
    shared = settings[10] == 0.0
    count = clusters.shape[1]
    width = cluster.shape[1]
    spans = spread.shape[0] > 0
    placed = np.zeros(count, np.int64)
    share = np.zeros((width, count), np.int64)
    first_node = np.zeros((width, count), np.int64)
    last_node = np.zeros((width, count), np.int64)
    # Whole divisions are the slowest thing here: each is done once and kept.
    replicas_of = np.zeros(width, np.int64)
    samples_of = np.zeros(width, np.int64)

    for plan in range(first, last):
        i = instance[plan]
        used = stages[plan]
        batch = microbatch[plan]
        why = FEASIBLE
        at = -1
        top = 0
        for c in range(count):
            placed[c] = 0
            if clusters[i, c, ROW] >= 0:
                top = int(clusters[i, c, TOP])
        if bound[plan, 0] != 0 or bound[plan, used] != top:
            why = LAYERS
        if why == FEASIBLE and (batch < 1 or global_batch[i] % batch != 0):
            why = MICROBATCH
        m = global_batch[i] // batch if why == FEASIBLE else 1
        microbatches[plan] = m
        usd = 0.0
        traffic = 0.0

        # Structure: layers, codes, warm-up, placement on nodes.
        seen = 0
        for s in range(used):
            if why != FEASIBLE:
                break
            home = cluster[plan, s]
            n = gpus[plan, s]
            t = tp[plan, s]
            at = s
            if bound[plan, s + 1] <= bound[plan, s]:
                why = LAYERS
                break
            if home < 0 or home >= count or clusters[i, home, ROW] < 0:
                why = CLUSTER
                break
            # On a shared pipe a second crossing would have to queue behind the first.
            if shared and (s == 0 or home != cluster[plan, s - 1]) and (seen >> home) & 1:
                why = CLUSTER
                break
            seen |= 1 << home
            if n < 1:
                why = GPUS
                break
            replicas = n // max(t, 1)
            if t < 1 or replicas * t != n:
                why = TENSOR
                break
            samples = batch // replicas
            if samples * replicas != batch:
                why = REPLICAS
                break
            replicas_of[s] = replicas
            samples_of[s] = samples
            depth = min(warmup[plan, s], m - 1)
            if depth < 0 or (s > 0 and depth > min(warmup[plan, s - 1], m - 1)):
                why = WARMUP
                break
            if not (0 <= recompute[plan, s] <= 2 and 0 <= zero[plan, s] <= 3):
                why = CODE
                break
            if s < used - 1 and not 0 <= wire[plan, s] < wire_bytes.size:
                why = CODE
                break
            total = 0
            members = 0
            for c in range(0 if spans else home, count if spans else home + 1):
                part = spread[plan, s, c] if spans else n
                share[s, c] = part
                if part == 0:
                    continue
                total += part
                members += 1
                per_node = int(clusters[i, c, PER_NODE])
                if part < 0 or clusters[i, c, ROW] < 0:
                    why = GPUS
                elif (spans and part % t != 0) or per_node % t != 0:
                    why = TENSOR
                else:
                    # A tensor-parallel group never straddles two nodes.
                    begin = (placed[c] + t - 1) // t * t
                    placed[c] = begin + part
                    if placed[c] > clusters[i, c, NODES] * per_node:
                        why = GPUS
                    first_node[s, c] = begin // per_node
                    last_node[s, c] = (begin + part - 1) // per_node
                    usd += part * clusters[i, c, PRICE] / 3600.0
            if why == FEASIBLE and (total != n or share[s, home] == 0):
                why = GPUS
            if why == FEASIBLE and members > 1 and spanning == 0.0:
                why = SPAN

        # Time and memory of each stage.
        for s in range(used):
            if why != FEASIBLE:
                break
            at = s
            home = cluster[plan, s]
            t = tp[plan, s]
            replicas = replicas_of[s]
            samples = samples_of[s]
            k = tensor_index[t] if t < tensor_index.size else -1
            low = sample_low[samples] if samples < sample_low.size else -1
            if k < 0 or low < 0:
                why = PROFILE
                break
            up = sample_part[samples]
            start = bound[plan, s]
            stop = bound[plan, s + 1]
            kind = recompute[plan, s]
            level = zero[plan, s]
            r = int(clusters[i, home, ROW])
            parameters = amounts[r, k, stop, PARAMETERS] - amounts[r, k, start, PARAMETERS]
            stored = amounts[r, k, stop, STORED + kind] - amounts[r, k, start, STORED + kind]
            message = parameters * synchronised
            forward = 0.0
            backward = 0.0
            update = 0.0
            ring_time = 0.0
            room = np.inf
            for c in range(0 if spans else home, count if spans else home + 1):
                part = share[s, c]
                if part == 0:
                    continue
                r = int(clusters[i, c, ROW])
                f = times[r, k, low, stop, FORWARD] - times[r, k, low, start, FORWARD]
                b = times[r, k, low, stop, BACKWARD] - times[r, k, low, start, BACKWARD]
                u = times[r, k, low, stop, UPDATE] - times[r, k, low, start, UPDATE]
                if kind == 1:
                    b += times[r, k, low, stop, SELECTIVE] - times[r, k, low, start, SELECTIVE]
                elif kind == 2:
                    b += f
                if up > 0.0:
                    high = low + 1
                    f2 = times[r, k, high, stop, FORWARD] - times[r, k, high, start, FORWARD]
                    b2 = times[r, k, high, stop, BACKWARD] - times[r, k, high, start, BACKWARD]
                    if kind == 1:
                        b2 += (
                            times[r, k, high, stop, SELECTIVE] - times[r, k, high, start, SELECTIVE]
                        )
                    elif kind == 2:
                        b2 += f2
                    u2 = times[r, k, high, stop, UPDATE] - times[r, k, high, start, UPDATE]
                    f += up * (f2 - f)
                    b += up * (b2 - b)
                    u += up * (u2 - u)
                # Not-a-number must survive: the negated comparisons let it through.
                if not f <= forward:
                    forward = f
                if not b <= backward:
                    backward = b
                if not u <= update:
                    update = u
                room = min(room, clusters[i, c, CAPACITY])
                ring = part // t if spans else replicas
                if ring > 1:
                    rate = clusters[i, c, INTRA_RATE]
                    latency = clusters[i, c, INTRA_LATENCY]
                    if first_node[s, c] != last_node[s, c]:
                        rate = clusters[i, c, INTER_RATE]
                        latency = clusters[i, c, INTER_LATENCY]
                        if flows != SINGLE:
                            rate *= max(1, min(int(clusters[i, c, PER_NODE]), part) // t)
                        # The rings of a node's tensor ranks share its network between them.
                        rate = min(rate, clusters[i, c, NODE_RATE] / t)
                    if rate <= 0.0:
                        why = LINK
                        break
                    ring_time = max(ring_time, 2 * (ring - 1) * (latency + message / (ring * rate)))
            if why != FEASIBLE:
                break
            if not (
                forward >= 0.0
                and backward >= 0.0
                and update >= 0.0
                and parameters >= 0.0
                and stored >= 0.0
            ):
                why = PROFILE
                break
            if spans:
                members = 0
                rate = np.inf
                latency = 0.0
                for c in range(count):
                    if share[s, c] == 0:
                        continue
                    members += 1
                    for d in range(count):
                        if d != c and share[s, d] > 0:
                            rate = min(rate, wan[i, c, d, WAN_RATE])
                            latency = max(latency, wan[i, c, d, WAN_DELAY])
                if rate <= 0.0:
                    why = LINK
                    break
                if members > 1:
                    # Shards of all tensor ranks go round a ring of the clusters.
                    shard = message * t / members
                    ring_time += 2 * (members - 1) * (latency + shard / rate)
                    for c in range(count):
                        for d in range(count):
                            if share[s, c] > 0 and share[s, d] > 0 and d != c:
                                traffic += 2 * shard * wan[i, c, d, WAN_PRICE]
            if level == 3:
                ring_time *= 1.5
                state = (weight + gradient + optimizer) / replicas
            elif level == 2:
                state = weight + (gradient + optimizer) / replicas
            elif level == 1:
                state = weight + gradient + optimizer / replicas
            else:
                state = weight + gradient + optimizer
            r = int(clusters[i, home, ROW])
            need = reserve + parameters * state
            need += stored * samples * min(warmup[plan, s] + 1, m)
            if kind == 2:
                need += largest_bytes[r, k] * samples
            element = wire_bytes[compute_wire] * samples * buffers
            if s > 0:
                need += element * amounts[r, k, start, OUTPUT]
            if s < used - 1:
                need += element * amounts[r, k, stop, OUTPUT]
            out[OUT_FORWARD, plan, s] = forward
            out[OUT_BACKWARD, plan, s] = backward
            out[OUT_SYNCHRONISE, plan, s] = ring_time
            out[OUT_UPDATE, plan, s] = update / replicas if level >= 1 else update
            out[OUT_MEMORY, plan, s] = need
            out[OUT_SLACK, plan, s] = room * fill - need

        # Borders.
        for s in range(used - 1):
            if why != FEASIBLE:
                break
            at = s
            c = cluster[plan, s]
            d = cluster[plan, s + 1]
            k = tensor_index[tp[plan, s]]
            elements = amounts[int(clusters[i, c, ROW]), k, bound[plan, s + 1], OUTPUT]
            code = wire[plan, s]
            message = batch * elements * wire_bytes[code]
            left = replicas_of[s]
            right = replicas_of[s + 1]
            if code != compute_wire:
                # Read and write once on each side, on the accelerators that compute.
                for side in range(2):
                    pieces = right if side else left
                    if flows == RANK_FLOWS:
                        pieces *= tp[plan, s + side]
                    size = batch * elements * wire_bytes[compute_wire] / pieces
                    conversion = 2 * size / clusters[i, d if side else c, MEMORY_RATE]
                    out[OUT_FORWARD, plan, s + side] += conversion
                    out[OUT_BACKWARD, plan, s + side] += conversion
            local = c == d
            if spans:
                local = True
                for e in range(count):
                    local = local and (share[s, e] > 0) == (share[s + 1, e] > 0)
            if local:
                # Every cluster passes its own part on; the slowest is waited for.
                transfer = 0.0
                for e in range(0 if spans else c, count if spans else c + 1):
                    if share[s, e] == 0:
                        continue
                    mine = share[s, e] // tp[plan, s] if spans else left
                    theirs = share[s + 1, e] // tp[plan, s + 1] if spans else right
                    parallel = 1
                    if flows == REPLICA_FLOWS:
                        parallel = min(mine, theirs)
                    elif flows == RANK_FLOWS:
                        parallel = min(share[s, e], share[s + 1, e])
                    # Flows spread over the nodes of the side that has fewer.
                    spots = min(
                        last_node[s, e] - first_node[s, e],
                        last_node[s + 1, e] - first_node[s + 1, e],
                    )
                    crowd = (parallel + spots) // (spots + 1)
                    rate = min(clusters[i, e, INTER_RATE], clusters[i, e, NODE_RATE] / crowd)
                    latency = clusters[i, e, INTER_LATENCY]
                    if (
                        first_node[s, e] == last_node[s + 1, e]
                        and first_node[s, e] == last_node[s, e]
                    ):
                        rate = clusters[i, e, INTRA_RATE]
                        latency = clusters[i, e, INTRA_LATENCY]
                    if rate <= 0.0:
                        why = LINK
                        break
                    transfer = max(transfer, latency + message * mine / left / (parallel * rate))
                borders[OUT_ACTIVATION, plan, s] = transfer
                borders[OUT_GRADIENT, plan, s] = transfer
            elif wan[i, c, d, WAN_RATE] <= 0.0 or wan[i, d, c, WAN_RATE] <= 0.0:
                why = LINK
            else:
                pipes = 1 if shared else min(left, right)
                borders[OUT_ACTIVATION, plan, s] = (
                    wan[i, c, d, WAN_DELAY] + message / pipes / wan[i, c, d, WAN_RATE]
                )
                borders[OUT_GRADIENT, plan, s] = (
                    wan[i, d, c, WAN_DELAY] + message / pipes / wan[i, d, c, WAN_RATE]
                )
                traffic += m * message * (wan[i, c, d, WAN_PRICE] + wan[i, d, c, WAN_PRICE])

        if why == FEASIBLE:
            at = -1
            for s in range(used):
                slack = out[OUT_SLACK, plan, s]
                if slack < 0.0 and (at < 0 or slack < out[OUT_SLACK, plan, at]):
                    why = MEMORY
                    at = s
            money[OUT_USD_PER_S, plan] = usd
            money[OUT_TRAFFIC, plan] = traffic
        else:
            for field in range(out.shape[0]):
                for s in range(used):
                    out[field, plan, s] = 0.0
            for field in range(borders.shape[0]):
                for s in range(used - 1):
                    borders[field, plan, s] = 0.0
        reason[plan] = why
        reason_stage[plan] = at


@njit(cache=True, nogil=True)
def total_time(
    stages: Integers,
    finish_s: Floats,
    synchronise_s: Floats,
    update_s: Floats,
    barrier: bool,
    first: int,
    last: int,
    time_s: Floats,
) -> None:
    """Iteration time of plans `first` to `last` - 1 from the end of each stage's last backward."""
    for plan in range(first, last):
        latest = 0.0
        end = 0.0
        longest = 0.0
        for s in range(stages[plan]):
            after = synchronise_s[plan, s] + update_s[plan, s]
            latest = max(latest, finish_s[plan, s] + after)
            end = max(end, finish_s[plan, s])
            longest = max(longest, after)
        time_s[plan] = end + longest if barrier else latest
