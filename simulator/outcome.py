"""What a simulated schedule leaves behind: times per job, stretches of running, utilisation.

`Outcome` holds arrays in the order of the job table, plus the stretches during which jobs held
resources, from which utilisation over any window, timelines and fairness are computed. Times are in
seconds on the table's own clock; the engine's whole milliseconds are exact in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.errors import InvalidInput

RESOURCES = ("gpu", "cpu", "memory", "io", "network")
"""Resources of a node, in the order of all resource axes."""


@dataclass(frozen=True, eq=False)
class Stretches:
    """Every stretch during which a job held resources, by job row, then time.

    Attributes:
        job: Row of the job table, (stretches,).
        start_s: (stretches,).
        end_s: (stretches,): the completion, or the preemption that ended the stretch.
        held: Amount of each resource held during the stretch, (stretches, 5), in GPUs, cores,
            bytes, bytes/s and bytes/s.
        busy: Share of the held amount that the job keeps busy by the speed model, (stretches, 5);
            ones where jobs run at their stated durations.
        place_base: First row of each stretch in the two arrays below, (stretches + 1,); all zero
            where GPUs are pooled.
        place_node: Node, (places,).
        place_gpus: GPUs on that node, (places,).
    """

    job: NDArray[np.int64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    held: NDArray[np.float64]
    busy: NDArray[np.float64]
    place_base: NDArray[np.int64]
    place_node: NDArray[np.int64]
    place_gpus: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Outcome:
    """The schedule of one job table on one cluster; arrays in the order of the table, (jobs,).

    Attributes:
        policy: Name of the policy.
        job_id: Ids of the table.
        submit_s: Submissions on the engine's clock, that is rounded to milliseconds.
        num_gpus: Gang sizes.
        start_s: First start; NaN for a rejected job.
        finish_s: Completion; NaN for a rejected job.
        queueing_s: Total time between submission and completion without resources, including after
            preemptions; NaN for a rejected job.
        preemptions: How often the job lost its resources before it was done, int64.
        rejected: Rows of jobs that can never run on this cluster, ascending; empty unless
            `impossible="reject"` was asked for.
        rejections: One line per rejected job.
        events: Arrivals, completions and changes of level that the engine handled.
        decisions: Calls of a Python policy; 0 on the compiled path.
        decision_s: Wall time of each of these calls, seconds, (decisions,).
        capacity: The cluster's capacity of each resource, (5,).
        stretches: When which job held what.
    """

    policy: str
    job_id: NDArray[np.int64] | NDArray[np.str_]
    submit_s: NDArray[np.float64]
    num_gpus: NDArray[np.int64]
    start_s: NDArray[np.float64]
    finish_s: NDArray[np.float64]
    queueing_s: NDArray[np.float64]
    preemptions: NDArray[np.int64]
    rejected: NDArray[np.int64]
    rejections: tuple[str, ...]
    events: int
    decisions: int
    decision_s: NDArray[np.float64]
    capacity: NDArray[np.float64]
    stretches: Stretches

    @property
    def jct_s(self) -> NDArray[np.float64]:
        """Completion minus submission, (jobs,); NaN for a rejected job."""
        return self.finish_s - self.submit_s

    @property
    def makespan_s(self) -> float:
        """Last completion minus first submission, over the jobs that ran."""
        if np.isnan(self.finish_s).all():
            return 0.0
        return float(np.nanmax(self.finish_s) - self.submit_s[~np.isnan(self.finish_s)].min())

    @cached_property
    def utilisation(self) -> dict[str, dict[str, float]]:
        """Allocated utilisation: window -> resource -> share of the capacity.

        Windows: `makespan` (first submission to last completion) and `busy` (the times at which at
        least one job waits; NaN where none ever does). Resources of which the cluster has nothing
        or the jobs ask nothing are NaN and 0.
        """
        ran = ~np.isnan(self.finish_s)
        if not ran.any():
            return {"makespan": self._shares(0.0, 0.0), "busy": self._shares(0.0, 0.0)}
        first, last = float(self.submit_s[ran].min()), float(self.finish_s[ran].max())
        return {
            "makespan": self.utilisation_between(first, last),
            "busy": self._utilisation_busy(),
        }

    def utilisation_between(
        self, start_s: float, end_s: float, *, effective: bool = False
    ) -> dict[str, float]:
        """Utilisation of each resource over the window [start_s, end_s].

        Args:
            start_s: Begin of the window.
            end_s: Its end; stretches that reach beyond are cut off.
            effective: Count only what jobs keep busy instead of all they hold.

        Raises:
            InvalidInput: A window that ends before it begins.
        """
        if not end_s >= start_s:
            raise InvalidInput(f"end_s must be at least start_s = {start_s:g} s, got {end_s:g}")
        inside_s = np.clip(self.stretches.end_s, start_s, end_s) - np.clip(
            self.stretches.start_s, start_s, end_s
        )
        held = self.stretches.held * self.stretches.busy if effective else self.stretches.held
        return self._shares(inside_s @ held, end_s - start_s)

    def waiting_steps(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Number of waiting jobs over time as a step function.

        Returns:
            times_s, waiting: `waiting[i]` jobs wait from `times_s[i]` to `times_s[i + 1]`.
        """
        ran = ~np.isnan(self.finish_s)
        ends = self.stretches.end_s
        preempted = ends < self.finish_s[self.stretches.job]
        times_s = np.concatenate((self.submit_s[ran], self.stretches.start_s, ends[preempted]))
        change = np.ones(len(times_s), dtype=np.int64)
        change[ran.sum() : ran.sum() + len(ends)] = -1
        order = np.argsort(times_s, kind="stable")
        times_s, waiting = times_s[order], np.cumsum(change[order])
        last = np.append(times_s[1:] != times_s[:-1], True)
        return times_s[last], waiting[last]

    def _utilisation_busy(self) -> dict[str, float]:
        times_s, waiting = self.waiting_steps()
        busy = waiting > 0
        edges = np.flatnonzero(np.diff(np.concatenate(([False], busy, [False])).astype(np.int8)))
        begins = times_s[edges[::2]]
        finishes = times_s[np.minimum(edges[1::2], len(times_s) - 1)]
        # Length of busy time before an instant; the difference at both ends of a stretch is inside.
        knots = np.stack((begins, finishes), axis=1).ravel()
        grown = np.stack((np.zeros(len(begins)), finishes - begins), axis=1).ravel().cumsum()
        if len(knots) == 0:
            return self._shares(0.0, 0.0)
        inside_s = np.interp(self.stretches.end_s, knots, grown) - np.interp(
            self.stretches.start_s, knots, grown
        )
        return self._shares(inside_s @ self.stretches.held, float(grown[-1]))

    def _shares(self, amount: NDArray[np.float64] | float, window_s: float) -> dict[str, float]:
        offered = self.capacity * window_s
        share = np.divide(
            np.broadcast_to(amount, 5), offered, out=np.full(5, np.nan), where=offered > 0
        )
        return dict(zip(RESOURCES, share.tolist(), strict=True))
