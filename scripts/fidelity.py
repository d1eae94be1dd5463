"""Makes the tables and plots of docs/fidelity.md anew; takes a few minutes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dtgym.experiments import cli
from dtgym.experiments.validation.measured_report import report


@dataclass
class Arguments:
    """Makes the tables and plots of docs/fidelity.md anew; takes a few minutes."""

    data: Path
    """Folder with measured.csv and measured_single_node.csv."""
    out: Path = Path("docs")
    """Folder for the plots; the tables go to the standard output as Markdown."""


def main(arguments: Arguments) -> int:
    """Prints the tables and writes the plots."""
    cli.existing_path("--data", arguments.data)
    arguments.out.mkdir(parents=True, exist_ok=True)
    print("\n".join(report(arguments.data, arguments.out)))
    return cli.EXIT_GOOD


if __name__ == "__main__":
    cli.run(Arguments, main)
