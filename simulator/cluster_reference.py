"""The scheduling rules in plain Python: clear and slow, to read and to measure against.

One function, pooled GPUs, the policies of the fast path. At each instant it completes, admits,
moves levels, sorts and fills; nothing is incremental. `dtgym.simulator.cluster` must give the same
schedule to the millisecond (tests hold both together).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.errors import InvalidInput, one_of
from dtgym.simulator.jobs import JobTable, milliseconds

POLICIES = ("fifo", "sjf", "srtf", "srsf", "las")


@dataclass(slots=True)
class _Job:
    row: int
    submit_ms: int
    rank: int
    gpus: int
    left_ms: int
    running: bool = False
    start_ms: int = -1
    service: int = 0
    level: int = 0
    preemptions: int = 0


def simulate(
    jobs: JobTable,
    total_gpus: int,
    policy: str = "fifo",
    *,
    skip: bool = False,
    las_thresholds_gpu_s: Sequence[float] = (18000.0,),
    las_resolution_s: float = 1.0,
    preemption_cost_s: float = 0.0,
) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Schedules a table on a pool of GPUs.

    Args:
        jobs: The jobs.
        total_gpus: GPUs of the pool.
        policy: One of `POLICIES`; see `dtgym.simulator.cluster.simulate`.
        skip: Whether `fifo` and `sjf` go on behind a job that does not fit.
        las_thresholds_gpu_s: Ends of the queues of `las`, GPU-seconds.
        las_resolution_s: Grid of the clock on which queues change.
        preemption_cost_s: Work added by each preemption.

    Returns:
        start_s, finish_s, events: First starts and completions in the order of the table, and the
        number of arrivals, completions and level changes.

    Raises:
        InvalidInput: An unknown policy, or a job larger than the pool.

    Examples:
        >>> jobs = JobTable.from_columns(submit_s=[0, 1], duration_s=[9, 2], num_gpus=[1, 1])
        >>> simulate(jobs, 1, "srtf")[1].tolist()
        [11.0, 3.0]
    """
    one_of("policy", policy, POLICIES)
    if (jobs.num_gpus > total_gpus).any():
        raise InvalidInput(f"a job asks for {jobs.num_gpus.max()} GPUs, the pool has {total_gpus}")
    submit_ms, duration_ms, id_rank = jobs.submit_ms, jobs.duration_ms, jobs.id_rank
    bounds = milliseconds(np.atleast_1d(las_thresholds_gpu_s)).tolist() if policy == "las" else []
    step_ms = int(milliseconds(las_resolution_s))
    cost_ms = int(milliseconds(preemption_cost_s))
    future = [
        _Job(int(row), int(submit_ms[row]), int(id_rank[row]), int(jobs.num_gpus[row]),
             int(duration_ms[row]))
        for row in jobs.submit_order[::-1]
    ]  # fmt: skip
    active: list[_Job] = []
    start_s, finish_s = np.zeros(len(jobs)), np.zeros(len(jobs))
    now, events = 0, 0
    preemptive = policy in ("srtf", "srsf", "las")

    def urgency(job: _Job) -> tuple[int, ...]:
        first = {
            "fifo": 0,
            "sjf": job.left_ms,
            "srtf": job.left_ms,
            "srsf": job.left_ms * job.gpus,
            "las": job.level,
        }[policy]
        return first, job.submit_ms, job.rank

    while future or active:
        times = [future[-1].submit_ms] if future else []
        for job in active:
            if job.running:
                times.append(now + job.left_ms)
            if job.level < len(bounds):
                missing = bounds[job.level] - job.service
                if missing < 0:
                    times.append((now // step_ms + 1) * step_ms)
                elif job.running and job.gpus:
                    times.append(math.ceil((now + missing // job.gpus + 1) / step_ms) * step_ms)
        later = min(times)
        for job in active:
            if job.running:
                job.left_ms -= later - now
                job.service += (later - now) * job.gpus
        now = later
        for job in [job for job in active if job.running and job.left_ms == 0]:
            active.remove(job)
            start_s[job.row], finish_s[job.row] = job.start_ms / 1000, now / 1000
            events += 1
        while future and future[-1].submit_ms == now:
            active.append(future.pop())
            events += 1
        for job in active if now % step_ms == 0 else ():
            while job.level < len(bounds) and job.service > bounds[job.level]:
                job.level += 1
                events += 1
        room = total_gpus
        if not preemptive:
            room -= sum(job.gpus for job in active if job.running)
        candidates = active if preemptive else [job for job in active if not job.running]
        for job in sorted(candidates, key=urgency):
            if job.gpus <= room:
                room -= job.gpus
                if job.start_ms < 0:
                    job.start_ms = now
                job.running = True
            elif job.running:
                job.running = False
                job.preemptions += 1
                job.left_ms += cost_ms
            elif not (preemptive or skip):
                break
    return start_s, finish_s, events
