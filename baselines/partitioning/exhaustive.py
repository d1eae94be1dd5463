"""Exact optima of small spaces of plans: full enumeration, and branch and bound beyond it.

Full enumeration prices every plan, which a minute allows for some 5e7 of them. Branch and bound
first looks at shapes without wires, warm-up or borders: the busiest stage of the best split bounds
them all. Shapes are taken in the order of that bound; of each, only splits that may beat the best
plan so far are written out (`split_bounds`), crossed with wires and warm-up depths, bounded once
more by `partition_estimates.lower_bound_s` and priced. Both prove what they return.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.baselines.method import View
from dtgym.baselines.partitioning import enumeration, split_bounds
from dtgym.baselines.partitioning.planner import Evaluator, Planner
from dtgym.simulator import partition, partition_estimates
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.kernels.plan_construction import MAX_EXTRA_WARMUP
from dtgym.simulator.partition import Plans, Problem
from dtgym.simulator.partition_space import Candidate, PlanSpace, Stage
from dtgym.simulator.threads import map_ranges

Floats = NDArray[np.float64]

MAX_GPUS = 16
MAX_STAGES = 4
"""Largest space that branch and bound is let loose on: seconds, sometimes a minute."""

CHUNK = 1 << 17
"""Plans priced in one call of full enumeration: enough for speed, little enough for memory."""


@dataclass(frozen=True)
class Solution:
    """A proven optimum.

    Attributes:
        plan: The plan, alone in its arrays.
        time_s: Its exact iteration time.
        evaluated: Plans whose exact time was computed.
        candidates: Plans looked at, feasible or not: all of the space in full enumeration, those
            that the bound on shapes and splits left in branch and bound.
    """

    plan: Plans
    time_s: float
    evaluated: int
    candidates: int


def feasible_plans(problem: Problem, shapes: Iterable[Plans]) -> Iterator[tuple[Plans, int]]:
    """Every feasible plan of the given shapes, with every split of the layers.

    Args:
        problem: Instances.
        shapes: As `enumeration.shapes` yields them; all of one instance.

    Yields:
        Feasible plans of one stage count, and how many plans were looked at for them.
    """
    for shape in shapes:
        # What the structure or the profile forbids does not depend on the split.
        kept = shape.take(partition.stage_costs(problem, shape).priced)
        if not len(kept):
            continue
        borders = enumeration.splits(int(kept.bound[0, -1]), kept.width)
        step = max(1, CHUNK // len(borders))
        for first in range(0, len(kept), step):
            plans = enumeration.with_borders(
                kept.take(np.arange(first, min(first + step, len(kept)))), borders
            )
            feasible = partition.stage_costs(problem, plans).feasible
            yield plans.take(feasible), len(plans)


def enumerate_all(problem: Problem, shapes: Iterable[Plans]) -> Solution:
    """Prices every feasible plan of the given shapes.

    Raises:
        InvalidInput: No feasible plan among them.
    """
    best: Plans | None = None
    best_s, evaluated, candidates = np.inf, 0, 0
    for plans, looked_at in feasible_plans(problem, shapes):
        candidates += looked_at
        evaluated += len(plans)
        if not len(plans):
            continue
        time_s = partition.evaluate(problem, plans).time_s
        if time_s.min() < best_s:
            best_s, best = float(time_s.min()), plans.take([time_s.argmin()])
    if best is None:
        raise InvalidInput("no plan of the space is feasible")
    return Solution(best, best_s, evaluated, candidates)


@dataclass(frozen=True)
class Variants:
    """What branch and bound crosses shapes and splits with.

    Attributes:
        wires: Codes of `partition.WIRES` that may cross clusters; borders inside keep the shape's.
        extra_warmup: Most micro-batches of warm-up beyond the standard depth, on every stage but
            the last.
    """

    wires: tuple[int, ...]
    extra_warmup: int = 0


def branch_and_bound(
    problem: Problem,
    shapes: Iterable[Plans],
    variants: Variants,
    incumbent: Plans | None = None,
) -> Solution:
    """The best feasible plan of all shapes, splits, wires and warm-up depths.

    Args:
        problem: Instances.
        shapes: As `enumeration.shapes` yields them; all of one instance.
        variants: What to cross them with.
        incumbent: A feasible plan to start from, of any kind; None starts from nothing.

    Returns:
        The optimum, which the bound proves; the incumbent where nothing beats it.

    Raises:
        InvalidInput: No feasible plan.
    """
    search = _Search(problem, variants)
    if incumbent is not None:
        search.price(incumbent)
    bounded = [found for shape in shapes if len(found := _bounded(problem, shape, variants))]
    pool = sorted(
        ((float(bound), n, i) for n, group in enumerate(bounded) for i, bound in enumerate(group)),
        key=lambda entry: entry[0],
    )
    # The best splits of the most promising shapes give a first plan to beat.
    for first in range(0, len(pool), _WARM_START):
        for n in range(len(bounded)):
            rows = [i for _, m, i in pool[first : first + _WARM_START] if m == n]
            if rows:
                search.expand(bounded[n], np.array(rows), bounded[n].split[rows])
        if search.best is not None:
            break
    waiting: dict[int, list[tuple[int, NDArray[np.int64]]]] = {}
    amount = 0
    for bound, n, i in pool:
        if bound >= search.best_s:
            break
        splits = bounded[n].promising(i, search.best_s)
        if len(splits):
            waiting.setdefault(n, []).append((i, splits))
            amount += len(splits)
        if amount >= _PAIRS:
            search.expand_all(bounded, waiting)
            waiting, amount = {}, 0
    search.expand_all(bounded, waiting)
    if search.best is None:
        raise InvalidInput("no plan of the space is feasible")
    return Solution(search.best, search.best_s, search.evaluated, search.candidates)


@dataclass
class Exhaustive(Planner):
    """The optimum of the whole space, proven by branch and bound. For small spaces.

    Every stage is a power of two of accelerators, as in the environment; wires and warm-up depths
    are those of the space.
    """

    name: str = "exhaustive"

    def reset(self, view: View) -> None:
        """Solves the instance of the episode that begins.

        Raises:
            InvalidInput: A space that is too large; no rule of thumb stands in for an optimum.
        """
        _check_size(view.state.space)
        super().reset(view)

    def search(self, evaluator: Evaluator) -> None:
        """Solves the space, starting from a plan that is known to fit."""
        from dtgym.simulator.partition_rules import witness_plan

        space = evaluator.space
        witness = witness_plan(space, 0)
        evaluator.time_s([witness])
        start = space.plans([evaluator.best or witness])
        solution = solve(space, start)
        evaluator.evaluations += solution.evaluated
        evaluator.time_s([_candidate(solution.plan)])


def solve(space: PlanSpace, incumbent: Plans | None = None) -> Solution:
    """The optimum of a space of one instance.

    Args:
        space: The space of one instance alone.
        incumbent: A feasible plan to start from.

    Raises:
        InvalidInput: More accelerators or stages than can be solved in minutes.
    """
    _check_size(space)
    rules, problem = space.rules, space.problem
    width = rules.max_stages
    shapes = enumeration.shapes(
        problem,
        groups=[
            enumeration.power_of_two_groups(int(gpus), width)
            for gpus in problem.gpus[0][problem.row[0] >= 0]
        ],
        max_stages=width,
        microbatches=[int(size) for size in space.microbatch[0] if size > 0],
        wire=rules.local_wire,
        recompute=rules.recompute,
        zero=rules.zero,
    )
    wires = tuple(partition.WIRES.index(wire) for wire in rules.wires)
    return branch_and_bound(problem, shapes, Variants(wires, MAX_EXTRA_WARMUP), incumbent)


def _check_size(space: PlanSpace) -> None:
    gpus, stages = int(space.problem.gpus.sum()), space.rules.max_stages
    if len(space.problem) != 1 or gpus > MAX_GPUS or stages > MAX_STAGES:
        raise InvalidInput(
            f"exhaustive solves one instance of at most {MAX_GPUS} accelerators and {MAX_STAGES} "
            f"stages, got {len(space.problem)} with {gpus} accelerators and {stages} stages"
        )


@dataclass(frozen=True)
class _Bounded:
    """Shapes of one stage count with their bounds.

    Attributes:
        shape: The shapes.
        forward, backward: (shapes, stages, layers + 1) summed up over the layers.
        transfer_s: (shapes, stages - 1) both ways, at the cheapest wire.
        microbatches: (shapes,).
        bound_s: (shapes,) no plan of the shape is faster.
        split: (shapes, stages + 1) the split with the least busy stage.
        deepest: (stages,) deepest warm-up.
    """

    shape: Plans
    forward: Floats
    backward: Floats
    transfer_s: Floats
    microbatches: NDArray[np.int64]
    bound_s: Floats
    split: NDArray[np.int32]
    deepest: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.shape)

    def __iter__(self) -> Iterator[float]:
        return iter(self.bound_s.tolist())

    def promising(self, i: int, limit_s: float) -> NDArray[np.int64]:
        """Splits of shape i that may take less than `limit_s`."""
        layers = self.forward.shape[2] - 1
        splits = np.empty((1024, self.shape.width + 1), np.int64)
        while True:
            found = split_bounds.promising_splits(
                self.forward[i],
                self.backward[i],
                self.transfer_s[i],
                self.shape.width,
                layers,
                self.microbatches[i],
                self.deepest,
                limit_s,
                splits,
            )
            if found <= len(splits):
                return splits[:found]
            splits = np.empty((found, self.shape.width + 1), np.int64)


def _bounded(problem: Problem, shape: Plans, variants: Variants) -> _Bounded:
    """Bounds the shapes that have a price at all."""
    shape = shape.take(partition.stage_costs(problem, shape).priced)
    tables, instance = problem.tables, shape.instance[:1]
    layers = int(problem.layers[instance[0]]) if len(shape) else 0
    row = problem.row[shape.instance[:, None], shape.cluster]
    size, low, part = tables.lookup
    k = size[shape.tp]
    samples = shape.microbatch[:, None] // (shape.gpus // shape.tp)
    low, part = low[samples], part[samples][..., None]
    high = np.minimum(low + 1, tables.samples.size - 1)

    def summed(table: Floats) -> Floats:
        below = table[row, k, low, : layers + 1]
        above = table[row, k, high, : layers + 1]
        return np.where(part > 0, below + part * (above - below), below)

    forward, backward = summed(tables.forward_s), summed(tables.backward_s)
    if len(shape) and shape.recompute[0, 0] == 1:
        backward = backward + summed(tables.selective_s)
    elif len(shape) and shape.recompute[0, 0] == 2:
        backward = backward + forward
    microbatches = problem.global_batch[shape.instance] // shape.microbatch
    width = shape.width
    bound_s = np.empty(len(shape))
    split = np.zeros((len(shape), width + 1), np.int32)
    work = forward + backward

    def run(first: int, last: int) -> None:
        split_bounds.bottleneck(work, width, layers, microbatches, first, last, bound_s, split)

    map_ranges(run, len(shape), 256)
    return _Bounded(
        shape=shape,
        forward=forward,
        backward=backward,
        transfer_s=_cheapest_transfer_s(problem, shape, variants),
        microbatches=microbatches.astype(np.int64),
        bound_s=bound_s,
        split=split,
        deepest=np.arange(width - 1, -1, -1) + variants.extra_warmup,
    )


def _cheapest_transfer_s(problem: Problem, shape: Plans, variants: Variants) -> Floats:
    """Both ways over each border, (shapes, stages - 1): 0 inside a cluster."""
    instance = shape.instance[:, None]
    here, there = shape.cluster[:, :-1], shape.cluster[:, 1:]
    layers = problem.layers[shape.instance].max(initial=0)
    rows = problem.row[instance, here]
    least = problem.tables.output_elements[:, 1:layers].min(axis=1, initial=np.inf)
    element = min(problem.assumptions.wire_bytes_per_element[code] for code in variants.wires)
    message = np.where(here == there, 0.0, least[rows] * element) * shape.microbatch[:, None]
    if problem.assumptions.wan_pipes == "replica":
        replicas = shape.gpus // shape.tp
        message = message / np.minimum(replicas[:, :-1], replicas[:, 1:])
    total = np.zeros(here.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        for a, b in ((here, there), (there, here)):
            rate = problem.wan_bytes_per_s[instance, a, b]
            total += problem.wan_delay_s[instance, a, b] + message / rate
    return np.where(here == there, 0.0, total)


class _Search:
    """Prices candidates and keeps the best."""

    def __init__(self, problem: Problem, variants: Variants) -> None:
        self.problem = problem
        self.variants = variants
        self.best: Plans | None = None
        self.best_s = np.inf
        self.evaluated = 0
        self.candidates = 0

    def expand_all(
        self, bounded: list[_Bounded], waiting: dict[int, list[tuple[int, NDArray[np.int64]]]]
    ) -> None:
        """Expands shapes with their splits, one stage count after the other."""
        for n, pairs in waiting.items():
            rows = np.concatenate([np.full(len(splits), i) for i, splits in pairs])
            splits = np.concatenate([splits for _, splits in pairs])
            for first in range(0, len(rows), _PAIRS):
                part = slice(first, first + _PAIRS)
                self.expand(bounded[n], rows[part], splits[part])

    def expand(
        self, group: _Bounded, rows: NDArray[np.int64], splits: NDArray[np.integer[Any]]
    ) -> None:
        """Prices shapes with a split each under every combination of wires and warm-up depths."""
        plans = replace(group.shape.take(rows), bound=splits)
        plans = plans.take(self._worth(plans, group.transfer_s[rows], group.deepest))
        if not len(plans):
            return
        crosses = plans.cluster[:, 1:] != plans.cluster[:, :-1]
        borders = crosses.sum(axis=1)
        for depths in self._depths(plans.width):
            deeper = replace(plans, warmup=np.broadcast_to(depths, plans.warmup.shape))
            for count in np.unique(borders).tolist():
                some, where = deeper.take(borders == count), crosses[borders == count]
                for codes in product(self.variants.wires, repeat=count):
                    wire = some.wire.copy()
                    wire[where] = np.tile(codes, len(some))
                    self.price(replace(some, wire=wire))

    def _worth(
        self, plans: Plans, transfer_s: Floats, deepest: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Which plans have a chance whatever wire and depth they get.

        Deeper warm-up only needs more memory and no wire needs less, so that what does not fit now
        never fits; and what the first stage does after its last backward no variant shortens.
        """
        self.candidates += len(plans)
        costs = partition.stage_costs(self.problem, plans)
        work = costs.forward_s + costs.backward_s
        steps = work.copy()
        steps[:, :-1] += transfer_s
        around = np.cumsum(steps, axis=1) - steps
        rest = steps.sum(axis=1, keepdims=True) - around - work
        m = costs.microbatches[:, None]
        left = np.maximum(m - 1 - deepest, 0)
        alone = around + m * work
        behind = around + rest + (1 + left) * costs.forward_s + m * costs.backward_s
        bound = np.maximum(alone, behind).max(axis=1)
        bound += costs.synchronise_s[:, 0] + costs.update_s[:, 0]
        # Sums in another order than the evaluator's: leave room for rounding.
        return costs.feasible & (bound * (1 - 1e-12) < self.best_s)

    def price(self, plans: Plans) -> None:
        """Prices plans that the lower bound leaves a chance."""
        self.candidates += len(plans)
        costs = partition.stage_costs(self.problem, plans)
        chance = costs.feasible
        chance &= partition_estimates.lower_bound_s(costs, plans) < self.best_s
        plans = plans.take(chance)
        if not len(plans):
            return
        self.evaluated += len(plans)
        time_s = partition.evaluate(self.problem, plans).time_s
        if time_s.min() < self.best_s:
            self.best_s, self.best = float(time_s.min()), plans.take([time_s.argmin()])

    def _depths(self, stages: int) -> Iterator[NDArray[np.int64]]:
        """Warm-up depths that do not rise from stage to stage."""
        standard = np.arange(stages - 1, -1, -1)
        for extra in product(range(self.variants.extra_warmup + 1), repeat=stages - 1):
            depths = standard + np.array([*extra, 0])
            if (np.diff(depths) <= 0).all():
                yield depths


def _candidate(plan: Plans) -> Candidate:
    """The one plan of `plan` as planners handle it."""
    stages = int(plan.stages[0])
    return Candidate(
        int(plan.microbatch[0]),
        tuple(
            Stage(
                cluster=int(plan.cluster[0, s]),
                gpus=int(plan.gpus[0, s]),
                tp=int(plan.tp[0, s]),
                high=int(plan.bound[0, s + 1]),
                wire=int(plan.wire[0, s - 1]) if s else 1,
                extra=int(plan.warmup[0, s]) - (stages - 1 - s),
            )
            for s in range(stages)
        ),
    )


_WARM_START = 256
"""Shapes whose best split is priced before the search."""

_PAIRS = 4096
"""Shapes with a split that are expanded together: the fewer, the sooner the limit falls."""
