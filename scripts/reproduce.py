"""Makes a table from nothing: every run, the statistics, the pictures and the manifest."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from dtgym.experiments import cli, reproduce, table_files
from dtgym.experiments.tables import TableResult
from dtgym.simulator.errors import InvalidInput

WIDTH_OF_FILES = 140
"""Columns of a table that is printed into a file or a pipe."""


@dataclass
class Arguments:
    """Makes a table from nothing: every run, the statistics, the pictures and the manifest.

    Writes RESULTS/TABLE/. Exit code 0: made. 1: a run failed, the others are kept. 2: bad input.
    """

    table: Annotated[str, tyro.conf.Positional]
    """Name of a table (see experiments/tables/), path of a YAML file, or `all`."""
    seeds: int | None = None
    """Run seeds 0 .. seeds - 1 for every row; the table's own number without it, and for `all`."""
    engine: str = "local"
    """local: worker processes on this machine. ray: a Ray cluster (extra dtgym[cluster])."""
    workers: int = os.cpu_count() or 1
    """Worker processes of the local engine, one thread each."""
    address: str | None = None
    """Address of a running Ray cluster; without it Ray starts on this machine."""
    resume: bool = False
    """Keep finished runs and go on from checkpoints, instead of making everything anew."""
    results: Path = Path("results")
    """Folder of all results."""


def main(arguments: Arguments) -> int:
    """Makes the table and prints it."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_OF_FILES)
    names = [arguments.table]
    if arguments.table == "all":
        if arguments.seeds is not None:
            raise InvalidInput("--seeds belongs to one table, not to `all`")
        names = [name for name in table_files.names() if name != "demo"]
    code = cli.EXIT_GOOD
    for name in names:
        made = reproduce.reproduce(
            name,
            results=arguments.results,
            seeds=arguments.seeds,
            engine=arguments.engine,
            workers=arguments.workers,
            address=arguments.address,
            resume=arguments.resume,
        )
        if isinstance(made, TableResult):
            reproduce.print_table(made, console)
        elif isinstance(made, str):
            print(made)
        if not isinstance(made, list):
            print(f"written to {arguments.results / Path(name).stem}")
        else:
            reproduce.print_failures(made)
            is_bad_input = all(failure.is_bad_input for failure in made)
            code = max(code, cli.EXIT_BAD_INPUT if is_bad_input else cli.EXIT_CHECK_FAILED)
    return code


if __name__ == "__main__":
    cli.run(Arguments, main)
