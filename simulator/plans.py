"""Parallel plans as arrays, and the training problem they are plans for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtgym.simulator.errors import InvalidInput, at_least, finite_array, one_of
from dtgym.simulator.hardware import Accelerator, Cluster
from dtgym.simulator.software import Software
from dtgym.simulator.workload import Transformer

Integers = NDArray[np.int64]

TRAINING_PRECISIONS = ("half", "fp8", "fp4")
"""Arithmetic of the blocks' matrix products; attention, head and exchange stay at 16 bits."""

RECOMPUTE = ("none", "selective", "full", "operators")
"""Activations recomputed in the backward pass: none, attention's inner part, whole blocks, or all
but attention and every other matrix product."""


@dataclass(frozen=True)
class Problem:
    """What is trained on what.

    Attributes:
        model: Shape of the model, with its sequence length.
        cluster: Nodes with one and the same kind of accelerator.
        global_batch: Sequences of one step.
        gpus: Accelerators used; 0 stands for the whole cluster.
        precision: One of `TRAINING_PRECISIONS`.
        software: Switches of the framework.
    """

    model: Transformer
    cluster: Cluster
    global_batch: int
    gpus: int = 0
    precision: str = "half"
    software: Software = field(default_factory=Software)

    def __post_init__(self) -> None:
        one_of("Problem.precision", self.precision, TRAINING_PRECISIONS)
        at_least("Problem.global_batch", self.global_batch, 1, "sequences")
        kinds = {group.node.accelerator for group in self.cluster.groups}
        if len(kinds) > 1:
            names = ", ".join(sorted(kind.name for kind in kinds))
            raise InvalidInput(
                f"Problem.cluster must hold one kind of accelerator, got {names}; "
                "cost each part with a cluster of its own"
            )
        self.accelerator.peak_flop_per_s(self.precision)
        if not self.gpus:
            object.__setattr__(self, "gpus", self.cluster.gpus)
        if not 1 <= self.gpus <= self.cluster.gpus:
            raise InvalidInput(
                f"Problem.gpus must lie in 1..{self.cluster.gpus} (the cluster's), got {self.gpus}"
            )

    @property
    def accelerator(self) -> Accelerator:
        """The cluster's kind of accelerator."""
        return self.cluster.groups[0].node.accelerator


@dataclass(frozen=True)
class Plans:
    """A batch of plans; every field is (plans,) unless it says otherwise.

    Ranks are laid out as Megatron-LM does: tensor innermost, then context, data, pipeline. Numbers
    stand for all plans; `Plans.of` also takes names for `recompute`.

    Attributes:
        tensor: Tensor-parallel degree.
        pipeline: Pipeline stages.
        data: Data-parallel degree.
        microbatch: Sequences of one micro-batch on one data-parallel rank.
        context: Context-parallel degree (ring attention over parts of the sequence).
        expert: Expert-parallel degree, within data and context ranks.
        chunks: Model chunks per stage; more than one is the interleaved schedule.
        zero: ZeRO stage 0..3; 2 and 3 gather weights block by block, as FSDP does.
        sequence_parallel: Whether norms and dropout are split over the tensor ranks, 0 or 1.
        recompute: Index into `RECOMPUTE`.
        stage_layers: (plans, stages) blocks on each stage, 0 behind a plan's last stage. They may
            be fractions, for chunks that do not divide evenly. None splits evenly.
    """

    tensor: Integers
    pipeline: Integers
    data: Integers
    microbatch: Integers
    context: Integers
    expert: Integers
    chunks: Integers
    zero: Integers
    sequence_parallel: Integers
    recompute: Integers
    stage_layers: NDArray[np.float64] | None = None

    @classmethod
    def of(
        cls,
        *,
        tensor: ArrayLike = 1,
        pipeline: ArrayLike = 1,
        data: ArrayLike = 1,
        microbatch: ArrayLike = 1,
        context: ArrayLike = 1,
        expert: ArrayLike = 1,
        chunks: ArrayLike = 1,
        zero: ArrayLike = 1,
        sequence_parallel: ArrayLike = 0,
        recompute: ArrayLike = 0,
        stage_layers: ArrayLike | None = None,
    ) -> Plans:
        """Makes a batch from numbers and arrays that broadcast to (plans,).

        Raises:
            InvalidInput: Shapes that do not fit, fractions, values out of range.

        Examples:
            >>> Plans.of(tensor=[1, 2, 4], data=[8, 4, 2], recompute="full").count
            3
        """
        names = np.asarray(recompute)
        if names.dtype.kind in "US":
            flat = [RECOMPUTE.index(one_of("recompute", str(n), RECOMPUTE)) for n in names.flat]
            recompute = np.array(flat).reshape(names.shape)
        given = {
            "tensor": tensor,
            "pipeline": pipeline,
            "data": data,
            "microbatch": microbatch,
            "context": context,
            "expert": expert,
            "chunks": chunks,
            "zero": zero,
            "sequence_parallel": sequence_parallel,
            "recompute": recompute,
        }
        columns = {name: _whole(name, value) for name, value in given.items()}
        layers = None
        if stage_layers is not None:
            layers = at_least("stage_layers", stage_layers, 0, "blocks")
            if layers.ndim != 2:
                raise InvalidInput(
                    f"stage_layers must have shape (plans, stages), got {layers.shape}"
                )
        rows = [column.size for column in columns.values() if column.size != 1]
        rows += [layers.shape[0]] if layers is not None else []
        count = max(rows, default=1)
        if any(size not in (1, count) for size in rows):
            raise InvalidInput(f"plans: fields must have one length, got {sorted(set(rows))}")
        wide = {name: np.broadcast_to(column, (count,)) for name, column in columns.items()}
        if layers is not None and layers.shape[0] != count:
            layers = np.repeat(layers, count, axis=0)
        return cls(**wide, stage_layers=layers)

    def __post_init__(self) -> None:
        limits = {"zero": (0, 3), "sequence_parallel": (0, 1), "recompute": (0, len(RECOMPUTE) - 1)}
        for item in fields(self)[:-1]:
            low, high = limits.get(item.name, (1, None))
            value: Integers = getattr(self, item.name)
            if (value < low).any() or (high is not None and (value > high).any()):
                bad = value[(value < low) | (value > (high or value.max()))][0]
                bound = f"at least {low}" if high is None else f"in {low}..{high}"
                raise InvalidInput(f"{item.name} must be {bound}, got {bad}")

    @property
    def count(self) -> int:
        """Number of plans."""
        return self.tensor.size

    @property
    def stages(self) -> int:
        """Stages of the deepest plan."""
        return int(self.pipeline.max(initial=1))

    def take(self, index: ArrayLike | slice) -> Plans:
        """Some of the plans, by index, mask or slice."""
        index = index if isinstance(index, slice) else np.asarray(index)
        picked = {item.name: getattr(self, item.name)[index] for item in fields(self)[:-1]}
        layers = None if self.stage_layers is None else self.stage_layers[index]
        return Plans(**picked, stage_layers=layers)

    def microbatches(self, global_batch: ArrayLike) -> Integers:
        """Micro-batches of each plan, (plans,)."""
        return np.asarray(global_batch) // (self.data * self.microbatch)


def check(model: Transformer, gpus: int, global_batch: int, plans: Plans) -> None:
    """Refuses plans that cannot be run, whatever the memory.

    Raises:
        InvalidInput: The first plan that does not fit, with the field and what was expected.
    """
    degrees = plans.tensor * plans.pipeline * plans.data * plans.context
    _all(
        degrees == gpus,
        lambda p: (
            f"tensor x pipeline x data x context must be {gpus} (Problem.gpus), got "
            f"{plans.tensor[p]} x {plans.pipeline[p]} x {plans.data[p]} x {plans.context[p]} "
            f"= {degrees[p]}"
        ),
    )
    _all(
        model.heads % plans.tensor == 0,
        lambda p: f"tensor must divide heads ({model.heads}), got {plans.tensor[p]}",
    )
    _all(
        global_batch % (plans.data * plans.microbatch) == 0,
        lambda p: (
            f"data x microbatch must divide global_batch ({global_batch}), got "
            f"{plans.data[p]} x {plans.microbatch[p]}"
        ),
    )
    _all(
        plans.pipeline <= model.layers,
        lambda p: f"pipeline must be at most {model.layers} (layers), got {plans.pipeline[p]}",
    )
    _all(
        (model.experts % plans.expert == 0) & (plans.data * plans.context % plans.expert == 0),
        lambda p: (
            f"expert must divide experts ({model.experts}) and data x context "
            f"({plans.data[p] * plans.context[p]}), got {plans.expert[p]}"
        ),
    )
    microbatches = plans.microbatches(global_batch)
    _all(
        (plans.chunks == 1) | ((plans.pipeline > 1) & (microbatches % plans.pipeline == 0)),
        lambda p: (
            f"chunks above 1 need pipeline above 1 and micro-batches ({microbatches[p]}) that are "
            f"a multiple of it, got pipeline {plans.pipeline[p]}"
        ),
    )
    if plans.stage_layers is not None:
        if plans.stage_layers.shape[1] < plans.stages:
            raise InvalidInput(
                f"stage_layers must have {plans.stages} columns (pipeline), got "
                f"{plans.stage_layers.shape[1]}"
            )
        used = np.arange(plans.stage_layers.shape[1]) < plans.pipeline[:, None]
        total = np.where(used, plans.stage_layers, 0).sum(axis=1)
        _all(
            np.abs(total - model.layers) < 1e-6,
            lambda p: f"stage_layers must sum to {model.layers} (layers), got {total[p]:g}",
        )


def _all(holds: NDArray[np.bool_], message: Callable[[int], str]) -> None:
    if not holds.all():
        plan = int(np.argmin(holds))
        raise InvalidInput(f"plan {plan}: {message(plan)}")


def _whole(name: str, value: ArrayLike) -> Integers:
    array = np.atleast_1d(np.asarray(value))
    if array.ndim != 1:
        raise InvalidInput(f"{name} must be a number or (plans,), got shape {array.shape}")
    if array.dtype.kind not in "iub":
        numbers = finite_array(name, array)
        array = numbers.astype(np.int64)
        if (array != numbers).any():
            raise InvalidInput(f"{name} must be whole, got {numbers[array != numbers][0]:g}")
    return array.astype(np.int64)
