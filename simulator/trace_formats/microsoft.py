"""Microsoft Philly: the original JSON job log, and the job-level CSV cut from it.

Source: msr-fiddle/philly-traces (CC BY 4.0), README; Jeon et al., ATC'19.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.jobs import JobTable
from dtgym.simulator.trace_formats.reading import Columns

PHILLY_CSV = ("timestamp", "duration", "num_gpus")


def read_philly_csv(path: Path, text: str) -> JobTable:
    """Reads the job-level table: timestamp, duration s, num_gpus, gpu_time GPU-s, vc or cluster.

    `gpu_time` must be duration x num_gpus; a row where it is not mixes units.
    """
    table = Columns.parse(path, text)
    table.require(PHILLY_CSV)
    duration = table.number("duration", "s", minimum=0)
    gpus = table.number("num_gpus", "GPUs", minimum=0)
    if "gpu_time" in table.values:
        product = table.number("gpu_time", "GPU-s", minimum=0)
        off = np.abs(product - duration * gpus) > 1.0 + 1e-6 * product
        table.refuse(off, "gpu_time", "must be duration x num_gpus in GPU-seconds (mixed units?)")
    vc = next((name for name in ("vc", "cluster") if name in table.values), None)
    return table.jobs(
        submit_s=table.moment("timestamp"),
        wall_clock=True,
        duration_s=duration,
        num_gpus=gpus,
        vc=None if vc is None else table.text(vc),
    )


def read_philly_json(path: Path, text: str) -> JobTable:
    """Reads `cluster_job_log`.

    The run time is the sum over the job's attempts and the gang is the largest over them. Jobs
    without a finished attempt (never scheduled, still running, or a logging error) are left out
    and counted.
    """
    try:
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"{path}: line {error.lineno}, column {error.colno}: no JSON") from error
    if not isinstance(entries, list) or not entries:
        raise InvalidInput(f"{path}: expected a list of jobs, got {type(entries).__name__}")
    names = ("jobid", "submitted_time", "vc", "user", "start_time", "end_time")
    rows = [_first_values(path, number, entry) for number, entry in enumerate(entries, start=1)]
    values: dict[str, Sequence[str]] = dict(zip(names, zip(*rows, strict=True), strict=True))
    table = Columns(path, values, np.arange(1, len(rows) + 1))
    gpus, duration = _attempts(path, entries)
    submit = table.moment("submitted_time", blank=True)
    table.leave_out(np.isnan(submit), "without a time of submission")
    table.leave_out(np.isnan(duration), "without a finished attempt")
    end = table.moment("end_time", blank=True)
    table.refuse(submit > end, "submitted_time", "must not come after the job's end")
    return table.jobs(
        job_id=table.text("jobid"),
        submit_s=submit,
        wall_clock=True,
        duration_s=duration,
        num_gpus=gpus,
        vc=table.text("vc"),
        user=table.text("user"),
    )


def _first_values(path: Path, number: int, entry: Any) -> tuple[str, ...]:
    """Texts of one job, in the order of the names above; blanks where nothing is recorded."""
    if not isinstance(entry, dict):
        raise InvalidInput(f"{path}: row {number}: expected a job, got {type(entry).__name__}")
    for name in ("jobid", "submitted_time", "vc", "attempts"):
        if name not in entry:
            raise InvalidInput(f"{path}: row {number}, column {name}: is missing")
    if not isinstance(entry["attempts"], list):
        raise InvalidInput(f"{path}: row {number}, column attempts: must be a list")
    attempts = [one for one in entry["attempts"] if _finished(one)]
    start = attempts[0]["start_time"] if attempts else ""
    end = attempts[-1]["end_time"] if attempts else ""
    plain = (entry["jobid"], entry["submitted_time"], entry["vc"], entry.get("user"), start, end)
    return tuple("" if value is None else str(value) for value in plain)


def _finished(attempt: Any) -> bool:
    if not isinstance(attempt, dict):
        return False
    ends = (attempt.get("start_time"), attempt.get("end_time"))
    return all(isinstance(one, str) and one not in ("", "None") for one in ends)


def _attempts(path: Path, entries: list[Any]) -> tuple[Any, Any]:
    """Largest gang and summed run time of each job; NaN seconds without a finished attempt."""
    job: list[int] = []
    starts: list[str] = []
    ends: list[str] = []
    gpus = np.zeros(len(entries))
    for row, entry in enumerate(entries):
        for attempt in entry["attempts"]:
            if not _finished(attempt):
                continue
            job.append(row)
            starts.append(attempt["start_time"])
            ends.append(attempt["end_time"])
            held = sum(len(server.get("gpus") or ()) for server in attempt.get("detail") or ())
            gpus[row] = max(gpus[row], held)
    lines = np.array(job, dtype=np.int64) + 1
    span = Columns(path, {"start_time": starts, "end_time": ends}, lines)
    seconds = span.moment("end_time") - span.moment("start_time")
    if (seconds < 0).any():
        at = int(np.argmax(seconds < 0))
        raise InvalidInput(
            f"{path}: row {lines[at]}, column end_time: must not come before the attempt's "
            f"start_time {starts[at]}, got {ends[at]!r}"
        )
    total = np.bincount(job, weights=seconds, minlength=len(entries)) if job else gpus * 0
    total[np.bincount(job, minlength=len(entries)) == 0] = np.nan
    return gpus, total
