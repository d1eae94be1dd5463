"""Pollux-like scheduling: NSGA-II over how many GPUs of which node every job gets.

Genome: integers, jobs x nodes. Objectives: the power mean over jobs of their speed-ups, and the
cluster's utility (speed-up per GPU weighted by the share of GPUs used). Operators as released: one
cut over the job axis; a row returns to its present allocation, is thinned out, or gets free GPUs.
Repair: at most one job that spans nodes on a node, gang limits, node capacity.

Source:
    Qiao et al., Pollux, OSDI 2021 (reconstruction): the speed-up comes from the stage model; there
    is no statistical efficiency, since traces say nothing about batch sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dtgym.baselines.method import View
from dtgym.baselines.scheduling.base import RankingMethod
from dtgym.baselines.scheduling.evolution import nsga2
from dtgym.simulator.scheduling import Decision, Draft


@njit(cache=True, nogil=True)
def repair(
    genome: NDArray[np.int64],
    capacity: NDArray[np.int64],
    least: NDArray[np.int64],
    most: NDArray[np.int64],
    order: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Makes an allocation legal.

    Args:
        genome: GPUs of each job on each node, (jobs, nodes), at least 0.
        capacity: GPUs of each node, (nodes,).
        least: Smallest gang of each job, (jobs,); fewer GPUs become none.
        most: Largest gang, (jobs,).
        order: In which order jobs keep what they have, a permutation, (jobs,).

    Returns:
        (jobs, nodes): within capacities and gangs, at most one job that spans nodes on any node.
    """
    legal = np.zeros_like(genome)
    free = capacity.copy()
    spanned = np.zeros(len(capacity), dtype=np.bool_)
    for job in order:
        row = np.minimum(genome[job], free)
        if (row > 0).sum() > 1:
            row[spanned] = 0
        total = row.sum()
        while total > most[job]:
            # The smallest part goes first, so that the gang lies on few nodes.
            smallest = -1
            for node in range(len(row)):
                if row[node] > 0 and (smallest < 0 or row[node] < row[smallest]):
                    smallest = node
            cut = min(total - most[job], row[smallest])
            row[smallest] -= cut
            total -= cut
        if total < least[job]:
            continue
        if (row > 0).sum() > 1:
            spanned |= row > 0
        legal[job] = row
        free -= row
    return legal


@dataclass
class PolluxLike(RankingMethod):
    """See the module.

    Attributes:
        population: Individuals.
        generations: Generations of one decision.
        interval_s: Time between decisions.
        fairness_exponent: Of the power mean of speed-ups; -1 is the harmonic mean.
        restart_s: Cost of a restart in the objective.
        seed: Of the search.
    """

    name: str = "pollux-like"
    population: int = 100
    generations: int = 100
    interval_s: float = 60.0
    fairness_exponent: float = -1.0
    restart_s: float = 30.0
    seed: int = 0
    _next_s: float = field(default=-np.inf, init=False, repr=False)
    _decisions: int = field(default=0, init=False, repr=False)
    _restarts: dict[int, int] = field(default_factory=lambda: {}, init=False, repr=False)

    def reset(self, view: View) -> None:
        """A new instance begins."""
        super().reset(view)
        self._next_s, self._decisions, self._restarts = -np.inf, 0, {}

    def order(self, state: Any) -> NDArray[np.int64]:
        """In the environment, which fixes gangs: the smallest gang first."""
        return np.argsort(state.waiting.num_gpus, kind="stable")

    def decide(self, state: Any) -> Decision:
        """Searches every `interval_s`, and at once where the cluster is idle."""
        if state.now_s < self._next_s and len(state.running.job):
            return Decision(wake_s=self._next_s)
        self._next_s = state.after(self.interval_s)
        self._decisions += 1
        jobs = np.sort(np.concatenate((state.running.job, state.waiting.job)))
        now = np.zeros((len(jobs), len(state.capacity)), dtype=np.int64)
        now[np.searchsorted(jobs, state.running.job)] = state.running.gpus
        best = self.search(state, jobs, now)
        changed = [row for row in range(len(jobs)) if not np.array_equal(best[row], now[row])]
        draft = Draft(state)
        for row in changed:
            if now[row].any():
                job = int(jobs[row])
                draft.preempt(job)
                self._restarts[job] = self._restarts.get(job, 0) + 1
        idle = len(state.running.job) == 0
        for row in changed:
            # The genome counts GPUs; where CPU, memory, I/O or network do not do, the job waits.
            nodes = np.flatnonzero(best[row])
            if len(nodes):
                parts = best[row][nodes].tolist()
                idle = not draft.start_on(int(jobs[row]), nodes.tolist(), parts) and idle
        # Jobs without GPUs are not the search's business. Where it leaves the cluster idle, because
        # it rarely meets a gang as wide as the cluster, jobs start by submission.
        gangs = state.resources.machine.jobs["gpus"]
        for job in state.waiting.job:
            if gangs[job] == 0 or idle:
                draft.start(int(job))
        return draft.decision(wake_s=self._next_s)

    def search(
        self, state: Any, jobs: NDArray[np.int64], now: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The allocation of the best compromise found, (jobs, nodes)."""
        from pymoo.core.crossover import Crossover
        from pymoo.core.mutation import Mutation
        from pymoo.core.problem import Problem
        from pymoo.core.repair import Repair

        table, rows = state.table, state.rows[jobs]
        machine = state.resources.machine
        asked = machine.jobs["asked_units"][jobs]
        has_gpus = table.num_gpus[rows] > 0
        least = asked if table.min_gpus is None else np.maximum(table.min_gpus[rows], 1)
        most = np.where(has_gpus, asked if table.max_gpus is None else table.max_gpus[rows], 0)
        capacity = np.floor(state.capacity[:, 0] + 1e-9).astype(np.int64)
        room = np.minimum(self._rooms(state, jobs), most[:, None])
        stages = machine.stage_s[jobs]
        age_s = np.maximum(state.now_s - machine.jobs["submit_ms"][jobs] / 1000.0, 1.0)
        restarts = np.array([self._restarts.get(int(job), 0) for job in jobs])
        penalty = np.maximum(age_s - restarts * self.restart_s, 0.0) / (age_s + self.restart_s)
        random = np.random.Generator(np.random.PCG64([self.seed, self._decisions]))
        shape = now.shape
        fairness = self.fairness_exponent

        def objectives(genomes: NDArray[np.int64]) -> NDArray[np.float64]:
            """Minus fairness and minus utility of each genome, (genomes, 2)."""
            gpus = genomes.sum(axis=2)
            ratio = asked / np.maximum(gpus, 1)
            work = stages[:, :3].sum(axis=1) * ratio
            net = np.where(gpus > 1, stages[:, 3], 0.0)
            speed = np.where(gpus > 0, stages.sum(axis=1) / np.maximum(work + net, 1e-12), 0.0)
            moved = (genomes != now).any(axis=2) & now.any(axis=1)
            speed = speed * np.where(moved, penalty, 1.0)
            floor = np.maximum(speed, 1e-3)
            mean = (floor**fairness).mean(axis=1) ** (1.0 / fairness)
            used = gpus.sum(axis=1) / max(int(capacity.sum()), 1)
            utility = (speed / np.maximum(asked, 1)).sum(axis=1) / max(len(jobs), 1) * used
            return -np.column_stack((mean, utility))

        class Allocation(Problem):
            def __init__(self) -> None:
                super().__init__(
                    n_var=now.size, n_obj=2, xl=0, xu=np.maximum(room, 0).ravel(), vtype=int
                )

            def _evaluate(self, x: Any, out: Any, *args: Any, **kwargs: Any) -> None:
                out["F"] = objectives(x.reshape(-1, *shape).astype(np.int64))

        def legal(x: Any) -> Any:
            genomes = np.clip(x.reshape(-1, *shape).astype(np.int64), 0, room)
            fixed = [
                repair(one, capacity, least, most, random.permutation(len(jobs))) for one in genomes
            ]
            return np.array(fixed).reshape(len(fixed), -1)

        class Legal(Repair):
            def _do(self, problem: Any, X: Any, **kwargs: Any) -> Any:  # noqa: N803
                return legal(X)

        class JobCut(Crossover):
            def __init__(self) -> None:
                super().__init__(n_parents=2, n_offsprings=2)

            def _do(self, problem: Any, x: Any, **kwargs: Any) -> Any:
                children = x.copy().reshape(2, x.shape[1], *shape)
                for pair in range(x.shape[1]):
                    cut = int(random.integers(0, shape[0] + 1))
                    children[:, pair, cut:] = children[::-1, pair, cut:].copy()
                return children.reshape(x.shape)

        class Rows(Mutation):
            def _do(self, problem: Any, x: Any, **kwargs: Any) -> Any:
                genomes = x.copy().reshape(-1, *shape).astype(np.int64)
                back = random.random(genomes.shape[:2]) < 0.1
                genomes[back] = np.broadcast_to(now, genomes.shape)[back]
                thin = (random.random(genomes.shape[:2]) < 0.1)[:, :, None]
                genomes[thin & (random.random(genomes.shape) < 0.1)] = 0
                touched = random.random(genomes.shape) < 1.0 / max(shape[0], 1)
                fresh = random.integers(0, room + 1, size=genomes.shape)
                genomes[touched] = fresh[touched]
                return genomes.reshape(x.shape)

        start = np.zeros((self.population, *shape), dtype=np.int64)
        start[:] = now
        start[1:] += random.integers(0, room + 1, size=(self.population - 1, *shape))
        found = nsga2(
            Allocation(),
            legal(start),
            crossover=JobCut(),
            mutation=Rows(),
            repair=Legal(),
            generations=self.generations,
            seed=self.seed,
        )
        self.evaluations += self.population * self.generations
        front, values = np.atleast_2d(found.X), np.atleast_2d(found.F)
        span = np.maximum(np.ptp(values, axis=0), 1e-12)
        nearest = np.argmin((((values - values.min(axis=0)) / span) ** 2).sum(axis=1))
        return front[nearest].reshape(shape).astype(np.int64)

    def _rooms(self, state: Any, jobs: NDArray[np.int64]) -> NDArray[np.int64]:
        """GPUs of each job that each empty node has room for, (jobs, nodes)."""
        machine = state.resources.machine
        demand = machine.demand[jobs]
        with np.errstate(divide="ignore"):
            fit = np.where(
                demand[:, None, :] > 0,
                machine.capacity[None] // np.maximum(demand[:, None, :], 1),
                np.iinfo(np.int64).max,
            ).min(axis=2)
        kinds_ok = machine.jobs["kinds_ok"][jobs]
        allowed = (kinds_ok[:, None] >> machine.nodes["kind"][None]) & 1
        return np.where((allowed > 0) & (demand[:, [0]] > 0), fit, 0)
