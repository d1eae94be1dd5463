"""Options of `dtgym.simulator.cluster.simulate`: from what users give to what kernels take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtgym.simulator import hardware
from dtgym.simulator.cluster_cases import Cases
from dtgym.simulator.errors import InvalidInput, above, at_least, finite_array, one_of
from dtgym.simulator.jobs import JobTable, milliseconds
from dtgym.simulator.service_levels import gittins_levels


def check_types(jobs: object, cluster: object) -> None:
    """Refuses anything but a job table and a cluster, by name.

    Raises:
        InvalidInput: Something else.
    """
    if not isinstance(jobs, JobTable):
        raise InvalidInput(f"jobs must be a JobTable, got {type(jobs).__name__}")
    if not isinstance(cluster, hardware.Cluster):
        raise InvalidInput(
            "cluster must be a hardware.Cluster, such as homogeneous(nodes=8, gpus_per_node=8); "
            f"got {type(cluster).__name__}"
        )


def check_batch(jobs: object, clusters: object) -> None:
    """Refuses anything but as many job tables as clusters, by name and place.

    Raises:
        InvalidInput: Something else, or nothing.
    """
    for name, given in (("jobs", jobs), ("clusters", clusters)):
        if not isinstance(given, (list, tuple)):
            raise InvalidInput(f"{name} must be a list, one per case; got {type(given).__name__}")
    tables, machines = cast("Sequence[object]", jobs), cast("Sequence[object]", clusters)
    for index, table in enumerate(tables):
        if not isinstance(table, JobTable):
            raise InvalidInput(f"jobs[{index}] must be a JobTable, got {type(table).__name__}")
    for index, cluster in enumerate(machines):
        if not isinstance(cluster, hardware.Cluster):
            raise InvalidInput(
                f"clusters[{index}] must be a hardware.Cluster, got {type(cluster).__name__}"
            )
    if len(tables) != len(machines) or not tables:
        raise InvalidInput(
            f"a batch needs as many job tables as clusters, at least one; got {len(tables)} job "
            f"tables and {len(machines)} clusters"
        )


def whole_number(field: str, value: float) -> int:
    """Returns a whole number of at least 1.

    Raises:
        InvalidInput: Anything else.
    """
    number = float(at_least(field, value, 1))
    if number != int(number):
        raise InvalidInput(f"{field} must be a whole number, got {number:g}")
    return int(number)


def only_gpus(jobs: JobTable, resources: Sequence[str] | None) -> bool:
    """Whether nothing but whole GPUs of any type limits the jobs."""
    if jobs.gpu_fraction is not None and (jobs.gpu_fraction != 1).any():
        return False
    if jobs.gpu_type is not None and (jobs.gpu_type != "").any():
        return False
    if resources is not None:
        return set(resources) <= {"gpu"}
    return all(
        column is None
        for column in (
            jobs.cpu_cores,
            jobs.memory_bytes,
            jobs.io_bytes_per_s,
            jobs.network_bytes_per_s,
        )
    )


def job_column(jobs: JobTable, name: str, values: ArrayLike) -> NDArray[np.float64]:
    """One number per job, in the order of the table, (jobs,)."""
    column = finite_array(name, values)
    if column.shape != (len(jobs),):
        raise InvalidInput(f"{name} must have shape ({len(jobs)},), got {column.shape}")
    return column


def service_levels(
    policy: str,
    thresholds_gpu_s: Sequence[float],
    resolution_s: float,
    samples_gpu_s: ArrayLike,
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Ends of the service levels in GPU-ms, rank of each level, and the grid of the clock in ms."""
    step_ms = int(milliseconds(above("las_resolution_s", resolution_s, 0, "s")))
    if step_ms < 1:
        raise InvalidInput(f"las_resolution_s must be at least 0.001 s, got {resolution_s:g}")
    if policy == "gittins":
        samples = at_least("gittins_samples_gpu_s", samples_gpu_s, 0, "GPU-s")
        bound_gpu_s, key = gittins_levels(samples)
    elif policy == "las":
        bound_gpu_s = at_least("las_thresholds_gpu_s", _thresholds(thresholds_gpu_s), 0, "GPU-s")
        if (np.diff(bound_gpu_s) <= 0).any():
            raise InvalidInput("las_thresholds_gpu_s must ascend, in GPU-s")
        key = np.arange(len(bound_gpu_s) + 1)
    else:
        bound_gpu_s, key = np.zeros(0), np.zeros(1)
    return milliseconds(bound_gpu_s), key.astype(np.int64), step_ms


def _thresholds(thresholds_gpu_s: Sequence[float]) -> NDArray[np.float64]:
    """Thresholds as a row of numbers; a single number is one threshold."""
    return np.atleast_1d(finite_array("las_thresholds_gpu_s", thresholds_gpu_s, "GPU-s"))


def costs_ms(
    cases: Cases, cost_s: float | str | Mapping[str, float] | ArrayLike
) -> NDArray[np.int64]:
    """Preemption cost of each job in the order of the cases, (jobs,)."""
    parts = [preemption_costs_s(table, cost_s)[row] for table, row in _tables(cases)]
    return milliseconds(np.concatenate(parts))


def preemption_costs_s(
    jobs: JobTable, cost_s: float | str | Mapping[str, float] | ArrayLike
) -> NDArray[np.float64]:
    """Work that one preemption adds to each job, (jobs,), from any form `simulate` takes.

    Raises:
        InvalidInput: A negative or unreadable cost, or a mapping without an entry for a model.
    """
    if isinstance(cost_s, str):
        one_of("preemption_cost_s", cost_s, ("lucid",))
        return np.where(jobs.num_gpus <= 8, 40.0, 60.0)
    if isinstance(cost_s, Mapping):
        models = jobs.column("model", "")
        unknown = set(models.tolist()) - set(cost_s) if "" not in cost_s else set()
        if unknown:
            raise InvalidInput(
                f"preemption_cost_s has no entry for model {min(unknown)!r} and none for ''"
            )
        values = [cost_s.get(str(model), cost_s.get("", 0.0)) for model in models]
        return at_least("preemption_cost_s", values, 0, "s")
    values = at_least("preemption_cost_s", cost_s, 0, "s")
    if values.shape not in ((), (len(jobs),)):
        raise InvalidInput(
            f"preemption_cost_s must be one number or one per job ({len(jobs)}), in s; "
            f"got shape {values.shape}"
        )
    return np.broadcast_to(values, (len(jobs),))


def per_case(cases: Cases, name: str, values: Sequence[ArrayLike] | None) -> NDArray[np.float64]:
    """One array per case as one array in the order of the cases, (jobs,)."""
    parts: list[NDArray[np.float64]] = []
    for index, (table, row) in enumerate(_tables(cases)):
        given: Any = None if values is None else values[index]
        if given is None and name == "estimate_s":
            given = table.estimate_s
        if given is None:
            raise InvalidInput(f"{name} is needed: one number per job, (jobs,)")
        column = finite_array(name, given)
        if column.shape != (len(table),):
            raise InvalidInput(f"{name} must have shape ({len(table)},), got {column.shape}")
        parts.append(column[row])
    return np.concatenate(parts)


def _tables(cases: Cases) -> list[tuple[JobTable, NDArray[np.int64]]]:
    return [
        (table, cases.row[cases.base[index] : cases.base[index + 1]])
        for index, table in enumerate(cases.tables)
    ]
