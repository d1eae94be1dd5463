"""Table D0: every scheduler on every workload of `scheduling_cases`, load by load.

Suites that need real traces are left out with a note where the data is not.
"""

from __future__ import annotations

import csv
import gzip
import io
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.baselines.scheduling import COMPILED, METHODS
from dtgym.experiments import engines, statistics
from dtgym.experiments.files import write_atomic
from dtgym.experiments.scheduling_cases import NEED_DATA, SUITES, Case, trace_folder
from dtgym.simulator import cluster as engine
from dtgym.simulator.errors import InvalidInput, at_least, one_of
from dtgym.simulator.schedule_metrics import measure

NEED_STAGES = ("lucid-like", "muri-like")
"""Policies that share GPUs by the jobs' stage times: left out where jobs have none."""
TRUE_DURATIONS = ("sjf-oracle", "srtf", "srsf")
"""Policies that know true durations: bounds rather than deployable schedulers."""


@dataclass(frozen=True)
class PolicyRow:
    """One policy on one suite at one load; figures are means over seeds.

    Attributes:
        suite: g1 and g2: the golden Philly cuts. philly_later: last 30 % of virtual clusters whose
            earlier jobs were training data. philly_unseen: other virtual clusters. generated: the
            calibrated generator. heterogeneous: three GPU types. multi_resource: GPU, CPU, memory,
            I/O and network. gpu_sharing: the same jobs where only GPUs are limited.
        load: Offered load: asked GPU time over GPUs x time from first to last submission.
        policy: Name in `dtgym.baselines.scheduling`; ``(true durations)`` marks those that know
            them, all others see estimates with a log standard deviation of 0.5, or none. ``python``
            marks Methods on the engine's slow path, with the options that are not their defaults.
        seeds: Number of instances: the first ones; most python rows have fewer.
        jct_mean_s: Mean completion minus submission.
        jct_low_s: Lower end of its 95 % bootstrap interval over seeds.
        jct_high_s: Upper end.
        jct_p50_s: Median of an instance.
        jct_p95_s: 95th percentile.
        jct_p99_s: 99th percentile.
        jct_over_fifo: Geometric mean over instances of the mean JCT over strict FIFO's.
        queueing_mean_s: Mean time without resources.
        response_mean_s: Mean first start minus first time at which enough was free for the job
            alone.
        makespan_s: Last completion minus first submission.
        slowdown_mean: Mean bounded slowdown.
        rho_mean: Mean finish-time-fairness ratio.
        rho_max: Largest.
        jain: Jain's index over 1 / rho.
        preemptions: Per instance.
        allocated_gpu_makespan: GPUs held over capacity, over the makespan.
        allocated_gpu_busy: Likewise over the time at which jobs wait.
        effective_gpu_busy: GPUs held and kept busy, while jobs wait.
        effective_cpu_busy: Likewise for CPU.
        effective_memory_busy: Likewise for memory.
        effective_io_busy: Likewise for storage.
        effective_network_busy: Likewise for network.
        fragmentation: Share of free GPUs that no waiting job can use.
        energy_kwh: Of all GPUs, per instance.
        simulation_ms: Wall time of one simulation, all decisions included; median.
        decision_p99_ms: 99th percentile of one decision's wall time; empty (nan) for compiled
            policies, whose decisions are not timed one by one.
    """

    suite: str
    load: float
    policy: str
    seeds: int
    jct_mean_s: float
    jct_low_s: float
    jct_high_s: float
    jct_p50_s: float
    jct_p95_s: float
    jct_p99_s: float
    jct_over_fifo: float
    queueing_mean_s: float
    response_mean_s: float
    makespan_s: float
    slowdown_mean: float
    rho_mean: float
    rho_max: float
    jain: float
    preemptions: float
    allocated_gpu_makespan: float
    allocated_gpu_busy: float
    effective_gpu_busy: float
    effective_cpu_busy: float
    effective_memory_busy: float
    effective_io_busy: float
    effective_network_busy: float
    fragmentation: float
    energy_kwh: float
    simulation_ms: float
    decision_p99_ms: float


_FROM_SUMMARY = (
    "jct_p50_s", "jct_p95_s", "jct_p99_s", "queueing_mean_s", "response_mean_s", "makespan_s",
    "slowdown_mean", "rho_mean", "rho_max", "jain", "preemptions", "allocated_gpu_makespan",
    "allocated_gpu_busy", "effective_gpu_busy", "effective_cpu_busy", "effective_memory_busy",
    "effective_io_busy", "effective_network_busy", "fragmentation", "energy_kwh",
)  # fmt: skip


def schedulers(
    *,
    suites: Sequence[str] = (),
    loads: Sequence[float] = (0.5, 0.7, 0.9, 1.1),
    policies: Sequence[str] = (),
    slow_policies: Mapping[str, int] | None = None,
    seeds: int = 20,
    slow_options: Mapping[str, Mapping[str, Any]] | None = None,
    jobs: int = 400,
    data: str = "",
    per_job_folder: str = "",
    per_job_seeds: int = 2,
    workers: int = 1,
) -> list[PolicyRow]:
    """Computes the table.

    Args:
        suites: Names of `SUITES`; empty is all of them.
        loads: Offered loads.
        policies: Names of `COMPILED`; empty is all of them.
        slow_policies: Names of `METHODS` that run as Python on the engine's slow path, each with
            the number of its instances: the first ones.
        seeds: Instances of each suite and load.
        slow_options: Options of slow policies, by name; they are told in the row.
        jobs: Jobs of an instance (g1 and g2 have their own).
        data: Folder with ``data/traces``.
        per_job_folder: Where the per-job files go, one compressed CSV per suite and load with every
            policy on the first `per_job_seeds` instances; empty writes none.
        per_job_seeds: See there.
        workers: Processes that share the suites and loads; wall times are those of a busy machine.

    Raises:
        InvalidInput: An unknown suite or policy, fewer than one seed or worker.
    """
    slow = dict(slow_policies or {})
    options = {name: dict(chosen) for name, chosen in (slow_options or {}).items()}
    for name in suites:
        one_of("suites", name, tuple(SUITES))
    for name in policies:
        one_of("policies", name, tuple(COMPILED))
    for name, count in slow.items():
        at_least(f"slow_policies.{one_of('slow_policies', name, tuple(METHODS))}", count, 1)
    for name in options:
        one_of("slow_options", name, tuple(slow))
    for name, value in (("seeds", seeds), ("workers", workers), ("jobs", jobs)):
        at_least(name, value, 1)
    folder = trace_folder(data)
    there = [suite for suite in suites or SUITES if suite not in NEED_DATA or folder is not None]
    for suite in suites or SUITES:
        if suite not in there:
            print(f"D0: suite {suite} left out: no data/traces folder", file=sys.stderr)
    if not there:
        raise InvalidInput("D0: no suite is left; give data = the folder that holds data/traces")
    cells = [
        _Cell(suite, load, seeds, jobs, folder, tuple(policies or COMPILED), slow, options,
              per_job_folder, per_job_seeds)
        for suite in there
        for load in loads
    ]  # fmt: skip
    if workers == 1:
        return [row for cell in cells for row in _cell_rows(cell)]
    with (
        engines.environment(engines.ONE_THREAD),
        ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool,
    ):
        return [row for rows in pool.map(_cell_rows, cells) for row in rows]


@dataclass(frozen=True)
class _Cell:
    """One suite at one load; see `schedulers`."""

    suite: str
    load: float
    seeds: int
    jobs: int
    folder: Path | None
    policies: tuple[str, ...]
    slow: Mapping[str, int]
    options: Mapping[str, Mapping[str, Any]]
    per_job_folder: str
    per_job_seeds: int


def _cell_rows(cell: _Cell) -> list[PolicyRow]:
    begun_s = time.perf_counter()
    build = SUITES[cell.suite]
    cases = [build(cell.folder, seed, cell.load, cell.jobs) for seed in range(cell.seeds)]
    shares = cases[0].jobs.gpu_stage_s is not None
    found = {
        name: [_run(name, case) for case in cases]
        for name in cell.policies
        if shares or name not in NEED_STAGES
    }
    for name, seeds in cell.slow.items():
        if shares or name not in NEED_STAGES:
            mine = cell.options.get(name, {})
            found[_python_name(name, mine)] = [
                _run_method(name, mine, case) for case in cases[:seeds]
            ]
    if cell.per_job_folder:
        text = _jobs_text(cell.load, found, cell.per_job_seeds)
        # Without the time of day, so that the same table gives the same bytes.
        packed = gzip.compress(text.encode(), mtime=0)
        write_atomic(Path(cell.per_job_folder) / f"{cell.suite}_{cell.load:g}.csv.gz", packed)
    spent_s = time.perf_counter() - begun_s
    print(f"D0: {cell.suite} at load {cell.load:g}: {spent_s:.0f} s", file=sys.stderr)
    return [_row(cell.suite, cell.load, name, found) for name in found]


@dataclass(frozen=True)
class _Result:
    summary: Mapping[str, float]
    wall_s: float
    per_job: Mapping[str, NDArray[Any]]


def _run(name: str, case: Case) -> _Result:
    # Node-level placement and the published restart costs for everyone: pooled GPUs and free
    # preemption would flatter the policies that a published simulator gave them to.
    options: dict[str, Any] = {"placement": "consolidate", **COMPILED[name]}
    policy = options.pop("policy")
    if policy in engine.PREEMPTIVE_POLICIES:
        options["preemption_cost_s"] = "lucid"
    if policy == "gittins":
        options["gittins_samples_gpu_s"] = case.history_gpu_s
    return _simulate(case, policy, options)


def _run_method(name: str, options: Mapping[str, Any], case: Case) -> _Result:
    learned = {"samples_gpu_s": case.history_gpu_s} if name == "gittins" else {}
    method = METHODS[name](**learned, **options)
    return _simulate(case, method, {"placement": "consolidate", "preemption_cost_s": "lucid"})


def _python_name(name: str, options: Mapping[str, Any]) -> str:
    """Name of a row that ran as Python, with its options."""
    return f"{name} ({', '.join(['python', *(f'{key} {options[key]:g}' for key in options)])})"


def _simulate(case: Case, policy: Any, options: Mapping[str, Any]) -> _Result:
    started_s = time.perf_counter()
    outcome = engine.simulate(
        case.jobs, case.cluster, policy, speed=case.speed, resources=case.resources, **options
    )
    wall_s = time.perf_counter() - started_s
    placed = options["placement"] != "pooled"
    nodes = case.cluster.arrays().gpus if placed else None
    found = measure(outcome, case.jobs, node_gpus=nodes)
    return _Result(found.summary, wall_s, found.per_job)


def _row(suite: str, load: float, name: str, found: Mapping[str, Sequence[_Result]]) -> PolicyRow:
    results = found[name]
    jct_s = np.array([result.summary["jct_mean_s"] for result in results])
    fifo = [result.summary["jct_mean_s"] for result in found.get("fifo", ())][: len(results)]
    interval = statistics.mean_estimate(jct_s.reshape(-1, 1, 1))
    means = {key: _mean([result.summary[key] for result in results]) for key in _FROM_SUMMARY}
    return PolicyRow(
        suite=suite,
        load=load,
        policy=f"{name} (true durations)" if name in TRUE_DURATIONS else name,
        seeds=len(results),
        jct_mean_s=float(jct_s.mean()),
        jct_low_s=interval.low,
        jct_high_s=interval.high,
        jct_over_fifo=float(np.exp(np.log(jct_s / fifo).mean())) if fifo else float("nan"),
        simulation_ms=float(np.median([result.wall_s for result in results]) * 1000),
        decision_p99_ms=_mean([result.summary["decision_p99_s"] * 1000 for result in results]),
        **means,
    )


def _mean(values: Sequence[float]) -> float:
    """Mean of the values that apply; NaN if none does."""
    there = [value for value in values if not np.isnan(value)]
    return float(np.mean(there)) if there else float("nan")


def _jobs_text(load: float, found: Mapping[str, Sequence[_Result]], seeds: int) -> str:
    """Jobs of the first instances as CSV: load, policy, seed, then `ScheduleMetrics.per_job`."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("load", "policy", "seed", *next(iter(found.values()))[0].per_job))
    for name, results in found.items():
        for seed, result in enumerate(results[:seeds]):
            columns = [column.tolist() for column in result.per_job.values()]
            writer.writerows((load, name, seed, *row) for row in zip(*columns, strict=True))
    return out.getvalue()
