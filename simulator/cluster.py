"""Event-driven scheduling of training jobs on clusters: one call, exact, fast.

`simulate` answers when each job of a table starts and ends on a cluster under a policy. Time is
int64 milliseconds, so that equal instants are equal; within one instant completions come first,
then arrivals, then decisions; ties go by submission and then job id. docs/scheduling_engine.md
states all rules, and with which options published simulators are reproduced job for job.

Example:
    >>> from dtgym.simulator import cluster
    >>> from dtgym.simulator.jobs import JobTable
    >>> jobs = JobTable.from_columns(
    ...     submit_s=[0, 0, 1], duration_s=[10, 20, 2], num_gpus=[4, 8, 4])
    >>> cluster.simulate(jobs, cluster.homogeneous(nodes=1), "fifo").finish_s.tolist()
    [10.0, 30.0, 32.0]
    >>> cluster.simulate(jobs, cluster.homogeneous(nodes=1), "srtf").finish_s.tolist()
    [10.0, 30.0, 3.0]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import ArrayLike

from dtgym.simulator import cluster_engine, cluster_peers, cluster_rules, hardware
from dtgym.simulator.cluster_cases import (
    IMPOSSIBLE,
    BatchOutcome,
    Cases,
    run_preemptive_pool,
    run_queue_order,
)
from dtgym.simulator.cluster_options import (
    check_batch,
    check_types,
    costs_ms,
    job_column,
    only_gpus,
    per_case,
    preemption_costs_s,
    service_levels,
    whole_number,
)
from dtgym.simulator.cluster_peers import PEER_POLICIES
from dtgym.simulator.cluster_resources import Resources
from dtgym.simulator.errors import InvalidInput, at_least, one_of
from dtgym.simulator.job_speed import SpeedModel
from dtgym.simulator.jobs import JobTable, milliseconds
from dtgym.simulator.kernels import cluster_preempt
from dtgym.simulator.kernels.cluster_queue import PLACEMENTS
from dtgym.simulator.outcome import Outcome
from dtgym.simulator.scheduling import Scheduler

HEAD_OF_LINE = ("block", "skip")

QUEUE_POLICIES = ("fifo", "sjf", "qssf", "priority")
"""Policies with a fixed waiting order that never preempt."""

PREEMPTIVE_POLICIES = ("srtf", "srsf", "las", "gittins")
"""Policies that rank all active jobs anew at every event."""

RESOURCE_POLICIES = (
    "random",
    "easy",
    "conservative",
    "drf",
    "tetris",
    "tetris_short",
    "synergy",
    "lucid",
    "muri",
)
"""Further compiled policies; all of them know nodes and capacity vectors."""

POLICIES = QUEUE_POLICIES + PREEMPTIVE_POLICIES + RESOURCE_POLICIES + PEER_POLICIES
"""Every compiled policy."""


def homogeneous(
    nodes: int = 8,
    gpus_per_node: int = 8,
    *,
    accelerator: str = "V100-32",
    cpu_cores_per_gpu: float = 3.0,
    memory_bytes_per_gpu: float = 62.5e9,
    io_bytes_per_s_per_gpu: float = 62.5e6,
    network_bytes_per_s: float = 12.5e9,
    nodes_per_rack: int | None = None,
) -> hardware.Cluster:
    """A cluster of equal nodes.

    The default shares per GPU are the GPU-proportional ones of Synergy's published profiles: 3
    cores, 62.5 GB, 62.5 MB/s of storage (24 cores, 500 GB, 500 MB/s on a node of 8).

    Args:
        nodes: Number of nodes.
        gpus_per_node: GPUs of each.
        accelerator: Name in the catalogue.
        cpu_cores_per_gpu: Cores of a node over its GPUs; the product is rounded.
        memory_bytes_per_gpu: Main memory of a node over its GPUs.
        io_bytes_per_s_per_gpu: Storage rate of a node over its GPUs.
        network_bytes_per_s: Network cards of a node together, one direction.
        nodes_per_rack: Nodes that share a rack; None is one rack for all.

    Raises:
        InvalidInput: No node, no GPU or an unknown accelerator.

    Examples:
        >>> homogeneous(nodes=5, gpus_per_node=8).gpus
        40
    """
    nodes = whole_number("nodes", nodes)
    gpus_per_node = whole_number("gpus_per_node", gpus_per_node)
    per_rack = nodes if nodes_per_rack is None else whole_number("nodes_per_rack", nodes_per_rack)
    kind = hardware.accelerator(accelerator)
    groups = tuple(
        hardware.NodeGroup(
            count=min(per_rack, nodes - first),
            node=hardware.Node(
                name=f"{gpus_per_node}x{kind.name}",
                accelerator=kind,
                gpus=gpus_per_node,
                cpu_cores=round(cpu_cores_per_gpu * gpus_per_node),
                memory_bytes=memory_bytes_per_gpu * gpus_per_node,
                io_bytes_per_s=io_bytes_per_s_per_gpu * gpus_per_node,
                network_bytes_per_s=network_bytes_per_s,
                rack=f"rack{first // per_rack}",
            ),
        )
        for first in range(0, nodes, per_rack)
    )
    return hardware.Cluster(name=f"{nodes}x{gpus_per_node}", groups=groups)


def simulate(
    jobs: JobTable,
    cluster: hardware.Cluster,
    policy: str | Scheduler = "fifo",
    *,
    placement: str = "pooled",
    head_of_line: str = "block",
    preemption_cost_s: float | str | Mapping[str, float] | ArrayLike = 0.0,
    las_thresholds_gpu_s: Sequence[float] = (18000.0,),
    las_resolution_s: float = 1.0,
    estimate_s: ArrayLike | None = None,
    priority: ArrayLike | None = None,
    gittins_samples_gpu_s: ArrayLike | None = None,
    resources: Sequence[str] | None = None,
    speed: SpeedModel | None = None,
    decision_interval_s: float = 0.0,
    reservation_depth: int = 64,
    sharing_threshold: float | None = None,
    impossible: str = "raise",
    seed: int = 0,
) -> Outcome:
    """Schedules a job table on a cluster.

    Args:
        jobs: What arrives when and how long it runs.
        cluster: What it runs on.
        policy: One of `POLICIES`, or a Python policy (see `dtgym.simulator.cluster_engine`):

            * `fifo`: by submission. `sjf`: shortest duration first. `qssf`: least estimated GPU
              time first. `priority`: smallest value of `priority` first. `random`: in an order
              drawn from `seed`. None of them preempts.
            * `srtf`: least remaining time. `srsf`: least remaining time x GPUs. `las`: least
              attained service, discretised: queue k holds jobs whose attained GPU time exceeds k
              of the thresholds; a job leaves a queue at the first multiple of `las_resolution_s`
              on the clock at which it exceeds the threshold; by submission inside a queue.
              `gittins`: highest Gittins index of the attained GPU time. All rank every active job
              anew at each arrival, completion and change of queue and fill the GPUs greedily in
              that order, skipping gangs that do not fit.
            * `easy`: by submission; a later job may start if the head's reserved start, from
              estimated durations, does not move. `conservative`: every waiting job (the first
              `reservation_depth`) holds a reservation that no later one moves.
            * `drf`: the user (column `user`, else `vc`) with the least dominant share starts his
              next job. `tetris`: the job whose demand is most along a node's free vector starts on
              that node; `tetris_short` divides that product by the estimated duration.
            * `synergy`: by submission; a job gets the CPU share beyond which it hardly gains
              (0.5 to 2 times the request), or else what it asked for, or less. `lucid`: least
              estimated GPU time first, and jobs that find no room share GPUs with a job of the same
              gang while both are predicted to keep `sharing_threshold` (0.85) of their speed.
              `muri`: likewise, but pairs take turns on the stages, and share while their speeds
              sum to `sharing_threshold` (1.2).
            * `lucid_srtf`, `lucid_las`, `tiresias_dlas`: those of the published simulators with
              their own placement, cost and thresholds (see `dtgym.simulator.cluster_peers`).
        placement: `pooled` counts resources and knows no nodes. `consolidate`: gangs up to the
            largest node's size go whole to the fullest node that fits; larger ones take wholly
            free nodes and one part-node, the fullest that fits. `best_fit`, `worst_fit`,
            `first_fit`, `random_fit`: a gang goes whole to the fullest, emptiest, first or a random
            node that fits; one that no node holds is split, nodes that take most first
            (`first_fit`: in order). `spread`: GPU by GPU to the node with most free. `aligned`: to
            the node whose free vector is most along the demand. `fgd`: to the node where least
            GPUs become useless to the table's typical jobs. Fullness counts GPUs; ties go to the
            lowest node.
        head_of_line: `block`: nobody overtakes a job that does not fit. `skip`: whoever fits may
            start, in order. Preemptive policies always skip; `drf` and `tetris` too.
        preemption_cost_s: Work added by each preemption: seconds, an array (jobs,), a mapping from
            `jobs.model` to seconds (key "" for the others), or `lucid`: 40 s up to 8 GPUs, 60 s
            above.
        las_thresholds_gpu_s: Ends of the queues of `las`, GPU-seconds, ascending.
        las_resolution_s: Grid of the clock on which queues change, seconds.
        estimate_s: Estimated durations, (jobs,), for `qssf`, `easy`, `conservative`,
            `tetris_short`, `lucid` and `muri`; None takes the table's column, and (but for `qssf`)
            the true durations where there is none.
        priority: Order of `priority`, (jobs,).
        gittins_samples_gpu_s: Sample of GPU times from which `gittins` takes its index; None is
            the table's own, which a deployed scheduler would not know.
        resources: Which of `outcome.RESOURCES` are limited; None is GPUs and every resource that
            the table has a column for.
        speed: What is assumed about speed; None runs every job for its stated duration.
        decision_interval_s: Decide only at multiples of this on the clock; 0 decides at every
            event.
        reservation_depth: Most reservations of `conservative`.
        sharing_threshold: See `lucid` and `muri`.
        impossible: What becomes of jobs that the empty cluster cannot hold: `raise`, or `reject`,
            which lists them in `Outcome.rejected` and schedules the others.
        seed: Of `random` and `random_fit`.

    Raises:
        InvalidInput: An unknown name, a value out of range, or a job that can never run.

    Examples:
        >>> jobs = JobTable.from_columns(submit_s=[0, 0], duration_s=[5, 3], num_gpus=[1, 1])
        >>> simulate(jobs, homogeneous(1, 1), "sjf").start_s.tolist()
        [3.0, 0.0]
    """
    one_of("impossible", impossible, IMPOSSIBLE)
    one_of("head_of_line", head_of_line, HEAD_OF_LINE)
    interval_ms = int(milliseconds(at_least("decision_interval_s", decision_interval_s, 0, "s")))
    check_types(jobs, cluster)
    if isinstance(policy, str):
        one_of("policy", policy, POLICIES)
        if policy in PEER_POLICIES:
            peer = None if tuple(las_thresholds_gpu_s) == (18000.0,) else las_thresholds_gpu_s
            return cluster_peers.run(
                jobs, cluster, policy, thresholds_gpu_s=peer, impossible=impossible
            )
        if speed is None and interval_ms == 0 and _is_fast(jobs, policy, placement, resources):
            cases = prepare(
                [jobs], [cluster], placement=placement, resources=resources, impossible=impossible
            )
            return simulate_cases(
                cases,
                policy,
                placement=placement,
                head_of_line=head_of_line,
                preemption_cost_s=preemption_cost_s,
                las_thresholds_gpu_s=las_thresholds_gpu_s,
                las_resolution_s=las_resolution_s,
                estimate_s=None if estimate_s is None else [estimate_s],
                priority=None if priority is None else [priority],
                gittins_samples_gpu_s=gittins_samples_gpu_s,
            )[0]
    machine = Resources(
        jobs,
        cluster,
        placement=placement,
        resources=resources,
        speed=speed,
        cost_s=preemption_costs_s(jobs, preemption_cost_s),
        estimate_s=None
        if estimate_s is None
        else at_least("estimate_s", job_column(jobs, "estimate_s", estimate_s), 0, "s"),
        impossible=impossible,
        seed=seed,
    )
    if not isinstance(policy, str):
        return cluster_engine.run(machine, policy, interval_ms=interval_ms)
    levels = service_levels(
        policy,
        las_thresholds_gpu_s,
        las_resolution_s,
        jobs.gpu_seconds if gittins_samples_gpu_s is None else gittins_samples_gpu_s,
    )
    order = {"sjf": jobs.duration_s, "priority": priority}.get(policy)
    if policy == "priority" and priority is None:
        raise InvalidInput("priority is needed: one number per job, (jobs,)")
    if policy == "qssf" and estimate_s is None and jobs.estimate_s is None:
        raise InvalidInput("estimate_s is needed: one number per job, (jobs,)")
    return cluster_rules.run(
        machine,
        policy,
        order=None if order is None else job_column(jobs, "priority", order),
        skip=head_of_line == "skip",
        levels=levels,
        interval_ms=interval_ms,
        depth=int(at_least("reservation_depth", reservation_depth, 1)),
        threshold=sharing_threshold,
    )


def _is_fast(jobs: JobTable, policy: str, placement: str, resources: Sequence[str] | None) -> bool:
    """Whether the kernels that count GPUs do; without a speed model and decision intervals."""
    rules = tuple(PLACEMENTS) if policy in QUEUE_POLICIES else ("pooled",)
    return (
        policy in QUEUE_POLICIES + PREEMPTIVE_POLICIES
        and placement in rules
        and only_gpus(jobs, resources)
    )


def prepare(
    jobs: Sequence[JobTable],
    clusters: Sequence[hardware.Cluster],
    *,
    placement: str = "pooled",
    resources: Sequence[str] | None = None,
    impossible: str = "raise",
) -> Cases:
    """Lays out many cases once, to run several policies on them with `simulate_cases`.

    Args:
        jobs: One table per case; only whole GPUs of any type may limit them.
        clusters: One cluster per case.
        placement: `pooled`, `consolidate`, `best_fit`, `worst_fit`, `first_fit` or `spread`.
        resources: `("gpu",)` leaves the tables' other columns out of account.
        impossible: See `simulate`.

    Raises:
        InvalidInput: No case, unequal numbers of tables and clusters, a table with other resources,
            or a job that can never run.
    """
    one_of("placement", placement, tuple(PLACEMENTS))
    one_of("impossible", impossible, IMPOSSIBLE)
    check_batch(jobs, clusters)
    for table in jobs:
        if not only_gpus(table, resources):
            raise InvalidInput(
                f"{table.source}: prepared cases know whole GPUs of any type only; use "
                'simulate_batch, or resources=("gpu",) to leave other resources out of account'
            )
    return Cases.of(jobs, clusters, placement=placement, impossible=impossible)


def simulate_batch(
    jobs: Sequence[JobTable],
    clusters: Sequence[hardware.Cluster],
    policy: str = "fifo",
    *,
    placement: str = "pooled",
    resources: Sequence[str] | None = None,
    impossible: str = "raise",
    estimate_s: Sequence[ArrayLike] | None = None,
    priority: Sequence[ArrayLike] | None = None,
    **options: Any,
) -> BatchOutcome | list[Outcome]:
    """Schedules many job tables, each on its own cluster; in one kernel call where only GPUs count.

    Args:
        jobs: One table per case.
        clusters: One cluster per case.
        policy: See `simulate`.
        placement: See `simulate`.
        resources: See `simulate`.
        impossible: See `simulate`.
        estimate_s: One array per case.
        priority: One array per case.
        **options: The other options of `simulate`, the same for all cases.

    Returns:
        Sequence of outcomes; each equals what `simulate` gives for its case.

    Raises:
        InvalidInput: See `simulate` and `prepare`.

    Examples:
        >>> jobs = JobTable.from_columns(submit_s=[0, 0], duration_s=[5, 3], num_gpus=[1, 1])
        >>> batch = simulate_batch([jobs, jobs], [homogeneous(1, 1), homogeneous(1, 2)])
        >>> [outcome.makespan_s for outcome in batch]
        [8.0, 5.0]
    """
    check_batch(jobs, clusters)
    kernel_options = {
        "head_of_line",
        "preemption_cost_s",
        "las_thresholds_gpu_s",
        "las_resolution_s",
        "gittins_samples_gpu_s",
    }
    if set(options) <= kernel_options and all(
        _is_fast(table, policy, placement, resources) for table in jobs
    ):
        cases = prepare(
            jobs, clusters, placement=placement, resources=resources, impossible=impossible
        )
        return simulate_cases(
            cases,
            policy,
            placement=placement,
            estimate_s=estimate_s,
            priority=priority,
            **options,
        )
    return [
        simulate(
            table,
            machines,
            policy,
            placement=placement,
            resources=resources,
            impossible=impossible,
            estimate_s=None if estimate_s is None else estimate_s[case],
            priority=None if priority is None else priority[case],
            **options,
        )
        for case, (table, machines) in enumerate(zip(jobs, clusters, strict=True))
    ]


def simulate_cases(
    cases: Cases,
    policy: str = "fifo",
    *,
    placement: str = "pooled",
    head_of_line: str = "block",
    preemption_cost_s: float | str | Mapping[str, float] | ArrayLike = 0.0,
    las_thresholds_gpu_s: Sequence[float] = (18000.0,),
    las_resolution_s: float = 1.0,
    estimate_s: Sequence[ArrayLike] | None = None,
    priority: Sequence[ArrayLike] | None = None,
    gittins_samples_gpu_s: ArrayLike | None = None,
    log_stretches: bool = True,
) -> BatchOutcome:
    """Schedules prepared cases; see `simulate` for the options.

    Args:
        cases: From `prepare`, with the same placement.
        policy: See `simulate`.
        placement: See `simulate`.
        head_of_line: See `simulate`.
        preemption_cost_s: See `simulate`.
        las_thresholds_gpu_s: See `simulate`.
        las_resolution_s: See `simulate`.
        estimate_s: One array per case.
        priority: One array per case.
        gittins_samples_gpu_s: See `simulate`.
        log_stretches: Keep when preempted jobs ran; without it utilisation and timelines of
            preemptive policies know only each job's last stretch, which searches do not need.

    Raises:
        InvalidInput: See `simulate`.
    """
    one_of("policy", policy, QUEUE_POLICIES + PREEMPTIVE_POLICIES)
    one_of("placement", placement, tuple(PLACEMENTS))
    one_of("head_of_line", head_of_line, HEAD_OF_LINE)
    if policy in QUEUE_POLICIES:
        if policy == "fifo":
            rank = cases.rank(None, "fifo")
        elif policy == "sjf":
            rank = cases.rank(cases.duration_ms, "sjf")
        elif policy == "qssf":
            estimates = per_case(cases, "estimate_s", estimate_s)
            rank = cases.rank(estimates * cases.gpus)
        else:
            rank = cases.rank(per_case(cases, "priority", priority))
        return run_queue_order(
            cases, rank, policy=policy, placement=placement, skip=head_of_line == "skip"
        )
    if placement != "pooled":
        raise InvalidInput(
            f"placement must be pooled for the preemptive policy {policy}, got {placement!r}"
        )
    samples = cases.duration_ms * cases.gpus / 1000.0
    bound, key, step_ms = service_levels(
        policy,
        las_thresholds_gpu_s,
        las_resolution_s,
        samples if gittins_samples_gpu_s is None else gittins_samples_gpu_s,
    )
    kinds = {
        "srtf": cluster_preempt.REMAINING,
        "srsf": cluster_preempt.REMAINING_GPU_TIME,
    }
    return run_preemptive_pool(
        cases,
        kinds.get(policy, cluster_preempt.LEVEL),
        policy=policy,
        level_bound_gpu_ms=bound,
        level_key=key,
        level_step_ms=step_ms,
        cost_ms=costs_ms(cases, preemption_cost_s),
        log_stretches=log_stretches,
    )
