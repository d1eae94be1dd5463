"""Gavel: policies as linear programs over shares of time on each GPU type, run in rounds.

The program says which share of its time each job should spend on each GPU type; it is solved anew
when a job comes or ends. Every round the jobs furthest behind their shares run. Jobs that go on
running on the same type keep their nodes.

Source:
    Narayanan et al., Heterogeneity-aware cluster scheduling policies for deep learning workloads,
    OSDI 2020 (re-implementation of the programs with HiGHS; jobs run their rounds alone).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.baselines.method import View
from dtgym.baselines.scheduling.base import RankingMethod
from dtgym.simulator.scheduling import Decision, Draft

OBJECTIVES = ("max_min", "max_min_het", "finish_time", "makespan")


def solve_max_min(
    speed: NDArray[np.float64], gang: NDArray[np.int64], capacity: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Time shares that maximise the least of `sum_k speed[j, k] share[j, k]`.

    On one GPU type no program is needed: all are filled alike until they are full or the GPUs are
    used up, which also leaves nothing to those who could have more.

    Args:
        speed: What a full share is worth to each job on each type, (jobs, kinds); 0 forbids.
        gang: GPUs of each job, (jobs,).
        capacity: GPUs of each type, (kinds,).

    Returns:
        Shares, (jobs, kinds): each job's sum is at most 1, the GPUs of each type suffice.

    Examples:
        >>> shares = solve_max_min(np.array([[1.0], [1.0]]), np.array([1, 1]), np.array([1.0]))
        >>> shares.round(6).tolist()
        [[0.5], [0.5]]
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    jobs, kinds = speed.shape
    if kinds == 1:
        return _fill_alike(speed[:, 0], gang, float(capacity[0]))[:, None]
    pairs = np.arange(jobs * kinds)
    job, kind = pairs // kinds, pairs % kinds
    # Rows: sum of shares of a job <= 1, GPUs of a type, and t <= worth of a job.
    rows = np.concatenate((job, jobs + kind, jobs + kinds + job, jobs + kinds + np.arange(jobs)))
    columns = np.concatenate((pairs, pairs, pairs, np.full(jobs, jobs * kinds)))
    values = np.concatenate(
        (np.ones(len(pairs)), gang[job].astype(float), -speed.ravel(), np.ones(jobs))
    )
    left = coo_array((values, (rows, columns)), shape=(2 * jobs + kinds, jobs * kinds + 1)).tocsr()
    right = np.concatenate((np.ones(jobs), capacity, np.zeros(jobs)))
    goal = np.zeros(jobs * kinds + 1)
    goal[-1] = -1.0
    upper = np.append(np.where(speed.ravel() > 0, 1.0, 0.0), np.inf)
    found = linprog(
        goal, A_ub=left, b_ub=right, bounds=np.column_stack((np.zeros(len(goal)), upper)),
        method="highs",
    )  # fmt: skip
    if found.x is None:
        raise AssertionError(f"the program has the solution 0, yet HiGHS says: {found.message}")
    return np.clip(found.x[:-1].reshape(jobs, kinds), 0.0, 1.0)


def _fill_alike(
    speed: NDArray[np.float64], gang: NDArray[np.int64], capacity: float
) -> NDArray[np.float64]:
    """Shares min(1, level / speed) with the highest level that the GPUs allow, (jobs,)."""
    if not (speed > 0).all():
        return np.zeros(len(speed))
    order = np.argsort(speed, kind="stable")
    rate = gang[order] / speed[order]
    # GPUs in use at the level at which each job is full: the full ones, and the rest in proportion.
    full = np.cumsum(gang[order])
    rest = np.append(np.cumsum(rate[::-1])[::-1][1:], 0.0)
    over = np.flatnonzero(full + speed[order] * rest > capacity * (1 + 1e-12))
    if not len(over):
        return np.ones(len(speed))
    first = over[0]
    level = (capacity - (full[first] - gang[order][first])) / (rest[first] + rate[first])
    return np.minimum(level / speed, 1.0)


def solve_finish_time(
    speed: NDArray[np.float64],
    gang: NDArray[np.int64],
    capacity: NDArray[np.float64],
    left_s: NDArray[np.float64],
    age_s: NDArray[np.float64],
    alone_s: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Time shares that minimise the largest finish-time-fairness ratio, by bisection.

    rho_j = (age + left / worth) / alone; a given bound on rho is a least worth for every job, so
    the jobs' worths relative to it are max-min programs.

    Args:
        speed: (jobs, kinds).
        gang: (jobs,).
        capacity: (kinds,).
        left_s: Remaining time at speed 1, (jobs,).
        age_s: Time since submission, (jobs,).
        alone_s: Finish time with a 1/n share of the cluster, (jobs,).
    """
    low, high = float((age_s / alone_s).max()) + 1e-6, 1.0

    def worth(rho: float) -> NDArray[np.float64]:
        return left_s / np.maximum(rho * alone_s - age_s, 1e-9)

    def shares_for(rho: float) -> NDArray[np.float64] | None:
        asked = worth(rho)
        shares = solve_max_min(speed / asked[:, None], gang, capacity)
        got = (speed * shares).sum(axis=1)
        return shares if (got >= asked * (1 - 1e-6)).all() else None

    high = max(high, 2 * low)
    best = shares_for(high)
    for _ in range(40):
        if best is not None:
            break
        high *= 2
        best = shares_for(high)
    if best is None:
        return solve_max_min(speed, gang, capacity)
    for _ in range(20):
        middle = (low + high) / 2
        found = shares_for(middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best


def gpus_by_kind(state: Any) -> NDArray[np.float64]:
    """GPUs of each type, (kinds,)."""
    total = np.zeros(len(state.kinds))
    np.add.at(total, state.kind, state.capacity[:, 0])
    return total


@dataclass
class Gavel(RankingMethod):
    """A Gavel policy; see the module.

    Attributes:
        objective: `max_min`: equal time, blind to types. `max_min_het`: equal effective speed.
            `finish_time`: least largest rho. `makespan`: least time to finish all.
        round_s: Length of a round.
    """

    name: str = "gavel-max-min"
    objective: str = "max_min"
    round_s: float = 360.0
    _received: dict[int, NDArray[np.float64]] = field(
        default_factory=lambda: {}, init=False, repr=False
    )
    _on: dict[int, int] = field(default_factory=lambda: {}, init=False, repr=False)
    _shares: dict[int, NDArray[np.float64]] = field(
        default_factory=lambda: {}, init=False, repr=False
    )
    _last_s: float = field(default=0.0, init=False, repr=False)
    _next_s: float = field(default=-np.inf, init=False, repr=False)

    def reset(self, view: View) -> None:
        """A new instance begins."""
        super().reset(view)
        self._received, self._on, self._shares = {}, {}, {}
        self._next_s = -np.inf

    def order(self, state: Any) -> NDArray[np.int64]:
        """In the environment, which has no rounds: who asks least of the cluster first."""
        return np.argsort(state.waiting.num_gpus, kind="stable")

    def decide(self, state: Any) -> Decision:
        """Runs a round: accounts for the last one, solves the program, fills each type."""
        now_s = state.now_s
        if now_s < self._next_s and len(state.waiting.job):
            # Between rounds only newly free GPUs are filled.
            return self._fill(state, set(state.running.job.tolist()), self._next_s)
        running = [int(job) for job in state.running.job]
        active = sorted({*running, *(int(job) for job in state.waiting.job)})
        kinds = len(state.kinds)
        for job, elapsed_s in zip(running, state.running.elapsed_s, strict=True):
            spent = self._received.setdefault(job, np.zeros(kinds))
            spent[self._on.get(job, 0)] += min(float(elapsed_s), now_s - self._last_s)
        self._last_s = now_s
        if active != list(self._shares):
            self._shares = dict(zip(active, self.shares(state, active), strict=True))
        self._next_s = state.after(self.round_s)
        return self._fill(state, set(), self._next_s)

    def shares(self, state: Any, jobs: list[int]) -> NDArray[np.float64]:
        """Solves the policy's program for the active jobs, (jobs, kinds)."""
        records = state.resources.machine.jobs[jobs]
        gang = np.maximum(records["gpus"], 1)
        capacity = gpus_by_kind(state)
        allowed = (records["kinds_ok"][:, None] >> np.arange(len(capacity))) & 1
        fits = gang[:, None] <= capacity
        speed = np.array([state.kind_speed(job) for job in jobs]) * allowed * fits
        # A gang that no single type holds may count on the types together.
        speed = np.where(speed.sum(axis=1, keepdims=True) > 0, speed, allowed * 1.0)
        if self.objective == "max_min":
            speed = (speed > 0).astype(float)
        equal = (speed * capacity).sum(axis=1) / capacity.sum()
        if self.objective in ("max_min", "max_min_het"):
            return solve_max_min(speed / equal[:, None] * gang[:, None], gang, capacity)
        served_s = records["attained"] / 1000.0 / gang
        left_s = np.maximum(records["estimate_ms"] / 1000.0 - served_s, 1.0)
        if self.objective == "makespan":
            return solve_max_min(speed / left_s[:, None], gang, capacity)
        age_s = state.now_s - records["submit_ms"] / 1000.0
        share = np.minimum(capacity.sum() / len(jobs) / gang, 1.0)
        alone_s = records["estimate_ms"] / 1000.0 / np.maximum(equal * share, 1e-9)
        return solve_finish_time(speed, gang, capacity, left_s, age_s, np.maximum(alone_s, 1.0))

    def _fill(self, state: Any, keep: set[int], wake_s: float) -> Decision:
        """Gives each type's GPUs to the jobs furthest behind their shares."""
        gpus = state.resources.machine.jobs["gpus"]
        kinds = len(state.kinds)
        capacity = gpus_by_kind(state)
        running = [int(job) for job in state.running.job]
        for job in keep:
            capacity[self._on.get(job, 0)] -= gpus[job]
        wishes: list[tuple[float, int, int]] = []
        for job in {*running, *(int(job) for job in state.waiting.job)} - keep:
            spent = self._received.get(job, np.zeros(kinds))
            share = self._shares.get(job, np.full(kinds, 1.0 / kinds))
            for kind in range(kinds):
                if share[kind] > 1e-9:
                    behind = share[kind] / (spent[kind] + self.round_s * 1e-3)
                    wishes.append((-behind, job, kind))
        chosen: dict[int, int] = {}
        for _, job, kind in sorted(wishes):
            if job not in chosen and gpus[job] <= capacity[kind]:
                capacity[kind] -= gpus[job]
                chosen[job] = kind
        draft = Draft(state)
        for job in running:
            if job not in keep and chosen.get(job, -1) != self._on.get(job, 0):
                draft.preempt(job)
                self._on.pop(job, None)
        placed: set[int] = set()
        for job, kind in sorted(chosen.items()):
            if job in running and job in self._on:
                placed.add(job)
            elif draft.start(job, kind=kind):
                self._on[job] = kind
                placed.add(job)
        # Gangs that no type holds, and whatever still fits, so that no GPU idles for a rule.
        for job in sorted({*running, *(int(job) for job in state.waiting.job)} - keep - placed):
            if draft.start(job):
                self._on[job] = 0
        return draft.decision(wake_s=wake_s)
