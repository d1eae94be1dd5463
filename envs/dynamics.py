"""What an environment family implements: the dynamics of a batch of environments.

A family writes one class derived from `Dynamics`: arrays in, arrays out, no Gymnasium calls.
`dtgym.envs.native` turns it into a scalar environment (a batch of one) and a vector environment
(the whole batch), which are therefore equal bit for bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Observations: TypeAlias = "NDArray[Any] | dict[str, NDArray[Any]]"
"""A batch of observations: one array for a Box, one per key for a Dict; batch axis first."""


@dataclass(frozen=True, slots=True)
class Transition:
    """What one step of a batch brought.

    Attributes:
        reward: float64, shape (environments,), of order one.
        terminated: bool, shape (environments,): the episode ended as the problem defines it,
            which includes a horizon that belongs to the problem.
        truncated: bool, shape (environments,): the episode was cut from outside.
        infos: Figures of this step, each of shape (environments, ...); always with
            ``vector_reward``, float64, shape (environments, objectives).
    """

    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: dict[str, NDArray[Any]] = field(default_factory=lambda: {})


class Dynamics(ABC):
    """The dynamics of a batch of environments of one family.

    Rules that make batch and scalar equal, and that `dtgym.envs.checks` holds a family to:

    * The future of environment i depends on its own episode key and actions only.
    * Every array handed out is fresh: a caller may keep or change it.
    * At least one action is legal in every state that is not final.
    * A forbidden action changes as little as the family can (documented there as its no-op); the
      caller counts it in ``info["invalid_actions"]``.

    Attributes:
        num_envs: Number of environments in the batch.
        observation_space: Of one environment. A Dict space has a key ``action_mask``.
        action_space: Of one environment.
    """

    num_envs: int
    observation_space: spaces.Space[Any]
    action_space: spaces.Discrete

    @abstractmethod
    def begin(self, which: NDArray[np.int64], episode_keys: NDArray[np.uint64]) -> None:
        """Starts new episodes.

        Args:
            which: Environments that start anew, shape (k,), ascending.
            episode_keys: The only source of randomness of each of these episodes, shape (k,); see
                `dtgym.envs.seeding`.
        """

    @abstractmethod
    def advance(self, actions: NDArray[np.int64], legal: NDArray[np.bool_]) -> Transition:
        """Takes one step in every environment.

        Args:
            actions: In range of the action space, shape (environments,).
            legal: Whether the mask allows each action, shape (environments,).
        """

    @abstractmethod
    def observe(self, which: NDArray[np.int64]) -> Observations:
        """Observations of the environments `which`, batch axis first, fresh arrays."""

    @abstractmethod
    def action_masks(self) -> NDArray[np.bool_]:
        """Legal actions, fresh, shape (environments, actions)."""

    @abstractmethod
    def state(self, index: int) -> Any:
        """Typed public state of one environment in raw SI units, without oracle fields."""

    @abstractmethod
    def instance(self, index: int) -> Any:
        """The full problem instance of one environment, including what the future holds."""

    @abstractmethod
    def render(self, index: int, mode: str) -> NDArray[np.uint8] | str:
        """A picture (``rgb_array``: uint8, (height, width, 3)) or text (``ansi``)."""

    def infos(self) -> dict[str, NDArray[Any]]:
        """Figures of the present state that hold after a reset as well as after a step.

        Returns:
            Fresh arrays of shape (environments, ...). ``action_mask`` and ``invalid_actions`` are
            added by the caller.
        """
        return {}
