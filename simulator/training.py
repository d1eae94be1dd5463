"""Step time and memory of parallel training plans: the training cost model.

Per plan: matrix products with saturation in each dimension, attention by kernel, element-wise
traffic, launches, tensor/context/expert exchange, fully sharded gathers behind computation, the
pipeline by its exact recurrence over uneven stages with embedding and head where they are,
gradient synchronisation and the optimizer. docs/fidelity.md says how well this predicts published
measurements.

Example:
    >>> from dtgym.simulator import hardware, workload
    >>> problem = Problem(
    ...     workload.transformer("llama3-8b"), hardware.cluster("dgx-h100-32"), global_batch=128,
    ...     gpus=8)
    >>> cost = step(problem, Plans.of(data=[8, 4, 4], context=[1, 2, 1], tensor=[1, 1, 2]))
    >>> cost.feasible.shape, bool((cost.time_s > 0).all())
    ((3,), True)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtgym.simulator import calibration as calibrations
from dtgym.simulator import pipeline
from dtgym.simulator.calibration import Calibration
from dtgym.simulator.errors import InvalidInput, one_of
from dtgym.simulator.hardware_rows import hardware_row, model_row
from dtgym.simulator.kernels import training_columns as columns
from dtgym.simulator.kernels.training_assembly import assemble, screen_plans
from dtgym.simulator.kernels.training_cost import plan_costs
from dtgym.simulator.plans import Plans, Problem, check
from dtgym.simulator.threads import map_ranges

__all__ = ["Breakdown", "Plans", "Problem", "StepCost", "screen", "step"]

Floats = NDArray[np.float64]

FIDELITIES = ("exact", "closed_form")
"""Pipeline by its recurrence, or by the sum over stages plus the slowest per micro-batch."""

SLICE = 1 << 14
"""Plans costed at once: what is only needed on the way stays in the cache."""


@dataclass(frozen=True)
class Breakdown:
    """Where the time of the stage that ends last goes; (plans,) each, seconds; sums to the step.

    Attributes:
        compute_s: Products, attention, element-wise work, recomputation, head and embedding.
        tensor_s: Exposed tensor-, context- and expert-parallel exchange.
        bubble_s: Waiting for other stages and for messages between them.
        data_s: Exposed gradient synchronisation and gathers of weights.
        optimizer_s: Optimizer and fixed host time.
    """

    compute_s: Floats
    tensor_s: Floats
    bubble_s: Floats
    data_s: Floats
    optimizer_s: Floats

    def total_s(self) -> Floats:
        """The sum, (plans,)."""
        return self.compute_s + self.tensor_s + self.bubble_s + self.data_s + self.optimizer_s


@dataclass(frozen=True)
class StepCost:
    """What plans cost.

    Attributes:
        time_s: (plans,) one optimizer step.
        memory_bytes: (plans, stages) peak of one device of each stage; 0 behind the last stage.
        memory_parts: (plans, stages, 5) the same by weights, gradients, optimizer state,
            activations, reserve.
        feasible: (plans,) whether every stage fits its device.
        tight_stage: (plans,) the stage with the most memory.
        missing_bytes: (plans,) what that stage lacks; 0 where it fits.
        breakdown: Where the time goes.
    """

    time_s: Floats
    memory_bytes: Floats
    memory_parts: Floats
    feasible: NDArray[np.bool_]
    tight_stage: NDArray[np.int64]
    missing_bytes: Floats
    breakdown: Breakdown


@dataclass(frozen=True)
class Tables:
    """Plans as the kernel reads them; rows of models and hardware are shared by index."""

    model_rows: Floats
    hardware_rows: Floats
    plan_rows: Floats
    model_index: NDArray[np.int64]
    hardware_index: NDArray[np.int64]
    stage_layers: Floats


def step(
    problem: Problem | Sequence[Problem],
    plans: Plans,
    *,
    fidelity: str = "exact",
    calibration: Calibration | None = None,
) -> StepCost:
    """Costs a batch of plans.

    Args:
        problem: One problem for all plans, or one per plan.
        plans: The batch.
        fidelity: One of `FIDELITIES`.
        calibration: Constants of the model; None takes the shipped ones.

    Returns:
        The cost of every plan; each plan's is the same bit for bit in any batch. A plan that does
        not fit the memory is costed all the same and flagged.

    Raises:
        InvalidInput: A plan that cannot be run whatever the memory; names plan and field.
    """
    tables = encode(problem, plans)
    constants = (calibration or calibrations.shipped()).vector()
    return evaluate(tables, constants, fidelity=fidelity)


def encode(problem: Problem | Sequence[Problem], plans: Plans) -> Tables:
    """Checks plans and turns them into the kernel's tables."""
    if isinstance(problem, Problem):
        check(problem.model, problem.gpus, problem.global_batch, plans)
        problems = [problem]
        index = np.zeros(plans.count, dtype=np.int64)
    else:
        problems = list(problem)
        if len(problems) != plans.count:
            raise InvalidInput(
                f"problem: one per plan ({plans.count}) is needed, got {len(problems)}"
            )
        for p, item in enumerate(problems):
            try:
                check(item.model, item.gpus, item.global_batch, plans.take(slice(p, p + 1)))
            except InvalidInput as error:
                raise InvalidInput(str(error).replace("plan 0", f"plan {p}", 1)) from error
        index = np.arange(plans.count)
    batch = np.array([item.global_batch for item in problems])
    layers = np.array([item.model.layers for item in problems], dtype=np.float64)
    plan_rows = np.empty((plans.count, len(columns.PLAN_COLUMNS)))
    for column, name in enumerate(columns.PLAN_COLUMNS):
        plan_rows[:, column] = (
            plans.microbatches(batch) if name == "microbatches" else getattr(plans, name)
        )
    if plans.stage_layers is None:
        stages = np.arange(plans.stages)
        used = stages < plans.pipeline[:, None]
        stage_layers = np.where(used, (layers / plans.pipeline)[:, None], 0.0)
    else:
        stage_layers = np.ascontiguousarray(plans.stage_layers[:, : plans.stages])
    return Tables(
        model_rows=np.array([model_row(item.model) for item in problems]),
        hardware_rows=np.array(
            [
                hardware_row(item.accelerator, item.precision, item.cluster, item.software)
                for item in problems
            ]
        ),
        plan_rows=plan_rows,
        model_index=index,
        hardware_index=index,
        stage_layers=stage_layers,
    )


def evaluate(tables: Tables, constants: Floats, *, fidelity: str = "exact") -> StepCost:
    """Costs encoded plans; what `step` does after its checks."""
    one_of("fidelity", fidelity, FIDELITIES)
    count, stages = tables.stage_layers.shape
    time, shares, missing = np.empty(count), np.empty((count, 5)), np.empty(count)
    memory_parts = np.empty((count, stages, len(columns.MEMORY_PARTS)))
    memory, tight = np.empty((count, stages)), np.empty(count, dtype=np.int64)
    whole = _Outputs.empty(min(SLICE, count), stages)
    for first in range(0, count, SLICE):
        piece = slice(first, min(first + SLICE, count))
        outputs = whole.head(piece.stop - first)
        memories = (memory_parts[piece], memory[piece], tight[piece], missing[piece])
        outputs.run(tables, piece, constants, memories)
        rows = tables.plan_rows[piece]
        finish = _finish(outputs, tables.stage_layers[piece], rows, fidelity)
        _assemble(finish, outputs.parts, rows, time[piece], shares[piece])
    return StepCost(
        time_s=time,
        memory_bytes=memory,
        memory_parts=memory_parts,
        feasible=missing == 0,
        tight_stage=tight,
        missing_bytes=missing,
        breakdown=Breakdown(*(shares[:, part] for part in range(5))),
    )


@dataclass(frozen=True)
class _Outputs:
    """What the kernel writes about time; see `plan_costs`."""

    forward: Floats
    backward: Floats
    scalars: Floats
    parts: Floats

    @classmethod
    def empty(cls, count: int, stages: int) -> _Outputs:
        """Arrays to be written."""
        return cls(
            np.empty((count, stages)),
            np.empty((count, stages)),
            np.empty((count, len(columns.SCALARS))),
            np.empty((count, stages, len(columns.STAGE_PARTS))),
        )

    def head(self, count: int) -> _Outputs:
        """The first rows."""
        return _Outputs(
            self.forward[:count], self.backward[:count], self.scalars[:count], self.parts[:count]
        )

    def run(
        self, tables: Tables, piece: slice, constants: Floats, memories: tuple[Any, ...]
    ) -> None:
        """Costs the plans of `piece` on all cores."""
        arguments = (
            tables.model_rows,
            tables.hardware_rows,
            tables.plan_rows[piece],
            tables.model_index[piece],
            tables.hardware_index[piece],
            tables.stage_layers[piece],
            constants,
        )
        outputs = (self.forward, self.backward, self.scalars, self.parts, *memories)

        def run(first: int, last: int) -> None:
            plan_costs(*arguments, first, last, *outputs)

        map_ranges(run, piece.stop - piece.start, 512)


def _assemble(finish: Floats, parts: Floats, rows: Floats, time: Floats, shares: Floats) -> None:
    """Writes step times and where they go."""

    def run(first: int, last: int) -> None:
        assemble(finish, parts, rows, first, last, time, shares)

    map_ranges(run, rows.shape[0], 4096)


def _finish(outputs: _Outputs, layers: Floats, rows: Floats, fidelity: str) -> Floats:
    """End of the last operation of each stage, (plans, stages)."""
    forward, backward, scalars = outputs.forward, outputs.backward, outputs.scalars
    used = rows[:, columns.PIPELINE].astype(np.int64)
    microbatches = rows[:, columns.MICROBATCHES].astype(np.int64)
    chunks = rows[:, columns.CHUNKS].astype(np.int64)
    count, stages = forward.shape
    finish: NDArray[Any]
    if stages == 1:
        return microbatches[:, None] * (forward + backward)
    if fidelity == "closed_form":
        both = forward + backward
        slowest = both.max(axis=1)
        ramp = (both.sum(axis=1) - slowest + 2 * (used - 1) * scalars[:, 4]) / chunks
        total = microbatches * slowest + ramp
        return np.repeat(total[:, None], stages, axis=1)
    border = np.broadcast_to(scalars[:, 4:5], (count, stages - 1))
    if (chunks == 1).all():
        finish = pipeline.stage_finish_s(
            forward, backward, border, border, microbatches, stages=used
        )
    else:
        finish = np.zeros((count, stages))
        for kind, depth in np.unique(np.stack([chunks, used], axis=1), axis=0):
            members = np.flatnonzero((chunks == kind) & (used == depth))
            f, b = forward[members, :depth], backward[members, :depth]
            if kind == 1:
                edge = border[members, : depth - 1]
                done = pipeline.stage_finish_s(f, b, edge, edge, microbatches[members])
            else:
                done = _interleaved_finish(
                    f, b, layers[members, :depth], scalars[members], microbatches[members], kind
                )
            finish[members, :depth] = done
    # One stage alone repeats itself; the sum one by one would depend on who else is in the batch.
    alone = used == 1
    finish[alone, 0] = microbatches[alone] * (forward[alone, 0] + backward[alone, 0])
    return finish


def _interleaved_finish(
    forward: Floats,
    backward: Floats,
    layers: Floats,
    scalars: Floats,
    microbatches: NDArray[np.int64],
    chunks: int,
) -> Floats:
    """The interleaved schedule, with embedding in the first chunk and head in the last.

    A stage that holds fewer blocks than the fullest lacks them in the chunk that carries the
    embedding or the head, which is why it was given fewer.
    """
    count, stages = forward.shape
    full = layers.max(axis=1)
    time = []
    for whole, layer in ((forward, scalars[:, 0]), (backward, scalars[:, 1])):
        regular = full * layer / chunks
        split = np.repeat(regular[:, None], chunks, axis=1)[:, :, None].repeat(stages, axis=2)
        rest = whole - (chunks - 1) * regular[:, None]
        for stage in range(stages):
            place = 0 if stage < stages - 1 else chunks - 1
            # Where the missing blocks exceed one chunk, all chunks share what there is.
            split[:, place, stage] = np.maximum(rest[:, stage], 0.0)
            over = rest[:, stage] < 0
            split[over, :, stage] = (whole[over, stage] / chunks)[:, None]
        time.append(split)
    border = np.broadcast_to(scalars[:, 4:5], (count, chunks * stages - 1))
    finish: NDArray[Any] = pipeline.stage_finish_s(
        time[0], time[1], border, border, microbatches, schedule="interleaved"
    )
    return finish


def screen(
    problem: Problem,
    plans: Plans,
    configuration: ArrayLike,
    stage_layers: ArrayLike,
    *,
    calibration: Calibration | None = None,
) -> Floats:
    """Step time by the closed form for very many splits of blocks over stages.

    The layer costs of the few `plans` are worked out once; each split then costs a pass over its
    stages. Up to some 20 % off where stages are uneven or links slow: rank the best with `step`.

    Args:
        problem: What is trained on what.
        plans: Distinct configurations; their `stage_layers` are not read.
        configuration: (splits,) index into `plans`.
        stage_layers: (splits, stages) blocks on each stage; must sum to the model's layers.
        calibration: Constants of the model; None takes the shipped ones.

    Returns:
        (splits,) seconds.

    Raises:
        InvalidInput: An index out of range, or plans that cannot be run.
    """
    constants = (calibration or calibrations.shipped()).vector()
    even = replace(plans, stage_layers=None)
    tables = encode(problem, even)
    layers = np.ascontiguousarray(stage_layers, dtype=np.float64)
    index = np.ascontiguousarray(configuration, dtype=np.int64)
    if layers.ndim != 2 or layers.shape[1] < plans.stages or index.shape != layers.shape[:1]:
        raise InvalidInput(
            f"stage_layers must have shape (splits, {plans.stages}) and configuration (splits,), "
            f"got {layers.shape} and {index.shape}"
        )
    if index.size and (index.min() < 0 or index.max() >= plans.count):
        raise InvalidInput(f"configuration must lie in 0..{plans.count - 1}")
    time = np.empty(index.size)
    table = _screen_table(tables, constants)

    def run(first: int, last: int) -> float:
        return screen_plans(table, index, layers, first, last, time)

    worst = max(map_ranges(run, index.size, 4096), default=0.0)
    if worst > 1e-6 * problem.model.layers:
        raise InvalidInput(
            f"stage_layers must sum to {problem.model.layers} (layers) in every split"
        )
    return time


def _screen_table(tables: Tables, constants: Floats) -> Floats:
    """(plans, SCREEN_COLUMNS): what the closed form needs of each configuration."""
    count, stages = tables.stage_layers.shape
    outputs = _Outputs.empty(count, stages)
    memories = (
        np.empty((count, stages, len(columns.MEMORY_PARTS))),
        np.empty((count, stages)),
        np.empty(count, dtype=np.int64),
        np.empty(count),
    )
    outputs.run(tables, slice(0, count), constants, memories)
    forward, backward, scalars = outputs.forward, outputs.backward, outputs.scalars
    rows = tables.plan_rows
    used = rows[:, columns.PIPELINE].astype(np.int64)
    each = np.arange(count)
    layer = scalars[:, 0] + scalars[:, 1]
    first = forward[:, 0] + backward[:, 0] - tables.stage_layers[:, 0] * layer
    end = forward[each, used - 1] + backward[each, used - 1]
    last = end - tables.stage_layers[each, used - 1] * layer
    # One stage carries both ends.
    last = np.where(used == 1, 0.0, last)
    after = (outputs.parts[:, :, 3] + outputs.parts[:, :, 4]).max(axis=1)
    return np.stack(
        [
            layer,
            first,
            last,
            2 * (used - 1) * scalars[:, 4],
            rows[:, columns.MICROBATCHES],
            rows[:, columns.CHUNKS],
            used.astype(np.float64),
            after,
            tables.model_rows[tables.model_index, columns.LAYERS],
        ],
        axis=1,
    )
