"""Kernel: one training iteration under a communication scheduler, for many configurations.

Arrays in, arrays out. A configuration is one row of every batch array: a model (row of the layer
tables), a network (row of `network`), a partition size, a credit size and a mechanism (`flags`).
The public, checked entry points are in `dtgym.simulator.communication`; the physics and its sources
are in docs/communication.md.

Three properties make it fast, and none of them is an approximation:

* gradients become ready from the last layer to the first, so a newly ready layer outranks every
  waiting one: the priority queue is a stack;
* completions leave in the order in which pieces were handed down: the window is a ring;
* inside a long run of equal pieces the state repeats, shifted in time: whole periods are jumped.
  Jumps are made only where a shift by rounding cannot change the order of pieces (after the last
  gradient is ready, or in FIFO order).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]

# Columns of `network`, in the order of `dtgym.simulator.networks.Network`.
UPLOAD_OVERHEAD = 0
UPLOAD_PER_BYTE = 1
DOWNLOAD_OVERHEAD = 2
DOWNLOAD_PER_BYTE = 3
COMPLETION_DELAY = 4
AGGREGATION_OVERHEAD = 5
AGGREGATION_PER_BYTE = 6
CONGESTION = 7
BANDWIDTH_DELAY = 8
FLOW_PER_BYTE = 9
MAX_FLOWS = 10
WORKER_DELAY = 11
WORKER_SLOWDOWN = 12
HOST_OVERHEAD = 13
LOCAL_REDUCE_OVERHEAD = 14
LOCAL_REDUCE_PER_BYTE = 15
LOCAL_BROADCAST_OVERHEAD = 16
LOCAL_BROADCAST_PER_BYTE = 17
NETWORK_COLUMNS = 18

# Bits of `flags`.
PARAMETER_SERVER = 1
FIFO = 2
BARRIER = 4
FIT = 8
RETURN_AT_UPLOAD = 16

# Columns of `record`, one row per piece in the order of dispatch.
RECORD_COLUMNS = 12

# Largest factor by which congestion stretches the time per byte.
CONGESTION_CAP = 4.0

# Two states count as one period apart if all their times differ by the same shift within this
# fraction of the clock: a few units in the last place.
_SAME = 4e-15


@njit(nogil=True, cache=True, error_model="numpy")
def iteration_times(
    ready: Floats,
    tail: Floats,
    gradient_bytes: Floats,
    layer_counts: Integers,
    total_bytes: Floats,
    model_index: Integers,
    forward_scale: Floats,
    backward_scale: Floats,
    network: Floats,
    partition_bytes: Floats,
    credit_bytes: Floats,
    flags: Integers,
    ring_entries: int,
    result: Floats,
    record: Floats,
) -> None:
    """Fills `result` with the iteration time of every configuration.

    Args:
        ready: (models, layers) sum of backward times of this and all later layers, s.
        tail: (models, layers) sum of forward times of this and all later layers, s.
        gradient_bytes: (models, layers) bytes of each layer's gradient.
        layer_counts: (models,) int64 layers in use of each row.
        total_bytes: (models,) sum of `gradient_bytes`.
        model_index: (configs,) int64 row of the layer tables.
        forward_scale: (configs,) factor on the forward times.
        backward_scale: (configs,) factor on the backward times.
        network: (configs, NETWORK_COLUMNS).
        partition_bytes: (configs,) largest piece, may be infinite.
        credit_bytes: (configs,) window, may be infinite.
        flags: (configs,) int64 mechanism bits.
        ring_entries: Capacity of the ring of unfinished pieces: a power of two.
        result: (configs,) receives seconds.
        record: (pieces, RECORD_COLUMNS) receives the pieces of the last configuration; no rows
            means that nothing is recorded.
    """
    finish = np.empty(ring_entries)
    outstanding = np.empty(ring_entries)
    layers = ready.shape[1]
    queue_layer = np.empty(layers, np.int64)
    queue_left = np.empty(layers, np.int64)
    queue_piece = np.empty(layers)
    for c in range(model_index.shape[0]):
        m = model_index[c]
        slowdown = network[c, WORKER_SLOWDOWN]
        uses_window = credit_bytes[c] < total_bytes[m] or (
            network[c, CONGESTION] > 0.0 or network[c, FLOW_PER_BYTE] > 0.0
        )
        if uses_window or record.shape[0] > 0:
            result[c] = _windowed(
                ready[m],
                tail[m],
                gradient_bytes[m],
                layer_counts[m],
                total_bytes[m],
                forward_scale[c] * slowdown,
                backward_scale[c] * slowdown,
                network[c],
                partition_bytes[c],
                credit_bytes[c],
                flags[c],
                finish,
                outstanding,
                queue_layer,
                queue_left,
                queue_piece,
                record,
            )
        else:
            result[c] = _unlimited(
                ready[m],
                tail[m],
                gradient_bytes[m],
                layer_counts[m],
                forward_scale[c] * slowdown,
                backward_scale[c] * slowdown,
                network[c],
                partition_bytes[c],
                flags[c],
            )


@njit(nogil=True, cache=True, error_model="numpy")
def _pieces(
    size: Any,
    partition: float,
) -> int:
    """Number of near-equal pieces of a gradient of `size` > 0 bytes."""
    if size <= partition:
        return 1
    return int(np.ceil(size / partition))


@njit(nogil=True, cache=True, error_model="numpy")
def _unlimited(
    ready: Floats,
    tail: Floats,
    gradient_bytes: Floats,
    layers: Any,
    forward_scale: float,
    backward_scale: float,
    network: Floats,
    partition: float,
    flags: int,
) -> float:
    """Iteration time where the window never binds: O(layers), whatever the number of pieces.

    Every piece is handed down when its gradient is ready. The n pieces of a layer cross stages
    with constant service times; departures are convex in the piece's index, so at each stage the
    first and the last piece decide: last = max(stage free + n c, first in + n c, last in + c).
    """
    delay = network[WORKER_DELAY]
    server = flags & PARAMETER_SERVER != 0
    fifo = flags & FIFO != 0
    host_free = reduce_free = upload_free = download_free = broadcast_free = 0.0
    best = delay + backward_scale * ready[0] + forward_scale * tail[0]
    completion = 0.0
    high = layers - 1
    while high >= 0:
        # Layers that become ready at the same moment form a group; priority takes its lowest first.
        now = delay + backward_scale * ready[high]
        low = high
        while low > 0 and delay + backward_scale * ready[low - 1] == now:
            low -= 1
        for step in range(high - low + 1):
            layer = high - step if fifo else low + step
            size = gradient_bytes[layer]
            if size <= 0.0:
                continue
            n = _pieces(size, partition)
            x = size / n
            first = last = now
            if network[HOST_OVERHEAD] > 0.0:
                cost = network[HOST_OVERHEAD]
                start = max(host_free, first)
                first = start + cost
                last = host_free = start + n * cost
            cost = network[LOCAL_REDUCE_OVERHEAD] + x * network[LOCAL_REDUCE_PER_BYTE]
            if cost > 0.0:
                start = max(reduce_free, first)
                last = reduce_free = max(start + n * cost, last + cost)
                first = start + cost
            cost = network[UPLOAD_OVERHEAD] + x * network[UPLOAD_PER_BYTE]
            start = max(upload_free, first)
            last = upload_free = max(start + n * cost, last + cost)
            first = start + cost
            if server:
                cost = network[AGGREGATION_OVERHEAD] + x * network[AGGREGATION_PER_BYTE]
                first += cost
                last += cost
                cost = network[DOWNLOAD_OVERHEAD] + x * network[DOWNLOAD_PER_BYTE]
                start = max(download_free, first)
                last = download_free = max(start + n * cost, last + cost)
                first = start + cost
            cost = network[LOCAL_BROADCAST_OVERHEAD] + x * network[LOCAL_BROADCAST_PER_BYTE]
            if cost > 0.0:
                start = max(broadcast_free, first)
                last = broadcast_free = max(start + n * cost, last + cost)
            completion = last + network[COMPLETION_DELAY]
            best = max(best, completion + forward_scale * tail[layer])
        high = low - 1
    if flags & BARRIER != 0:
        return max(delay + backward_scale * ready[0], completion) + forward_scale * tail[0]
    return best


@njit(nogil=True, cache=True, error_model="numpy")
def _windowed(
    ready: Floats,
    tail: Floats,
    gradient_bytes: Floats,
    layers: Any,
    total_bytes: Any,
    forward_scale: float,
    backward_scale: float,
    network: Floats,
    partition: float,
    credit: float,
    flags: int,
    finish: Floats,
    outstanding: Floats,
    queue_layer: Integers,
    queue_left: Integers,
    queue_piece: Floats,
    record: Floats,
) -> float:
    """Iteration time where the credit window may bind; records pieces if `record` has rows."""
    delay = network[WORKER_DELAY]
    upload_overhead = network[UPLOAD_OVERHEAD]
    download_overhead = network[DOWNLOAD_OVERHEAD]
    completion_delay = network[COMPLETION_DELAY]
    host_cost = network[HOST_OVERHEAD]
    congestion = network[CONGESTION]
    flow_per_byte = network[FLOW_PER_BYTE]
    server = flags & PARAMETER_SERVER != 0
    fifo = flags & FIFO != 0
    fit = flags & FIT != 0
    at_upload = flags & RETURN_AT_UPLOAD != 0
    has_load_effect = congestion > 0.0 or flow_per_byte > 0.0
    recording = record.shape[0] > 0

    # Pieces of a cut gradient hold more than half a partition, so no more than this many are
    # unfinished; the factor of two keeps one past period in the ring for comparison.
    bound = total_bytes / partition
    if 2.0 * credit < total_bytes:
        bound = min(bound, 2.0 * credit / partition)
    bound = 2.0 * (bound + layers + 2.0)
    mask = 64
    while mask < bound:
        mask *= 2
    mask -= 1

    host_free = reduce_free = upload_free = download_free = broadcast_free = 0.0
    completion = 0.0
    last_ready = delay + backward_scale * ready[0]
    best = last_ready + forward_scale * tail[0]
    now = 0.0
    head = 0  # the oldest unfinished piece; both counters only grow, the mask folds them
    end = 0
    used = 0.0
    queue_start = 0
    queue_end = 0
    next_layer = layers - 1
    next_ready = delay + backward_scale * ready[next_layer]

    while True:
        while next_layer >= 0 and next_ready <= now:
            size = gradient_bytes[next_layer]
            if size > 0.0:
                n = _pieces(size, partition)
                queue_layer[queue_end] = next_layer
                queue_left[queue_end] = n
                queue_piece[queue_end] = size / n
                queue_end += 1
            next_layer -= 1
            next_ready = delay + backward_scale * ready[next_layer] if next_layer >= 0 else np.inf
        if queue_start == queue_end:
            if next_layer < 0:
                break
            now = max(now, next_ready)
            continue

        slot = queue_start if fifo else queue_end - 1
        layer = queue_layer[slot]
        left = queue_left[slot]
        x = queue_piece[slot]
        reduce_cost = network[LOCAL_REDUCE_OVERHEAD] + x * network[LOCAL_REDUCE_PER_BYTE]
        upload_per_byte = network[UPLOAD_PER_BYTE]
        download_per_byte = network[DOWNLOAD_PER_BYTE]
        upload_bytes_cost = x * upload_per_byte
        download_bytes_cost = x * download_per_byte
        aggregation = network[AGGREGATION_OVERHEAD] + x * network[AGGREGATION_PER_BYTE]
        broadcast_cost = network[LOCAL_BROADCAST_OVERHEAD] + x * network[LOCAL_BROADCAST_PER_BYTE]
        # A gradient that becomes ready interrupts the run in priority order, and may fit where
        # this one does not; in FIFO order nothing changes until the run is over.
        interrupt = np.inf if fifo else next_ready
        may_jump = not recording and (fifo or next_layer < 0)
        sent = 0
        anchor_sent = -1
        anchor_head = anchor_end = 0
        anchor_now = anchor_host = anchor_reduce = anchor_upload = anchor_download = (
            anchor_broadcast
        ) = 0.0

        while left > 0:
            # Pieces that have finished stay in the ring until their bytes are in the way.
            blocked = head < end and used + x > credit if fit else used >= credit
            if blocked:
                count = end - head
                if may_jump and sent >= count and left > count:
                    block = sent - anchor_sent
                    if anchor_sent >= 0 and block >= count:
                        shift = upload_free - anchor_upload
                        same = _SAME * upload_free
                        repeats = (
                            count == anchor_end - anchor_head
                            and end - anchor_head <= mask
                            and abs(now - anchor_now - shift) <= same
                        )
                        if server:
                            moved = download_free - anchor_download
                            repeats = repeats and abs(moved - shift) <= same
                        if host_cost > 0.0:
                            repeats = repeats and abs(host_free - anchor_host - shift) <= same
                        if reduce_cost > 0.0:
                            repeats = repeats and abs(reduce_free - anchor_reduce - shift) <= same
                        if broadcast_cost > 0.0:
                            moved = broadcast_free - anchor_broadcast
                            repeats = repeats and abs(moved - shift) <= same
                        i = 0
                        while repeats and i < count:
                            moved = finish[(head + i) & mask] - finish[(anchor_head + i) & mask]
                            repeats = abs(moved - shift) <= same
                            i += 1
                        if repeats:
                            jumps = left // block
                            shift *= jumps
                            for i in range(head, end):
                                finish[i & mask] += shift
                            host_free += shift
                            reduce_free += shift
                            upload_free += shift
                            download_free += shift
                            broadcast_free += shift
                            completion += shift
                            now += shift
                            left -= jumps * block
                            may_jump = False  # what is left is less than one period
                            continue
                        anchor_sent = -1
                    if anchor_sent < 0:
                        anchor_sent = sent
                        anchor_head = head
                        anchor_end = end
                        anchor_now = now
                        anchor_host = host_free
                        anchor_reduce = reduce_free
                        anchor_upload = upload_free
                        anchor_download = download_free
                        anchor_broadcast = broadcast_free
                if fit:
                    # Look again as soon as a smaller gradient, ready meanwhile, may fit.
                    while head < end and used + x > credit and interrupt > now:
                        now = max(now, min(finish[head & mask], interrupt))
                        if finish[head & mask] <= now:
                            used -= outstanding[head & mask]
                            head += 1
                            if head == end:
                                used = 0.0
                else:
                    while used >= credit:
                        now = max(now, finish[head & mask])
                        used -= outstanding[head & mask]
                        head += 1
                        if head == end:
                            used = 0.0
                if interrupt <= now:
                    break

            if has_load_effect:
                while head < end and finish[head & mask] <= now:
                    used -= outstanding[head & mask]
                    head += 1
                if head == end:
                    used = 0.0
                factor = 1.0
                load = used + x
                if congestion > 0.0 and load > network[BANDWIDTH_DELAY]:
                    excess = (load - network[BANDWIDTH_DELAY]) / network[BANDWIDTH_DELAY]
                    factor = min(CONGESTION_CAP, 1.0 + congestion * excess)
                slowest = flow_per_byte / min(float(end - head + 1), network[MAX_FLOWS])
                upload_bytes_cost = x * max(upload_per_byte, slowest) * factor
                download_bytes_cost = x * max(download_per_byte, slowest) * factor

            arrival = now
            if host_cost > 0.0:
                arrival = host_free = max(host_free, arrival) + host_cost
            if reduce_cost > 0.0:
                arrival = reduce_free = max(reduce_free, arrival) + reduce_cost
            upload_free = max(upload_free, arrival) + upload_overhead + upload_bytes_cost
            done = upload_free
            if server:
                download_free = max(download_free, done + aggregation)
                download_free = download_free + download_overhead + download_bytes_cost
                done = download_free
            if broadcast_cost > 0.0:
                done = broadcast_free = max(broadcast_free, done) + broadcast_cost
            completion = done + completion_delay

            finish[end & mask] = upload_free if at_upload else completion
            outstanding[end & mask] = x
            if recording:
                row = record[end]
                row[0] = layer
                row[1] = _pieces(gradient_bytes[layer], partition) - left
                row[2] = now
                row[3] = host_free if host_cost > 0.0 else now
                row[4] = arrival - reduce_cost
                row[5] = arrival
                row[6] = upload_free - (upload_overhead + upload_bytes_cost)
                row[7] = upload_free
                row[8] = download_free - (download_overhead + download_bytes_cost)
                row[9] = download_free
                row[10] = done - broadcast_cost
                row[11] = completion
                if not server:
                    row[8] = row[9] = upload_free
            end += 1
            used += x
            left -= 1
            sent += 1

        queue_left[slot] = left
        if left == 0:
            best = max(best, completion + forward_scale * tail[layer])
            if fifo:
                queue_start += 1
            else:
                queue_end -= 1

    if flags & BARRIER != 0:
        return max(last_ready, completion) + forward_scale * tail[0]
    return best
