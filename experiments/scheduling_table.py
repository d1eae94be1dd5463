"""Table D0: every scheduler on every workload, load by load.

Suites that need real traces are made where the data is (the folder ``data`` of the arguments, or
``DTGYM_SHARED``, or ``../shared``) and left out with a note elsewhere. Everything a policy learns
(the Gittins index) comes from training data only: other virtual clusters, or earlier weeks.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.baselines.scheduling import COMPILED, METHODS
from dtgym.envs.cluster_scheduling import generator, speeds
from dtgym.experiments import engines, statistics
from dtgym.experiments.files import write_atomic
from dtgym.simulator import cluster as engine
from dtgym.simulator import hardware, job_generator, job_synthesis, traces
from dtgym.simulator.errors import InvalidInput, at_least, one_of
from dtgym.simulator.job_speed import SpeedModel
from dtgym.simulator.jobs import JobTable
from dtgym.simulator.schedule_metrics import measure

ESTIMATE_SIGMA = 0.5
"""Log standard deviation of the estimates that policies see; the true ones only where marked."""
LONGEST_S = 86_400.0
"""Run times are cut here, as in the golden cases."""
TRAIN_SHARE = 0.7
SEEN_CLUSTERS = ("6c71a0", "b436b2", "11cb48")
"""Philly virtual clusters whose first 70 % policies may learn from."""
UNSEEN_CLUSTERS = ("ee9e8c", "0e4a51", "103959")
"""Philly virtual clusters that nothing is learned from."""
NEED_STAGES = ("lucid-like", "muri-like")
"""Policies that share GPUs by the jobs' stage times: left out where jobs have none."""
TRUE_DURATIONS = ("sjf-oracle", "srtf", "srsf")
"""Policies that know true durations: bounds rather than deployable schedulers."""


@dataclass(frozen=True)
class Case:
    """One instance of a suite.

    Attributes:
        jobs: What arrives, at the asked load, with estimates.
        cluster: What it runs on.
        speed: Speed model, or None where jobs run for their durations.
        history_gpu_s: GPU times of training jobs.
        resources: What is limited; None is all that the jobs ask for.
    """

    jobs: JobTable
    cluster: hardware.Cluster
    speed: SpeedModel | None
    history_gpu_s: NDArray[np.float64]
    resources: tuple[str, ...] | None = None


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


def trace_folder(data: str = "") -> Path | None:
    """The folder with the shared traces, or None."""
    root = Path(data or os.environ.get("DTGYM_SHARED", "../shared"))
    folder = root / "data" / "traces"
    return folder if folder.is_dir() else None


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


def _with_estimates(jobs: JobTable, seed: int) -> JobTable:
    """True durations times exp(sigma z), as the environment shows them."""
    random = np.random.Generator(np.random.PCG64(seed))
    noise = np.exp(ESTIMATE_SIGMA * random.standard_normal(len(jobs)))
    return jobs.with_columns({"estimate_s": jobs.duration_s * noise}, synthetic=True)


def _cut(jobs: JobTable) -> JobTable:
    shortened = np.minimum(jobs.duration_s, LONGEST_S)
    return jobs.with_columns({"duration_s": shortened}, synthetic="duration_s" in jobs.synthetic)


@lru_cache(maxsize=4)
def _read(path: Path) -> JobTable:
    return traces.read(path)


def _golden(name: str, nodes: int) -> Callable[..., Case]:
    def build(folder: Path, seed: int, load: float, jobs: int) -> Case:
        del jobs  # the golden cases have their own
        table = _read(folder / "golden" / f"{name}.jobs.csv.gz")
        cluster = engine.homogeneous(nodes, 8)
        return Case(
            _with_estimates(table.at_load(load, cluster.gpus), seed),
            cluster,
            None,
            _philly_history(folder),
        )

    return build


def _philly(clusters: Sequence[str], *, later: bool) -> Callable[..., Case]:
    def build(folder: Path, seed: int, load: float, jobs: int) -> Case:
        table = _read(folder / "philly_82k.csv.gz")
        assert table.vc is not None
        table = _cut(table.select(table.vc == clusters[seed % len(clusters)]))
        table = table.select(table.submit_order)
        cluster = engine.homogeneous(8, 8)
        first = int(TRAIN_SHARE * len(table)) if later else 0
        random = np.random.Generator(np.random.PCG64(seed))
        start = int(random.integers(first, max(len(table) - jobs, first) + 1))
        window = table.select(np.arange(start, min(start + jobs, len(table))))
        window = window.select(window.num_gpus <= cluster.gpus)
        return Case(
            _with_estimates(window.at_load(load, cluster.gpus), seed),
            cluster,
            None,
            _philly_history(folder),
        )

    return build


@lru_cache(maxsize=1)
def _philly_history(folder: Path) -> NDArray[np.float64]:
    """GPU times of the first 70 % of the seen virtual clusters, at most 4,000 of them."""
    table = _read(folder / "philly_82k.csv.gz")
    assert table.vc is not None
    parts: list[NDArray[np.float64]] = []
    for name in SEEN_CLUSTERS:
        one = _cut(table.select(table.vc == name))
        one = one.select(one.submit_order[: int(TRAIN_SHARE * len(one))])
        parts.append(one.gpu_seconds)
    whole = np.concatenate(parts)
    return whole[:: max(len(whole) // 4000, 1)]


def _generated(
    cluster_name: str, *, multi_resource: bool, limited: tuple[str, ...] | None = None
) -> Callable[..., Case]:
    def build(folder: Path | None, seed: int, load: float, jobs: int) -> Case:
        del folder  # needs no data
        cluster = generator.cluster_named(cluster_name)
        table = _cut(
            job_generator.generate("philly", jobs=jobs, seed=seed, largest_gpus=cluster.gpus // 4)
        ).at_load(load, cluster.gpus)
        if multi_resource:
            table = job_synthesis.fill(table, seed=seed)
        kinds = tuple(dict.fromkeys(group.node.accelerator.name for group in cluster.groups))
        speed = None
        if multi_resource or len(kinds) > 1:
            relative = speeds.gpu_speed(cluster, kinds)
            speed = SpeedModel(
                gpu_speed=dict(zip(kinds, relative.tolist(), strict=True)),
                cross_node_network_scale=speeds.NETWORK_FACTOR[1],
                cross_rack_network_scale=speeds.NETWORK_FACTOR[2],
            )
        # Seeds of the past lie far from those of the instances.
        past = _cut(job_generator.generate("philly", jobs=2000, seed=10_000))
        return Case(_with_estimates(table, seed), cluster, speed, past.gpu_seconds, limited)

    return build


SUITES: dict[str, Callable[..., Case]] = {
    "g1": _golden("g1_philly_ee9e8c_14d", 8),
    "g2": _golden("g2_philly_6c71a0_2000", 5),
    "philly_later": _philly(SEEN_CLUSTERS, later=True),
    "philly_unseen": _philly(UNSEEN_CLUSTERS, later=False),
    "generated": _generated("homogeneous", multi_resource=False),
    "heterogeneous": _generated("heterogeneous", multi_resource=False),
    "multi_resource": _generated("homogeneous", multi_resource=True),
    "gpu_sharing": _generated("homogeneous", multi_resource=True, limited=("gpu",)),
}
"""Suites by name: functions of the trace folder, seed, load and number of jobs."""
NEED_DATA = ("g1", "g2", "philly_later", "philly_unseen")
