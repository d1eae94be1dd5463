"""Tables of planners: throughput (H1), precision of the links (H2), estimators (H3), optimum (H4).

Each function returns rows for a report (see `dtgym.experiments.reports`). Every plan is priced by
the exact evaluator, whatever its planner believed; evaluations and wall time are those of the
planner alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dtgym.baselines.partitioning import METHODS, enumeration, exhaustive
from dtgym.baselines.partitioning.hgtrainer import random_plans
from dtgym.baselines.partitioning.planner import Planned, Planner
from dtgym.envs.model_partitioning.generator import (
    BANDWIDTH_SWEEP_GBIT,
    FAMILIES,
    Choices,
    Pool,
    make_pool,
)
from dtgym.experiments import statistics
from dtgym.simulator import partition, partition_estimates
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.partition_settings import Setting, problem_of
from dtgym.simulator.partition_space import PlanSpace, Rules

PAPER_RATIO = 1.49
"""HGTrainer's average throughput over Metis, as its abstract states it; on clusters, models and
networks that were not available to us."""


def planner_named(name: str) -> Planner:
    """A fresh planner.

    Raises:
        InvalidInput: Unknown name.
    """
    if name not in METHODS:
        raise InvalidInput(f"planner must be one of {', '.join(METHODS)}; got {name!r}")
    method = METHODS[name]()
    assert isinstance(method, Planner)
    return method


def planned(name: str, space: PlanSpace, seed: int = 0) -> Planned | None:
    """What a planner comes to on one instance; None where it finds no plan that fits."""
    planner = planner_named(name)
    planner.seed = seed
    try:
        return planner.plan(space)
    except InvalidInput:
        return None


@dataclass(frozen=True)
class ThroughputRow:
    """Throughput of one planner on one family of instances.

    A ratio is samples per second of the planner's plan over those of Metis's plan on the same
    instance, averaged over the instances where both have a plan; the interval is the 95 % bootstrap
    over instances.

    Attributes:
        family: Kind of instances.
        model: Transformer, or ``all``.
        planner: Name of the planner.
        solved: Instances on which it has a plan.
        instances: Instances of the row.
        samples_per_s: Geometric mean of the throughput where it has a plan.
        over_well_formed: Mean ratio to Metis, well-formed plans with links honoured.
        over_well_formed_low: Lower bound.
        over_well_formed_high: Upper bound.
        over_as_shipped: Mean ratio to Metis as shipped.
        over_as_shipped_low: Lower bound.
        over_as_shipped_high: Upper bound.
        paper: The paper's average ratio to Metis, for the reconstruction's row only.
        evaluations: Mean number of plans priced exactly.
        estimates: Mean number of plans that cheaper forms looked at.
        wall_s: Mean wall time.
    """

    family: str
    model: str
    planner: str
    solved: int
    instances: int
    samples_per_s: float
    over_well_formed: float
    over_well_formed_low: float
    over_well_formed_high: float
    over_as_shipped: float
    over_as_shipped_low: float
    over_as_shipped_high: float
    paper: float | None
    evaluations: float
    estimates: float
    wall_s: float


def throughput(
    families: Sequence[str] = ("medium",),
    instances: Sequence[int] = (12,),
    pool_seed: int = 1,
    planners: Sequence[str] = tuple(METHODS),
) -> list[ThroughputRow]:
    """H1: throughput by planner, model and family.

    Args:
        families: Kinds of instances, see `generator.FAMILIES`.
        instances: Number of instances of each family.
        pool_seed: Seed of the pools; training uses 0.
        planners: Names of planners; both modes of Metis are added.
    """
    names = list(dict.fromkeys([*planners, "metis", "metis-as-shipped"]))
    rows: list[ThroughputRow] = []
    _compile(names)
    for family, count in zip(families, instances, strict=True):
        pool = make_pool(family, count, pool_seed, Choices())
        models = np.array([setting.model for setting in pool.settings])
        results = {name: _on_pool(name, pool) for name in names}
        rates = {name: _rates(result, pool) for name, result in results.items()}
        for model in ["all", *sorted(set(models))]:
            chosen = np.flatnonzero((models == model) | (model == "all"))
            rows += [
                _throughput_row(family, str(model), name, results[name], rates, chosen)
                for name in names
            ]
    return rows


def _compile(names: Sequence[str]) -> None:
    """Runs every planner once on the toy, so that wall times hold no compilation."""
    toy = make_pool("toy", 1, 0, Choices()).space.take(0)
    for name in names:
        planned(name, toy)


def _on_pool(name: str, pool: Pool) -> list[Planned | None]:
    return [planned(name, pool.space.take(i)) for i in range(len(pool))]


def _rates(results: Sequence[Planned | None], pool: Pool) -> NDArray[np.float64]:
    batch = pool.space.problem.global_batch
    return np.array(
        [np.nan if one is None else batch[i] / one.time_s for i, one in enumerate(results)]
    )


def _throughput_row(
    family: str,
    model: str,
    name: str,
    results: Sequence[Planned | None],
    rates: dict[str, NDArray[np.float64]],
    chosen: NDArray[np.int64],
) -> ThroughputRow:
    own = rates[name][chosen]
    solved = np.isfinite(own)
    found = [one for k in chosen for one in [results[k]] if one is not None]
    well_formed = _ratio(own, rates["metis"][chosen])
    as_shipped = _ratio(own, rates["metis-as-shipped"][chosen])
    return ThroughputRow(
        family,
        model,
        name,
        int(solved.sum()),
        len(chosen),
        float(np.exp(np.log(own[solved]).mean())) if solved.any() else float("nan"),
        *well_formed,
        *as_shipped,
        PAPER_RATIO if name == "hgtrainer" else None,
        float(np.mean([one.evaluations for one in found])) if found else 0.0,
        float(np.mean([one.estimates for one in found])) if found else 0.0,
        float(np.mean([one.wall_s for one in found])) if found else 0.0,
    )


def _ratio(own: NDArray[np.float64], other: NDArray[np.float64]) -> tuple[float, float, float]:
    """Mean ratio with its 95 % bootstrap interval over instances."""
    both = np.isfinite(own) & np.isfinite(other)
    if not both.any():
        return float("nan"), float("nan"), float("nan")
    # Instances are what is resampled: they take the place of episodes.
    estimate = statistics.mean_estimate((own[both] / other[both])[None, None, :])
    return estimate.point, estimate.low, estimate.high


@dataclass(frozen=True)
class PrecisionRow:
    """What narrower links win at one bandwidth.

    Attributes:
        model: Transformer.
        wan_gbit_per_s: Bandwidth of the link, Gbit/s.
        single_cluster_s: Of the reconstruction on the better of the two clusters alone; NaN where
            the model fits neither.
        bf16_s: Of the reconstruction with 16-bit links.
        fp8_s: With 8-bit links allowed as well.
        int4_s: With 4-bit links allowed as well.
        gain: bf16_s over int4_s.
        gain_over_single: single_cluster_s over int4_s.
        clusters_bf16: Clusters that the 16-bit plan uses.
        clusters_int4: Clusters that the 4-bit plan uses.
    """

    model: str
    wan_gbit_per_s: float
    single_cluster_s: float
    bf16_s: float
    fp8_s: float
    int4_s: float
    gain: float
    gain_over_single: float
    clusters_bf16: int
    clusters_int4: int


def precision(
    models: Sequence[str] = ("gpt3-6.7b", "llama2-13b", "llama2-70b"),
    bandwidths_gbit_per_s: Sequence[float] = BANDWIDTH_SWEEP_GBIT,
) -> list[PrecisionRow]:
    """H2: the mixed-precision ablation over bandwidth, two clusters 20 ms apart."""
    rows: list[PrecisionRow] = []
    for model in models:
        for gbit in bandwidths_gbit_per_s:
            results: list[Planned] = []
            for wires in (("bf16",), ("bf16", "fp8"), ("bf16", "fp8", "int4")):
                rules = Rules(FAMILIES["bandwidth"].max_stages, wires)
                pool = make_pool("bandwidth", 1, 0, Choices((model,), gbit), rules)
                space = pool.space.take(0)
                one = planned("hgtrainer", space)
                if one is None:
                    raise InvalidInput(f"{model} fits neither of the two clusters")
                results.append(one)
            wide, middle, narrow = results
            single_s = _alone_s(pool.settings[0], rules)
            rows.append(
                PrecisionRow(
                    model,
                    gbit,
                    single_s,
                    wide.time_s,
                    middle.time_s,
                    narrow.time_s,
                    wide.time_s / narrow.time_s,
                    single_s / narrow.time_s,
                    _clusters(wide),
                    _clusters(narrow),
                )
            )
    return rows


def _alone_s(setting: Setting, rules: Rules) -> float:
    """Iteration time of the reconstruction's best plan on one site alone; NaN where none fits."""
    nowhere = np.zeros((1, 1))
    times_s: list[float] = []
    for site in setting.sites:
        alone = replace(setting, sites=(site,), wan_bytes_per_s=nowhere, wan_delay_s=nowhere)
        space = PlanSpace(problem_of([alone]), rules)
        one = planned("hgtrainer", space.take(0)) if space.solvable[0] else None
        if one is not None:
            times_s.append(one.time_s)
    return min(times_s, default=float("nan"))


def _clusters(one: Planned) -> int:
    return len({stage.cluster for stage in one.plan.stages})


@dataclass(frozen=True)
class EstimatorRow:
    """What it costs to trust an estimator.

    Of a common set of feasible plans, the estimator picks the one it believes fastest; the loss is
    that plan's exact time over the fastest plan's.

    Attributes:
        family: Kind of instances.
        estimator: Name of the form.
        instances: Number of instances.
        plans: Mean number of plans in the set.
        median_loss: Median over instances.
        mean_loss: Mean over instances.
        worst_loss: Largest over instances.
        rank_correlation: Mean Spearman correlation of estimated and exact time.
    """

    family: str
    estimator: str
    instances: int
    plans: float
    median_loss: float
    mean_loss: float
    worst_loss: float
    rank_correlation: float


def estimators(
    families: Sequence[str] = ("small", "medium"),
    instances: Sequence[int] = (12, 12),
    plans: int = 4000,
    pool_seed: int = 1,
) -> list[EstimatorRow]:
    """H3: loss of the plan picked by each estimator, over random plans and the searches' own."""
    rows: list[EstimatorRow] = []
    for family, count in zip(families, instances, strict=True):
        pool = make_pool(family, count, pool_seed, Choices())
        losses: dict[str, list[float]] = {}
        ranks: dict[str, list[float]] = {}
        sizes: list[int] = []
        for i in range(count):
            space = pool.space.take(i)
            candidates = random_plans(space, np.random.default_rng([pool_seed, i]), plans)
            for name in ("hgtrainer", "sailor", "amp", "metis", "proportional", "megatron-manual"):
                one = planned(name, space)
                candidates += [] if one is None else [one.plan]
            arrays = space.plans(list(dict.fromkeys(candidates)))
            costs = partition.stage_costs(space.problem, arrays)
            arrays = arrays.take(costs.feasible)
            costs = partition.stage_costs(space.problem, arrays)
            exact_s = partition.evaluate(space.problem, arrays, costs).time_s
            sizes.append(len(arrays))
            for name, form in partition_estimates.ESTIMATORS.items():
                estimate_s = form(costs, arrays)
                loss = exact_s[int(estimate_s.argmin())] / exact_s.min()
                losses.setdefault(name, []).append(float(loss))
                ranks.setdefault(name, []).append(_spearman(estimate_s, exact_s))
        rows += [
            EstimatorRow(
                family,
                name,
                count,
                float(np.mean(sizes)),
                float(np.median(values)),
                float(np.mean(values)),
                float(np.max(values)),
                float(np.mean(ranks[name])),
            )
            for name, values in losses.items()
        ]
    return rows


def _spearman(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    ranks = [np.argsort(np.argsort(values)).astype(np.float64) for values in (first, second)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


@dataclass(frozen=True)
class GapRow:
    """Distance of a planner's plans from proven optima on small instances.

    Attributes:
        planner: Name of the planner.
        instances: Number of instances.
        within_1_percent: Share of instances within 1 % of the optimum.
        mean_gap: Mean of time over optimum, minus 1.
        worst_gap: Largest of it.
        evaluations: Mean number of plans priced exactly.
        evaluated_share: Largest share of the space's plans that was priced.
        space_plans: Mean number of feasible plans of the space.
        wall_s: Mean wall time.
    """

    planner: str
    instances: int
    within_1_percent: float
    mean_gap: float
    worst_gap: float
    evaluations: float
    evaluated_share: float
    space_plans: float
    wall_s: float


GAP_RULES = Rules(max_stages=3, wires=("bf16",), recompute="selective", zero=1)
"""The space that is enumerated: three stages, 16-bit links, standard warm-up."""

GAP_EVALUATIONS = 900
"""Plans that the reconstruction may price: less than 1 % of the smallest space."""

GAP_PLANNERS = (
    "megatron-manual",
    "proportional",
    "holmes",
    "dt-fm",
    "metis",
    "metis-as-shipped",
    "amp",
    "sailor",
    "random",
    "genetic",
    "annealing",
    "hgtrainer-flat",
    "hgtrainer",
)


def gaps(
    instances: int = 20, pool_seed: int = 1, planners: Sequence[str] = GAP_PLANNERS
) -> list[GapRow]:
    """H4: gap to the optimum by planner, on instances of at most 16 accelerators.

    The optimum is that of the enumerated space; warm-up deeper than usual is left out of it and of
    every planner's plan.
    """
    pool = make_pool("small", instances, pool_seed, Choices(("gpt3-2.7b", "gpt3-6.7b")), GAP_RULES)
    optima = [optimum(pool.space, i) for i in range(instances)]
    _compile(planners)
    rows: list[GapRow] = []
    for name in planners:
        gap, evaluations, walls, shares = [], [], [], []
        for i, (best_s, count) in enumerate(optima):
            space = pool.space.take(i)
            one = _without_depth(name, space)
            gap.append(np.inf if one is None else one.time_s / best_s - 1.0)
            if one is not None:
                evaluations.append(one.evaluations)
                shares.append(one.evaluations / count)
                walls.append(one.wall_s)
        values = np.array(gap)
        solved = values[np.isfinite(values)]
        rows.append(
            GapRow(
                name,
                instances,
                float((values <= 0.01).mean()),
                float(solved.mean()) if len(solved) else float("nan"),
                float(solved.max()) if len(solved) else float("nan"),
                float(np.mean(evaluations)) if evaluations else 0.0,
                float(np.max(shares)) if shares else 0.0,
                float(np.mean([count for _, count in optima])),
                float(np.mean(walls)) if walls else 0.0,
            )
        )
    return rows


def _without_depth(name: str, space: PlanSpace) -> Planned | None:
    """The planner's plan, its warm-up set back to the usual depth."""
    if name == "hgtrainer":
        planner = METHODS[name](warmup_depth=False, max_evaluations=GAP_EVALUATIONS)
        assert isinstance(planner, Planner)
        return planner.plan(space)
    one = planned(name, space)
    if one is None:
        return None
    stages = tuple(replace(stage, extra=0, wire=1) for stage in one.plan.stages)
    plan = replace(one.plan, stages=stages)
    return replace(one, plan=plan, time_s=float(space.time_s([plan])[0]))


def optimum(space: PlanSpace, instance: int) -> tuple[float, int]:
    """Exact optimum of a space without extra depth and of one wire: time, s, and feasible plans."""
    problem, rules = space.problem.take([instance]), space.rules
    count = int(space.arrays.clusters[instance])
    groups = [
        enumeration.power_of_two_groups(int(problem.gpus[0, c]), rules.max_stages)
        for c in range(count)
    ]
    sizes = space.microbatch[instance]
    shapes = enumeration.shapes(
        problem,
        groups=groups,
        max_stages=rules.max_stages,
        microbatches=sizes[sizes > 0].tolist(),
        wire=rules.wires[0],
        recompute=rules.recompute,
        zero=rules.zero,
    )
    found = exhaustive.enumerate_all(problem, shapes)
    return found.time_s, found.evaluated
