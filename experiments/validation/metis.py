"""Holds the Metis estimator against golden plan costs: ``scripts/validate.py metis``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from dtgym.baselines.partitioning import metis
from dtgym.experiments.validation import Report
from dtgym.simulator.errors import InvalidInput

TOLERANCE = 1e-9
"""Largest relative difference of a plan's cost."""


def validate(data: Path | None) -> Report:
    """Costs every plan of the golden files and compares parts, totals and the ranking.

    Args:
        data: The folder with ``metis_golden_*.json``, or one such file.

    Raises:
        InvalidInput: No golden file there, or one that cannot be read.
    """
    if data is None:
        raise InvalidInput("--data: name the folder with the metis_golden_*.json files")
    files = sorted(data.glob("metis_golden_*.json")) if data.is_dir() else [data]
    if not files:
        raise InvalidInput(f"--data: no metis_golden_*.json in {data}")
    figures = {file.stem: _compare(file) for file in files}
    lines = [
        f"{name}: {row['plans']} plans, largest relative difference {row['largest_difference']:.2g}"
        f", well-formed ranking {'identical' if row['ranking_identical'] else 'DIFFERS'}"
        f" ({row['well_formed']} plans)"
        for name, row in figures.items()
    ]
    passed = all(
        row["largest_difference"] <= TOLERANCE
        and row["largest_part_difference"] <= TOLERANCE
        and row["ranking_identical"]
        and row["dropped"] == 0
        for row in figures.values()
    )
    return Report(passed, {"tolerance": TOLERANCE, "files": figures}, lines)


def _compare(file: Path) -> dict[str, Any]:
    try:
        golden = json.loads(file.read_text())
        columns = {name: index for index, name in enumerate(golden["plan_columns"])}
        rows = golden["plans_sorted_by_cost"]
        expected = np.array([row[columns["cost_ms"]] for row in rows], dtype=np.float64)
        expected_parts = np.array(
            [[row[columns[name]] for name in metis.COMPONENTS] for row in rows], dtype=np.float64
        )
        flags = np.array([row[columns["well_formed"]] for row in rows], dtype=bool)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"{file}: not a golden file of Metis plans ({error})") from error
    honour = golden["variant"] != "as_shipped"
    parts = metis.plan_components_ms(golden, rows, honour_inter_bandwidth=honour)
    costs = metis.plan_costs_ms(golden, rows, honour_inter_bandwidth=honour)
    inputs = metis.read_inputs(golden)
    well_formed = np.array(
        [metis.read_plan(row, inputs).is_well_formed(inputs.num_layers) for row in rows]
    )
    chosen = np.flatnonzero(well_formed)
    # Costs that the golden file holds as equal may come out in either order by rounding alone, so
    # the ranking is that of costs rounded to the tolerance, with ties in file order.
    rank = chosen[np.argsort(_rounded(costs[chosen]), kind="stable")]
    golden_rank = np.flatnonzero(flags)
    golden_rank = golden_rank[np.argsort(_rounded(expected[golden_rank]), kind="stable")]
    return {
        "honour_inter_bandwidth": honour,
        "plans": len(rows),
        "well_formed": int(well_formed.sum()),
        "dropped": int(np.isnan(costs).sum()),
        "largest_difference": float(np.nanmax(np.abs(costs / expected - 1))),
        "largest_part_difference": float(
            np.nanmax(np.abs(parts - expected_parts) / expected[:, np.newaxis])
        ),
        "ranking_identical": bool(np.array_equal(rank, golden_rank)),
    }


def _rounded(costs_ms: np.ndarray) -> np.ndarray:
    return np.array([float(f"{cost:.9e}") for cost in costs_ms])
