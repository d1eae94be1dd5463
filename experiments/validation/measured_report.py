"""The tables and plots of docs/fidelity.md, made anew from measurements and stored constants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.experiments.validation.measured import by, kendall, summary
from dtgym.experiments.validation.measured_data import Measurements, read
from dtgym.experiments.validation.measured_fit import fit, predict
from dtgym.simulator import calibration as calibrations
from dtgym.simulator.calibration import CONSTANTS

Floats = NDArray[np.float64]


def report(folder: Path, out: Path) -> list[str]:
    """Writes the plots to `out` and returns the tables as Markdown lines.

    Args:
        folder: Holds measured.csv and measured_single_node.csv.
        out: Folder of the pages; plots are named fidelity_*.png.

    Raises:
        InvalidInput: Data that cannot be read.
    """
    measured = read(folder / "measured.csv")
    single = read(folder / "measured_single_node.csv")
    everything = read(folder)
    shipped = calibrations.shipped()
    cost = predict(measured, shipped)
    predicted = cost.time_s
    single_s = predict(single, shipped).time_s

    test = measured.column("split") == "test"
    strict = fit(everything, everything.column("split_group") == "train", "group split")
    strict_s = predict(measured, strict).time_s
    strict_test = measured.column("split_group") == "test"
    others = leave_one_cluster_out(measured, everything)
    expressible = (
        (measured.column("gpu") == "A100")
        & (measured.plans.zero < 2)
        & (measured.plans.tensor <= 8)
        & test
    )
    korthikanti = np.array(
        ["Korthikanti" in row["source"] and row["dp"] == "1" for row in measured.rows]
    )
    usable = measured.column("usable") == "yes"
    lines = ["| rows | n | MAPE | median | p90 | max | bias |", "| --- " + "| ---: " * 6 + "|"]
    for name, chosen, times in (
        ("held out, row split", test, predicted),
        ("held out, row split, nothing assumed", test & usable, predicted),
        ("held out, group split (own fit)", strict_test, strict_s),
        ("each cluster left out of the fit", np.full(test.size, True), others),
        ("held-out A100 rows that Calculon can express", expressible, predicted),
        ("Korthikanti et al., table 5", korthikanti, predicted),
    ):
        lines.append(_row(name, summary(times[chosen], measured.time_s[chosen])))
    lines.append(_row("measured_single_node.csv", summary(single_s, single.time_s)))
    for title, key in (("GPU", "gpu"), ("framework", "framework"), ("source", "source")):
        lines += ["", f"Held-out rows (row split) by {title}:", ""]
        lines += ["| | n | MAPE | median | p90 | max | bias |", "| --- " + "| ---: " * 6 + "|"]
        part = subset(measured, test)
        for name, figures in by(part, predicted[test], lambda row, key=key: row[key]).items():
            lines.append(_row(name, figures))
    clusters = cluster_of(measured)
    lines += ["", "Each cluster left out of the fit:", ""]
    lines += ["| cluster | n | MAPE | median | p90 | max | bias |", "| --- " + "| ---: " * 6 + "|"]
    for name in sorted(set(clusters)):
        chosen = clusters == name
        lines.append(_row(name, summary(others[chosen], measured.time_s[chosen])))
    tau = kendall(measured, predicted)
    lines += ["", f"Kendall tau within {tau['groups']} groups: {tau['mean']:.3f} on average."]
    lines += ["", *_worst(measured, predicted), "", *_constants()]
    lines += ["", *_memory(measured, cost)]
    _plot(measured, predicted, test, out)
    return lines


def cluster_of(measurements: Measurements) -> NDArray[np.str_]:
    """Cluster of each row: framework and device, (rows,)."""
    names = [f"{row['framework']}, {row['gpu']}-{row['gpu_mem_gb']}" for row in measurements.rows]
    return np.array(names)


def leave_one_cluster_out(measured: Measurements, everything: Measurements) -> Floats:
    """Predicts each cluster with constants fitted to the train rows of all others, (rows,)."""
    predicted = np.empty(measured.time_s.size)
    clusters = cluster_of(measured)
    train = everything.column("split") == "train"
    framework = everything.column("framework")
    all_clusters = cluster_of(everything)
    for name in sorted(set(clusters)):
        # The single-node points of a framework belong to the cluster that is left out.
        away = all_clusters == name
        if name.startswith("vTrain"):
            away |= np.char.startswith(framework, "vTrain")
        fitted = fit(everything, train & ~away, f"all but {name}")
        chosen = clusters == name
        predicted[chosen] = predict(measured, fitted).time_s[chosen]
    return predicted


def subset(measurements: Measurements, chosen: NDArray[np.bool_]) -> Measurements:
    """The chosen rows."""
    index = np.flatnonzero(chosen)
    return Measurements(
        rows=[measurements.rows[i] for i in index],
        problems=[measurements.problems[i] for i in index],
        plans=measurements.plans.take(index),
        time_s=measurements.time_s[index],
        memory_gb=measurements.memory_gb[index],
    )


def _row(name: str, figures: dict[str, float]) -> str:
    cells = [f"{figures[key] * 100:.1f} %" for key in ("mape", "median", "p90", "max", "bias")]
    return f"| {name} | {figures['n']} | " + " | ".join(cells) + " |"


def _worst(measured: Measurements, predicted: Floats) -> list[str]:
    error = predicted / measured.time_s - 1
    lines = ["| error | row | measured s | predicted s |", "| ---: | --- | ---: | ---: |"]
    for i in np.argsort(-np.abs(error))[:20]:
        row = measured.rows[i]
        what = (
            f"{row['framework'].split(' (')[0]}, {row['model']}, {row['n_gpus']} x {row['gpu']}-"
            f"{row['gpu_mem_gb']}, {row['precision']}, sequence {row['seq']}, batch {row['gbs']}, "
            f"micro-batch {row['mbs']}, TP {row['tp']} PP {row['pp']} DP {row['dp']} "
            f"CP {row['cp']}, ZeRO {row['zero']} ({row['split']})"
        )
        lines.append(
            f"| {error[i] * 100:+.0f} % | {what} | {measured.time_s[i]:.2f} | {predicted[i]:.2f} |"
        )
    return lines


def _constants() -> list[str]:
    shipped = calibrations.shipped().values
    lines = ["| constant | value | bounds | meaning |", "| --- | ---: | --- | --- |"]
    for name, constant in CONSTANTS.items():
        bounds = f"{constant.low:g} to {constant.high:g}" if constant.fitted else "fixed"
        lines.append(f"| {name} | {shipped[name]:.4g} | {bounds} | {constant.meaning} |")
    return lines


def _memory(measured: Measurements, cost: Any) -> list[str]:
    known = ~np.isnan(measured.memory_gb)
    peak = cost.memory_bytes.max(axis=1) / 2**30
    lines = [
        "| framework | rows | mean error of peak memory | bias |",
        "| --- " + "| ---: " * 3 + "|",
    ]
    frameworks = measured.column("framework")
    for name in sorted(set(frameworks[known])):
        chosen = known & (frameworks == name)
        error = peak[chosen] / measured.memory_gb[chosen] - 1
        lines.append(
            f"| {name} | {chosen.sum()} | {np.abs(error).mean() * 100:.1f} % | "
            f"{error.mean() * 100:+.1f} % |"
        )
    return lines


def _plot(measured: Measurements, predicted: Floats, test: NDArray[np.bool_], out: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6))
    frameworks = measured.column("framework")
    ends = [measured.time_s.min() * 0.8, measured.time_s.max() * 1.25]
    left.plot(ends, ends, color="0.6", linewidth=0.8)
    for name in sorted(set(frameworks)):
        chosen = test & (frameworks == name)
        left.scatter(
            measured.time_s[chosen], predicted[chosen], s=9, label=name.split(" (")[0], alpha=0.7
        )
    left.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    left.set(xlabel="measured step time (s)", ylabel="predicted step time (s)")
    left.set_title("held-out rows")
    left.legend(fontsize=7, frameon=False)
    error = (predicted / measured.time_s - 1) * 100
    edges = np.linspace(-30, 30, 41)
    for name, chosen in (("train", ~test), ("held out", test)):
        right.hist(np.clip(error[chosen], -30, 30), edges, alpha=0.6, label=name)
    right.set(xlabel="error (%), clipped at 30", ylabel="rows", title="all rows")
    right.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(out / "fidelity_predicted.png", dpi=110)
    plt.close(figure)
