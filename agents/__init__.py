"""Floor 3: reinforcement-learning agents as methods.

`methods` names every agent; torch and Stable-Baselines3 are imported only when one is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dtgym.baselines.method import Method

ALGORITHMS = ("ppo", "maskable_ppo", "dqn", "a2c")
"""Names of the Stable-Baselines3 and sb3-contrib algorithms that take part."""

POLICY = "policy.zip"
"""File of a trained agent in its run folder and in every checkpoint."""


def methods(env_id: str) -> Mapping[str, Callable[..., Method]]:
    """Factories of every agent for an environment; see `dtgym.agents.sb3_method.SB3Method`."""
    return {name: partial(_make, name, env_id) for name in ALGORITHMS}


def _make(algorithm: str, env_id: str, **options: Any) -> Method:
    from dtgym.agents.sb3_method import SB3Method

    return SB3Method(algorithm, env_id, **options)
