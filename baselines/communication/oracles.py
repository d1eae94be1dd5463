"""Oracles: they know the true state of every step, the future included. Never deployable."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.baselines.method import BaseMethod, View
from dtgym.simulator.errors import InvalidInput


@dataclass
class Oracle(BaseMethod):
    """Emits a plan made from the true iteration time of every cell in every step.

    ``best-static`` keeps the one cell with the largest return, chosen in hindsight, as a tuner
    could only do with luck. ``oracle-dynamic`` follows the sequence of cells with the largest
    return, found by an exact dynamic programme that pays for every change of the partition: no
    method of this environment can earn more.

    Attributes:
        plan: Cell for every step of the episode.
    """

    oracle: bool = True
    plan: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64), init=False)

    def reset(self, view: View) -> None:
        """Plans the episode.

        Raises:
            InvalidInput: The environment's actions are not cells of the grid.
        """
        super().reset(view)
        if view.state.action_mode != "grid":
            raise InvalidInput(f"{self.name} needs action_mode='grid'")
        instance: Any = view.instance  # type: ignore[attr-defined]
        if self.name == "best-static":
            self.plan = instance.best_static_plan().cells
        else:
            self.plan = instance.best_plan().cells
        cells = len(view.state.partition_grid_bytes) * len(view.state.credit_grid_bytes)
        self.evaluations = len(self.plan) * cells

    def act(self, view: View) -> int:
        """Returns the plan's cell for this step."""
        return int(self.plan[view.state.step])


def make(name: str) -> Oracle:
    """Makes ``best-static`` or ``oracle-dynamic``.

    Examples:
        >>> make("best-static").oracle
        True
    """
    return Oracle(name=name)
