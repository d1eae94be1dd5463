"""Text, pictures and timelines of one environment; matplotlib is imported only for a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator import partition
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.kernels import plan_construction as kernels
from dtgym.simulator.partition_space import Candidate
from dtgym.simulator.partition_timeline import MAX_SPANS, PlanTimeline, plan_timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dtgym.envs.model_partitioning.dynamics import PartitionDynamics

_WIDTH_INCHES, _HEIGHT_INCHES, _DOTS_PER_INCH = 9.0, 5.0, 80
_COLOURS = {
    "forward": "C0",
    "backward": "C1",
    "activation": "C2",
    "gradient": "C3",
    "synchronise": "C4",
    "update": "C5",
}


def text(dynamics: PartitionDynamics, index: int) -> str:
    """The setting, the plan so far stage by stage, and its time once it is whole."""
    builds = dynamics.builds
    instance = int(builds.instance[index])
    setting = dynamics.pool.settings[instance]
    candidate = dynamics.candidate(index)
    head = kernels.HEADS[int(builds.head[index])]
    lines = [setting.describe(), f"micro-batch {candidate.microbatch}, due: {head}"]
    low = 0
    for number, stage in enumerate(candidate.stages):
        wire = ""
        if number and candidate.stages[number - 1].cluster != stage.cluster:
            wire = f", {partition.WIRES[stage.wire]} from before"
        lines.append(
            f"stage {number}: {setting.sites[stage.cluster].name}, {stage.gpus} accelerators, "
            f"tp {stage.tp}, layers {low}..{stage.high - 1}, warm-up +{stage.extra}{wire}"
        )
        low = stage.high
    if head == "done":
        time_s = float(dynamics.space.time_s([candidate], instance)[0])
        reference_s = dynamics.pool.reference_time_s[instance]
        lines.append(
            f"iteration {time_s:.3f} s, rules of thumb {reference_s:.3f} s, "
            f"speed-up {reference_s / time_s:.2f}"
        )
    return "\n".join(lines)


def timeline(dynamics: PartitionDynamics, index: int) -> PlanTimeline:
    """The iteration of a whole plan, or of the reference plan while it is being built."""
    instance = int(dynamics.builds.instance[index])
    return plan_timeline(
        dynamics.space.problem, dynamics.space.plans([_shown(dynamics, index)], instance)
    )


def _shown(dynamics: PartitionDynamics, index: int) -> Candidate:
    if dynamics.builds.head[index] == kernels.DONE:
        return dynamics.candidate(index)
    return dynamics.pool.reference[int(dynamics.builds.instance[index])]


def picture(dynamics: PartitionDynamics, index: int) -> NDArray[np.uint8]:
    """Gantt chart of `timeline`, uint8, (height, width, 3)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((_WIDTH_INCHES, _HEIGHT_INCHES), dpi=_DOTS_PER_INCH)
    canvas = FigureCanvasAgg(figure)
    whole = dynamics.builds.head[index] == kernels.DONE
    heading = text(dynamics, index).splitlines()[0]
    try:
        draw(figure, timeline(dynamics, index), f"{heading}\n{'' if whole else 'reference plan'}")
    except InvalidInput:
        # A plan of very many micro-batches cannot be drawn, but must not stop an episode.
        figure.text(0.05, 0.5, f"{heading}\nmore than {MAX_SPANS} operations: not drawn")
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def draw(figure: Figure, plan: PlanTimeline, title: str) -> None:
    """One row per stage, and one per link between clusters with both directions."""
    axes = figure.subplots(gridspec_kw={"left": 0.17, "right": 0.98, "top": 0.88, "bottom": 0.1})
    rows = plan.tracks()
    link_row = {border: plan.stages + k for k, border in enumerate(plan.crossings())}
    for kind, colour in _COLOURS.items():
        by_row: dict[int, list[tuple[float, float]]] = {}
        for span in plan.spans:
            is_message = kind in ("activation", "gradient")
            row = link_row.get(span.place) if is_message else span.place
            if span.kind == kind and row is not None:
                by_row.setdefault(row, []).append((span.start_s, span.end_s - span.start_s))
        for row, bars in by_row.items():
            # The two directions of a link share its row, one above the other.
            offset, height = {"activation": (-0.4, 0.4), "gradient": (0.0, 0.4)}.get(
                kind, (-0.4, 0.8)
            )
            axes.broken_barh(bars, (row + offset, height), color=colour, linewidth=0)
        axes.plot([], [], color=colour, linewidth=6, label=kind)
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.set(xlabel="seconds", xlim=(0, plan.iteration_time_s))
    axes.set_title(title, fontsize="small", loc="left")
    axes.legend(loc="upper right", fontsize="x-small", ncols=6)
