"""What planners share: the exact evaluator with an honest count, and plans as actions."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.baselines.method import BaseMethod, Budget, View
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.partition_space import Candidate, PlanSpace


class Evaluator:
    """Prices candidates of one instance by the exact evaluator; a plan priced once is remembered.

    Attributes:
        space: The space of plans of that instance alone.
        evaluations: Distinct plans priced so far.
        estimates: Plans that a cheaper form has looked at, as the planner counts them.
        best: The best feasible and buildable plan so far.
        best_time_s: Its iteration time; inf before there is one.
    """

    def __init__(self, space: PlanSpace) -> None:
        """Starts with nothing priced."""
        self.space = space
        self.evaluations = 0
        self.estimates = 0
        self.best: Candidate | None = None
        self.best_time_s = np.inf
        self._known: dict[Candidate, float] = {}

    def time_s(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """Exact iteration times, (candidates,); inf for a plan that is infeasible.

        Plans with more stages than the space allows are infeasible.
        """
        new = [
            candidate
            for candidate in dict.fromkeys(candidates)
            if candidate not in self._known and len(candidate.stages) <= self.space.rules.max_stages
        ]
        if new:
            self.evaluations += len(new)
            times = self.space.time_s(new)
            self._known.update(zip(new, times.tolist(), strict=True))
            for index in np.argsort(times):
                if not times[index] < self.best_time_s:
                    break
                if self.space.is_buildable(new[index]):
                    self.best, self.best_time_s = new[index], float(times[index])
                    break
        return np.array([self._known.get(candidate, np.inf) for candidate in candidates])


@dataclass(frozen=True)
class Planned:
    """What a planner came to on one instance.

    Attributes:
        plan: The plan.
        time_s: Its exact iteration time.
        evaluations: Plans priced by the exact evaluator.
        estimates: Plans that cheaper forms have looked at.
        wall_s: Wall time.
    """

    plan: Candidate
    time_s: float
    evaluations: int
    estimates: int
    wall_s: float


@dataclass
class Planner(BaseMethod):
    """A method that plans once per episode and then emits its plan, decision by decision.

    Attributes:
        planned: What the last `plan` came to; None before.
        seed: Seed of a planner that draws; `prepare` sets it to the run's.
    """

    planned: Planned | None = field(default=None, init=False)
    seed: int = field(default=0, init=False)

    def prepare(self, suite: Any, *, seed: int, budget: Budget) -> None:
        """Keeps the run's seed; there is nothing to train."""
        self.seed = seed

    def plan(self, space: PlanSpace) -> Planned:
        """Plans one instance.

        Args:
            space: The space of plans of that instance alone.

        Raises:
            InvalidInput: The planner has found no feasible plan.
        """
        started_s = time.perf_counter()
        evaluator = Evaluator(space)
        self.search(evaluator)
        if evaluator.best is None:
            raise InvalidInput(f"{self.name} has found no plan that fits the memory")
        self.planned = Planned(
            evaluator.best,
            evaluator.best_time_s,
            evaluator.evaluations,
            evaluator.estimates,
            time.perf_counter() - started_s,
        )
        return self.planned

    @abstractmethod
    def search(self, evaluator: Evaluator) -> None:
        """Prices plans; the best that `evaluator` has seen is the planner's."""

    def reset(self, view: View) -> None:
        """Plans the instance of the episode that begins.

        Raises:
            InvalidInput: The episode improves a plan instead of building one.
        """
        super().reset(view)
        if view.state.improving:
            raise InvalidInput(f"{self.name} builds plans; it cannot act on moves of a whole plan")
        space: PlanSpace = view.state.space
        try:
            planned = self.plan(space)
        except InvalidInput:
            # A rule of thumb need not fit every instance; then it does what anyone would.
            planned = self._fall_back(view.state.reference, space)
        self.evaluations = planned.evaluations
        self._actions = iter(space.actions(planned.plan))

    def act(self, view: View) -> int:
        """The next decision of the plan."""
        return next(self._actions)

    def _fall_back(self, reference: Candidate, space: PlanSpace) -> Planned:
        """The rules of thumb's plan, or any known one if the masks do not let that one pass."""
        from dtgym.simulator.partition_rules import witness_plan

        plan = reference if space.is_buildable(reference) else witness_plan(space, 0)
        self.planned = Planned(plan, float(space.time_s([plan])[0]), 1, 0, 0.0)
        return self.planned
