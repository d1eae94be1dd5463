"""Fair schedulers: dominant-resource fairness and a finish-time-fairness auction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.baselines.method import View
from dtgym.baselines.scheduling.base import RankingMethod, SchedulingMethod
from dtgym.simulator.scheduling import Decision, Draft


@dataclass
class DominantShare(SchedulingMethod):
    """DRF by progressive filling: the user with the least dominant share starts his next job.

    Users are the table's column `user`, else `vc`; where the state has neither (the environment),
    every job is a user of its own, and those that ask least of their dominant resource go first.

    Source:
        Ghodsi et al., Dominant resource fairness, NSDI 2011.
    """

    name: str = "drf"

    def order(self, state: Any) -> NDArray[np.int64]:
        """Ascending in the owner's dominant share; ties by submission."""
        waiting = state.waiting
        total = np.maximum(state.capacity.sum(axis=0), 1e-12)
        demand = np.column_stack(
            (
                waiting.num_gpus,
                waiting.cpu_cores,
                waiting.memory_bytes,
                waiting.io_bytes_per_s,
                waiting.network_bytes_per_s,
            )
        )
        if not hasattr(state, "resources"):
            return np.argsort((demand / total).max(axis=1), kind="stable")
        table, rows = state.table, state.rows
        names = table.user if table.user is not None else table.vc
        owner = np.zeros(len(table), dtype=np.int64)
        if names is not None:
            owner = np.unique(names, return_inverse=True)[1].ravel()
        held = np.zeros((int(owner.max()) + 1, 5))
        machine = state.resources.machine
        for job in state.running.job:
            amount = machine.held[job] * machine.jobs["units"][job]
            held[owner[rows[job]]] += amount / np.array([1000, 1000, 1, 1, 1])
        share = (held / total).max(axis=1)
        return np.argsort(share[owner[rows[waiting.job]]], kind="stable")


@dataclass
class ThemisLike(RankingMethod):
    """Finish-time fairness by auction, by definition (its code was not read).

    Every lease, GPUs are offered to the jobs that fare worst: the fraction `1 - fairness_knob` with
    the largest rho = finish time shared / finish time with a 1/n cluster. Among them GPUs go where
    they lower rho most per GPU. Jobs outside keep what is left over.

    Attributes:
        fairness_knob: 0 offers to everybody, near 1 only to the worst off.
        lease_s: How long GPUs are won for.

    Source:
        Mahajan et al., Themis, NSDI 2020 (reconstruction).
    """

    name: str = "themis-like"
    fairness_knob: float = 0.8
    lease_s: float = 600.0
    _seen: dict[int, tuple[float, float]] = field(
        default_factory=lambda: {}, init=False, repr=False
    )

    def reset(self, view: View) -> None:
        """A new instance begins."""
        super().reset(view)
        self._seen = {}

    def order(self, state: Any) -> NDArray[np.int64]:
        """The waiting jobs by rho, the worst off first."""
        waiting = state.waiting
        crowd = len(waiting.job) + len(state.running.job)
        share = state.capacity[:, 0].sum() / max(crowd, 1)
        alone_s = waiting.estimate_s * np.maximum(waiting.num_gpus / share, 1.0)
        rho = (waiting.age_s + waiting.estimate_s) / np.maximum(alone_s, 1e-3)
        return np.argsort(-rho, kind="stable")

    def rho(self, state: Any) -> dict[int, float]:
        """Finish-time fairness of all active jobs if they ran from now on."""
        machine, now_s = state.resources.machine, state.now_s
        waiting, running = state.waiting, state.running
        jobs = np.concatenate((waiting.job, running.job))
        estimate_s = np.concatenate((waiting.estimate_s, running.estimate_s))
        service = np.concatenate((waiting.attained_gpu_s, running.attained_gpu_s))
        gpus = np.maximum(np.concatenate((waiting.num_gpus, running.num_gpus)), 1)
        share = state.capacity[:, 0].sum() / max(len(jobs), 1)
        submit_s = machine.jobs["submit_ms"][jobs] / 1000.0
        left_s = np.maximum(estimate_s - service / gpus, 1.0)
        shared_s = now_s - submit_s + left_s
        alone_s = np.maximum(estimate_s * np.maximum(gpus / share, 1.0), 1.0)
        return dict(zip(jobs.tolist(), (shared_s / alone_s).tolist(), strict=True))

    def decide(self, state: Any) -> Decision:
        """Holds an auction where a lease ended or GPUs are free; running leases are kept."""
        rho = self.rho(state)
        draft = Draft(state)
        ended = {
            int(job)
            for job, elapsed_s in zip(state.running.job, state.running.elapsed_s, strict=True)
            if elapsed_s >= self.lease_s and len(state.waiting.job)
        }
        kept = [int(job) for job in state.running.job if int(job) not in ended]
        bidders = [job for job in rho if job not in kept]
        bidders.sort(key=lambda job: (-rho[job], job))
        visible = bidders[: max(int(np.ceil((1 - self.fairness_knob) * len(bidders))), 1)]
        gpus = state.resources.machine.jobs["gpus"]
        visible.sort(key=lambda job: (-rho[job] / max(int(gpus[job]), 1), job))
        ranked = visible + [job for job in bidders if job not in visible]
        # Winners among those that run keep their nodes; the others make room first.
        room = int(state.capacity[:, 0].sum()) - sum(int(gpus[job]) for job in kept)
        winners: list[int] = []
        for job in ranked:
            if int(gpus[job]) <= room:
                room -= int(gpus[job])
                winners.append(job)
        for job in ended:
            if job not in winners:
                draft.preempt(job)
        for job in winners:
            if job not in ended:
                draft.start(job)
        left_s = self.lease_s - state.running.elapsed_s
        soonest_s = float(left_s[left_s > 0].min(initial=self.lease_s))
        return draft.decision(wake_s=state.after(soonest_s))
