"""Planners that rank a grid of plans by a closed form: AMP's and Sailor's.

Both look at plans of the same shapes and differ in the form alone; the plan that looks best to the
form and fits the memory is priced by the exact evaluator.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np

from dtgym.baselines.partitioning import balance
from dtgym.baselines.partitioning.balance import Layouts
from dtgym.baselines.partitioning.planner import Evaluator, Planner
from dtgym.simulator import partition, partition_estimates
from dtgym.simulator import partition_rules as rules
from dtgym.simulator.partition_space import Candidate, PlanSpace

MAX_PERMUTED = 4
"""Beyond so many clusters only the cheapest chain of links and its reverse are tried."""
KEPT = 64
"""Plans of the best estimates among which the first that fits is taken."""


@dataclass
class Amp(Planner):
    """AMP's form: a uniform (dp, tp, pp) grid over all clusters, ranked by its closed form.

    All stages have the same accelerators and tensor degree; layers follow AMP's balance (smallest
    bottleneck); orders of clusters stand for its placement moves (Li et al., NeurIPS 2022).
    """

    name: str = "amp"

    def search(self, evaluator: Evaluator) -> None:
        """Ranks the grid by AMP's form and prices the first plan that fits."""
        space = evaluator.space
        count = int(space.arrays.clusters[0])
        gpus = space.problem.gpus[0, :count]
        shapes: list[tuple[list[int], int | list[int], int]] = []
        for order in _orders(space, list(range(count))):
            for g, size in enumerate(space.gpu_options.tolist()):
                homes = [c for c in order for _ in range(int(gpus[c]) // size)]
                if 1 <= len(homes) <= space.rules.max_stages:
                    shapes += [(homes, g, t) for t in range(len(space.tensor_options))]
        _price_best(evaluator, _over_batches(space, shapes), "metis-form")


@dataclass
class Sailor(Planner):
    """Sailor's form: equal stages within a cluster, any subset and order of clusters.

    Ranked by (M - 1) max(work + transfers) + sum (Strati et al., SOSP 2025: the form of its
    simulator; its dynamic programme over regions is replaced by enumeration of the same shapes).
    """

    name: str = "sailor"

    def search(self, evaluator: Evaluator) -> None:
        """Ranks the shapes by Sailor's form and prices the first plan that fits."""
        space = evaluator.space
        count = int(space.arrays.clusters[0])
        shapes: list[tuple[list[int], int | list[int], int]] = []
        for members in _subsets(space, count):
            for order in _orders(space, members):
                for each in range(1, space.rules.max_stages // len(order) + 1):
                    sizes = [int(space.problem.gpus[0, c]) // each for c in order]
                    if min(sizes) < 1:
                        continue
                    homes = [c for c in order for _ in range(each)]
                    gpus = [size.bit_length() - 1 for size in sizes for _ in range(each)]
                    shapes += [(homes, gpus, t) for t in range(len(space.tensor_options))]
        _price_best(evaluator, _over_batches(space, shapes), "sailor-form")


def _subsets(space: PlanSpace, count: int) -> list[list[int]]:
    """All subsets of few clusters; of many, the chains of neighbours along the cheapest order."""
    if count <= MAX_PERMUTED:
        return [[c for c in range(count) if bits >> c & 1] for bits in range(1, 1 << count)]
    order = rules.open_path_order(space, 0, range(count))
    return [order[a:b] for a in range(count) for b in range(a + 1, count + 1)]


def _orders(space: PlanSpace, clusters: list[int]) -> list[tuple[int, ...]]:
    if len(clusters) <= MAX_PERMUTED:
        return list(permutations(clusters))
    order = rules.open_path_order(space, 0, clusters)
    return [tuple(order), tuple(order[::-1])]


def _over_batches(
    space: PlanSpace, shapes: list[tuple[list[int], int | list[int], int]]
) -> Layouts:
    """Every shape with every micro-batch; tensor degrees stop at what a stage holds."""
    batches = np.flatnonzero(space.microbatch[0] > 0)
    width = space.rules.max_stages
    count = len(shapes)
    cluster, gpus, tensor = (np.zeros((count, width), dtype=np.int64) for _ in range(3))
    stages = np.zeros(count, dtype=np.int64)
    degree_log2 = np.log2(space.tensor_options).astype(np.int64)
    for n, (homes, sizes, t) in enumerate(shapes):
        used = len(homes)
        stages[n] = used
        cluster[n, :used] = homes
        gpus[n, :used] = sizes
        fits = [int(np.flatnonzero(degree_log2 <= size)[-1]) for size in gpus[n, :used]]
        tensor[n, :used] = np.minimum(t, fits)
    repeat = len(batches)
    return Layouts(
        np.tile(batches, count),
        np.repeat(stages, repeat),
        np.repeat(cluster, repeat, axis=0),
        np.repeat(gpus, repeat, axis=0),
        np.repeat(tensor, repeat, axis=0),
        np.zeros((count * repeat, width), dtype=np.int64),
    )


def _price_best(evaluator: Evaluator, layouts: Layouts, form: str) -> None:
    """Prices the first plan, by the estimate, that can be built."""
    space = evaluator.space
    borders, bottleneck_s = balance.balanced(space, layouts)
    fitting = np.flatnonzero(np.isfinite(bottleneck_s))
    if not len(fitting):
        return
    local = partition.WIRES.index(space.rules.local_wire)
    plans = balance.candidates(space, layouts, borders, fitting, local)
    for plan in ranked(evaluator, plans, form)[:KEPT]:
        if space.is_buildable(plan) and np.isfinite(evaluator.time_s([plan]))[0]:
            return


def ranked(evaluator: Evaluator, plans: list[Candidate], form: str) -> list[Candidate]:
    """Plans by rising estimate; those that cannot run are left out."""
    arrays = evaluator.space.plans(plans)
    costs = partition.stage_costs(evaluator.space.problem, arrays)
    evaluator.estimates += len(plans)
    estimate_s = partition_estimates.ESTIMATORS[form](costs, arrays)
    estimate_s = np.where(costs.feasible, estimate_s, np.inf)
    order = np.argsort(estimate_s, kind="stable")
    return [plans[k] for k in order.tolist() if np.isfinite(estimate_s[k])]
