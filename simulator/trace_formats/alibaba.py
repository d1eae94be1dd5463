"""Alibaba: PAI 2020 (job and task tables without headers) and openb 2023 (pods).

Sources: alibaba/clusterdata, cluster-trace-gpu-v2020 (CC BY 4.0), README, Weng et al., NSDI'22;
cluster-trace-gpu-v2023, README, Weng et al., ATC'23. The 2023 folder carries no licence file:
its data is for research or study only.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.jobs import JobTable
from dtgym.simulator.trace_formats.reading import Columns, read_text

OPENB = (
    "name",
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "creation_time",
    "deletion_time",
    "scheduled_time",
)
PAI_JOB = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
PAI_TASK = (
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
    "plan_gpu",
    "gpu_type",
)
_MIB = 2.0**20
_GIB = 2.0**30


def read_openb(path: Path, text: str) -> JobTable:
    """Reads a pod list. The run time is deletion - scheduled.

    Pods that were never scheduled have no run time: they are left out and counted. A pod that
    asks for part of one GPU gets `gpu_fraction`.
    """
    table = Columns.parse(path, text)
    table.require(OPENB)
    created = table.number("creation_time", "s", minimum=0)
    scheduled = table.number("scheduled_time", "s", blank=np.nan, minimum=0)
    deleted = table.number("deletion_time", "s", blank=np.nan, minimum=0)
    table.leave_out(np.isnan(scheduled), "that were never scheduled")
    table.leave_out(np.isnan(deleted), "that have no end")
    table.refuse(created > deleted, "creation_time", "must not come after deletion_time")
    table.refuse(scheduled > deleted, "scheduled_time", "must not come after deletion_time")
    gpus = table.number("num_gpu", "GPUs", minimum=0)
    milli = table.number("gpu_milli", "thousandths of a GPU", minimum=0)
    table.refuse((milli > 1000), "gpu_milli", "must be at most 1000 thousandths of a GPU")
    kinds = None
    if "gpu_spec" in table.values:
        spec = table.text("gpu_spec")
        kinds = np.where(np.char.lower(spec) == "nan", "", spec)
    return table.jobs(
        job_id=table.text("name"),
        submit_s=created,
        wall_clock=False,
        duration_s=deleted - scheduled,
        num_gpus=gpus,
        gpu_fraction=np.where(gpus == 1, milli / 1000, 1.0),
        gpu_type=kinds,
        cpu_cores=table.number("cpu_milli", "thousandths of a core", minimum=0) / 1000,
        memory_bytes=table.number("memory_mib", "MiB", minimum=0) * _MIB,
        vc=table.text("qos") if "qos" in table.values else None,
    )


def pai_task_path(job_path: Path) -> Path:
    """Where the task table must lie: beside the job table, `job` replaced by `task`."""
    return job_path.with_name(job_path.name.replace("pai_job_table", "pai_task_table"))


def read_pai(path: Path, text: str) -> JobTable:
    """Reads `pai_job_table.csv` together with `pai_task_table.csv` beside it.

    The job table has the submission, the task table what was asked for and when it ran. A job
    asks for the sum over its tasks of instances x plan; its run time goes from the first task's
    start to the last one's end. An instance that asks for part of a GPU counts as one GPU with a
    `gpu_fraction` (the job's mean). The published GPU type is the one *assigned*, not one the job
    insisted on, and is therefore not read. Jobs without a started and ended task are left out.
    """
    table = Columns.parse(path, text, header=PAI_JOB)
    task_path = pai_task_path(path)
    if task_path == path:
        raise InvalidInput(f"{path}: give pai_job_table.csv; the task table is read beside it")
    tasks = Columns.parse(task_path, read_text(task_path), header=PAI_TASK)
    names = table.text("job_name")
    owner = _owners(names, tasks.text("job_name"))
    here = owner >= 0
    count = len(names)

    def total(values: NDArray[np.float64]) -> NDArray[np.float64]:
        summed = np.bincount(owner[here], weights=values[here], minlength=count)
        return summed.astype(np.float64)

    instances = tasks.number("inst_num", "instances", blank=1, minimum=0)
    gpu_share = tasks.number("plan_gpu", "percent of a GPU", blank=0, minimum=0) / 100
    gpus = total(instances * np.ceil(gpu_share))
    asked = total(instances * gpu_share)
    began = tasks.number("start_time", "s", blank=np.nan)
    ended = tasks.number("end_time", "s", blank=np.nan)
    first = np.full(count, np.inf)
    last = np.full(count, -np.inf)
    np.fmin.at(first, owner[here], began[here])
    np.fmax.at(last, owner[here], ended[here])
    table.leave_out(~(np.isfinite(first) & np.isfinite(last)), "without a started and ended task")
    submit = table.number("start_time", "s", blank=np.nan)
    table.leave_out(np.isnan(submit), "without a time of submission")
    table.refuse(submit > last, "start_time", "must not come after the last task's end")
    table.refuse(first > last, "end_time", "the first task starts after the last one ends")
    with np.errstate(invalid="ignore"):
        fraction = np.where(gpus > 0, asked / np.maximum(gpus, 1), 1.0)
    return table.jobs(
        job_id=names,
        submit_s=submit,
        wall_clock=False,
        duration_s=last - first,
        num_gpus=gpus,
        gpu_fraction=fraction,
        cpu_cores=total(instances * tasks.number("plan_cpu", "percent", blank=0, minimum=0)) / 100,
        memory_bytes=total(instances * tasks.number("plan_mem", "GiB", blank=0, minimum=0)) * _GIB,
        user=table.text("user"),
    )


def _owners(names: NDArray[np.str_], of_tasks: NDArray[np.str_]) -> NDArray[np.int64]:
    """Row of each task's job; -1 where the job table does not have it."""
    order = np.argsort(names, kind="stable")
    at = np.searchsorted(names[order], of_tasks)
    at = np.minimum(at, len(names) - 1)
    rows = order[at]
    return np.where(names[rows] == of_tasks, rows, -1)
