"""The cost estimator of Metis (USENIX ATC'24), re-implemented from a description of its behaviour.

Metis plans a model over a list of heterogeneous nodes from profiled layer times. This module holds
its *estimate* of a plan's cost, in milliseconds; `dtgym.baselines.partitioning.metis_search` holds
the search that uses it. The estimate is not a truth about the plan: planners are compared by
`dtgym.simulator.partition`, never by their own estimates.

The estimate of a plan with S stages and B micro-batches is the sum of six parts:

=================  ===========================================================================
execution          (B - 1) max e_i + sum e_i, e_i the stage's profiled layer times
fb_sync            B times the profiled forward-backward time beyond the layer times (last stage)
parameter_update   max over stages of 2 optimizer / tp_i * layers_i / layers
dp_allreduce       max over stages of 2 (dp_i - 1) / dp_i * parameter bytes / tp_i / bandwidth
pp                 one activation, in *elements*, over each border, once per iteration
batch_generate     B times the profiled batch generator
=================  ===========================================================================

Bandwidths are numbers of 2**20 bytes per millisecond (about GiB/s). As shipped, Metis returns the
in-node value where the inter-node one is asked for; `honour_inter_bandwidth` mends that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.errors import InvalidInput

COMPONENTS = (
    "execution_ms",
    "fb_sync_ms",
    "parameter_update_ms",
    "dp_allreduce_ms",
    "pp_ms",
    "batch_generate_ms",
)
"""The parts of a plan's cost, in the order of `plan_components_ms`."""

PLAN_COLUMNS = (
    "node_sequence",
    "num_stage",
    "device_groups",
    "strategies",
    "batches",
    "layer_partition",
)
"""The first columns of a plan row; further columns are not read."""

_PROFILE_NAME = re.compile(r"^DeviceType\.(?P<type>.+)_tp(?P<tp>\d+)_bs(?P<bs>\d+)(\.json)?$")
_BANDWIDTH_UNIT = 1024.0**2

FloatArray = NDArray[np.float64]
ProfileKey = tuple[str, int, int]


@dataclass(frozen=True)
class Plan:
    """A plan as Metis writes it.

    Attributes:
        node_sequence: GPU types in the order in which their nodes are laid along the pipeline.
        num_stage: Number of stages that are costed; shorter than `device_groups` in the malformed
            plans that the shipped search produces.
        device_groups: GPUs of each stage.
        strategies: (dp, tp) of each stage.
        batches: Micro-batches per iteration.
        layer_partition: Layer borders, one more than stages.
    """

    node_sequence: tuple[str, ...]
    num_stage: int
    device_groups: tuple[int, ...]
    strategies: tuple[tuple[int, int], ...]
    batches: int
    layer_partition: tuple[int, ...]

    def is_well_formed(self, num_layers: int) -> bool:
        """Whether every group is a costed stage, no stage is empty and every layer is placed."""
        borders = self.layer_partition
        return (
            self.num_stage == len(self.device_groups) == len(borders) - 1
            and borders[0] == 0
            and borders[-1] == num_layers
            and all(low < high for low, high in pairwise(borders))
        )


@dataclass(frozen=True)
class Profile:
    """One profile file: a GPU type at one tensor-parallel degree and batch size.

    Attributes:
        layer_ms: Cumulative forward and backward time of the layers, shape (layers + 1,).
        forward_backward_ms: The profiled forward and backward time of the whole model.
        layer_memory_mb: Cumulative profiled memory of the layers, shape (layers + 1,); empty where
            the file has none (only the search needs it).
    """

    layer_ms: FloatArray
    forward_backward_ms: float
    layer_memory_mb: FloatArray

    @property
    def sync_ms(self) -> float:
        """What the profile's forward-backward time has beyond its layers."""
        return self.forward_backward_ms - float(self.layer_ms[-1])


@dataclass(frozen=True)
class Node:
    """One line of the host file with its row of the cluster file.

    Attributes:
        gpus: GPUs of the node.
        gpu_type: Their type.
        inter_bandwidth: Between nodes, 2**20 bytes per ms.
        intra_bandwidth: Inside the node, 2**20 bytes per ms.
        memory_gib: Memory per GPU, GiB.
    """

    gpus: int
    gpu_type: str
    inter_bandwidth: float
    intra_bandwidth: float
    memory_gib: float


@dataclass(frozen=True)
class Inputs:
    """What Metis reads, checked once (see `read_inputs`).

    Attributes:
        num_layers: Layers of the model.
        global_batch: Samples per iteration.
        hidden_size: Width of the activations.
        sequence_length: Tokens per sample.
        vocab_size: Rows of the output layer.
        nodes: In host-file order.
        profiles: By (GPU type, tensor-parallel degree, batch size).
        parameter_bytes: Per layer, from the first profile read, shape (layers,).
        optimizer_ms: Of the first profile read, whatever its type.
        batch_generator_ms: Of the first profile read.
        search: The search's own arguments (see `dtgym.baselines.partitioning.metis_search`).
    """

    num_layers: int
    global_batch: int
    hidden_size: int
    sequence_length: int
    vocab_size: int
    nodes: tuple[Node, ...]
    profiles: Mapping[ProfileKey, Profile]
    parameter_bytes: FloatArray
    optimizer_ms: float
    batch_generator_ms: float
    search: Mapping[str, Any]

    @cached_property
    def parameter_bytes_before(self) -> FloatArray:
        """Bytes of the layers before each border; interior layers all take layer 1's size."""
        size = np.full(self.num_layers, self.parameter_bytes[min(1, self.num_layers - 1)])
        size[0], size[-1] = self.parameter_bytes[0], self.parameter_bytes[-1]
        return _cumulative(size)

    def ranks(self, node_sequence: Sequence[str]) -> list[int]:
        """Node index of every rank when nodes are laid out type by type."""
        known = {node.gpu_type for node in self.nodes}
        unknown = [gpu_type for gpu_type in node_sequence if gpu_type not in known]
        if unknown:
            raise InvalidInput(
                f"node_sequence: no host has GPU type {unknown[0]!r}; the hosts have "
                f"{', '.join(sorted(known))}"
            )
        return [
            index
            for gpu_type in node_sequence
            for index, node in enumerate(self.nodes)
            if node.gpu_type == gpu_type
            for _ in range(node.gpus)
        ]


def read_inputs(inputs: Mapping[str, Any]) -> Inputs:
    """Checks and converts the inputs of a golden file.

    Args:
        inputs: ``args`` (num_layers, gbs, hidden_size, sequence_length, vocab_size, ...), ``hosts``
            (a list of host, slots, type), ``clusterfile`` (by host: inter_bandwidth,
            intra_bandwidth in 2**20 bytes per ms, memory in GiB), ``profiles`` (by file name
            ``DeviceType.TYPE_tpN_bsM.json``) and optionally ``profile_load_order``; without it the
            names are read in sorted order. The order matters: parameter sizes, optimizer and batch
            generator times come from the first file.

    Raises:
        InvalidInput: A missing or impossible field, named.
    """
    args = _field(inputs, "args", Mapping, "inputs")
    num_layers = _positive_integer(args, "num_layers")
    clusterfile = _field(inputs, "clusterfile", Mapping, "inputs")
    nodes = tuple(
        _read_node(index, host, clusterfile)
        for index, host in enumerate(_field(inputs, "hosts", Sequence, "inputs"))
    )
    documents = _field(inputs, "profiles", Mapping, "inputs")
    order = list(inputs.get("profile_load_order") or sorted(documents))
    if not order or not nodes:
        raise InvalidInput("inputs: at least one host and one profile are needed")
    missing = [name for name in order if name not in documents]
    if missing:
        raise InvalidInput(f"profile_load_order: {missing[0]!r} is not among the profiles")
    profiles = {
        _profile_key(name): _read_profile(name, documents[name], num_layers) for name in order
    }
    first = documents[order[0]]
    parameters = _field(_field(first, "model", Mapping, order[0]), "parameters", Mapping, order[0])
    times = first["execution_time"]
    return Inputs(
        num_layers=num_layers,
        global_batch=_positive_integer(args, "gbs"),
        hidden_size=_positive_integer(args, "hidden_size"),
        sequence_length=_positive_integer(args, "sequence_length"),
        vocab_size=_positive_integer(args, "vocab_size"),
        nodes=nodes,
        profiles=profiles,
        parameter_bytes=_layers(
            order[0],
            parameters.get("parameters_per_layer_bytes"),
            "parameters_per_layer_bytes",
            num_layers,
        ),
        optimizer_ms=_number(times, "optimizer_time_ms", order[0]),
        batch_generator_ms=_number(times, "batch_generator_time_ms", order[0]),
        search=dict(args),
    )


def plan_costs_ms(
    inputs: Mapping[str, Any] | Inputs,
    plans: Sequence[Sequence[Any] | Mapping[str, Any] | Plan],
    *,
    honour_inter_bandwidth: bool,
) -> FloatArray:
    """Metis's estimate of the cost of each plan.

    Args:
        inputs: A golden file's document (see `read_inputs`) or what `read_inputs` made of it.
        plans: Plan rows in the order of `PLAN_COLUMNS` (further columns are ignored), mappings with
            these keys, or `Plan` objects.
        honour_inter_bandwidth: False takes the in-node bandwidth everywhere, as shipped; True takes
            the inter-node bandwidth where a group of ranks spans nodes.

    Returns:
        Milliseconds, float64, shape (plans,). NaN marks a plan that Metis drops: a profile is
        missing for a stage's (type, tp, micro-batch), or the last stage's sync time is zero.

    Raises:
        InvalidInput: Inputs that cannot be read, or a plan whose columns contradict each other.

    Source:
        Metis, USENIX ATC'24: the behaviour of its released planner, described in our own words
        (docs/planners.md) and held against 1,723 golden costs (``scripts/validate.py metis``).
    """
    parts = plan_components_ms(inputs, plans, honour_inter_bandwidth=honour_inter_bandwidth)
    return parts.sum(axis=1)


def plan_components_ms(
    inputs: Mapping[str, Any] | Inputs,
    plans: Sequence[Sequence[Any] | Mapping[str, Any] | Plan],
    *,
    honour_inter_bandwidth: bool,
) -> FloatArray:
    """The six parts of each plan's estimate: shape (plans, 6), columns as in `COMPONENTS`.

    See `plan_costs_ms` for the arguments; a dropped plan is NaN throughout.
    """
    read = inputs if isinstance(inputs, Inputs) else read_inputs(inputs)
    estimator = _Estimator(read, honour_inter_bandwidth)
    components = np.full((len(plans), len(COMPONENTS)), np.nan)
    for row, plan in enumerate(plans):
        parts = estimator.components_ms(plan if isinstance(plan, Plan) else read_plan(plan, read))
        if parts is not None:
            components[row] = parts
    return components


def read_plan(row: Sequence[Any] | Mapping[str, Any], inputs: Inputs) -> Plan:
    """Turns a plan row or mapping into a `Plan` and checks that it can be costed.

    Raises:
        InvalidInput: Missing columns, columns of different lengths, a group that dp and tp do not
            fill, borders out of order, or more ranks than the hosts have.
    """
    values: list[Any]
    if isinstance(row, Mapping):
        missing = [name for name in PLAN_COLUMNS if name not in row]
        values = [row.get(name) for name in PLAN_COLUMNS]
    else:
        missing = list(PLAN_COLUMNS[len(row) :])
        values = list(row[: len(PLAN_COLUMNS)])
    if missing:
        raise InvalidInput(f"plan: column {missing[0]} is missing")
    sequence, num_stage, groups, strategies, batches, borders = values
    try:
        plan = Plan(
            tuple(str(name) for name in sequence),
            int(num_stage),
            tuple(int(size) for size in groups),
            tuple((int(dp), int(tp)) for dp, tp in strategies),
            int(batches),
            tuple(int(border) for border in borders),
        )
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"plan: {error} in {str(row)[:80]}") from error
    stages = plan.num_stage
    if (
        not 1
        <= stages
        <= min(len(plan.device_groups), len(plan.strategies), len(plan.layer_partition) - 1)
    ):
        raise InvalidInput(
            f"plan: num_stage {stages} needs as many device_groups and strategies and one more "
            "border in layer_partition"
        )
    if plan.batches < 1:
        raise InvalidInput(f"plan: batches must be at least 1, got {plan.batches}")
    for size, (dp, tp) in zip(plan.device_groups, plan.strategies, strict=False):
        if dp < 1 or tp < 1 or dp * tp != size:
            raise InvalidInput(f"plan: a group of {size} GPUs cannot hold dp {dp} x tp {tp}")
    inside = all(0 <= border <= inputs.num_layers for border in plan.layer_partition)
    if not inside or list(plan.layer_partition) != sorted(plan.layer_partition):
        raise InvalidInput(
            f"plan: layer_partition must rise within 0..{inputs.num_layers}, got "
            f"{list(plan.layer_partition)}"
        )
    available = len(inputs.ranks(plan.node_sequence))
    if sum(plan.device_groups) > available:
        raise InvalidInput(
            f"plan: device_groups ask for {sum(plan.device_groups)} GPUs, "
            f"the hosts have {available}"
        )
    return plan


def shares_of_replicas(
    inputs: Inputs, replica_types: Sequence[str], tp: int, samples: int
) -> list[int]:
    """Splits a micro-batch among the replicas of a stage of mixed GPU types.

    In proportion to 1 / (time of the whole model at batch size 1), by the largest remainder; equal
    remainders favour the earlier replica.

    Raises:
        KeyError: No profile of a type at this tensor-parallel degree and batch size 1.
    """
    speed = np.array([1.0 / inputs.profiles[t, tp, 1].layer_ms[-1] for t in replica_types])
    exact = samples * speed / speed.sum()
    share = np.floor(exact).astype(np.int64)
    order = np.argsort(-(exact - share), kind="stable")
    share[order[: samples - int(share.sum())]] += 1
    return share.tolist()


class _Estimator:
    """Costs plans one by one; bandwidths and group types are looked up once per layout."""

    def __init__(self, inputs: Inputs, honour_inter_bandwidth: bool) -> None:
        self._inputs = inputs
        self._honour_inter = honour_inter_bandwidth
        self._ranks: dict[tuple[str, ...], list[int]] = {}
        self._bandwidths: dict[frozenset[int], float] = {}

    def components_ms(self, plan: Plan) -> tuple[float, ...] | None:
        """The parts of the estimate, or None where Metis drops the plan."""
        inputs, batches = self._inputs, plan.batches
        ranks = self._ranks.setdefault(plan.node_sequence, inputs.ranks(plan.node_sequence))
        ends = np.cumsum(plan.device_groups).tolist()
        groups = [
            ranks[end - size : end] for end, size in zip(ends, plan.device_groups, strict=True)
        ]
        stage_ms: list[float] = []
        update_ms = allreduce_ms = transfer_ms = 0.0
        try:
            for stage in range(plan.num_stage):
                group, (dp, tp) = groups[stage], plan.strategies[stage]
                low, high = plan.layer_partition[stage : stage + 2]
                stage_ms.append(self._stage_ms(group, dp, tp, batches, low, high))
                share = (high - low) / inputs.num_layers
                update_ms = max(update_ms, 2 * inputs.optimizer_ms / tp * share)
                before = inputs.parameter_bytes_before
                shard_bytes = (before[high] - before[low]) / tp
                # Metis looks for node borders inside each run of tp consecutive ranks, which are
                # the tensor groups rather than the data-parallel ones.
                bandwidth = min(
                    self._bandwidth(group[first : first + tp]) for first in range(len(group))
                )
                allreduce_ms = max(
                    allreduce_ms, 2 * (dp - 1) / (dp * bandwidth * _BANDWIDTH_UNIT) * shard_bytes
                )
                if stage + 1 < plan.num_stage:
                    elements = self._border_elements(dp, tp, batches, high)
                    both = group + groups[stage + 1]
                    transfer_ms += elements / (self._bandwidth(both) * _BANDWIDTH_UNIT)
            sync_ms = self._sync_ms(groups[plan.num_stage - 1], plan)
        except KeyError:
            return None
        return (
            (batches - 1) * max(stage_ms) + sum(stage_ms),
            batches * sync_ms,
            update_ms,
            allreduce_ms,
            transfer_ms,
            batches * inputs.batch_generator_ms,
        )

    def _stage_ms(
        self, group: list[int], dp: int, tp: int, batches: int, low: int, high: int
    ) -> float:
        inputs = self._inputs
        types = [inputs.nodes[node].gpu_type for node in group]
        if len(set(types)) == 1:
            layer_ms = inputs.profiles[types[0], tp, inputs.global_batch // dp // batches].layer_ms
            return float(layer_ms[high] - layer_ms[low])
        replica_types = types[::tp]
        shares = shares_of_replicas(inputs, replica_types, tp, inputs.global_batch // batches)
        slowest_ms = 0.0
        for gpu_type, samples in zip(replica_types, shares, strict=True):
            # A size that is not a power of two runs as its binary parts, one after the other.
            parts = (1 << bit for bit in range(samples.bit_length()) if samples >> bit & 1)
            times = (inputs.profiles[gpu_type, tp, size].layer_ms for size in parts)
            slowest_ms = max(slowest_ms, sum(float(t[high] - t[low]) for t in times))
        return slowest_ms

    def _border_elements(self, dp: int, tp: int, batches: int, next_layer: int) -> float:
        inputs = self._inputs
        tokens = inputs.global_batch // dp // batches * inputs.sequence_length
        if next_layer == inputs.num_layers - 1:
            return tokens * inputs.vocab_size / tp
        return tokens * inputs.hidden_size

    def _sync_ms(self, group: list[int], plan: Plan) -> float:
        inputs = self._inputs
        dp, tp = plan.strategies[plan.num_stage - 1]
        size = inputs.global_batch // dp // plan.batches
        sync_ms = [inputs.profiles[inputs.nodes[node].gpu_type, tp, size].sync_ms for node in group]
        if 0.0 in sync_ms:
            raise KeyError("Metis treats a zero sync time as a missing profile")
        return max(sync_ms)

    def _bandwidth(self, group: Sequence[int]) -> float:
        """Slowest bandwidth of the group's types: in-node if one node holds it all."""
        members = frozenset(group)
        if members not in self._bandwidths:
            nodes = self._inputs.nodes
            types = {nodes[index].gpu_type for index in members}
            across = len(members) > 1 and self._honour_inter
            self._bandwidths[members] = min(
                node.inter_bandwidth if across else node.intra_bandwidth
                for node in nodes
                if node.gpu_type in types
            )
        return self._bandwidths[members]


def _field(document: Mapping[str, Any], name: str, kind: type, where: str) -> Any:
    value = document.get(name)
    if not isinstance(value, kind) or isinstance(value, str):
        raise InvalidInput(f"{where}: field {name!r} is missing or of the wrong kind")
    return value


def _is_a(value: object, kind: type) -> bool:
    """Whether `value` is a number of that kind; True and False are none."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _number(document: Mapping[str, Any], name: str, where: str, *, positive: bool = False) -> float:
    value: Any = document.get(name)
    good = _is_a(value, Real) and np.isfinite(value)
    if not good or value < 0 or (positive and value == 0):
        bound = "above 0" if positive else "at least 0"
        raise InvalidInput(f"{where}: {name} must be a number {bound}, got {value!r}")
    return float(value)


def _positive_integer(document: Mapping[str, Any], name: str) -> int:
    value: Any = document.get(name)
    if not _is_a(value, Integral) or value < 1:
        raise InvalidInput(f"args: {name} must be an integer of at least 1, got {value!r}")
    return int(value)


def _read_node(index: int, host: Any, clusterfile: Mapping[str, Any]) -> Node:
    where = f"hosts[{index}]"
    if not isinstance(host, Mapping) or host.get("host") not in clusterfile:
        raise InvalidInput(f"{where}: its host is not in the cluster file")
    row = clusterfile[host["host"]]
    slots: Any = host.get("slots")
    if not _is_a(slots, Integral) or slots < 1:
        raise InvalidInput(f"{where}: slots must be an integer of at least 1, got {slots!r}")
    place = f"clusterfile[{host['host']}]"
    return Node(
        int(slots),
        str(host.get("type", row.get("instance_type"))),
        _number(row, "inter_bandwidth", place, positive=True),
        _number(row, "intra_bandwidth", place, positive=True),
        _number(row, "memory", place, positive=True),
    )


def _profile_key(name: str) -> ProfileKey:
    match = _PROFILE_NAME.match(name)
    if match is None:
        raise InvalidInput(f"profiles: {name!r} is not named DeviceType.TYPE_tpN_bsM.json")
    return match["type"], int(match["tp"]), int(match["bs"])


def _layers(where: str, values: Any, name: str, num_layers: int) -> FloatArray:
    array = np.asarray(values if values is not None else [], dtype=np.float64)
    if array.shape != (num_layers,) or not np.isfinite(array).all() or (array < 0).any():
        raise InvalidInput(
            f"{where}: {name} must hold {num_layers} numbers of at least 0 (args.num_layers)"
        )
    return array


def _read_profile(name: str, document: Any, num_layers: int) -> Profile:
    if not isinstance(document, Mapping):
        raise InvalidInput(f"profiles: {name} must be an object")
    times = _field(document, "execution_time", Mapping, name)
    layer_ms = _layers(
        name, times.get("layer_compute_total_ms"), "layer_compute_total_ms", num_layers
    )
    memory_mb = document.get("execution_memory", {}).get("layer_memory_total_mb")
    if memory_mb is not None:
        memory_mb = _layers(name, memory_mb, "layer_memory_total_mb", num_layers)
    return Profile(
        _cumulative(layer_ms),
        _number(times, "forward_backward_time_ms", name),
        np.empty(0) if memory_mb is None else _cumulative(memory_mb),
    )


def _cumulative(values: FloatArray) -> FloatArray:
    return np.concatenate(([0.0], np.cumsum(values)))
