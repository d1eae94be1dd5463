"""SenseTime Helios and Shanghai AI Lab Acme: accounting tables with wall-clock times.

Sources: S-Lab-System-Group/HeliosData (CC BY 4.0), README, Hu et al., SC'21;
InternLM/AcmeTrace (CC BY 4.0), README, Hu et al., NSDI'24.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.jobs import JobTable
from dtgym.simulator.trace_formats.reading import Columns, ids_of

_TIMES = ("submit_time", "start_time", "end_time", "duration")
HELIOS = ("job_id", "user", "vc", "gpu_num", "cpu_num", "node_num", *_TIMES)
ACME = ("job_id", "user", "node_num", "gpu_num", "cpu_num", "type", *_TIMES)


def read_helios(path: Path, text: str) -> JobTable:
    """Reads `cluster_log.csv`; jobs that never started or have not ended are left out, counted.

    `duration` must be end - start in seconds.
    """
    table = Columns.parse(path, text)
    table.require(HELIOS)
    submit, start, end = _times(table)
    duration = table.number("duration", "s", blank=np.nan, minimum=0)
    off = np.abs(duration - (end - start)) > 1
    table.refuse(off, "duration", "must be end_time - start_time in seconds (mixed units?)")
    return table.jobs(
        job_id=ids_of(table.text("job_id")),
        submit_s=submit,
        wall_clock=True,
        duration_s=end - start,
        num_gpus=table.number("gpu_num", "GPUs", minimum=0),
        cpu_cores=table.number("cpu_num", "cores", minimum=0),
        user=table.text("user"),
        vc=table.text("vc"),
    )


def read_acme(path: Path, text: str) -> JobTable:
    """Reads `trace_seren.csv` or `trace_kalos.csv`.

    The run time is end - start: the published `duration` is that in Seren, but end - submit in
    Kalos's examples, so it is only checked to be one of the two. Kalos's memory per pod counts
    once per node. The workload type stands in `vc`.
    """
    table = Columns.parse(path, text)
    table.require(ACME)
    submit, start, end = _times(table)
    duration = table.number("duration", "s", blank=np.nan, minimum=0)
    off = (np.abs(duration - (end - start)) > 1) & (np.abs(duration - (end - submit)) > 1)
    table.refuse(
        off, "duration", "must be end_time - start_time or - submit_time in seconds (mixed units?)"
    )
    memory = None
    if "mem_per_pod_GB" in table.values:
        per_pod = table.number("mem_per_pod_GB", "GB", blank=0, minimum=0)
        memory = per_pod * 1e9 * table.number("node_num", "nodes", blank=1, minimum=0)
    return table.jobs(
        job_id=ids_of(table.text("job_id")),
        submit_s=submit,
        wall_clock=True,
        duration_s=end - start,
        num_gpus=table.number("gpu_num", "GPUs", minimum=0),
        cpu_cores=table.number("cpu_num", "cores", minimum=0),
        memory_bytes=memory,
        user=table.text("user"),
        vc=table.text("type"),
    )


def _times(table: Columns) -> tuple[NDArray[np.float64], ...]:
    """Submission, start and end in Unix seconds, after leaving out the unfinished."""
    submit = table.moment("submit_time")
    start = table.moment("start_time", blank=True)
    end = table.moment("end_time", blank=True)
    table.leave_out(np.isnan(start), "that never started")
    table.leave_out(np.isnan(end), "that have no end")
    table.refuse(submit > end, "submit_time", "must not come after end_time")
    table.refuse(start > end, "start_time", "must not come after end_time")
    return submit, start, end
