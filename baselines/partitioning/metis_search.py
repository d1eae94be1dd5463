"""The search of Metis (USENIX ATC'24), written from a description of its behaviour.

Outer loop: every order of the GPU types, every stage count, every list of power-of-two group sizes,
every number of micro-batches that divides the global batch. Inner loop: starting from pure data
parallelism, layers are balanced over the stages and the memory is checked; as long as a plan does
not fit at the first attempt, the stage with the least spare memory trades half of its data
parallelism for twice the tensor parallelism.

The outer loop equals the released planner's plan for plan (the golden files' counts). The layer
balancing is only known in words: over the golden plans its borders agree exactly in about half of
the cases, and the cheapest well-formed plan's cost lies within the margin that
``tests/baselines/partitioning/test_metis_search.py`` holds.

Two modes: ``as-shipped`` reproduces the defects that change the winner (the stage-count mix-up
after the first type order, dropped layers and empty stages, blindness for slow links);
``well-formed`` costs well-formed plans only, with the links honoured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.baselines.partitioning.metis import Inputs, Plan, plan_costs_ms, shares_of_replicas
from dtgym.simulator.errors import one_of

MODES = ("well-formed", "as-shipped")
SLICES_PER_LAYER = 7
NEIGHBOUR_MOVES = 3
BALANCING_ATTEMPTS = 3
MEMORY_FACTOR = 5.0
"""Metis's demand over the profiled layer memory."""
OVERFLOW_SLOWDOWN = 0.9

FloatArray = NDArray[np.float64]
Groups = tuple[int, ...]
Strategies = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class SearchArguments:
    """The command-line arguments of Metis's search.

    Attributes:
        max_tp: Largest tensor-parallel degree (``max_profiled_tp_degree``).
        max_batch_size: Largest micro-batch of a replica (``max_profiled_batch_size``).
        min_group_scale_variance: Factor of the smallest allowed group.
        max_permute_len: Longest list of groups that is permuted element by element.
        max_stages: Largest number of stages; None is as many as layers or GPUs. Not Metis's own:
            the space of plans may hold fewer.
    """

    max_tp: int
    max_batch_size: int
    min_group_scale_variance: float = 1.0
    max_permute_len: int = 4
    max_stages: int | None = None

    @classmethod
    def of(cls, arguments: dict[str, Any] | Any) -> SearchArguments:
        """Reads the ``args`` of a golden file."""
        return cls(
            int(arguments["max_profiled_tp_degree"]),
            int(arguments["max_profiled_batch_size"]),
            float(arguments.get("min_group_scale_variance", 1)),
            int(arguments.get("max_permute_len", 4)),
        )


@dataclass(frozen=True)
class InterStagePlan:
    """What the outer loop enumerates: order, costed stages, groups and micro-batches."""

    node_sequence: tuple[str, ...]
    num_stage: int
    device_groups: Groups
    batches: int


@dataclass(frozen=True)
class SearchResult:
    """Plans sorted by their estimated cost.

    Attributes:
        plans: Cheapest first.
        costs_ms: Metis's own estimate of each, shape (plans,).
        inter_stage_plans: Number of plans of the outer loop.
        attempts: Plans that the inner loop balanced, fitting or not.
    """

    plans: tuple[Plan, ...]
    costs_ms: FloatArray
    inter_stage_plans: int
    attempts: int


def search(
    inputs: Inputs, arguments: SearchArguments, *, mode: str, max_attempts: int | None = None
) -> SearchResult:
    """Runs the search.

    Args:
        inputs: From `dtgym.baselines.partitioning.metis.read_inputs`, with layer memory in the
            profiles.
        arguments: The search's arguments.
        mode: ``well-formed`` or ``as-shipped``.
        max_attempts: Ends the search after so many balanced plans; None goes through the space.

    Raises:
        InvalidInput: An unknown mode.
    """
    as_shipped = one_of("mode", mode, MODES) == "as-shipped"
    inner = _InnerSearch(inputs, arguments)
    plans: list[Plan] = []
    outer = 0
    for candidate in inter_stage_plans(inputs, arguments, as_shipped=as_shipped):
        outer += 1
        for strategies, borders in inner.plans(candidate):
            plan = Plan(
                candidate.node_sequence,
                candidate.num_stage,
                candidate.device_groups,
                strategies,
                candidate.batches,
                borders,
            )
            if as_shipped or plan.is_well_formed(inputs.num_layers):
                plans.append(plan)
        if max_attempts is not None and inner.attempts >= max_attempts:
            break
    costs_ms = plan_costs_ms(inputs, plans, honour_inter_bandwidth=not as_shipped)
    order = np.argsort(costs_ms, kind="stable")
    order = order[np.isfinite(costs_ms[order])]
    return SearchResult(
        tuple(plans[index] for index in order), costs_ms[order], outer, inner.attempts
    )


def inter_stage_plans(
    inputs: Inputs, arguments: SearchArguments, *, as_shipped: bool
) -> Iterator[InterStagePlan]:
    """The outer loop, in Metis's order.

    Args:
        inputs: Gives the nodes and the global batch.
        arguments: The search's arguments.
        as_shipped: Whether every order after the first costs the lists of two groups as if they
            had one stage, as the released planner does.
    """
    types = list(dict.fromkeys(node.gpu_type for node in inputs.nodes))
    gpus = sum(node.gpus for node in inputs.nodes)
    most = min(gpus, inputs.num_layers, arguments.max_stages or gpus)
    batches = [
        size for size in range(inputs.global_batch, 0, -1) if inputs.global_batch % size == 0
    ]
    lists = {
        stages: list(
            group_lists(stages, gpus, arguments.min_group_scale_variance, arguments.max_permute_len)
        )
        for stages in range(1, most + 1)
    }
    for number, order in enumerate(permutations(types)):
        for stages in range(1, most + 1):
            mixed_up = as_shipped and number > 0 and stages == 1 and most > 1
            for groups in lists[2] if mixed_up else lists[stages]:
                for count in batches:
                    yield InterStagePlan(order, stages, groups, count)


def group_lists(
    stages: int, gpus: int, scale_variance: float, max_permute_len: int
) -> Iterator[Groups]:
    """Lists of power-of-two group sizes that sum to the GPU count, each order once.

    A list longer than `max_permute_len` is permuted in blocks: equal smallest entries are glued in
    pairs, level by level, until few enough are left.

    Examples:
        >>> list(group_lists(3, 8, 1, 4))
        [(2, 2, 4), (2, 4, 2), (4, 2, 2)]
    """
    smallest = scale_variance * max(gpus // stages, stages // gpus)
    sizes = [1 << bit for bit in range(gpus.bit_length()) if 1 << bit >= smallest]
    for groups in _nondecreasing(stages, gpus, sizes):
        for order in _distinct_orders(_blocks(groups, max_permute_len)):
            yield tuple(size for block in order for size in block)


def _nondecreasing(stages: int, gpus: int, sizes: list[int]) -> Iterator[Groups]:
    if stages == 0:
        if gpus == 0:
            yield ()
        return
    for index, size in enumerate(sizes):
        if size * stages > gpus:
            return
        for rest in _nondecreasing(stages - 1, gpus - size, sizes[index:]):
            yield (size, *rest)


def _blocks(groups: Groups, longest: int) -> list[Groups]:
    blocks: list[Groups] = [(size,) for size in groups]
    while len(blocks) > longest:
        least = min(sum(block) for block in blocks)
        glue = [block for block in blocks if sum(block) == least]
        others = [block for block in blocks if sum(block) != least]
        if len(glue) == 1:
            glue.append(min(others, key=sum))
            others.remove(glue[1])
        pairs = [first + second for first, second in zip(glue[::2], glue[1::2], strict=False)]
        blocks = sorted(pairs + glue[len(pairs) * 2 :] + others, key=sum)
    return blocks


def _distinct_orders(blocks: list[Groups]) -> Iterator[tuple[Groups, ...]]:
    if not blocks:
        yield ()
        return
    for block in dict.fromkeys(blocks):
        rest = list(blocks)
        rest.remove(block)
        for order in _distinct_orders(rest):
            yield (block, *order)


class _InnerSearch:
    """Strategies and layer borders of one plan of the outer loop."""

    def __init__(self, inputs: Inputs, arguments: SearchArguments) -> None:
        self.attempts = 0
        self._inputs = inputs
        self._arguments = arguments
        first = next(iter(inputs.profiles.values()))
        self._layer_share = np.diff(first.layer_ms) / first.layer_ms[-1]
        self._share_before = np.concatenate(([0.0], np.cumsum(self._layer_share)))

    def plans(self, outer: InterStagePlan) -> Iterator[tuple[Strategies, tuple[int, ...]]]:
        """Yields the fitting plans: at the first one that fits at once, the loop ends."""
        inputs = self._inputs
        ranks = inputs.ranks(outer.node_sequence)
        ends = np.cumsum(outer.device_groups).tolist()
        types = [
            [inputs.nodes[node].gpu_type for node in ranks[end - size : end]]
            for end, size in zip(ends, outer.device_groups, strict=True)
        ]
        capacity_mb = np.array(
            [
                sum(inputs.nodes[node].memory_gib * 1024 for node in ranks[end - size : end])
                for end, size in zip(ends, outer.device_groups, strict=True)
            ]
        )
        strategies = [(size, 1) for size in outer.device_groups]
        spare: FloatArray | None = None
        while all(tp <= self._arguments.max_tp for _, tp in strategies):
            batch = [inputs.global_batch // dp // outer.batches for dp, _ in strategies]
            if all(1 <= size <= self._arguments.max_batch_size for size in batch):
                try:
                    borders, attempts, spare = self._balance(outer, types, strategies, capacity_mb)
                except KeyError:
                    return
                if borders is not None:
                    yield tuple(strategies), borders
                    if attempts == 1:
                        return
            trading = [stage for stage, (dp, _) in enumerate(strategies) if dp > 1]
            if not trading:
                return
            # Before any memory result Metis ranks stages by 1 / dp.
            rank = [1 / dp for dp, _ in strategies] if spare is None else spare.tolist()
            stage = min(trading, key=lambda one: rank[one])
            dp, tp = strategies[stage]
            strategies[stage] = (dp // 2, tp * 2)

    def _balance(
        self,
        outer: InterStagePlan,
        types: list[list[str]],
        strategies: list[tuple[int, int]],
        capacity_mb: FloatArray,
    ) -> tuple[tuple[int, ...] | None, int, FloatArray]:
        """Layer borders that fit (or None), attempts made and spare memory of the last attempt."""
        speed = np.array(
            [
                1 / self._model_ms(group, dp, tp, outer.batches)
                for group, (dp, tp) in zip(types, strategies, strict=True)
            ]
        )
        speed /= speed.sum()
        spare = np.empty(0)
        for attempt in range(1, BALANCING_ATTEMPTS + 1):
            self.attempts += 1
            borders = self._moved(self._filled(speed), speed)
            demand = np.array(
                [
                    MEMORY_FACTOR * self._memory_mb(outer, dp, tp, low, high)
                    for (dp, tp), (low, high) in zip(strategies, pairwise(borders), strict=True)
                ]
            )
            spare = capacity_mb - demand
            over = spare < 0
            if not over.any():
                return tuple(borders), attempt, spare
            if over.all():
                return None, attempt, spare
            slowed = np.where(over, speed * capacity_mb / demand.clip(1e-9), 0) * OVERFLOW_SLOWDOWN
            surplus = speed[over].sum() - slowed[over].sum()
            speed = np.where(over, slowed, speed + surplus * speed / speed[~over].sum())
        return None, BALANCING_ATTEMPTS, spare

    def _model_ms(self, types: list[str], dp: int, tp: int, batches: int) -> float:
        """Time of the whole model on a stage's GPUs and micro-batch."""
        inputs = self._inputs
        if len(set(types)) == 1:
            size = inputs.global_batch // dp // batches
            return float(inputs.profiles[types[0], tp, size].layer_ms[-1])
        replicas = types[::tp]
        shares = shares_of_replicas(inputs, replicas, tp, inputs.global_batch // batches)
        return max(
            sum(
                float(inputs.profiles[gpu_type, tp, 1 << bit].layer_ms[-1])
                for bit in range(samples.bit_length())
                if samples >> bit & 1
            )
            for gpu_type, samples in zip(replicas, shares, strict=True)
        )

    def _memory_mb(self, outer: InterStagePlan, dp: int, tp: int, low: int, high: int) -> float:
        """Profiled memory of one replica, always of the first GPU type of the order."""
        size = self._inputs.global_batch // dp // outer.batches
        memory = self._inputs.profiles[outer.node_sequence[0], tp, size].layer_memory_mb
        return float(memory[high] - memory[low])

    def _filled(self, speed: FloatArray) -> list[int]:
        """Cuts layers into slices, fills the stages forward, the last one backward."""
        slices = np.repeat(self._layer_share / SLICES_PER_LAYER, SLICES_PER_LAYER)
        spare = speed.copy()
        owner = np.full(len(slices), -1)
        low, high = 0, len(slices)
        for stage in range(len(speed) - 1):
            while low < high and spare[stage] > 0:
                owner[low] = stage
                spare[stage] -= slices[low]
                low += 1
        while high > low and spare[-1] >= slices[high - 1]:
            high -= 1
            owner[high] = len(speed) - 1
            spare[-1] -= slices[high]
        for index in range(low, high):
            owner[index] = int(np.argmax(spare))
            spare[owner[index]] -= slices[index]
        counts = np.zeros(len(speed), dtype=np.int64)
        for row in owner.reshape(-1, SLICES_PER_LAYER):
            votes = np.bincount(row, minlength=len(speed))
            # Without a majority nobody owns the layer: this is how Metis drops layers.
            if votes.max() * 2 > SLICES_PER_LAYER:
                counts[votes.argmax()] += 1
        return [0, *np.cumsum(counts).tolist()]

    def _moved(self, borders: list[int], speed: FloatArray) -> list[int]:
        """The roomiest stage takes a layer from its fullest neighbour, up to three times."""
        for _ in range(NEIGHBOUR_MOVES):
            spare = speed - np.diff(self._share_before[borders])
            taker = int(np.argmax(spare))
            neighbours = [s for s in (taker - 1, taker + 1) if 0 <= s < len(speed)]
            if not neighbours:
                return borders
            giver = min(neighbours, key=lambda stage: spare[stage])
            if borders[giver + 1] == borders[giver]:
                return borders
            moved = list(borders)
            moved[max(giver, taker)] += 1 if giver > taker else -1
            after = speed - np.diff(self._share_before[moved])
            if min(after[taker], after[giver]) <= min(spare[taker], spare[giver]) + 1e-12:
                return borders
            borders = moved
        return borders
