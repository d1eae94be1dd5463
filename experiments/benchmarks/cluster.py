"""Rates of the cluster engine: events/s beside the pure-Python reference, and a whole large table.

The large table is the published Philly job table where the shared research data lies beside the
checkout (or `DTGYM_SHARED` points to it), otherwise as many generated jobs. Besides the asked
cluster of 2,474 GPUs, on which the table never queues, it runs on 256 GPUs, where it does.
"""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from typing import Any

from dtgym.experiments.benchmarks import median_duration_s
from dtgym.experiments.benchmarks.cluster_environment import environment_rates
from dtgym.simulator import cluster, cluster_reference, job_generator, job_synthesis, traces
from dtgym.simulator.job_speed import SpeedModel
from dtgym.simulator.jobs import JobTable

POLICIES: dict[str, dict[str, Any]] = {
    "fifo": {"policy": "fifo"},
    "sjf_skip": {"policy": "sjf", "head_of_line": "skip"},
    "srtf": {"policy": "srtf"},
    "las": {"policy": "las"},
}
SMALL_JOBS = {"g1_sized": (323, 64), "g2_sized": (2000, 40)}
"""Jobs and GPUs of cases as large as the golden ones."""
BATCH_EVENTS = 400_000
LARGE_JOBS = 82_247
LARGE_GPUS = 2474
QUEUEING_GPUS = 256


def run() -> dict[str, Any]:
    """Measures and returns the figures; rates are medians of five runs after one not counted."""
    return {
        "small_cases_in_batch": {
            name: _small(count, gpus) for name, (count, gpus) in SMALL_JOBS.items()
        },
        "large_table": _large(),
        "resource_kernel": _resources(),
        "environment": environment_rates(),
    }


def _small(count: int, gpus: int) -> dict[str, Any]:
    """Events/s of many cases in one kernel call on one core, and of the reference on one."""
    jobs = _generated(count, gpus)
    machines = cluster.homogeneous(nodes=gpus // 8, gpus_per_node=8)
    copies = max(BATCH_EVENTS // (2 * count), 1)
    cases = cluster.prepare([jobs] * copies, [machines] * copies)
    figures: dict[str, Any] = {"jobs": count, "gpus": gpus, "cases": copies}
    for name, options in POLICIES.items():
        events = int(cluster.simulate_cases(cases, log_stretches=False, **options).events.sum())
        spent_s = median_duration_s(
            lambda options=options: cluster.simulate_cases(cases, log_stretches=False, **options)
        )
        begun_s = time.perf_counter()
        *_, handled = cluster_reference.simulate(
            jobs, gpus, options["policy"], skip=options.get("head_of_line") == "skip"
        )
        reference = handled / (time.perf_counter() - begun_s)
        figures[name] = {
            "events_per_s": events / spent_s,
            "reference_events_per_s": reference,
            "ratio": events / spent_s / reference,
        }
    return figures


def _large() -> dict[str, Any]:
    """Seconds for the whole large table, reading not included."""
    path = _shared() / "data" / "traces" / "philly_82k.csv.gz"
    source = "philly" if path.exists() else "generated"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jobs = traces.read(path) if path.exists() else _generated(LARGE_JOBS, LARGE_GPUS)
    figures: dict[str, Any] = {"source": source, "jobs": len(jobs)}
    for nodes, per_node in ((LARGE_GPUS // 2, 2), (QUEUEING_GPUS // 8, 8)):
        machines = cluster.homogeneous(nodes=nodes, gpus_per_node=per_node)
        rows: dict[str, Any] = {}
        for name, options in POLICIES.items():
            rows[f"{name}_s"] = median_duration_s(
                lambda options=options, machines=machines: cluster.simulate(
                    jobs, machines, **options
                ),
                repeats=3,
            )
        figures[f"{nodes * per_node}_gpus"] = rows
    return figures


def _resources() -> dict[str, Any]:
    """Events/s of the multi-resource kernel on 16 nodes, five resources and the speed model."""
    jobs = job_synthesis.fill(_generated(2000, 128), seed=0)
    machines = cluster.homogeneous(nodes=16, gpus_per_node=8, nodes_per_rack=4)
    figures: dict[str, Any] = {}
    for policy in ("fifo", "easy", "drf", "tetris", "srtf"):
        options: dict[str, Any] = {
            "placement": "best_fit",
            "speed": SpeedModel(),
            "head_of_line": "skip",
        }
        outcome = cluster.simulate(jobs, machines, policy, **options)
        spent_s = median_duration_s(
            lambda policy=policy, options=options: cluster.simulate(
                jobs, machines, policy, **options
            ),
            repeats=3,
        )
        figures[f"{policy}_events_per_s"] = outcome.events / spent_s
    return figures


def _generated(count: int, gpus: int) -> JobTable:
    """Philly-like jobs at an offered load of 0.9."""
    jobs = job_generator.generate("philly", jobs=count, seed=0)
    return jobs.select(jobs.num_gpus <= gpus).at_load(0.9, gpus)


def _shared() -> Path:
    """Folder of the shared research data; it need not exist."""
    default = Path(__file__).resolve().parents[3] / "shared"
    return Path(os.environ.get("DTGYM_SHARED", default))
