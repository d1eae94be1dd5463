"""Holds the simulator and its results against golden or measured data: ``scripts/validate.py``.

Each target is a module of this package with a function
``validate(data: Path | None, **options) -> Report``; `TARGETS` names them all. Targets are imported
only when asked for, so that one does not pay for the libraries of another.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dtgym.simulator.errors import InvalidInput

TARGETS: dict[str, str] = {
    "bytescheduler": "the communication model against the ByteScheduler release's charts",
    "exhaustive": "the partition evaluator against 12 exactly solved two-cluster cases",
    "measured": "the training cost model against published throughput measurements",
    "metis": "the Metis estimator against golden plan costs",
    "pipeline": "the pipeline recurrence against 60 golden schedules",
    "plans": "the partition evaluator against 36 measured heterogeneous plans",
    "schedulers": "the cluster engine against per-job outputs of peer simulators",
    "solutions": "solution records: each is replayed and its claim compared",
}
"""Every target of ``scripts/validate.py`` with what it holds against what."""


@dataclass
class Report:
    """What a validation found.

    Attributes:
        passed: Whether every check of the target holds.
        figures: The numbers, plain data, printed by ``--json`` beside ``passed``.
        lines: The same for a person, line by line.
    """

    passed: bool
    figures: dict[str, Any] = field(default_factory=lambda: {})
    lines: list[str] = field(default_factory=lambda: [])


def validate(target: str, data: Path | None, **options: Any) -> Report:
    """Runs the target's validation.

    Args:
        target: A key of `TARGETS`.
        data: The file or folder of golden or measured data; None asks for the target's default.
        options: Further options of the target, such as ``fit=True`` of ``measured``.

    Raises:
        InvalidInput: Unknown target, unknown option, or data that cannot be read.
    """
    if target not in TARGETS:
        raise InvalidInput(f"TARGET must be one of {', '.join(TARGETS)}; got {target!r}")
    if data is not None and not data.exists():
        raise InvalidInput(f"--data: no such file or folder: {data}")
    module = importlib.import_module(f"dtgym.experiments.validation.{target}")
    return module.validate(data, **options)
