"""Holds the pipeline recurrence and its closed forms against golden schedules."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from dtgym.experiments.validation import Report
from dtgym.simulator import pipeline
from dtgym.simulator.errors import InvalidInput

TOLERANCE = 1e-9
"""Largest relative error of a golden value."""

DURATIONS = ("fwd", "bwd", "act_time", "grad_time")


def validate(data: Path | None) -> Report:
    """Computes every case of a golden file.

    Args:
        data: The file (or a folder with ``pipeline_schedule_golden.json``); None uses the copy in
            the simulator's catalogue.

    Raises:
        InvalidInput: A file that is not a list of schedule cases.
    """
    source, document = _read(data)
    worst: dict[str, float] = {}
    for number, case in enumerate(document["cases"]):
        where = f"{source}: cases[{number}]"
        try:
            fwd, bwd, act, grad = (
                np.atleast_2d(np.asarray(case[name], dtype=float)) for name in DURATIONS
            )
            microbatches = int(case["micro_batches"])
            golden = {name: np.asarray(case[name], dtype=float) for name in QUANTITIES}
            depths = np.asarray(case["warmup_depth"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"{where}: not a schedule case: {error!r}") from error
        for name, compute in QUANTITIES.items():
            found = np.asarray(compute((fwd, bwd, act, grad), microbatches, depths)).squeeze()
            expected = golden[name].squeeze()
            if found.shape != expected.shape:
                raise InvalidInput(f"{where}: {name} must have shape {found.shape}")
            error = np.abs(found - expected) / np.maximum(np.abs(expected), 1e-300)
            worst[name] = max(worst.get(name, 0.0), float(error.max()))
    largest = max(worst.values())
    passed = largest <= TOLERANCE
    return Report(
        passed=passed,
        figures={
            "n": len(document["cases"]),
            "worst_relative_error": largest,
            "tolerance": TOLERANCE,
            "worst_relative_error_by_quantity": worst,
            "source": source,
        },
        lines=[
            f"{len(document['cases'])} cases of {source}",
            *(f"  {name:<34} worst relative error {error:.2e}" for name, error in worst.items()),
            f"tolerance {TOLERANCE:g}",
        ],
    )


Times = tuple[Any, Any, Any, Any]
Compute = Callable[[Times, int, Any], Any]

QUANTITIES: Mapping[str, Compute] = {
    "gpipe_overlapped": lambda t, m, w: pipeline.iteration_time_s(*t, m, schedule="gpipe"),
    "onef1b_overlapped": lambda t, m, w: pipeline.iteration_time_s(*t, m),
    "onef1b_sender_blocked": (
        lambda t, m, w: pipeline.iteration_time_s(*t, m, overlap="sender_blocked")
    ),
    "onef1b_deeper_warmup_overlapped": lambda t, m, w: pipeline.iteration_time_s(*t, m, warmup=w),
    "closed_form_compute_max": lambda t, m, w: pipeline.closed_form_s(*t, m),
    "period_1f1b": lambda t, m, w: pipeline.period_s(*t),
    "peak_in_flight_1f1b": lambda t, m, w: pipeline.in_flight("1f1b", t[0].shape[1], m),
}
"""Golden fields and how each is computed from (durations, micro-batches, warm-up depths)."""


def _read(data: Path | None) -> tuple[str, dict[str, Any]]:
    if data is None:
        resource = files("dtgym.simulator") / "catalog" / "pipeline" / "schedules.json"
        return "the catalogue", json.loads(resource.read_text(encoding="utf-8"))
    path = data / "pipeline_schedule_golden.json" if data.is_dir() else data
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"--data: {path} is not a readable JSON file: {error}") from error
    if not isinstance(document, dict) or not document.get("cases"):
        raise InvalidInput(f"--data: {path} holds no list named cases")
    return path.name, document
