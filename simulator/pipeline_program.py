"""Compiles a schedule's order of operations into row instructions for the batch kernel.

Interleaved and zero-bubble orders have no short loop as 1F1B has. Their operations are listed once
per shape, with a row of the kernel's scratch array for every message under way, and then serve any
number of plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.kernels.pipeline_recurrence import BOTH_ENDS, OVERLAPPED
from dtgym.simulator.pipeline_orders import BACKWARD, FORWARD, WEIGHT, operations

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Program:
    """A schedule of one shape as instructions `out = max(left, right) + duration` on rows.

    Attributes:
        stages: Pipeline stages.
        chunks: Model chunks per stage.
        splits_backward: Whether weight gradients are operations of their own.
        instructions: (instructions, 4) rows out, left, right, duration.
        clock_rows: (stages,) rows of the stages' clocks.
        rows: Rows in all; the first are durations, the others start at 0.
    """

    stages: int
    chunks: int
    splits_backward: bool
    instructions: NDArray[np.int64]
    clock_rows: NDArray[np.int64]
    rows: int

    def durations_s(
        self,
        forward_s: Floats,
        backward_s: Floats,
        activation_s: Floats,
        gradient_s: Floats,
        weight_s: Floats | None,
        plans: NDArray[np.int64],
    ) -> Floats:
        """The duration rows of the given plans: forward, backward, weight, borders both ways.

        Returns:
            (plans, rows of durations), contiguous.
        """
        forward, backward = (self._per_chunk(x[plans]) for x in (forward_s, backward_s))
        columns = [forward, backward]
        if weight_s is not None:
            weight = weight_s[plans, : self.stages]
            columns = [forward, backward - weight, weight]
        columns += [self._borders(x[plans]) for x in (activation_s, gradient_s)]
        return np.ascontiguousarray(np.concatenate(columns, axis=1))

    def _per_chunk(self, values: Floats) -> Floats:
        if values.ndim == 3:
            return values.reshape(len(values), -1)
        return np.tile(values[:, : self.stages] / values.dtype.type(self.chunks), self.chunks)

    def _borders(self, values: Floats) -> Floats:
        """Borders in model order; the way back to the first stage is as slow as the slowest."""
        if values.shape[1] == self.stages * self.chunks - 1 and self.chunks > 1:
            return values
        used = values[:, : self.stages - 1]
        back = used.max(axis=1, keepdims=True, initial=0)
        return np.tile(np.concatenate((used, back), axis=1), self.chunks)[:, :-1]


def compile_program(
    schedule: str,
    stages: int,
    microbatches: int,
    warmup: NDArray[np.int64],
    chunks: int,
    rule: int,
) -> Program:
    """The program of a shape; compiled once and kept.

    Args:
        schedule: One of `pipeline_orders.SCHEDULES`.
        stages: Stages in use.
        microbatches: Micro-batches.
        warmup: Warm-up depths, at least `stages` of them.
        chunks: Model chunks per stage.
        rule: Overlap rule of the kernel.
    """
    depths = tuple(int(depth) for depth in warmup[:stages])
    return _compile(schedule, stages, microbatches, depths, chunks, rule)


@lru_cache(maxsize=256)
def _compile(
    schedule: str, stages: int, microbatches: int, warmup: tuple[int, ...], chunks: int, rule: int
) -> Program:
    order = operations(schedule, stages, microbatches, warmup, chunks)
    splits = schedule == "zero_bubble"
    virtual_stages = stages * chunks
    last = virtual_stages - 1
    forward_at = 0
    backward_at = virtual_stages
    weight_at = backward_at + virtual_stages
    activation_at = weight_at + (virtual_stages if splits else 0)
    gradient_at = activation_at + last
    zero = gradient_at + last
    clocks = np.arange(stages, dtype=np.int64) + zero + 1
    rows = int(zero + 1 + stages)
    free_rows: list[int] = []
    messages: dict[tuple[int, int, int], int] = {}
    newest: dict[tuple[int, int], int] = {}
    consumed: set[int] = set()
    code: list[tuple[int, int, int, int]] = []

    def emit(out: int, left: int, right: int, duration: int) -> None:
        code.append((out, left, right, duration))

    def receive(kind: int, border: int, microbatch: int, clock: int, duration: int) -> None:
        message = messages.pop((kind, border, microbatch))
        emit(clock, clock, message, duration)
        # The newest message of a link is still read by the next one sent over it.
        if newest[kind, border] == message:
            consumed.add(message)
        else:
            free_rows.append(message)

    def send(kind: int, border: int, microbatch: int, clock: int, duration: int) -> None:
        nonlocal rows
        if free_rows:
            row = free_rows.pop()
        else:
            row, rows = rows, rows + 1
        before = newest.get((kind, border), zero)
        emit(row, clock, before, duration)
        if before in consumed:
            consumed.remove(before)
            free_rows.append(before)
        newest[kind, border] = row
        messages[kind, border, microbatch] = row
        if rule != OVERLAPPED:
            emit(clock, clock, clock, duration)

    columns = (order.kind, order.stage, order.chunk, order.microbatch)
    for kind, stage, chunk, m in zip(*(column.tolist() for column in columns), strict=True):
        clock = int(clocks[stage])
        v = chunk * stages + stage
        if kind == FORWARD:
            if v == 0:
                emit(clock, clock, clock, forward_at)
            else:
                receive(FORWARD, v - 1, m, clock, forward_at + v)
                if rule == BOTH_ENDS:
                    emit(clock, clock, clock, activation_at + v - 1)
            if v < last:
                send(FORWARD, v, m, clock, activation_at + v)
        elif kind == BACKWARD:
            if v == last:
                emit(clock, clock, clock, backward_at + v)
            else:
                receive(BACKWARD, v, m, clock, backward_at + v)
                if rule == BOTH_ENDS:
                    emit(clock, clock, clock, gradient_at + v)
            if v > 0:
                send(BACKWARD, v - 1, m, clock, gradient_at + v - 1)
        elif kind == WEIGHT:
            emit(clock, clock, clock, weight_at + v)
    return Program(
        stages=stages,
        chunks=chunks,
        splits_backward=splits,
        instructions=np.array(code, dtype=np.int64),
        clock_rows=clocks,
        rows=rows,
    )
