"""The partitioning problem and its plans as arrays: what `partition` prices.

Meaning and rules of a plan are in `partition`; how cost tables are made, in `partition_tables`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtgym.simulator import pipeline
from dtgym.simulator.errors import InvalidInput, above, at_least, one_of
from dtgym.simulator.kernels.partition_stages import CLUSTER_COLUMNS
from dtgym.simulator.pipeline_groups import for_kernel

Floats = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]

WIRES = ("fp32", "bf16", "fp8", "int4")
"""Precisions of what crosses a stage border; the index is the code in `Plans.wire`. ``fp8`` stands
for int8 as well."""

WIRE_BYTES_PER_ELEMENT = (4.0, 2.0, 1.0 + 4 / 128, 0.5 + 4 / 128)
"""Bytes of one element by wire, with one 4-byte scale per 128 values below 16 bits."""

RECOMPUTE = ("none", "selective", "full")
"""Activation recompute; the index is the code in `Plans.recompute`."""

SYNCHRONISATION = ("stage", "barrier")
"""When gradient synchronisation starts: when its own stage has finished, or when all have."""

BORDER_FLOWS = ("single", "replicas", "ranks")
"""Parallel flows of a transfer inside a cluster: one, one per replica, one per accelerator; the
smaller of the two sides counts. With ``single`` a gradient ring is one flow per node as well."""

WAN_PIPES = ("shared", "replica")
"""Whether all replicas' messages between two clusters share one pipe (a wide-area link), or each
replica has its own (clusters in one building, whose nodes reach each other directly)."""


@dataclass(frozen=True)
class CostTables:
    """Per-layer costs of (model, accelerator) pairs, as prefix sums over the layers.

    Axes: R rows (pairs), T tensor-parallel sizes, B numbers of samples per replica, L + 1 layer
    borders (0 first). Entries that were not measured or are not possible are NaN. A number of
    samples between two entries is interpolated.

    Attributes:
        names: (R,) names of the pairs.
        tensor_parallel: (T,) sizes, rising.
        samples: (B,) samples per replica and micro-batch, rising.
        layers: (R,) layers of the row's model; borders behind are not read.
        forward_s: (R, T, B, L + 1).
        backward_s: (R, T, B, L + 1), without recompute.
        selective_s: (R, T, B, L + 1) what selective recompute adds to a backward; full recompute
            adds a forward.
        update_s: (R, T, B, L + 1) optimizer; (R, T, L + 1) is taken for every number of samples.
        parameters: (R, T, L + 1) per accelerator.
        activation_bytes: (R, 3, T, L + 1) stored per sample and accelerator, by recompute.
        largest_activation_bytes: (R, T) of one layer per sample: what full recompute rebuilds.
        output_elements: (R, L + 1) elements per sample that cross each border.
    """

    names: tuple[str, ...]
    tensor_parallel: NDArray[np.int64]
    samples: NDArray[np.int64]
    layers: NDArray[np.int64]
    forward_s: Floats
    backward_s: Floats
    selective_s: Floats
    update_s: Floats
    parameters: Floats
    activation_bytes: Floats
    largest_activation_bytes: Floats
    output_elements: Floats

    def __post_init__(self) -> None:
        for name in ("tensor_parallel", "samples", "layers"):
            _set(self, name, pipeline.whole(f"CostTables.{name}", getattr(self, name), 1))
        for name in ("tensor_parallel", "samples"):
            if (np.diff(getattr(self, name)) <= 0).any():
                raise InvalidInput(f"CostTables.{name} must rise, got {getattr(self, name)}")
        rows, sizes = len(self.names), self.tensor_parallel.size
        borders = int(self.layers.max(initial=0)) + 1
        full = (rows, sizes, self.samples.size, borders)
        for name, shape in {
            "forward_s": full,
            "backward_s": full,
            "selective_s": full,
            "update_s": full,
            "parameters": (rows, sizes, borders),
            "activation_bytes": (rows, len(RECOMPUTE), sizes, borders),
            "largest_activation_bytes": (rows, sizes),
            "output_elements": (rows, borders),
        }.items():
            array = for_kernel(getattr(self, name), np.float64)
            if name == "update_s" and array.ndim == 3:
                array = np.repeat(array[:, :, None], self.samples.size, axis=2)
            if array.shape != shape:
                raise InvalidInput(f"CostTables.{name} must have shape {shape}, got {array.shape}")
            _set(self, name, array)
        if self.layers.shape != (rows,):
            raise InvalidInput(f"CostTables.layers must have shape ({rows},)")

    @cached_property
    def packed(self) -> tuple[Floats, Floats, Floats]:
        """Times, amounts and largest layers as the kernel takes them."""
        times = (self.forward_s, self.backward_s, self.selective_s, self.update_s)
        output = np.broadcast_to(self.output_elements[:, None], self.parameters.shape)
        stored = np.moveaxis(self.activation_bytes, 1, -1)
        amounts = np.stack((self.parameters, output), axis=-1)
        return (
            np.stack(times, axis=-1),
            np.ascontiguousarray(np.concatenate((amounts, stored), axis=-1)),
            self.largest_activation_bytes,
        )

    @cached_property
    def lookup(self) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
        """Index of each tensor-parallel size; lower index and part upwards of each sample count.

        Entry n of the first array is the index of size n, entry n of the others says between which
        two numbers of samples n lies; -1 where there is none.
        """
        sizes = np.full(int(self.tensor_parallel.max()) + 1, -1, np.int64)
        sizes[self.tensor_parallel] = np.arange(self.tensor_parallel.size)
        wanted = np.arange(int(self.samples.max()) + 1)
        low = np.searchsorted(self.samples, wanted, side="right") - 1
        above = np.minimum(low + 1, self.samples.size - 1)
        gap = np.maximum(self.samples[above] - self.samples[low], 1)
        part = np.where(low >= 0, (wanted - self.samples[low]) / gap, 0.0)
        return sizes, low, part


@dataclass(frozen=True)
class Assumptions:
    """What a problem takes for granted; one for all its instances.

    Attributes:
        overlap: Overlap rule of `pipeline.OVERLAP_RULES`.
        synchronisation: One of `SYNCHRONISATION`.
        border_flows: One of `BORDER_FLOWS`.
        wan_pipes: One of `WAN_PIPES`.
        compute_wire: Precision of activations as computed, one of `WIRES`; any other wire costs a
            conversion on both sides.
        wire_bytes_per_element: Bytes by wire, in the order of `WIRES`.
        weight_bytes, gradient_bytes, optimizer_bytes: Memory per parameter; ZeRO 1, 2 and 3 divide
            the last, the last two, all three by the replicas.
        synchronised_bytes: Bytes per parameter of the gradient all-reduce.
        reserve_bytes: Memory of the runtime on every accelerator.
        border_buffers: Message buffers per stage border and side.
        memory_fraction: Part of the memory that may be filled.
        spanning: Whether a stage's replicas may lie in several clusters (`Plans.spread`).
    """

    overlap: str = "overlapped"
    synchronisation: str = "stage"
    border_flows: str = "replicas"
    wan_pipes: str = "shared"
    compute_wire: str = "bf16"
    wire_bytes_per_element: tuple[float, ...] = WIRE_BYTES_PER_ELEMENT
    weight_bytes: float = 2.0
    gradient_bytes: float = 4.0
    optimizer_bytes: float = 12.0
    synchronised_bytes: float = 4.0
    reserve_bytes: float = 2e9
    border_buffers: int = 2
    memory_fraction: float = 0.94
    spanning: bool = False

    def __post_init__(self) -> None:
        one_of("Assumptions.overlap", self.overlap, pipeline.OVERLAP_RULES)
        one_of("Assumptions.synchronisation", self.synchronisation, SYNCHRONISATION)
        one_of("Assumptions.border_flows", self.border_flows, BORDER_FLOWS)
        one_of("Assumptions.wan_pipes", self.wan_pipes, WAN_PIPES)
        one_of("Assumptions.compute_wire", self.compute_wire, WIRES)
        if len(self.wire_bytes_per_element) != len(WIRES):
            raise InvalidInput(f"Assumptions.wire_bytes_per_element must hold {len(WIRES)} numbers")
        above("Assumptions.wire_bytes_per_element", self.wire_bytes_per_element, 0, "bytes")
        for name in ("weight_bytes", "gradient_bytes", "optimizer_bytes", "synchronised_bytes"):
            at_least(f"Assumptions.{name}", getattr(self, name), 0, "bytes")
        at_least("Assumptions.reserve_bytes", self.reserve_bytes, 0, "bytes")
        at_least("Assumptions.border_buffers", self.border_buffers, 0)
        above("Assumptions.memory_fraction", self.memory_fraction, 0)

    @cached_property
    def packed(self) -> Floats:
        """The numbers as the kernel takes them."""
        return np.array(
            [
                BORDER_FLOWS.index(self.border_flows),
                WIRES.index(self.compute_wire),
                self.weight_bytes,
                self.gradient_bytes,
                self.optimizer_bytes,
                self.synchronised_bytes,
                self.reserve_bytes,
                self.border_buffers,
                self.memory_fraction,
                float(self.spanning),
                WAN_PIPES.index(self.wan_pipes),
            ]
        )


@dataclass(frozen=True)
class Problem:
    """Instances of the partitioning problem; axes: I instances, C clusters (padded).

    Attributes:
        tables: Cost tables that the instances share.
        row: (I, C) row of `tables` for the instance's model on the cluster's accelerators; -1 pads.
        global_batch: (I,) samples per iteration.
        nodes: (I, C).
        gpus_per_node: (I, C).
        memory_bytes: (I, C) of one accelerator.
        memory_bytes_per_s: (I, C) its bandwidth, for precision conversion; inf makes that free.
        intra_bytes_per_s: (I, C) one accelerator to another of its node, one direction.
        inter_bytes_per_s: (I, C) one flow between two nodes, one direction.
        intra_latency_s: (I, C) per message.
        inter_latency_s: (I, C) per message.
        wan_bytes_per_s: (I, C, C) from cluster to cluster, one pipe shared by all replicas; 0 where
            there is no link.
        wan_delay_s: (I, C, C) one way.
        gpu_usd_per_hour: (I, C) price of one accelerator.
        wan_usd_per_byte: (I, C, C) price of traffic from cluster to cluster.
        assumptions: What is taken for granted.
        network_bytes_per_s: (I, C) all flows of a node together, one direction; None stands for
            one flow at full rate per accelerator.
    """

    tables: CostTables
    row: Integers
    global_batch: Integers
    nodes: Integers
    gpus_per_node: Integers
    memory_bytes: Floats
    memory_bytes_per_s: Floats
    intra_bytes_per_s: Floats
    inter_bytes_per_s: Floats
    intra_latency_s: Floats
    inter_latency_s: Floats
    wan_bytes_per_s: Floats
    wan_delay_s: Floats
    gpu_usd_per_hour: Floats
    wan_usd_per_byte: Floats
    assumptions: Assumptions = field(default_factory=Assumptions)
    network_bytes_per_s: Floats | None = None

    def __post_init__(self) -> None:
        if self.network_bytes_per_s is None:
            whole = np.asarray(self.inter_bytes_per_s) * np.maximum(self.gpus_per_node, 1)
            _set(self, "network_bytes_per_s", whole)
        for name in ("row", "global_batch", "nodes", "gpus_per_node"):
            numbers = pipeline.whole(f"Problem.{name}", getattr(self, name), -1)
            _set(self, name, for_kernel(numbers, np.int32))
        if self.row.ndim != 2:
            raise InvalidInput(f"Problem.row must have shape (instances, clusters), got {self.row}")
        instances, clusters = self.row.shape
        if (self.row >= len(self.tables.names)).any():
            raise InvalidInput(f"Problem.row must be below {len(self.tables.names)} or -1")
        pair = (instances, clusters)
        square = (instances, clusters, clusters)
        if self.global_batch.shape != (instances,) or (self.global_batch < 1).any():
            raise InvalidInput(f"Problem.global_batch must hold {instances} numbers of at least 1")
        for name in ("nodes", "gpus_per_node"):
            if getattr(self, name).shape != pair:
                raise InvalidInput(f"Problem.{name} must have shape {pair}")
        for name in _CLUSTER_FIELDS + _PAIR_FIELDS:
            shape = pair if name in _CLUSTER_FIELDS else square
            array = for_kernel(getattr(self, name), np.float64)
            if array.shape != shape:
                raise InvalidInput(f"Problem.{name} must have shape {shape}, got {array.shape}")
            used = array[self.row >= 0] if name in _CLUSTER_FIELDS else array
            if np.isnan(used).any() or (used < 0).any():
                raise InvalidInput(f"Problem.{name} must be at least 0 and a number")
            _set(self, name, array)

    def __len__(self) -> int:
        return self.row.shape[0]

    @property
    def clusters(self) -> int:
        """Clusters of the widest instance."""
        return self.row.shape[1]

    @property
    def layers(self) -> NDArray[np.int64]:
        """(I,) layers of each instance's model."""
        return self.tables.layers[self.row.max(axis=1)]

    @property
    def gpus(self) -> NDArray[np.int64]:
        """(I, C) accelerators of each cluster; 0 where padded."""
        counts = self.nodes.astype(np.int64) * self.gpus_per_node
        return np.where(self.row >= 0, counts, 0)

    @cached_property
    def packed(self) -> tuple[Floats, Floats]:
        """Clusters and wide-area links as the kernel takes them."""
        layers = np.where(self.row >= 0, self.tables.layers[self.row], 0)
        columns = [layers if name == "layers" else getattr(self, name) for name in CLUSTER_COLUMNS]
        wan = (self.wan_bytes_per_s, self.wan_delay_s, self.wan_usd_per_byte)
        return np.stack(columns, axis=-1).astype(np.float64), np.stack(wan, axis=-1)

    def take(self, instances: ArrayLike) -> Problem:
        """The problem with the given instances only, in that order."""
        index = np.atleast_1d(np.asarray(instances))
        names = ("row", "global_batch", "nodes", "gpus_per_node", *_CLUSTER_FIELDS, *_PAIR_FIELDS)
        return replace(self, **{name: getattr(self, name)[index] for name in names})


@dataclass(frozen=True)
class Plans:
    """Plans as fixed-shape integer arrays; axes: P plans, S stages (padded).

    Entries behind `stages` are not read. Any integer dtype is accepted and kept as int32.

    Attributes:
        instance: (P,) instance of the problem.
        stages: (P,) stages in use.
        cluster: (P, S) cluster of the stage; stages of a cluster are consecutive, unless each
            replica has its own pipe.
        gpus: (P, S) accelerators of the stage.
        tp: (P, S) tensor parallelism, inside a node; data parallelism is gpus / tp.
        bound: (P, S + 1) layer borders, from 0 to the model's layers.
        microbatch: (P,) samples of one micro-batch over all replicas of a stage; a replica gets
            microbatch / dp, which may differ from stage to stage.
        wire: (P, S - 1) code of `WIRES` per border.
        warmup: (P, S) warm-up depth of 1F1B.
        recompute: (P, S) code of `RECOMPUTE`.
        zero: (P, S) ZeRO stage, 0 to 3.
        spread: (P, S, C) accelerators by cluster where a stage's replicas lie in several clusters
            (then `gpus` is their sum and `cluster` the one that talks to other clusters); None
            where none does. Replicas get equal samples.
    """

    instance: Integers
    stages: Integers
    cluster: Integers
    gpus: Integers
    tp: Integers
    bound: Integers
    microbatch: Integers
    wire: Integers
    warmup: Integers
    recompute: Integers
    zero: Integers
    spread: Integers | None = None

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if value is None:
                continue
            array = np.asarray(value)
            if array.size and array.dtype.kind not in "iub":
                raise InvalidInput(f"Plans.{entry.name} must be integers, got {array.dtype}")
            _set(self, entry.name, for_kernel(array, np.int32))
        if self.cluster.ndim != 2 or self.cluster.shape[1] < 1:
            raise InvalidInput(
                f"Plans.cluster must have shape (plans, stages), got {self.cluster.shape}"
            )
        plans, width = self.cluster.shape
        for name in ("instance", "stages", "microbatch"):
            self._expect(name, (plans,))
        for name in ("gpus", "tp", "warmup", "recompute", "zero"):
            self._expect(name, (plans, width))
        self._expect("bound", (plans, width + 1))
        self._expect("wire", (plans, width - 1))
        if self.spread is not None and self.spread.shape[:2] != (plans, width):
            raise InvalidInput(f"Plans.spread must have shape ({plans}, {width}, clusters)")
        if plans and not (self.stages.min() >= 1 and self.stages.max() <= width):
            raise InvalidInput(f"Plans.stages must lie between 1 and {width}")

    def _expect(self, name: str, shape: tuple[int, ...]) -> None:
        if getattr(self, name).shape != shape:
            raise InvalidInput(
                f"Plans.{name} must have shape {shape}, got {getattr(self, name).shape}"
            )

    def __len__(self) -> int:
        return self.cluster.shape[0]

    @property
    def width(self) -> int:
        """Stages that fit in the arrays."""
        return self.cluster.shape[1]

    @property
    def used(self) -> NDArray[np.bool_]:
        """(P, S) which entries are stages in use."""
        return np.arange(self.width) < self.stages[:, None]

    def take(self, index: ArrayLike) -> Plans:
        """The given plans, in that order (indices or a mask)."""
        index = np.asarray(index)
        values: dict[str, Any] = {
            e.name: value[index]
            for e in fields(self)
            if (value := getattr(self, e.name)) is not None
        }
        return Plans(**values)

    def with_standard_warmup(self) -> Plans:
        """The same plans with warm-up depths S - 1 - s."""
        depth = self.stages[:, None] - 1 - np.arange(self.width, dtype=np.int32)
        return replace(self, warmup=np.maximum(depth, 0))


def make_plans(
    cluster: ArrayLike,
    gpus: ArrayLike,
    tp: ArrayLike,
    bound: ArrayLike,
    microbatch: ArrayLike,
    *,
    instance: ArrayLike = 0,
    stages: ArrayLike | None = None,
    wire: ArrayLike | str = "bf16",
    warmup: ArrayLike | None = None,
    recompute: ArrayLike | str = "none",
    zero: ArrayLike = 0,
    spread: ArrayLike | None = None,
) -> Plans:
    """Plans from what must be said; the rest has usual values and is broadcast.

    Args:
        cluster: (P, S), or (S,) for one plan; the other arrays of stages likewise.
        gpus: Accelerators per stage.
        tp: Tensor parallelism per stage.
        bound: (P, S + 1) layer borders.
        microbatch: (P,) or one number: samples of one micro-batch over all replicas.
        instance: (P,) or one number.
        stages: (P,) or one number; None uses all.
        wire: Codes per border, or one name of `WIRES` for all.
        warmup: Depths; None is the standard S - 1 - s.
        recompute: Codes per stage, or one name of `RECOMPUTE` for all.
        zero: ZeRO stage, 0 to 3.
        spread: See `Plans.spread`.

    Raises:
        InvalidInput: Shapes that do not fit, or an unknown name.

    Examples:
        >>> plans = make_plans([0, 1], [8, 8], [2, 4], [0, 16, 34], 4, wire="fp8")
        >>> len(plans), plans.warmup.tolist(), plans.wire.tolist()
        (1, [[1, 0]], [[2]])
    """
    home = np.atleast_2d(np.asarray(cluster))
    plans, width = home.shape
    if isinstance(wire, str):
        wire = WIRES.index(one_of("wire", wire, WIRES))
    if isinstance(recompute, str):
        recompute = RECOMPUTE.index(one_of("recompute", recompute, RECOMPUTE))

    def spread_out(name: str, value: ArrayLike, *shape: int) -> NDArray[Any]:
        try:
            return np.broadcast_to(np.asarray(value), shape)
        except ValueError as error:
            raise InvalidInput(f"{name} must have shape {shape}: {error}") from error

    used = spread_out("stages", width if stages is None else stages, plans)
    standard = np.maximum(used[:, None] - 1 - np.arange(width), 0)
    depths: ArrayLike = standard if warmup is None else warmup
    return Plans(
        instance=spread_out("instance", instance, plans),
        stages=used,
        cluster=home,
        gpus=spread_out("gpus", gpus, plans, width),
        tp=spread_out("tp", tp, plans, width),
        bound=spread_out("bound", bound, plans, width + 1),
        microbatch=spread_out("microbatch", microbatch, plans),
        wire=spread_out("wire", wire, plans, width - 1),
        warmup=spread_out("warmup", depths, plans, width),
        recompute=spread_out("recompute", recompute, plans, width),
        zero=spread_out("zero", zero, plans, width),
        spread=None if spread is None else np.asarray(spread).reshape(plans, width, -1),
    )


_CLUSTER_FIELDS = (
    "memory_bytes",
    "memory_bytes_per_s",
    "intra_bytes_per_s",
    "inter_bytes_per_s",
    "network_bytes_per_s",
    "intra_latency_s",
    "inter_latency_s",
    "gpu_usd_per_hour",
)
_PAIR_FIELDS = ("wan_bytes_per_s", "wan_delay_s", "wan_usd_per_byte")


def _set(owner: object, name: str, value: object) -> None:
    """Stores a checked field of a frozen dataclass."""
    object.__setattr__(owner, name, value)
