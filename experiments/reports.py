"""Reports: tables that are computed by a function instead of from runs of methods.

A YAML file under ``experiments/tables/`` with a field ``report`` names a function that returns a
list of dataclasses, one a row; its fields are the columns and their docstring the definitions.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pydantic import Field

from dtgym.experiments import provenance
from dtgym.experiments.files import csv_text, write_atomic, write_json
from dtgym.simulator.documents import Document
from dtgym.simulator.errors import InvalidInput


class ReportFile(Document):
    """A report.

    Attributes:
        title: One line.
        report: ``package.module:function``; the function returns a list of dataclasses.
        arguments: Its keyword arguments.
        notes: Printed below the table.
    """

    title: str
    report: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)

    def function(self, *, source: str) -> Callable[..., Sequence[Any]]:
        """The function itself; `source` names the table in messages.

        Raises:
            InvalidInput: There is no such function.
        """
        module, _, attribute = self.report.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise InvalidInput(f"{source}: report {self.report}: {error}") from error

    def with_seeds(self, seeds: int, *, source: str) -> ReportFile:
        """The same report with another number of seeds, where its function has such an argument.

        Raises:
            InvalidInput: It has none.
        """
        if "seeds" not in inspect.signature(self.function(source=source)).parameters:
            raise InvalidInput(f"--seeds: table {source} has no run seeds")
        return self.model_copy(update={"arguments": {**self.arguments, "seeds": seeds}})


def make(name: str, report: ReportFile, folder: Path, *, command: str, workers: int = 1) -> str:
    """Computes a report and writes ``table.csv``, ``table.md`` and ``manifest.json``.

    Args:
        name: Name of the table.
        report: Its definition.
        folder: Where to; made if missing.
        command: The command line that makes this table from nothing.
        workers: Passed on to functions that have an argument of this name.

    Returns:
        The table as text.

    Raises:
        InvalidInput: There is no such function, or it refuses the arguments.
    """
    function = report.function(source=name)
    parallel = "workers" in inspect.signature(function).parameters
    try:
        rows = function(**report.arguments, **({"workers": workers} if parallel else {}))
    except TypeError as error:
        raise InvalidInput(f"{name}: report {report.report}: {error}") from error
    columns = [field.name for field in fields(rows[0])]
    text = markdown(report, columns, rows)
    write_atomic(folder / "table.csv", csv_text(columns, [asdict(row) for row in rows]))
    write_atomic(folder / "table.md", text)
    write_json(
        folder / "manifest.json",
        {
            "table": name,
            "title": report.title,
            "command": command,
            "report": report.report,
            "arguments": report.arguments,
            "git_revision": provenance.git_revision(),
            "versions": provenance.versions(),
            "machine": provenance.machine(),
        },
    )
    return text


def markdown(report: ReportFile, columns: Sequence[str], rows: Sequence[Any]) -> str:
    """The report for people, with the definitions of its columns."""
    body = [[_cell(getattr(row, column)) for column in columns] for row in rows]
    lines = [list(columns), ["---"] * len(columns), *body]
    grid = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    definitions = inspect.cleandoc(type(rows[0]).__doc__ or "")
    parts = [f"# {report.title}", grid, definitions, *(f"- {note}" for note in report.notes)]
    return "\n\n".join(parts) + "\n"


def _cell(value: Any) -> str:
    """A figure for people: four digits, whole numbers above a thousand, nothing where none is."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
