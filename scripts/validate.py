"""Holds the simulator and its results against golden or measured data.

Exit code 0: every check holds. 1: a check failed. 2: bad input.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dtgym.experiments import cli
from dtgym.experiments.validation import TARGETS, validate


@dataclass
class Arguments:
    """Holds the simulator and its results against golden or measured data."""

    target: Annotated[str, tyro.conf.Positional]
    """What to validate: bytescheduler, exhaustive, measured, metis, pipeline, plans, schedulers or
    solutions."""
    data: Path | None = None
    """File or folder with the golden or measured data."""
    json: bool = False
    """Print one JSON object with `passed` instead of text."""
    fit: bool = False
    """Target `measured`: fit the physical constants on the rows marked train, store them. Target
    `bytescheduler`: fit the constants anew, compare hypotheses, predict held-out points."""


def main(arguments: Arguments) -> int:
    """Runs one validation and prints what it found."""
    options = {"fit": True} if arguments.fit else {}
    report = validate(arguments.target, arguments.data, **options)
    if arguments.json:
        cli.print_json({"target": arguments.target, "passed": report.passed, **report.figures})
    else:
        print(f"{arguments.target}: {TARGETS[arguments.target]}")
        print("\n".join(report.lines))
        print("passed" if report.passed else "FAILED")
    return cli.EXIT_GOOD if report.passed else cli.EXIT_CHECK_FAILED


if __name__ == "__main__":
    cli.run(Arguments, main)
