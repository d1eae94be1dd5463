"""Searching a good partition and credit by trial: which point next, and when to stop.

A trial holds one point for a number of iterations and measures the mean iteration time. The
schedule is ByteScheduler's: the default first (measured, then dropped as unreliable), ten random
points, four suggestions, then the best point seen for good.

Source:
    ByteScheduler's release (github.com/bytedance/byteps, branch bytescheduler), common/tuner.py
    and common/search.py.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.errors import InvalidInput

RANDOM_POINTS = 10
SUGGESTED_POINTS = 4
ITERATIONS_PER_TRIAL = 111
"""101 time stamps per point, which takes effect 10 iterations after it was set."""
ITERATIONS_UNTIL_EFFECT = 10

MEGABYTES_PER_MILLION = 4.0
"""Partition and credit are numbers of fp32 parameters in the release; here they are bytes."""
PARTITION_MILLIONS = (2.0, 32.0)
CREDIT_MILLIONS = {"ps": (1.0, 16.0), "allreduce": (4.0, 64.0)}
EXPLORATION = 0.1
"""xi of the expected improvement."""


class Proposer(Protocol):
    """Says which point to try next, and is told how it went."""

    def propose(self) -> tuple[float, float]:
        """Returns partition and credit in bytes."""
        ...

    def tell(self, time_s: float) -> None:
        """Takes the mean iteration time of the point proposed last."""
        ...


class RandomSearch:
    """Random cells of the grid; the partition stays at its default with a parameter server."""

    def __init__(self, state: Any, generator: np.random.Generator) -> None:
        """Reads the grid from an environment's public state."""
        self._state = state
        self._generator = generator

    def propose(self) -> tuple[float, float]:
        """Returns a random cell's partition and credit."""
        credit = float(self._generator.choice(self._state.credit_grid_bytes))
        if self._state.architecture == "ps":
            return default_bytes(self._state)[0], credit
        return float(self._generator.choice(self._state.partition_grid_bytes)), credit

    def tell(self, time_s: float) -> None:
        """Ignores the outcome."""


class ByteSchedulerSearch:
    """ByteScheduler's search: ten random points, then expected improvement on a Gaussian process.

    The library (bayesian-optimization, with its default process), the ranges, xi and the target
    (minus the mean iteration time) are the release's. Two things differ, on purpose. In the
    release the tuned partition is stored in a field that nothing reads, so tuning it has no
    effect; here it has the intended one. And points are rounded to the environment's grid. As in
    the release, the partition is tuned for all-reduce only.
    """

    def __init__(self, state: Any, generator: np.random.Generator) -> None:
        """Sets up the library for the architecture and grid of an environment's public state."""
        from bayes_opt import BayesianOptimization
        from bayes_opt.acquisition import ExpectedImprovement

        self._state = state
        self._generator = generator
        self._bounds = {
            "credit": _within(CREDIT_MILLIONS[state.architecture], state.credit_grid_bytes)
        }
        if state.architecture == "allreduce":
            self._bounds["partition"] = _within(PARTITION_MILLIONS, state.partition_grid_bytes)
        self._optimizer: Any = BayesianOptimization(
            f=None,
            pbounds=self._bounds,
            acquisition_function=ExpectedImprovement(xi=EXPLORATION),
            random_state=int(generator.integers(2**31)),
            verbose=0,
            allow_duplicate_points=True,
        )
        self._proposed: dict[str, float] = {}
        self._points = 0

    def propose(self) -> tuple[float, float]:
        """Returns a random point, or after ten of them the library's suggestion."""
        if self._points < RANDOM_POINTS:
            self._proposed = {
                name: float(self._generator.uniform(low, high))
                for name, (low, high) in self._bounds.items()
            }
        else:
            with warnings.catch_warnings():
                # The process's own hyper-parameters may sit at their bounds after few points.
                warnings.simplefilter("ignore")
                self._proposed = dict(self._optimizer.suggest())
        self._points += 1
        credit = float(self._proposed["credit"]) * MEGABYTES_PER_MILLION * 1e6
        if "partition" not in self._proposed:
            return default_bytes(self._state)[0], credit
        return float(self._proposed["partition"]) * MEGABYTES_PER_MILLION * 1e6, credit

    def tell(self, time_s: float) -> None:
        """Registers minus the time as the target of the point proposed last."""
        self._optimizer.register(params=self._proposed, target=-time_s)


PROPOSERS: dict[str, type[RandomSearch] | type[ByteSchedulerSearch]] = {
    "random-search": RandomSearch,
    "bytescheduler-bo": ByteSchedulerSearch,
}
"""Search by name."""


@dataclass
class Tuning:
    """One run of the schedule, fed step by step with an environment's public state.

    Attributes:
        proposer: Which point next.
        trials: Trials after the default's.
        iterations_per_trial: Training iterations of one trial.
        best_action: Best cell so far; the default before any trial has ended.
        default_time_s: What the default's trial measured, s; for reports only.
        best_time_s: What the best trial measured, s.
        trial: Trials that have ended; the default's is the first.
        spent_iterations: Training iterations that trials have taken.
    """

    proposer: Proposer
    trials: int = RANDOM_POINTS + SUGGESTED_POINTS
    iterations_per_trial: int = ITERATIONS_PER_TRIAL
    best_action: int = -1
    trial: int = field(default=0, init=False)
    spent_iterations: int = field(default=0, init=False)
    default_time_s: float = field(default=math.nan, init=False)
    best_time_s: float = field(default=math.inf, init=False)
    _action: int = field(default=-1, init=False)
    _times_s: list[float] = field(default_factory=lambda: [], init=False)

    @property
    def finished(self) -> bool:
        """Whether the search is over and the best point stays for good."""
        return self.trial > self.trials

    def act(self, state: Any) -> int:
        """Takes what the last step measured and returns the cell for the next.

        Args:
            state: Public state of the environment. On the first call no step has been taken.

        Raises:
            InvalidInput: The environment's actions are not cells of the grid.
        """
        if self._action < 0:
            if state.action_mode != "grid":
                raise InvalidInput("tuning by trials needs action_mode='grid'")
            self._action = self.best_action = int(state.default_action)
            return self._action
        if self.finished:
            return self.best_action
        self._times_s.append(float(state.last_iteration_time_s))
        self.spent_iterations += int(state.iterations_per_step)
        steps = math.ceil(self.iterations_per_trial / state.iterations_per_step)
        if len(self._times_s) >= steps:
            self._end_trial(state)
        return self._action

    def _end_trial(self, state: Any) -> None:
        ineffective = math.ceil(ITERATIONS_UNTIL_EFFECT / state.iterations_per_step)
        # A trial of few long steps keeps at least its last one.
        counted = self._times_s[min(ineffective, len(self._times_s) - 1) :]
        time_s = float(np.mean(counted))
        if self.trial == 0:
            self.default_time_s = time_s
        else:
            self.proposer.tell(time_s)
            if time_s < self.best_time_s:
                self.best_time_s, self.best_action = time_s, self._action
        self.trial += 1
        self._times_s.clear()
        if self.finished:
            self._action = self.best_action
        else:
            self._action = cell(state, *self.proposer.propose())


def cell(state: Any, partition_bytes: float, credit_bytes: float) -> int:
    """Returns the cell of the grid nearest (in ratio) to a partition and a credit."""
    partition = _nearest(state.partition_grid_bytes, partition_bytes)
    return partition * len(state.credit_grid_bytes) + _nearest(
        state.credit_grid_bytes, credit_bytes
    )


def default_bytes(state: Any) -> tuple[float, float]:
    """Returns partition and credit of the default's cell."""
    partition, credit = divmod(int(state.default_action), len(state.credit_grid_bytes))
    return float(state.partition_grid_bytes[partition]), float(state.credit_grid_bytes[credit])


def _nearest(grid: NDArray[np.float64], size: float) -> int:
    return int(np.abs(np.log(np.asarray(grid) / size)).argmin())


def _within(millions: tuple[float, float], grid_bytes: NDArray[np.float64]) -> tuple[float, float]:
    """The release's range as far as the grid goes; the whole grid where they do not meet."""
    grid = np.asarray(grid_bytes) / (MEGABYTES_PER_MILLION * 1e6)
    low, high = max(millions[0], grid.min()), min(millions[1], grid.max())
    if low >= high:
        low, high = grid.min(), grid.max() * (1 + 1e-9)
    return float(low), float(high)
