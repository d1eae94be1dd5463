"""Every piece of one iteration: for plots, and as Chrome trace events that Perfetto opens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.communication import Configurations, mechanism_flags, run_kernel
from dtgym.simulator.communication_layers import LayerTables, LayerTimes
from dtgym.simulator.errors import InvalidInput, above
from dtgym.simulator.kernels import communication_window as kernel
from dtgym.simulator.networks import Network

LARGEST_TIMELINE = 2_000_000
"""Pieces beyond which a timeline is refused: nobody can look at more."""


@dataclass(frozen=True, eq=False)
class Timeline:
    """One iteration, piece by piece, in the order in which pieces were handed down.

    All times count from the start of the backward pass, in seconds; arrays have the shape
    (pieces,), except those of compute, (layers,).

    Attributes:
        iteration_time_s: End of the next forward pass.
        layer: Layer of each piece.
        piece: Index of the piece in its layer.
        piece_bytes: Size of the piece.
        ready_s: When its gradient was ready: from here to `handed_s` it queues.
        handed_s: When the scheduler handed it down.
        upload_start_s: When its upload (or all-reduce) began.
        upload_end_s: When its upload (or all-reduce) ended.
        download_start_s: When its download began; the end of the all-reduce without a server.
        download_end_s: When its download ended.
        complete_s: When the scheduler knew that it was done.
        backward_start_s: Start of each layer's backward pass on the slowest worker.
        backward_end_s: End of each layer's backward pass.
        forward_start_s: Start of each layer's next forward pass.
        forward_end_s: End of each layer's next forward pass.
    """

    iteration_time_s: float
    layer: NDArray[np.int64]
    piece: NDArray[np.int64]
    piece_bytes: NDArray[np.float64]
    ready_s: NDArray[np.float64]
    handed_s: NDArray[np.float64]
    upload_start_s: NDArray[np.float64]
    upload_end_s: NDArray[np.float64]
    download_start_s: NDArray[np.float64]
    download_end_s: NDArray[np.float64]
    complete_s: NDArray[np.float64]
    backward_start_s: NDArray[np.float64]
    backward_end_s: NDArray[np.float64]
    forward_start_s: NDArray[np.float64]
    forward_end_s: NDArray[np.float64]

    def chrome_trace(self, *, process: str = "iteration") -> dict[str, Any]:
        """Returns Chrome trace events (a JSON object), which Perfetto and chrome://tracing open.

        Examples:
            >>> layers = LayerTimes([1, 1], [1, 1], [1, 1])
            >>> trace = timeline(layers, Network(0, 1, 0, 1), 0.5, 1.0).chrome_trace()
            >>> sorted({event["name"] for event in trace["traceEvents"] if event["ph"] == "X"})[:2]
            ['backward 0', 'backward 1']
        """
        rows = (
            ("compute", "backward", np.arange(len(self.backward_end_s)), None,
             self.backward_start_s, self.backward_end_s),
            ("compute", "forward", np.arange(len(self.forward_end_s)), None,
             self.forward_start_s, self.forward_end_s),
            ("upload", "layer", self.layer, self.piece, self.upload_start_s, self.upload_end_s),
            ("download", "layer", self.layer, self.piece, self.download_start_s,
             self.download_end_s),
        )  # fmt: skip
        tracks = ("compute", "upload", "download")
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": process}}
        ]
        for thread, track in enumerate(tracks):
            events.append(
                {"ph": "M", "name": "thread_name", "pid": 0, "tid": thread, "args": {"name": track}}
            )
        for track, verb, layers, pieces, start_s, end_s in rows:
            for i in np.flatnonzero(end_s > start_s):
                event: dict[str, Any] = {
                    "ph": "X",
                    "name": f"{verb} {layers[i]}",
                    "cat": track,
                    "pid": 0,
                    "tid": tracks.index(track),
                    "ts": float(start_s[i]) * 1e6,
                    "dur": float(end_s[i] - start_s[i]) * 1e6,
                }
                if pieces is not None:
                    event["name"] += f" piece {pieces[i]}"
                    event["args"] = {"bytes": float(self.piece_bytes[i])}
                events.append(event)
        return {"traceEvents": events, "displayTimeUnit": "ms"}


def timeline(
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
) -> Timeline:
    """Simulates one iteration and keeps every piece.

    Args:
        layers: The model.
        network: One network (plain numbers).
        partition_bytes: Largest piece, bytes.
        credit_bytes: Window of unfinished bytes.
        architecture: See `dtgym.simulator.communication.iteration_time_s`.
        order: See there.
        barrier: See there.
        credit_rule: See there.
        credit_return: See there.

    Raises:
        InvalidInput: A batch instead of one configuration, anything out of range, or more than
            `LARGEST_TIMELINE` pieces.

    Examples:
        >>> layers = LayerTimes([1, 1, 1], [1, 1, 1], [1.5, 3, 1.5])
        >>> pieces = timeline(layers, Network(0, 1, 0, 1), 0.5, 1.0)
        >>> pieces.iteration_time_s, len(pieces.layer), pieces.upload_start_s[:3].tolist()
        (9.0, 12, [1.0, 1.5, 2.0])
    """
    flags = mechanism_flags(
        architecture=architecture,
        order=order,
        barrier=barrier,
        credit_rule=credit_rule,
        credit_return=credit_return,
    )
    if network.configs != 1 or np.ndim(partition_bytes) or np.ndim(credit_bytes):
        raise InvalidInput("timeline takes one configuration: plain numbers, not a batch")
    for field, value in (("partition_bytes", partition_bytes), ("credit_bytes", credit_bytes)):
        if value != np.inf:
            above(field, value, 0, "bytes")
    sizes = layers.gradient_bytes
    pieces = np.where(sizes > 0, np.maximum(np.ceil(sizes / partition_bytes), 1), 0)
    if pieces.sum() > LARGEST_TIMELINE:
        raise InvalidInput(
            f"partition_bytes {partition_bytes:g} cuts the model into {pieces.sum():.0f} pieces; a "
            f"timeline holds at most {LARGEST_TIMELINE}"
        )
    record = np.empty((int(pieces.sum()), kernel.RECORD_COLUMNS))
    result = np.empty(1)
    configuration = Configurations(
        np.zeros(1, np.int64),
        np.ones(1),
        np.ones(1),
        network.matrix(1),
        np.full(1, float(partition_bytes)),
        np.full(1, float(credit_bytes)),
        np.full(1, flags, np.int64),
    )
    tables = LayerTables.stack([layers])
    run_kernel(tables, configuration, result, record)

    delay_s = float(np.max(network.worker_delay_s))
    slowdown = float(np.max(network.worker_slowdown))
    backward_end_s = delay_s + slowdown * tables.ready_s[0]
    forward_s = slowdown * layers.forward_s
    layer = record[:, 0].astype(np.int64)
    complete_s = backward_end_s.copy()
    np.maximum.at(complete_s, layer, record[:, 11])
    if barrier:
        complete_s[:] = complete_s.max()
    forward_start_s = np.empty(layers.layers)
    clock = float(backward_end_s[0])
    for i in range(layers.layers):
        forward_start_s[i] = max(clock, complete_s[i])
        clock = float(forward_start_s[i] + forward_s[i])
    return Timeline(
        iteration_time_s=float(result[0]),
        layer=layer,
        piece=record[:, 1].astype(np.int64),
        piece_bytes=sizes[layer] / pieces[layer],
        ready_s=backward_end_s[layer],
        handed_s=record[:, 2],
        upload_start_s=record[:, 6],
        upload_end_s=record[:, 7],
        download_start_s=record[:, 8],
        download_end_s=record[:, 9],
        complete_s=record[:, 11],
        backward_start_s=backward_end_s - slowdown * layers.backward_s,
        backward_end_s=backward_end_s,
        forward_start_s=forward_start_s,
        forward_end_s=forward_start_s + forward_s,
    )
