"""When one plan's operations and messages start and end: for pictures and trace files.

The same recurrence as `pipeline`, one plan at a time and with every step kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtgym.simulator import pipeline
from dtgym.simulator.errors import InvalidInput, at_least, one_of
from dtgym.simulator.pipeline_orders import (
    BACKWARD,
    FORWARD,
    SCHEDULES,
    WEIGHT,
    operations,
    standard_warmup,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

KINDS = ("forward", "backward", "weight")
"""Names of the operations, by code."""


@dataclass(frozen=True)
class Timeline:
    """Operations of one iteration in order of execution, and the messages between them.

    Attributes:
        kind: (operations,) code of `KINDS`; under ``zero_bubble`` backward is its input part.
        stage: (operations,).
        chunk: (operations,) model chunk, 0 unless interleaved.
        microbatch: (operations,).
        start_s: (operations,).
        end_s: (operations,) the work is done and its message may leave.
        busy_end_s: (operations,) the stage is free again; later than `end_s` where a send blocks.
        message_kind: (messages,) `FORWARD` for an activation, `BACKWARD` for a gradient.
        message_source: (messages,) sending stage.
        message_target: (messages,) receiving stage.
        message_microbatch: (messages,).
        message_start_s: (messages,) the link begins to carry it.
        message_end_s: (messages,) it has arrived.
    """

    kind: Integers
    stage: Integers
    chunk: Integers
    microbatch: Integers
    start_s: Floats
    end_s: Floats
    busy_end_s: Floats
    message_kind: Integers
    message_source: Integers
    message_target: Integers
    message_microbatch: Integers
    message_start_s: Floats
    message_end_s: Floats

    @property
    def iteration_time_s(self) -> float:
        """End of the last operation."""
        return float(self.busy_end_s.max())

    def trace_events(self, stage_names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The timeline as Chrome trace events, which Perfetto opens (times in microseconds).

        One process holds a row per stage, a second one a row per link and direction.

        Args:
            stage_names: Labels of the stages; None numbers them.
        """
        count = int(self.stage.max()) + 1
        names = list(stage_names or (f"stage {s}" for s in range(count)))
        events: list[dict[str, Any]] = [_name("process_name", 0, 0, "stages")]
        events += [_name("thread_name", 0, s, names[s]) for s in range(count)]
        for i in range(self.kind.size):
            label = f"{KINDS[self.kind[i]]} {self.microbatch[i]}"
            if self.chunk.any():
                label += f" chunk {self.chunk[i]}"
            events.append(
                _span(label, KINDS[self.kind[i]], 0, self.stage[i], self.start_s[i], self.end_s[i])
            )
        links = sorted(
            set(zip(self.message_source.tolist(), self.message_target.tolist(), strict=True))
        )
        if links:
            events.append(_name("process_name", 1, 0, "links"))
        events += [
            _name("thread_name", 1, row, f"{names[a]} to {names[b]}")
            for row, (a, b) in enumerate(links)
        ]
        for i in range(self.message_kind.size):
            row = links.index((int(self.message_source[i]), int(self.message_target[i])))
            what = "activation" if self.message_kind[i] == FORWARD else "gradient"
            events.append(
                _span(
                    f"{what} {self.message_microbatch[i]}",
                    what,
                    1,
                    row,
                    self.message_start_s[i],
                    self.message_end_s[i],
                )
            )
        return events


def timeline(
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    activation_s: ArrayLike,
    gradient_s: ArrayLike,
    num_microbatches: int,
    *,
    schedule: str = "1f1b",
    warmup: ArrayLike | None = None,
    overlap: str = "overlapped",
    weight_s: ArrayLike | None = None,
) -> Timeline:
    """Runs one plan and keeps every start and end.

    Args:
        forward_s: (stages,); interleaved: (chunks, stages).
        backward_s: Shaped like `forward_s`.
        activation_s: One per border in model order: (stages - 1,); interleaved:
            (chunks * stages - 1,).
        gradient_s: Shaped like `activation_s`.
        num_microbatches: Micro-batches.
        schedule: As `pipeline.iteration_time_s`.
        warmup: (stages,) depths of ``1f1b`` and ``zero_bubble``; None is standard.
        overlap: As `pipeline.iteration_time_s`.
        weight_s: (stages,) weight part of `backward_s` under ``zero_bubble``; None is half.

    Raises:
        InvalidInput: Shapes or values that do not fit.

    Examples:
        >>> found = timeline([1.0, 1.0], [2.0, 2.0], [0.5], [0.5], 2)
        >>> found.iteration_time_s
        10.0
        >>> found.trace_events()[1]["args"]
        {'name': 'stage 0'}
    """
    one_of("schedule", schedule, SCHEDULES)
    one_of("overlap", overlap, pipeline.OVERLAP_RULES)
    forward = at_least("forward_s", forward_s, 0, "s")
    stages = forward.shape[-1] if forward.ndim else 0
    if (
        forward.ndim not in (1, 2)
        or not stages
        or (forward.ndim == 2) != (schedule == "interleaved")
    ):
        raise InvalidInput(
            "forward_s must have shape (stages,), or (chunks, stages) under the interleaved "
            f"schedule, got {forward.shape}"
        )
    backward = at_least("backward_s", backward_s, 0, "s")
    if backward.shape != forward.shape:
        raise InvalidInput(f"backward_s must have shape {forward.shape}, got {backward.shape}")
    chunks = forward.size // stages
    transfers = {}
    for name, value in (("activation_s", activation_s), ("gradient_s", gradient_s)):
        transfers[name] = at_least(name, value, 0, "s")
        if transfers[name].shape != (forward.size - 1,):
            raise InvalidInput(f"{name} must have shape ({forward.size - 1},)")
    microbatches = int(pipeline.whole("num_microbatches", num_microbatches, 1))
    depth = standard_warmup(stages) if warmup is None else pipeline.whole("warmup", warmup, 0)
    if depth.shape != (stages,):
        raise InvalidInput(f"warmup must have shape ({stages},), got {depth.shape}")
    weight = np.zeros(forward.size)
    if schedule == "zero_bubble":
        weight = backward / 2 if weight_s is None else at_least("weight_s", weight_s, 0, "s")
    order = operations(schedule, stages, microbatches, tuple(depth.tolist()), chunks)
    work = {FORWARD: forward.ravel(), BACKWARD: backward.ravel() - weight, WEIGHT: weight}
    travel = {FORWARD: transfers["activation_s"], BACKWARD: transfers["gradient_s"]}

    free = np.zeros(stages)
    link_free: dict[tuple[int, int], float] = {}
    arrival: dict[tuple[int, int, int], float] = {}
    spans = np.zeros((order.kind.size, 3))
    messages: list[tuple[int, int, int, int, float, float]] = []
    for i, (kind, stage, chunk, m) in enumerate(
        zip(order.kind, order.stage, order.chunk, order.microbatch, strict=True)
    ):
        v = int(chunk * stages + stage)
        received = v - 1 if kind == FORWARD else v
        start = max(free[stage], arrival.get((int(kind), received, int(m)), 0.0))
        if kind == WEIGHT:
            start = free[stage]
        end = start + work[int(kind)][v]
        if overlap == "both_ends" and kind != WEIGHT and 0 <= received < forward.size - 1:
            end += travel[int(kind)][received]
        free[stage] = end
        sent = v if kind == FORWARD else v - 1
        if kind != WEIGHT and 0 <= sent < forward.size - 1:
            link = int(kind), sent
            begin = max(end, link_free.get(link, 0.0))
            link_free[link] = begin + travel[int(kind)][sent]
            arrival[(*link, int(m))] = link_free[link]
            target = (v + 1 if kind == FORWARD else v - 1) % stages
            messages.append((int(kind), int(stage), target, int(m), begin, link_free[link]))
            if overlap != "overlapped":
                free[stage] = end + travel[int(kind)][sent]
        spans[i] = start, end, free[stage]
    columns = np.array(messages, dtype=np.float64).reshape(-1, 6).T
    whole = columns[:4].astype(np.int64)
    return Timeline(
        kind=order.kind,
        stage=order.stage,
        chunk=order.chunk,
        microbatch=order.microbatch,
        start_s=spans[:, 0],
        end_s=spans[:, 1],
        busy_end_s=spans[:, 2],
        message_kind=whole[0],
        message_source=whole[1],
        message_target=whole[2],
        message_microbatch=whole[3],
        message_start_s=columns[4],
        message_end_s=columns[5],
    )


def _name(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _span(
    name: str, category: str, process: int, thread: int, start_s: float, end_s: float
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": process,
        "tid": int(thread),
        "ts": float(start_s * 1e6),
        "dur": float((end_s - start_s) * 1e6),
    }
