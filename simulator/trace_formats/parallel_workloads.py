"""Standard Workload Format of the Parallel Workloads Archive.

Source: Feitelson, "The Standard Workload Format" (18 fields, -1 is unknown, times in seconds).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.jobs import JobTable
from dtgym.simulator.trace_formats.reading import Columns

SWF = (
    "job_number",
    "submit_time",
    "wait_time",
    "run_time",
    "allocated_processors",
    "average_cpu_time",
    "used_memory",
    "requested_processors",
    "requested_time",
    "requested_memory",
    "status",
    "user_id",
    "group_id",
    "executable",
    "queue",
    "partition",
    "preceding_job",
    "think_time",
)
_KIB = 1024.0


def read_swf(path: Path, text: str) -> JobTable:
    """Reads an SWF log. A processor is what the gang consists of: it stands in `num_gpus`.

    Requested processors if known, else the allocated ones. Jobs whose run time or processors are
    unknown (cancelled before the start, mostly) are left out and counted.
    """
    rows: list[list[str]] = []
    numbers: list[int] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith(";"):
            continue
        fields = line.split()
        if len(fields) != len(SWF):
            column = SWF[min(len(fields), len(SWF) - 1)]
            raise InvalidInput(
                f"{path}: row {len(rows) + 1} (line {number}), column {column}: expected "
                f"{len(SWF)} fields, got {len(fields)}"
            )
        rows.append(fields)
        numbers.append(number)
    if not rows:
        raise InvalidInput(f"{path}: has comments but no jobs")
    values: dict[str, Sequence[str]] = dict(zip(SWF, zip(*rows, strict=True), strict=True))
    table = Columns(path, values, np.array(numbers, dtype=np.int64))
    run = table.number("run_time", "s", minimum=-1)
    asked = table.number("requested_processors", "processors", minimum=-1)
    allocated = table.number("allocated_processors", "processors", minimum=-1)
    processors = np.where(asked > 0, asked, allocated)
    table.leave_out(run < 0, "whose run time is unknown")
    table.leave_out(processors <= 0, "whose processors are unknown")
    submit = table.number("submit_time", "s", minimum=0)
    wait = table.number("wait_time", "s", minimum=-1)
    estimate = table.number("requested_time", "s", minimum=-1)
    memory = table.number("requested_memory", "KiB per processor", minimum=-1)
    del wait  # checked only: the recorded wait belongs to the machine that was logged
    return table.jobs(
        job_id=table.number("job_number", "").astype(np.int64),
        submit_s=submit,
        wall_clock=False,
        duration_s=run,
        num_gpus=processors,
        user=table.text("user_id"),
        vc=table.text("queue"),
        estimate_s=np.where(estimate >= 0, estimate, run) if (estimate >= 0).all() else None,
        memory_bytes=memory * _KIB * processors if (memory >= 0).all() else None,
    )
