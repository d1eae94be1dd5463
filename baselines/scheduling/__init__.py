"""Cluster schedulers: published ones, heuristics, and reconstructions.

`METHODS` names every scheduler as a Method: it runs in ``dtgym/ClusterScheduling-v0`` and, as
`policy`, in `dtgym.simulator.cluster.simulate`. `COMPILED` names the options with which the
engine's fast path runs the same kind of scheduler. docs/schedulers.md says what each one is and
from where.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dtgym.baselines.method import Method


def _make(module: str, factory: str, fixed: Mapping[str, Any], /, **options: Any) -> Method:
    # Imported only when asked for: scipy and pymoo cost seconds.
    found = getattr(importlib.import_module(f"dtgym.baselines.scheduling.{module}"), factory)
    return found(**{**fixed, **options})


def _method(module: str, factory: str, /, **fixed: Any) -> Callable[..., Method]:
    return partial(_make, module, factory, fixed)


METHODS: dict[str, Callable[..., Method]] = {
    "fifo": _method("orders", "Fifo"),
    "fifo-skip": _method("orders", "Fifo", name="fifo-skip", blocks=False),
    "random": _method("orders", "RandomOrder"),
    "easy": _method("backfill", "Easy"),
    "conservative": _method("backfill", "Conservative"),
    "sjf": _method("orders", "Shortest"),
    "sjf-strict": _method("orders", "Shortest", name="sjf-strict", blocks=True),
    "sjf-oracle": _method("orders", "Shortest", name="sjf-oracle", oracle=True),
    "srtf": _method("orders", "Srtf"),
    "srsf": _method("orders", "Srsf"),
    "las": _method("orders", "ServiceLevels"),
    "gittins": _method("orders", "gittins"),
    "qssf": _method("orders", "LeastGpuTime"),
    "gavel-max-min": _method("gavel", "Gavel"),
    "gavel-max-min-het": _method(
        "gavel", "Gavel", name="gavel-max-min-het", objective="max_min_het"
    ),
    "gavel-finish-time": _method(
        "gavel", "Gavel", name="gavel-finish-time", objective="finish_time"
    ),
    "gavel-makespan": _method("gavel", "Gavel", name="gavel-makespan", objective="makespan"),
    "themis-like": _method("fairness", "ThemisLike"),
    "pollux-like": _method("pollux", "PolluxLike"),
    "dsfro-style": _method("dsfro", "DsfroStyle"),
    "drf": _method("fairness", "DominantShare"),
    "tetris": _method("packing", "Tetris"),
    "tetris-short": _method("packing", "Tetris", name="tetris-short", shortest=True),
    "best-fit": _method("packing", "Fit", placements=("best_fit",)),
    "worst-fit": _method("packing", "Fit", name="worst-fit", placements=("worst_fit",)),
    "spread": _method("packing", "Fit", name="spread", placements=("spread",)),
    "fgd": _method("packing", "LeastFragmentation"),
    "synergy-like": _method("packing", "SynergyLike"),
    "lucid-like": _method("packing", "LucidLike"),
    "muri-like": _method("packing", "MuriLike"),
}
"""Every scheduler by name."""

_SKIP = {"policy": "fifo", "head_of_line": "skip"}
COMPILED: dict[str, dict[str, Any]] = {
    "fifo": {"policy": "fifo"},
    "fifo-skip": _SKIP,
    "random": {"policy": "random", "head_of_line": "skip"},
    "easy": {"policy": "easy"},
    "conservative": {"policy": "conservative"},
    "sjf-oracle": {"policy": "sjf", "head_of_line": "skip"},
    "srtf": {"policy": "srtf"},
    "srsf": {"policy": "srsf"},
    "las": {"policy": "las"},
    "gittins": {"policy": "gittins"},
    "qssf": {"policy": "qssf", "head_of_line": "skip"},
    "drf": {"policy": "drf", "placement": "best_fit"},
    "tetris": {"policy": "tetris", "placement": "aligned"},
    "tetris-short": {"policy": "tetris_short", "placement": "aligned"},
    "best-fit": {**_SKIP, "placement": "best_fit"},
    "worst-fit": {**_SKIP, "placement": "worst_fit"},
    "first-fit": {**_SKIP, "placement": "first_fit"},
    "random-fit": {**_SKIP, "placement": "random_fit"},
    "spread": {**_SKIP, "placement": "spread"},
    "fgd": {**_SKIP, "placement": "fgd"},
    "synergy-like": {"policy": "synergy", "placement": "best_fit"},
    "lucid-like": {"policy": "lucid", "placement": "best_fit"},
    "muri-like": {"policy": "muri", "placement": "best_fit"},
}
"""Options of `cluster.simulate` that run a scheduler on the engine's fast path."""
