"""Numba kernel of the partition evaluator: what the stages of each plan cost.

One loop over plans, a stage at a time: look up prefix sums, add transfers, synchronisation, update
and memory, and stop at the first rule a plan breaks. Meaning, units and axes of every array are
those of `partition.Problem`, `partition.Plans` and `partition.StageCosts`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

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


@njit(inline="always")
def _between(table, low, part, start, stop):
    """Sum over the layers from `start` to `stop`, between two numbers of samples."""
    value = table[low, stop] - table[low, start]
    if part > 0.0:
        value += part * (table[low + 1, stop] - table[low + 1, start] - value)
    return value


@njit(cache=True, nogil=True)
def stage_costs(
    tables,
    lookup,
    clusters,
    network,
    plans,
    spread,
    settings,
    wire_bytes,
    first,
    last,
    microbatches,
    times,
    once,
    borders,
    memory,
    money,
    reason,
    reason_stage,
):
    """Fills the costs of plans `first` to `last` - 1.

    Args:
        tables: (layers, forward, backward, selective, update, parameters, activation bytes,
            largest activation bytes, output elements) of `CostTables`.
        lookup: (index of a tensor-parallel size or -1, lower index of a number of samples or -1,
            part of the way to the next).
        clusters: (row, global batch, nodes, gpus per node, memory, memory bandwidth, price).
        network: (intra bandwidth, inter bandwidth, intra latency, inter latency, wide-area
            bandwidth, wide-area delay, wide-area price).
        plans: (instance, stages, cluster, gpus, tp, bound, microbatch, wire, warmup, recompute,
            zero).
        spread: (plans, stages, clusters), or no plans where no stage spans clusters.
        settings: Numbers of `Assumptions`: flows, compute wire, bytes of weights, gradients,
            optimizer, synchronised gradients, reserve, border buffers, memory fraction, spanning.
        wire_bytes: Bytes per element by wire.
        first: First plan of this call.
        last: Behind the last plan of this call.
        microbatches: (plans,) out.
        times: (forward, backward), each (plans, stages) out.
        once: (synchronise, update), each (plans, stages) out.
        borders: (activation, gradient), each (plans, stages - 1) out.
        memory: (bytes, slack), each (plans, stages) out.
        money: (usd per s, traffic usd), each (plans,) out.
        reason: (plans,) out.
        reason_stage: (plans,) out.
    """
    (
        table_layers,
        forward_table,
        backward_table,
        selective_table,
        update_table,
        parameter_table,
        activation_table,
        largest_table,
        output_table,
    ) = tables
    tensor_index, sample_low, sample_part = lookup
    row, global_batch, nodes, gpus_per_node, capacity, memory_rate, gpu_price = clusters
    intra_rate, inter_rate, intra_latency, inter_latency, wan_rate, wan_delay, wan_price = network
    instance, stages, cluster, gpus, tp, bound, microbatch, wire, warmup, recompute, zero = plans
    forward_s, backward_s = times
    synchronise_s, update_s = once
    activation_s, gradient_s = borders
    memory_bytes, slack_bytes = memory
    usd_per_s, traffic_usd = money
    flows = int(settings[0])
    compute_wire = int(settings[1])
    weight, gradient, optimizer, synchronised = settings[2], settings[3], settings[4], settings[5]
    reserve, buffers, fraction, spanning = settings[6], settings[7], settings[8], settings[9]
    count = row.shape[1]
    width = cluster.shape[1]
    spreads = spread.shape[0] > 0
    placed = np.zeros(count, np.int64)
    share = np.zeros((width, count), np.int64)
    first_node = np.zeros((width, count), np.int64)
    last_node = np.zeros((width, count), np.int64)

    for plan in range(first, last):
        i = instance[plan]
        used = stages[plan]
        batch = microbatch[plan]
        why = FEASIBLE
        at = -1
        top = 0
        for c in range(count):
            placed[c] = 0
            if row[i, c] >= 0:
                top = table_layers[row[i, c]]
        if bound[plan, 0] != 0 or bound[plan, used] != top:
            why = LAYERS
        if batch < 1 or global_batch[i] % batch != 0:
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
            if bound[plan, s + 1] <= bound[plan, s]:
                why = LAYERS
            elif (
                home < 0
                or home >= count
                or row[i, home] < 0
                or ((s == 0 or home != cluster[plan, s - 1]) and (seen >> home) & 1)
            ):
                why = CLUSTER
            elif n < 1:
                why = GPUS
            elif t < 1 or n % t != 0:
                why = TENSOR
            elif batch % (n // t) != 0:
                why = REPLICAS
            elif warmup[plan, s] < 0 or (
                s > 0 and min(warmup[plan, s], m - 1) > min(warmup[plan, s - 1], m - 1)
            ):
                why = WARMUP
            elif (
                recompute[plan, s] < 0
                or recompute[plan, s] > 2
                or zero[plan, s] < 0
                or zero[plan, s] > 3
                or (s < used - 1 and (wire[plan, s] < 0 or wire[plan, s] >= wire_bytes.size))
            ):
                why = CODE
            if why != FEASIBLE:
                at = s
                break
            seen |= 1 << home
            total = 0
            members = 0
            for c in range(count):
                part = n if c == home else 0
                if spreads:
                    part = spread[plan, s, c]
                share[s, c] = part
                if part == 0:
                    continue
                total += part
                members += 1
                if part < 0 or row[i, c] < 0:
                    why = GPUS
                elif part % t != 0 or gpus_per_node[i, c] % t != 0:
                    why = TENSOR
                else:
                    # A tensor-parallel group never straddles two nodes.
                    begin = (placed[c] + t - 1) // t * t
                    placed[c] = begin + part
                    if placed[c] > nodes[i, c] * gpus_per_node[i, c]:
                        why = GPUS
                    first_node[s, c] = begin // gpus_per_node[i, c]
                    last_node[s, c] = (placed[c] - 1) // gpus_per_node[i, c]
                    usd += part * gpu_price[i, c] / 3600.0
            if why == FEASIBLE:
                if total != n or share[s, home] == 0:
                    why = GPUS
                elif members > 1 and spanning == 0.0:
                    why = SPAN
            if why != FEASIBLE:
                at = s

        # Time and memory of each stage.
        for s in range(used):
            if why != FEASIBLE:
                break
            home = cluster[plan, s]
            t = tp[plan, s]
            replicas = gpus[plan, s] // t
            samples = batch // replicas
            t_index = tensor_index[t] if t < tensor_index.size else -1
            low = sample_low[samples] if samples < sample_low.size else -1
            if t_index < 0 or low < 0:
                why = PROFILE
                at = s
                break
            fraction_up = sample_part[samples]
            start = bound[plan, s]
            stop = bound[plan, s + 1]
            r = row[i, home]
            kind = recompute[plan, s]
            f = 0.0
            b = 0.0
            update = 0.0
            for c in range(count):
                if share[s, c] == 0:
                    continue
                other = row[i, c]
                own_f = _between(forward_table[other, t_index], low, fraction_up, start, stop)
                own_b = _between(backward_table[other, t_index], low, fraction_up, start, stop)
                if kind == 1:
                    own_b += _between(
                        selective_table[other, t_index], low, fraction_up, start, stop
                    )
                elif kind == 2:
                    own_b += own_f
                # Not-a-number must survive: the negated comparison lets it through.
                if not own_f <= f:
                    f = own_f
                if not own_b <= b:
                    b = own_b
                own = update_table[other, t_index, stop] - update_table[other, t_index, start]
                if not own <= update:
                    update = own
            parameters = parameter_table[r, t_index, stop] - parameter_table[r, t_index, start]
            stored = (
                activation_table[r, kind, t_index, stop] - activation_table[r, kind, t_index, start]
            )
            level = zero[plan, s]
            if level >= 1:
                update /= replicas
            if not (
                f >= 0.0 and b >= 0.0 and update >= 0.0 and parameters >= 0.0 and stored >= 0.0
            ):
                why = PROFILE
                at = s
                break
            forward_s[plan, s] = f
            backward_s[plan, s] = b
            update_s[plan, s] = update

            # Gradients: a ring inside each cluster, and across clusters a ring of the shards.
            message = parameters * synchronised
            rounds = 1.5 if level == 3 else 1.0
            inside = 0.0
            members = 0
            narrowest = np.inf
            longest = 0.0
            for c in range(count):
                if share[s, c] == 0:
                    continue
                members += 1
                ring = share[s, c] // t
                if ring > 1:
                    if first_node[s, c] == last_node[s, c]:
                        rate = intra_rate[i, c]
                        latency = intra_latency[i, c]
                    else:
                        rate = inter_rate[i, c]
                        latency = inter_latency[i, c]
                        if flows != SINGLE:
                            # The rings of a node's tensor ranks share its network between them.
                            rate *= max(1, min(gpus_per_node[i, c], share[s, c]) // t)
                    if rate <= 0.0:
                        why = LINK
                        at = s
                        break
                    inside = max(inside, 2 * (ring - 1) * (latency + message / (ring * rate)))
                for d in range(count):
                    if d != c and share[s, d] > 0:
                        narrowest = min(narrowest, wan_rate[i, c, d])
                        longest = max(longest, wan_delay[i, c, d])
            if why != FEASIBLE:
                break
            if members > 1:
                if narrowest <= 0.0:
                    why = LINK
                    at = s
                    break
                whole = message * t
                inside += 2 * (members - 1) * (longest + whole / (members * narrowest))
                for c in range(count):
                    for d in range(count):
                        if share[s, c] > 0 and share[s, d] > 0 and d != c:
                            traffic += 2 * whole / members * wan_price[i, c, d]
            synchronise_s[plan, s] = rounds * inside

            if level >= 3:
                state = (weight + gradient + optimizer) / replicas
            elif level == 2:
                state = weight + (gradient + optimizer) / replicas
            elif level == 1:
                state = weight + gradient + optimizer / replicas
            else:
                state = weight + gradient + optimizer
            need = reserve + parameters * state
            need += stored * samples * min(warmup[plan, s] + 1, m)
            if kind == 2:
                need += largest_table[r, t_index] * samples
            element = wire_bytes[compute_wire] * samples * buffers
            if s > 0:
                need += element * output_table[r, start]
            if s < used - 1:
                need += element * output_table[r, stop]
            memory_bytes[plan, s] = need
            smallest = np.inf
            for c in range(count):
                if share[s, c] > 0:
                    smallest = min(smallest, capacity[i, c])
            slack_bytes[plan, s] = smallest * fraction - need

        # Borders.
        for s in range(used - 1):
            if why != FEASIBLE:
                break
            c = cluster[plan, s]
            d = cluster[plan, s + 1]
            elements = output_table[row[i, c], bound[plan, s + 1]]
            code = wire[plan, s]
            message = batch * elements * wire_bytes[code]
            left = gpus[plan, s] // tp[plan, s]
            right = gpus[plan, s + 1] // tp[plan, s + 1]
            if code != compute_wire:
                # Read and write once on each side, on the accelerators that compute.
                for side in range(2):
                    own = d if side else c
                    pieces = right if side else left
                    if flows == RANK_FLOWS:
                        pieces *= tp[plan, s + side]
                    size = batch * elements * wire_bytes[compute_wire] / pieces
                    conversion = 2 * size / memory_rate[i, own]
                    forward_s[plan, s + side] += conversion
                    backward_s[plan, s + side] += conversion
            same = spreads
            if spreads:
                for e in range(count):
                    same = same and (share[s, e] > 0) == (share[s + 1, e] > 0)
            if c == d or same:
                # Every cluster passes its own part on, the slowest is waited for.
                transfer = 0.0
                for e in range(count):
                    if share[s, e] == 0 or share[s + 1, e] == 0:
                        continue
                    mine = share[s, e] // tp[plan, s]
                    theirs = share[s + 1, e] // tp[plan, s + 1]
                    parallel = 1
                    if flows == REPLICA_FLOWS:
                        parallel = min(mine, theirs)
                    elif flows == RANK_FLOWS:
                        parallel = min(share[s, e], share[s + 1, e])
                    if (
                        first_node[s, e] == last_node[s + 1, e]
                        and first_node[s, e] == last_node[s, e]
                    ):
                        rate = intra_rate[i, e]
                        latency = intra_latency[i, e]
                    else:
                        rate = inter_rate[i, e]
                        latency = inter_latency[i, e]
                    if rate <= 0.0:
                        why = LINK
                        at = s
                        break
                    size = message * mine / left / parallel
                    transfer = max(transfer, latency + size / rate)
                activation_s[plan, s] = transfer
                gradient_s[plan, s] = transfer
            elif wan_rate[i, c, d] <= 0.0 or wan_rate[i, d, c] <= 0.0:
                why = LINK
                at = s
            else:
                activation_s[plan, s] = wan_delay[i, c, d] + message / wan_rate[i, c, d]
                gradient_s[plan, s] = wan_delay[i, d, c] + message / wan_rate[i, d, c]
                traffic += m * message * (wan_price[i, c, d] + wan_price[i, d, c])

        if why == FEASIBLE:
            for s in range(used):
                if slack_bytes[plan, s] < 0.0 and (
                    at < 0 or slack_bytes[plan, s] < slack_bytes[plan, at]
                ):
                    why = MEMORY
                    at = s
            usd_per_s[plan] = usd
            traffic_usd[plan] = traffic
        else:
            for s in range(used):
                forward_s[plan, s] = 0.0
                backward_s[plan, s] = 0.0
                update_s[plan, s] = 0.0
                synchronise_s[plan, s] = 0.0
                memory_bytes[plan, s] = 0.0
                slack_bytes[plan, s] = 0.0
            for s in range(used - 1):
                activation_s[plan, s] = 0.0
                gradient_s[plan, s] = 0.0
        reason[plan] = why
        reason_stage[plan] = at


@njit(cache=True, nogil=True)
def total_time(stages, finish_s, synchronise_s, update_s, barrier, first, last, time_s):
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
