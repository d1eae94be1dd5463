"""Making a table from nothing: runs, statistics, pictures and manifest in one folder."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
from rich.console import Console
from rich.table import Table

from dtgym.experiments import (
    engines,
    episodes,
    plots,
    reports,
    solutions,
    table_files,
    tables,
    tensorboard,
)
from dtgym.experiments.engines import Failure
from dtgym.experiments.files import json_text, write_atomic
from dtgym.experiments.reports import ReportFile
from dtgym.experiments.runner import RunSpec
from dtgym.experiments.solutions import Solution
from dtgym.experiments.table_files import TableFile
from dtgym.experiments.tables import TableResult
from dtgym.simulator.errors import InvalidInput

WIDE = 125
"""Columns of a terminal on which a table's figures fit in one line each."""


def reproduce(
    name: str,
    *,
    results: Path,
    seeds: int | None = None,
    engine: str = "local",
    workers: int = 1,
    address: str | None = None,
    resume: bool = False,
) -> TableResult | str | list[Failure]:
    """Makes one table in ``results/<name>/``.

    Args:
        name: Name of a shipped table, or path of a YAML file.
        results: Folder of all results.
        seeds: Number of run seeds; None is the table's own.
        engine: See `dtgym.experiments.engines.carry_out`.
        workers: Local worker processes.
        address: Address of a Ray cluster.
        resume: Keep finished runs and go on from checkpoints; otherwise everything is made anew.

    Returns:
        The table; the text of a report; or the runs that failed: the others are kept and a resumed
        call needs only these.

    Raises:
        InvalidInput: Anything in the table or the arguments that does not exist or does not fit.
    """
    table = table_files.load(name)
    folder = results / Path(name).stem
    if seeds is not None and seeds < 1:
        raise InvalidInput(f"--seeds must be at least 1, got {seeds}")
    command = f"python scripts/reproduce.py {name}" + (f" --seeds {seeds}" if seeds else "")
    if isinstance(table, ReportFile):
        if seeds is not None:
            table = table.with_seeds(seeds, source=name)
        return reports.make(folder.name, table, folder, command=command, workers=workers)
    runs = folder / "runs" if table.keeps_runs else results / "runs"
    specs = table.specs(runs, seeds=seeds)
    for spec in specs:
        spec.check()
    if table.keeps_runs and not resume and runs.exists():
        # Runs of an older version of the table would lie in its charts.
        shutil.rmtree(runs)
    tensorboard.write_layout(runs)
    failures = engines.carry_out(
        specs, engine=engine, workers=workers, address=address, resume=resume
    )
    if failures:
        return failures
    result = tables.collect(folder.name, table, specs)
    tables.write(result, specs, folder, command=command)
    plots.comparison(result, specs, folder / "figure.png")
    if table.timeline:
        draw_timeline(table, specs, folder)
    return result


def draw_timeline(table: TableFile, specs: Sequence[RunSpec], folder: Path) -> None:
    """Replays the first test episode of the table's timeline row and draws its end.

    Leaves ``timeline.png`` and, where the environment exports one, ``timeline.json`` in Chrome's
    trace-event format (for Perfetto).
    """
    spec = next(spec for spec in specs if spec.name == table.timeline)
    _, solution = next(solutions.read(spec.folder / solutions.FILE_NAME))
    env = _replayed(solution)
    plots.image(env.render(), folder / "timeline.png")  # type: ignore[arg-type]
    unwrapped: Any = env.unwrapped
    if hasattr(unwrapped, "timeline"):
        write_atomic(folder / "timeline.json", json_text(unwrapped.timeline(), indent=None))
    env.close()


def _replayed(solution: Solution) -> gym.Env[Any, Any]:
    env = episodes.make(solution.env_id, {**solution.env_kwargs, "render_mode": "rgb_array"})
    env.reset(seed=solution.seed)
    for action in solution.actions:
        env.step(action)
    return env


def print_table(result: TableResult, console: Console) -> None:
    """Prints a table to the terminal, in short; all of it is in ``table.md``."""
    table = result.table
    grid = Table(title=table.title, title_justify="left")
    grid.add_column("method", no_wrap=True)
    grid.add_column("kind")
    for heading in (
        table.score.name, f"difference to {table.reference}", "P(better)", "evaluations to prepare",
    ):  # fmt: skip
        # On a narrow terminal figures wrap rather than disappear.
        grid.add_column(heading, justify="right", no_wrap=console.width >= WIDE)
    for row in result.rows:
        is_reference = row.row.name == table.reference
        style = "dim" if row.oracle else "bold" if row.row.kind == "learned" else None
        grid.add_row(
            row.row.name,
            row.kind,
            tables.interval(row.mean, digits=3),
            "reference" if is_reference else tables.interval(row.difference, sign="+", digits=3),
            "" if is_reference else f"{row.improvement.point:.2f}",
            f"{row.preparation_evaluations:,.0f}",
            style=style,
        )
    console.print(grid)
    covered = tables.scope(result.rows[0].scores.shape[0])
    console.print(
        f"means over episodes; intervals: 95 % bootstrap, {covered}",
        highlight=False,
        soft_wrap=True,
    )
    for line in result.statements:
        console.print(f"- {line}", highlight=False, soft_wrap=True)


def print_failures(failures: Sequence[Failure]) -> None:
    """Prints failed runs to standard error, with the traceback of those that are no bad input."""
    for failure in failures:
        name = f"{failure.spec.name} seed {failure.spec.seed}"
        print(f"{name} failed: {failure.message}", file=sys.stderr)
        if failure.details:
            print(failure.details, file=sys.stderr)
