"""Measures rates on this machine: kernels, environments and training."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numba

from dtgym.experiments import benchmarks, cli


@dataclass
class Arguments:
    """Measures rates on this machine: kernels, environments and training."""

    only: str | None = None
    """Run one benchmark: cluster, communication, partitioning, pipeline or training."""
    json: bool = False
    """Print one JSON object instead of text."""


def main(arguments: Arguments) -> int:
    """Runs the benchmarks and prints their figures."""
    names = [arguments.only] if arguments.only else list(benchmarks.BENCHMARKS)
    document: dict[str, Any] = {
        "machine": {
            "processor": platform.machine(),
            "threads": numba.get_num_threads(),
            "numba": version("numba"),
            "numpy": version("numpy"),
        }
    }
    for name in names:
        document[name] = benchmarks.run(name)
    if arguments.json:
        cli.print_json(document)
    else:
        print_figures(document)
    return cli.EXIT_GOOD


def print_figures(figures: dict[str, Any], indent: str = "") -> None:
    """Prints nested figures, one a line."""
    for key, value in figures.items():
        if isinstance(value, dict):
            print(f"{indent}{key}")
            print_figures(value, indent + "  ")
        else:
            text = f"{value:,.4g}" if isinstance(value, float) else str(value)
            print(f"{indent}{key}: {text}")


if __name__ == "__main__":
    cli.run(Arguments, main)
