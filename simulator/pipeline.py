"""Iteration time of pipeline-parallel plans with uneven stages and links: exact, in batches.

The recurrence: a stage works through its operations in the order of the schedule, an operation
starts when the stage is free and its message has arrived, and a link carries one message at a time
in each direction. With f, b the durations of forward and backward, a, g those of an activation and
a gradient on a border,

    end F(s, m) = max(free_s, arrival F(s, m)) + f_s
    arrival F(s + 1, m) = max(end F(s, m), arrival F(s + 1, m - 1)) + a_s
    end B(s, m) = max(free_s, arrival B(s, m)) + b_s
    arrival B(s - 1, m) = max(end B(s, m), arrival B(s - 1, m - 1)) + g_(s-1)

Overlap rules say who is busy while a message travels:

- ``overlapped``: nobody; the stage goes on with its next operation.
- ``sender_blocked``: the sending stage, for the whole transfer.
- ``both_ends``: the sending stage for the whole transfer, and the receiving stage once more for
  the same time before its operation counts as done (copying in and out by blocking calls).

On clusters with fast links the three differ by a few percent; with slow links and blocking calls
measurements lie between the second and the third (docs/partitioning_physics.md).

Source:
    Narayanan et al., SC 2021, section 2.2, for the order of operations (`pipeline_orders` has the
    other schedules); the recurrence is the longest path through that order's dependency graph.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtgym.simulator.errors import InvalidInput, above, at_least, one_of
from dtgym.simulator.kernels import pipeline_recurrence as kernels
from dtgym.simulator.pipeline_bounds import closed_form_s, lower_bound_s, period_form_s, period_s
from dtgym.simulator.pipeline_groups import Groups, cut_into_blocks, for_kernel, group_by_shape
from dtgym.simulator.pipeline_orders import SCHEDULES, in_flight, standard_warmup
from dtgym.simulator.pipeline_program import compile_program
from dtgym.simulator.threads import map_ranges

__all__ = [
    "OVERLAP_RULES",
    "SCHEDULES",
    "closed_form_s",
    "in_flight",
    "iteration_time_s",
    "lower_bound_s",
    "period_form_s",
    "period_s",
    "stage_finish_s",
    "standard_warmup",
]

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.int64]

OVERLAP_RULES = ("overlapped", "sender_blocked", "both_ends")
"""Overlap rules, in the order of the kernel's codes."""

_MINIMUM_BLOCKS = 32
"""Fewest blocks of plans worth a slice for another core (about 0.3 ms at 8 x 32)."""


def iteration_time_s(
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    activation_s: ArrayLike,
    gradient_s: ArrayLike,
    num_microbatches: ArrayLike,
    *,
    schedule: str = "1f1b",
    warmup: ArrayLike | None = None,
    overlap: str = "overlapped",
    stages: ArrayLike | None = None,
    chunks: int = 2,
    weight_s: ArrayLike | None = None,
    dtype: Literal["float64", "float32"] = "float64",
) -> Floats:
    """Time of one iteration of each plan, without gradient synchronisation and update.

    Args:
        forward_s: (plans, stages) forward of one micro-batch, s. Interleaved: the stage's total,
            split evenly over its chunks; or (plans, chunks, stages) for uneven chunks.
        backward_s: Backward of one micro-batch, s, shaped like `forward_s`.
        activation_s: (plans, stages - 1) transfer of an activation over each border, s.
            Interleaved: each chunk crosses these borders, and the way back from the last stage to
            the first takes as long as the slowest of them; or, with uneven chunks,
            (plans, chunks * stages - 1) borders in model order.
        gradient_s: Transfer of a gradient, s, shaped like `activation_s`.
        num_microbatches: Micro-batches, at least 1; one number or (plans,).
        schedule: ``1f1b``, ``gpipe``, ``interleaved`` or ``zero_bubble`` (`pipeline_orders`).
        warmup: Warm-up depths of ``1f1b`` and ``zero_bubble``, (stages,) or (plans, stages), never
            rising from stage to stage; None is the standard S - 1 - s.
        overlap: ``overlapped``, ``sender_blocked`` or ``both_ends``.
        stages: (plans,) stages in use; the columns behind are not read. None uses all.
        chunks: Model chunks per stage; read by ``interleaved`` only.
        weight_s: (plans, stages) part of `backward_s` that is the gradient of the weights, read by
            ``zero_bubble`` only; None is half.
        dtype: ``float64``, or ``float32`` for searches (twice the lanes, error about 1e-6).

    Returns:
        (plans,) seconds, in `dtype`. Each plan's result is the same bit for bit in any batch.

    Raises:
        InvalidInput: Shapes that do not fit, durations that are negative or not finite, fewer than
            one micro-batch, rising warm-up depths, unknown names.

    Source:
        Module docstring; uniform stages without transfers take (M + S - 1) (f + b).

    Examples:
        >>> forward, backward, transfer = [[1.0, 1.0]], [[2.0, 2.0]], [[1.0]]
        >>> iteration_time_s(forward, backward, [[0.0]], [[0.0]], 4)
        array([15.])
        >>> iteration_time_s(forward, backward, transfer, transfer, 4)
        array([19.])
        >>> iteration_time_s(forward, backward, transfer, transfer, 4, warmup=[2, 0])
        array([17.])
    """
    return _run(
        forward_s,
        backward_s,
        activation_s,
        gradient_s,
        num_microbatches,
        schedule=schedule,
        warmup=warmup,
        overlap=overlap,
        stages=stages,
        chunks=chunks,
        weight_s=weight_s,
        dtype=dtype,
    )[1]


def stage_finish_s(
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    activation_s: ArrayLike,
    gradient_s: ArrayLike,
    num_microbatches: ArrayLike,
    *,
    schedule: str = "1f1b",
    warmup: ArrayLike | None = None,
    overlap: str = "overlapped",
    stages: ArrayLike | None = None,
    chunks: int = 2,
    weight_s: ArrayLike | None = None,
    dtype: Literal["float64", "float32"] = "float64",
) -> Floats:
    """End of each stage's last operation: what gradient synchronisation of a stage waits for.

    Arguments and errors as `iteration_time_s`.

    Returns:
        (plans, stages) seconds; 0 for stages not in use.

    Examples:
        >>> stage_finish_s([[1.0, 1.0]], [[2.0, 2.0]], [[0.0]], [[0.0]], 4).tolist()
        [[15.0, 13.0]]
    """
    return _run(
        forward_s,
        backward_s,
        activation_s,
        gradient_s,
        num_microbatches,
        schedule=schedule,
        warmup=warmup,
        overlap=overlap,
        stages=stages,
        chunks=chunks,
        weight_s=weight_s,
        dtype=dtype,
    )[0]


def _run(
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    activation_s: ArrayLike,
    gradient_s: ArrayLike,
    num_microbatches: ArrayLike,
    *,
    schedule: str,
    warmup: ArrayLike | None,
    overlap: str,
    stages: ArrayLike | None,
    chunks: int,
    weight_s: ArrayLike | None,
    dtype: str,
) -> tuple[Floats, Floats]:
    """Checks shapes, sorts plans into groups of one shape and runs their kernels."""
    one_of("schedule", schedule, SCHEDULES)
    rule = OVERLAP_RULES.index(one_of("overlap", overlap, OVERLAP_RULES))
    kind = np.dtype(one_of("dtype", dtype, ("float64", "float32")))
    forward = _array("forward_s", forward_s, kind)
    backward = _array("backward_s", backward_s, kind)
    activation = _array("activation_s", activation_s, kind)
    gradient = _array("gradient_s", gradient_s, kind)
    uneven_chunks = schedule == "interleaved" and forward.ndim == 3
    if schedule != "interleaved":
        chunks = 1
    elif uneven_chunks:
        chunks = forward.shape[1]
    elif chunks != int(above("chunks", chunks, 0)):
        raise InvalidInput(f"chunks must be a whole number, got {chunks}")
    if forward.ndim != 2 + uneven_chunks or forward.shape[-1] < 1:
        raise InvalidInput(
            f"forward_s must have shape (plans, stages) with stages >= 1, got {forward.shape}"
        )
    plans, width = forward.shape[0], forward.shape[-1]
    borders = (chunks if uneven_chunks else 1) * width - 1
    _expect("backward_s", backward, forward.shape, "shape of forward_s")
    _expect("activation_s", activation, (plans, borders), "one border between two stages")
    _expect("gradient_s", gradient, (plans, borders), "one border between two stages")
    used = counts("stages", width if stages is None else stages, plans, width)
    microbatches = counts("num_microbatches", num_microbatches, plans, None)
    depths = _given_depths(schedule, warmup, plans, width)
    groups = group_by_shape(plans, used, microbatches, depths)
    _check_depths(groups)

    finish_s = np.zeros((plans, width), kind)
    time_s = np.zeros(plans, kind)
    if schedule in ("1f1b", "gpipe"):
        block_start, members = cut_into_blocks(groups.starts, kernels.ROW_BYTES // kind.itemsize)
        arguments = (
            forward,
            backward,
            activation,
            gradient,
            groups.order,
            block_start,
            groups.stages[members],
            groups.microbatches[members],
            groups.warmup[members],
            rule,
        )

        def run(first: int, last: int) -> bool:
            return kernels.one_forward_one_backward(*arguments, first, last, finish_s, time_s)

        bad = any(map_ranges(run, block_start.size - 1, _MINIMUM_BLOCKS))
    else:
        split = _weight_part(weight_s, backward, kind) if schedule == "zero_bubble" else None
        bad = False
        for g, (first, stop) in enumerate(pairwise(groups.starts.tolist())):
            members = groups.order[first:stop]
            program = compile_program(
                schedule,
                int(groups.stages[g]),
                int(groups.microbatches[g]),
                groups.warmup[g],
                chunks,
                rule,
            )
            table = program.durations_s(forward, backward, activation, gradient, split, members)
            bad |= _run_program(program, table, members, finish_s, time_s)
    if bad:
        _name_the_bad_duration(
            used,
            forward_s=forward,
            backward_s=backward,
            activation_s=activation,
            gradient_s=gradient,
        )
    return finish_s, time_s


def _run_program(
    program: Any, table: Floats, group: Integers, finish_s: Floats, time_s: Floats
) -> bool:
    plans, stages = group.size, program.clock_rows.size
    lanes = kernels.ROW_BYTES // table.itemsize
    block_start, _ = cut_into_blocks(np.array([0, plans]), lanes)
    finish = np.empty((plans, stages), table.dtype)
    time = np.empty(plans, table.dtype)

    def run(first: int, last: int) -> bool:
        return kernels.run_program(
            table,
            program.instructions,
            program.clock_rows,
            program.rows,
            np.arange(plans),
            block_start,
            first,
            last,
            finish,
            time,
        )

    bad = any(map_ranges(run, block_start.size - 1, _MINIMUM_BLOCKS))
    finish_s[group, :stages] = finish
    time_s[group] = time
    return bad


def _given_depths(
    schedule: str, warmup: ArrayLike | None, plans: int, width: int
) -> Integers | int:
    """Depths as given, the deepest possible for GPipe, or the width alone for standard depths."""
    if warmup is None:
        return np.full(width, np.iinfo(np.int64).max) if schedule == "gpipe" else width
    if schedule not in ("1f1b", "zero_bubble"):
        raise InvalidInput(f"warmup is fixed by the {schedule} schedule; leave it out")
    depths = whole("warmup", warmup, 0, "micro-batches")
    if depths.shape not in ((width,), (plans, width)):
        raise InvalidInput(
            f"warmup must have shape ({width},) or ({plans}, {width}), got {depths.shape}"
        )
    return depths


def _check_depths(groups: Groups) -> None:
    rising = (np.diff(groups.warmup, axis=1) > 0).any(axis=1)
    if rising.any():
        group = int(np.argmax(rising))
        raise InvalidInput(
            "warmup must not increase from one stage to the next (stages would wait for each "
            f"other for ever), got {groups.warmup[group, : groups.stages[group]].tolist()} "
            f"in plan {groups.order[groups.starts[group]]}"
        )


def whole(field: str, value: ArrayLike, minimum: int, unit: str = "") -> Integers:
    """Returns `value` as int64, all of it whole numbers of at least `minimum`.

    Raises:
        InvalidInput: A fraction, or a number below `minimum`.
    """
    array = np.asarray(value)
    if array.dtype.kind in "iu":
        if array.size and array.min() < minimum:
            at_least(field, array, minimum, unit)
        return array.astype(np.int64, copy=False)
    numbers = at_least(field, value, minimum, unit)
    if (numbers != np.floor(numbers)).any():
        raise InvalidInput(f"{field} must be whole numbers, got {value!r}")
    return numbers.astype(np.int64)


def counts(field: str, value: ArrayLike, plans: int, maximum: int | None) -> Integers:
    """Returns `value` as whole numbers of at least 1, () or (plans,).

    Raises:
        InvalidInput: Another shape, a fraction, a number below 1 or above `maximum`.
    """
    numbers = whole(field, value, 1)
    if numbers.shape not in ((), (plans,)):
        raise InvalidInput(f"{field} must be one number or shape ({plans},), got {numbers.shape}")
    if maximum is not None and numbers.size and numbers.max() > maximum:
        raise InvalidInput(f"{field} must be at most {maximum}, got {numbers.max()}")
    return numbers


def _array(field: str, value: ArrayLike, kind: np.dtype[Any]) -> Floats:
    try:
        return for_kernel(value, kind)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{field} must be an array of numbers (in s): {error}") from error


def _expect(field: str, value: Floats, shape: tuple[int, ...], why: str) -> None:
    if value.shape != shape:
        raise InvalidInput(f"{field} must have shape {shape} ({why}), got {value.shape}")


def _weight_part(weight_s: ArrayLike | None, backward: Floats, kind: np.dtype[Any]) -> Floats:
    if weight_s is None:
        return backward / 2
    weight = _array("weight_s", weight_s, kind)
    _expect("weight_s", weight, backward.shape, "shape of backward_s")
    if (weight > backward).any():
        raise InvalidInput("weight_s is a part of backward_s and must not exceed it (in s)")
    return weight


def _name_the_bad_duration(stages: Integers, **fields: Floats) -> None:
    """Raises for the first field with a negative or non-finite duration in a column in use."""
    for name, values in fields.items():
        border = name in ("activation_s", "gradient_s")
        if values.ndim == 2:
            values = np.where(np.arange(values.shape[1]) < stages[..., None] - border, values, 0)
        at_least(name, values, 0, "s")
    raise InvalidInput("weight_s must be at least 0 s and finite")
