"""Numba kernel of the training cost model: from shapes to stage times and memory, plan by plan.

Each plan is three rows of numbers (model, hardware, plan; `training_columns` names them) and the
vector of physical constants. The kernel writes what a stage does with one micro-batch, what it does
once per iteration, and what it stores. The pipeline recurrence turns stage times into an iteration.

The device functions are also what `dtgym.simulator.compute` and `dtgym.simulator.collectives` run,
so that a user's spot check and a plan's cost come from the same code. They live in this one file
because Numba's on-disk cache does not see changes in others.
"""

from __future__ import annotations

from math import ceil, log2

import numpy as np
from numba import njit

from dtgym.simulator.kernels import training_columns as c

FLASH_BLOCK = 128.0  # query rows that one thread block of a flash kernel handles
HOP_SHARE = 0.05  # a further hop between nodes, as a share of the start of a network transfer
WIDE_OUTPUT = 1.06  # products that add to 32-bit gradients (SimuMax)
WEIGHT_MATRICES = 12.0  # tensors of a block that a per-tensor gather moves one by one


@njit(cache=True, nogil=True)
def matmul_s(m, n, k, flop_per_s, memory_bytes_per_s, half_mn, half_k):
    """One product (m, k) x (k, n): saturation in each dimension, or the time of the memory."""
    saturation = (1 + half_mn / m) * (1 + half_mn / n) * (1 + half_k / k)
    arithmetic = 2.0 * m * n * k / flop_per_s * saturation
    traffic = 2.0 * (m * k + k * n + m * n) / memory_bytes_per_s
    return max(arithmetic, traffic)


@njit(cache=True, nogil=True)
def all_gather_s(size, ranks, local, peer, network, hop_s, start_s):
    """All-gather (or reduce-scatter) of `size` bytes in total: inside nodes, then between them."""
    if ranks <= 1:
        return 0.0
    group = min(local, ranks)
    nodes = ceil(ranks / group)
    time = size * (group - 1) / group / peer
    latency = (ranks - nodes) * hop_s
    if nodes > 1:
        time += size / group * (nodes - 1) / nodes / network
        latency += start_s * (1 + HOP_SHARE * (nodes - 1))
    return time + latency


@njit(cache=True, nogil=True)
def all_reduce_s(size, ranks, local, peer, network, hop_s, start_s, in_switch):
    """All-reduce: ring, tree between nodes, or the switch's own addition, whichever is fastest."""
    if ranks <= 1:
        return 0.0
    group = min(local, ranks)
    nodes = ceil(ranks / group)
    # One kernel reduces, scatters and gathers: it starts once.
    ring = 2 * all_gather_s(size, ranks, local, peer, network, hop_s, 0.0)
    if nodes == 1:
        if in_switch > 0 and ranks >= 5:
            return min(ring, 1.5 * size * (ranks - 1) / ranks / peer + 5 * hop_s)
        return ring
    inside = 2 * size * (group - 1) / group / peer
    between = 2 * size / group * (nodes - 1) / nodes / network
    tree = inside + between + 2 * (group - 1) * hop_s
    ring += start_s * (1 + 2 * HOP_SHARE * (nodes - 1))
    return min(ring, tree + start_s * (1 + 2 * HOP_SHARE * log2(nodes)))


@njit(cache=True, nogil=True)
def all_to_all_s(size, ranks, local, peer, network, hop_s, start_s):
    """All-to-all in which each rank sends `size` bytes in total, its own share included."""
    if ranks <= 1:
        return 0.0
    group = min(local, ranks)
    nodes = ceil(ranks / group)
    time = size * (group - 1) / ranks / peer + hop_s * (group - 1)
    if nodes > 1:
        time += size * (ranks - group) / ranks / network + start_s
    return time


@njit(cache=True, nogil=True)
def exposed_s(communication, computation, hidden_share, contention):
    """What is left of a transfer behind a computation; the hidden part still slows it down."""
    hidden = min(communication, hidden_share * computation)
    return communication - hidden + contention * hidden


@njit(cache=True, nogil=True)
def attention_s(batch_heads, queries, keys, head_dim, kernel, half_peak, rate, hardware, constants):
    """Forward and backward of causal attention on one device.

    Kernels: 0 writes the scores to memory; 1 and 2 are the flash kernels of the first and second
    generation, which use the warp-level matrix instructions of Ampere; 3 is the vendor's kernel for
    the architecture at hand.
    """
    memory = hardware[c.MEMORY_RATE]
    elements = batch_heads * queries * keys
    if kernel == 0:
        half_mn, half_k = constants[c.C_HALF_MN], constants[c.C_HALF_K]
        aligned = 1.0 if head_dim % 8 == 0 else constants[c.C_MISALIGNED]
        product = 2 * elements * head_dim / (rate * aligned)
        scores = product * (1 + half_mn / queries) * (1 + half_mn / keys) * (1 + half_k / head_dim)
        values = product * (1 + half_mn / queries) * (1 + half_mn / head_dim) * (1 + half_k / keys)
        # Scores, softmax, mask and dropout pass through memory: bytes per element of the scores.
        traffic = elements * constants[c.C_SOFTMAX] / memory
        forward = scores + values + 13 * traffic
        return forward, 2 * (scores + values) + 15 * traffic
    architecture = hardware[c.ARCHITECTURE]
    newer = architecture == 2 or architecture == 3
    if kernel == 1:
        efficiency = constants[c.C_FLASH1] * (constants[c.C_WARP_LEVEL] if newer else 1.0)
    elif kernel == 2 or not newer:
        efficiency = constants[c.C_FLASH2] * (constants[c.C_WARP_LEVEL] if newer else 1.0)
    elif architecture == 2:
        efficiency = constants[c.C_FUSED_HOPPER]
    else:
        efficiency = constants[c.C_FUSED_BLACKWELL]
    # Too few query blocks leave multiprocessors idle; narrow heads leave matrix units idle.
    blocks = batch_heads * queries / FLASH_BLOCK / hardware[c.MULTIPROCESSORS]
    efficiency *= blocks / (blocks + 1.3) * head_dim / (head_dim + 10.0) * 1.078
    forward = 2 * elements * head_dim / (half_peak * efficiency)
    return forward, forward * constants[c.C_ATTENTION_BACKWARD]


@njit(cache=True, nogil=True)
def matmul_rates(hardware, constants):
    """Sustained rates of large products: (at the plan's precision, in 16 bits), FLOP/s."""
    architecture = int(hardware[c.ARCHITECTURE])
    # An architecture without a calibration of its own is taken to sustain the same share of its
    # best product as Ampere (the scale is the ratio of the two ceilings).
    efficiency = constants[architecture] if architecture < 4 else constants[c.C_AMPERE]
    efficiency *= hardware[c.MATMUL_SCALE] * hardware[c.POWER] ** constants[c.C_POWER]
    half = hardware[c.HALF_PEAK] * efficiency
    rate = hardware[c.MATMUL_PEAK] * efficiency
    if hardware[c.PRECISION] == 2:
        rate *= constants[c.C_FP8]
    elif hardware[c.PRECISION] == 3:
        rate *= constants[c.C_FP4]
    return rate, half


@njit(cache=True, nogil=True)
def plan_costs(
    model_rows,
    hardware_rows,
    plan_rows,
    model_index,
    hardware_index,
    stage_layers,
    constants,
    first,
    last,
    forward,
    backward,
    scalars,
    parts,
    memory,
    memory_total,
    tight_stage,
    missing,
):
    """Costs of the plans first..last-1.

    Args:
        model_rows: (models, MODEL_COLUMNS).
        hardware_rows: (hardware, HARDWARE_COLUMNS).
        plan_rows: (plans, PLAN_COLUMNS).
        model_index: (plans,) row of each plan's model.
        hardware_index: (plans,) row of each plan's hardware.
        stage_layers: (plans, stages) blocks on each stage.
        constants: CONSTANT_NAMES.
        first: First plan.
        last: Behind the last plan.
        forward: (plans, stages) out, s per micro-batch.
        backward: (plans, stages) out, s per micro-batch.
        scalars: (plans, SCALARS) out.
        parts: (plans, stages, STAGE_PARTS) out.
        memory: (plans, stages, MEMORY_PARTS) out.
        memory_total: (plans, stages) out, the sum of the parts.
        tight_stage: (plans,) out, the stage with the largest sum.
        missing: (plans,) out, bytes by which that sum exceeds the device's memory.
    """
    half_mn, half_k = constants[c.C_HALF_MN], constants[c.C_HALF_K]
    hop, start = constants[c.C_PEER_HOP], constants[c.C_NETWORK_START]
    for p in range(first, last):
        model = model_rows[model_index[p]]
        hardware = hardware_rows[hardware_index[p]]
        plan = plan_rows[p]
        h, d, ffn, gated = model[c.HIDDEN], model[c.HEAD_DIM], model[c.FFN], model[c.GATED]
        vocab, length = model[c.VOCAB], model[c.SEQUENCE]
        tp, stages, dp, cp = plan[c.TENSOR], int(plan[c.PIPELINE]), plan[c.DATA], plan[c.CONTEXT]
        ep, chunks, microbatches = plan[c.EXPERT], plan[c.CHUNKS], plan[c.MICROBATCHES]
        zero, sp, recompute = plan[c.ZERO], plan[c.SEQUENCE_PARALLEL], plan[c.RECOMPUTE]
        rate, half = matmul_rates(hardware, constants)
        bandwidth = hardware[c.MEMORY_RATE]
        peer = hardware[c.PEER_RATE] * constants[c.C_PEER]
        network = hardware[c.NETWORK_RATE] * constants[c.C_NETWORK]
        begin = start + hardware[c.NETWORK_LATENCY]
        node = hardware[c.GPUS_PER_NODE]
        switch = hardware[c.IN_SWITCH]
        dropout = hardware[c.DROPOUT]
        kernel = hardware[c.ATTENTION]
        gradient_bytes = hardware[c.GRADIENT_BYTES]
        contention = constants[c.C_CONTENTION]
        moving = constants[c.C_ELEMENTWISE] / bandwidth

        # Per-device shapes.
        tokens = plan[c.MICROBATCH] * length / cp
        norm_split = tp if sp > 0 else 1.0
        qkv = (model[c.HEADS] + 2 * model[c.KV_HEADS]) * d / tp
        inner = model[c.HEADS] * d / tp
        width = ffn / tp
        entering = width * (1 + gated)
        experts = model[c.EXPERTS] / ep
        routed = tokens * model[c.EXPERTS_PER_TOKEN]
        each = routed / experts
        weights = (model[c.ATTENTION_PARAMETERS] + model[c.EXPERT_PARAMETERS] * experts) / tp

        # Products of one block.
        f = matmul_s(tokens, qkv, h, rate, bandwidth, half_mn, half_k)
        f += matmul_s(tokens, h, inner, rate, bandwidth, half_mn, half_k)
        f += experts * matmul_s(each, entering, h, rate, bandwidth, half_mn, half_k)
        f += experts * matmul_s(each, h, width, rate, bandwidth, half_mn, half_k)
        b = matmul_s(tokens, h, qkv, rate, bandwidth, half_mn, half_k)
        b += WIDE_OUTPUT * matmul_s(qkv, h, tokens, rate, bandwidth, half_mn, half_k)
        b += matmul_s(tokens, inner, h, rate, bandwidth, half_mn, half_k)
        b += WIDE_OUTPUT * matmul_s(h, inner, tokens, rate, bandwidth, half_mn, half_k)
        b += experts * matmul_s(each, h, entering, rate, bandwidth, half_mn, half_k)
        b += experts * WIDE_OUTPUT * matmul_s(entering, h, each, rate, bandwidth, half_mn, half_k)
        b += experts * matmul_s(each, width, h, rate, bandwidth, half_mn, half_k)
        b += experts * WIDE_OUTPUT * matmul_s(h, width, each, rate, bandwidth, half_mn, half_k)
        product_f, product_b = f, b

        attention_f, attention_b = attention_s(
            plan[c.MICROBATCH] * model[c.HEADS] / tp,
            length / cp,
            length,
            d,
            kernel,
            hardware[c.HALF_PEAK],
            half,
            hardware,
            constants,
        )

        if hardware[c.BALANCED_CONTEXT] == 0:
            # The rank with the last tokens attends to all others; the step waits for it.
            attention_f *= 2 * cp / (cp + 1)
            attention_b *= 2 * cp / (cp + 1)

        # Element-wise bytes per token: norms and residuals, activation function, layout changes.
        if dropout > 0:
            moved = tokens * (22 * h / norm_split + 4 * qkv + 4 * inner)
        else:
            moved = tokens * (20 * h / norm_split + 4 * qkv)
        moved += routed * (4 + 2 * gated) * width
        moved_b = 1.8 * moved
        if hardware[c.PRECISION] >= 2:
            # Inputs of products are read in 16 bits and written in few, straight and transposed.
            moved += 4 * constants[c.C_CAST] * (tokens * (h + inner) + routed * (h + width))
            moved_b += 4 * constants[c.C_CAST] * (tokens * (h + qkv) + routed * (h + entering))
        f += attention_f + moved * moving
        # Gradients of weights are added up in memory once per micro-batch.
        b += attention_b + moved_b * moving + 2 * gradient_bytes * weights / bandwidth

        # Tensor (and sequence) parallel exchange.
        kernels = 36.0 if dropout > 0 else 22.0
        exchange = tokens * h * 2
        tf = 0.0
        if tp > 1:
            kernels += 8
            if sp > 0:
                tf = 4 * all_gather_s(exchange, tp, node, peer, network, hop, begin)
            else:
                tf = 2 * all_reduce_s(exchange, tp, node, peer, network, hop, begin, switch)
        tb = tf
        if hardware[c.OVERLAP_TENSOR] == 1:
            # The sums of input gradients travel behind the products of weight gradients; with
            # sequence parallelism the gathers before them stay exposed.
            hidden = tb / 2 if sp > 0 else tb
            tb += exposed_s(hidden, product_b / 2, 1.0, contention) - hidden
        elif hardware[c.OVERLAP_TENSOR] == 2:
            tf = exposed_s(tf, product_f, constants[c.C_TENSOR_OVERLAP], 0.0)
            tb = exposed_s(tb, product_b, constants[c.C_TENSOR_OVERLAP], 0.0)
        if cp > 1:
            # Keys and values travel round the ring behind the attention of the block before.
            ring = (cp - 1) * tokens * 4 * model[c.KV_HEADS] * d / tp
            ring = ring / (peer if tp * cp <= node else network)
            tf += exposed_s(ring, attention_f, 1.0, contention)
            tb += exposed_s(2 * ring, attention_b, 1.0, contention)
        if ep > 1:
            near = max(1.0, node / tp)
            a2a = 2 * all_to_all_s(routed * h * 2, ep, near, peer, network, hop, begin)
            tf += a2a
            tb += a2a

        # Launches: hidden while the device is busy, or each waited for.
        if hardware[c.BLOCKING] > 0:
            f += kernels * constants[c.C_BLOCKING]
            b += 2 * kernels * constants[c.C_BLOCKING]
        else:
            # A smooth maximum of host and device time: queues run empty now and then.
            host = kernels * constants[c.C_LAUNCH]
            stretch = np.cbrt(1 + (host / (f + tf)) ** 3)
            f, tf = f * stretch, tf * stretch
            stretch = np.cbrt(1 + (2 * host / (b + tb)) ** 3)
            b, tb = b * stretch, tb * stretch
        if recompute == 2:
            b += f
            tb += tf
        elif recompute == 1 and kernel == 0:
            b += attention_f
        elif recompute == 3:
            b += product_f / 2 + moved * moving

        # Head and embedding.
        logits = tokens * vocab / tp
        head_f = matmul_s(tokens, vocab / tp, h, half, bandwidth, half_mn, half_k)
        head_f += 14 * logits * moving
        head_b = matmul_s(tokens, h, vocab / tp, half, bandwidth, half_mn, half_k)
        head_b += matmul_s(vocab / tp, h, tokens, half, bandwidth, half_mn, half_k)
        head_b += 10 * logits * moving + 2 * gradient_bytes * vocab / tp * h / bandwidth
        head_t = 0.0
        if tp > 1:
            if sp > 0:
                head_t = all_gather_s(exchange, tp, node, peer, network, hop, begin)
            else:
                head_t = all_reduce_s(exchange, tp, node, peer, network, hop, begin, switch) / 2
        embed_f = 6 * tokens * h / norm_split * moving
        embed_b = 12 * tokens * h / norm_split * moving

        # Fully sharded: weights are gathered ahead of each block, gradients scattered behind it.
        ranks = dp * cp
        local = max(1.0, node / tp)
        df, db, ends_df, ends_db = 0.0, 0.0, 0.0, 0.0
        matrix = vocab * h / tp
        if zero >= 2 and ranks > 1:
            gather = all_gather_s(2 * weights, ranks, local, peer, network, hop, begin)
            ends = all_gather_s(2 * matrix, ranks, local, peer, network, hop, begin)
            times = 2 if zero >= 3 else 1
            df = exposed_s(gather, f + tf, 1.0, contention)
            db = exposed_s(times * gather, b + tb, 1.0, contention)
            if hardware[c.GATHER_TENSORS] > 0:
                lists = WEIGHT_MATRICES * (ranks - 1) * constants[c.C_GATHER_LAUNCH]
                df += lists
                db += times * lists
            ends_df = gather + ends
            ends_db = times * ends

        # Borders between stages: each tensor rank sends its share.
        border = 0.0
        if stages > 1:
            inside = dp * cp * tp < node
            border = exchange / tp / (peer if inside else network) + (hop if inside else begin)

        layer_f, layer_b = f + tf + df, b + tb + db
        scalars[p, 0] = layer_f
        scalars[p, 1] = layer_b
        scalars[p, 2] = embed_f + ends_df
        scalars[p, 3] = head_f + head_t
        scalars[p, 4] = border

        # Activations that one block keeps per micro-batch, bytes (Korthikanti et al., section 4).
        masks = 2.0 if dropout > 0 else 0.0
        boundary = 2 * tokens * h / norm_split
        if recompute == 2:
            kept = boundary
        elif recompute == 3:
            outputs = tokens * (qkv + h / norm_split) + routed * (entering + h / norm_split)
            kept = boundary + 2 * tokens * inner + outputs
        else:
            kept = tokens * h * (8 + masks) / norm_split + 2 * tokens * (qkv + inner)
            kept += routed * (4 + 4 * gated) * width
            if kernel == 0 and recompute == 0:
                kept += 5 * plan[c.MICROBATCH] * model[c.HEADS] / tp * length * length / cp
        working = 0.0
        if recompute == 2:
            # While a block is recomputed, all it keeps is alive once, its input already counted.
            working = tokens * h * (6 + masks) / norm_split + 2 * tokens * (qkv + inner)
            working += routed * (4 + 4 * gated) * width
            if kernel == 0:
                working += 5 * plan[c.MICROBATCH] * model[c.HEADS] / tp * length * length / cp

        most = -1.0
        for s in range(stages):
            is_first, is_last = s == 0, s == stages - 1
            n = stage_layers[p, s]
            compute, tensor, data = n * (f + b), n * (tf + tb), n * (df + db)
            forward[p, s] = n * layer_f
            backward[p, s] = n * layer_b
            held = n * weights
            if is_first:
                forward[p, s] += embed_f + ends_df
                backward[p, s] += embed_b
                compute += embed_f + embed_b
                data += ends_df
                held += matrix
            if is_last:
                forward[p, s] += head_f + head_t
                backward[p, s] += head_b + head_t + ends_db
                compute += head_f + head_b
                tensor += 2 * head_t
                data += ends_db
                if model[c.TIED] == 0 or stages > 1:
                    held += matrix
            parts[p, s, 0], parts[p, s, 1], parts[p, s, 2] = compute, tensor, data

            # Once per iteration: gradients (and weights) are synchronised, the optimizer steps.
            sync = 0.0
            if ranks > 1 and zero < 2:
                size = held * gradient_bytes
                if zero == 1 and hardware[c.OVERLAP_DATA] > 0:
                    sync = all_gather_s(size, ranks, local, peer, network, hop, begin)
                    sync += all_gather_s(2 * held, ranks, local, peer, network, hop, begin)
                else:
                    sync = all_reduce_s(size, ranks, local, peer, network, hop, begin, switch)
                if hardware[c.OVERLAP_DATA] > 0:
                    last_chunk = (forward[p, s] + backward[p, s]) / chunks
                    sync = exposed_s(sync, last_chunk, 1.0, contention)
            if model[c.TIED] > 0 and stages > 1 and (is_first or is_last):
                sync += matrix * gradient_bytes / network
            parts[p, s, 3] = sync
            sharded = held / ranks
            stepped = sharded if zero >= 1 else held
            parts[p, s, 4] = (
                stepped * constants[c.C_OPTIMIZER] / bandwidth + constants[c.C_ITERATION]
            )

            memory[p, s, 0] = 2 * (sharded if zero >= 3 else held)
            memory[p, s, 1] = gradient_bytes * (sharded if zero >= 2 else held)
            memory[p, s, 2] = 12 * stepped
            if chunks > 1:
                pending = (2 * (stages - s - 1) + (chunks - 1) * stages + 1) / chunks
            else:
                pending = float(stages - s)
            stored = min(pending, microbatches) * n * kept + min(n, 1.0) * working
            if zero >= 3:
                stored += 4 * weights
            if is_first:
                stored += min(pending, microbatches) * masks / 2 * tokens * h / norm_split
            if is_last:
                # Logits in 16 bits, in 32 bits, their gradient and a copy; the final norm's input.
                stored += 12 * logits + boundary
            memory[p, s, 3] = stored
            memory[p, s, 4] = hardware[c.RESERVE]
            total = memory[p, s, 0] + memory[p, s, 1] + memory[p, s, 2] + memory[p, s, 3]
            total += memory[p, s, 4]
            memory_total[p, s] = total
            if total > most:
                most = total
                tight_stage[p] = s
        missing[p] = max(most - hardware[c.MEMORY_BYTES], 0.0)
        for s in range(stages, forward.shape[1]):
            forward[p, s] = 0.0
            backward[p, s] = 0.0
            parts[p, s, :] = 0.0
            memory[p, s, :] = 0.0
            memory_total[p, s] = 0.0
