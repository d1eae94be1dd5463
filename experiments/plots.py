"""Pictures of results. Matplotlib is imported only when one is drawn, and never opens a window."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.experiments.files import write_atomic
from dtgym.experiments.runner import RunSpec
from dtgym.experiments.tables import TableResult
from dtgym.experiments.tensorboard import read_progress

ORACLE = "0.6"
LEARNED = "tab:red"
OTHER = "tab:blue"
CURVE_TAG = "eval/mean_reward"


def comparison(result: TableResult, specs: Sequence[RunSpec], path: Path) -> None:
    """Draws the rows with their intervals, and the validation curves by simulator evaluations."""
    figure, (bars, curves) = _figure(2, (12, 0.9 + 0.38 * len(result.rows)))
    _intervals(bars, result)
    _curves(curves, result, specs)
    figure.suptitle(result.table.title, fontsize=11)
    _save(figure, path)


def _intervals(axes: Any, result: TableResult) -> None:
    for place, row in enumerate(reversed(result.rows)):
        color = _color(result, row.row.name)
        axes.plot([row.iqm.low, row.iqm.high], [place, place], color=color, linewidth=3, alpha=0.5)
        axes.plot(row.iqm.point, place, "o", color=color, markersize=6)
    axes.axvline(result.row(result.table.reference).iqm.point, color="0.8", zorder=0)
    names = [row.row.name + (" (oracle)" if row.oracle else "") for row in reversed(result.rows)]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlabel(f"{result.table.score.name}\n(interquartile mean, 95 % interval)")


def _curves(axes: Any, result: TableResult, specs: Sequence[RunSpec]) -> None:
    for row in result.rows:
        name = row.row.name
        runs = [spec for spec in specs if spec.name == name]
        series = [read_progress(spec.folder / "progress.csv").get(CURVE_TAG, []) for spec in runs]
        if not all(series):
            continue
        color = _color(result, name)
        if row.preparation_evaluations > 0 and len(series[0]) > 1:
            for points in series:
                x, y = np.array(points).T
                axes.plot(x, y, color=color, linewidth=1.5)
            x, y = np.array(series[0]).T
            axes.annotate(name, (x[-1], y[-1]), color=color, fontsize=8, xytext=(4, 0),
                          textcoords="offset points", va="center")  # fmt: skip
        else:
            level = float(np.mean([points[-1][1] for points in series]))
            axes.axhline(level, color=color, linestyle=":", linewidth=1)
            axes.annotate(name, (0.01, level), xycoords=("axes fraction", "data"), color=color,
                          fontsize=7, va="bottom")  # fmt: skip
    axes.set_xlabel("simulator evaluations while preparing")
    axes.set_ylabel("mean return on validation episodes")


def _color(result: TableResult, name: str) -> str:
    row = result.row(name)
    return ORACLE if row.oracle else LEARNED if row.row.kind == "learned" else OTHER


def image(pixels: NDArray[np.uint8], path: Path) -> None:
    """Writes a rendered picture, uint8 (height, width, 3), as PNG."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="png")
    write_atomic(path, stream.getvalue())


def _figure(columns: int, size_inches: tuple[float, float]) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(1, columns, figsize=size_inches, layout="constrained")


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    stream = io.BytesIO()
    # No software version in the file: equal results give equal bytes.
    figure.savefig(stream, format="png", dpi=150, metadata={"Software": None})
    pyplot.close(figure)
    write_atomic(path, stream.getvalue())
