"""Duration estimates from history, for schedulers that need them: QSSF, EASY, Gittins, Lucid.

A job is predicted from the jobs that had *finished* (submission + run time) when it was submitted:
of the same user, virtual cluster, model and gang where there are any, else of coarser groups. Jobs
without any history get the mean of all finished ones, the very first ones a fixed guess.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.errors import above
from dtgym.simulator.jobs import JobTable

GROUPS = (
    ("user", "vc", "model", "num_gpus"),
    ("user", "vc", "num_gpus"),
    ("user",),
    ("vc", "num_gpus"),
    ("num_gpus",),
    (),
)
"""Columns that jobs must share, finest group first."""


def estimate_durations_s(
    jobs: JobTable, *, first_guess_s: float = 3600.0, memory: float = 0.3
) -> NDArray[np.float64]:
    """Predicts each job's duration from what was known when it was submitted.

    Args:
        jobs: The table; columns it does not have are left out of the groups.
        first_guess_s: For jobs submitted before anything finished, seconds.
        memory: Weight of the newest finished job in a group's moving mean of log durations, in
            (0, 1].

    Returns:
        Estimates, (jobs,), seconds; the geometric moving mean of the finest group with history.

    Source:
        Follows the rolling estimates of Helios' QSSF (Hu et al., SC 2021), without its learned
        part.

    Examples:
        >>> jobs = JobTable.from_columns(
        ...     submit_s=[0, 50, 500], duration_s=[100, 100, 7], num_gpus=[1, 1, 1])
        >>> estimate_durations_s(jobs).round(6).tolist()
        [3600.0, 3600.0, 100.0]
    """
    above("first_guess_s", first_guess_s, 0, "s")
    above("memory", memory, 0)
    columns = {
        name: jobs.column(name, "").tolist() if name != "num_gpus" else jobs.num_gpus.tolist()
        for name in ("user", "vc", "model", "num_gpus")
    }
    groups = [
        names
        for names in GROUPS
        if all(name == "num_gpus" or getattr(jobs, name) is not None for name in names)
    ]
    means: dict[tuple[object, ...], float] = {}
    ends: list[tuple[float, int]] = []
    estimates = np.full(len(jobs), float(first_guess_s))

    def keys(row: int) -> list[tuple[object, ...]]:
        return [(names, *(columns[name][row] for name in names)) for names in groups]

    for row in jobs.submit_order.tolist():
        now_s = float(jobs.submit_s[row])
        while ends and ends[0][0] <= now_s:
            done = heapq.heappop(ends)[1]
            value = float(np.log(max(float(jobs.duration_s[done]), 1.0)))
            for key in keys(done):
                old = means.get(key)
                means[key] = value if old is None else (1 - memory) * old + memory * value
        for key in keys(row):
            if key in means:
                estimates[row] = np.exp(means[key])
                break
        heapq.heappush(ends, (now_s + float(jobs.duration_s[row]), row))
    return estimates
