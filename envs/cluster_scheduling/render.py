"""Pictures, text and a timeline of one environment; matplotlib is imported only for a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtgym.envs.cluster_scheduling.types import PHASES, RESOURCES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dtgym.envs.cluster_scheduling.dynamics import SchedulingDynamics

_WIDTH_INCHES, _HEIGHT_INCHES, _DOTS_PER_INCH = 10.0, 6.0, 80
_COLOURS = 20
_SAMPLES = 400


def text(dynamics: SchedulingDynamics, index: int) -> str:
    """The clock, the queue and the free GPUs of every node."""
    state = dynamics.state(index)
    waiting, running = state.waiting, state.running
    free = " ".join(
        f"{int(now)}/{int(all_)}"
        for now, all_ in zip(state.free[:, 0], state.capacity[:, 0], strict=True)
    )
    queue = " ".join(
        f"{job}({gpus})" for job, gpus in zip(waiting.job, waiting.num_gpus, strict=True)
    )
    return "\n".join(
        [
            f"{dynamics.given.cluster.name} at {state.now_s:.0f} s: {state.finished} of "
            f"{state.jobs} jobs done, {len(running.job)} run, {len(waiting.job)} shown, "
            f"{state.backlog} behind; phase: {PHASES[state.phase]}",
            f"free GPUs by node: {free}",
            f"waiting, as job(GPUs): {queue or 'none'}",
        ]
    )


def timeline(dynamics: SchedulingDynamics, index: int) -> dict[str, Any]:
    """The schedule so far as Chrome trace events, times in microseconds.

    A process per node and a thread per GPU; a bar per job and GPU it holds; running jobs end at
    the present time.
    """
    events: list[dict[str, Any]] = []
    for node in range(len(dynamics.given.nodes)):
        name = {"name": f"node {node} ({dynamics.given.kinds[dynamics.given.nodes[node, 5]]})"}
        events.append({"ph": "M", "name": "process_name", "pid": node, "args": name})
    for bar in _bars(dynamics, index):
        for gpu in range(bar.first_gpu, bar.first_gpu + bar.gpus):
            events.append(
                {
                    "ph": "X",
                    "name": f"job {bar.job}",
                    "cat": "running" if bar.running else "done",
                    "pid": bar.node,
                    "tid": gpu,
                    "ts": bar.start_s * 1e6,
                    "dur": (bar.end_s - bar.start_s) * 1e6,
                    "args": {"gpus": bar.gang, "waited_s": bar.waited_s},
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


class _Bar:
    """A job's stretch on some neighbouring GPUs of one node."""

    __slots__ = (
        "end_s",
        "first_gpu",
        "gang",
        "gpus",
        "job",
        "node",
        "running",
        "start_s",
        "waited_s",
    )

    def __init__(
        self,
        *,
        job: int,
        node: int,
        first_gpu: int,
        gpus: int,
        gang: int,
        start_s: float,
        end_s: float,
        waited_s: float,
        running: bool,
    ) -> None:
        self.job, self.node, self.first_gpu, self.gpus = job, node, first_gpu, gpus
        self.gang, self.start_s, self.end_s = gang, start_s, end_s
        self.waited_s, self.running = waited_s, running


def _bars(dynamics: SchedulingDynamics, index: int) -> list[_Bar]:
    """Every job that has started, laid out on the lowest GPUs that were free at its start."""
    start_s, finish_s = dynamics.schedule(index)
    now_s = float(dynamics.infos()["now_s"][index])
    submit_s = dynamics.instance(index).submit_s
    end_s = np.where(np.isnan(finish_s), now_s, finish_s)
    busy_until = [np.full(int(size), -np.inf) for size in dynamics.given.nodes[:, 0]]
    bars: list[_Bar] = []
    started = np.flatnonzero(~np.isnan(start_s))
    for job in started[np.argsort(start_s[started], kind="stable")]:
        for node in np.flatnonzero(dynamics.grids[index, job]):
            wanted = int(dynamics.grids[index, job, node])
            free = np.flatnonzero(busy_until[node] <= start_s[job])[:wanted]
            busy_until[node][free] = end_s[job]
            # Neighbouring GPUs make one bar.
            for group in np.split(free, np.flatnonzero(np.diff(free) > 1) + 1):
                bars.append(
                    _Bar(
                        job=int(job),
                        node=int(node),
                        first_gpu=int(group[0]),
                        gpus=len(group),
                        gang=int(dynamics.grids[index, job].sum()),
                        start_s=float(start_s[job]),
                        end_s=float(end_s[job]),
                        waited_s=float(start_s[job] - submit_s[job]),
                        running=bool(np.isnan(finish_s[job])),
                    )
                )
    return bars


def picture(dynamics: SchedulingDynamics, index: int) -> NDArray[np.uint8]:
    """Gantt chart of the GPUs above, jobs in the system and utilisation below."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_INCHES, _HEIGHT_INCHES), dpi=_DOTS_PER_INCH)
    canvas = FigureCanvasAgg(figure)
    gantt, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1))
    _draw_gantt(gantt, dynamics, index)
    _draw_load(below, dynamics, index)
    figure.tight_layout()
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()


def _draw_gantt(axes: Axes, dynamics: SchedulingDynamics, index: int) -> None:
    from matplotlib import colormaps
    from matplotlib.collections import PolyCollection

    first_row = np.concatenate(([0], np.cumsum(dynamics.given.nodes[:, 0])))
    shapes: list[list[tuple[float, float]]] = []
    colours: list[Any] = []
    for bar in _bars(dynamics, index):
        low = float(first_row[bar.node] + bar.first_gpu)
        high = low + bar.gpus - 0.1
        left, right = bar.start_s / 3600, bar.end_s / 3600
        shapes.append([(left, low), (right, low), (right, high), (left, high)])
        colours.append(colormaps["tab20"](bar.job % _COLOURS))
    axes.add_collection(PolyCollection(shapes, facecolors=colours, linewidths=0))
    for border in first_row[1:-1]:
        axes.axhline(border - 0.05, color="0.8", linewidth=0.5)
    now_h = float(dynamics.infos()["now_s"][index]) / 3600
    axes.set_xlim(0, max(now_h, 1e-3))
    axes.set_ylim(first_row[-1], 0)
    axes.set_ylabel("GPU (lines part nodes)")
    state = dynamics.state(index)
    axes.set_title(
        f"{dynamics.given.cluster.name}: {state.finished} of {state.jobs} jobs done, "
        f"{len(state.running.job)} run, {len(state.waiting.job) + state.backlog} wait"
    )


def _draw_load(axes: Axes, dynamics: SchedulingDynamics, index: int) -> None:
    start_s, finish_s = dynamics.schedule(index)
    now_s = float(dynamics.infos()["now_s"][index])
    submit_s = dynamics.instance(index).submit_s
    times_s = np.linspace(0, max(now_s, 1.0), _SAMPLES)
    begun = np.nan_to_num(start_s, nan=np.inf)
    ended = np.nan_to_num(finish_s, nan=np.inf)
    gpus = dynamics.instance(index).num_gpus
    runs = (begun[:, None] <= times_s) & (times_s < ended[:, None])
    waits = (submit_s[:, None] <= times_s) & (times_s < begun[:, None])
    total = dynamics.given.nodes[:, 0].sum()
    axes.fill_between(
        times_s / 3600,
        (runs * gpus[:, None]).sum(axis=0) / total,
        step="post",
        alpha=0.5,
        label=f"allocated {RESOURCES[0].upper()}s",
    )
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("share of GPUs")
    axes.set_xlabel("time (h)")
    count = axes.twinx()
    count.step(times_s / 3600, waits.sum(axis=0), where="post", color="C3", label="waiting jobs")
    count.set_ylabel("waiting jobs", color="C3")
    count.set_ylim(bottom=0)
