"""Tables: from finished runs to ``table.md``, ``table.csv``, ``per_seed.csv`` and a manifest.

Everything in these files is computed from ``result.json`` of the runs and has the same bytes
however often the sweep was interrupted. Wall times are measured, hence never the same twice; they
stand apart, in ``timing.csv``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.experiments import provenance, runner, solutions, statistics, suites
from dtgym.experiments.files import csv_text, read_json, write_atomic, write_json
from dtgym.experiments.runner import RunSpec
from dtgym.experiments.statistics import Estimate
from dtgym.experiments.table_files import Row, TableFile

COLUMNS = (
    "method", "kind", "oracle", "seeds", "instances", "episodes",
    "iqm", "iqm_low", "iqm_high", "mean", "mean_low", "mean_high",
    "difference", "difference_low", "difference_high",
    "improvement", "improvement_low", "improvement_high",
    "preparation_evaluations", "evaluations_per_episode",
)  # fmt: skip
"""Columns of ``table.csv``. `difference` and `improvement` (probability of improvement) are against
the table's reference row; ``_low`` and ``_high`` are 95 % bounds."""


@dataclass(frozen=True)
class RowResult:
    """What one method came to.

    Attributes:
        row: The row's definition.
        oracle: Whether the method saw what no deployed method can see.
        runs: ``result.json`` of each run seed.
        scores: Shape (seeds, instances, episodes).
        iqm: Interquartile mean of the scores.
        mean: Mean of the scores.
        difference: Mean paired difference to the reference row.
        improvement: Probability of improvement over the reference row.
    """

    row: Row
    oracle: bool
    runs: tuple[dict[str, Any], ...]
    scores: NDArray[np.float64]
    iqm: Estimate
    mean: Estimate
    difference: Estimate
    improvement: Estimate

    @property
    def kind(self) -> str:
        """What the row is, with the oracles marked."""
        return f"oracle: {self.row.kind}" if self.oracle else self.row.kind

    @property
    def preparation_evaluations(self) -> float:
        """Simulator evaluations spent on preparing, mean over run seeds."""
        return float(np.mean([run["preparation_evaluations"] for run in self.runs]))

    @property
    def evaluations_per_episode(self) -> float:
        """Simulator evaluations a test episode, environment steps included."""
        return float(np.mean([e["evaluations"] for run in self.runs for e in run["episodes"]]))


@dataclass(frozen=True)
class TableResult:
    """A finished table.

    Attributes:
        name: Name of the table and of its folder.
        table: Its definition.
        instances: Names of the test instances, as on the second axis of scores.
        rows: One result a row, in the order of the definition.
        statements: What the comparisons come to, in words.
    """

    name: str
    table: TableFile
    instances: tuple[str, ...]
    rows: tuple[RowResult, ...]
    statements: tuple[str, ...]

    def row(self, name: str) -> RowResult:
        """The row of that name."""
        return next(row for row in self.rows if row.row.name == name)


def collect(name: str, table: TableFile, specs: Sequence[RunSpec]) -> TableResult:
    """Reads the results of all runs and computes the table.

    Args:
        name: Name of the table.
        table: Its definition.
        specs: Its runs, all finished.

    Raises:
        InvalidInput: A run has not finished.
    """
    instances = tuple(instance.name for instance in suites.load(table.suite).test)
    runs = {
        row.name: tuple(
            runner.result(spec)
            for spec in sorted(specs, key=lambda spec: spec.seed)
            if spec.name == row.name
        )
        for row in table.rows
    }
    scores = {
        label: np.array(
            [
                [
                    [table.score.of(e) for e in run["episodes"] if e["instance"] == instance]
                    for instance in instances
                ]
                for run in results
            ]
        )
        for label, results in runs.items()
    }
    reference = scores[table.reference]
    rows = tuple(
        RowResult(
            row=row,
            oracle=runs[row.name][0]["oracle"],
            runs=runs[row.name],
            scores=scores[row.name],
            iqm=statistics.iqm_estimate(scores[row.name]),
            mean=statistics.mean_estimate(scores[row.name]),
            difference=statistics.paired_difference(scores[row.name], reference),
            improvement=statistics.probability_of_improvement(scores[row.name], reference),
        )
        for row in table.rows
    )
    statements = tuple(
        statement(comparison.method, other, scores)
        for comparison in table.comparisons
        for other in comparison.against
    )
    return TableResult(name, table, instances, rows, statements)


def statement(name: str, other: str, scores: dict[str, NDArray[np.float64]]) -> str:
    """Says whether one row beats another: only if the whole 95 % interval lies above zero."""
    estimate = statistics.paired_difference(scores[name], scores[other])
    if estimate.above_zero:
        verdict = f"{name} beats {other}"
    elif estimate.below_zero:
        verdict = f"{name} does not beat {other}: it is worse"
    else:
        verdict = f"{name} does not beat {other}: the interval includes zero"
    return (
        f"{verdict} (mean paired difference {estimate.point:+.4f}, "
        f"95 % interval [{estimate.low:+.4f}, {estimate.high:+.4f}])"
    )


def write(result: TableResult, specs: Sequence[RunSpec], folder: Path, *, command: str) -> None:
    """Writes a table folder: tables, records of all runs, timings and the manifest.

    Args:
        result: The table.
        specs: Its runs.
        folder: Where to; made if missing.
        command: The command line that makes this table from nothing.
    """
    write_atomic(folder / "table.csv", csv_text(COLUMNS, [_csv_row(row) for row in result.rows]))
    write_atomic(folder / "per_seed.csv", _per_seed(result))
    write_atomic(folder / "table.md", markdown(result))
    ordered = sorted(specs, key=lambda spec: (spec.name, spec.seed))
    solutions.write(
        folder / f"{solutions.FILE_NAME}.gz",
        [
            solution
            for spec in ordered
            for _, solution in solutions.read(spec.folder / solutions.FILE_NAME)
        ],
    )
    timings = [
        {"method": spec.name, "seed": spec.seed, **read_json(spec.folder / runner.TIMING)}
        for spec in ordered
    ]
    columns = ("method", "seed", "preparation_s", "test_s", "decisions", "mean_decision_s")
    write_atomic(folder / "timing.csv", csv_text(columns, timings))
    write_json(folder / "manifest.json", _manifest(result, ordered, command))


def markdown(result: TableResult) -> str:
    """The table for people."""
    table = result.table
    header = [
        "method", "kind", f"{table.score.name}: IQM [95 %]", "mean [95 %]",
        f"paired difference to {table.reference} [95 %]",
        f"P(better than {table.reference})", "evaluations to prepare", "a test episode",
    ]  # fmt: skip
    body = [cells(row, table.reference) for row in result.rows]
    seeds, _, episodes = result.rows[0].scores.shape
    per_instance = [
        [name, *(f"{row.scores[:, i].mean():.4f}" for row in result.rows)]
        for i, name in enumerate(result.instances)
    ]
    parts = [
        f"# {table.title}",
        f"Suite `{suites.load(table.suite).name}`: {len(result.instances)} test instances, "
        f"{seeds} run seed{'s' * (seeds > 1)}, {episodes} unseen episodes each, the same for every "
        f"method. Score: {table.score.name}; higher is better. IQM: interquartile mean. "
        f"Intervals: 95 % bootstrap, {scope(seeds)}.",
        _grid(header, body),
        *(["\n".join(f"- {line}." for line in result.statements)] if result.statements else []),
        "Mean score by instance:",
        _grid(["instance", *(row.row.name for row in result.rows)], per_instance),
        *(["\n".join(f"- {note}" for note in table.notes)] if table.notes else []),
        "Evaluations are simulator evaluations (environment steps and simulated candidates). "
        "Measured wall times: `timing.csv`.",
    ]
    return "\n\n".join(parts) + "\n"


def scope(seeds: int) -> str:
    """What the intervals of a table with so many run seeds cover."""
    if seeds > 1:
        return "resampling run seeds and episodes"
    return (
        "resampling episodes only: with one run seed they say nothing about how much training or "
        "tuning runs differ from each other"
    )


def cells(row: RowResult, reference: str) -> list[str]:
    """The cells of one row, as text."""
    is_reference = row.row.name == reference
    return [
        row.row.name,
        row.kind,
        interval(row.iqm),
        interval(row.mean),
        "reference" if is_reference else interval(row.difference, sign="+"),
        "" if is_reference else f"{row.improvement.point:.2f}",
        f"{row.preparation_evaluations:,.0f}",
        f"{row.evaluations_per_episode:,.0f}",
    ]


def interval(estimate: Estimate, *, sign: str = "", digits: int = 4) -> str:
    """A figure with its interval, as text.

    Examples:
        >>> interval(Estimate(1.0, 0.5, 1.25), sign="+", digits=2)
        '+1.00 [+0.50, +1.25]'
    """
    point, low, high = (
        format(value, f"{sign}.{digits}f")
        for value in (estimate.point, estimate.low, estimate.high)
    )
    return f"{point} [{low}, {high}]"


def _grid(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _csv_row(row: RowResult) -> dict[str, Any]:
    seeds, instances, episodes = row.scores.shape
    figures: dict[str, Any] = {
        "method": row.row.name,
        "kind": row.row.kind,
        "oracle": row.oracle,
        "seeds": seeds,
        "instances": instances,
        "episodes": episodes,
        "preparation_evaluations": row.preparation_evaluations,
        "evaluations_per_episode": row.evaluations_per_episode,
    }
    for name in ("iqm", "mean", "difference", "improvement"):
        estimate: Estimate = getattr(row, name)
        figures |= {
            name: estimate.point,
            f"{name}_low": estimate.low,
            f"{name}_high": estimate.high,
        }
    return figures


def _per_seed(result: TableResult) -> str:
    rows: list[dict[str, Any]] = []
    for row in result.rows:
        for seed, run in enumerate(row.runs):
            for episode in run["episodes"]:
                vector = episode["vector_objective"]
                rows.append(
                    {
                        "method": row.row.name,
                        "run_seed": seed,
                        "instance": episode["instance"],
                        "episode_seed": episode["seed"],
                        "score": result.table.score.of(episode),
                        "objective": episode["objective"],
                        "steps": episode["steps"],
                        "evaluations": episode["evaluations"],
                        **{f"vector_objective_{i}": value for i, value in enumerate(vector)},
                    }
                )
    return csv_text(list(rows[0]), rows)


def _manifest(result: TableResult, specs: Sequence[RunSpec], command: str) -> dict[str, Any]:
    table = result.table
    suite = suites.load(table.suite)
    revisions = {read_json(spec.folder / runner.PROVENANCE)["git_revision"] for spec in specs}
    return {
        "table": result.name,
        "title": table.title,
        "command": command,
        "git_revision": provenance.git_revision(),
        "git_revisions_of_runs": sorted(revisions),
        "versions": provenance.versions(),
        "machine": provenance.machine(),
        "suite": {"name": suite.name, "version": suite.version, "digest": suite.digest},
        "seeds": sorted({spec.seed for spec in specs}),
        "episodes": table.episodes,
        "budgets": {row.name: row.budget for row in table.rows},
        "bootstrap": {"resamples": statistics.RESAMPLES, "seed": 0},
        "runs": {
            f"{spec.name}/seed{spec.seed}": str(spec.folder.relative_to(spec.runs))
            for spec in specs
        },
    }
