"""Traces of scheduler simulators: Gavel, Muri, Tiresias.

Sources: stanford-futuredata/gavel (MIT); Rivendile/Muri (Apache-2.0), times in milliseconds;
SymbioticLab/Tiresias (Apache-2.0), times in seconds.
"""

from __future__ import annotations

import csv
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.jobs import JobTable
from dtgym.simulator.trace_formats.reading import Columns, ids_of

TIRESIAS = ("job_id", "num_gpu", "submit_time", "duration")
MURI = (*TIRESIAS, "iterations", "iteration_time", "model_name")
GAVEL = ("job_type", "scale_factor", "total_steps", "arrival_s")
GAVEL_TSV = (
    "job_type",
    "command",
    "working_directory",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "scale_factor",
    "priority_weight",
    "slo",
    "arrival_s",
)


def read_tiresias(path: Path, text: str) -> JobTable:
    """Reads job_id, num_gpu, submit_time s, duration s, and model, iterations, interval if there.

    Lucid's and our golden cases have the same four columns. Where `interval` is given it is the
    time to the next submission: a row that disagrees mixes units.
    """
    table = Columns.parse(path, text)
    table.require(TIRESIAS)
    submit = table.number("submit_time", "s", minimum=0)
    if "interval" in table.values:
        interval = table.number("interval", "s")
        gap = np.diff(submit, append=submit[-1] + interval[-1])
        off = np.abs(gap - interval) > 1
        table.refuse(off, "interval", "must be the seconds to the next submit_time (mixed units?)")
    given = table.values
    iterations = table.number("iterations", "", minimum=0) if "iterations" in given else None
    return table.jobs(
        job_id=ids_of(table.text("job_id")),
        submit_s=submit,
        wall_clock=False,
        duration_s=table.number("duration", "s", minimum=0),
        num_gpus=table.number("num_gpu", "GPUs", minimum=0),
        model=_model(table.text("model_name")) if "model_name" in given else None,
        iterations=iterations,
    )


def read_muri(path: Path, text: str) -> JobTable:
    """Reads Muri's CSV: submit, duration and per-iteration stage times, all in milliseconds.

    Resource 0 is the host side (input pipeline on the CPU), 1 the GPU, 2 the network. The model
    and with it the stage times were assigned by Muri's authors, so those columns are synthetic.
    `duration` must be iterations x iteration_time; a row where it is not mixes units.
    """
    table = Columns.parse(path, text)
    table.require(MURI)
    duration = table.number("duration", "ms", minimum=0)
    iterations = table.number("iterations", "", minimum=0)
    per_iteration = table.number("iteration_time", "ms", minimum=0)
    # Published durations are whole seconds, so a second or an iteration may be missing.
    slack = 1000 + per_iteration + 1e-3 * duration
    off = np.abs(duration - iterations * per_iteration) > slack
    table.refuse(
        off, "duration", "must be iterations x iteration_time in milliseconds (mixed units?)"
    )
    stages = {
        name: table.number(raw, "ms", minimum=0) / 1000
        for name, raw in (
            ("cpu_stage_s", "resource_time_0"),
            ("gpu_stage_s", "resource_time_1"),
            ("network_stage_s", "resource_time_2"),
        )
        if raw in table.values
    }
    return table.jobs(
        job_id=ids_of(table.text("job_id")),
        submit_s=table.number("submit_time", "ms", minimum=0) / 1000,
        wall_clock=False,
        duration_s=duration / 1000,
        num_gpus=table.number("num_gpu", "GPUs", minimum=0),
        model=_model(table.text("model_name")),
        iterations=iterations,
        synthetic=("model", "iterations", *stages),
        **stages,
    )


def read_gavel(path: Path, text: str) -> JobTable:
    """Reads Gavel's tab-separated trace (no header), or a CSV with its column names.

    A job states its steps; its run time is steps / (steps per second on V100 of that type and
    gang), from the shipped `catalog/scheduling/gavel_steps_per_s.csv`, and therefore synthetic, as
    is the model (Gavel's authors sampled it). A gang that was not profiled takes the rate of the
    largest profiled gang below it.
    """
    if "\t" in text.split("\n", 1)[0]:
        header = GAVEL_TSV
        fields = text.split("\n", 1)[0].count("\t") + 1
        if fields == len(GAVEL_TSV) - 1:  # traces before the working directory was added
            header = tuple(name for name in GAVEL_TSV if name != "working_directory")
        table = Columns.parse(path, text, delimiter="\t", header=header)
    else:
        table = Columns.parse(path, text)
        table.require(GAVEL)
    types = table.text("job_type")
    gpus = table.number("scale_factor", "GPUs", minimum=1)
    known = {name for name, _ in gavel_steps_per_s()}
    table.refuse(~np.isin(types, sorted(known)), "job_type", "is no job type that Gavel profiled")
    pairs = list(zip(types.tolist(), gpus.tolist(), strict=True))
    rate_of = {pair: _rate(*pair) for pair in set(pairs)}
    rate = np.array([rate_of[pair] for pair in pairs])
    steps = table.number("total_steps", "steps", minimum=0)
    given = table.values
    vc = table.text("vc") if "vc" in given else None
    ids = ids_of(table.text("job_id")) if "job_id" in given else None
    weight = None
    if "priority_weight" in given:
        weight = table.number("priority_weight", "", minimum=0)
    return table.jobs(
        job_id=ids,
        submit_s=table.number("arrival_s", "s", minimum=0),
        wall_clock=False,
        duration_s=steps / rate,
        num_gpus=gpus,
        vc=vc,
        model=_model(types),
        iterations=steps,
        weight=weight,
        synthetic=("duration_s", "model", "iterations"),
    )


@lru_cache(maxsize=1)
def gavel_steps_per_s() -> dict[tuple[str, int], dict[str, float]]:
    """Published steps per second by (job type, GPUs) and GPU type (v100, p100, k80).

    Source: stanford-futuredata/gavel, `simulation_throughputs.json` (MIT), jobs running alone on
    GPUs of one server; `*_unconsolidated` is the same over servers.
    """
    file = files("dtgym.simulator") / "catalog/scheduling/gavel_steps_per_s.csv"
    lines = [
        line for line in file.read_text("utf-8").splitlines() if line and not line.startswith("#")
    ]
    table: dict[tuple[str, int], dict[str, float]] = {}
    for row in csv.DictReader(lines):
        rates = {k: float(v) for k, v in row.items() if k not in ("job_type", "gpus") and v}
        table[row["job_type"], int(row["gpus"])] = rates
    return table


def _rate(job_type: str, gpus: float) -> float:
    profiled = [size for name, size in gavel_steps_per_s() if name == job_type and size <= gpus]
    if not profiled:
        raise InvalidInput(f"job_type {job_type}: no profiled gang of at most {gpus:g} GPUs")
    return gavel_steps_per_s()[job_type, max(profiled)]["v100"]


def _model(names: np.ndarray) -> np.ndarray:
    """Model classes in one spelling: lower case, no batch size, no hyphens."""
    kinds, which = np.unique(names, return_inverse=True)
    short = [str(kind).split(" (")[0].lower().replace("-", "") for kind in kinds]
    return np.array(short)[which]
