"""One job table on one cluster with capacity vectors, as a machine for the kernels, and back.

`build` turns a table and a cluster into a `Machine`: jobs in the order (submission, id), amounts as
whole numbers. `outcome` turns a finished machine into an `Outcome` in the order of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator import hardware
from dtgym.simulator.cluster_cases import cluster_capacity, in_submit_order
from dtgym.simulator.errors import InvalidInput, at_least, one_of
from dtgym.simulator.job_speed import SpeedModel, cpu_curves
from dtgym.simulator.jobs import JobTable, milliseconds
from dtgym.simulator.kernels import cluster_machine as kernel
from dtgym.simulator.kernels.cluster_machine import Machine
from dtgym.simulator.outcome import RESOURCES, Outcome, Stretches

PLACEMENTS = ("pooled", *kernel.PLACEMENTS)
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
        self.rule = kernel.PLACEMENTS["first_fit" if placement == "pooled" else placement]
        self.kinds, capacity, kind, rack = _nodes(cluster, pooled=placement == "pooled")
        used = _used_resources(jobs, resources)
        demand = _demand(jobs, used)
        kinds_ok = _kinds_ok(jobs, self.kinds)
        units = np.maximum(jobs.num_gpus, 1)
        order = in_submit_order(jobs, jobs.submit_ms)
        speed_arrays = _speed_arrays(jobs, self.kinds, speed)
        most_units = np.maximum(units, jobs.column("max_gpus", 0))
        widest = np.minimum(most_units, len(capacity))
        base = np.concatenate(([0], np.cumsum(widest[order]))).astype(np.int64)
        estimates = jobs.column("estimate_s", np.nan) if estimate_s is None else estimate_s
        estimates = np.where(np.isnan(estimates), jobs.duration_s, estimates)
        shape_key = np.column_stack((units, kinds_ok, demand))
        traffic = demand[:, kernel.NETWORK].copy()
        share_network = speed is not None and speed.share_network
        if share_network:
            demand[:, kernel.NETWORK] = 0
        class_demand, class_units, class_share = _typical(units, demand)
        columns: dict[str, Any] = {
            "submit_ms": jobs.submit_ms,
            "work_ms": jobs.duration_ms,
            "gpus": jobs.num_gpus,
            "units": units,
            "asked_units": units,
            "demand": demand,
            "traffic": traffic,
            "kinds_ok": kinds_ok,
            "shape": np.unique(shape_key, axis=0, return_inverse=True)[1].ravel(),
            "estimate_ms": milliseconds(estimates),
            "cost_ms": milliseconds(np.zeros(len(jobs)) if cost_s is None else cost_s),
            **speed_arrays,
        }
        fixed = {
            "capacity": capacity,
            "kind": kind,
            "rack": rack,
            "share_network": np.array([share_network]),
            "class_demand": class_demand,
            "class_units": class_units,
            "class_share": class_share,
        }
        whole = _machine({k: v[order] for k, v in columns.items()}, fixed, base, None)
        self.rejections = _never_fits(jobs, order, whole, self.rule, self.seed)
        if self.rejections and impossible == "raise":
            raise InvalidInput(next(iter(self.rejections.values())))
        kept = order[~np.isin(order, list(self.rejections))] if self.rejections else order
        base = np.concatenate(([0], np.cumsum(widest[kept]))).astype(np.int64)
        self.row = kept
        self.machine = _machine({k: v[kept] for k, v in columns.items()}, fixed, base, None)

    def with_rank(self, key: NDArray[Any] | None) -> None:
        """Sets the waiting order: ascending in `key` (J,), ties by submission and id."""
        rank = np.arange(len(self.row))
        if key is not None:
            rank[np.argsort(key, kind="stable")] = np.arange(len(self.row))
        self.machine = self.machine._replace(rank=rank.astype(np.int64))

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
            log_node=doubled(m.log_node),
            log_units=doubled(m.log_units),
        )

    def outcome(self, policy: str, decision_s: Sequence[float] = ()) -> Outcome:
        """Reads the results.

        Raises:
            AssertionError: A job did not finish, or the empty cluster is not whole again: an error
                of the engine or of a Python policy, never of the input.
        """
        m, jobs = self.machine, self.jobs
        if not (m.status == kernel.DONE).all():
            left = int((m.status != kernel.DONE).sum())
            raise AssertionError(f"{policy}: {left} of {len(jobs)} jobs were left waiting for ever")
        assert np.array_equal(m.free, m.capacity), "resources were lost or given back twice"

        def scatter(values: NDArray[np.int64]) -> NDArray[np.float64]:
            seconds = np.full(len(jobs), np.nan)
            seconds[self.row] = values / 1000.0
            return seconds

        preemptions = np.zeros(len(jobs), dtype=np.int64)
        preemptions[self.row] = m.preemptions
        refused = sorted(self.rejections)
        return Outcome(
            policy=policy,
            job_id=jobs.job_id,
            submit_s=jobs.submit_s,
            num_gpus=jobs.num_gpus,
            start_s=scatter(m.first_ms),
            finish_s=scatter(m.finish_ms),
            queueing_s=scatter(m.waited_ms),
            preemptions=preemptions,
            rejected=np.array(refused, dtype=np.int64),
            rejections=tuple(self.rejections[row] for row in refused),
            events=int(m.counters[kernel.EVENTS]),
            decisions=len(decision_s),
            decision_s=np.asarray(decision_s, dtype=np.float64),
            capacity=cluster_capacity(self.cluster),
            stretches=self._stretches(),
        )

    def _stretches(self) -> Stretches:
        m = self.machine
        rows = int(m.counters[kernel.LOG_ROWS])
        log = m.log_row[:rows]
        order = np.lexsort((log[:, 1], self.row[log[:, 0]]))
        count = log[:, 3]
        first = np.concatenate(([0], np.cumsum(count)))[:-1][order]
        log, count = log[order], count[order]
        base = np.concatenate(([0], np.cumsum(count))).astype(np.int64)
        pick = np.repeat(first - base[:-1], count) + np.arange(base[-1])
        job = log[:, 0]
        units = m.units[job]
        held = log[:, 4:] * units[:, None] / PER_UNIT
        length_ms = np.maximum(log[:, 2] - log[:, 1], 1)
        stage = m.stage_s[job]
        asked_s = (1 - m.overlap[job]) * stage.sum(axis=1) + m.overlap[job] * stage.max(axis=1)
        # Iterations done x stage time, over the time and the amount held relative to the request.
        done = np.divide(m.log_work_ms[:rows][order], asked_s, where=asked_s > 0, out=np.ones(rows))
        level = np.divide(
            log[:, 4:], m.demand[job], where=m.demand[job] > 0, out=np.ones((rows, 5))
        )
        busy = np.ones((rows, 5))
        for r, column in ((0, 2), (1, 1), (3, 0), (4, 3)):
            share = done * stage[:, column] / length_ms / np.maximum(level[:, r], 1e-12)
            busy[:, r] = np.where(m.has_stages[job], np.clip(share, 0.0, 1.0), 1.0)
        per_part = np.repeat(m.gpus[job] > 0, count)
        return Stretches(
            job=self.row[job],
            start_s=log[:, 1] / 1000.0,
            end_s=log[:, 2] / 1000.0,
            held=held,
            busy=busy,
            place_base=base,
            place_node=m.log_node[pick],
            place_gpus=np.where(per_part, m.log_units[pick], 0),
        )


def _nodes(
    cluster: hardware.Cluster, *, pooled: bool
) -> tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Names of GPU types, capacity (N, 5), type (N,) and rack (N,); one node per type if pooled."""
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
    if not pooled:
        return kinds, capacity, kind, np.ascontiguousarray(arrays.rack, dtype=np.int64)
    pools = np.zeros((len(kinds), 5), dtype=np.int64)
    np.add.at(pools, kind, capacity)
    number = np.arange(len(kinds), dtype=np.int64)
    return kinds, pools, number, np.zeros(len(kinds), dtype=np.int64)


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
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """The most frequent kinds of GPU jobs: demand of a part, parts, share; for fragmentation."""
    rows, count = np.unique(
        np.column_stack((units, demand))[demand[:, 0] > 0], axis=0, return_counts=True
    )
    most = np.argsort(-count, kind="stable")[:_CLASSES]
    rows, count = rows[most], count[most]
    share = count / max(count.sum(), 1)
    return np.ascontiguousarray(rows[:, 1:]), np.ascontiguousarray(rows[:, 0]), share


def _speed_arrays(
    jobs: JobTable, kinds: tuple[str, ...], speed: SpeedModel | None
) -> dict[str, NDArray[Any]]:
    count = len(jobs)
    stages = np.column_stack([jobs.column(name, 0.0) for name in _STAGES])
    if jobs.gpu_stage_s is None:
        stages[:, 2] = np.where(stages.sum(axis=1) > 0, 0.0, 1.0)
    model = SpeedModel() if speed is None else speed
    curve = np.tile([0.0, 1.0, 0.0], (count, 1))
    if model.use_cpu_curves and jobs.model is not None:
        known = cpu_curves()
        for name in set(jobs.model.tolist()) & set(known):
            shape = known[name]
            if shape.linear > 0:
                curve[jobs.model == name] = shape.squared, shape.linear, shape.constant
    return {
        "has_stages": np.full(count, speed is not None) & (stages.sum(axis=1) > 0),
        "stage_s": stages,
        "overlap": np.full(count, float(model.overlap)),
        "cpu_curve": curve,
        "kind_speed": np.tile([model.gpu_speed.get(kind, 1.0) for kind in kinds], (count, 1)),
        "cross_node": np.tile(
            [model.cross_node_network_scale, model.cross_rack_network_scale], (count, 1)
        ),
    }


def _machine(
    columns: dict[str, Any], fixed: dict[str, Any], base: NDArray[np.int64], rank: Any
) -> Machine:
    """A machine before its first event."""
    count = len(columns["submit_ms"])
    nodes = len(fixed["capacity"])
    places = int(base[-1])
    log_rows, log_places = count + 1024, places + 1024 + nodes

    def ints(*shape: int) -> NDArray[np.int64]:
        return np.zeros(shape, dtype=np.int64)

    demand = np.ascontiguousarray(columns["demand"], dtype=np.int64)
    return Machine(
        **{k: np.ascontiguousarray(v) for k, v in fixed.items()},
        **{k: np.array(v) for k, v in columns.items() if k != "demand"},
        demand=demand,
        rank=np.arange(count, dtype=np.int64) if rank is None else rank,
        place_base=np.ascontiguousarray(base[:-1]),
        now=np.array([columns["submit_ms"][0] if count else 0], dtype=np.int64),
        counters=ints(8),
        free=fixed["capacity"].copy(),
        network_load=ints(nodes),
        status=ints(count),
        held=demand.copy(),
        left_ms=columns["work_ms"].astype(np.float64),
        rate=np.ones(count),
        since_ms=ints(count),
        finish_ms=np.full(count, kernel.NEVER),
        begun_ms=ints(count),
        logged_ms=ints(count),
        logged_left_ms=np.zeros(count),
        idle_ms=ints(count),
        first_ms=np.full(count, -1, dtype=np.int64),
        attained=ints(count),
        waited_ms=ints(count),
        preemptions=ints(count),
        partner=np.full(count, -1, dtype=np.int64),
        place_count=ints(count),
        place_node=ints(places),
        place_units=ints(places),
        running=ints(count),
        spot=ints(count),
        waiting=ints(count),
        room=ints(nodes),
        taken=ints(nodes),
        log_row=ints(log_rows, 9),
        log_work_ms=np.zeros(log_rows),
        log_node=ints(log_places),
        log_units=ints(log_places),
    )


def _never_fits(
    jobs: JobTable, order: NDArray[np.int64], machine: Machine, rule: int, seed: int
) -> dict[int, str]:
    """Row -> reason of the jobs that the empty cluster cannot hold."""
    reasons: dict[int, str] = {}
    held = machine.held
    for shape, first in zip(*np.unique(machine.shape, return_index=True), strict=True):
        places = kernel.find_places(
            machine,
            machine.free,
            int(first),
            held[first],
            rule,
            seed,
            machine.place_node,
            machine.place_units,
        )
        if places >= 0:
            continue
        for row in order[machine.shape == shape]:
            reasons[int(row)] = (
                f"{jobs.source}: row {row + 1} (line {int(jobs.line[row])}): job "
                f"{jobs.job_id[row]} can never run: the empty cluster has no room for "
                f"{jobs.num_gpus[row]} GPUs with {_describe(held[first])} each"
            )
    return dict(sorted(reasons.items()))


def _describe(demand: NDArray[np.int64]) -> str:
    amounts = demand / PER_UNIT
    units = ("GPU", "cores", "bytes of memory", "bytes/s of storage", "bytes/s of network")
    return ", ".join(
        f"{amount:g} {unit}" for amount, unit in zip(amounts, units, strict=True) if amount
    )
