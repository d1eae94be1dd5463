"""Several vector environments as one: how an agent trains on all instances of a suite at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from dtgym.envs import sb3
from dtgym.simulator.errors import InvalidInput


def training_env(
    suite: Any, num_envs: int, *, seed: int, reward_scale: float = 1.0
) -> ConcatenatedVecEnv:
    """The training instances of a suite as one batch, shared out evenly.

    Args:
        suite: See `dtgym.experiments.suites.Suite`.
        num_envs: Environments in all.
        seed: Selects a seed of every instance's preparation range, from which its environments
            get their child seeds.
        reward_scale: Factor on the rewards; logged returns are without it.

    Raises:
        InvalidInput: Fewer environments than instances, or instances of different spaces.
    """
    if num_envs < len(suite.train):
        raise InvalidInput(
            f"num_envs must be at least {len(suite.train)}, one for each training instance of "
            f"suite {suite.name}; got {num_envs}"
        )
    shares = np.array_split(np.arange(num_envs), len(suite.train))
    return ConcatenatedVecEnv(
        [
            sb3.make(
                suite.env_id,
                len(share),
                seed=instance.preparation_seeds[seed % len(instance.preparation_seeds)],
                **instance.env_kwargs,
            )
            for instance, share in zip(suite.train, shares, strict=True)
        ],
        reward_scale,
    )


class ConcatenatedVecEnv(VecEnv):
    """Stacks the batches of several VecEnvs with equal spaces, in order."""

    def __init__(self, parts: Sequence[VecEnv], reward_scale: float = 1.0) -> None:
        """Stacks `parts` and multiplies their rewards by `reward_scale`.

        Raises:
            InvalidInput: Their observation or action spaces differ.
        """
        first = parts[0]
        for part in parts:
            if (part.observation_space, part.action_space) != (
                first.observation_space,
                first.action_space,
            ):
                raise InvalidInput("training instances must have equal observation, action spaces")
        self.parts = list(parts)
        self.reward_scale = np.float32(reward_scale)
        self._ends = np.cumsum([part.num_envs for part in parts])
        super().__init__(int(self._ends[-1]), first.observation_space, first.action_space)

    def reset(self) -> Any:
        """Begins an episode in every environment."""
        observations = [part.reset() for part in self.parts]
        self.reset_infos = [info for part in self.parts for info in part.reset_infos]
        return _stacked(observations)

    def step_async(self, actions: NDArray[Any]) -> None:
        """Hands every part its share of the actions."""
        for part, share in zip(self.parts, np.split(actions, self._ends[:-1]), strict=True):
            part.step_async(share)

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Takes one step in every environment."""
        observations, rewards, dones, infos = zip(
            *(part.step_wait() for part in self.parts), strict=True
        )
        return (
            _stacked(observations),
            np.concatenate(rewards) * self.reward_scale,
            np.concatenate(dones),
            [info for part in infos for info in part],
        )

    def close(self) -> None:
        """Closes every part."""
        for part in self.parts:
            part.close()

    def has_attr(self, attr_name: str) -> bool:
        """Whether every part has the attribute or method."""
        return all(part.has_attr(attr_name) for part in self.parts)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Values of an attribute, one per environment asked for."""
        values = [value for part in self.parts for value in part.get_attr(attr_name)]
        return [values[i] for i in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Sets an attribute in all environments.

        Raises:
            InvalidInput: Only some environments are named; parts share their attributes.
        """
        if set(self._get_indices(indices)) != set(range(self.num_envs)):
            raise InvalidInput(f"{attr_name} is shared by the batch: set it in all environments")
        for part in self.parts:
            part.set_attr(attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Calls a method of every environment asked for."""
        answers = [
            answer
            for part in self.parts
            for answer in part.env_method(method_name, *method_args, **method_kwargs)
        ]
        return [answers[i] for i in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Whether the environments are wrapped, one by one."""
        answers = [answer for part in self.parts for answer in part.env_is_wrapped(wrapper_class)]
        return [answers[i] for i in self._get_indices(indices)]


def _stacked(observations: Sequence[Any]) -> Any:
    if isinstance(observations[0], dict):
        return {key: np.concatenate([o[key] for o in observations]) for key in observations[0]}
    return np.concatenate(list(observations))
