"""Pictures, text and a timeline of one environment; matplotlib is imported only for a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.communication_mechanisms import MECHANISMS
from dtgym.simulator.communication_timeline import Timeline
from dtgym.simulator.communication_timeline import timeline as simulate_timeline
from dtgym.simulator.networks import Network

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dtgym.envs.communication_tuning.dynamics import TuningDynamics

_TIME, _DEFAULT, _PARTITION, _CREDIT = range(4)
_WIDTH_INCHES, _HEIGHT_INCHES, _DOTS_PER_INCH = 8.0, 6.0, 80


def text(dynamics: TuningDynamics, index: int) -> str:
    """Three lines on the present step."""
    parameters = dynamics.parameters
    time_s, default_s, in_force, credit = dynamics.history[index, dynamics.time[index]]
    chosen = dynamics.partition_grid[dynamics.partition[index]]
    waiting = "" if chosen == in_force else f" (in force: {in_force / 1e6:g} MB)"
    return "\n".join(
        [
            f"{dynamics.profiles.names[dynamics.model[index]]}, {parameters.architecture}, "
            f"{parameters.mechanism}: step {dynamics.time[index]} of {parameters.horizon}",
            f"partition {chosen / 1e6:g} MB{waiting}, credit {credit / 1e6:g} MB",
            f"iteration {time_s * 1e3:.1f} ms, default {default_s * 1e3:.1f} ms, "
            f"speed-up {default_s / time_s:.2f}",
        ]
    )


def timeline(dynamics: TuningDynamics, index: int) -> Timeline:
    """Every piece of one iteration in the present state under the configuration in force."""
    parameters = dynamics.parameters
    mechanism = MECHANISMS[parameters.mechanism]
    factors = dynamics.factors[index, dynamics.time[index]]
    row = dynamics.networks.matrix(factors[None])[0]
    cell = dynamics.effective[index] * len(dynamics.credit_grid) + dynamics.credit[index]
    partition, credit = dynamics.sizes(np.array([cell]))
    return simulate_timeline(
        mechanism.layers(dynamics.profiles.layers[dynamics.model[index]]),
        Network(*row),
        float(partition[0]),
        float(credit[0]),
        architecture=parameters.architecture,
        order=mechanism.order,
        barrier=mechanism.barrier,
        credit_rule=mechanism.credit_rule,
        credit_return=mechanism.credit_return,
    )


def picture(dynamics: TuningDynamics, index: int) -> NDArray[np.uint8]:
    """The episode so far and one iteration, uint8, (height, width, 3)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((_WIDTH_INCHES, _HEIGHT_INCHES), dpi=_DOTS_PER_INCH)
    canvas = FigureCanvasAgg(figure)
    # Fixed margins: matplotlib's automatic layouts take longer than the drawing.
    margins = {"left": 0.13, "right": 0.98, "top": 0.94, "bottom": 0.08, "hspace": 0.3}
    times, sizes, pieces = figure.subplots(3, 1, gridspec_kw=margins)
    figure.suptitle(text(dynamics, index).splitlines()[0])
    past = dynamics.history[index, : dynamics.time[index] + 1]
    steps = np.arange(len(past))
    times.step(steps, past[:, _DEFAULT] * 1e3, where="mid", color="0.6", label="default")
    times.step(steps, past[:, _TIME] * 1e3, where="mid", color="C0", label="this configuration")
    times.set(ylabel="iteration (ms)", xlim=(0, dynamics.parameters.horizon), ylim=(0, None))
    times.legend(loc="lower left", fontsize="small")
    sizes.step(steps, past[:, _PARTITION] / 1e6, where="mid", color="C1", label="partition")
    sizes.step(steps, past[:, _CREDIT] / 1e6, where="mid", color="C2", label="credit")
    sizes.set(ylabel="MB", yscale="log", xlim=(0, dynamics.parameters.horizon), xlabel="step")
    sizes.legend(loc="lower left", fontsize="small")
    _draw_timeline(pieces, timeline(dynamics, index), dynamics.parameters.architecture)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _draw_timeline(axes: Axes, iteration: Timeline, architecture: str) -> None:
    """One row each for compute and the channels; colour stands for the layer."""
    from matplotlib import colormaps

    layers = len(iteration.forward_end_s)
    colour = colormaps["viridis"]
    every = np.arange(layers)
    tracks = (
        ["compute", "all-reduce"] if architecture == "allreduce" else ["compute", "push", "pull"]
    )
    rows = (
        (0, every, iteration.backward_start_s, iteration.backward_end_s),
        (0, every, iteration.forward_start_s, iteration.forward_end_s),
        (1, iteration.layer, iteration.upload_start_s, iteration.upload_end_s),
        (2, iteration.layer, iteration.download_start_s, iteration.download_end_s),
    )
    for height, layer, start_s, end_s in rows[: len(tracks) + 1]:
        spans = list(zip(start_s * 1e3, (end_s - start_s) * 1e3, strict=True))
        axes.broken_barh(spans, (height - 0.4, 0.8), color=colour(layer / max(layers - 1, 1)))
    axes.set(xlabel="one iteration (ms); colour: layer", xlim=(0, iteration.iteration_time_s * 1e3))
    axes.set_yticks(range(len(tracks)), tracks)
    axes.invert_yaxis()
