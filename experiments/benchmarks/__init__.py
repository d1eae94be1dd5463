"""Rates of kernels, environments and training: ``scripts/benchmark.py``.

Each benchmark is a module of this package with a function ``run() -> dict``: plain figures with
their units in the keys, measured in this process, each beside the ratio to the shipped pure-Python
reference where one exists.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

from dtgym.simulator.errors import InvalidInput

BENCHMARKS: dict[str, str] = {
    "cluster": "events/s of the cluster engine, steps/s of its environment",
    "communication": "configurations/s of the communication kernel, steps/s of its environment",
    "partitioning": "plans/s of the full evaluator, steps/s of its environment",
    "pipeline": "plans/s of the pipeline recurrence and of full training plans",
    "training": "frames/s of agents",
}
"""Every benchmark with what it measures."""


def run(name: str) -> dict[str, Any]:
    """Runs one benchmark and returns its figures.

    Raises:
        InvalidInput: Unknown name.
    """
    if name not in BENCHMARKS:
        raise InvalidInput(f"--only must be one of {', '.join(BENCHMARKS)}; got {name!r}")
    return importlib.import_module(f"dtgym.experiments.benchmarks.{name}").run()


def median_duration_s(call: Callable[[], object], *, repeats: int = 5) -> float:
    """Median wall time of `call` over `repeats` runs, after one run that is not counted."""
    call()
    durations_s: list[float] = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        call()
        durations_s.append(time.perf_counter() - start_s)
    return statistics.median(durations_s)
