"""Holds the partition evaluator against exactly solved two-cluster cases.

The cases' own assumptions (no latency inside a cluster, one flow per border, synchronisation after
the last stage, plain bytes on the wire) are arguments of the public evaluator; nothing is computed
here but the comparison.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dtgym.baselines.partitioning import enumeration, exhaustive
from dtgym.experiments.validation import Report
from dtgym.simulator import partition, partition_estimates, partition_tables
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.partition import Plans, Problem

TOLERANCE = 1e-6
"""Largest relative error of an optimum or of an estimator's loss."""

GPUS_PER_NODE = 4
MODEL = "GPT-Neo-2.7"
MAX_STAGES = 4
WIRE_OF_BYTES = {4: "fp32", 2: "bf16", 1: "fp8"}
ESTIMATORS = {
    "pick_by_compute_only_closed_form": partition_estimates.metis_form_s,
    "pick_by_stage_plus_comm_closed_form": partition_estimates.sailor_form_s,
}
"""The golden file's names of the estimators."""


def validate(data: Path | None) -> Report:
    """Solves every case by full enumeration.

    Args:
        data: Folder with ``exhaustive_two_cluster.json`` and ``layer_profiles_sailor.json``.

    Raises:
        InvalidInput: No folder, or files that cannot be read.
    """
    if data is None or not data.is_dir():
        raise InvalidInput("--data: name the folder with exhaustive_two_cluster.json")
    path = data / "exhaustive_two_cluster.json"
    try:
        golden = json.loads(path.read_text(encoding="utf-8"))
        cases = golden["results"]
        problem = _problem(golden["assumptions"], cases, data)
    except (OSError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{path}: not a file of solved cases: {error!r}") from error
    samples = [1 << k for k in range(int(problem.global_batch[0]).bit_length())]
    whole = [[(8,), (4, 4)] for _ in range(problem.clusters)]
    shapes = enumeration.shapes(
        problem, groups=whole, max_stages=MAX_STAGES, microbatches=samples, wire="fp32"
    )
    # Neither memory nor any rule depends on the network: one enumeration serves all cases.
    batches = [plans for plans, _ in exhaustive.feasible_plans(problem, shapes)]
    rows = [_solve(problem, batches, index, case) for index, case in enumerate(cases)]
    return _report(path.name, rows)


def _problem(assumptions: dict[str, Any], cases: list[dict[str, Any]], data: Path) -> Problem:
    """All cases as instances of one problem."""
    clusters = assumptions["clusters"]
    count, instances = len(clusters), len(cases)
    profile = partition_tables.read_profiles(data / "layer_profiles_sailor.json")[MODEL]
    tables = partition_tables.profiled_tables(profile, [c["gpu"] for c in clusters])

    def of_clusters(value: Any) -> np.ndarray:
        return np.tile(np.broadcast_to(np.asarray(value), (count,)), (instances, 1))

    between = 1.0 - np.eye(count)
    return Problem(
        tables=tables,
        row=of_clusters(np.arange(count)),
        global_batch=np.full(instances, assumptions["global_batch"]),
        nodes=of_clusters([c["n"] // GPUS_PER_NODE for c in clusters]),
        gpus_per_node=of_clusters(GPUS_PER_NODE),
        memory_bytes=of_clusters([c["mem"] for c in clusters]),
        memory_bytes_per_s=of_clusters(np.inf),
        intra_bytes_per_s=of_clusters([c["intra"] for c in clusters]),
        inter_bytes_per_s=of_clusters([c["inter"] for c in clusters]),
        intra_latency_s=of_clusters(0.0),
        inter_latency_s=of_clusters(0.0),
        wan_bytes_per_s=np.stack([case["wan_gbps"] * 1e9 / 8 * between for case in cases]),
        wan_delay_s=np.stack([case["one_way_delay_s"] * between for case in cases]),
        gpu_usd_per_hour=of_clusters(0.0),
        wan_usd_per_byte=np.zeros((instances, count, count)),
        network_bytes_per_s=of_clusters(np.inf),
        assumptions=partition.Assumptions(
            synchronisation="barrier",
            border_flows="single",
            compute_wire="fp32",
            wire_bytes_per_element=(4.0, 2.0, 1.0, 0.5),
            weight_bytes=4.0,
            gradient_bytes=4.0,
            optimizer_bytes=16.0,
            synchronised_bytes=4.0,
            reserve_bytes=3e9,
            border_buffers=0,
            memory_fraction=1.0,
        ),
    )


def _solve(
    problem: Problem, batches: list[Plans], index: int, case: dict[str, Any]
) -> dict[str, Any]:
    wire = partition.WIRES.index(WIRE_OF_BYTES[case["bytes_per_element_on_wan"]])
    best: dict[str, tuple[float, float]] = {}
    count = 0
    for batch in batches:
        crosses = batch.cluster[:, 1:] != batch.cluster[:, :-1]
        plans = replace(
            batch,
            instance=np.full(len(batch), index),
            wire=np.where(crosses, wire, partition.WIRES.index("fp32")),
        )
        costs = partition.evaluate(problem, plans)
        count += int(costs.feasible.sum())
        scores = {name: form(costs.stages, plans) for name, form in ESTIMATORS.items()}
        for name, score in {"optimum": costs.time_s, **scores}.items():
            if not len(score):
                continue
            pick = int(np.argmin(score))
            if score[pick] < best.get(name, (np.inf, 0.0))[0]:
                best[name] = float(score[pick]), float(costs.time_s[pick])
    optimum_s = best["optimum"][0]
    golden_s = float(case["optimum"]["exact_s"])
    losses = {name: best[name][1] / optimum_s for name in ESTIMATORS}
    errors = [abs(losses[name] / (case[name]["exact_s"] / golden_s) - 1) for name in ESTIMATORS]
    return {
        "wan_gbps": case["wan_gbps"],
        "one_way_delay_s": case["one_way_delay_s"],
        "bytes_per_element_on_wan": case["bytes_per_element_on_wan"],
        "feasible_plans": count,
        "expected_plans": int(case["feasible_plans"]),
        "optimum_s": optimum_s,
        "relative_error": abs(optimum_s / golden_s - 1),
        "loss_by_estimator": losses,
        "worst_loss_error": max(errors),
    }


def _report(source: str, rows: list[dict[str, Any]]) -> Report:
    worst = max(row["relative_error"] for row in rows)
    worst_loss = max(row["worst_loss_error"] for row in rows)
    counts = all(row["feasible_plans"] == row["expected_plans"] for row in rows)
    lines = [f"{len(rows)} cases of {source}; losses are exact time over optimum"]
    lines += [
        f"  {row['wan_gbps']:>4} Gbit/s, {row['bytes_per_element_on_wan']} bytes: "
        f"{row['feasible_plans']} plans, optimum {row['optimum_s']:.6f} s "
        f"(error {row['relative_error']:.1e}), losses "
        + " / ".join(f"{loss:.2f}" for loss in row["loss_by_estimator"].values())
        for row in rows
    ]
    return Report(
        passed=worst <= TOLERANCE and worst_loss <= TOLERANCE and counts,
        figures={
            "n": len(rows),
            "worst_relative_error": worst,
            "worst_loss_error": worst_loss,
            "plan_counts_equal": counts,
            "tolerance": TOLERANCE,
            "cases": rows,
        },
        lines=lines,
    )
