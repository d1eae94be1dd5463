"""What all schedulers share: one method that works in the environment and in the engine.

In `dtgym/ClusterScheduling-v0` a decision is a chain of choices: a waiting job, then where the
environment asks for it a placement rule and allocation levels. In `cluster.simulate` it is one
choice of a waiting job, the rest being options. `SchedulingMethod` maps both onto `order`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.baselines.method import BaseMethod, View
from dtgym.simulator.jobs import JobTable
from dtgym.simulator.scheduling import Decision, Start

LEVELS = (0.5, 0.75, 1.0, 1.5, 2.0)
"""Allocation levels of the environment, relative to the request."""
WHOLE = LEVELS.index(1.0)


@dataclass
class SchedulingMethod(BaseMethod, ABC):
    """A scheduler that never preempts: it ranks the waiting jobs.

    Attributes:
        placements: Placement rules it likes, best first; used where the environment lets it choose.
        blocks: Whether nobody overtakes a job that does not fit.
        table: The episode's jobs, for an oracle in the environment; else None.
    """

    placements: tuple[str, ...] = ("best_fit",)
    blocks: bool = False
    table: JobTable | None = field(default=None, init=False, repr=False)

    def reset(self, view: View) -> None:
        """A new instance begins."""
        super().reset(view)
        self.table = getattr(view, "instance", None)

    @abstractmethod
    def order(self, state: Any) -> NDArray[np.int64]:
        """Positions in `state.waiting` of the jobs to start, most urgent first."""

    def act(self, view: View) -> int:
        """The next legal choice."""
        state, mask = view.state, view.action_mask
        if state.phase == 0:
            for position in self.order(state):
                if mask[position]:
                    return int(position)
                if self.blocks:
                    break
            return int(state.advance)
        if state.phase == 1:
            return self.choose_placement(state, mask)
        return self.choose_level(state, mask)

    def choose_placement(self, state: Any, mask: NDArray[np.bool_]) -> int:
        """The first liked placement rule that is legal, else the first legal one."""
        offered = list(state.placements)
        for rule in self.placements:
            if rule in offered and mask[state.first_placement + offered.index(rule)]:
                return int(state.first_placement + offered.index(rule))
        return int(np.flatnonzero(mask)[0])

    def choose_level(self, state: Any, mask: NDArray[np.bool_]) -> int:
        """What the job asked for if that is legal, else the nearest legal level."""
        legal = np.flatnonzero(mask[state.first_level : state.first_level + len(LEVELS)])
        return int(state.first_level + legal[np.argmin(np.abs(legal - WHOLE))])


@dataclass
class RankingMethod(SchedulingMethod):
    """A scheduler whose order does not change while it starts jobs: one look per event."""

    def decide(self, state: Any) -> Decision:
        """Starts waiting jobs in order; the engine leaves out what does not fit."""
        starts = [Start(int(state.waiting.job[position])) for position in self.order(state)]
        return Decision(start=starts, in_order=self.blocks)


def true_duration_s(method: SchedulingMethod, state: Any) -> NDArray[np.float64]:
    """What oracles see of the waiting jobs: remaining work, (waiting,), seconds."""
    jobs = state.waiting.job
    if hasattr(state, "remaining_s"):
        return np.array([state.remaining_s(int(job)) for job in jobs])
    table = method.table
    assert table is not None, "an oracle needs an oracle view in reset"
    return table.duration_s[jobs]


def attained_gpu_s(state: Any) -> NDArray[np.float64]:
    """GPU time that the waiting jobs have received, (waiting,); 0 where nothing is preempted."""
    return getattr(state.waiting, "attained_gpu_s", np.zeros(len(state.waiting.job)))
