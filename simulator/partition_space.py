"""The finite space of plans that planners search and the environment builds, decision by decision.

A space fixes what a plan may choose: micro-batch sizes, stage sizes (powers of two), tensor
parallelism, wire formats, extra warm-up depth and the number of stages; recompute and the ZeRO
stage are given. It knows which choices leave a way to finish (`dtgym.simulator.kernels.
plan_construction`), turns plans into the environment's actions and prices them with the exact
evaluator (`dtgym.simulator.partition.evaluate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtgym.simulator import partition
from dtgym.simulator.errors import InvalidInput, at_least, one_of
from dtgym.simulator.kernels import plan_construction as kernels
from dtgym.simulator.kernels.plan_construction import MAX_EXTRA_WARMUP, SpaceArrays
from dtgym.simulator.partition_types import Plans, Problem
from dtgym.simulator.threads import map_ranges

_SHARED_ARRAYS = (
    "gpu_options", "tensor_options", "parameters", "stored_bytes", "sample_bytes", "border_bytes",
    "state_bytes",
)  # fmt: skip
"""Arrays of a space without an axis of instances."""

_MINIMUM_BUILDS = 512
"""Fewest plans under construction worth a slice for another core."""

MEMORY_MARGIN = 1e-9
"""Relative: so that rounding never lets a mask promise what the evaluator refuses."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a candidate.

    Attributes:
        cluster: Index of the cluster.
        gpus: Accelerators.
        tp: Tensor-parallel degree; the rest is data parallelism.
        high: Border behind its last layer.
        wire: Code of the format on the border before it, in `partition.WIRES`; read where the
            stage before lies in another cluster.
        extra: Warm-up depth beyond the standard S - 1 - s, 0 to `MAX_EXTRA_WARMUP`.
    """

    cluster: int
    gpus: int
    tp: int
    high: int
    wire: int = 1
    extra: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan as planners handle it.

    Attributes:
        microbatch: Samples of one micro-batch over all replicas of a stage.
        stages: In pipeline order.
    """

    microbatch: int
    stages: tuple[Stage, ...]

    @property
    def borders(self) -> tuple[int, ...]:
        """Layer borders, one more than stages."""
        return (0, *(stage.high for stage in self.stages))

    def with_stage(self, index: int, **changes: int) -> Candidate:
        """The candidate with one stage changed."""
        stages = list(self.stages)
        stages[index] = replace(stages[index], **changes)
        return replace(self, stages=tuple(stages))


@dataclass(frozen=True)
class Rules:
    """What every plan of a space has in common.

    Attributes:
        max_stages: Most stages of a plan.
        wires: Formats that may cross clusters, names of `partition.WIRES`.
        local_wire: Format inside a cluster.
        recompute: A name of `partition.RECOMPUTE`.
        zero: ZeRO stage, 0 to 3.
        min_microbatches: Fewest micro-batches of an iteration.
    """

    max_stages: int = 8
    wires: tuple[str, ...] = ("bf16", "fp8", "int4")
    local_wire: str = "bf16"
    recompute: str = "selective"
    zero: int = 1
    min_microbatches: int = 1

    def __post_init__(self) -> None:
        at_least("max_stages", self.max_stages, 1)
        at_least("min_microbatches", self.min_microbatches, 1)
        object.__setattr__(self, "wires", tuple(self.wires))
        if not self.wires:
            raise InvalidInput("wires must name at least one format")
        for wire in (*self.wires, self.local_wire):
            one_of("wires", wire, partition.WIRES)
        one_of("recompute", self.recompute, partition.RECOMPUTE)
        if self.zero not in (0, 1, 2, 3):
            raise InvalidInput(f"zero must be 0, 1, 2 or 3, got {self.zero!r}")


class PlanSpace:
    """The spaces of all instances of a problem, stacked.

    Attributes:
        problem: The instances.
        rules: What all plans have in common.
        arrays: Choices, memory tables and witnesses, for the kernels.
        microbatch: Samples per micro-batch by choice, (I, B); 0 pads.
        gpu_options: Stage sizes, (G,).
        tensor_options: Tensor-parallel degrees, (T,).
    """

    def __init__(self, problem: Problem, rules: Rules | None = None) -> None:
        """Tabulates the space of every instance of `problem`."""
        self.problem = problem
        self.rules = rules or Rules()
        self.tensor_options = problem.tables.tensor_parallel
        most = int(problem.gpus.max())
        self.gpu_options = 1 << np.arange(most.bit_length())
        self.microbatch = _microbatch_sizes(problem, self.rules.min_microbatches)
        self.arrays = self._tabulate()
        for instance in range(len(problem)):
            kernels.fill_tables(self.arrays, instance)

    def _tabulate(self) -> SpaceArrays:
        """Choices and memory rules of every instance; witnesses are filled in afterwards."""
        problem, rules = self.problem, self.rules
        tables, assumptions = problem.tables, problem.assumptions
        instances, clusters = problem.row.shape
        kind = partition.RECOMPUTE.index(rules.recompute)
        borders = np.nan_to_num(tables.output_elements)
        borders[:, 0] = 0.0
        borders[np.arange(len(borders)), tables.layers] = 0.0
        compute_bytes = assumptions.wire_bytes_per_element[
            partition.WIRES.index(assumptions.compute_wire)
        ]
        sample_bytes = np.zeros((len(borders), len(self.tensor_options)))
        if rules.recompute == "full":
            sample_bytes += np.nan_to_num(tables.largest_activation_bytes)
        replicas = 2.0 ** np.arange(len(self.gpu_options))
        state_bytes = np.full(len(replicas), 0.0)
        for level, size in (
            (3, assumptions.weight_bytes),
            (2, assumptions.gradient_bytes),
            (1, assumptions.optimizer_bytes),
        ):
            state_bytes += size / replicas if rules.zero >= level else size
        memory = problem.memory_bytes * assumptions.memory_fraction * (1 - MEMORY_MARGIN)
        legal = self._legal()
        sizes = self.microbatch.shape[1]
        stages = rules.max_stages
        layers = int(problem.layers.max())
        wires = np.zeros((instances, len(partition.WIRES)), dtype=np.bool_)
        wires[:, [partition.WIRES.index(wire) for wire in rules.wires]] = True
        microbatches = np.where(
            self.microbatch > 0,
            problem.global_batch[:, None] // np.maximum(self.microbatch, 1),
            0,
        )
        return SpaceArrays(
            layers=problem.layers.astype(np.int64),
            clusters=(problem.row >= 0).sum(axis=1),
            stages=np.minimum(stages, problem.layers),
            microbatches=microbatches,
            wires=wires,
            cluster_gpus=problem.gpus,
            gpu_options=self.gpu_options,
            tensor_options=self.tensor_options,
            legal=legal,
            microbatch=self.microbatch,
            row=problem.row.astype(np.int64),
            parameters=np.nan_to_num(tables.parameters),
            stored_bytes=np.ascontiguousarray(np.nan_to_num(tables.activation_bytes[:, kind])),
            sample_bytes=sample_bytes,
            border_bytes=assumptions.border_buffers * compute_bytes * borders,
            state_bytes=state_bytes,
            capacity_bytes=np.where(problem.row >= 0, memory - assumptions.reserve_bytes, 0.0),
            witness=np.full((instances, clusters, sizes, 2), -1),
            farthest=np.zeros(
                (*legal.shape, stages + MAX_EXTRA_WARMUP, layers + 1), dtype=np.int16
            ),
            closes=np.zeros((*legal.shape, layers + 1), dtype=np.bool_),
            stage_start=np.zeros((instances, clusters, sizes, stages, layers + 1), dtype=np.int16),
            tail_start=np.zeros((instances, 1 << clusters, sizes, stages + 1), dtype=np.int16),
        )

    def _legal(self) -> NDArray[np.bool_]:
        """(I, C, B, G, T) which stages have a price at all, memory left aside."""
        problem, tables = self.problem, self.problem.tables
        gpus, tensor = self.gpu_options[:, None], self.tensor_options[None, :]
        replicas = gpus // tensor
        fits = (gpus % tensor == 0) & (gpus <= problem.gpus[:, :, None, None])
        fits &= (tensor & (tensor - 1)) == 0
        fits &= problem.gpus_per_node[:, :, None, None] % tensor == 0
        divides = (self.microbatch[:, :, None, None] % np.maximum(replicas, 1) == 0) & (
            replicas > 0
        )
        divides &= self.microbatch[:, :, None, None] > 0
        samples = self.microbatch[:, :, None, None] // np.maximum(replicas, 1)
        # A number of samples between two entries is interpolated: both must have been measured.
        above = np.searchsorted(tables.samples, samples)
        inside = (samples >= tables.samples[0]) & (above < len(tables.samples))
        above = np.minimum(above, len(tables.samples) - 1)
        below = np.where(tables.samples[above] == samples, above, above - 1)
        last = (np.arange(len(tables.names)), tables.layers)
        ends = tables.forward_s[last[0], :, :, last[1]] + tables.backward_s[last[0], :, :, last[1]]
        if self.rules.recompute == "selective":
            ends = ends + tables.selective_s[last[0], :, :, last[1]]
        priced = np.isfinite(ends) & np.isfinite(tables.parameters[last[0], :, last[1]])[:, :, None]
        known = priced[problem.row]  # (I, C, T, samples)
        tensor_axis = np.arange(len(self.tensor_options))
        rows = np.arange(problem.row.shape[0])[:, None, None, None, None]
        columns = np.arange(problem.row.shape[1])[None, :, None, None, None]
        measured = (
            known[rows, columns, tensor_axis, above[:, None]]
            & known[rows, columns, tensor_axis, np.maximum(below, 0)[:, None]]
        )
        used = (problem.row >= 0)[:, :, None, None, None]
        return used & fits[:, :, None] & (divides & inside)[:, None] & measured

    @cached_property
    def num_actions(self) -> int:
        """Size of the largest head: what a Discrete action space needs."""
        return int(
            max(
                self.microbatch.shape[1],
                self.problem.clusters + 1,
                len(self.gpu_options),
                len(self.tensor_options),
                int(self.problem.layers.max()),
                len(partition.WIRES),
                MAX_EXTRA_WARMUP + 1,
            )
        )

    @property
    def solvable(self) -> NDArray[np.bool_]:
        """(I,) whether the masks know a way to finish, so that no episode can strand."""
        sets = (1 << self.arrays.clusters) - 1
        rows = np.arange(len(self.problem))
        starts = self.arrays.tail_start[rows, sets, :, self.rules.max_stages]
        return ((starts == 0) & (self.microbatch > 0)).any(axis=1)

    @cached_property
    def stage_time_s(self) -> NDArray[np.float64]:
        """Forward and backward of one micro-batch, cumulative over the layers: (R, T, K, L + 1).

        Axis K holds 1, 2, 4, ... samples per replica; NaN where the tables have no entry.
        """
        tables = self.problem.tables
        whole = tables.forward_s + tables.backward_s
        if self.rules.recompute == "selective":
            whole = whole + tables.selective_s
        elif self.rules.recompute == "full":
            whole = whole + tables.forward_s
        _, low, part = tables.lookup
        count = int(self.microbatch.max()).bit_length()
        rows, degrees, _, borders = whole.shape
        result = np.full((rows, degrees, count, borders), np.nan)
        for k in range(count):
            samples = 1 << k
            if samples < len(low) and low[samples] >= 0:
                below = whole[:, :, low[samples]]
                above = whole[:, :, min(low[samples] + 1, whole.shape[2] - 1)]
                up = part[samples]
                result[:, :, k] = below + up * (above - below) if up > 0 else below
        return result

    def take(self, instance: int) -> PlanSpace:
        """The space of one instance alone; tables are shared, not computed again."""
        alone = object.__new__(PlanSpace)
        alone.problem = self.problem.take([instance])
        alone.rules = self.rules
        alone.tensor_options = self.tensor_options
        alone.gpu_options = self.gpu_options
        alone.microbatch = self.microbatch[instance : instance + 1]
        shared = _SHARED_ARRAYS
        alone.num_actions = self.num_actions
        alone.arrays = self.arrays._replace(
            **{
                name: value[instance : instance + 1]
                for name, value in self.arrays._asdict().items()
                if name not in shared
            }
        )
        return alone

    def plans(self, candidates: Sequence[Candidate], instance: int = 0) -> Plans:
        """Candidates as arrays for the evaluator.

        Raises:
            InvalidInput: No candidates, or one with more stages than the space allows.
        """
        width = self.rules.max_stages
        most = max((len(candidate.stages) for candidate in candidates), default=0)
        if not 1 <= most <= width:
            raise InvalidInput(f"candidates must have 1 to {width} stages, got {most}")
        number = len(candidates)
        local = partition.WIRES.index(self.rules.local_wire)
        stages = np.array([len(candidate.stages) for candidate in candidates])
        cluster, gpus, tp, extra = (np.zeros((number, width), dtype=np.int32) for _ in range(4))
        bound = np.zeros((number, width + 1), dtype=np.int32)
        wire = np.full((number, width - 1), local, dtype=np.int32)
        for row, candidate in enumerate(candidates):
            before = None
            for s, stage in enumerate(candidate.stages):
                cluster[row, s], gpus[row, s], tp[row, s] = stage.cluster, stage.gpus, stage.tp
                bound[row, s + 1], extra[row, s] = stage.high, stage.extra
                if before is not None and before != stage.cluster:
                    wire[row, s - 1] = stage.wire
                before = stage.cluster
        microbatch = np.array([candidate.microbatch for candidate in candidates])
        return partition.make_plans(
            cluster,
            gpus,
            tp,
            bound,
            microbatch,
            instance=instance,
            stages=stages,
            wire=wire,
            warmup=self._depths(stages, extra, instance, microbatch),
            recompute=self.rules.recompute,
            zero=self.rules.zero,
        )

    def _depths(
        self,
        stages: NDArray[np.int64],
        extra: NDArray[np.integer[Any]],
        instance: ArrayLike,
        microbatch: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """(P, S) warm-up depths: the standard S - 1 - s and `extra`, at most all micro-batches."""
        standard = stages[:, None] - 1 - np.arange(extra.shape[1])
        most = self.problem.global_batch[np.asarray(instance)] // np.maximum(microbatch, 1) - 1
        return np.clip(standard + extra, 0, np.maximum(most, 0)[:, None])

    def time_s(self, candidates: Sequence[Candidate], instance: int = 0) -> NDArray[np.float64]:
        """Exact iteration times, shape (candidates,); inf where a plan is infeasible."""
        costs = partition.evaluate(self.problem, self.plans(candidates, instance))
        return np.where(costs.feasible, costs.time_s, np.inf)

    def actions(self, candidate: Candidate, instance: int = 0) -> list[int]:
        """The decisions that build the candidate, one per step of the environment.

        Raises:
            InvalidInput: A choice that the space does not have.
        """
        result = [_index("microbatch", self.microbatch[instance], candidate.microbatch)]
        low, before = 0, -1
        for s, stage in enumerate(candidate.stages):
            result += [
                stage.cluster,
                _index("gpus", self.gpu_options, stage.gpus),
                _index("tp", self.tensor_options, stage.tp),
                stage.high - low - 1,
            ]
            if before not in (-1, stage.cluster):
                result.append(stage.wire)
            if s < len(candidate.stages) - 1:
                result.append(stage.extra)
            low, before = stage.high, stage.cluster
        return result

    def is_buildable(self, candidate: Candidate, instance: int = 0) -> bool:
        """Whether the environment's masks let every decision of the candidate pass."""
        try:
            actions = self.actions(candidate, instance)
        except InvalidInput:
            return False
        builds = self.new_builds(1)
        one = np.zeros(1, dtype=np.int64)
        kernels.begin(self.arrays, builds, one, one + instance)
        for action in actions:
            mask = self.masks(builds)
            if not 0 <= action < mask.shape[1] or not mask[0, action]:
                return False
            kernels.advance(self.arrays, builds, one + action, np.ones(1, dtype=np.bool_))
        return bool(builds.head[0] == kernels.DONE)

    def masks(
        self, builds: kernels.Builds, which: NDArray[np.int64] | None = None
    ) -> NDArray[np.bool_]:
        """Legal decisions of plans under construction, fresh: (k, actions).

        Args:
            builds: The plans.
            which: Rows of `builds`, (k,); None takes all.
        """
        rows = np.arange(len(builds.head)) if which is None else which
        mask = np.zeros((len(rows), self.num_actions), dtype=np.bool_)

        def run(first: int, last: int) -> None:
            kernels.masks(self.arrays, builds, rows, first, last, mask)

        map_ranges(run, len(rows), _MINIMUM_BUILDS)
        return mask

    def new_builds(self, num_envs: int) -> kernels.Builds:
        """Empty plans under construction."""
        return kernels.new_builds(num_envs, self.problem.clusters, self.rules.max_stages)

    def lay_down(self, builds: kernels.Builds, index: int, candidate: Candidate) -> None:
        """Puts a whole candidate in place of plan `index`, as if it had been built.

        Raises:
            InvalidInput: A choice that the space does not have.
        """
        instance = int(builds.instance[index])
        builds.micro_batch[index] = _index(
            "microbatch", self.microbatch[instance], candidate.microbatch
        )
        builds.head[index] = kernels.DONE
        builds.stage[index] = len(candidate.stages)
        builds.layer[index] = candidate.stages[-1].high
        for s, stage in enumerate(candidate.stages):
            builds.cluster[index, s] = stage.cluster
            builds.visited[index, stage.cluster] = True
            builds.gpus[index, s] = _index("gpus", self.gpu_options, stage.gpus)
            builds.tensor[index, s] = _index("tp", self.tensor_options, stage.tp)
            builds.border[index, s + 1] = stage.high
            builds.wire[index, s] = stage.wire
            builds.extra[index, s] = stage.extra
        builds.current[index] = candidate.stages[-1].cluster

    def built_plans(self, builds: kernels.Builds, which: NDArray[np.int64]) -> Plans:
        """The finished plans of the environments `which` as arrays for the evaluator."""
        stages = builds.stage[which]
        instance = builds.instance[which]
        width = self.rules.max_stages
        crosses = builds.cluster[which, 1:] != builds.cluster[which, :-1]
        local = partition.WIRES.index(self.rules.local_wire)
        used = np.arange(width) < stages[:, None]
        microbatch = self.microbatch[instance, builds.micro_batch[which]]
        return partition.make_plans(
            np.where(used, builds.cluster[which], 0),
            self.gpu_options[builds.gpus[which]],
            self.tensor_options[builds.tensor[which]],
            builds.border[which],
            microbatch,
            instance=instance,
            stages=stages,
            wire=np.where(crosses, builds.wire[which, 1:], local),
            warmup=self._depths(stages, builds.extra[which], instance, microbatch),
            recompute=self.rules.recompute,
            zero=self.rules.zero,
        )

    def candidate(self, builds: kernels.Builds, index: int) -> Candidate:
        """One plan under construction as a candidate; `stages` holds what is placed."""
        instance = int(builds.instance[index])
        stages = tuple(
            Stage(
                cluster=int(builds.cluster[index, s]),
                gpus=int(self.gpu_options[builds.gpus[index, s]]),
                tp=int(self.tensor_options[builds.tensor[index, s]]),
                high=int(builds.border[index, s + 1]),
                wire=int(builds.wire[index, s]),
                extra=int(builds.extra[index, s]),
            )
            for s in range(int(builds.stage[index]))
        )
        return Candidate(int(self.microbatch[instance, builds.micro_batch[index]]), stages)


def _microbatch_sizes(problem: Problem, min_microbatches: int) -> NDArray[np.int64]:
    """(I, B) powers of two that divide the global batch and leave enough micro-batches."""
    choices = [
        [
            1 << k
            for k in range(int(batch).bit_length())
            if batch % (1 << k) == 0 and batch >> k >= min_microbatches
        ]
        for batch in problem.global_batch
    ]
    if not all(choices):
        raise InvalidInput(
            f"min_microbatches {min_microbatches} must not exceed the global batch "
            f"{problem.global_batch.min()}"
        )
    sizes = np.zeros((len(choices), max(map(len, choices))), dtype=np.int64)
    for row, values in enumerate(choices):
        sizes[row, : len(values)] = values
    return sizes


def _index(name: str, options: NDArray[np.int64], value: int) -> int:
    found = np.flatnonzero(options == value)
    if not len(found):
        raise InvalidInput(f"{name} must be one of {options[options > 0].tolist()}; got {value}")
    return int(found[0])
