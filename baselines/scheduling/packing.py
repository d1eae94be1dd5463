"""Packing: fits, Tetris, FGD, Synergy-like right-sizing, Lucid- and Muri-like sharing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.baselines.scheduling.base import LEVELS, RankingMethod, SchedulingMethod
from dtgym.simulator import job_speed
from dtgym.simulator.scheduling import Decision, Start


@dataclass
class Fit(RankingMethod):
    """FIFO with skipping and one placement rule: best, worst, first or random fit, spread.

    The rule is chosen where the environment offers it; in the engine it is the simulation's
    `placement`.
    """

    name: str = "best-fit"
    blocks: bool = False

    def order(self, state: Any) -> NDArray[np.int64]:
        """By submission."""
        return np.arange(len(state.waiting.job))


@dataclass
class Tetris(SchedulingMethod):
    """Tetris: the job whose demand is most along some node's free vector starts first.

    Attributes:
        shortest: Divide the alignment by the estimated duration.

    Source:
        Grandl et al., Multi-resource packing for cluster schedulers, SIGCOMM 2014.
    """

    name: str = "tetris"
    placements: tuple[str, ...] = ("best_fit",)
    shortest: bool = False

    def order(self, state: Any) -> NDArray[np.int64]:
        """Descending in the dot product of demand and free vector on the best node."""
        waiting = state.waiting
        gpus = waiting.num_gpus
        demand = (
            np.column_stack(
                (
                    gpus,
                    waiting.cpu_cores,
                    waiting.memory_bytes,
                    waiting.io_bytes_per_s,
                    waiting.network_bytes_per_s,
                )
            )
            / np.maximum(gpus, 1)[:, None]
        )
        capacity = np.where(state.capacity > 0, state.capacity, np.inf)
        free = state.free / capacity
        score = np.full(len(gpus), -np.inf)
        for position in range(len(gpus)):
            room = waiting.room[position]
            if (room > 0).any():
                asked = demand[position] * room[:, None] / capacity
                score[position] = (asked * free).sum(axis=1)[room > 0].max()
        if self.shortest:
            score = score / np.maximum(waiting.estimate_s, 1e-3)
        return np.argsort(-score, kind="stable")


@dataclass
class LeastFragmentation(SchedulingMethod):
    """FGD order for the environment: start the job that leaves least GPUs useless to the others.

    In the engine use `placement="fgd"`, which chooses the node by the same measure.

    Source:
        Weng et al., Beware of fragmentation, USENIX ATC 2023: a node's free GPUs count as lost to
        those typical jobs that it cannot hold; the gradient is descended.
    """

    name: str = "fgd"

    def order(self, state: Any) -> NDArray[np.int64]:
        """Ascending in fragmentation after a start on the best single node, FIFO on ties."""
        gangs = state.waiting.num_gpus
        free = state.free[:, 0]
        change = np.full(len(gangs), np.inf)
        for position, gang in enumerate(gangs):
            hosts = np.flatnonzero(state.waiting.room[position] >= max(gang, 1))
            if gang and len(hosts):
                after = free[hosts] - gang
                lost = (gangs[None, :] > after[:, None]) * after[:, None]
                now = (gangs[None, :] > free[hosts][:, None]) * free[hosts][:, None]
                change[position] = (lost - now).mean(axis=1).min()
        return np.argsort(np.where(np.isinf(change), np.finfo(float).max, change), kind="stable")


@dataclass
class SynergyLike(RankingMethod):
    """FIFO; CPU goes to jobs that gain from it, the others are tuned down.

    A job gets the least CPU level that keeps 95 % of the speed of the largest one, if it fits, else
    what it asked for, else the least that keeps 90 % of the requested speed.

    Source:
        Mohan et al., Looking beyond GPUs for DNN scheduling (Synergy), OSDI 2022 (reconstruction).
    """

    name: str = "synergy-like"
    keep_most: float = 0.95
    keep_requested: float = 0.9

    def order(self, state: Any) -> NDArray[np.int64]:
        """By submission."""
        return np.arange(len(state.waiting.job))

    def decide(self, state: Any) -> Decision:
        """Starts in order, each at the first CPU level of its list that fits."""
        machine = state.resources.machine
        starts: list[Start] = []
        for job in state.waiting.job:
            record = machine.jobs[job]
            speeds = job_speed.relative_speed(
                np.tile(state.stage_s(int(job)), (len(LEVELS), 1)),
                overlap=float(record["overlap"]),
                cpu_shape=[record["squared"], record["linear"], record["constant"]],
                cores_asked=machine.demand[job, 1] / 1000.0,
                cores_given=np.maximum(np.array(LEVELS) * machine.demand[job, 1] / 1000.0, 1e-3),
            )
            if not record["has_stages"] or machine.demand[job, 1] == 0:
                speeds = np.ones(len(LEVELS))
            gain = int(np.argmax(speeds >= self.keep_most * speeds[-1]))
            loss = int(np.argmax(speeds >= self.keep_requested * speeds[LEVELS.index(1.0)]))
            # The engine skips a start that does not fit; one that did leaves the job running.
            for level in dict.fromkeys((LEVELS[gain], 1.0, LEVELS[loss])):
                starts.append(Start(int(job), cpu=level))
        return Decision(start=starts, alternatives=True)


@dataclass
class LucidLike(RankingMethod):
    """Least predicted GPU time first; jobs without room share GPUs while both stay fast.

    Attributes:
        threshold: Least predicted speed of both jobs.

    Source:
        Hu et al., Lucid, ASPLOS 2023 (reconstruction): indolent packing of jobs of one gang size;
        the speed comes from our fit to published pair measurements.
    """

    name: str = "lucid-like"
    pairing: str = "contending"
    threshold: float = 0.85

    def order(self, state: Any) -> NDArray[np.int64]:
        """Ascending in estimated duration x GPUs."""
        waiting = state.waiting
        key = waiting.estimate_s * np.maximum(waiting.num_gpus, 1)
        return np.argsort(key, kind="stable")

    def pair_value(self, mine_s: NDArray[np.float64], theirs_s: NDArray[np.float64]) -> float:
        """Predicted speed of each of the two jobs."""
        busy = mine_s[2] / max(mine_s.sum(), 1e-12) + theirs_s[2] / max(theirs_s.sum(), 1e-12)
        return float(job_speed.shared_gpu_speed(busy, 0.0))

    def decide(self, state: Any) -> Decision:
        """Starts in order, each on GPUs of its own or else beside the best partner."""
        running = state.running
        hosts = {
            int(job): int(gpus)
            for job, gpus, other in zip(running.job, running.num_gpus, running.partner, strict=True)
            if other < 0 and gpus > 0
        }
        starts: list[Start] = []
        for position in self.order(state):
            job, gang = int(state.waiting.job[position]), int(state.waiting.num_gpus[position])
            starts.append(Start(job))
            if state.waiting.startable[position]:
                continue
            values = {
                host: self.pair_value(state.stage_s(job), state.stage_s(host))
                for host, gpus in hosts.items()
                if gpus == gang
            }
            for host, value in sorted(values.items(), key=lambda item: -item[1]):
                if value >= self.threshold and state.can_share(job, host):
                    starts[-1] = Start(job, host=host)
                    del hosts[host]
                    break
        return Decision(start=starts)


@dataclass
class MuriLike(LucidLike):
    """Least GPU time first; complementary jobs take turns on storage, CPU, GPU and network.

    Attributes:
        threshold: Least sum of both speeds; 2 would be perfect sharing, 1 is no gain.

    Source:
        Zhao et al., Muri, SIGCOMM 2022 (reconstruction): groups of two instead of up to four,
        partners chosen greedily instead of by a maximum-weight matching at fixed intervals.
    """

    name: str = "muri-like"
    pairing: str = "interleaved"
    threshold: float = 1.2

    def pair_value(self, mine_s: NDArray[np.float64], theirs_s: NDArray[np.float64]) -> float:
        """Sum of both speeds when they take turns."""
        return float(job_speed.interleaved_speeds(mine_s, theirs_s).sum())
