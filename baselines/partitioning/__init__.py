"""Planners of model partitions: rules, re-implementations, searches, reconstructions.

`METHODS` names every planner; see docs/planners.md for what each one is and from where.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dtgym.baselines.method import Method


def _make(module: str, factory: str, fixed: Mapping[str, Any], /, **options: Any) -> Method:
    # Imported only when asked for: pymoo and the kernels cost seconds.
    found = getattr(importlib.import_module(f"dtgym.baselines.partitioning.{module}"), factory)
    return found(**{**fixed, **options})


def _method(module: str, factory: str, /, **fixed: Any) -> Callable[..., Method]:
    return partial(_make, module, factory, fixed)


METHODS: dict[str, Callable[..., Method]] = {
    "megatron-manual": _method("heuristics", "MegatronManual"),
    "proportional": _method("heuristics", "Proportional"),
    "holmes": _method("heuristics", "Holmes"),
    "dt-fm": _method("heuristics", "DtFm"),
    "metis": _method("metis_planner", "MetisPlanner", name="metis", mode="well-formed"),
    "metis-as-shipped": _method(
        "metis_planner", "MetisPlanner", name="metis-as-shipped", mode="as-shipped"
    ),
    "amp": _method("closed_forms", "Amp"),
    "sailor": _method("closed_forms", "Sailor"),
    "random": _method("metaheuristics", "RandomSearch"),
    "genetic": _method("metaheuristics", "Genetic"),
    "annealing": _method("metaheuristics", "Annealing"),
    "exhaustive": _method("exhaustive", "Exhaustive"),
    "hgtrainer": _method("hgtrainer", "HGTrainer"),
    "hgtrainer-flat": _method(
        "hgtrainer", "HGTrainer", name="hgtrainer-flat", hierarchical=False, cheap_seeds=False
    ),
    "hgtrainer-no-wire": _method(
        "hgtrainer", "HGTrainer", name="hgtrainer-no-wire", wire_precision=False
    ),
    "hgtrainer-no-warmup": _method(
        "hgtrainer", "HGTrainer", name="hgtrainer-no-warmup", warmup_depth=False
    ),
}
"""Every planner by name."""
