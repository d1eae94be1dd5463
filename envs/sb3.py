"""Stable-Baselines3 on our vector environments: the only module here that imports it (and torch).

Stable-Baselines3 takes its own ``VecEnv``, not Gymnasium's ``VectorEnv``. `Sb3VecEnv` hands whole
batches through: no Python per environment and step, except where episodes end.

Example:
    >>> from dtgym.envs.sb3 import make
    >>> env = make("dtgym/CommunicationTuning-v0", num_envs=4, seed=0)
    >>> env.reset().shape[0]
    4
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from dtgym.envs import seeding
from dtgym.simulator.errors import InvalidInput


def make(env_id: str, num_envs: int, *, seed: int | None = None, **kwargs: Any) -> Sb3VecEnv:
    """Makes the native vector environment of an id and adapts it.

    Args:
        env_id: A registered id.
        num_envs: Number of environments in the batch.
        seed: Used at the first reset, as `Sb3VecEnv.seed` does; None is random.
        **kwargs: Arguments of the environment.
    """
    vector = gym.make_vec(
        env_id, num_envs=num_envs, vectorization_mode="vector_entry_point", **kwargs
    )
    env = Sb3VecEnv(vector)
    if seed is not None:
        env.seed(seed)
    return env


class Sb3VecEnv(VecEnv):
    """A Gymnasium vector environment with same-step automatic reset, as Stable-Baselines3 wants it.

    What differs from the vector environment:

    * Where an episode ended, ``infos[i]`` holds the figures of its last step (without their
      ``_key`` masks), ``terminal_observation``, ``TimeLimit.truncated`` (ended from outside, not by
      the problem) and ``episode``: return ``r``, length ``l`` and seconds since construction ``t``,
      as Stable-Baselines3's Monitor writes them. Elsewhere ``infos[i]`` is an empty dict; read
      figures of every step from the vector environment itself.
    * `seed` gives environment i the child seed `dtgym.envs.seeding.child_seeds`, not ``seed + i``,
      at the next reset.
    * Masks for MaskablePPO are answered from the batch.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        """Adapts `env`.

        Raises:
            InvalidInput: The environment's automatic reset is not ``AutoresetMode.SAME_STEP``.
        """
        mode = env.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.SAME_STEP:
            raise InvalidInput(
                f"Sb3VecEnv needs AutoresetMode.SAME_STEP, the environment has {mode}"
            )
        self.env = env
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)
        self._start_s = time.perf_counter()
        self._actions: NDArray[Any] = np.zeros(self.num_envs, dtype=np.int64)
        self._restart_statistics()

    def _restart_statistics(self) -> None:
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, dtype=np.int64)

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Sets the child seeds of `seed` for the next reset and returns them."""
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        self._seeds = list(seeding.child_seeds(int(seed), self.num_envs))
        return self._seeds

    def reset(self) -> Any:
        """Begins an episode in every environment; ``reset_infos`` holds the figures."""
        seeds = None if any(seed is None for seed in self._seeds) else list(self._seeds)
        observations, infos = self.env.reset(seed=seeds)  # type: ignore[arg-type]
        self.reset_infos = [info_of(infos, i) for i in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        self._restart_statistics()
        return observations

    def step_async(self, actions: NDArray[Any]) -> None:
        """Keeps the actions for `step_wait`."""
        self._actions = np.asarray(actions)

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Takes one step in every environment."""
        observations, reward, terminated, truncated, batch = self.env.step(self._actions)
        done = terminated | truncated
        self._returns += reward
        self._lengths += 1
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(done).tolist():
            infos[i] = info_of(batch["final_info"], i)
            infos[i]["terminal_observation"] = observation_of(batch["final_obs"], i)
            infos[i]["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
            infos[i]["episode"] = {
                "r": float(self._returns[i]),
                "l": int(self._lengths[i]),
                "t": round(time.perf_counter() - self._start_s, 6),
            }
        self._returns[done] = 0
        self._lengths[done] = 0
        return observations, reward.astype(np.float32), done, infos

    def close(self) -> None:
        """Closes the vector environment."""
        self.env.close()

    def has_attr(self, attr_name: str) -> bool:
        """Whether the vector environment has the attribute or method."""
        return hasattr(self.env.unwrapped, attr_name)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Values of an attribute, one per environment asked for.

        Raises:
            AttributeError: There is no such attribute.
        """
        values = self.env.unwrapped.get_attr(attr_name)  # type: ignore[attr-defined]
        return [values[i] for i in self._indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Sets an attribute in all environments; the batch shares its attributes.

        Raises:
            InvalidInput: Only some environments are named.
        """
        if set(self._indices(indices)) != set(range(self.num_envs)):
            raise InvalidInput(f"{attr_name} is shared by the batch: set it in all environments")
        self.env.unwrapped.set_attr(attr_name, value)  # type: ignore[attr-defined]

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Calls a method; ``action_masks`` is one read of the batch."""
        answers = self.env.unwrapped.call(method_name, *method_args, **method_kwargs)  # type: ignore[attr-defined]
        return [answers[i] for i in self._indices(indices)]

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """False everywhere: there are no environments to wrap one by one."""
        return [False for _ in self._indices(indices)]

    def get_images(self) -> Sequence[Any]:
        """A picture of every environment, where the render mode is ``rgb_array``."""
        return list(self.env.render() or [None] * self.num_envs)

    def _indices(self, indices: Any) -> Iterable[int]:
        return self._get_indices(indices)


def info_of(infos: dict[str, Any], index: int) -> dict[str, Any]:
    """The figures of one environment out of vector infos, without the masks."""
    result: dict[str, Any] = {}
    for key, value in infos.items():
        mask = infos.get(f"_{key}")
        if mask is not None and mask[index]:
            item = value[index]
            result[key] = item.item() if isinstance(item, np.generic) else np.array(item)
    return result


def observation_of(observations: Any, index: int) -> Any:
    """The observation of one environment out of a batch."""
    if isinstance(observations, dict):
        return {key: np.array(value[index]) for key, value in observations.items()}
    return np.array(observations[index])
