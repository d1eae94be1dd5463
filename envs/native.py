"""Gymnasium's two interfaces over one `Dynamics`: a scalar environment and a vector environment.

Both classes only translate calls; whatever happens in an episode is written in the family's
`dynamics.py`. The scalar environment is a batch of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from dtgym.envs import seeding
from dtgym.envs.dynamics import Dynamics, Observations
from dtgym.envs.view import EnvView
from dtgym.simulator.errors import InvalidInput

RENDER_MODES = ("rgb_array", "ansi")


class _Episodes:
    """Keys of the episodes and counts of forbidden actions of a batch."""

    def __init__(self, dynamics: Dynamics) -> None:
        self.dynamics = dynamics
        self.streams: NDArray[np.uint64] | None = None
        self.episode = np.zeros(dynamics.num_envs, dtype=np.int64)
        self.invalid_actions = np.zeros(dynamics.num_envs, dtype=np.int64)
        self.masks = np.zeros((dynamics.num_envs, int(dynamics.action_space.n)), dtype=np.bool_)

    def restart(self, seeds: Sequence[int]) -> None:
        """Begins episode 0 of new streams in every environment."""
        self.streams = seeding.stream_keys(seeds)
        self.episode[:] = 0
        self._begin(np.arange(self.dynamics.num_envs))

    def next(self, which: NDArray[np.int64]) -> None:
        """Begins the next episode of the environments `which`."""
        self.episode[which] += 1
        self._begin(which)

    def _begin(self, which: NDArray[np.int64]) -> None:
        assert self.streams is not None
        self.invalid_actions[which] = 0
        self.dynamics.begin(which, seeding.episode_keys(self.streams[which], self.episode[which]))
        self.masks = self.dynamics.action_masks()

    def checked(self, actions: ArrayLike) -> NDArray[np.int64]:
        """Actions as int64, shape (environments,), all in range.

        Raises:
            InvalidInput: Another shape, something that is not an integer, or out of range.
        """
        array = np.asarray(actions)
        expected = (self.dynamics.num_envs,)
        if array.shape != expected:
            raise InvalidInput(f"actions must have shape {expected}, got {array.shape}")
        if not np.issubdtype(array.dtype, np.integer):
            raise InvalidInput(f"actions must be integers, got {array.dtype}")
        outside = (array < 0) | (array >= self.masks.shape[1])
        if outside.any():
            raise InvalidInput(
                f"action must be between 0 and {self.masks.shape[1] - 1}, got {array[outside][0]}"
            )
        return array.astype(np.int64)

    def advance(self, actions: NDArray[np.int64]) -> Any:
        """One step of every environment; counts forbidden actions."""
        if self.streams is None:
            raise gym.error.ResetNeeded("call reset before step")
        legal = self.masks[np.arange(self.dynamics.num_envs), actions]
        self.invalid_actions += ~legal
        transition = self.dynamics.advance(actions, legal)
        self.masks = self.dynamics.action_masks()
        return transition

    def infos(self) -> dict[str, NDArray[Any]]:
        """Figures of the present state, with the mask and the count of forbidden actions."""
        return {
            **self.dynamics.infos(),
            "action_mask": self.masks.copy(),
            "invalid_actions": self.invalid_actions.copy(),
        }

    def view(self, index: int, oracle: bool) -> EnvView:
        """What a method sees of one environment."""
        return EnvView(
            observation=_row(self.dynamics.observe(np.array([index])), 0),
            action_mask=self.masks[index].copy(),
            state=self.dynamics.state(index),
            instance=self.dynamics.instance(index) if oracle else None,
        )


class NativeEnv(gym.Env[Any, Any]):
    """A scalar environment: a batch of one of the family's dynamics.

    `reset(seed=s)` begins episode 0 of the stream of `s`; a reset without a seed goes on with the
    next episode of the stream (see `dtgym.envs.seeding`).
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 4}  # noqa: RUF012

    def __init__(self, dynamics: Dynamics, render_mode: str | None = None) -> None:
        """Wraps dynamics of one environment.

        Raises:
            InvalidInput: A render mode that does not exist.
        """
        if dynamics.num_envs != 1:
            raise InvalidInput(f"a scalar environment is a batch of 1, got {dynamics.num_envs}")
        self.render_mode = _checked_render_mode(render_mode)
        self.dynamics = dynamics
        self.observation_space = dynamics.observation_space
        self.action_space = dynamics.action_space
        self._episodes = _Episodes(dynamics)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins an episode; there are no options."""
        super().reset(seed=seed)
        if seed is not None or self._episodes.streams is None:
            self._episodes.restart([int(self.np_random_seed or 0)])
        else:
            self._episodes.next(np.array([0]))
        return _row(self.dynamics.observe(np.array([0])), 0), _row_infos(self._episodes.infos())

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes one step.

        Raises:
            InvalidInput: An action outside of the action space. An action inside it that the mask
                forbids is a no-op, counted in ``info["invalid_actions"]``.
        """
        if np.ndim(action) != 0:
            raise InvalidInput(f"action must be one integer, got {action!r}")
        transition = self._episodes.advance(self._episodes.checked([action]))
        return (
            _row(self.dynamics.observe(np.array([0])), 0),
            float(transition.reward[0]),
            bool(transition.terminated[0]),
            bool(transition.truncated[0]),
            _row_infos({**transition.infos, **self._episodes.infos()}),
        )

    def action_masks(self) -> NDArray[np.bool_]:
        """Legal actions, shape (actions,); the name that sb3-contrib looks for."""
        return self._episodes.masks[0].copy()

    def view(self, *, oracle: bool = False) -> EnvView:
        """What a method sees: observation, mask, typed state and, for an oracle, the instance."""
        return self._episodes.view(0, oracle)

    def render(self) -> Any:
        """A picture or text of the present state, as `render_mode` says; None without a mode."""
        if self.render_mode is None:
            return None
        return self.dynamics.render(0, self.render_mode)


class NativeVectorEnv(VectorEnv[Any, NDArray[np.int64], NDArray[Any]]):
    """A vector environment that owns its batch.

    Automatic reset is ``AutoresetMode.SAME_STEP``: where an episode ends, `step` already returns
    the first observation of the next one, and

    * ``infos["final_obs"]`` holds the last observation. It is dense: an array of the batch's shape
      (or one per key of a Dict space), whose rows are meaningful where ``infos["_final_obs"]``.
    * ``infos["final_info"]`` holds the figures of the last step, likewise dense, with
      ``infos["_final_info"]``.

    Every other figure ``key`` comes with ``_key``, which says where it applies: figures of a step
    do not apply to an environment that has just been reset.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": list(RENDER_MODES),
        "render_fps": 4,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(self, dynamics: Dynamics, render_mode: str | None = None) -> None:
        """Wraps dynamics of any number of environments.

        Raises:
            InvalidInput: A render mode that does not exist.
        """
        self.render_mode = _checked_render_mode(render_mode)
        self.dynamics = dynamics
        self.num_envs = dynamics.num_envs
        self.single_observation_space = dynamics.observation_space
        self.single_action_space = dynamics.action_space
        self.observation_space = batch_space(dynamics.observation_space, self.num_envs)
        self.action_space = batch_space(dynamics.action_space, self.num_envs)
        self._episodes = _Episodes(dynamics)
        self._all = np.arange(self.num_envs)

    def reset(
        self,
        *,
        seed: int | Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begins an episode in every environment; there are no options.

        Args:
            seed: An int: environment i gets ``seeding.child_seeds(seed, num_envs)[i]``. A
                sequence: environment i gets ``seed[i]``. None: every environment goes on with the
                next episode of its stream, or starts from a random seed at the first reset.
            options: Ignored.

        Raises:
            InvalidInput: A sequence of another length, or a negative seed.
        """
        if seed is None and self._episodes.streams is not None:
            self._episodes.next(self._all)
        elif seed is None or isinstance(seed, int | np.integer):
            super().reset(seed=None if seed is None else int(seed))
            root = int(self.np_random_seed or 0)
            self._episodes.restart(seeding.child_seeds(root, self.num_envs))
        else:
            if len(seed) != self.num_envs:
                raise InvalidInput(f"seed must hold {self.num_envs} seeds, got {len(seed)}")
            self._episodes.restart([int(one) for one in seed])
        return self.dynamics.observe(self._all), _with_masks(self._episodes.infos(), None)

    def step(
        self, actions: ArrayLike
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Takes one step in every environment.

        Raises:
            InvalidInput: Actions of another shape or outside of the action space.
        """
        transition = self._episodes.advance(self._episodes.checked(actions))
        done = transition.terminated | transition.truncated
        observations = self.dynamics.observe(self._all)
        state_infos = self._episodes.infos()
        infos: dict[str, Any] = _with_masks(transition.infos, None)
        if done.any():
            which = np.flatnonzero(done)
            infos["final_obs"] = _rows_only(observations, which)
            infos["_final_obs"] = done.copy()
            infos["final_info"] = _with_masks({**transition.infos, **state_infos}, done)
            infos["_final_info"] = done.copy()
            for key, value in transition.infos.items():
                infos[key] = value.copy()
                infos[key][which] = np.zeros((), dtype=value.dtype)
                infos[f"_{key}"] = ~done
            self._episodes.next(which)
            _replace(observations, which, self.dynamics.observe(which))
            state_infos = self._episodes.infos()
        infos.update(_with_masks(state_infos, None))
        return observations, transition.reward, transition.terminated, transition.truncated, infos

    def action_masks(self) -> NDArray[np.bool_]:
        """Legal actions of every environment, shape (environments, actions)."""
        return self._episodes.masks.copy()

    def view(self, index: int, *, oracle: bool = False) -> EnvView:
        """What a method sees of environment `index`."""
        return self._episodes.view(index, oracle)

    def render(self) -> tuple[Any, ...] | None:
        """One picture or text per environment; None without a render mode."""
        if self.render_mode is None:
            return None
        return tuple(self.dynamics.render(i, self.render_mode) for i in range(self.num_envs))

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method for every environment, as ``SyncVectorEnv.call`` does.

        Args:
            name: ``action_masks``, ``render`` or ``view``; any other name is read as an attribute.
            *args: Arguments of the method.
            **kwargs: Keyword arguments of the method.
        """
        if name == "view":
            return tuple(self.view(i, *args, **kwargs) for i in range(self.num_envs))
        if name == "action_masks":
            return tuple(self.action_masks())
        if name == "render":
            return self.render() or (None,) * self.num_envs
        return self.get_attr(name)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """The value of an attribute in every environment; the batch shares all it has.

        Raises:
            AttributeError: There is no such attribute.
        """
        return (getattr(self, name),) * self.num_envs

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute that the batch shares.

        Args:
            name: An attribute that exists.
            values: One value, or a list or tuple of equal values, one per environment.

        Raises:
            AttributeError: There is no such attribute.
            InvalidInput: Different values: the environments of a batch share their attributes.
        """
        getattr(self, name)
        if isinstance(values, list | tuple):
            if len(values) != self.num_envs or any(value != values[0] for value in values):
                raise InvalidInput(f"{name} must be the same in all {self.num_envs} environments")
            values = values[0]
        setattr(self, name, values)


def _checked_render_mode(render_mode: str | None) -> str | None:
    if render_mode is not None and render_mode not in RENDER_MODES:
        raise InvalidInput(f"render_mode must be one of {', '.join(RENDER_MODES)} or None")
    return render_mode


def _with_masks(infos: dict[str, NDArray[Any]], where: NDArray[np.bool_] | None) -> dict[str, Any]:
    """Gymnasium's form of vector infos: each ``key`` with ``_key``; None applies everywhere."""
    result: dict[str, Any] = {}
    for key, value in infos.items():
        result[key] = value
        result[f"_{key}"] = np.ones(len(value), dtype=np.bool_) if where is None else where.copy()
    return result


def _row(observations: Observations, index: int) -> Any:
    if isinstance(observations, dict):
        return {key: _value(value[index]) for key, value in observations.items()}
    return _value(observations[index])


def _row_infos(infos: dict[str, NDArray[Any]]) -> dict[str, Any]:
    return {
        key: value[0].item() if value.ndim == 1 else value[0].copy() for key, value in infos.items()
    }


def _value(row: Any) -> Any:
    """A row of a batch as an observation of its own: an array, or a NumPy scalar for a Discrete."""
    return row.copy() if isinstance(row, np.ndarray) else row


def _rows_only(observations: Observations, which: NDArray[np.int64]) -> Observations:
    """Arrays of the same shape with the rows `which`, zero elsewhere.

    Few environments end in one step: zero pages cost nothing until they are touched, a copy of the
    whole batch would cost as much as the step itself.
    """
    if isinstance(observations, dict):
        return {key: _rows_only(value, which) for key, value in observations.items()}  # type: ignore[misc]
    result = np.zeros(observations.shape, dtype=observations.dtype)
    result[which] = observations[which]
    return result


def _replace(observations: Observations, which: NDArray[np.int64], rows: Observations) -> None:
    """Exchanges the rows `which` in place; observations are fresh arrays by contract."""
    if isinstance(observations, dict):
        assert isinstance(rows, dict)
        for key, value in observations.items():
            value[which] = rows[key]
    else:
        observations[which] = rows
