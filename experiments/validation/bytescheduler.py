"""Holds the communication model against charts: ``scripts/validate.py bytescheduler``.

Eighteen speeds (three models at 16, 32 and 64 accelerators, with and without ByteScheduler) are
predicted with one set of constants. The charts state neither batch sizes nor tuned knobs; what is
assumed instead is listed in `ASSUMPTIONS` and discussed in docs/communication.md.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.experiments.validation import Report
from dtgym.simulator import communication_workloads
from dtgym.simulator.communication import LayerTables, Network, batch_iteration_time_s
from dtgym.simulator.communication_mechanisms import DEFAULT_PARTITION_BYTES, MECHANISMS
from dtgym.simulator.errors import InvalidInput

TARGET_RMS_IMAGES = 0.06
"""Largest root mean square of relative errors over VGG16 and ResNet50."""

TARGET_RMS_ALL = 0.10
"""The same with Transformer."""

GPUS_PER_MACHINE = 8
BATCH = {"vgg16": 32.0, "resnet50": 32.0, "transformer_base": 4096.0}
MODELS = tuple(BATCH)
CREDITS_BYTES = 4e6 * 2.0 ** np.linspace(0, 4, 9)

ASSUMPTIONS = (
    "batch per accelerator: 32 images (VGG16, ResNet50), 4096 tokens (Transformer, the value in "
    "GluonNLP's training command)",
    "compute: published layer proportions, scaled to the chart's linear speed",
    "gradients travel tensor by tensor; as many servers as machines",
    "baseline: whole tensors in FIFO order without barrier (MXNet)",
    "ByteScheduler: its default partition of 4 MB, credit tuned within the release's 4 to 64 MB",
    "the server works on each key for a time per byte that falls with the number of servers, and "
    "is longer for Adam (Transformer) than for SGD (VGG16, ResNet50)",
)


@dataclass(frozen=True)
class Constants:
    """The fitted constants of the testbed; one set for all eighteen points.

    Attributes:
        bandwidth_bytes_per_s: Effective bandwidth per machine and direction.
        message_overhead_s: Occupancy per message and direction.
        completion_delay_s: Delay until the scheduler knows of a completion.
        sgd_s_per_byte: Server's time per byte of a key with SGD, times the number of servers.
        adam_s_per_byte: The same with Adam.
    """

    bandwidth_bytes_per_s: float
    message_overhead_s: float
    completion_delay_s: float
    sgd_s_per_byte: float
    adam_s_per_byte: float


FITTED = Constants(1.89e9, 3.61e-4, 1.01e-2, 6.65e-10, 6.84e-8)
"""Found by `fit`; rounded."""

BOUNDS = ((3e8, 1.25e10), (1e-6, 1e-3), (1e-5, 5e-2), (1e-11, 1e-8), (1e-11, 2e-7))
"""Where `fit` looks: the bandwidth up to the nominal 100 Gbit/s."""

HYPOTHESES: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "network only": lambda x: np.concatenate([x[:3], [0.0, 0.0]]),
    "and one server constant": lambda x: x[[0, 1, 2, 3, 3]],
    "and one per optimiser": lambda x: x,
}
"""What `fit` compares: how many constants of the server are free."""


@dataclass(frozen=True)
class Charts:
    """The published points.

    Attributes:
        model: Model of each row, (rows,).
        machines: Machines of each row, (rows,).
        measured_s: Published iteration time without and with ByteScheduler, (rows, 2).
        tables: One model per row, scaled to its linear speed.
    """

    model: tuple[str, ...]
    machines: NDArray[np.float64]
    measured_s: NDArray[np.float64]
    tables: LayerTables


def validate(data: Path | None, *, fit: bool = False) -> Report:
    """Predicts the eighteen points and compares.

    Args:
        data: A folder with ``published.csv`` or such a file; None takes the shipped copy of the
            charts.
        fit: Fit the constants anew, compare hypotheses, and predict a third of the points from the
            other two thirds; about a minute.

    Raises:
        InvalidInput: Points missing from the file.
    """
    charts = _charts(read_shipped() if data is None else read_published(data))
    constants = FITTED
    lines: list[str] = []
    figures: dict[str, Any] = {}
    if fit:
        fits = {name: fit_constants(charts, expand) for name, expand in HYPOTHESES.items()}
        constants = fits["and one per optimiser"]
        for name, found in fits.items():
            summary = _summary(charts, predict(charts, found))
            figures.setdefault("hypotheses", {})[name] = vars(found) | summary
            lines.append(
                f"fit, {name}: rms {summary['rms_images']:.1%} VGG16 + ResNet50, "
                f"{summary['rms_all']:.1%} with Transformer"
            )
        middle = charts.machines == np.median(charts.machines)
        held_out = fit_constants(charts, HYPOTHESES["and one per optimiser"], ~middle)
        error = (predict(charts, held_out) / charts.measured_s - 1)[middle]
        figures["held_out_rms"] = float(np.sqrt((error**2).mean()))
        lines.append(
            f"fit on 16 and 64 accelerators, predicting 32: rms {figures['held_out_rms']:.1%}"
        )
    predicted_s = predict(charts, constants)
    summary = _summary(charts, predicted_s)
    passed = summary["rms_images"] <= TARGET_RMS_IMAGES and summary["rms_all"] <= TARGET_RMS_ALL
    points: list[dict[str, Any]] = []
    for row, model in enumerate(charts.model):
        for column, method in enumerate(("baseline", "bytescheduler")):
            points.append(
                {
                    "model": model,
                    "gpus": int(charts.machines[row] * GPUS_PER_MACHINE),
                    "method": method,
                    "measured_s": float(charts.measured_s[row, column]),
                    "predicted_s": float(predicted_s[row, column]),
                    "relative_error": float(
                        predicted_s[row, column] / charts.measured_s[row, column] - 1
                    ),
                }
            )
    lines += [
        f"{p['model']:16} {p['gpus']:2} GPUs {p['method']:13} measured {p['measured_s']:.3f} s, "
        f"predicted {p['predicted_s']:.3f} s ({p['relative_error']:+.1%})"
        for p in points
    ]
    lines.append("constants: " + ", ".join(f"{k} {v:.3g}" for k, v in vars(constants).items()))
    lines += [f"assumed: {line}" for line in ASSUMPTIONS]
    lines.append(
        f"rms of relative errors: {summary['rms_images']:.1%} VGG16 + ResNet50 (target "
        f"{TARGET_RMS_IMAGES:.0%}), {summary['rms_all']:.1%} with Transformer (target "
        f"{TARGET_RMS_ALL:.0%})"
    )
    figures |= summary | {
        "target_rms_images": TARGET_RMS_IMAGES,
        "target_rms_all": TARGET_RMS_ALL,
        "constants": vars(constants),
        "assumptions": list(ASSUMPTIONS),
        "points": points,
    }
    return Report(passed, figures, lines)


def predict(charts: Charts, constants: Constants) -> NDArray[np.float64]:
    """Predicted iteration times without and with ByteScheduler, s, (rows, 2)."""
    adam = np.array([model == "transformer_base" for model in charts.model])
    per_byte = np.where(adam, constants.adam_s_per_byte, constants.sgd_s_per_byte)
    network = Network.parameter_server(
        np.full(len(adam), constants.bandwidth_bytes_per_s),
        workers=charts.machines,
        servers=charts.machines,
        message_overhead_s=constants.message_overhead_s,
        completion_delay_s=constants.completion_delay_s,
        aggregation_s_per_byte=per_byte / charts.machines,
    )
    rows = np.arange(len(adam))
    baseline_s = batch_iteration_time_s(
        charts.tables, rows, network, np.inf, np.inf, flags=MECHANISMS["fifo"].flags("ps")
    )
    scheduled_s = [
        batch_iteration_time_s(
            charts.tables,
            rows,
            network,
            DEFAULT_PARTITION_BYTES,
            credit,
            flags=MECHANISMS["bytescheduler"].flags("ps"),
        )
        for credit in CREDITS_BYTES
    ]
    return np.stack([baseline_s, np.min(scheduled_s, axis=0)], axis=1)


def fit_constants(
    charts: Charts,
    expand: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    rows: NDArray[np.bool_] | None = None,
) -> Constants:
    """Least squares of relative errors over bounded constants, by differential evolution.

    Args:
        charts: The points.
        expand: Turns the five searched numbers into the five constants; see `HYPOTHESES`.
        rows: Points to fit, (rows,); None fits all.
    """
    from scipy import optimize

    search: Any = optimize.differential_evolution

    chosen = np.ones(len(charts.model), dtype=np.bool_) if rows is None else rows

    def loss(logarithms: NDArray[np.float64]) -> float:
        found = Constants(*expand(np.exp(logarithms)).tolist())
        error = predict(charts, found) / charts.measured_s - 1
        return float((error[chosen] ** 2).mean())

    result = search(loss, np.log(BOUNDS), seed=0, popsize=10, maxiter=60, tol=1e-6)
    return Constants(*expand(np.exp(result.x)).tolist())


Speeds = dict[tuple[str, int, str], float]
METHODS = ("baseline", "bytescheduler", "linear")


def read_shipped() -> Speeds:
    """The charts in the catalogue: speed by (model, accelerators, method)."""
    file = resources.files("dtgym.simulator") / "catalog/communication/bytescheduler_charts.csv"
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    return {
        (row["model"], int(row["gpus"]), method): float(row[method])
        for row in csv.DictReader(lines)
        for method in METHODS
    }


def read_published(data: Path) -> Speeds:
    """The charts in a table of published numbers: speed by (model, accelerators, method).

    Raises:
        InvalidInput: No such file, or not such a table.
    """
    file = data / "published.csv" if data.is_dir() else data
    if not file.is_file():
        raise InvalidInput(f"--data: no published.csv in {data}")
    names = {"VGG16": "vgg16", "ResNet50": "resnet50", "Transformer": "transformer_base"}
    speeds: Speeds = {}
    with file.open(newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines), start=2):
            if not (row.get("figure") or "").startswith("mxnet_ps_rdma"):
                continue
            try:
                key = (names[row["model"]], int(row["gpus"]), row["config"].lower())
                speeds[key] = float(row["value"])
            except (KeyError, TypeError, ValueError) as error:
                raise InvalidInput(f"{file}, line {number}: no chart point: {error!r}") from None
    return speeds


def _charts(speeds: Speeds) -> Charts:
    models: list[str] = []
    machines: list[float] = []
    measured: list[list[float]] = []
    layers = []
    for model in MODELS:
        for gpus in (16, 32, 64):
            missing = [m for m in METHODS if not speeds.get((model, gpus, m), 0.0) > 0]
            if missing:
                raise InvalidInput(f"--data: no speed of {missing[0]} for {model} on {gpus} GPUs")
            baseline, scheduled, linear = (speeds[model, gpus, m] for m in METHODS)
            work = BATCH[model] * gpus
            models.append(model)
            machines.append(gpus / GPUS_PER_MACHINE)
            measured.append([work / baseline, work / scheduled])
            whole = communication_workloads.load(model, granularity="tensor")
            layers.append(communication_workloads.at_throughput(whole, BATCH[model], linear / gpus))
    return Charts(tuple(models), np.array(machines), np.array(measured), LayerTables.stack(layers))


def _summary(charts: Charts, predicted_s: NDArray[np.float64]) -> dict[str, float]:
    error = predicted_s / charts.measured_s - 1
    images = np.array([model != "transformer_base" for model in charts.model])
    return {
        "rms_images": float(np.sqrt((error[images] ** 2).mean())),
        "rms_all": float(np.sqrt((error**2).mean())),
    }
