"""Ids and presets: every environment of dtgym, as plain data.

A family is a folder of this package whose ``__init__`` exposes ``SPECS``, a tuple of
`EnvironmentSpec`. Importing `dtgym.envs` registers them all with Gymnasium, once, without importing
the families' code: entry points are strings.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym

FAMILIES = ("cluster_scheduling", "communication_tuning", "model_partitioning")
"""Folders of this package that hold an environment family."""


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """One registered id.

    Attributes:
        id: ``dtgym/Name-vN``, or ``dtgym/Name-Preset-vN`` for a blessed preset of a family.
        entry_point: ``module:Class`` of the scalar environment.
        vector_entry_point: ``module:Class`` of the native vector environment.
        kwargs: Arguments of both classes: plain data, so that the spec can be written as JSON.
        description: What instance it is, in a few words.
    """

    id: str
    entry_point: str
    vector_entry_point: str
    kwargs: dict[str, Any] = field(default_factory=lambda: {})
    description: str = ""


def specs() -> tuple[EnvironmentSpec, ...]:
    """Every environment of dtgym, family by family.

    Examples:
        >>> "dtgym/CommunicationTuning-v0" in [spec.id for spec in specs()]
        True
    """
    modules = [importlib.import_module(f"dtgym.envs.{family}") for family in FAMILIES]
    return tuple(spec for module in modules for spec in module.SPECS)


def register_all() -> None:
    """Registers every id with Gymnasium; ids that are already there are left alone."""
    for spec in specs():
        if spec.id not in gym.registry:
            gym.register(
                id=spec.id,
                entry_point=spec.entry_point,
                vector_entry_point=spec.vector_entry_point,
                kwargs=dict(spec.kwargs),
            )
