"""Checks that an environment keeps its promises: for ours, and for your own variants.

`check_env` plays an environment and raises `CheckFailed` with the property that does not hold.
Give it a registered id, or a function without arguments that makes the scalar environment.

Example:
    >>> import dtgym.envs
    >>> check_env("dtgym/CommunicationTuning-Toy-v0", skip=("sb3", "spawn"))
    ['gymnasium', 'finite', 'masks', 'batch', 'seeds', 'pickle', 'spec']
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from dtgym.envs import seeding
from dtgym.simulator.errors import InvalidInput


class CheckFailed(AssertionError):
    """A promise that the environment does not keep; the message begins with the check's name."""


@dataclass(frozen=True)
class Subject:
    """The environment under check.

    Attributes:
        env_id: A registered id, or None where a factory is given.
        factory: Makes the scalar environment, or None where an id is given.
        vector_factory: Makes the native vector environment of a given size, where a factory is
            given and there is one.
        kwargs: Arguments of the environment, where an id is given.
        num_envs: Size of the batch that is compared with scalar environments.
        steps: Number of steps that are played, over as many episodes as that takes.
        seed: Seed of every play.
    """

    env_id: str | None
    factory: Callable[[], Any] | None
    vector_factory: Callable[[int], Any] | None
    kwargs: dict[str, Any] = field(default_factory=lambda: {})
    num_envs: int = 3
    steps: int = 64
    seed: int = 0

    def make(self) -> gym.Env[Any, Any]:
        """The scalar environment, without wrappers."""
        if self.factory is not None:
            return self.factory().unwrapped
        assert self.env_id is not None
        return gym.make(self.env_id, **self.kwargs).unwrapped

    def make_vec(self, num_envs: int) -> VectorEnv[Any, Any, Any] | None:
        """The native vector environment, or None where there is none."""
        if self.factory is not None:
            return None if self.vector_factory is None else self.vector_factory(num_envs)
        assert self.env_id is not None
        module, _, registered = self.env_id.rpartition(":")
        if module:
            importlib.import_module(module)
        if gym.spec(registered).vector_entry_point is None:
            return None
        return gym.make_vec(
            self.env_id, num_envs, vectorization_mode="vector_entry_point", **self.kwargs
        )


def check_env(
    env: str | Callable[[], Any],
    *,
    vector_factory: Callable[[int], Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    num_envs: int = 3,
    steps: int = 64,
    seed: int = 0,
    skip: tuple[str, ...] = (),
) -> list[str]:
    """Checks an environment; see `CHECKS` for what is checked.

    Args:
        env: A registered id (``module:Namespace/Name-vN`` imports the module first), or a function
            that makes the scalar environment.
        vector_factory: With a function as `env`: makes the native vector environment of a size.
        kwargs: With an id as `env`: arguments of the environment.
        num_envs: Size of the batch that is compared with scalar environments.
        steps: Number of steps that are played in each check.
        seed: Seed of every play.
        skip: Names of checks to leave out.

    Returns:
        Names of the checks that were made, all of which hold.

    Raises:
        CheckFailed: The first promise that is not kept.
        InvalidInput: An unknown name in `skip`.
    """
    unknown = set(skip) - set(CHECKS)
    if unknown:
        raise InvalidInput(f"skip must name checks among {', '.join(CHECKS)}; got {unknown}")
    subject = Subject(
        env_id=env if isinstance(env, str) else None,
        factory=None if isinstance(env, str) else env,
        vector_factory=vector_factory,
        kwargs=dict(kwargs or {}),
        num_envs=num_envs,
        steps=steps,
        seed=seed,
    )
    made = [name for name in CHECKS if name not in skip]
    for name in made:
        CHECKS[name](subject)
    return made


def check_gymnasium(subject: Subject) -> None:
    """Gymnasium's own ``check_env`` passes without a warning."""
    from gymnasium.utils.env_checker import check_env as gymnasium_check

    env = subject.make()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            gymnasium_check(env, skip_render_check=env.spec is None, skip_close_check=True)
        except Exception as error:
            raise CheckFailed(f"gymnasium: {error}") from error
    for warning in caught:
        text = str(warning.message)
        # Without a spec Gymnasium cannot make the environment anew, and says so: nothing is wrong.
        if "having a spec" not in text:
            raise CheckFailed(f"gymnasium: warns: {' '.join(text.split())}")


def check_sb3(subject: Subject) -> None:
    """Stable-Baselines3's ``check_env`` passes."""
    from stable_baselines3.common.env_checker import check_env as sb3_check

    try:
        sb3_check(subject.make(), warn=False, skip_render_check=True)
    except Exception as error:
        raise CheckFailed(f"sb3: {error}") from error


def check_finite(subject: Subject) -> None:
    """Observations lie in their space; observations, rewards and figures are finite."""
    env = subject.make()
    for moment in _play(env, subject):
        if moment.observation not in env.observation_space:
            raise CheckFailed(f"finite: not in the observation space: {moment.observation!r}")
        for name, array in _arrays(moment.observation, "observation"):
            _require_finite(name, array)
        for name, array in _arrays(moment.info, "info"):
            _require_finite(name, array)
        if moment.reward is not None:
            _require_finite("reward", moment.reward)
            if "vector_reward" not in moment.info:
                raise CheckFailed("finite: info lacks vector_reward")


def check_masks(subject: Subject) -> None:
    """Masks are honest.

    ``action_masks()``, ``info["action_mask"]`` and a Dict observation's ``action_mask`` agree and
    allow at least one action. In several states each action is tried: one that is allowed is
    accepted and not counted, one that is forbidden is an error or counted once in
    ``info["invalid_actions"]``.
    """
    env = subject.make()
    if not hasattr(env, "action_masks"):
        raise CheckFailed("masks: the environment has no method action_masks")
    for moment in _play(env, subject):
        _require_honest_form(env, moment)
    for prefix in (0, 1, 2, 5):
        _try_every_action(subject, prefix)


def _require_honest_form(env: gym.Env[Any, Any], moment: Moment) -> None:
    mask = env.action_masks()  # type: ignore[attr-defined]
    if mask.dtype != np.bool_ or mask.shape != (env.action_space.n,):  # type: ignore[attr-defined]
        raise CheckFailed(f"masks: the mask is {mask.dtype} of shape {mask.shape}")
    if not mask.any() and not moment.ended:
        raise CheckFailed("masks: no action is legal")
    if not np.array_equal(moment.info.get("action_mask", ()), mask):
        raise CheckFailed("masks: info['action_mask'] differs from action_masks()")
    observation = moment.observation
    if isinstance(observation, dict) and not np.array_equal(
        observation.get("action_mask", ()), mask
    ):
        raise CheckFailed("masks: the observation's action_mask differs from action_masks()")


def _try_every_action(subject: Subject, prefix: int) -> None:
    """Replays the same `prefix` steps and then tries each action of the space."""
    env = subject.make()
    random = np.random.default_rng(subject.seed)
    actions = range(int(env.action_space.n))  # type: ignore[attr-defined]
    if len(actions) > 64:
        actions = sorted(random.choice(len(actions), 64, replace=False).tolist())
    for action in actions:
        info: dict[str, Any] = _state_after(env, subject, prefix)
        legal = bool(env.action_masks()[action])  # type: ignore[attr-defined]
        before = info.get("invalid_actions", 0)
        name = f"action {action} after {prefix} steps"
        try:
            info = env.step(action)[4]
        except Exception as error:
            if legal:
                raise CheckFailed(f"masks: {name} is allowed but raises {error!r}") from error
            continue
        counted = info.get("invalid_actions", 0) - before
        if legal and counted != 0:
            raise CheckFailed(f"masks: {name} is allowed but counted as invalid")
        if not legal and counted != 1:
            raise CheckFailed(f"masks: {name} is forbidden but neither refused nor counted")


def _state_after(env: gym.Env[Any, Any], subject: Subject, steps: int) -> dict[str, Any]:
    """Plays `steps` steps from the seed, the same each time; starts anew where an episode ends."""
    info = env.reset(seed=subject.seed)[1]
    choose = _legal_actions(subject.seed)
    for _ in range(steps):
        _, _, terminated, truncated, info = env.step(choose(env))
        if terminated or truncated:
            info = env.reset()[1]
    return info


def check_batch(subject: Subject) -> None:
    """Environment i of a batch is the scalar environment with its child seed, byte for byte.

    Also: the batch declares same-step automatic reset and returns dense last observations.
    """
    vector = subject.make_vec(subject.num_envs)
    if vector is None:
        return
    if vector.metadata.get("autoreset_mode") is not AutoresetMode.SAME_STEP:
        raise CheckFailed("batch: metadata['autoreset_mode'] is not AutoresetMode.SAME_STEP")
    scalars = [subject.make() for _ in range(subject.num_envs)]
    choose = _legal_actions(subject.seed)
    observations, infos = vector.reset(seed=subject.seed)
    for i, seed in enumerate(seeding.child_seeds(subject.seed, subject.num_envs)):
        observation, info = scalars[i].reset(seed=seed)
        _require_same(_row(observations, i), observation, f"observation {i} at the start")
        _require_same_infos(infos, info, i, "at the start")
    for step in range(subject.steps):
        actions = np.array([choose(scalar) for scalar in scalars])
        observations, reward, terminated, truncated, infos = vector.step(actions)
        for i, scalar in enumerate(scalars):
            where = f"of environment {i} at step {step}"
            observation, r, end, cut, info = scalar.step(int(actions[i]))
            _require_same(np.float64(reward[i]), np.float64(r), f"reward {where}")
            _require_same(bool(terminated[i]), end, f"terminated {where}")
            _require_same(bool(truncated[i]), cut, f"truncated {where}")
            if end or cut:
                if "final_obs" not in infos or not infos["_final_obs"][i]:
                    raise CheckFailed(f"batch: no final_obs {where}")
                _require_same(_row(infos["final_obs"], i), observation, f"final_obs {where}")
                _require_same_infos(infos["final_info"], info, i, where)
                observation, info = scalar.reset()
            _require_same(_row(observations, i), observation, f"observation {where}")
            _require_same_infos(infos, info, i, where)


def check_seeds(subject: Subject) -> None:
    """The same seed and actions give the same bytes, in this and in a second environment."""
    first = subject.make()
    digests = {digest(subject, first), digest(subject, first), digest(subject)}
    if len(digests) != 1:
        raise CheckFailed("seeds: the same seed and actions gave different results")


def check_pickle(subject: Subject) -> None:
    """A pickled environment goes on in the middle of an episode as the original does."""
    env = subject.make()
    _state_after(env, subject, 1)
    try:
        twin = pickle.loads(pickle.dumps(env))
    except Exception as error:
        raise CheckFailed(f"pickle: the environment cannot be pickled: {error!r}") from error
    choose = _legal_actions(subject.seed)
    for step in range(min(subject.steps, 16)):
        action = choose(env)
        one, other = env.step(action), twin.step(action)
        _require_same(other, one, f"step {step} of the copy", check="pickle")
        if one[2] or one[3]:
            _require_same(twin.reset(), env.reset(), "reset of the copy", check="pickle")


def check_spec(subject: Subject) -> None:
    """The spec can be written as JSON and read back: its arguments are plain data."""
    if subject.env_id is None:
        return
    try:
        spec = gym.make(subject.env_id, **subject.kwargs).spec
        assert spec is not None
        again = type(spec).from_json(spec.to_json())
    except Exception as error:
        raise CheckFailed(f"spec: cannot be written as JSON: {error!r}") from error
    if json.dumps(again.kwargs, sort_keys=True) != json.dumps(spec.kwargs, sort_keys=True):
        raise CheckFailed("spec: JSON changes its arguments")


def check_spawn(subject: Subject) -> None:
    """A fresh Python process makes the environment and lives the same episode.

    An id of dtgym is asked for as ``dtgym.envs:id``; give your own ids as ``module:id``. A factory
    must be importable (a function of a module).
    """
    env_id = subject.env_id
    if env_id is not None and ":" not in env_id and env_id.startswith("dtgym/"):
        env_id = f"dtgym.envs:{env_id}"
    try:
        there = Subject(
            env_id, subject.factory, None, subject.kwargs, 1, subject.steps, subject.seed
        )
        order = pickle.dumps(sys.path) + pickle.dumps((there,))
    except Exception as error:
        raise CheckFailed(f"spawn: the factory cannot be pickled: {error!r}") from error
    run = subprocess.run(
        [sys.executable, "-c", _CHILD], input=order, capture_output=True, check=False
    )
    if run.returncode != 0:
        last = run.stderr.decode().strip().splitlines()[-1:]
        raise CheckFailed(f"spawn: a fresh process cannot play it: {' '.join(last)}")
    if run.stdout.decode().split()[-1] != digest(subject):
        raise CheckFailed("spawn: a fresh process lives another episode")


# Two pickles, one after the other: the path must be in force before the subject is looked up.
_CHILD = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from dtgym.envs import checks
print(checks.digest(*pickle.load(sys.stdin.buffer)))
"""

CHECKS: dict[str, Callable[[Subject], None]] = {
    "gymnasium": check_gymnasium,
    "sb3": check_sb3,
    "finite": check_finite,
    "masks": check_masks,
    "batch": check_batch,
    "seeds": check_seeds,
    "pickle": check_pickle,
    "spec": check_spec,
    "spawn": check_spawn,
}
"""Every check by name, in the order in which they are made."""


def _legal_actions(seed: int) -> Callable[[gym.Env[Any, Any]], int]:
    """A policy that draws among the legal actions."""
    random = np.random.default_rng(seed)

    def choose(env: gym.Env[Any, Any]) -> int:
        mask = env.action_masks()  # type: ignore[attr-defined]
        return int(random.choice(np.flatnonzero(mask))) if mask.any() else 0

    return choose


@dataclass(frozen=True, slots=True)
class Moment:
    """What an environment returned by one `reset` or `step` of a play."""

    observation: Any
    info: dict[str, Any]
    reward: float | None = None
    ended: bool = False


def _play(env: gym.Env[Any, Any], subject: Subject) -> Iterator[Moment]:
    """Plays random legal actions for the subject's number of steps."""
    choose = _legal_actions(subject.seed)
    yield Moment(*env.reset(seed=subject.seed))
    for _ in range(subject.steps):
        observation, reward, terminated, truncated, info = env.step(choose(env))
        yield Moment(observation, info, float(reward), terminated or truncated)
        if terminated or truncated:
            yield Moment(*env.reset())


def digest(subject: Subject, env: gym.Env[Any, Any] | None = None) -> str:
    """A hash over every byte of a play in `env`, or in an environment made for it."""
    env = subject.make() if env is None else env
    state = hashlib.sha256()
    for moment in _play(env, subject):
        for name, array in _arrays({"observation": moment.observation, "info": moment.info}, ""):
            state.update(name.encode())
            state.update(np.asarray(array).tobytes())
        state.update(repr((moment.reward, moment.ended)).encode())
    return state.hexdigest()


def _arrays(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Numbers and arrays within nested dicts, with their names, in a fixed order."""
    if isinstance(value, dict):
        for key in sorted(value):
            yield from _arrays(value[key], f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _require_finite(name: str, value: Any) -> None:
    array = np.asarray(value)
    if np.issubdtype(array.dtype, np.number) and not np.isfinite(array).all():
        raise CheckFailed(f"finite: {name} is not finite: {value!r}")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(_same(one[key], other[key]) for key in one)
        )
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    a, b = np.asarray(one), np.asarray(other)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _require_same(one: Any, other: Any, what: str, check: str = "batch") -> None:
    if not _same(one, other):
        raise CheckFailed(f"{check}: {what} differs: {one!r} and {other!r}")


def _require_same_infos(infos: dict[str, Any], info: dict[str, Any], i: int, where: str) -> None:
    """Each figure of the scalar environment stands in the vector infos, and no more than these."""
    keys = {key for key in infos if f"_{key}" in infos and infos[f"_{key}"][i]}
    keys -= {"final_obs", "final_info"}
    if keys != set(info):
        raise CheckFailed(f"batch: figures {where} differ: {keys ^ set(info)}")
    for key in info:
        there = infos[key][i]
        there = there.item() if isinstance(there, np.generic) else there
        _require_same(there, info[key], f"info[{key!r}] {where}")


def _row(observations: Any, index: int) -> Any:
    if isinstance(observations, dict):
        return {key: value[index] for key, value in observations.items()}
    return observations[index]
