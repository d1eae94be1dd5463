"""The Method protocol: anything that solves instances.

A heuristic, a search, a learned tuner and an RL agent all look like this, so that they run on the
same instances, through the same simulator, and land in the same tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class View(Protocol):
    """What a method sees of a running episode: everything public, nothing from the oracle.

    Attributes:
        observation: The environment's observation, as an agent receives it.
        action_mask: Legal actions, bool, shape (actions,).
        state: Typed public state in raw units; its class is documented in the `types.py` of the
            environment's package. It never holds a field marked as oracle.
    """

    @property
    def observation(self) -> Any:
        """The observation."""
        ...

    @property
    def action_mask(self) -> NDArray[np.bool_]:
        """Legal actions."""
        ...

    @property
    def state(self) -> Any:
        """Typed public state."""
        ...


@dataclass
class Budget:
    """What `Method.prepare` may spend, what it has spent, and where it reports.

    This plain budget keeps no reports; the experiment harness hands in one that writes them to
    TensorBoard and ``progress.csv`` at the number of evaluations spent so far, so that a search and
    an agent share one x axis.

    Attributes:
        evaluations: Number of simulator evaluations (environment steps) allowed while preparing;
            None is no limit. A method that spends in whole rounds may finish its last round.
        spent_evaluations: Evaluations counted by the method itself; the harness adds the steps of
            evaluation episodes separately.
        folder: Where the method may keep checkpoints; None keeps nothing.
    """

    evaluations: int | None = None
    spent_evaluations: int = 0
    folder: Path | None = None

    def spend(self, evaluations: int) -> None:
        """Counts `evaluations` simulator evaluations."""
        self.spent_evaluations += evaluations

    def restore(self, evaluations: int) -> None:
        """Goes on from a checkpoint that had spent `evaluations`; called before anything else."""
        self.spent_evaluations = evaluations

    def record(self, metrics: Mapping[str, float]) -> None:
        """Reports figures as of now, such as ``{"search/best_objective": 0.3}``."""

    def validate(self, method: Method) -> float | None:
        """Mean return of `method` on held-out episodes of the training instances, if there are any.

        These episodes are evaluation, not preparation: they are not counted as spent.
        """
        return None


@runtime_checkable
class Method(Protocol):
    """Anything that solves instances.

    Attributes:
        name: The row label in tables and the folder name of runs: lower case, digits, hyphens.
        oracle: True where the method looks at fields that no deployed method could see. Its
            `reset` then receives the environment's full instance as `view.instance`, and tables
            mark its row.
    """

    name: str
    oracle: bool

    def prepare(self, suite: Any, *, seed: int, budget: Budget) -> None:
        """Trains, fits or tunes on the suite's *training* instances only; counted in `budget`."""
        ...

    def reset(self, view: View) -> None:
        """A new instance begins; offline planners solve it here and then emit their plan."""
        ...

    def act(self, view: View) -> int:
        """Returns one legal action for the current state."""
        ...


@dataclass
class BaseMethod:
    """Convenience base: a named method that needs no preparation.

    Attributes:
        name: See `Method`.
        oracle: See `Method`.
        evaluations: Simulator evaluations the method itself made since the last `reset` (a planner
            counts every plan it scored); reported beside its result.
    """

    name: str = ""
    oracle: bool = False
    evaluations: int = field(default=0, init=False)

    def prepare(self, suite: Any, *, seed: int, budget: Budget) -> None:
        """Does nothing: the method has nothing to train, fit or tune."""

    def reset(self, view: View) -> None:
        """Starts counting evaluations anew."""
        self.evaluations = 0
