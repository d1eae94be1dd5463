"""A reconstruction of HGTrainer: hierarchical search under awareness of slow links.

HGTrainer (Zong et al., Big Data Mining and Analytics, 2025) plans heterogeneous parallel strategies
across distributed clusters with a hierarchical search and a mixed-precision pipeline between
clusters. Of the paper, only the abstract was available to us: what follows is a *reconstruction*,
and no number of it is the paper's.

1. Outer level: orders of clusters grow cluster by cluster (a beam per micro-batch); every prefix is
   a whole plan on those clusters, so that leaving slow clusters out is part of the search.
2. Inner level: within a cluster, equal stages of every number, size and tensor degree; the layer
   split with the smallest bottleneck over all clusters follows exactly (`balance`).
3. Screening: plans are ranked by the steady-state period, which sees links and their round trip,
   and the borders of the best are settled again by it, one at a time.
4. Refinement: the best are re-scored by the exact recurrence; precision on the links and warm-up
   depths are chosen, then local moves, the most promising by the period first, until none gains.

The ablations of the tables are options: no wire precision, no warm-up depth, a flat search.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dtgym.baselines.partitioning import balance
from dtgym.baselines.partitioning.balance import Layouts
from dtgym.baselines.partitioning.metis_planner import MetisPlanner
from dtgym.baselines.partitioning.moves import neighbours
from dtgym.baselines.partitioning.planner import Evaluator, Planner
from dtgym.simulator import partition, partition_estimates
from dtgym.simulator import partition_rules as rules
from dtgym.simulator.kernels import plan_construction as kernels
from dtgym.simulator.kernels.plan_construction import MAX_EXTRA_WARMUP
from dtgym.simulator.partition_space import Candidate, PlanSpace

MOVES_AT_ONCE = 16
"""Local moves that are priced exactly together, the most promising first."""
MOVES_LOOKED_AT = 96
"""Of all local moves of a plan, the most promising ones are priced, at most so many."""
SETTLING_ROUNDS = 6


@dataclass
class HGTrainer(Planner):
    """Reconstruction of HGTrainer; see the module.

    Attributes:
        beam: Partial orders kept per micro-batch and number of clusters.
        rescored: Plans of the screening that are re-scored exactly.
        per_shape: Of these, at most so many of the same shape: clusters of the stages in order, and
            micro-batch.
        refined: Plans that local moves start from, no two of the same shape.
        max_evaluations: Exact evaluations after which refinement ends.
        wire_precision: Whether links may be narrower than the compute type.
        warmup_depth: Whether warm-up may be deeper than usual.
        hierarchical: False draws layouts at random instead of growing orders: the flat search.
        cheap_seeds: Whether the plans of the rules of thumb and of Metis (well-formed) are among
            the plans re-scored.
    """

    name: str = "hgtrainer"
    beam: int = 48
    rescored: int = 160
    per_shape: int = 2
    refined: int = 16
    max_evaluations: int = 12000
    wire_precision: bool = True
    warmup_depth: bool = True
    hierarchical: bool = True
    cheap_seeds: bool = True
    hyperparameters: dict[str, object] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.hyperparameters = {
            "beam": self.beam,
            "rescored": self.rescored,
            "per_shape": self.per_shape,
            "refined": self.refined,
            "max_evaluations": self.max_evaluations,
        }

    def search(self, evaluator: Evaluator) -> None:
        """Searches outer level, inner level, screening, refinement."""
        space = evaluator.space
        wires = self._wires(space)
        if self.hierarchical:
            pool = self._hierarchical(evaluator, wires[-1])
        else:
            pool = self._flat(evaluator)
        seeds = self._seeds(evaluator) if self.cheap_seeds else []
        ranked = [plan for plan, _ in sorted(pool.items(), key=lambda item: item[1])]
        screened = _few_per_shape(ranked, self.per_shape)[: self.rescored]
        settled = _settled(evaluator, screened)
        started = list(dict.fromkeys([*settled, *screened[: self.rescored // 4], *seeds]))
        if not started:
            return
        times = evaluator.time_s(started)
        order = np.argsort(times, kind="stable")
        running = [started[k] for k in order if np.isfinite(times[k])]
        climbed: set[Candidate] = set()
        for plan in _few_per_shape(running, 1)[: self.refined]:
            self._climb(evaluator, plan, wires, climbed)
        # The best plan may have been passed by on the way to another one.
        while evaluator.best is not None and evaluator.best not in climbed:
            self._climb(evaluator, evaluator.best, wires, climbed)

    def _wires(self, space: PlanSpace) -> tuple[int, ...]:
        """Codes allowed on links, widest first."""
        names = space.rules.wires
        if not self.wire_precision:
            local = space.rules.local_wire
            names = (local,) if local in names else names[:1]
        return tuple(sorted(partition.WIRES.index(name) for name in names))

    def _hierarchical(self, evaluator: Evaluator, wire: int) -> dict[Candidate, float]:
        """Grows orders of clusters; returns plans with their estimated time."""
        space = evaluator.space
        options = _options(space)
        pool: dict[Candidate, float] = {}
        for batch in range(space.microbatch.shape[1]):
            if space.microbatch[0, batch] == 0:
                continue
            front: list[tuple[tuple[int, ...], ...]] = [()]
            for _ in range(int(space.arrays.clusters[0])):
                grown = _grown(front, options[batch], space.rules.max_stages)
                if not grown:
                    break
                layouts = _layouts(grown, batch, space.rules.max_stages)
                depths = (0, MAX_EXTRA_WARMUP) if self.warmup_depth else (0,)
                estimate_s, plans = _estimated(evaluator, layouts, wire, depths)
                keep = np.argsort(estimate_s, kind="stable")[: self.beam]
                keep = keep[np.isfinite(estimate_s[keep])]
                if not len(keep):
                    # Too little memory on so few clusters: go on with all of them.
                    keep = np.arange(min(len(grown), self.beam))
                front = [grown[k] for k in keep]
                pool.update((plans[k], float(estimate_s[k])) for k in keep.tolist() if k in plans)
        return pool

    def _flat(self, evaluator: Evaluator) -> dict[Candidate, float]:
        """As many plans as the hierarchy screens, drawn at random from the whole space."""
        space = evaluator.space
        random = np.random.default_rng(self.seed)
        plans = random_plans(space, random, 2048)
        arrays = space.plans(plans)
        costs = partition.stage_costs(space.problem, arrays)
        evaluator.estimates += len(plans)
        estimate_s = partition_estimates.period_form_s(costs, arrays)
        estimate_s = np.where(costs.feasible, estimate_s, np.inf)
        allowed = self._wires(space)
        return {
            _restricted(plan, allowed, self.warmup_depth): float(time_s)
            for plan, time_s in zip(plans, estimate_s, strict=True)
        }

    def _seeds(self, evaluator: Evaluator) -> list[Candidate]:
        """The cheap planners' plans: rules of thumb, and Metis where it has one."""
        space = evaluator.space
        wire = self._wires(space)[-1]
        order = rules.open_path_order(space, 0, range(int(space.arrays.clusters[0])))
        seeds: list[Candidate] = []
        for cluster in range(int(space.arrays.clusters[0])):
            seeds += [plan for rung in rules.single_cluster(space, 0, cluster) for plan in rung][:6]
        seeds += rules.proportional(space, 0, order)[:64]
        metis = MetisPlanner().winner(evaluator)
        if metis is not None:
            seeds.append(metis)
            stages = tuple(replace(stage, wire=wire) for stage in metis.stages)
            seeds.append(replace(metis, stages=stages))
        return list(dict.fromkeys(seeds))

    def _climb(
        self,
        evaluator: Evaluator,
        plan: Candidate,
        wires: tuple[int, ...],
        climbed: set[Candidate],
    ) -> None:
        """Descent over local moves until none gains, the budget is spent or a path is joined."""
        space = evaluator.space
        time_s = float(evaluator.time_s([plan])[0])
        climbed.add(plan)
        plan, time_s = self._tuned(evaluator, plan, time_s, wires)
        while True:
            climbed.add(plan)
            around = neighbours(space, plan, wires=wires, warmup=self.warmup_depth)
            ranked = _by_estimate(evaluator, around)
            better: Candidate | None = None
            for first in range(0, len(ranked), MOVES_AT_ONCE):
                if evaluator.evaluations >= self.max_evaluations:
                    return
                tried = ranked[first : first + MOVES_AT_ONCE]
                times = evaluator.time_s(tried)
                best = int(times.argmin())
                if times[best] < time_s * (1 - 1e-9):
                    better, time_s = tried[best], float(times[best])
                    break
            if better is None or better in climbed:
                return
            plan = better

    def _tuned(
        self, evaluator: Evaluator, plan: Candidate, time_s: float, wires: tuple[int, ...]
    ) -> tuple[Candidate, float]:
        """The best uniform precision and warm-up depth of all stages together."""
        depths = range(MAX_EXTRA_WARMUP + 1) if self.warmup_depth else (0,)
        crossings = [
            s
            for s in range(len(plan.stages) - 1)
            if plan.stages[s].cluster != plan.stages[s + 1].cluster
        ]
        # Behind the last link nothing waits for a round trip.
        last = max(crossings, default=-1)
        trials = [
            replace(
                plan,
                stages=tuple(
                    replace(stage, wire=wire, extra=depth if s <= last else 0)
                    for s, stage in enumerate(plan.stages)
                ),
            )
            for wire in wires
            for depth in depths
        ]
        times = evaluator.time_s(trials)
        best = int(times.argmin())
        return (trials[best], float(times[best])) if times[best] < time_s else (plan, time_s)


def _restricted(plan: Candidate, wires: tuple[int, ...], warmup: bool) -> Candidate:
    """The plan with forbidden precisions widened and, without warm-up depth, none of it."""
    stages = tuple(
        replace(
            stage,
            wire=stage.wire if stage.wire in wires else wires[-1],
            extra=stage.extra if warmup else 0,
        )
        for stage in plan.stages
    )
    return replace(plan, stages=stages)


def _options(space: PlanSpace) -> list[list[list[tuple[int, int, int]]]]:
    """By micro-batch and cluster: (stages, GPU choice, tensor choice) worth looking at.

    Of each number of stages, the two fastest choices and the one that needs least memory: a choice
    that is slower and needs more memory than another of the same number never helps.
    """
    arrays = space.arrays
    layers = int(arrays.layers[0])
    result: list[list[list[tuple[int, int, int]]]] = []
    for batch in range(space.microbatch.shape[1]):
        by_cluster: list[list[tuple[int, int, int]]] = []
        for c in range(int(arrays.clusters[0])):
            row = arrays.row[0, c]
            found: dict[int, list[tuple[float, int, int, int]]] = {}
            for g, t in zip(*np.nonzero(arrays.legal[0, c, batch]), strict=True):
                size, tp = int(space.gpu_options[g]), int(space.tensor_options[t])
                k = int(space.microbatch[0, batch] // (size // tp)).bit_length() - 1
                speed = 1.0 / float(space.stage_time_s[row, t, k, layers])
                held = int(arrays.farthest[0, c, batch, g, t, 0, 1]) - 1
                most = min(int(arrays.cluster_gpus[0, c]) // size, space.rules.max_stages)
                for stages in range(1, most + 1):
                    found.setdefault(stages, []).append((speed, held, int(g), int(t)))
            chosen: list[tuple[int, int, int]] = []
            for stages, choices in found.items():
                fastest = sorted(choices, reverse=True)[:2]
                roomiest = max(choices, key=lambda choice: (choice[1], choice[0]))
                for _, _, g, t in dict.fromkeys([*fastest, roomiest]):
                    chosen.append((stages, g, t))
            by_cluster.append(chosen)
        result.append(by_cluster)
    return result


def _grown(
    front: list[tuple[tuple[int, ...], ...]],
    options: list[list[tuple[int, int, int]]],
    max_stages: int,
) -> list[tuple[tuple[int, ...], ...]]:
    """Every order of `front` with one more cluster behind it."""
    grown = []
    for order in front:
        used = {part[0] for part in order}
        placed = sum(part[1] for part in order)
        for c, choices in enumerate(options):
            if c in used:
                continue
            grown += [
                (*order, (c, stages, g, t))
                for stages, g, t in choices
                if placed + stages <= max_stages
            ]
    return grown


def _layouts(orders: list[tuple[tuple[int, ...], ...]], batch: int, width: int) -> Layouts:
    count = len(orders)
    cluster, gpus, tensor = (np.zeros((count, width), dtype=np.int64) for _ in range(3))
    stages = np.zeros(count, dtype=np.int64)
    for n, order in enumerate(orders):
        s = 0
        for c, number, g, t in order:
            cluster[n, s : s + number] = c
            gpus[n, s : s + number] = g
            tensor[n, s : s + number] = t
            s += number
        stages[n] = s
    return Layouts(np.full(count, batch), stages, cluster, gpus, tensor, np.zeros_like(cluster))


def _deepened(layouts: Layouts, depth: int) -> Layouts:
    """The layouts with warm-up `depth` deeper on every stage before their last link."""
    crosses = layouts.cluster[:, 1:] != layouts.cluster[:, :-1]
    crosses &= np.arange(1, layouts.cluster.shape[1]) < layouts.stages[:, None]
    # A stage is before the last link if any border from it on crosses clusters.
    ahead = np.logical_or.accumulate(crosses[:, ::-1], axis=1)[:, ::-1]
    extra = np.zeros_like(layouts.cluster)
    extra[:, :-1] = depth * ahead
    return replace(layouts, extra=extra)


def _estimated(
    evaluator: Evaluator, layouts: Layouts, wire: int, depths: tuple[int, ...]
) -> tuple[NDArray[np.float64], dict[int, Candidate]]:
    """Estimated times of the layouts under their best borders, (N,), and those plans by number.

    Of several warm-up depths the best one counts; a link's round trip hides behind deeper ones.
    """
    space = evaluator.space
    estimate_s = np.full(len(layouts), np.inf)
    chosen: dict[int, Candidate] = {}
    for depth in depths:
        deeper = _deepened(layouts, depth)
        borders, bottleneck_s = balance.balanced(space, deeper)
        fitting = np.flatnonzero(np.isfinite(bottleneck_s))
        if not len(fitting):
            continue
        plans = balance.candidates(space, deeper, borders, fitting, wire)
        arrays = space.plans(plans)
        costs = partition.stage_costs(space.problem, arrays)
        evaluator.estimates += len(plans)
        times = partition_estimates.period_form_s(costs, arrays)
        times = np.where(costs.feasible, times, np.inf)
        for n, plan, time_s in zip(fitting.tolist(), plans, times.tolist(), strict=True):
            if n not in chosen or time_s < estimate_s[n]:
                estimate_s[n], chosen[n] = time_s, plan
    return estimate_s, chosen


def _by_estimate(evaluator: Evaluator, plans: list[Candidate]) -> list[Candidate]:
    """Plans that can run, by rising estimate: at most `MOVES_LOOKED_AT` of them."""
    width = evaluator.space.rules.max_stages
    plans = [plan for plan in dict.fromkeys(plans) if len(plan.stages) <= width]
    if not plans:
        return []
    estimate_s = _estimates(evaluator, plans)
    order = np.argsort(estimate_s, kind="stable")[:MOVES_LOOKED_AT]
    return [plans[k] for k in order.tolist() if np.isfinite(estimate_s[k])]


def _estimates(evaluator: Evaluator, plans: list[Candidate]) -> NDArray[np.float64]:
    """The steady-state form of each plan, s; inf for a plan that cannot run."""
    space = evaluator.space
    arrays = space.plans(plans)
    costs = partition.stage_costs(space.problem, arrays)
    evaluator.estimates += len(plans)
    estimate_s = np.full(len(plans), np.inf)
    if costs.feasible.any():
        # The form knows no plan that breaks a rule, such as warm-up that rises.
        running = arrays.take(costs.feasible)
        estimate_s[costs.feasible] = partition_estimates.period_form_s(
            partition.stage_costs(space.problem, running), running
        )
    return estimate_s


def _settled(evaluator: Evaluator, plans: list[Candidate]) -> list[Candidate]:
    """The plans with each border in turn where the steady-state form likes it best.

    The balance of the inner level looks at stages alone; with links between them, other borders
    may give a shorter period.
    """
    result = []
    for plan in plans:
        best_s = float(_estimates(evaluator, [plan])[0])
        for _ in range(SETTLING_ROUNDS):
            borders = plan.borders
            moved = [
                plan.with_stage(s, high=high)
                for s in range(len(plan.stages) - 1)
                for high in range(borders[s] + 1, borders[s + 2])
                if high != borders[s + 1]
            ]
            if not moved:
                break
            estimate_s = _estimates(evaluator, moved)
            k = int(estimate_s.argmin())
            if not estimate_s[k] < best_s * (1 - 1e-9):
                break
            plan, best_s = moved[k], float(estimate_s[k])
        result.append(plan)
    return result


def _few_per_shape(plans: list[Candidate], few: int) -> list[Candidate]:
    """The first `few` plans of every shape, in the order of `plans`."""
    seen: dict[tuple[int, tuple[int, ...]], int] = {}
    result: list[Candidate] = []
    for plan in plans:
        shape = plan.microbatch, tuple(stage.cluster for stage in plan.stages)
        seen[shape] = seen.get(shape, 0) + 1
        if seen[shape] <= few:
            result.append(plan)
    return result


def random_plans(space: PlanSpace, random: np.random.Generator, count: int) -> list[Candidate]:
    """Plans built by uniformly random legal decisions."""
    builds = space.new_builds(count)
    everyone = np.arange(count)
    kernels.begin(space.arrays, builds, everyone, np.zeros(count, dtype=np.int64))
    legal = np.ones(count, dtype=np.bool_)
    while (builds.head != kernels.DONE).any():
        mask = space.masks(builds)
        actions = (random.random(mask.shape) * mask).argmax(axis=1)
        kernels.advance(space.arrays, builds, actions, legal)
    return [space.candidate(builds, index) for index in range(count)]
