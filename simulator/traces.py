"""Reads the public job traces into job tables, and writes our own CSV.

| format | file | what is read |
|---|---|---|
| philly | `cluster_job_log` (JSON) or the job-level CSV | times, GPUs, virtual cluster, user |
| helios | `cluster_log.csv` | times, GPUs, CPU cores, user, virtual cluster |
| acme | `trace_seren.csv`, `trace_kalos.csv` | times, GPUs, CPU cores, memory, workload type |
| pai | `pai_job_table.csv` beside `pai_task_table.csv` | times, GPUs and shares, cores, memory |
| openb | `openb_pod_list_*.csv` | times, GPUs and shares, GPU type, cores, memory |
| gavel | `*.trace` (tabs) or CSV | arrivals, gangs, model, steps |
| muri | `trace*.csv`, milliseconds | times, GPUs, model, stage times |
| tiresias | `*_job.csv`, seconds | times, GPUs, model |
| swf | Parallel Workloads Archive | times, processors, estimates, memory |
| native | our CSV | every column |

Files may be plain or gzip. Columns that a trace does not have stay None; fill them with
`dtgym.simulator.job_synthesis.fill`, which marks them synthetic.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dtgym.simulator.errors import InvalidInput, one_of
from dtgym.simulator.jobs import JobTable
from dtgym.simulator.trace_formats import alibaba, microsoft, native, parallel_workloads, simulators
from dtgym.simulator.trace_formats import slurm as accounting
from dtgym.simulator.trace_formats.reading import read_text

if TYPE_CHECKING:
    from dtgym.simulator.hardware import Cluster


class TraceWarning(UserWarning):
    """Something about a trace that does not stop it from being read."""


FORMATS = (
    "philly",
    "helios",
    "acme",
    "pai",
    "openb",
    "gavel",
    "muri",
    "tiresias",
    "swf",
    "native",
)

_READERS: dict[str, Callable[[Path, str], JobTable]] = {
    "helios": accounting.read_helios,
    "acme": accounting.read_acme,
    "pai": alibaba.read_pai,
    "openb": alibaba.read_openb,
    "gavel": simulators.read_gavel,
    "muri": simulators.read_muri,
    "tiresias": simulators.read_tiresias,
    "swf": parallel_workloads.read_swf,
    "native": native.read_native,
}

# A header belongs to the format that needs the most columns it has; formats with fewer columns
# come later, so that Muri's is not taken for Tiresias's.
_HEADERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("muri", simulators.MURI),
    ("acme", accounting.ACME),
    ("helios", accounting.HELIOS),
    ("openb", alibaba.OPENB),
    ("gavel", simulators.GAVEL),
    ("native", ("submit_s", "duration_s", "num_gpus")),
    ("philly", microsoft.PHILLY_CSV),
    ("tiresias", simulators.TIRESIAS),
)


def read(
    path: Path | str, format: str = "auto", *, cluster: Cluster | int | None = None
) -> JobTable:
    r"""Reads a trace.

    Args:
        path: A file, plain or gzip.
        format: One of `FORMATS`, or ``auto`` to detect it.
        cluster: The cluster (or its number of GPUs) the jobs are for: then jobs that ask for more
            GPUs than it has are refused, and an offered load above 1 warns.

    Returns:
        The table, in the order of the file; submissions count from the first (native files keep
        theirs). `notes` says what was left out; each note is also a `TraceWarning`.

    Raises:
        InvalidInput: One line with file, row and column.

    Examples:
        >>> from pathlib import Path; from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder) / "jobs.csv"
        ...     _ = file.write_text("job_id,num_gpu,submit_time,duration\n7,4,30,600\n")
        ...     jobs = read(file)
        >>> jobs.job_id.tolist(), jobs.num_gpus.tolist(), jobs.duration_s.tolist()
        ([7], [4], [600.0])
    """
    file = Path(path)
    one_of("format", format, ("auto", *FORMATS))
    if file.is_dir():
        raise InvalidInput(f"{file}: is a folder; give a file (for pai: pai_job_table.csv)")
    text = read_text(file)
    kind = detect(file, text) if format == "auto" else format
    if kind == "philly":
        is_json = text.lstrip()[:1] in "[{"
        reader = microsoft.read_philly_json if is_json else microsoft.read_philly_csv
    else:
        reader = _READERS[kind]
    jobs = reader(file, text)
    for note in jobs.notes:
        warnings.warn(note, TraceWarning, stacklevel=2)
    if cluster is not None:
        report = jobs.against(cluster)
        if len(report.impossible):
            more = len(report.impossible) - 1
            raise InvalidInput(report.reasons[0] + (f" (and {more} more such jobs)" * (more > 0)))
        for line in report.warnings:
            warnings.warn(line, TraceWarning, stacklevel=2)
    return jobs


def write(jobs: JobTable, path: Path | str) -> None:
    """Writes our CSV (gzip if the name ends in .gz), whole or not at all.

    Reading it back gives an equal table (`native.same`).
    """
    native.write_native(jobs, Path(path))


def detect(path: Path, text: str) -> str:
    """Names the format of a trace by its first lines.

    Raises:
        InvalidInput: It looks like none of them.
    """
    start = text.lstrip()
    first = start.split("\n", 1)[0].rstrip("\r")
    if start[:1] in "[{":
        return "philly"
    if start.startswith(native.MAGIC):
        return "native"
    if start.startswith(";") or len(first.split()) == len(parallel_workloads.SWF):
        return "swf"
    if first.count("\t") + 1 in (len(simulators.GAVEL_TSV) - 1, len(simulators.GAVEL_TSV)):
        return "gavel"
    header = {name.strip() for name in first.split(",")}
    if "pai_job_table" in path.name:
        return "pai"
    share = [(len(header & set(needed)) / len(needed), name) for name, needed in _HEADERS]
    best, kind = max(share, key=lambda one: one[0])
    if best < 0.5:
        raise InvalidInput(
            f"{path}: row 0 (line 1): no known trace format has the columns {first[:80]!r}; "
            f"name one of {', '.join(FORMATS)}"
        )
    return kind
