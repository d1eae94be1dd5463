"""Plans that spread a model's layers over heterogeneous, distant clusters: what each one costs.

A problem is a model (cost tables by layer), clusters of equal accelerators, the wide-area links
between them and a global batch; a plan says which layers run where, with which tensor and data
parallelism, and what travels between. Both are plain arrays with a batch axis, so that one call
prices any number of plans of any number of problems:

1. Per stage (`stage_costs`): forward and backward from prefix sums of the tables, transfers by wire
   precision over local or shared wide-area links, gradient synchronisation, update, memory.
2. Per plan (`evaluate`): the exact pipeline recurrence of `pipeline`, then synchronisation and
   update, feasibility with its reason, and money.

Cheaper estimators that planners use are in `partition_estimates`; tables are made in
`partition_tables`.

Source:
    Narayanan et al., SC 2021 (parallelism in three dimensions); Rajbhandari et al., ZeRO, SC 2020
    (states per parameter); Korthikanti et al., arXiv 2205.05198 (activations); the recurrence of
    `pipeline`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator import pipeline
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.kernels import partition_stages as kernels
from dtgym.simulator.partition_types import (
    BORDER_FLOWS,
    RECOMPUTE,
    SYNCHRONISATION,
    WAN_PIPES,
    WIRE_BYTES_PER_ELEMENT,
    WIRES,
    Assumptions,
    CostTables,
    Plans,
    Problem,
    make_plans,
)
from dtgym.simulator.threads import map_ranges

__all__ = [
    "BORDER_FLOWS",
    "MEMORY_REASON",
    "REASONS",
    "RECOMPUTE",
    "SYNCHRONISATION",
    "WAN_PIPES",
    "WIRES",
    "WIRE_BYTES_PER_ELEMENT",
    "Assumptions",
    "CostTables",
    "PlanCosts",
    "Plans",
    "Problem",
    "StageCosts",
    "evaluate",
    "make_plans",
    "stage_costs",
]

Floats = NDArray[np.float64]

REASONS = (
    "feasible",
    "layers: borders must rise strictly from 0 to the model's layers",
    "microbatch: samples per micro-batch must divide the global batch",
    "cluster: unknown cluster, or a cluster that comes back after another one",
    "gpus: more accelerators than the cluster has, or none",
    "tp: must divide the stage's accelerators and those of a node",
    "dp: replicas must divide the samples per micro-batch",
    "profile: no cost table entry for this accelerator, tp and samples per replica",
    "link: no link between two clusters that the plan connects",
    "warmup: depths must not rise from stage to stage",
    "code: unknown wire, recompute or ZeRO stage",
    "span: data parallelism across clusters is not allowed by the problem",
    "memory: a stage needs more than its accelerators have",
)
"""Why a plan is infeasible; the index is the code in `StageCosts.reason`."""

MEMORY_REASON = len(REASONS) - 1


_MINIMUM_PLANS = 512
"""Fewest plans worth a slice for another core."""


@dataclass(frozen=True)
class StageCosts:
    """What the stages of plans cost before the pipeline is run; axes as `Plans`.

    Attributes:
        microbatches: (P,) micro-batches per iteration.
        forward_s: (P, S) one micro-batch, with precision conversion.
        backward_s: (P, S) one micro-batch, with recompute and conversion.
        activation_s: (P, S - 1) transfer over each border.
        gradient_s: (P, S - 1) transfer back.
        synchronise_s: (P, S) gradient all-reduce, once per iteration.
        update_s: (P, S) optimizer, once per iteration.
        memory_bytes: (P, S) on one accelerator of the stage.
        slack_bytes: (P, S) what is left; negative is missing.
        usd_per_s: (P,) price of the accelerators in use.
        traffic_usd: (P,) price of the wide-area traffic of one iteration.
        reason: (P,) index of `REASONS`; 0 is feasible. Plans with a reason other than memory have
            no times: theirs are 0.
        reason_stage: (P,) stage (or first stage of the border) concerned; -1 for none.
    """

    microbatches: NDArray[np.int64]
    forward_s: Floats
    backward_s: Floats
    activation_s: Floats
    gradient_s: Floats
    synchronise_s: Floats
    update_s: Floats
    memory_bytes: Floats
    slack_bytes: Floats
    usd_per_s: Floats
    traffic_usd: Floats
    reason: NDArray[np.int8]
    reason_stage: NDArray[np.int8]

    @property
    def feasible(self) -> NDArray[np.bool_]:
        """(P,) whether the plan can run."""
        return self.reason == 0

    @property
    def priced(self) -> NDArray[np.bool_]:
        """(P,) whether the plan has a time: it is feasible but for memory."""
        return (self.reason == 0) | (self.reason == MEMORY_REASON)

    @property
    def missing_bytes(self) -> Floats:
        """(P,) what the fullest stage lacks; 0 where all fits."""
        return np.maximum(-self.slack_bytes.min(axis=1), 0)


@dataclass(frozen=True)
class PlanCosts:
    """What plans cost.

    Attributes:
        time_s: (P,) one iteration; inf where the plan has no time (see `StageCosts.reason`). A
            plan that lacks memory has a time and is not feasible.
        stage_finish_s: (P, S) end of each stage's last backward.
        samples_per_s: (P,) throughput; 0 where the plan has no time.
        usd: (P,) one iteration.
        stages: What the stages cost.
    """

    time_s: Floats
    stage_finish_s: Floats
    samples_per_s: Floats
    usd: Floats
    stages: StageCosts

    @property
    def feasible(self) -> NDArray[np.bool_]:
        """(P,) whether the plan can run."""
        return self.stages.feasible

    def why(self, plan: int) -> str:
        """One line that says why a plan is infeasible, with stage and missing bytes."""
        code = int(self.stages.reason[plan])
        stage = int(self.stages.reason_stage[plan])
        text = REASONS[code] if stage < 0 else f"{REASONS[code]} (stage {stage})"
        if code == MEMORY_REASON:
            text += f", {self.stages.missing_bytes[plan]:.3g} bytes missing"
        return text


def stage_costs(problem: Problem, plans: Plans) -> StageCosts:
    """What each stage of each plan costs, and whether the plan can run.

    Args:
        problem: Instances.
        plans: Plans of those instances.

    Returns:
        Costs, with infeasible plans flagged, never raised.

    Raises:
        InvalidInput: An instance that the problem does not have.

    Source:
        Module docstring. Ring all-reduce of n bytes over d replicas: 2 (d - 1) (latency +
        n / (d bandwidth)) (Patarasuk and Yuan, JPDC 2009); across clusters a reduce-scatter and
        all-gather inside and a ring of the shards between them; ZeRO 3 moves 1.5 times as much.
    """
    if len(plans) and not (plans.instance.min() >= 0 and plans.instance.max() < len(problem)):
        raise InvalidInput(f"Plans.instance must lie between 0 and {len(problem) - 1}")
    if plans.spread is not None and plans.spread.shape[2] != problem.clusters:
        raise InvalidInput(f"Plans.spread must have {problem.clusters} clusters on its last axis")
    count, width = plans.cluster.shape
    out = np.zeros((6, count, width))
    borders = np.zeros((2, count, width - 1))
    money = np.zeros((2, count))
    microbatches = np.empty(count, np.int64)
    reason, reason_stage = np.empty(count, np.int8), np.empty(count, np.int8)
    given = problem.assumptions
    arguments = (
        *problem.tables.packed,
        *problem.tables.lookup,
        *problem.packed,
        problem.global_batch,
        plans.instance,
        plans.stages,
        plans.cluster,
        plans.gpus,
        plans.tp,
        plans.bound,
        plans.microbatch,
        plans.wire,
        plans.warmup,
        plans.recompute,
        plans.zero,
        np.zeros((0, 0, 0), np.int32) if plans.spread is None else plans.spread,
        given.packed,
        np.array(given.wire_bytes_per_element),
    )

    def run(first: int, last: int) -> None:
        kernels.stage_costs(
            *arguments, first, last, out, borders, money, microbatches, reason, reason_stage
        )

    map_ranges(run, count, _MINIMUM_PLANS)
    return StageCosts(
        microbatches=microbatches,
        forward_s=out[kernels.OUT_FORWARD],
        backward_s=out[kernels.OUT_BACKWARD],
        activation_s=borders[kernels.OUT_ACTIVATION],
        gradient_s=borders[kernels.OUT_GRADIENT],
        synchronise_s=out[kernels.OUT_SYNCHRONISE],
        update_s=out[kernels.OUT_UPDATE],
        memory_bytes=out[kernels.OUT_MEMORY],
        slack_bytes=out[kernels.OUT_SLACK],
        usd_per_s=money[kernels.OUT_USD_PER_S],
        traffic_usd=money[kernels.OUT_TRAFFIC],
        reason=reason,
        reason_stage=reason_stage,
    )


def evaluate(problem: Problem, plans: Plans, costs: StageCosts | None = None) -> PlanCosts:
    """Exact cost of each plan: the pipeline recurrence, then synchronisation and update.

    Args:
        problem: Instances.
        plans: Plans of those instances.
        costs: `stage_costs` of the same plans, where the caller has them already.

    Returns:
        Times, throughput, money; infeasible plans are flagged. A plan costs the same, bit for bit,
        alone or in any batch.

    Raises:
        InvalidInput: As `stage_costs`.

    Examples:
        >>> from dtgym.simulator import partition_tables
        >>> problem = partition_tables.two_cluster_example()
        >>> plans = make_plans([[0, 1], [0, 1]], 4, 2, [[0, 4, 8], [0, 5, 8]], 4)
        >>> costs = evaluate(problem, plans)
        >>> costs.feasible.tolist(), (costs.time_s[1] < costs.time_s[0]).item()
        ([True, True], True)
    """
    costs = stage_costs(problem, plans) if costs is None else costs
    rule = problem.assumptions
    priced = costs.priced
    # A plan without times still takes a lane: as one stage and one micro-batch it costs nothing.
    finish_s = pipeline.stage_finish_s(
        costs.forward_s,
        costs.backward_s,
        costs.activation_s,
        costs.gradient_s,
        np.where(priced, costs.microbatches, 1),
        warmup=np.where(priced[:, None], plans.warmup, 0),
        overlap=rule.overlap,
        stages=np.where(priced, plans.stages, 1),
    )
    time_s = np.empty(len(plans))
    barrier = rule.synchronisation == "barrier"

    def run(first: int, last: int) -> None:
        kernels.total_time(
            plans.stages,
            finish_s,
            costs.synchronise_s,
            costs.update_s,
            barrier,
            first,
            last,
            time_s,
        )

    map_ranges(run, len(plans), _MINIMUM_PLANS)
    batch = problem.global_batch[plans.instance]
    with np.errstate(divide="ignore"):
        samples_per_s = np.where(priced, batch / np.where(priced, time_s, 1), 0.0)
    usd = costs.usd_per_s * time_s + costs.traffic_usd
    return PlanCosts(
        time_s=np.where(priced, time_s, np.inf),
        stage_finish_s=finish_s.astype(np.float64, copy=False),
        samples_per_s=samples_per_s,
        usd=np.where(priced, usd, np.inf),
        stages=costs,
    )
