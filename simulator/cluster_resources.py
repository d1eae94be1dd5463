"""One job table on one cluster with capacity vectors, as a machine for the kernels, and back.

`build` turns a table and a cluster into a `Machine`: jobs in the order (submission, id), amounts as
whole numbers. `outcome` turns a finished machine into an `Outcome` in the order of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator import hardware
from dtgym.simulator.cluster_cases import cluster_capacity, in_submit_order
from dtgym.simulator.errors import InvalidInput, at_least, one_of
from dtgym.simulator.job_speed import SpeedModel, cpu_curves
from dtgym.simulator.jobs import JobTable, milliseconds
from dtgym.simulator.kernels import cluster_state as layout
from dtgym.simulator.kernels.cluster_placement import find_places
from dtgym.simulator.kernels.cluster_state import Machine
from dtgym.simulator.outcome import RESOURCES, Outcome, Stretches

PLACEMENTS = ("pooled", *layout.PLACEMENTS)
PER_UNIT = np.array([1000, 1000, 1, 1, 1], dtype=np.int64)
"""Whole amounts in one unit of each resource: GPUs and cores are counted in thousandths."""
_COLUMNS = ("", "cpu_cores", "memory_bytes", "io_bytes_per_s", "network_bytes_per_s")
_STAGES = ("io_stage_s", "cpu_stage_s", "gpu_stage_s", "network_stage_s")
_CLASSES = 32


class Resources:
    """A machine with what is needed to read its results.

    Attributes:
        jobs: The table.
        cluster: The cluster.
        machine: Arrays for the kernels; jobs in the order (submission, id).
        row: Row in the table of each job of the machine, (J,).
        rejections: Row -> reason of jobs that can never run; they are not in the machine.
        kinds: Names of the GPU types, in the order of the machine's numbers.
        rule: Placement rule's number.
    """

    def __init__(
        self,
        jobs: JobTable,
        cluster: hardware.Cluster,
        *,
        placement: str = "pooled",
        resources: Sequence[str] | None = None,
        speed: SpeedModel | None = None,
        cost_s: NDArray[np.float64] | None = None,
        estimate_s: NDArray[np.float64] | None = None,
        impossible: str = "raise",
        seed: int = 0,
    ) -> None:
        one_of("placement", placement, PLACEMENTS)
        self.jobs, self.cluster, self.seed = jobs, cluster, int(at_least("seed", seed, 0))
        # Pools are filled in order and split freely: one pool per GPU type.
        self.rule = layout.PLACEMENTS["first_fit" if placement == "pooled" else placement]
        self.kinds, capacity, nodes = _nodes(cluster, pooled=placement == "pooled")
        units = np.maximum(jobs.num_gpus, 1)
        demand = _demand(jobs, _used_resources(jobs, resources))
        traffic = demand[:, layout.NETWORK].copy()
        share_network = speed is not None and speed.share_network
        if share_network:
            demand[:, layout.NETWORK] = 0
        kinds_ok = _kinds_ok(jobs, self.kinds)
        estimates = jobs.column("estimate_s", np.nan) if estimate_s is None else estimate_s
        stages, columns = _speed_columns(jobs, speed)
        columns |= {
            "submit_ms": jobs.submit_ms,
            "work_ms": jobs.duration_ms,
            "gpus": jobs.num_gpus,
            "units": units,
            "asked_units": units,
            "traffic": traffic,
            "kinds_ok": kinds_ok,
            "shape": _numbered(np.column_stack((units, kinds_ok, demand))),
            "estimate_ms": milliseconds(np.where(np.isnan(estimates), jobs.duration_s, estimates)),
            "cost_ms": milliseconds(np.zeros(len(jobs)) if cost_s is None else cost_s),
        }
        speeds = {} if speed is None else speed.gpu_speed
        matrices = {
            "demand": demand,
            "stage_s": stages,
            "kind_speed": np.tile([speeds.get(kind, 1.0) for kind in self.kinds], (len(jobs), 1)),
        }
        widest = np.minimum(np.maximum(units, jobs.column("max_gpus", 0)), len(capacity))
        fixed = _Fixed(capacity, nodes, *_typical(units, demand), share_network)

        def machine(rows: NDArray[np.int64]) -> Machine:
            return _machine(
                {name: values[rows] for name, values in columns.items()},
                {name: values[rows] for name, values in matrices.items()},
                fixed,
                widest[rows],
            )

        self.row = in_submit_order(jobs, jobs.submit_ms)
        self.machine = machine(self.row)
        self.rejections = _never_fits(jobs, self.row, self.machine, self.rule, self.seed)
        if self.rejections and impossible == "raise":
            raise InvalidInput(next(iter(self.rejections.values())))
        if self.rejections:
            self.row = self.row[~np.isin(self.row, list(self.rejections))]
            self.machine = machine(self.row)

    def with_rank(self, key: NDArray[Any] | None) -> None:
        """Sets the waiting order: ascending in `key` (J,), ties by submission and id."""
        order = np.arange(len(self.row)) if key is None else np.argsort(key, kind="stable")
        self.machine.jobs["rank"][order] = np.arange(len(self.row))

    def grow_log(self) -> None:
        """Doubles the log of stretches, keeping what is in it."""
        m = self.machine

        def doubled(values: NDArray[Any]) -> NDArray[Any]:
            larger = np.zeros((2 * len(values) + 64, *values.shape[1:]), values.dtype)
            larger[: len(values)] = values
            return larger

        self.machine = m._replace(
            log_row=doubled(m.log_row),
            log_work_ms=doubled(m.log_work_ms),
            log_places=doubled(m.log_places),
        )

    def outcome(self, policy: str, decision_s: Sequence[float] = ()) -> Outcome:
        """Reads the results.

        Raises:
            AssertionError: A job did not finish, or the empty cluster is not whole again: an error
                of the engine or of a Python policy, never of the input.
        """
        m, jobs = self.machine, self.jobs
        if not (m.jobs["status"] == layout.DONE).all():
            left = int((m.jobs["status"] != layout.DONE).sum())
            raise AssertionError(f"{policy}: {left} of {len(jobs)} jobs were left waiting for ever")
        assert np.array_equal(m.free, m.capacity), "resources were lost or given back twice"

        def scatter(values: NDArray[np.int64]) -> NDArray[np.float64]:
            seconds = np.full(len(jobs), np.nan)
            seconds[self.row] = values / 1000.0
            return seconds

        preemptions = np.zeros(len(jobs), dtype=np.int64)
        preemptions[self.row] = m.jobs["preemptions"]
        refused = sorted(self.rejections)
        return Outcome(
            policy=policy,
            job_id=jobs.job_id,
            submit_s=jobs.submit_ms / 1000.0,
            num_gpus=jobs.num_gpus,
            start_s=scatter(m.jobs["first_ms"]),
            finish_s=scatter(m.jobs["finish_ms"]),
            queueing_s=scatter(m.jobs["waited_ms"]),
            preemptions=preemptions,
            rejected=np.array(refused, dtype=np.int64),
            rejections=tuple(self.rejections[row] for row in refused),
            events=int(m.counters[layout.EVENTS]),
            decisions=len(decision_s),
            decision_s=np.asarray(decision_s, dtype=np.float64),
            capacity=cluster_capacity(self.cluster),
            stretches=self._stretches(),
        )

    def _stretches(self) -> Stretches:
        m = self.machine
        rows = int(m.counters[layout.LOG_ROWS])
        log = m.log_row[:rows]
        order = np.lexsort((log[:, 1], self.row[log[:, 0]]))
        count = log[:, 3]
        first = np.concatenate(([0], np.cumsum(count)))[:-1][order]
        log, count = log[order], count[order]
        base = np.concatenate(([0], np.cumsum(count))).astype(np.int64)
        pick = np.repeat(first - base[:-1], count) + np.arange(base[-1])
        job = log[:, 0]
        units = np.add.reduceat(m.log_places["units"][pick], base[:-1]) if rows else count
        held = log[:, 4:] * units[:, None] / PER_UNIT
        length_ms = np.maximum(log[:, 2] - log[:, 1], 1)
        stage = m.stage_s[job]
        asked_s = (1 - m.jobs["overlap"][job]) * stage.sum(axis=1) + m.jobs["overlap"][
            job
        ] * stage.max(axis=1)
        # Iterations done x stage time, over the time and the amount held relative to the request.
        done = np.divide(m.log_work_ms[:rows][order], asked_s, where=asked_s > 0, out=np.ones(rows))
        level = np.divide(
            log[:, 4:], m.demand[job], where=m.demand[job] > 0, out=np.ones((rows, 5))
        )
        busy = np.ones((rows, 5))
        for r, column in ((0, 2), (1, 1), (3, 0), (4, 3)):
            share = done * stage[:, column] / length_ms / np.maximum(level[:, r], 1e-12)
            busy[:, r] = np.where(m.jobs["has_stages"][job] > 0, np.clip(share, 0.0, 1.0), 1.0)
        per_part = np.repeat(m.jobs["gpus"][job] > 0, count)
        return Stretches(
            job=self.row[job],
            start_s=log[:, 1] / 1000.0,
            end_s=log[:, 2] / 1000.0,
            held=held,
            busy=busy,
            place_base=base,
            place_node=m.log_places["node"][pick],
            place_gpus=np.where(per_part, m.log_places["units"][pick], 0),
        )


@dataclass(frozen=True)
class _Fixed:
    """What a machine is made of beside its jobs."""

    capacity: NDArray[np.int64]
    nodes: NDArray[Any]
    class_demand: NDArray[np.int64]
    classes: NDArray[Any]
    share_network: bool


def _nodes(
    cluster: hardware.Cluster, *, pooled: bool
) -> tuple[tuple[str, ...], NDArray[np.int64], NDArray[Any]]:
    """Names of GPU types, capacity (N, 5) and node records (N,); one node per type if pooled."""
    arrays = cluster.arrays()
    names = [group.node.accelerator.name for group in cluster.groups]
    kinds = tuple(dict.fromkeys(names))
    kind = np.array([kinds.index(name) for name in names], dtype=np.int64)[arrays.group]
    amounts = np.column_stack(
        (
            arrays.gpus,
            arrays.cpu_cores,
            arrays.memory_bytes,
            arrays.io_bytes_per_s,
            arrays.network_bytes_per_s,
        )
    )
    capacity = np.floor(amounts * PER_UNIT).astype(np.int64)
    rack = arrays.rack
    if pooled:
        pools = np.zeros((len(kinds), 5), dtype=np.int64)
        np.add.at(pools, kind, capacity)
        capacity, kind, rack = pools, np.arange(len(kinds)), np.zeros(len(kinds), dtype=np.int64)
    nodes = np.zeros(len(capacity), dtype=layout.NODE)
    nodes["kind"], nodes["rack"] = kind, rack
    return kinds, capacity, nodes


def _numbered(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for each row, equal for equal rows."""
    return np.unique(rows, axis=0, return_inverse=True)[1].ravel().astype(np.int64)


def _used_resources(jobs: JobTable, resources: Sequence[str] | None) -> set[str]:
    if resources is None:
        return {
            name
            for name, column in zip(RESOURCES, _COLUMNS, strict=True)
            if name == "gpu" or getattr(jobs, column) is not None
        }
    for name in resources:
        one_of("resources", name, RESOURCES)
        column = _COLUMNS[RESOURCES.index(name)]
        if column and getattr(jobs, column) is None:
            raise InvalidInput(f"resources: {jobs.source} has no column {column}")
    return {"gpu", *resources}


def _demand(jobs: JobTable, used: set[str]) -> NDArray[np.int64]:
    """Whole amounts of one part of each job, (jobs, 5), rounded down."""
    units = np.maximum(jobs.num_gpus, 1)
    demand = np.zeros((len(jobs), 5), dtype=np.int64)
    share = np.floor(jobs.column("gpu_fraction", 1.0) * PER_UNIT[0] + 1e-6)
    demand[:, 0] = np.where(jobs.num_gpus > 0, np.maximum(share, 1), 0)
    for r, column in enumerate(_COLUMNS):
        if r and RESOURCES[r] in used:
            # The small addition keeps thirds that are whole in decimal from losing a unit.
            demand[:, r] = np.floor(jobs.column(column, 0.0) * PER_UNIT[r] / units + 1e-6)
    return demand


def _kinds_ok(jobs: JobTable, kinds: tuple[str, ...]) -> NDArray[np.int64]:
    if len(kinds) > 62:
        raise InvalidInput(f"cluster: at most 62 GPU types are supported, got {len(kinds)}")
    every = (1 << len(kinds)) - 1
    if jobs.gpu_type is None:
        return np.full(len(jobs), every, dtype=np.int64)
    names, which = np.unique(jobs.gpu_type, return_inverse=True)
    bits = [
        sum(1 << k for k, kind in enumerate(kinds) if kind in str(name).split("|"))
        if name
        else every
        for name in names
    ]
    return np.array(bits, dtype=np.int64)[which]


def _typical(
    units: NDArray[np.int64], demand: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The most frequent kinds of GPU jobs: demand of a part, and parts with share."""
    rows, count = np.unique(
        np.column_stack((units, demand))[demand[:, 0] > 0], axis=0, return_counts=True
    )
    most = np.argsort(-count, kind="stable")[:_CLASSES]
    classes = np.zeros(len(most), dtype=layout.CLASS)
    classes["units"] = rows[most, 0]
    classes["share"] = count[most] / max(count.sum(), 1)
    return np.ascontiguousarray(rows[most, 1:]), classes


def _speed_columns(
    jobs: JobTable, speed: SpeedModel | None
) -> tuple[NDArray[np.float64], dict[str, NDArray[Any]]]:
    """Stages, (jobs, 4), and the fields of the speed model, (jobs,) each."""
    count = len(jobs)
    stages = np.column_stack([jobs.column(name, 0.0) for name in _STAGES])
    if jobs.gpu_stage_s is None:
        stages[:, 2] = np.where(stages.sum(axis=1) > 0, 0.0, 1.0)
    model = SpeedModel() if speed is None else speed
    shape = {"squared": np.zeros(count), "linear": np.ones(count), "constant": np.zeros(count)}
    if model.use_cpu_curves and jobs.model is not None:
        for curve in cpu_curves().values():
            if curve.linear > 0:
                for name, values in shape.items():
                    values[jobs.model == curve.model] = getattr(curve, name)
    return stages, shape | {
        "has_stages": np.full(count, speed is not None) & (stages.sum(axis=1) > 0),
        "overlap": np.full(count, float(model.overlap)),
        "cross_node": np.full(count, float(model.cross_node_network_scale)),
        "cross_rack": np.full(count, float(model.cross_rack_network_scale)),
    }


def _machine(
    columns: dict[str, NDArray[Any]],
    matrices: dict[str, NDArray[Any]],
    fixed: _Fixed,
    widest: NDArray[np.int64],
) -> Machine:
    """A machine before its first event.

    Args:
        columns: Fields of `layout.JOB` by name, (J,) each.
        matrices: demand, stage_s and kind_speed, (J, ...).
        fixed: What does not depend on the jobs.
        widest: Most nodes that each job can be on, (J,).
    """
    count = len(widest)
    base = np.concatenate(([0], np.cumsum(widest))).astype(np.int64)
    jobs = np.zeros(count, dtype=layout.JOB)
    for name, values in columns.items():
        jobs[name] = values
    jobs["rank"] = np.arange(count)
    jobs["place_base"] = base[:-1]
    jobs["left_ms"] = jobs["work_ms"]
    jobs["rate"] = 1.0
    jobs["finish_ms"] = layout.NEVER
    jobs["first_ms"] = -1
    jobs["partner"] = -1
    counters = np.zeros(layout.COUNTERS, dtype=np.int64)
    counters[layout.NOW] = jobs["submit_ms"][0] if count else 0
    counters[layout.SHARE_NETWORK] = fixed.share_network
    return Machine(
        capacity=fixed.capacity,
        demand=np.ascontiguousarray(matrices["demand"]),
        stage_s=np.ascontiguousarray(matrices["stage_s"]),
        kind_speed=np.ascontiguousarray(matrices["kind_speed"]),
        classes=fixed.classes,
        class_demand=fixed.class_demand,
        jobs=jobs,
        nodes=fixed.nodes.copy(),
        free=fixed.capacity.copy(),
        held=np.array(matrices["demand"], order="C"),
        places=np.zeros(base[-1], dtype=layout.PLACE),
        running=np.zeros(count, dtype=np.int64),
        waiting=np.zeros(count, dtype=np.int64),
        counters=counters,
        log_row=np.zeros((count + 1024, 9), dtype=np.int64),
        log_work_ms=np.zeros(count + 1024),
        log_places=np.zeros(base[-1] + 1024, dtype=layout.PLACE),
    )


def _never_fits(
    jobs: JobTable, order: NDArray[np.int64], machine: Machine, rule: int, seed: int
) -> dict[int, str]:
    """Row -> reason of the jobs that the empty cluster cannot hold."""
    reasons: dict[int, str] = {}
    for shape, first in zip(*np.unique(machine.jobs["shape"], return_index=True), strict=True):
        places = find_places(machine, machine.free, int(first), machine.demand[first], rule, seed)
        if places >= 0:
            continue
        for row in order[machine.jobs["shape"] == shape]:
            reasons[int(row)] = (
                f"{jobs.source}: row {row + 1} (line {int(jobs.line[row])}): job "
                f"{jobs.job_id[row]} can never run: the empty cluster has no room for "
                f"{jobs.num_gpus[row]} GPUs{_of_type(jobs, row)} with "
                f"{_describe(machine.demand[first])} each"
            )
    return dict(sorted(reasons.items()))


def _of_type(jobs: JobTable, row: int) -> str:
    kind = "" if jobs.gpu_type is None else str(jobs.gpu_type[row])
    return f" of type {kind}" if kind else ""


def _describe(demand: NDArray[np.int64]) -> str:
    amounts = demand / PER_UNIT
    units = ("GPU", "cores", "bytes of memory", "bytes/s of storage", "bytes/s of network")
    return ", ".join(
        f"{amount:g} {unit}" for amount, unit in zip(amounts, units, strict=True) if amount
    )
