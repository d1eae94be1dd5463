"""The recurrence in plain Python: slow, short, for readers and as the benchmark's yardstick.

It takes one configuration and visits every piece. The kernel gives the same numbers; tests hold
both against an independent event simulator.
"""

from __future__ import annotations

import math
from collections import deque

from dtgym.simulator.communication_layers import LayerTimes
from dtgym.simulator.networks import NETWORK_FIELDS, Network


def iteration_time_s(
    layers: LayerTimes,
    network: Network,
    partition_bytes: float,
    credit_bytes: float,
    *,
    architecture: str = "ps",
    order: str = "priority",
    barrier: bool = False,
    credit_rule: str = "positive",
    credit_return: str = "completion",
) -> float:
    """Time of one iteration under one configuration, in seconds.

    Arguments as in `dtgym.simulator.communication.iteration_time_s`, as plain numbers; nothing is
    checked.

    Examples:
        >>> layers = LayerTimes([1, 1, 1], [1, 1, 1], [1.5, 3, 1.5])
        >>> iteration_time_s(layers, Network(0, 1, 0, 1), 0.5, 1.0)
        9.0
    """
    row = network.matrix(1)[0].tolist()
    net = dict(zip(NETWORK_FIELDS, row, strict=True))
    count = layers.layers
    forward = [f * net["worker_slowdown"] for f in layers.forward_s.tolist()]
    backward = [b * net["worker_slowdown"] for b in layers.backward_s.tolist()]
    sizes = layers.gradient_bytes.tolist()

    ready = [0.0] * count
    clock = 0.0
    for layer in reversed(range(count)):
        clock += backward[layer]
        ready[layer] = net["worker_delay_s"] + clock
    pieces = [math.ceil(size / partition_bytes) or int(size > 0) for size in sizes]
    complete = ready.copy()

    now = host = local_in = upload = download = local_out = used = 0.0
    unfinished: deque[tuple[float, float]] = deque()  # when credit returns, bytes
    left = pieces.copy()
    while any(left):
        while unfinished and unfinished[0][0] <= now:
            used -= unfinished.popleft()[1]
        if not unfinished:
            used = 0.0
        waiting = [layer for layer in range(count) if left[layer] and ready[layer] <= now]
        coming = [ready[layer] for layer in range(count) if left[layer] and ready[layer] > now]
        if not waiting:
            now = min(coming)
            continue
        # Earliest ready is the highest layer: gradients come from the last layer to the first.
        layer = min(waiting) if order == "priority" else max(waiting)
        size = sizes[layer] / pieces[layer]
        if credit_rule == "fit":
            admissible = not unfinished or used + size <= credit_bytes
        else:
            admissible = used < credit_bytes
        if not admissible:
            now = min([unfinished[0][0], *coming])
            continue

        factor, flow = 1.0, net["flow_s_per_byte"]
        if net["congestion"] > 0 and used + size > net["bandwidth_delay_bytes"]:
            excess = (used + size) / net["bandwidth_delay_bytes"] - 1.0
            factor = min(4.0, 1.0 + net["congestion"] * excess)
        flow /= min(len(unfinished) + 1, net["max_flows"])
        upload_rate = max(net["upload_s_per_byte"], flow) * factor
        download_rate = max(net["download_s_per_byte"], flow) * factor

        host = max(host, now) + net["host_overhead_s"]
        local_in = max(local_in, host)
        local_in += net["local_reduce_overhead_s"] + size * net["local_reduce_s_per_byte"]
        upload = max(upload, local_in) + net["upload_overhead_s"] + size * upload_rate
        done = upload
        if architecture == "ps":
            done += net["aggregation_overhead_s"] + size * net["aggregation_s_per_byte"]
            download = max(download, done) + net["download_overhead_s"] + size * download_rate
            done = download
        local_out = max(local_out, done)
        local_out += net["local_broadcast_overhead_s"] + size * net["local_broadcast_s_per_byte"]
        complete[layer] = local_out + net["completion_delay_s"]
        unfinished.append((upload if credit_return == "upload" else complete[layer], size))
        used += size
        left[layer] -= 1

    clock = max(complete) if barrier else ready[0]
    for layer in range(count):
        clock = max(clock, complete[layer]) + forward[layer]
    return clock
