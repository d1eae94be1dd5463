"""Fits the physical constants of the training cost model to published step times."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.experiments.validation.measured_data import Measurements
from dtgym.simulator import training
from dtgym.simulator.calibration import CONSTANTS, Calibration
from dtgym.simulator.errors import InvalidInput

Floats = NDArray[np.float64]

GROUP = ("source", "model", "gpu", "precision")
"""Columns that make a configuration group; a group of n rows weighs as much as sqrt(n) rows."""

SOFT_L1 = 0.06
"""Error beyond which a row's pull grows only linearly: above the noise of repeated measurements."""

PRIOR_STRENGTH = 0.02
"""Pull towards the priors, per whole width of a constant's bounds, in units of relative error."""


def groups(measurements: Measurements) -> list[tuple[str, ...]]:
    """The configuration group of each row."""
    return [tuple(row[name] for name in GROUP) for row in measurements.rows]


def fit(measurements: Measurements, chosen: NDArray[np.bool_], note: str) -> Calibration:
    """Robust least squares on log(predicted / measured) over the chosen rows, within bounds.

    The pipeline is costed by its closed form, corrected by the ratio of the exact recurrence to the
    closed form at the constants of the pass before; two passes are enough.

    Args:
        measurements: Rows of a file.
        chosen: (rows,) rows to fit on.
        note: What was fitted on, for the provenance.

    Raises:
        InvalidInput: No row is chosen.
    """
    from scipy.optimize import least_squares

    if not chosen.any():
        raise InvalidInput("--fit: the file has no row marked train")
    index = np.flatnonzero(chosen)
    problems = [measurements.problems[i] for i in index]
    tables = training.encode(problems, measurements.plans.take(index))
    target = np.log(measurements.time_s[index])
    keys = [groups(measurements)[i] for i in index]
    sizes = Counter(keys)
    weight = np.array([sizes[key] ** -0.25 for key in keys])

    names = list(CONSTANTS)
    free = np.array([i for i, name in enumerate(names) if CONSTANTS[name].fitted])
    low = np.array([CONSTANTS[names[i]].low for i in free])
    width = np.array([CONSTANTS[names[i]].high for i in free]) - low
    vector = np.array([constant.prior for constant in CONSTANTS.values()])
    centre = (vector[free] - low) / width

    def constants(position: Floats) -> Floats:
        moved = vector.copy()
        moved[free] = low + position * width
        return moved

    position = np.clip(centre, 1e-3, 1 - 1e-3)
    for _ in range(2):
        now = constants(position)
        exact = training.evaluate(tables, now).time_s
        closed = training.evaluate(tables, now, fidelity="closed_form").time_s
        shift = np.log(exact / closed) - target

        def residuals(position: Floats, shift: Floats = shift) -> Floats:
            cost = training.evaluate(tables, constants(position), fidelity="closed_form")
            errors = weight * (np.log(cost.time_s) + shift)
            return np.concatenate([errors, PRIOR_STRENGTH * (position - centre)])

        position = least_squares(
            residuals,
            position,
            bounds=(0.0, 1.0),
            loss="soft_l1",
            f_scale=SOFT_L1,
            diff_step=1e-4,
            max_nfev=40,
        ).x
    found = constants(position)
    error = np.abs(training.evaluate(tables, found).time_s / measurements.time_s[index] - 1)
    provenance: dict[str, Any] = {
        "fitted_on": note,
        "rows": int(index.size),
        "groups": len(sizes),
        "date": datetime.now(UTC).date().isoformat(),
        "in_sample_mape": round(float(error.mean()), 4),
        "in_sample_median": round(float(np.median(error)), 4),
        "loss": f"soft L1 at {SOFT_L1} on log(predicted / measured), sqrt(n) per group of n rows",
    }
    values = {name: float(f"{value:.6g}") for name, value in zip(names, found, strict=True)}
    return Calibration(values, provenance)


def predict(measurements: Measurements, calibration: Calibration) -> training.StepCost:
    """Costs every row."""
    return training.step(measurements.problems, measurements.plans, calibration=calibration)
