"""DSFRO-style scheduling: load forecast and NSGA-II over nodes and allocation levels.

A reconstruction from the description of the method as an LSTM load forecast, a multi-objective
genetic algorithm, and joint allocation of CPU, GPU, I/O and network in a heterogeneous cluster.
Objectives, chromosome, operators and parameters are not given there: they are ours or, as
docs/schedulers.md says, those of Pollux. Neither code nor results are those of DSFRO's authors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.baselines.method import Budget, View
from dtgym.baselines.scheduling import load_forecast
from dtgym.baselines.scheduling.base import LEVELS, WHOLE, RankingMethod
from dtgym.baselines.scheduling.dsfro_plans import (
    Candidates,
    knee,
    objectives,
    place,
    shares,
)
from dtgym.baselines.scheduling.evolution import nsga2
from dtgym.simulator.cluster_resources import PER_UNIT
from dtgym.simulator.errors import InvalidInput, at_least, one_of
from dtgym.simulator.scheduling import Decision, Start

FORECASTS = ("", "none", "persistence", "ewma", "lstm")
HORIZON_S = load_forecast.BIN_S * load_forecast.HORIZON
_EPISODES = 32
"""Training episodes whose arrivals `prepare` looks at, in turn over the instances."""


@dataclass
class DsfroStyle(RankingMethod):
    """See the module.

    Attributes:
        forecast: One of `FORECASTS`. Empty: the LSTM where `prepare` trained one that beats the
            moving mean on its validation part, else the moving mean.
        population: Individuals; 100 with 100 generations are Pollux's.
        generations: Generations of one decision.
        most_jobs: Jobs that a decision considers, oldest first.
        movable: Whether running jobs may be stopped and moved.
        headroom_weight: Price of predicted load without room.
        restart_s: Cost of a move in the objectives.
        seed: Of search and training.
    """

    name: str = "dsfro-style"
    forecast: str = ""
    population: int = 50
    generations: int = 50
    most_jobs: int = 64
    movable: bool = False
    headroom_weight: float = 0.5
    restart_s: float = 30.0
    seed: int = 0
    _lstm: load_forecast.Lstm | None = field(default=None, init=False, repr=False)
    _decisions: int = field(default=0, init=False, repr=False)
    _seen: dict[int, tuple[float, ...]] = field(default_factory=lambda: {}, init=False, repr=False)
    _last: tuple[NDArray[np.int64], NDArray[np.int64]] | None = field(
        default=None, init=False, repr=False
    )
    _plan: tuple[float, NDArray[np.int64]] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Checks the options."""
        one_of("forecast", self.forecast, FORECASTS)
        at_least("population", self.population, 2)
        for name in ("generations", "most_jobs"):
            at_least(name, getattr(self, name), 1)
        for name in ("headroom_weight", "restart_s"):
            at_least(name, getattr(self, name), 0)

    def prepare(self, suite: Any, *, seed: int, budget: Budget) -> None:
        """Trains the LSTM on the arrivals of the longest training episode; no simulator step.

        Raises:
            InvalidInput: ``forecast="lstm"`` and every training episode is too short.
        """
        import gymnasium as gym

        self.seed, self._lstm = seed, None
        if self.forecast not in ("", "lstm"):
            return
        loads: list[load_forecast.Loads] = []
        for instance in suite.train:
            env: Any = gym.make(suite.env_id, **instance.env_kwargs)
            for number in list(instance.preparation_seeds)[: -(-_EPISODES // len(suite.train))]:
                env.reset(seed=number)
                loads.append(load_forecast.bin_loads(env.unwrapped.view(oracle=True).instance))
            env.close()
        longest = max(loads, key=lambda one: len(one.values))
        # The public state always shows CPU, the jobs of an episode may not know it.
        longest = load_forecast.Loads(longest.values[:, :2], longest.start_s)
        lstm = load_forecast.Lstm()
        try:
            lstm.fit_loads(longest, seed)
        except InvalidInput:
            if self.forecast == "lstm":
                raise
            return
        first = int(len(longest.values) * load_forecast.TRAIN)
        end = int(len(longest.values) * (load_forecast.TRAIN + load_forecast.VALIDATION))
        seen = load_forecast.Loads(longest.values[:end], longest.start_s)
        ours, mean = (
            load_forecast.one_step_errors(one, seen, first)[:, 1].mean()
            for one in (lstm, load_forecast.Ewma())
        )
        if self.forecast == "lstm" or ours < mean:
            self._lstm = lstm

    def reset(self, view: View) -> None:
        """A new instance begins."""
        super().reset(view)
        self._decisions, self._seen, self._last, self._plan = 0, {}, None, None

    def order(self, state: Any) -> NDArray[np.int64]:
        """In the environment: the jobs that the plan starts; placement and levels are not its own.

        One search per instant; nodes and levels of the plan need the engine.
        """
        self._look(state)
        if self._plan is None or self._plan[0] != state.now_s:
            jobs, rows = _shown(state, self.most_jobs)
            genome, _ = self._searched(state, jobs, state.waiting.job[rows])
            started = state.waiting.job[rows[genome[:, 0] >= 0]]
            if not len(started) and not len(state.running.job):
                started = state.waiting.job[rows]
            self._plan = (float(state.now_s), started)
        places = {int(job): row for row, job in enumerate(state.waiting.job)}
        return np.array([places[job] for job in self._plan[1] if job in places], dtype=np.int64)

    def decide(self, state: Any) -> Decision:
        """Searches where a waiting job could start, or running ones move."""
        self._look(state)
        jobs, numbers = _candidates(state, self.most_jobs, movable=self.movable)
        waits = ~jobs.present.any(axis=1)
        if not waits.any():
            return Decision()
        genome, placed = self._searched(state, jobs, numbers)
        stays = genome[:, 0] == len(jobs.capacity)
        given = shares(jobs, genome[None])[0]
        starts: list[Start] = []
        for row in np.flatnonzero(placed.any(axis=1) & ~stays):
            nodes = np.flatnonzero(placed[row])
            cpu, io, network = given[row].tolist()
            starts.append(
                Start(
                    int(numbers[row]), nodes.tolist(), placed[row, nodes].tolist(), cpu, io, network
                )
            )
        preempt = [int(numbers[row]) for row in np.flatnonzero(~waits & ~stays)]
        busy = len(state.running.job) - len(preempt) + len(starts)
        if not busy:
            # An empty cluster gains nothing by waiting.
            starts = [Start(int(job)) for job in state.waiting.job]
        return Decision(start=starts, preempt=preempt)

    def _look(self, state: Any) -> None:
        """Notes what has been submitted."""
        waiting = state.waiting
        for row, job in enumerate(waiting.job.tolist()):
            if job not in self._seen:
                submit_s = float(state.now_s - waiting.age_s[row])
                gpus, cores = float(waiting.num_gpus[row]), float(waiting.cpu_cores[row])
                self._seen[job] = (submit_s, 1.0, gpus, cores)

    def _coming(self, state: Any) -> NDArray[np.float64]:
        """The 0.9 quantiles of GPUs (and cores) of the horizon's bins, summed: (1 or 2,).

        The sum of quantiles is at least the quantile of the sum for loads that move together and
        more than it for independent ones: the reserve errs on the large side.
        """
        if self.forecast == "none" or not self._seen:
            return np.zeros(1)
        seen = np.array(list(self._seen.values()))
        epoch_s = 0.0
        if hasattr(state, "table"):
            epoch_s = float(state.table.epoch_unix_s or 0.0)
        clock_s = seen[:, 0] + epoch_s
        forecaster: load_forecast.Forecaster = load_forecast.Ewma()
        if self.forecast == "persistence":
            forecaster = load_forecast.Persistence()
        elif self.forecast == "lstm" or (self._lstm is not None and not self.forecast):
            if self._lstm is None:
                raise InvalidInput("forecast='lstm' needs a trained one: call prepare first")
            forecaster, seen = self._lstm, seen[:, :3]
        start_s = float(np.floor(clock_s.min() / load_forecast.BIN_S) * load_forecast.BIN_S)
        loads = load_forecast.count_loads(clock_s, seen[:, 1:], start_s, state.now_s + epoch_s)
        return forecaster.predict(loads).upper.sum(axis=0)[1:]

    def _searched(
        self, state: Any, jobs: Candidates, numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The plan chosen: genome (J, GENES) and parts on nodes (J, N)."""
        genome = jobs.current
        if self.movable or self._any_fits(jobs):
            genome = self.search(jobs, numbers, self._coming(state))
        return genome, place(jobs, genome[None].copy())[0]

    def _any_fits(self, jobs: Candidates) -> bool:
        """Whether some waiting job has room at the least levels; else there is no search."""
        waits = np.flatnonzero(~jobs.present.any(axis=1))
        probe = np.repeat(jobs.current[None], len(waits), axis=0)
        probe[np.arange(len(waits)), waits] = np.maximum(jobs.bounds[0][waits], 0)
        return bool(place(jobs, probe)[np.arange(len(waits)), waits].any())

    def search(
        self, jobs: Candidates, numbers: NDArray[np.int64], coming: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """The knee of the front that NSGA-II finds, repaired, (J, GENES)."""
        genomes, values = self.front(jobs, numbers, coming)
        return genomes[knee(values)]

    def front(
        self, jobs: Candidates, numbers: NDArray[np.int64], coming: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Runs NSGA-II from the last population, as far as its jobs are still there.

        Args:
            jobs: The candidates.
            numbers: Their numbers, by which the last population's rows are found, (J,).
            coming: Predicted load, see `objectives`.

        Returns:
            Repaired genomes of the front, (points, J, GENES), and their objectives, (points, 3).
        """
        from pymoo.core.crossover import Crossover
        from pymoo.core.mutation import Mutation
        from pymoo.core.problem import Problem
        from pymoo.core.repair import Repair

        self._decisions += 1
        random = np.random.Generator(np.random.PCG64([self.seed, self._decisions]))
        low, high = jobs.bounds
        shape, current = low.shape, jobs.current
        weight, restart_s = self.headroom_weight, self.restart_s

        def whole(x: Any) -> NDArray[np.int64]:
            return np.ascontiguousarray(x.reshape(-1, *shape), dtype=np.int64)

        class Plans(Problem):
            def __init__(self) -> None:
                super().__init__(
                    n_var=low.size, n_obj=3, xl=low.ravel(), xu=high.ravel(), vtype=int
                )

            def _evaluate(self, x: Any, out: Any, *args: Any, **kwargs: Any) -> None:
                genomes = whole(x).copy()
                out["F"] = objectives(
                    jobs, genomes, place(jobs, genomes), horizon_s=HORIZON_S, coming=coming,
                    headroom_weight=weight, restart_s=restart_s,
                )  # fmt: skip

        class Legal(Repair):
            def _do(self, problem: Any, X: Any, **kwargs: Any) -> Any:  # noqa: N803
                genomes = np.clip(whole(X), low, high)
                place(jobs, genomes)
                return genomes.reshape(X.shape)

        class SwapRows(Crossover):
            def __init__(self) -> None:
                super().__init__(n_parents=2, n_offsprings=2)

            def _do(self, problem: Any, x: Any, **kwargs: Any) -> Any:
                parents = x.reshape(2, x.shape[1], *shape)
                swap = random.random((x.shape[1], shape[0], 1)) < 0.5
                return np.where(swap, parents[::-1], parents).reshape(x.shape)

        class Rows(Mutation):
            def _do(self, problem: Any, x: Any, **kwargs: Any) -> Any:
                genomes = whole(x).copy()
                back = random.random(genomes.shape[:2]) < 0.1
                genomes[back] = np.broadcast_to(current, genomes.shape)[back]
                dice = random.random(genomes.shape)
                fresh = random.integers(low, high + 1, size=genomes.shape)
                node = dice[..., 0] < 1.0 / shape[0]
                genomes[node, 0] = fresh[node, 0]
                step = np.where(random.random(genomes.shape) < 0.5, -1, 1)
                step = np.where(dice < 1.0 / (len(LEVELS) * shape[0]), step, 0)
                genomes[..., 1:] += step[..., 1:]
                return np.clip(genomes, low, high).reshape(x.shape)

        start = random.integers(low, high + 1, size=(self.population, *shape))
        # Half of them ask for what the jobs asked for; the first packs greedily.
        start[::2, :, 1:] = WHOLE
        start[0] = np.clip(np.array([0, WHOLE, WHOLE, WHOLE]), low, high)
        start[1] = current
        if self._last is not None:
            rows = {int(number): row for row, number in enumerate(self._last[0])}
            for row, number in enumerate(numbers.tolist()):
                if number in rows:
                    kept = self._last[1][: self.population // 2, rows[number]]
                    start[2 : 2 + len(kept), row] = kept[: len(start) - 2]
        start = np.clip(start, low, high)
        place(jobs, start)
        found = nsga2(
            Plans(),
            start.reshape(len(start), -1),
            crossover=SwapRows(),
            mutation=Rows(),
            repair=Legal(),
            generations=self.generations,
            seed=self.seed,
        )
        self.evaluations += self.population * self.generations
        self._last = (numbers.copy(), whole(found.pop.get("X")))
        values, first = np.unique(np.atleast_2d(found.F), axis=0, return_index=True)
        return whole(np.atleast_2d(found.X))[first], values


def _candidates(state: Any, most: int, *, movable: bool) -> tuple[Candidates, NDArray[np.int64]]:
    """Everything the engine shows of the jobs to decide on, shortest first, and their numbers."""
    m = state.resources.machine
    running, waiting = state.running, state.waiting
    # Jobs that share GPUs stay where they are.
    moves = (running.partner < 0) & (running.num_gpus > 0) & movable
    left_s = np.maximum(running.estimate_s - running.elapsed_s, 1.0)
    numbers = np.concatenate((waiting.job[:most], running.job[moves][:most]))
    worked_s = waiting.attained_gpu_s[:most] / np.maximum(waiting.num_gpus[:most], 1)
    remaining_s = np.concatenate(
        (np.maximum(waiting.estimate_s[:most] - worked_s, 1.0), left_s[moves][:most])
    )
    present: NDArray[np.int64] = np.zeros((len(numbers), len(m.free)), dtype=np.int64)
    count = min(len(waiting.job), most)
    present[count:] = running.gpus[moves][:most]
    order = np.lexsort((numbers, remaining_s))
    numbers, remaining_s, present = numbers[order], remaining_s[order], present[order]
    record, demand = m.jobs[numbers], m.demand[numbers]
    runs: NDArray[np.bool_] = present.sum(axis=1) > 0
    held = np.where(runs[:, None], m.held[numbers], demand)
    with np.errstate(divide="ignore", invalid="ignore"):
        levels = np.where(demand > 0, held / demand, 1.0)[:, [1, 3, 4]]
    staged = record["has_stages"] > 0
    stage_s = np.where(staged[:, None], m.stage_s[numbers], [0.0, 0.0, 1.0, 0.0])
    speed = np.where(staged[:, None], m.kind_speed[numbers][:, m.nodes["kind"]], 1.0)
    others = ~np.isin(running.job, numbers)
    jobs = Candidates(
        units=np.where(runs, present.sum(axis=1), record["asked_units"]),
        demand=demand,
        allowed=((record["kinds_ok"][:, None] >> m.nodes["kind"][None]) & 1) > 0,
        stage_s=stage_s,
        overlap=np.where(staged, record["overlap"], 0.0),
        cpu_shape=np.column_stack((record["squared"], record["linear"], record["constant"])),
        gpu_speed=speed,
        cross=np.column_stack((record["cross_node"], record["cross_rack"])),
        traffic=record["traffic"],
        age_s=state.now_s - record["submit_ms"] / 1000.0,
        remaining_s=remaining_s,
        present=present,
        present_levels=levels,
        capacity=m.capacity,
        free=m.free + np.einsum("jn,jr->nr", present, held),
        rack=m.nodes["rack"],
        network_load=m.nodes["network_load"],
        other_units=m.held[running.job[others]][:, :2] * m.jobs["units"][running.job[others], None],
        other_end_s=left_s[others],
    )
    return jobs, numbers


def _shown(state: Any, most: int) -> tuple[Candidates, NDArray[np.int64]]:
    """What the environment shows of the waiting jobs, shortest first, and their slots."""
    waiting, running = state.waiting, state.running
    rows = np.argsort(waiting.estimate_s[:most], kind="stable")
    units = np.maximum(waiting.num_gpus[rows], 1)
    whole = np.column_stack(
        (waiting.num_gpus, waiting.cpu_cores, waiting.memory_bytes, waiting.io_bytes_per_s,
         waiting.network_bytes_per_s)
    )[rows]  # fmt: skip
    nodes, count = len(state.capacity), len(rows)
    gpus = running.gpus.sum(axis=1) * 1000
    jobs = Candidates(
        units=units,
        demand=np.floor(whole * PER_UNIT / units[:, None] + 1e-6).astype(np.int64),
        allowed=waiting.room[rows] > 0,
        stage_s=np.tile([0.0, 0.0, 1.0, 0.0], (count, 1)),
        overlap=np.zeros(count),
        cpu_shape=np.tile([0.0, 1.0, 0.0], (count, 1)),
        gpu_speed=np.ones((count, nodes)),
        cross=np.ones((count, 2)),
        traffic=np.zeros(count, dtype=np.int64),
        age_s=waiting.age_s[rows],
        remaining_s=np.maximum(waiting.estimate_s[rows], 1.0),
        present=np.zeros((count, nodes), dtype=np.int64),
        present_levels=np.ones((count, 3)),
        capacity=np.floor(state.capacity * PER_UNIT + 1e-6).astype(np.int64),
        free=np.floor(state.free * PER_UNIT + 1e-6).astype(np.int64),
        rack=np.asarray(state.rack, dtype=np.int64),
        network_load=np.zeros(nodes, dtype=np.int64),
        other_units=np.column_stack((gpus, np.zeros_like(gpus))),
        other_end_s=np.maximum(running.estimate_s - running.elapsed_s, 1.0),
    )
    return jobs, rows
