"""A table as data: a YAML file under ``experiments/tables/`` names its rows and their score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from dtgym.experiments.reports import ReportFile
from dtgym.experiments.runner import RunSpec, row_name
from dtgym.simulator.documents import Document, read_yaml, validated
from dtgym.simulator.errors import InvalidInput


class Score(Document):
    """What a row is judged by; a higher score is better.

    Attributes:
        name: Column heading, such as ``speed-up over the default configuration``.
        quantity: ``return``: sum of rewards; ``mean_reward``: the same over the number of steps;
            ``exp_mean_reward``: its exponential, a geometric mean of ratios where the reward is a
            logarithm.
    """

    name: str
    quantity: Literal["return", "mean_reward", "exp_mean_reward"]

    def of(self, episode: dict[str, Any]) -> float:
        """Score of one test episode of a run's ``result.json``.

        Examples:
            >>> score = Score(name="speed-up", quantity="exp_mean_reward")
            >>> score.of({"objective": 0.0, "steps": 8})
            1.0
        """
        if self.quantity == "return":
            return episode["objective"]
        mean = episode["objective"] / episode["steps"]
        return math.exp(mean) if self.quantity == "exp_mean_reward" else mean


class Row(Document):
    """One method of a table.

    Attributes:
        method: Name, see `dtgym.experiments.methods`.
        label: Name in the table; empty is the method's name.
        kind: What it is, in a word or two, such as ``tuned once`` or ``learned``.
        budget: Environment steps (simulator evaluations) for preparing; None is no limit.
        options: Keyword arguments of the method.
    """

    method: str
    label: str = ""
    kind: str
    budget: Annotated[int, Field(ge=1)] | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    @property
    def name(self) -> str:
        """The label, or else the method's name."""
        return row_name(self.method, self.label)


class Comparison(Document):
    """A paired comparison that the table states in words.

    Attributes:
        method: Label of the row that is asked about.
        against: Labels of the rows it is held against.
    """

    method: str
    against: Annotated[list[str], Field(min_length=1)]


class TableFile(Document):
    """A table.

    Attributes:
        title: One line.
        notes: Definitions a reader needs, printed below the table.
        suite: Name of the suite.
        seeds: Run seeds 0, 1, ...; ``--seeds`` overrides it.
        episodes: Test episodes per instance and run seed; two at least, for an interval.
        score: What rows are judged by.
        reference: Label of the row all others are held against.
        rows: The methods.
        comparisons: What is stated in words.
        timeline: Label of the row whose first test episode is drawn; empty for none.
        keeps_runs: Whether run folders lie in the table's own folder (so that TensorBoard on it
            shows them) instead of the common one.
    """

    title: str
    notes: list[str] = Field(default_factory=list)
    suite: str
    seeds: Annotated[int, Field(ge=1)]
    episodes: Annotated[int, Field(ge=2)]
    score: Score
    reference: str
    rows: Annotated[list[Row], Field(min_length=1)]
    comparisons: list[Comparison] = Field(default_factory=list)
    timeline: str = ""
    keeps_runs: bool = False

    def specs(self, runs: Path, *, seeds: int | None = None) -> list[RunSpec]:
        """The runs of the table, those with a training budget first: they take longest."""
        specs = [
            RunSpec(
                suite=self.suite,
                method=row.method,
                seed=seed,
                runs=runs,
                options=row.options,
                label=row.label,
                budget=row.budget,
                episodes=self.episodes,
            )
            for row in self.rows
            for seed in range(seeds or self.seeds)
        ]
        return sorted(specs, key=lambda spec: -(spec.budget or 0))


def load(name: str) -> TableFile | ReportFile:
    """Loads a shipped table or report by name, or a YAML file by path.

    Raises:
        InvalidInput: Unknown table; unknown or wrong field; a label that is no row.
    """
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise InvalidInput(f"TABLE: no such file: {name}")
        return parse(path.read_text(encoding="utf-8"), source=name)
    resource = files("dtgym.experiments") / "tables" / f"{name}.yaml"
    if not resource.is_file():
        raise InvalidInput(
            f"TABLE must be one of all, {', '.join(names())} or a path to a .yaml file; "
            f"got {name!r}"
        )
    return parse(resource.read_text(encoding="utf-8"), source=f"tables/{name}.yaml")


def names() -> list[str]:
    """Names of the shipped tables."""
    folder = files("dtgym.experiments") / "tables"
    return sorted(Path(f.name).stem for f in folder.iterdir() if f.name.endswith(".yaml"))


def parse(text: str, *, source: str) -> TableFile | ReportFile:
    """Builds a table or a report from YAML text; `source` names the file in messages.

    Raises:
        InvalidInput: Malformed YAML; unknown or wrong field; a label that is no row, or is two.
    """
    content = read_yaml(text, source=source)
    if isinstance(content, dict) and "report" in content:
        return validated(ReportFile, content, source=source)
    table = validated(TableFile, content, source=source)
    labels = [row.name for row in table.rows]
    twice = [label for label in labels if labels.count(label) > 1]
    if twice:
        raise InvalidInput(f"{source}: rows: two rows are labelled {twice[0]}")
    _require(f"{source}: reference", [table.reference], labels)
    _require(f"{source}: timeline", [table.timeline] if table.timeline else [], labels)
    for number, comparison in enumerate(table.comparisons):
        place = f"{source}: comparisons.{number}"
        _require(place, [comparison.method, *comparison.against], labels)
    return table


def _require(place: str, used: Sequence[str], labels: Sequence[str]) -> None:
    for label in used:
        if label not in labels:
            raise InvalidInput(f"{place}: no row is labelled {label!r}")
