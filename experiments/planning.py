"""Plans for a user's own clusters: what ``scripts/plan.py`` prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtgym.baselines.partitioning import METHODS
from dtgym.baselines.partitioning.planner import Planned
from dtgym.experiments.files import write_atomic
from dtgym.experiments.partitioning import planner_named
from dtgym.simulator import partition, workload
from dtgym.simulator.errors import InvalidInput, at_least
from dtgym.simulator.partition_settings import Setting, load_sites, problem_of
from dtgym.simulator.partition_space import PlanSpace, Rules
from dtgym.simulator.partition_timeline import plan_timeline

DEFAULT_PLANNERS = tuple(name for name in METHODS if "-no-" not in name and "-flat" not in name)
"""Every planner but the ablations."""


@dataclass(frozen=True)
class Row:
    """One planner's plan.

    Attributes:
        planner: Name of the planner.
        planned: What it came to.
        tokens_per_s: Predicted throughput.
        memory_bytes: Of one accelerator of each stage.
        capacity_bytes: What an accelerator of each stage has.
    """

    planner: str
    planned: Planned
    tokens_per_s: float
    memory_bytes: tuple[float, ...]
    capacity_bytes: tuple[float, ...]


@dataclass(frozen=True)
class PlanReport:
    """All planners' plans, the fastest first.

    Attributes:
        setting: What was planned.
        rows: One per planner that has a plan.
        without: Planners that have none, each with its reason.
    """

    setting: Setting
    rows: tuple[Row, ...]
    without: dict[str, str]


def plan(
    cluster: Path,
    *,
    model: str,
    global_batch: int,
    planners: Sequence[str] = DEFAULT_PLANNERS,
    max_stages: int = 12,
    recompute: str = "selective",
    zero: int = 1,
    timeline: Path | None = None,
) -> PlanReport:
    """Asks every planner for a plan.

    Args:
        cluster: Sites or cluster file, see `dtgym.simulator.partition_settings.load_sites`.
        model: Name of a transformer.
        global_batch: Sequences per iteration.
        planners: Names of planners.
        max_stages: Most stages of a plan.
        recompute: ``none``, ``selective`` or ``full``.
        zero: ZeRO stage.
        timeline: Where to write the best plan's Chrome trace; None does not.

    Raises:
        InvalidInput: Anything in the file or the arguments that does not exist or does not fit.
    """
    at_least("--global-batch", global_batch, 1, "sequences")
    for name in planners:
        planner_named(name)
    setting = load_sites(cluster, model=model, global_batch=global_batch)
    space = PlanSpace(
        problem_of([setting]), Rules(max_stages=max_stages, recompute=recompute, zero=zero)
    )
    if not space.solvable[0]:
        raise InvalidInput(
            f"{cluster}: {model} with a global batch of {global_batch} does not fit the memory of "
            f"these sites in {max_stages} stages; try --recompute full, --zero 3 or more "
            "--max-stages"
        )
    rows: list[Row] = []
    without: dict[str, str] = {}
    for name in planners:
        try:
            rows.append(_row(name, planner_named(name).plan(space.take(0)), space, setting))
        except InvalidInput as reason:
            without[name] = str(reason)
    rows.sort(key=lambda row: row.planned.time_s)
    if timeline is not None and rows:
        spans = plan_timeline(space.problem, space.plans([rows[0].planned.plan]))
        trace = spans.chrome_trace(tuple(site.name for site in setting.sites))
        write_atomic(timeline, json.dumps(trace))
    return PlanReport(setting, tuple(rows), without)


def _row(name: str, one: Planned, space: PlanSpace, setting: Setting) -> Row:
    costs = partition.evaluate(space.problem, space.plans([one.plan]))
    stages = len(one.plan.stages)
    sequence = workload.transformer(setting.model).sequence
    return Row(
        name,
        one,
        setting.global_batch * sequence / one.time_s,
        tuple(costs.stages.memory_bytes[0, :stages].tolist()),
        tuple(float(space.problem.memory_bytes[0, stage.cluster]) for stage in one.plan.stages),
    )


def text(report: PlanReport) -> str:
    """The report for a person: a line per planner, then the best plan stage by stage."""
    lines = [report.setting.describe(), ""]
    lines.append(f"{'planner':20} {'s/iteration':>12} {'tokens/s':>12} {'priced':>7} {'wall s':>7}")
    for row in report.rows:
        lines.append(
            f"{row.planner:20} {row.planned.time_s:12.4f} {row.tokens_per_s:12,.0f} "
            f"{row.planned.evaluations:7d} {row.planned.wall_s:7.2f}"
        )
    lines += [f"{name:20} no plan: {reason}" for name, reason in report.without.items()]
    if report.rows:
        lines += ["", *_stages(report.rows[0], report.setting)]
    return "\n".join(lines)


def _stages(row: Row, setting: Setting) -> list[str]:
    plan = row.planned.plan
    count = setting.global_batch // plan.microbatch
    lines = [f"best plan ({row.planner}): {count} micro-batches of {plan.microbatch} sequences"]
    low = 0
    for number, stage in enumerate(plan.stages):
        wire = ""
        if number and plan.stages[number - 1].cluster != stage.cluster:
            wire = f", {partition.WIRES[stage.wire]} over the link before it"
        used, capacity = row.memory_bytes[number], row.capacity_bytes[number]
        lines.append(
            f"  stage {number}: {setting.sites[stage.cluster].name}, {stage.gpus} accelerators "
            f"(tp {stage.tp}, dp {stage.gpus // stage.tp}), layers {low}..{stage.high - 1}, "
            f"memory {used / 1e9:.1f} of {capacity / 1e9:.0f} GB, "
            f"warm-up depth {len(plan.stages) - 1 - number + stage.extra}{wire}"
        )
        low = stage.high
    return lines


def document(report: PlanReport) -> dict[str, Any]:
    """The report as plain data."""
    names = [site.name for site in report.setting.sites]
    return {
        "setting": report.setting.describe(),
        "without_plan": report.without,
        "plans": [
            {
                "planner": row.planner,
                "iteration_time_s": row.planned.time_s,
                "tokens_per_s": row.tokens_per_s,
                "evaluations": row.planned.evaluations,
                "estimates": row.planned.estimates,
                "wall_s": row.planned.wall_s,
                "microbatch": row.planned.plan.microbatch,
                "stages": [
                    {
                        "site": names[stage.cluster],
                        "gpus": stage.gpus,
                        "tp": stage.tp,
                        "dp": stage.gpus // stage.tp,
                        "first_layer": int(low),
                        "last_layer": stage.high - 1,
                        "wire": partition.WIRES[stage.wire],
                        "extra_warmup": stage.extra,
                        "memory_bytes": row.memory_bytes[number],
                    }
                    for number, (stage, low) in enumerate(
                        zip(row.planned.plan.stages, row.planned.plan.borders[:-1], strict=True)
                    )
                ],
            }
            for row in report.rows
        ],
    }
