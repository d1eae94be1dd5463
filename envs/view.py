"""The concrete view that our environments hand to methods (see `dtgym.baselines.method.View`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class EnvView:
    """Observation, mask and typed public state of one environment at one moment.

    Attributes:
        observation: As returned by `reset` or `step`.
        action_mask: Legal actions, bool, shape (actions,).
        state: Typed public state in raw SI units, without oracle fields.
        instance: The full problem instance including what the future holds; None unless the
            caller asked for an oracle view.
    """

    observation: Any
    action_mask: NDArray[np.bool_]
    state: Any
    instance: Any = None
