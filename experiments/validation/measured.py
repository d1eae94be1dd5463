"""The training cost model against published throughput measurements.

Predicts every usable row of a file in the format of measured.csv with the stored constants and
prints the error overall, by split, and by GPU, framework and source, and how well the order of
plans is kept. With ``fit`` it first fits the constants to the rows marked train and stores them;
the second, stricter split by configuration groups is fitted on its own for the report only.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.experiments.validation import Report
from dtgym.experiments.validation.measured_data import Measurements, read
from dtgym.experiments.validation.measured_fit import fit as fit_constants
from dtgym.experiments.validation.measured_fit import predict
from dtgym.simulator import calibration as calibrations
from dtgym.simulator.calibration import Calibration
from dtgym.simulator.errors import InvalidInput

Floats = NDArray[np.float64]

LIMIT = 0.10
"""Mean absolute error above which the validation fails, on any file of measurements."""


def validate(data: Path | None, *, fit: bool = False) -> Report:
    """Predicts the rows of a file and sums up the errors.

    Args:
        data: A file like measured.csv, or a folder with it and measured_single_node.csv.
        fit: Whether to fit the constants on the rows marked train first, and store them.

    Raises:
        InvalidInput: No data, or data that cannot be read or fitted.
    """
    if data is None:
        raise InvalidInput("measured needs --data FILE.csv (in the format of measured.csv)")
    measurements = read(data)
    figures: dict[str, Any] = {}
    if fit:
        start = time.perf_counter()
        train = measurements.column("split") == "train"
        calibration = fit_constants(measurements, train, f"{data.name}, rows with split = train")
        figures["fit"] = {"seconds": time.perf_counter() - start, "stored_in": _store(calibration)}
    else:
        calibration = calibrations.shipped()
    predicted = predict(measurements, calibration).time_s
    figures = {**summary(predicted, measurements.time_s), **figures}
    figures["by_split"] = by(measurements, predicted, lambda row: row["split"])
    figures["by_split_group_stored"] = by(measurements, predicted, lambda row: row["split_group"])
    if fit:
        figures["by_split_group"] = _group_split(measurements)
    for name in ("gpu", "framework", "source"):
        figures[f"by_{name}"] = by(measurements, predicted, lambda row, name=name: row[name])
    figures["kendall_tau"] = kendall(measurements, predicted)
    figures["calibration"] = dict(calibration.provenance)
    passed = figures["mape"] <= LIMIT
    return Report(passed, figures, _lines(figures))


def summary(predicted: Floats, measured: Floats) -> dict[str, float]:
    """Number of rows and errors as fractions: mean, median, 90th percentile, largest, bias."""
    signed = predicted / measured - 1
    error = np.abs(signed)
    return {
        "n": int(error.size),
        "mape": float(error.mean()),
        "median": float(np.median(error)),
        "p90": float(np.percentile(error, 90)),
        "max": float(error.max()),
        "bias": float(signed.mean()),
    }


def by(
    measurements: Measurements, predicted: Floats, key: Callable[[dict[str, str]], str]
) -> dict[str, dict[str, float]]:
    """`summary` of the rows that share a key."""
    members: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(measurements.rows):
        members[key(row)].append(index)
    return {
        name: summary(predicted[index], measurements.time_s[index])
        for name, index in sorted(members.items())
    }


def kendall(measurements: Measurements, predicted: Floats) -> dict[str, Any]:
    """Kendall's tau of predicted against measured within groups of same model and GPU count.

    Groups compare step times per sequence, so that batch sizes do not order them for free. Only
    groups of four distinct plans or more count; the mean weighs them by rows.
    """
    from scipy.stats import kendalltau

    members: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(measurements.rows):
        members[f"{row['source']} | {row['model']} | {row['n_gpus']} x {row['gpu']}"].append(index)
    batch = np.array([problem.global_batch for problem in measurements.problems])
    taus: dict[str, float] = {}
    sizes: list[int] = []
    for name, index in members.items():
        if len({round(value, 9) for value in predicted[index]}) >= 4:
            result: Any = kendalltau(
                predicted[index] / batch[index], measurements.time_s[index] / batch[index]
            )
            taus[name] = float(result.statistic)
            sizes.append(len(index))
    if not taus:
        return {"groups": 0, "mean": None, "by_group": {}}
    mean = float(np.average(list(taus.values()), weights=sizes))
    return {"groups": len(taus), "mean": mean, "by_group": taus}


def _group_split(measurements: Measurements) -> dict[str, dict[str, float]]:
    """Errors by split_group with constants fitted to its own train rows."""
    train = measurements.column("split_group") == "train"
    if not train.any():
        return {}
    fitted = fit_constants(measurements, train, "rows with split_group = train")
    predicted = predict(measurements, fitted).time_s
    return by(measurements, predicted, lambda row: row["split_group"])


def _store(calibration: Calibration) -> str:
    path = Path(str(files("dtgym.simulator") / "catalog" / "calibration.yaml"))
    text = calibrations.calibration_yaml(calibration)
    try:
        # A strict editable install shows sources as links: write the file they point to.
        path.resolve().write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"--fit: cannot write {path}: {error}") from error
    calibrations.shipped.cache_clear()
    return "simulator/catalog/calibration.yaml"


def _lines(figures: dict[str, Any]) -> list[str]:
    head = f"{'':44}{'n':>6}{'MAPE':>8}{'median':>8}{'p90':>8}{'max':>8}{'bias':>8}"
    lines = [head, _line("all rows", figures)]
    titles = {
        "by_split": "split",
        "by_split_group": "split_group (fitted on its own train rows)",
        "by_split_group_stored": "split_group (stored constants)",
        "by_gpu": "GPU",
        "by_framework": "framework",
        "by_source": "source",
    }
    for name, title in titles.items():
        if name in figures:
            lines.append(title)
            lines += [_line(f"  {key}", value) for key, value in figures[name].items()]
    tau = figures["kendall_tau"]
    if tau["groups"]:
        lines.append(f"Kendall tau, mean over {tau['groups']} groups: {tau['mean']:.3f}")
    if "fit" in figures:
        lines.append(f"fitted in {figures['fit']['seconds']:.1f} s, {figures['fit']['stored_in']}")
    return lines


def _line(name: str, figures: dict[str, float]) -> str:
    cells = [f"{figures[key] * 100:7.1f}%" for key in ("mape", "median", "p90", "max", "bias")]
    return f"{name[-44:]:44}{figures['n']:>6}" + "".join(cells)
