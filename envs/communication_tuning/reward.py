"""What a step is worth: time saved against the release's default, minus what the change cost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

OBJECTIVES = ("speed", "reconfiguration", "footprint")
"""Axis of the vector reward; the scalar reward is the sum of the first two."""


def vector_reward(
    iteration_time_s: NDArray[np.float64],
    default_time_s: NDArray[np.float64],
    lost_s: NDArray[np.float64],
    iterations: int,
    in_flight_share: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Vector reward of a batch of steps.

    * speed: ``log(default time / time)`` of an iteration, both true (noise-free) times in the same
      state of the network;
    * reconfiguration: ``-log(1 + lost / (iterations x time))``, 0 unless the step lost time;
    * footprint: minus the share of all gradient bytes that may be in flight at once, which is what
      buffers on hosts and switches have to hold.

    Speed and reconfiguration add up to ``-log`` of the step's whole duration over the duration
    that the default configuration would have taken.

    Args:
        iteration_time_s: Mean true iteration time of each step, s, (steps,).
        default_time_s: The default configuration's in the same state, s, (steps,).
        lost_s: Time lost to a restart, s, (steps,).
        iterations: Iterations in a step.
        in_flight_share: Credit over all gradient bytes, at most 1, (steps,).

    Returns:
        float64, (steps, objectives) in the order of `OBJECTIVES`.

    Examples:
        >>> one = np.ones(1)
        >>> vector_reward(0.5 * one, one, 5 * one, 10, 0.25 * one).round(3).tolist()
        [[0.693, -0.693, -0.25]]
    """
    return np.stack(
        [
            np.log(default_time_s / iteration_time_s),
            -np.log1p(lost_s / (iterations * iteration_time_s)),
            -in_flight_share,
        ],
        axis=1,
    )


def scalar_reward(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of speed and reconfiguration, (steps,)."""
    return vector[:, 0] + vector[:, 1]
