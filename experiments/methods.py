"""Finding a method by name: baselines of an environment's family, agents, and your own.

A name is looked up among the baselines of the environment's family
(``dtgym.baselines.<family>.METHODS``), then among the agents (`dtgym.agents.methods`). A name with
a colon, ``package.module:Factory``, is imported: that is how a method outside of this package takes
part without being registered anywhere.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym

import dtgym.envs
from dtgym import agents
from dtgym.baselines.method import Method
from dtgym.simulator.errors import InvalidInput

BASELINES = {
    "communication_tuning": "dtgym.baselines.communication",
    "model_partitioning": "dtgym.baselines.partitioning",
    "cluster_scheduling": "dtgym.baselines.scheduling",
}
"""Package of an environment's entry point -> package of the baselines for it."""

# A no-op that says why the import is needed: it registers the ids.
gym.register_envs(dtgym.envs)


def build(name: str, env_id: str, options: Mapping[str, Any] | None = None) -> Method:
    """Makes a fresh method.

    Args:
        name: Name of a baseline or an agent, or ``package.module:Factory``.
        env_id: Environment the method will act in.
        options: Keyword arguments of the method's factory.

    Raises:
        InvalidInput: Unknown name or environment, or options that the factory refuses.
    """
    factory = _imported(name) if ":" in name else _registered(name, env_id)
    try:
        return factory(**(options or {}))
    except TypeError as error:
        raise InvalidInput(f"method {name}: {error}") from error


def names(env_id: str) -> list[str]:
    """Names of every method for the environment, baselines first.

    Raises:
        InvalidInput: Unknown environment.
    """
    return [*_baselines(env_id), *agents.methods(env_id)]


def _registered(name: str, env_id: str) -> Callable[..., Method]:
    found = _baselines(env_id).get(name) or agents.methods(env_id).get(name)
    if found is None:
        raise InvalidInput(
            f"--method must be one of {', '.join(names(env_id))} or package.module:Factory; "
            f"got {name!r}"
        )
    return found


def _baselines(env_id: str) -> Mapping[str, Callable[..., Method]]:
    module, _, plain_id = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        entry_point = str(gym.spec(plain_id).entry_point)
    except (gym.error.Error, ImportError) as error:
        raise InvalidInput(f"environment {env_id}: {error}") from error
    for package, baselines in BASELINES.items():
        if package in entry_point.partition(":")[0].split("."):
            return getattr(importlib.import_module(baselines), "METHODS", {})
    return {}


def _imported(name: str) -> Callable[..., Method]:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"--method {name}: {error}") from error
