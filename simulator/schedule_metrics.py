"""Metrics of a schedule, each with its window and its definition, and the per-job file.

`measure` turns an `Outcome` into named figures; `DEFINITIONS` says what each name means. Per-job
values are kept beside the summary, so that any other percentile can be taken later; percentiles
here interpolate linearly.

Windows: ``makespan`` is first submission to last completion; ``busy`` the times at which at least
one job waits; ``horizon`` a fixed end, with jobs censored there. Utilisation over the makespan is
pinned by work / (capacity x makespan), so only the other two respond strongly to the policy.
"""

from __future__ import annotations

import csv
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.errors import InvalidInput, above, at_least
from dtgym.simulator.jobs import JobTable
from dtgym.simulator.kernels import schedule_sweep
from dtgym.simulator.outcome import RESOURCES, Outcome

BOUND_S = 10.0
"""Durations below this count as this in the bounded slowdown (Feitelson et al., JSSPP 1997)."""

DEFINITIONS: dict[str, str] = {
    "jobs": "jobs that ran",
    "rejected": "jobs that can never run on the cluster",
    "jct_mean_s": "mean of completion - submission",
    "jct_p50_s": "its median",
    "jct_p95_s": "its 95th percentile",
    "jct_p99_s": "its 99th percentile",
    "first_wait_mean_s": "mean of first start - submission",
    "queueing_mean_s": "mean of all the time between submission and completion without resources",
    "queueing_p95_s": "its 95th percentile",
    "response_mean_s": "mean of first start - first time at which enough was free for it alone",
    "response_p95_s": "its 95th percentile",
    "makespan_s": "last completion - first submission",
    "slowdown_mean": "mean of max(1, JCT / max(duration, 10 s))",
    "slowdown_p99": "its 99th percentile",
    "rho_mean": "mean finish-time-fairness ratio: JCT / (duration x max(1, GPUs x n / capacity)), "
    "n = mean number of jobs in the system during the job's life",
    "rho_max": "the largest",
    "jain": "Jain's index over 1 / rho: 1 is equal treatment",
    "slo_miss_rate": "share of jobs whose JCT is above the given multiple of their duration",
    "preemptions": "preemptions of all jobs together",
    "gpu_hours_lost": "GPU-hours held beyond duration x GPUs (restart work, or running slower)",
    "fragmentation": "share of the free GPUs that no waiting job can use, averaged over the time "
    "with free GPUs and a queue",
    "decision_p50_s": "median wall time of one call of the policy; NaN on the compiled path",
    "decision_p99_s": "its 99th percentile",
    "energy_kwh": "GPUs over the makespan: idle power, and the rest by the busy share",
    **{
        f"{kind}_{resource}_{window}": f"{meaning} of {resource} over {text}"
        for kind, meaning in (
            ("allocated", "held / capacity"),
            ("effective", "held and kept busy / capacity"),
        )
        for resource in RESOURCES
        for window, text in (
            ("makespan", "the makespan"),
            ("busy", "the time at which jobs wait"),
            ("horizon", "the fixed horizon"),
        )
    },
}
"""What each metric means; times in seconds, shares as fractions."""


@dataclass(frozen=True, eq=False)
class ScheduleMetrics:
    """Metrics of one schedule.

    Attributes:
        summary: Name of `DEFINITIONS` -> value; NaN where a metric does not apply.
        per_job: Column -> values in the order of the job table, (jobs,); NaN for jobs that never
            ran.
    """

    summary: dict[str, float]
    per_job: dict[str, NDArray[Any]]

    def write_jobs(self, path: Path | str) -> None:
        """Writes the per-job file (CSV), whole or not at all."""
        file = Path(path)
        out = io.StringIO(newline="")
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.per_job)
        columns = [
            [repr(value) if isinstance(value, float) else value for value in column.tolist()]
            for column in self.per_job.values()
        ]
        writer.writerows(zip(*columns, strict=True))
        part = file.with_name(file.name + ".part")
        with part.open("w", encoding="utf-8", newline="") as handle:
            handle.write(out.getvalue())
            handle.flush()
            os.fsync(handle.fileno())
        part.replace(file)


def measure(
    outcome: Outcome,
    jobs: JobTable,
    *,
    node_gpus: NDArray[np.int64] | None = None,
    horizon_s: float | None = None,
    slo_factor: float = 2.0,
    idle_power_w: float = 60.0,
    active_power_w: float = 300.0,
) -> ScheduleMetrics:
    """Measures a schedule.

    Args:
        outcome: Of `dtgym.simulator.cluster.simulate`.
        jobs: The table that was scheduled.
        node_gpus: GPUs of each node, for fragmentation and response where the placement knew
            nodes; None counts GPUs as one pool.
        horizon_s: End of the ``horizon`` window on the table's clock; None leaves it NaN.
        slo_factor: A job misses its objective if its JCT is above this many times its duration
            [an input, assumed].
        idle_power_w: Of one GPU [an input, assumed].
        active_power_w: Of one fully busy GPU [an input, assumed].

    Raises:
        InvalidInput: Another table than the outcome's, a factor below 1, or powers in the wrong
            order.

    Examples:
        >>> from dtgym.simulator import cluster
        >>> jobs = JobTable.from_columns(submit_s=[0, 0], duration_s=[10, 20], num_gpus=[1, 1])
        >>> found = measure(cluster.simulate(jobs, cluster.homogeneous(1, 1), "fifo"), jobs).summary
        >>> found["jct_mean_s"], found["makespan_s"], found["allocated_gpu_makespan"]
        (20.0, 30.0, 1.0)
    """
    if len(jobs) != len(outcome.submit_s) or not np.array_equal(jobs.job_id, outcome.job_id):
        raise InvalidInput(f"{jobs.source}: is not the table of this outcome")
    at_least("slo_factor", slo_factor, 1)
    at_least("idle_power_w", idle_power_w, 0, "W")
    above("active_power_w", active_power_w, idle_power_w, "W")
    ran = ~np.isnan(outcome.finish_s)
    if not ran.any():
        raise InvalidInput(f"{jobs.source}: no job ran")
    jct_s = outcome.jct_s
    wait_s = outcome.start_s - outcome.submit_s
    slowdown = np.maximum(1.0, jct_s / np.maximum(jobs.duration_s, BOUND_S))
    rho = fairness_ratio(outcome, jobs)
    response_s, fragmentation = _sweep(outcome, node_gpus)
    attained = 1.0 / rho[ran]
    summary: dict[str, float] = {
        "jobs": float(ran.sum()),
        "rejected": float(len(outcome.rejected)),
        "jct_mean_s": float(jct_s[ran].mean()),
        **{f"jct_p{q}_s": float(np.percentile(jct_s[ran], q)) for q in (50, 95, 99)},
        "first_wait_mean_s": float(wait_s[ran].mean()),
        "queueing_mean_s": float(outcome.queueing_s[ran].mean()),
        "queueing_p95_s": float(np.percentile(outcome.queueing_s[ran], 95)),
        "response_mean_s": float(response_s[ran].mean()),
        "response_p95_s": float(np.percentile(response_s[ran], 95)),
        "makespan_s": outcome.makespan_s,
        "slowdown_mean": float(slowdown[ran].mean()),
        "slowdown_p99": float(np.percentile(slowdown[ran], 99)),
        "rho_mean": float(rho[ran].mean()),
        "rho_max": float(rho[ran].max()),
        "jain": float(attained.sum() ** 2 / (len(attained) * (attained**2).sum())),
        "slo_miss_rate": float((jct_s > slo_factor * jobs.duration_s)[ran].mean()),
        "preemptions": float(outcome.preemptions.sum()),
        "gpu_hours_lost": _lost_gpu_s(outcome, jobs, ran) / 3600,
        "fragmentation": fragmentation,
        "decision_p50_s": _percentile(outcome.decision_s, 50),
        "decision_p99_s": _percentile(outcome.decision_s, 99),
        "energy_kwh": _energy_kwh(outcome, idle_power_w, active_power_w),
    }
    for kind, effective in (("allocated", False), ("effective", True)):
        for window, shares in _utilisation(outcome, horizon_s, effective).items():
            for resource, share in shares.items():
                summary[f"{kind}_{resource}_{window}"] = share
    per_job: dict[str, NDArray[Any]] = {
        "job_id": outcome.job_id,
        "submit_s": outcome.submit_s,
        "duration_s": jobs.duration_s,
        "num_gpus": outcome.num_gpus,
        "start_s": outcome.start_s,
        "finish_s": outcome.finish_s,
        "jct_s": jct_s,
        "first_wait_s": wait_s,
        "queueing_s": outcome.queueing_s,
        "response_s": response_s,
        "slowdown": slowdown,
        "rho": rho,
        "preemptions": outcome.preemptions,
    }
    return ScheduleMetrics({name: summary[name] for name in DEFINITIONS}, per_job)


def fairness_ratio(outcome: Outcome, jobs: JobTable) -> NDArray[np.float64]:
    """Finish-time-fairness ratio of every job, (jobs,); NaN for jobs that never ran.

    JCT over the JCT on a 1/n share of the GPUs, where n is the mean number of jobs in the system
    between the job's submission and completion, and a gang larger than its share runs that much
    longer. Source: Themis, NSDI'20, section 3; the estimator of n is ours.
    """
    ran = ~np.isnan(outcome.finish_s)
    times_s = np.concatenate([outcome.submit_s[ran], outcome.finish_s[ran]])
    change = np.repeat([1, -1], ran.sum())
    order = np.argsort(times_s, kind="stable")
    times_s, crowd = times_s[order], np.cumsum(change[order])
    area = np.concatenate(([0.0], np.cumsum(crowd[:-1] * np.diff(times_s))))
    jct_s = outcome.jct_s
    lived = np.interp(outcome.finish_s, times_s, area) - np.interp(outcome.submit_s, times_s, area)
    n = np.divide(lived, jct_s, out=np.ones(len(jct_s)), where=jct_s > 0)
    slowed = np.maximum(1.0, outcome.num_gpus * n / outcome.capacity[0])
    alone_s = np.maximum(jobs.duration_s, 1e-3) * slowed
    return np.where(ran, np.maximum(jct_s, 1e-3) / alone_s, np.nan)


def _sweep(
    outcome: Outcome, node_gpus: NDArray[np.int64] | None
) -> tuple[NDArray[np.float64], float]:
    """Response of every job, and fragmentation of the schedule."""
    stretches = outcome.stretches
    ran = np.flatnonzero(~np.isnan(outcome.finish_s))
    count = len(stretches.job)
    placed = node_gpus is not None and len(stretches.place_node) > 0
    # A preempted job is back in the queue at the end of each stretch but its last.
    back = np.flatnonzero(stretches.end_s < outcome.finish_s[stretches.job])
    time = np.concatenate(
        [stretches.end_s, outcome.submit_s[ran], stretches.end_s[back], stretches.start_s]
    )
    kind = np.repeat(
        [schedule_sweep.END, schedule_sweep.ARRIVAL, schedule_sweep.ARRIVAL, schedule_sweep.START],
        [count, len(ran), len(back), count],
    )
    job = np.concatenate([stretches.job, ran, stretches.job[back], stretches.job])
    rows = np.arange(count)
    stretch = np.concatenate([rows, np.zeros(len(ran) + len(back), np.int64), rows])
    # Stretches of no length must begin before they end.
    empty = (stretches.end_s <= stretches.start_s)[stretch] & (kind == schedule_sweep.END)
    order = np.lexsort((np.where(empty, schedule_sweep.START + 1, kind), time))
    feasible_s = np.full(len(outcome.submit_s), np.nan)
    total = np.array([round(outcome.capacity[0])], dtype=np.int64)
    unusable, span = schedule_sweep.sweep(
        time[order],
        kind[order],
        job[order],
        stretch[order],
        np.ascontiguousarray(outcome.num_gpus, dtype=np.int64),
        np.ascontiguousarray(node_gpus, dtype=np.int64) if placed else total,
        stretches.place_base if placed else np.zeros(0, np.int64),
        stretches.place_node,
        stretches.place_gpus,
        feasible_s,
    )
    # Whoever starts without ever having been seen feasible was made room for at that instant.
    response_s = outcome.start_s - np.where(np.isnan(feasible_s), outcome.start_s, feasible_s)
    return np.maximum(response_s, 0.0), unusable / span if span > 0 else 0.0


def _utilisation(
    outcome: Outcome, horizon_s: float | None, effective: bool
) -> dict[str, dict[str, float]]:
    ran = ~np.isnan(outcome.finish_s)
    first_s = float(outcome.submit_s[ran].min())
    last_s = float(outcome.finish_s[ran].max())
    windows: dict[str, dict[str, float]] = {
        "makespan": outcome.utilisation_between(first_s, last_s, effective=effective),
        "busy": _busy_utilisation(outcome, effective),
        "horizon": {name: float("nan") for name in RESOURCES},
    }
    if horizon_s is not None:
        windows["horizon"] = outcome.utilisation_between(first_s, horizon_s, effective=effective)
    return windows


def _busy_utilisation(outcome: Outcome, effective: bool) -> dict[str, float]:
    times_s, waiting = outcome.waiting_steps()
    length_s = np.diff(times_s, append=times_s[-1]) * (waiting > 0)
    before_s = np.concatenate(([0.0], np.cumsum(length_s)[:-1]))
    busy_s = float(length_s.sum())
    stretches = outcome.stretches
    inside_s = np.interp(stretches.end_s, times_s, before_s) - np.interp(
        stretches.start_s, times_s, before_s
    )
    held = stretches.held * stretches.busy if effective else stretches.held
    offered = outcome.capacity * busy_s
    share = np.divide(inside_s @ held, offered, out=np.full(5, np.nan), where=offered > 0)
    return dict(zip(RESOURCES, share.tolist(), strict=True))


def _lost_gpu_s(outcome: Outcome, jobs: JobTable, ran: NDArray[np.bool_]) -> float:
    stretches = outcome.stretches
    held = ((stretches.end_s - stretches.start_s) * stretches.held[:, 0]).sum()
    return float(max(held - (jobs.duration_s * jobs.num_gpus)[ran].sum(), 0.0))


def _energy_kwh(outcome: Outcome, idle_w: float, active_w: float) -> float:
    stretches = outcome.stretches
    busy_gpu_s = (
        (stretches.end_s - stretches.start_s) * stretches.held[:, 0] * stretches.busy[:, 0]
    ).sum()
    all_gpu_s = outcome.capacity[0] * outcome.makespan_s
    return float((idle_w * all_gpu_s + (active_w - idle_w) * busy_gpu_s) / 3.6e6)


def _percentile(values: NDArray[np.float64], q: float) -> float:
    return float(np.percentile(values, q)) if len(values) else float("nan")
