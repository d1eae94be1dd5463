"""Holds the cluster engine against per-job outputs of peers, and the speed model against profiles.

Golden cases lie in ``<data>/golden``: ``<case>.jobs.csv.gz`` and one file per simulator and policy;
measured profiles lie in ``<data>/profiles``.
"""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.experiments.validation import Report
from dtgym.simulator import cluster, job_speed
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.jobs import JobTable
from dtgym.simulator.outcome import Outcome

CASES = {"g1_philly_ee9e8c_14d": 8, "g2_philly_6c71a0_2000": 5}
"""Golden cases and their number of 8-GPU nodes."""


BLOX_CORES = np.array([1, 2, 3, 4, 5, 6, 9, 12])
"""Cores per GPU of the first eight levels of the published CPU tables."""
BLOX_NAMES = {"resnet18": "res18", "resnet50": "res50"}
BLOX_TOLERANCE = 0.05
MURI_TOLERANCE = 0.15


@dataclass(frozen=True)
class Golden:
    """One file of a peer and how to reproduce it.

    Attributes:
        name: Middle part of the file's name.
        policy: Policy of ours.
        options: Options of `cluster.simulate`.
    """

    name: str
    policy: str
    options: dict[str, Any] = field(default_factory=lambda: {})


SKIP = {"head_of_line": "skip"}
NODES = {"placement": "consolidate"}
GOLDENS = (
    Golden("lucid.fifo", "fifo", NODES),
    Golden("lucid.sjf", "sjf", NODES),
    Golden("lucid.srtf", "lucid_srtf"),
    Golden("lucid.tiresias", "lucid_las"),
    Golden("tiresias_count.dlas-gpu", "tiresias_dlas"),
    Golden("tiresias_count.fifo", "fifo"),
    Golden("tiresias_count.fjf", "fifo", SKIP),
    Golden("tiresias_count.shortest", "srtf"),
    Golden("pool_ref.fifo", "fifo"),
    Golden("pool_ref.fifo_backfill", "fifo", SKIP),
    Golden("pool_ref.sjf", "sjf"),
    Golden("pool_ref.sjf_backfill", "sjf", SKIP),
    Golden("pool_ref.srtf", "srtf"),
    Golden("pool_ref.srsf", "srsf"),
    Golden("pool_ref.las2_18000", "las", {"las_thresholds_gpu_s": (18000.0,)}),
)
"""Every golden file that has to be equal, job for job."""


def validate(data: Path | None) -> Report:
    """Compares starts, completions and preemptions of every job with every golden file.

    Args:
        data: The folder with ``golden`` and ``profiles``.

    Raises:
        InvalidInput: No folder given, or a file is missing or malformed.
    """
    if data is None:
        raise InvalidInput("--data: give the folder of traces with golden/ and profiles/ inside")
    report = Report(passed=True)
    rows: list[dict[str, Any]] = []
    for case, nodes in CASES.items():
        jobs = read_jobs(data / "golden" / f"{case}.jobs.csv.gz")
        machines = cluster.homogeneous(nodes=nodes, gpus_per_node=8)
        for golden in GOLDENS:
            outcome = cluster.simulate(jobs, machines, golden.policy, **golden.options)
            columns = read_columns(data / "golden" / f"{case}.{golden.name}.csv.gz")
            rows.append(compare(case, golden.name, jobs, outcome, columns))
    for row in rows:
        equal = row["equal"] == row["jobs"]
        report.passed &= equal
        report.lines.append(
            f"{row['case']:24} {row['golden']:24} {row['equal']:5}/{row['jobs']} jobs equal, "
            f"mean JCT {row['mean_jct_s']:.1f} s" + ("" if equal else "  <- DIFFERS")
        )
    report.figures["goldens"] = rows
    _validate_speed_model(data, report)
    return report


def _validate_speed_model(data: Path, report: Report) -> None:
    """Adds the checks of the speed model against published profiles."""
    rows = blox_row_errors(data)
    worst = max(rows.values())
    report.passed &= worst <= BLOX_TOLERANCE
    report.figures["blox_cpu_rows_largest_error"] = rows
    report.lines.append(
        f"CPU curves: largest error {worst:.1%} over the 1-GPU rows of {len(rows)} models "
        f"(bar {BLOX_TOLERANCE:.0%})"
    )
    errors = muri_iteration_errors(data)
    report.passed &= errors["sum"] <= MURI_TOLERANCE
    report.figures["muri_iteration_mape"] = errors
    report.lines.append(
        f"Iteration times: mean error {errors['sum']:.1%} as the sum of stages "
        f"(bar {MURI_TOLERANCE:.0%}), {errors['max']:.1%} as the longest stage"
    )


def blox_row_errors(data: Path) -> dict[str, float]:
    """Largest relative error of each CPU curve over the rows of its published 1-GPU table."""
    path = data / "profiles" / "blox_synergy_profiles.json.gz"
    try:
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            tables = json.load(stream)
    except (OSError, EOFError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read as gzipped JSON: {error}") from error
    errors: dict[str, float] = {}
    for curve in job_speed.cpu_curves().values():
        published = np.array(tables[BLOX_NAMES.get(curve.model, curve.model) + "_1"]["tput"])[:8, 0]
        errors[curve.model] = float(np.abs(curve.speed(BLOX_CORES) / published - 1).max())
    return errors


def muri_iteration_errors(data: Path) -> dict[str, float]:
    """Mean relative error of predicted iterations over the published (model, GPUs) points."""
    path = data / "profiles" / "muri_stage_times_ms.csv.gz"
    columns = read_columns(path, text=("model_name",))
    stages = np.zeros((len(columns["iteration_time"]), len(job_speed.STAGES)))
    # Published stage 0 is the host side (storage and CPU together), 1 the GPU, 2 the network.
    for published, stage in enumerate(("cpu", "gpu", "network")):
        stages[:, job_speed.STAGES.index(stage)] = columns[f"resource_time_{published}"] / 1000
    measured_s = columns["iteration_time"] / 1000
    overlaps = {"sum": 0.0, "max": 1.0, "overlap_0.0": 0.0, "overlap_0.5": 0.5, "overlap_1.0": 1.0}
    return {
        name: float(np.mean(np.abs(job_speed.iteration_s(stages, overlap) / measured_s - 1)))
        for name, overlap in overlaps.items()
    }


def compare(
    case: str,
    name: str,
    jobs: JobTable,
    outcome: Outcome,
    columns: dict[str, NDArray[np.float64]],
) -> dict[str, Any]:
    """Counts the jobs whose start, completion and (where the peer counts) preemptions are equal."""
    order = np.argsort(columns["job_id"])
    mine = np.argsort(jobs.job_id)
    if not np.array_equal(columns["job_id"][order], jobs.job_id[mine]):
        raise InvalidInput(f"{case}.{name}: job_id is not that of the case")
    start = columns.get("start_time", columns.get("first_start"))
    finish = columns.get("end_time", columns.get("finish"))
    if start is None or finish is None:
        raise InvalidInput(f"{case}.{name}: needs start_time/end_time or first_start/finish, in s")
    equal = (start[order] == outcome.start_s[mine]) & (finish[order] == outcome.finish_s[mine])
    for column in ("ckpt_times", "preempt"):
        if column in columns:
            equal &= columns[column][order] == outcome.preemptions[mine]
    return {
        "case": case,
        "golden": name,
        "jobs": len(jobs),
        "equal": int(equal.sum()),
        "mean_jct_s": float(outcome.jct_s.mean()),
        "makespan_s": outcome.makespan_s,
        "preemptions": int(outcome.preemptions.sum()),
    }


def read_jobs(path: Path) -> JobTable:
    """Reads the jobs of a golden case."""
    columns = read_columns(path)
    try:
        return JobTable.from_columns(
            job_id=columns["job_id"],
            submit_s=columns["submit_time"],
            duration_s=columns["duration"],
            num_gpus=columns["num_gpu"],
            source=path.name,
        )
    except KeyError as error:
        raise InvalidInput(f"{path}: column {error.args[0]} is missing") from error


def read_columns(path: Path, *, text: tuple[str, ...] = ()) -> dict[str, NDArray[np.float64]]:
    """Reads a gzipped CSV of numbers as columns, without those named in `text`."""
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            rows = list(reader)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read as gzipped CSV: {error}") from error
    if not rows:
        raise InvalidInput(f"{path}: holds no rows")
    try:
        names = [name for name in rows[0] if name not in text]
        return {name: np.array([float(row[name]) for row in rows]) for name in names}
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{path}: every column must be numbers: {error}") from error
