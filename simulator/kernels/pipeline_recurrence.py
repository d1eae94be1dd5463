"""Numba kernels of the pipeline recurrence: many plans side by side in SIMD lanes.

The order of operations of a pipeline schedule depends on its shape alone (stages, micro-batches,
warm-up depths), never on the durations. A block of plans of the same shape therefore runs through
one instruction sequence, and each instruction is the same primitive on one row of lanes,

    out = max(left, right) + duration,

which LLVM turns into a few vector instructions. Durations, clocks and messages under way are rows
of one scratch array that stays in the first-level cache. Every lane does its operations in a fixed
order, so that a plan's result does not depend on the block it travels in.

Everything lives in this one file because Numba's on-disk cache does not see changes in others.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.floating[Any]]
Integers: TypeAlias = NDArray[np.integer[Any]]

ROW_BYTES = 256
"""Bytes of one row of lanes: 32 plans in float64, 64 in float32 (fastest of 64 to 512 bytes)."""

OVERLAPPED = 0
SENDER_BLOCKED = 1
BOTH_ENDS = 2


def _rows(context: Any, builder: Any, array_type: Any, value: Any) -> tuple[Any, Any]:
    """Load and store of whole rows of a scratch array, given element offsets."""
    array = cgutils.create_struct_proxy(array_type)(context, builder, value)
    element = context.get_data_type(array_type.dtype)
    element_bytes = context.get_abi_sizeof(element)
    row = ir.VectorType(element, ROW_BYTES // element_bytes).as_pointer()

    def at(offset: Any) -> Any:
        return builder.bitcast(builder.gep(array.data, [offset]), row)

    def load(offset: Any) -> Any:
        value = builder.load(at(offset))
        value.align = element_bytes
        return value

    def store(value: Any, offset: Any) -> None:
        builder.store(value, at(offset)).align = element_bytes

    return load, store


def _later(builder: Any, first: Any, second: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", first, second), first, second)


def _type_advance(
    typing_context: Any, scratch: Any, out: Any, left: Any, right: Any, duration: Any
) -> Any:
    """`scratch[out] = max(scratch[left], scratch[right]) + scratch[duration]`, by whole rows.

    The four numbers are element offsets of rows. Loads come before the store, so rows may coincide.
    A loop over lanes would leave LLVM to prove, at run time and per row, that rows do not overlap.
    """
    signature = types.void(scratch, *[types.int64] * 4)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        load, store = _rows(context, builder, signature.args[0], arguments[0])
        first, second, added = (load(offset) for offset in arguments[2:])
        store(builder.fadd(_later(builder, first, second), added), arguments[1])
        return context.get_dummy_value()

    return signature, generate


def _type_work_and_send(
    typing_context: Any,
    scratch: Any,
    clock: Any,
    arrival: Any,
    work: Any,
    message: Any,
    before: Any,
    transfer: Any,
) -> Any:
    """Two advances in one: the stage's operation, then the message it sends.

    `clock = max(clock, arrival) + work`, then `message = max(clock, before) + transfer`, where
    `before` is the message sent before over the same link. The clock stays in registers between the
    two, which shortens the chain that the next stage waits for.
    """
    signature = types.void(scratch, *[types.int64] * 6)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        load, store = _rows(context, builder, signature.args[0], arguments[0])
        own, first, added, link, travel = (load(arguments[i]) for i in (1, 2, 3, 5, 6))
        end = builder.fadd(_later(builder, own, first), added)
        store(end, arguments[1])
        store(builder.fadd(_later(builder, end, link), travel), arguments[4])
        return context.get_dummy_value()

    return signature, generate


def _type_is_bad(typing_context: Any, scratch: Any, row: Any) -> Any:
    """Whether any lane of a row is negative, infinite or not a number."""
    signature = types.boolean(scratch, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        load, _ = _rows(context, builder, signature.args[0], arguments[0])
        value = load(arguments[1])
        zero = ir.Constant(value.type, [0.0] * value.type.count)
        infinity = ir.Constant(value.type, [float("inf")] * value.type.count)
        good = builder.and_(
            builder.fcmp_ordered(">=", value, zero), builder.fcmp_ordered("<", value, infinity)
        )
        lanes = ir.IntType(value.type.count)
        return builder.icmp_unsigned("!=", builder.bitcast(good, lanes), ir.Constant(lanes, -1))

    return signature, generate


_advance: Any = intrinsic(_type_advance)
_is_bad: Any = intrinsic(_type_is_bad)
_work_and_send: Any = intrinsic(_type_work_and_send)


@njit(cache=True, nogil=True)
def one_forward_one_backward(
    forward_s: Floats,
    backward_s: Floats,
    activation_s: Floats,
    gradient_s: Floats,
    order: Integers,
    block_start: Integers,
    block_stages: Integers,
    block_microbatches: Integers,
    block_warmup: Integers,
    rule: int,
    first_block: int,
    last_block: int,
    finish_s: Floats,
    time_s: Floats,
) -> bool:
    """Runs blocks of plans through 1F1B with any warm-up depth (GPipe is the deepest).

    Step k does forward `k + warmup[s]` of every stage, then backward `k` from the last stage to the
    first. An activation is read `warmup[s] - warmup[s + 1]` steps after it was sent: a ring of that
    many rows plus one per border holds what is under way.

    Args:
        forward_s: (plans, stages).
        backward_s: (plans, stages).
        activation_s: (plans, stages - 1).
        gradient_s: (plans, stages - 1).
        order: (plans,) plan indices; a block is a slice of it.
        block_start: (blocks + 1,) slice borders.
        block_stages: (blocks,) stages in use; the columns behind are not read.
        block_microbatches: (blocks,).
        block_warmup: (blocks, stages), at most micro-batches - 1, nonincreasing.
        rule: `OVERLAPPED`, `SENDER_BLOCKED` or `BOTH_ENDS`.
        first_block: First block of this call.
        last_block: Behind the last block of this call.
        finish_s: (plans, stages) out: end of each stage's last operation.
        time_s: (plans,) out: the latest of them.

    Returns:
        True where a duration was negative, infinite or not a number.
    """
    lanes = ROW_BYTES // forward_s.itemsize
    width = forward_s.shape[1]
    borders = width - 1
    # Rows: forward, backward, activation, gradient, clocks, gradients under way, rings, zeros.
    backward_at = width * lanes
    activation_at = backward_at + width * lanes
    gradient_at = activation_at + borders * lanes
    clock_at = gradient_at + borders * lanes
    arrival_at = clock_at + width * lanes
    zero_at = arrival_at + borders * lanes
    ring_at = zero_at + lanes
    scratch = np.zeros(ring_at + 2 * width * lanes, forward_s.dtype)
    ring_start = np.zeros(width, np.int64)
    ring_stop = np.zeros(width, np.int64)
    written = np.zeros(width, np.int64)
    to_write = np.zeros(width, np.int64)
    to_read = np.zeros(width, np.int64)
    bad = False
    for block in range(first_block, last_block):
        begin = block_start[block]
        count = block_start[block + 1] - begin
        stages = block_stages[block]
        last = stages - 1
        microbatches = block_microbatches[block]
        warmup = block_warmup[block]
        used = ring_at
        for s in range(last):
            ring_start[s] = used
            used += (warmup[s] - warmup[s + 1] + 1) * lanes
            ring_stop[s] = used
            to_write[s] = to_read[s] = ring_start[s]
            written[s] = zero_at
        if used > scratch.size:
            scratch = np.zeros(used, forward_s.dtype)
        for lane in range(lanes):
            plan = order[begin + (lane if lane < count else 0)]
            here = lane
            for s in range(stages):
                scratch[here] = forward_s[plan, s]
                scratch[backward_at + here] = backward_s[plan, s]
                here += lanes
            here = lane
            for s in range(last):
                scratch[activation_at + here] = activation_s[plan, s]
                scratch[gradient_at + here] = gradient_s[plan, s]
                here += lanes
        for s in range(stages):
            bad |= _is_bad(scratch, s * lanes) or _is_bad(scratch, backward_at + s * lanes)
        for s in range(last):
            bad |= _is_bad(scratch, activation_at + s * lanes)
            bad |= _is_bad(scratch, gradient_at + s * lanes)
        for i in range(clock_at, ring_at):
            scratch[i] = 0.0

        staggered = rule == OVERLAPPED and stages > 1
        for s in range(last):
            staggered &= warmup[s] > warmup[s + 1]
        for step in range(-warmup[0], 1 if staggered else microbatches):
            for s in range(stages):
                m = step + warmup[s]
                if m < 0 or m >= microbatches:
                    continue
                clock = clock_at + s * lanes
                if s == 0:
                    _advance(scratch, clock, clock, clock, 0)
                else:
                    arrival = to_read[s - 1]
                    _advance(scratch, clock, clock, arrival, s * lanes)
                    if rule == BOTH_ENDS:
                        _advance(scratch, clock, clock, clock, activation_at + (s - 1) * lanes)
                    arrival += lanes
                    to_read[s - 1] = ring_start[s - 1] if arrival == ring_stop[s - 1] else arrival
                if s < last:
                    duration = activation_at + s * lanes
                    message = to_write[s]
                    _advance(scratch, message, clock, written[s], duration)
                    if rule != OVERLAPPED:
                        _advance(scratch, clock, clock, clock, duration)
                    written[s] = message
                    message += lanes
                    to_write[s] = ring_start[s] if message == ring_stop[s] else message
            if step < 0 or staggered:
                continue
            for s in range(last, -1, -1):
                clock = clock_at + s * lanes
                duration = backward_at + s * lanes
                if s == last:
                    _advance(scratch, clock, clock, clock, duration)
                else:
                    _advance(scratch, clock, clock, arrival_at + s * lanes, duration)
                    if rule == BOTH_ENDS:
                        _advance(scratch, clock, clock, clock, gradient_at + s * lanes)
                if s > 0:
                    message = arrival_at + (s - 1) * lanes
                    duration = gradient_at + (s - 1) * lanes
                    _advance(scratch, message, clock, message, duration)
                    if rule != OVERLAPPED:
                        _advance(scratch, clock, clock, clock, duration)
        if staggered:
            # Depths that fall at every border: a forward's activation was sent in an earlier step,
            # so a stage may run its backward and its next forward in one go. What is left waiting
            # from stage to stage is the chain of gradients alone.
            for step in range(microbatches):
                for s in range(last, -1, -1):
                    clock = clock_at + s * lanes
                    more = step + 1 + warmup[s] < microbatches
                    arrival = zero_at if s == last else arrival_at + s * lanes
                    if s > 0:
                        message = arrival_at + (s - 1) * lanes
                        _work_and_send(
                            scratch,
                            clock,
                            arrival,
                            backward_at + s * lanes,
                            message,
                            message,
                            gradient_at + (s - 1) * lanes,
                        )
                    else:
                        _advance(scratch, clock, clock, arrival, backward_at)
                    if not more:
                        continue
                    arrival = zero_at
                    if s > 0:
                        arrival = to_read[s - 1]
                        after = arrival + lanes
                        to_read[s - 1] = ring_start[s - 1] if after == ring_stop[s - 1] else after
                    if s < last:
                        message = to_write[s]
                        _work_and_send(
                            scratch,
                            clock,
                            arrival,
                            s * lanes,
                            message,
                            written[s],
                            activation_at + s * lanes,
                        )
                        written[s] = message
                        message += lanes
                        to_write[s] = ring_start[s] if message == ring_stop[s] else message
                    else:
                        _advance(scratch, clock, clock, arrival, s * lanes)

        for lane in range(count):
            plan = order[begin + lane]
            latest = scratch[clock_at + lane]
            for s in range(stages):
                end = scratch[clock_at + s * lanes + lane]
                finish_s[plan, s] = end
                if end > latest:
                    latest = end
            time_s[plan] = latest
    return bad


@njit(cache=True, nogil=True)
def run_program(
    durations_s: Floats,
    program: Integers,
    clock_rows: Integers,
    rows: int,
    order: Integers,
    block_start: Integers,
    first_block: int,
    last_block: int,
    finish_s: Floats,
    time_s: Floats,
) -> bool:
    """Runs blocks of plans through any schedule given as a list of row instructions.

    Args:
        durations_s: (plans, durations): row r of the scratch array holds column r.
        program: (instructions, 4) rows: out, left, right, duration.
        clock_rows: (stages,) rows with the clock of each stage.
        rows: Number of rows of the scratch array; those behind the durations start at 0.
        order: (plans,) plan indices; a block is a slice of it.
        block_start: (blocks + 1,) slice borders.
        first_block: First block of this call.
        last_block: Behind the last block of this call.
        finish_s: (plans, stages) out: end of each stage's last operation.
        time_s: (plans,) out: the latest of them.

    Returns:
        True where a duration was negative, infinite or not a number.
    """
    lanes = ROW_BYTES // durations_s.itemsize
    given = durations_s.shape[1]
    scratch = np.zeros(rows * lanes, durations_s.dtype)
    bad = False
    for block in range(first_block, last_block):
        begin = block_start[block]
        count = block_start[block + 1] - begin
        for lane in range(lanes):
            plan = order[begin + (lane if lane < count else 0)]
            for row in range(given):
                scratch[row * lanes + lane] = durations_s[plan, row]
        for row in range(given):
            bad |= _is_bad(scratch, row * lanes)
        for i in range(given * lanes, rows * lanes):
            scratch[i] = 0.0
        for i in range(program.shape[0]):
            _advance(
                scratch,
                program[i, 0] * lanes,
                program[i, 1] * lanes,
                program[i, 2] * lanes,
                program[i, 3] * lanes,
            )
        for lane in range(count):
            plan = order[begin + lane]
            latest = scratch[clock_rows[0] * lanes + lane]
            for s in range(clock_rows.size):
                end = scratch[clock_rows[s] * lanes + lane]
                finish_s[plan, s] = end
                if end > latest:
                    latest = end
            time_s[plan] = latest
    return bad
