"""Job tables and clusters as flat arrays for the fast kernels: many cases side by side.

A case is one job table on one cluster. `Cases` lays all of them end to end in the order the kernels
want (submission, then job id) and keeps what does not depend on the policy, so that many policies
run on the same cases without preparing anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator import hardware
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.jobs import JobTable
from dtgym.simulator.kernels import cluster_preempt, cluster_queue
from dtgym.simulator.outcome import Outcome, Stretches

IMPOSSIBLE = ("raise", "reject")


@dataclass(frozen=True, eq=False)
class Cases:
    """Cases end to end; case k owns rows base[k] : base[k + 1] of the job arrays.

    Attributes:
        tables: The job tables.
        clusters: One cluster per table.
        rejections: Row -> reason of the jobs of each case that can never run; they are not in the
            job arrays.
        base: (cases + 1,).
        row: Row in its own table of each job, (jobs,).
        submit_ms: Ascending within a case; equal ones in the order of job ids, (jobs,).
        duration_ms: (jobs,).
        gpus: (jobs,).
        gang_class: Index of the gang size among its case's distinct ones, (jobs,).
        class_base: First entry of each case in `class_gpus`, (cases + 1,).
        class_gpus: Distinct gang sizes of each case, ascending.
        node_base: First node of each case, (cases + 1,).
        node_gpus: GPUs of each node.
    """

    tables: tuple[JobTable, ...]
    clusters: tuple[hardware.Cluster, ...]
    rejections: tuple[dict[int, str], ...]
    base: NDArray[np.int64]
    row: NDArray[np.int64]
    submit_ms: NDArray[np.int64]
    duration_ms: NDArray[np.int64]
    gpus: NDArray[np.int64]
    gang_class: NDArray[np.int64]
    class_base: NDArray[np.int64]
    class_gpus: NDArray[np.int64]
    node_base: NDArray[np.int64]
    node_gpus: NDArray[np.int64]
    _ranks: dict[str, NDArray[np.int64]] = field(default_factory=lambda: {}, repr=False)

    def __len__(self) -> int:
        return len(self.tables)

    @classmethod
    def of(
        cls,
        tables: Sequence[JobTable],
        clusters: Sequence[hardware.Cluster],
        *,
        placement: str,
        impossible: str,
    ) -> Cases:
        """Lays out cases.

        Raises:
            InvalidInput: With `impossible="raise"`, a job that the empty cluster cannot hold under
                the placement rule.
        """
        rule = cluster_queue.PLACEMENTS[placement]
        columns: list[tuple[NDArray[np.int64], ...]] = []
        rejections: list[dict[int, str]] = []
        nodes: list[NDArray[np.int64]] = []
        for table, cluster in zip(tables, clusters, strict=True):
            sizes = np.ascontiguousarray(cluster.arrays().gpus, dtype=np.int64)
            nodes.append(sizes)
            refused = _never_fits(table, sizes, rule)
            if refused and impossible == "raise":
                raise InvalidInput(next(iter(refused.values())))
            rejections.append(refused)
            submit_ms, duration_ms = table.submit_ms, table.duration_ms
            top = float(max(np.abs(submit_ms).max(), duration_ms.sum(dtype=np.float64)))
            if top * max(float(table.num_gpus.max()), 1.0) > 2.0**61:
                raise InvalidInput(
                    f"{table.source}: times x GPUs exceed what whole milliseconds can hold"
                )
            row = in_submit_order(table, submit_ms)
            if refused:
                row = row[~np.isin(row, list(refused))]
            columns.append((row, submit_ms[row], duration_ms[row], table.num_gpus[row]))
        base = _bases([len(column[0]) for column in columns])
        row, submit_ms, duration_ms, gpus = (
            np.ascontiguousarray(np.concatenate(parts), dtype=np.int64)
            for parts in zip(*columns, strict=True)
        )
        case = np.repeat(np.arange(len(tables)), np.diff(base))
        widest = int(gpus.max(initial=0)) + 1
        pairs, pair = np.unique(case * widest + gpus, return_inverse=True)
        class_base = np.searchsorted(pairs, np.arange(len(tables) + 1) * widest)
        return cls(
            tables=tuple(tables),
            clusters=tuple(clusters),
            rejections=tuple(rejections),
            base=base,
            row=row,
            submit_ms=submit_ms,
            duration_ms=duration_ms,
            gpus=gpus,
            gang_class=pair - class_base[case],
            class_base=class_base,
            class_gpus=pairs % widest,
            node_base=_bases([len(one) for one in nodes]),
            node_gpus=np.concatenate(nodes),
        )

    def rank(self, key: NDArray[Any] | None, name: str = "") -> NDArray[np.int64]:
        """Waiting order within each case, ascending in `key`, ties by submission and id.

        Args:
            key: (jobs,); None is the order of submission.
            name: Under which the order is kept for later runs; empty does not keep it.
        """
        if name in self._ranks:
            return self._ranks[name]
        rank = np.arange(len(self.row)) - np.repeat(self.base[:-1], np.diff(self.base))
        if key is not None:
            case = np.repeat(np.arange(len(self)), np.diff(self.base))
            within, rank = rank, np.empty_like(rank)
            rank[np.lexsort((key, case))] = within
        if name:
            self._ranks[name] = rank
        return rank


@dataclass(frozen=True, eq=False)
class BatchOutcome:
    """Schedules of many cases; `batch[k]` is the `Outcome` of case k.

    Attributes:
        policy: Name of the policy.
        cases: What was scheduled.
        start_ms: First starts, in the order of `cases`, (jobs,).
        last_start_ms: Start of the stretch that ended in completion, (jobs,).
        finish_ms: Completions, (jobs,).
        preemptions: (jobs,).
        queueing_ms: Time without resources before completion, (jobs,).
        events: Events handled in each case, (cases,).
        segments: Rows (job of the case, start ms, end ms) of stretches that ended by preemption.
        segment_base: First of these rows of each case, (cases + 1,).
        place_base: First place of each job in the next arrays, (jobs,).
        place_count: Number of nodes of each job, (jobs,); zeros where GPUs are pooled.
        place_node: Node of each place.
        place_gpus: GPUs on it.
    """

    policy: str
    cases: Cases
    start_ms: NDArray[np.int64]
    last_start_ms: NDArray[np.int64]
    finish_ms: NDArray[np.int64]
    preemptions: NDArray[np.int64]
    queueing_ms: NDArray[np.int64]
    events: NDArray[np.int64]
    segments: NDArray[np.int64]
    segment_base: NDArray[np.int64]
    place_base: NDArray[np.int64]
    place_count: NDArray[np.int64]
    place_node: NDArray[np.int64]
    place_gpus: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, case: int) -> Outcome:
        cases = self.cases
        table, cluster = cases.tables[case], cases.clusters[case]
        low, high = cases.base[case], cases.base[case + 1]
        row = cases.row[low:high]
        refused = cases.rejections[case]

        def scatter(values: NDArray[np.int64]) -> NDArray[np.float64]:
            seconds = np.full(len(table), np.nan)
            seconds[row] = values[low:high] / 1000.0
            return seconds

        preemptions = np.zeros(len(table), dtype=np.int64)
        preemptions[row] = self.preemptions[low:high]
        return Outcome(
            policy=self.policy,
            job_id=table.job_id,
            submit_s=table.submit_ms / 1000.0,
            num_gpus=table.num_gpus,
            start_s=scatter(self.start_ms),
            finish_s=scatter(self.finish_ms),
            queueing_s=scatter(self.queueing_ms),
            preemptions=preemptions,
            rejected=np.array(sorted(refused), dtype=np.int64),
            rejections=tuple(refused[one] for one in sorted(refused)),
            events=int(self.events[case]),
            decisions=0,
            decision_s=np.zeros(0),
            capacity=cluster_capacity(cluster),
            stretches=self._stretches(case),
        )

    def _stretches(self, case: int) -> Stretches:
        low, high = self.cases.base[case], self.cases.base[case + 1]
        row, gpus = self.cases.row[low:high], self.cases.gpus[low:high]
        early = self.segments[self.segment_base[case] : self.segment_base[case + 1]]
        job = np.concatenate((early[:, 0], np.arange(high - low)))
        start_ms = np.concatenate((early[:, 1], self.last_start_ms[low:high]))
        end_ms = np.concatenate((early[:, 2], self.finish_ms[low:high]))
        order = np.lexsort((start_ms, row[job]))
        job, start_ms, end_ms = job[order], start_ms[order], end_ms[order]
        held = np.zeros((len(job), 5))
        held[:, 0] = gpus[job]
        base = np.zeros(len(job) + 1, dtype=np.int64)
        node, taken = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        if len(self.place_node):
            count = self.place_count[low:high][job]
            base[1:] = np.cumsum(count)
            first = np.repeat(self.place_base[low:high][job] - base[:-1], count)
            pick = first + np.arange(base[-1])
            node, taken = self.place_node[pick], self.place_gpus[pick]
        return Stretches(
            job=row[job],
            start_s=start_ms / 1000.0,
            end_s=end_ms / 1000.0,
            held=held,
            busy=np.ones_like(held),
            place_base=base,
            place_node=node,
            place_gpus=taken,
        )


def run_queue_order(
    cases: Cases, rank: NDArray[np.int64], *, policy: str, placement: str, skip: bool
) -> BatchOutcome:
    """Schedules all cases without preemption, in the waiting order `rank`."""
    jobs = len(cases.row)
    rule = cluster_queue.PLACEMENTS[placement]
    start_ms, finish_ms = np.empty(jobs, np.int64), np.empty(jobs, np.int64)
    events = np.zeros(len(cases), np.int64)
    count = np.zeros(jobs, np.int64)
    widest = np.zeros(jobs, np.int64)
    if rule != cluster_queue.POOLED:
        nodes = np.repeat(np.diff(cases.node_base), np.diff(cases.base))
        widest = np.minimum(cases.gpus, nodes)
    base = _bases(widest)
    node, taken = np.empty(base[-1], np.int64), np.empty(base[-1], np.int64)
    cluster_queue.run_queue_batch(
        cases.base,
        cases.submit_ms,
        cases.duration_ms,
        cases.gpus,
        rank,
        cases.gang_class,
        cases.class_base,
        cases.class_gpus,
        cases.node_base,
        cases.node_gpus,
        rule,
        skip,
        start_ms,
        finish_ms,
        base[:-1],
        node,
        taken,
        count,
        events,
    )
    _assert_all_finished(events)
    return BatchOutcome(
        policy=policy,
        cases=cases,
        start_ms=start_ms,
        last_start_ms=start_ms,
        finish_ms=finish_ms,
        preemptions=np.zeros(jobs, np.int64),
        queueing_ms=start_ms - cases.submit_ms,
        events=events,
        segments=np.zeros((0, 3), np.int64),
        segment_base=np.zeros(len(cases) + 1, np.int64),
        place_base=base[:-1],
        place_count=count,
        place_node=node,
        place_gpus=taken,
    )


def run_preemptive_pool(
    cases: Cases,
    key_kind: int,
    *,
    policy: str,
    level_bound_gpu_ms: NDArray[np.int64],
    level_key: NDArray[np.int64],
    level_step_ms: int,
    cost_ms: NDArray[np.int64],
    log_stretches: bool,
) -> BatchOutcome:
    """Schedules all cases with preemption on pooled GPUs."""
    jobs = len(cases.row)
    start_ms, last_ms, finish_ms = (np.empty(jobs, np.int64) for _ in range(3))
    preemptions = np.zeros(jobs, np.int64)
    events = np.zeros(len(cases), np.int64)
    pools = np.add.reduceat(cases.node_gpus, cases.node_base[:-1])
    waited_ms = np.zeros(jobs, np.int64)
    segments, segment_base = cluster_preempt.run_preemptive_batch(
        cases.base,
        cases.submit_ms,
        cases.duration_ms,
        cases.gpus,
        cases.gang_class,
        cases.class_base,
        cases.class_gpus,
        pools,
        key_kind,
        level_bound_gpu_ms,
        level_key,
        level_step_ms,
        cost_ms,
        start_ms,
        last_ms,
        finish_ms,
        preemptions,
        waited_ms,
        events,
        log_stretches,
    )
    _assert_all_finished(events)
    return BatchOutcome(
        policy=policy,
        cases=cases,
        start_ms=start_ms,
        last_start_ms=last_ms,
        finish_ms=finish_ms,
        preemptions=preemptions,
        queueing_ms=waited_ms,
        events=events,
        segments=segments,
        segment_base=segment_base,
        place_base=np.zeros(jobs, np.int64),
        place_count=np.zeros(jobs, np.int64),
        place_node=np.zeros(0, np.int64),
        place_gpus=np.zeros(0, np.int64),
    )


def in_submit_order(table: JobTable, submit_ms: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows by submission, then id; quick for tables that are in that order already."""
    ids = table.job_id
    if ids.dtype.kind == "i":
        later = submit_ms[1:] > submit_ms[:-1]
        equal = submit_ms[1:] == submit_ms[:-1]
        if (later | (equal & (ids[1:] > ids[:-1]))).all():
            return np.arange(len(table))
    return table.submit_order


def cluster_capacity(cluster: hardware.Cluster) -> NDArray[np.float64]:
    """Capacity of each resource of the whole cluster, (5,), in the order of `RESOURCES`."""
    arrays = cluster.arrays()
    columns = (
        arrays.gpus,
        arrays.cpu_cores,
        arrays.memory_bytes,
        arrays.io_bytes_per_s,
        arrays.network_bytes_per_s,
    )
    return np.array([float(column.sum()) for column in columns])


def _never_fits(table: JobTable, sizes: NDArray[np.int64], rule: int) -> dict[int, str]:
    """Row -> reason of the jobs that the empty cluster cannot hold."""
    total = int(sizes.sum())
    reasons: dict[int, str] = {}
    gangs = np.unique(table.num_gpus)
    for gang in gangs[gangs > 0]:
        why = ""
        if gang > total:
            why = f"the cluster has {total}"
        elif rule != cluster_queue.POOLED:
            places = np.empty(len(sizes), np.int64)
            free, scratch = sizes.copy(), np.empty_like(sizes)
            if (
                cluster_queue.place_gang(
                    rule, int(gang), free, sizes, scratch, places, places.copy(), 0
                )
                < 0
            ):
                why = "no choice of whole nodes and one part-node of the empty cluster holds them"
        if why:
            for row in np.flatnonzero(table.num_gpus == gang):
                reasons[int(row)] = (
                    f"{table.source}: row {row + 1} (line {int(table.line[row])}), column "
                    f"num_gpus: job {table.job_id[row]} can never run: it asks for {gang} GPUs, "
                    f"{why}"
                )
    return dict(sorted(reasons.items()))


def _assert_all_finished(events: NDArray[np.int64]) -> None:
    """A queue that never drains would be an error of the engine: impossible jobs are kept out."""
    if (events < 0).any():
        case = int(np.argmax(events < 0))
        raise AssertionError(f"case {case}: {-events[case]} jobs were left waiting for ever")


def _bases(lengths: Any) -> NDArray[np.int64]:
    """First index of each part when parts of these lengths lie end to end; one more entry."""
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int64)
