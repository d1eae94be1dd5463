"""Pictures of results. Matplotlib is imported only when one is drawn, and never opens a window."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.experiments.files import write_atomic
from dtgym.experiments.runner import RunSpec
from dtgym.experiments.tables import TableResult
from dtgym.experiments.tensorboard import read_progress

CURVE_TAG = "eval/mean_reward"
GREY = 7
"""Place of grey among the strong colours of Matplotlib's palette."""


def comparison(result: TableResult, specs: Sequence[RunSpec], path: Path) -> None:
    """Draws the rows with their intervals, and how they do while preparing.

    Left: mean score (filled, with its 95 % interval) and interquartile mean (open). Right: mean
    return on the validation episodes by simulator evaluations; one line for every run seed of a
    method that learns, a level for a method that does not.
    """
    figure, (scores, curves) = _figure(2, (13, 1.4 + 0.36 * len(result.rows)))
    colors = _colors(result)
    _draw_scores(scores, result, colors)
    _draw_curves(curves, result, specs, colors)
    figure.suptitle(result.table.title, fontsize=11)
    _save(figure, path)


def _colors(result: TableResult) -> dict[str, Any]:
    """A colour a row; greys are for oracles."""
    from matplotlib import colormaps

    tab20: Any = colormaps["tab20"]
    strong, pale = tab20.colors[::2], tab20.colors[1::2]
    palette = itertools.cycle((*strong[:GREY], *strong[GREY + 1 :], *pale))
    greys = itertools.cycle(("0.3", "0.6"))
    return {row.row.name: next(greys if row.oracle else palette) for row in result.rows}


def _draw_scores(axes: Any, result: TableResult, colors: dict[str, Any]) -> None:
    axes.axvline(result.row(result.table.reference).mean.point, color="0.85", zorder=0)
    for place, row in enumerate(reversed(result.rows)):
        color = colors[row.row.name]
        axes.plot([row.mean.low, row.mean.high], [place, place], color=color, linewidth=2.5)
        axes.plot(row.mean.point, place, "o", color=color, markersize=7)
        axes.plot(row.iqm.point, place, "o", color=color, markersize=4, markerfacecolor="white")
    names = [row.row.name + (" (oracle)" if row.oracle else "") for row in reversed(result.rows)]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlabel(f"{result.table.score.name}: mean with 95 % interval (open: IQM)")


def _draw_curves(
    axes: Any, result: TableResult, specs: Sequence[RunSpec], colors: dict[str, Any]
) -> None:
    levels: list[float] = []
    for row in result.rows:
        name = row.row.name
        runs = [spec for spec in specs if spec.name == name]
        series = [read_progress(spec.folder / "progress.csv").get(CURVE_TAG, []) for spec in runs]
        if not all(series):
            continue
        levels.append(float(np.mean([points[-1][1] for points in series])))
        if series[0][0][0] < row.preparation_evaluations:
            for points in series:
                x, y = np.array(points).T
                axes.plot(x, y, color=colors[name], linewidth=2, zorder=3)
            axes.plot([], [], color=colors[name], linewidth=2, label=name)
        else:
            style = "--" if row.oracle else ":"
            axes.axhline(levels[-1], color=colors[name], linestyle=style, label=name)
    if levels:
        # A learner begins far below all others; what matters is where it ends.
        margin = 0.1 * (max(levels) - min(levels)) + 1e-9
        axes.set_ylim(min(levels) - margin, max(levels) + margin)
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    axes.set_xlabel("simulator evaluations while preparing")
    axes.set_ylabel("mean return on validation episodes")


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
