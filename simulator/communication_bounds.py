"""Closed forms and bounds of the communication model: what no scheduler can beat, and why.

They need no simulation, hold for every partition and credit, and tell at a glance whether
scheduling can pay for a model on a network at all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtgym.simulator.communication_layers import LayerTimes
from dtgym.simulator.errors import above, at_least, one_of


def fifo_whole_tensors_s(
    layers: LayerTimes, overhead_s: float, s_per_byte: float, *, barrier: bool = False
) -> float:
    """Exact time of unpartitioned FIFO over one channel without a window.

    The channel serves gradients in the order of readiness, so layer l is complete at the largest,
    over k >= l, of ready_k plus the transfers of layers k down to l: a running maximum over prefix
    sums.

    Args:
        layers: The model.
        overhead_s: Time of a message besides its bytes, s.
        s_per_byte: Time per byte, s/byte.
        barrier: The forward pass waits for all gradients.

    Returns:
        Seconds from the start of the backward pass to the end of the next forward pass.

    Raises:
        InvalidInput: A negative or non-finite number.

    Source:
        Lindley's recurrence for a single server, unrolled.

    Examples:
        >>> fifo_whole_tensors_s(LayerTimes([1, 1], [1, 1], [2, 3]), 0.0, 1.0)
        8.0
    """
    overhead = float(at_least("overhead_s", overhead_s, 0, "s"))
    per_byte = float(at_least("s_per_byte", s_per_byte, 0, "s/byte"))
    ready_s = np.cumsum(layers.backward_s[::-1])
    sizes = layers.gradient_bytes[::-1]
    transfer_s = np.where(sizes > 0, overhead + sizes * per_byte, 0.0)
    sent_s = np.cumsum(transfer_s)
    # complete_i - sent_i = max over j <= i of (ready_j - sent before j); layers reversed here.
    slack_s = np.where(sizes > 0, ready_s - (sent_s - transfer_s), -np.inf)
    complete_s = np.where(sizes > 0, sent_s + np.maximum.accumulate(slack_s), ready_s)
    tail_s = np.cumsum(layers.forward_s[::-1])
    compute_s = ready_s[-1] + layers.forward_s.sum()
    if barrier:
        return float(max(ready_s[-1], complete_s.max()) + layers.forward_s.sum())
    return float(max(compute_s, (complete_s + tail_s).max()))


def preemptive_bound_s(layers: LayerTimes, s_per_byte: float) -> float:
    """Least time of any order and partition over one channel without overheads.

    Transfers that may be interrupted at any moment, lowest layer first, complete layer l at the
    smallest t with t = ready_l + transfers of layers j <= l that are ready before t. This is
    preemptive largest-tail-first, optimal for max(completion + tail) with release times, so no
    schedule of pieces can be faster.

    Args:
        layers: The model.
        s_per_byte: Time per byte, s/byte.

    Returns:
        Seconds from the start of the backward pass to the end of the next forward pass.

    Raises:
        InvalidInput: A negative or non-finite number.

    Source:
        Horn, Some simple scheduling algorithms, Naval Research Logistics 1974 (preemptive
        1 | r_j, pmtn | L_max by due date; tails are the negated due dates).

    Examples:
        >>> preemptive_bound_s(LayerTimes([1, 1], [1, 1], [2, 3]), 1.0)
        7.0
    """
    per_byte = float(at_least("s_per_byte", s_per_byte, 0, "s/byte"))
    ready_s = np.cumsum(layers.backward_s[::-1])[::-1]
    tail_s = np.cumsum(layers.forward_s[::-1])[::-1]
    transfer_s = layers.gradient_bytes * per_byte
    time_s = ready_s[0] + tail_s[0]
    for layer in range(layers.layers):
        # Lower layers become ready later and interrupt this one as long as it is not complete.
        complete_s = ready_s[layer] + transfer_s[layer]
        for lower in range(layer - 1, -1, -1):
            if ready_s[lower] >= complete_s:
                break
            complete_s += transfer_s[lower]
        if transfer_s[layer] > 0:
            time_s = max(time_s, complete_s + tail_s[layer])
    return float(time_s)


def simple_bounds_s(
    layers: LayerTimes, s_per_byte: float, *, architecture: str = "allreduce"
) -> tuple[float, float]:
    """Bounds without overheads: no schedule beats the first, unpartitioned FIFO meets the second.

    With backward B, forward F and transfer W of all bytes one way, every schedule takes at least
    max(B + F, W), and unpartitioned FIFO at most B + F + W over one channel and B + F + 2 W
    through a parameter server: scheduling gains at most a factor of 2 and 3.

    Args:
        layers: The model.
        s_per_byte: Time per byte and direction, s/byte.
        architecture: ``allreduce`` (one channel) or ``ps`` (push, then pull).

    Returns:
        Lower and upper bound, s.

    Raises:
        InvalidInput: A negative or non-finite number, or an unknown architecture.

    Source:
        The bound of 3: "How Useful is Communication Scheduling for Distributed Training?" (2024).

    Examples:
        >>> simple_bounds_s(LayerTimes([1], [1], [2]), 1.0, architecture="ps")
        (2.0, 6.0)
    """
    per_byte = float(at_least("s_per_byte", s_per_byte, 0, "s/byte"))
    one_of("architecture", architecture, ("ps", "allreduce"))
    compute_s = float(layers.backward_s.sum() + layers.forward_s.sum())
    wire_s = float(layers.gradient_bytes.sum() * per_byte)
    directions = 2 if architecture == "ps" else 1
    return max(compute_s, wire_s), compute_s + directions * wire_s


def period_s(
    piece_bytes: ArrayLike,
    credit_bytes: ArrayLike,
    *,
    upload_overhead_s: ArrayLike,
    upload_s_per_byte: ArrayLike,
    download_overhead_s: ArrayLike = 0.0,
    download_s_per_byte: ArrayLike = 0.0,
    completion_delay_s: ArrayLike = 0.0,
    aggregation_s: ArrayLike = 0.0,
) -> NDArray[np.float64]:
    """Time per piece of a long run of equal pieces under a full window.

    The slower of: the upload, the download, and the round trip shared by the pieces in the window.
    It shows why small credit starves the link and small pieces drown in overhead.

    Args:
        piece_bytes: Size of a piece, bytes.
        credit_bytes: Credit, bytes (rule ``positive``: ceil(credit / piece) pieces in flight).
        upload_overhead_s: See `dtgym.simulator.networks.Network`.
        upload_s_per_byte: See there.
        download_overhead_s: See there; 0 for an all-reduce.
        download_s_per_byte: See there; 0 for an all-reduce.
        completion_delay_s: See there.
        aggregation_s: Server's time for a piece, s.

    Returns:
        Seconds per piece, in the broadcast shape.

    Raises:
        InvalidInput: A size that is not above 0, a time that is negative.

    Source:
        Maximum cycle mean of the max-plus recurrence (Baccelli et al., Synchronization and
        Linearity, 1992).

    Examples:
        One piece in flight pays the round trip each time, many only the slower direction.

        >>> period_s(1e6, [1e6, 8e6], upload_overhead_s=0, upload_s_per_byte=1e-9,
        ...          download_s_per_byte=1e-9, completion_delay_s=2e-3).tolist()
        [0.004, 0.001]
    """
    size = above("piece_bytes", piece_bytes, 0, "bytes")
    window = np.ceil(above("credit_bytes", credit_bytes, 0, "bytes") / size)
    upload = at_least("upload_overhead_s", upload_overhead_s, 0, "s") + size * at_least(
        "upload_s_per_byte", upload_s_per_byte, 0, "s/byte"
    )
    download = at_least("download_overhead_s", download_overhead_s, 0, "s") + size * at_least(
        "download_s_per_byte", download_s_per_byte, 0, "s/byte"
    )
    delay = at_least("completion_delay_s", completion_delay_s, 0, "s")
    server = at_least("aggregation_s", aggregation_s, 0, "s")
    round_trip = upload + server + download + delay
    return np.maximum(np.maximum(upload, download), round_trip / window)
