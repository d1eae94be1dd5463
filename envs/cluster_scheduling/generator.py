"""Where instances come from: a cluster, a stream of jobs, and the windows that are episodes.

A stream is one long job table, generated or read from a trace, prepared once per environment; an
episode is a window of it, drawn from the episode's key. The same code therefore serves calibrated
workloads, toys and replays of real traces.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dtgym.envs.cluster_scheduling import kernel, layout, speeds
from dtgym.envs.cluster_scheduling.types import PLACEMENTS, Parameters
from dtgym.simulator import hardware, job_generator, job_synthesis, traces
from dtgym.simulator.cluster import homogeneous
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.jobs import JobTable

TRAIN_SHARE = 0.7
_MIB = 2.0**20
_MILLI = 1000.0
_KILO = 1e3


@dataclass(frozen=True, eq=False)
class Instance:
    """All that the batch shares: cluster, stream and tables, ready for the kernel.

    Attributes:
        cluster: The cluster.
        jobs: The stream's table, by submission, impossible jobs left out.
        kinds: Names of the GPU types.
        stream, nodes, rate, busy: Arrays for the kernel, see `layout`.
        job_features, node_features: What observations show of jobs and nodes alone, float32.
        first_window: First row at which an episode may begin.
        windows: Number of such rows.
        mean_duration_s: Scale of the reward.
        notes: What a user should know: load, jobs left out, synthetic columns.
    """

    cluster: hardware.Cluster
    jobs: JobTable
    kinds: tuple[str, ...]
    stream: NDArray[np.int64]
    nodes: NDArray[np.int64]
    rate: NDArray[np.float64]
    busy: NDArray[np.int64]
    job_features: NDArray[np.float32]
    node_features: NDArray[np.float32]
    first_window: int
    windows: int
    mean_duration_s: float
    notes: tuple[str, ...]


def _heterogeneous() -> hardware.Cluster:
    """16 nodes of 4 GPUs: half V100, a quarter P100, a quarter T4, in four racks."""
    kinds = ("V100-32", "V100-32", "P100-16", "T4")
    groups = [
        hardware.NodeGroup(group.count, replace(group.node, rack=f"rack{rack}"))
        for rack, kind in enumerate(kinds)
        for group in homogeneous(4, 4, accelerator=kind).groups
    ]
    return hardware.Cluster("heterogeneous", tuple(groups))


CLUSTERS = {
    "homogeneous": lambda: homogeneous(16, 4, nodes_per_rack=4),
    "heterogeneous": _heterogeneous,
    "small": lambda: homogeneous(4, 4, nodes_per_rack=2),
    "g1": lambda: homogeneous(8, 8),
    "g2": lambda: homogeneous(5, 8),
    "toy": lambda: homogeneous(1, 1),
}
"""Clusters by name: 16 x 4 GPUs of one and of three types, 4 x 4, those of the golden cases (8 x 8
and 5 x 8), and a single GPU."""


def cluster_named(name: str) -> hardware.Cluster:
    """A cluster of `CLUSTERS`, of the hardware catalogue, or of a YAML file.

    Raises:
        InvalidInput: There is none.
    """
    if name in CLUSTERS:
        return CLUSTERS[name]()
    if name.endswith((".yaml", ".yml")):
        return hardware.load_cluster(name)
    known = hardware.catalogue_names("clusters")
    if name not in known:
        raise InvalidInput(
            f"cluster must be one of {', '.join((*CLUSTERS, *known))} or a .yaml file, got {name!r}"
        )
    return hardware.cluster(name)


def toy_jobs(jobs: int) -> JobTable:
    """Batches of four one-GPU jobs, longest first: on one GPU the optimum is known.

    Every batch (400 s, 30 s, 20 s, 10 s) comes at once, 1,000 s apart, so batches do not meet.
    Shortest first is optimal (Smith 1956): completions at 10, 30, 60 and 460 s sum to 560 s a
    batch; in the given order they sum to 1,740 s.
    """
    batch = np.arange(jobs) // 4
    return JobTable.from_columns(
        submit_s=batch * 1000.0,
        duration_s=np.array([400.0, 30.0, 20.0, 10.0])[np.arange(jobs) % 4],
        num_gpus=np.ones(jobs, dtype=np.int64),
        synthetic=("submit_s", "duration_s", "num_gpus"),
        source="toy",
    )


TOY_OPTIMUM_S = 560.0
"""Least sum of completion times of a batch of `toy_jobs`."""


def build(parameters: Parameters) -> Instance:
    """Makes the instance of an environment; equal parameters share one.

    Raises:
        InvalidInput: An unknown cluster or workload, a trace that cannot be read, or too few jobs
            for an episode.
    """
    return _build(
        parameters.cluster,
        parameters.workload,
        parameters.virtual_cluster,
        parameters.stream_jobs,
        parameters.stream_seed,
        parameters.split,
        parameters.longest_s,
        parameters.offered_load,
        parameters.jobs_per_episode,
        parameters.multi_resource,
        tuple(parameters.placements),
        parameters.overlap,
        "levels" in parameters.decisions,
    )


@lru_cache(maxsize=16)
def _build(
    cluster_name: str,
    workload: str,
    virtual_cluster: str,
    stream_jobs: int,
    stream_seed: int,
    split: str,
    longest_s: float,
    offered_load: float,
    jobs_per_episode: int,
    multi_resource: bool,
    placements: tuple[str, ...],
    overlap: float,
    choose_levels: bool,
) -> Instance:
    cluster = cluster_named(cluster_name)
    notes: list[str] = []
    jobs = _stream_jobs(workload, virtual_cluster, stream_jobs, stream_seed, cluster)
    notes.extend(jobs.notes)
    if longest_s > 0 and (jobs.duration_s > longest_s).any():
        cut = np.minimum(jobs.duration_s, longest_s)
        jobs = jobs.with_columns({"duration_s": cut}, synthetic="duration_s" in jobs.synthetic)
    if multi_resource:
        jobs = job_synthesis.fill(jobs, seed=stream_seed)
    kinds = tuple(dict.fromkeys(group.node.accelerator.name for group in cluster.groups))
    nodes, node_features = _nodes(cluster, kinds, multi_resource)
    codes = rule_codes(placements, kinds)
    jobs = jobs.select(jobs.submit_order)
    demand = _demand(jobs, multi_resource)
    bits = _type_bits(jobs, kinds)
    fits = _fits_empty(jobs, demand, bits, nodes, codes, choose_levels)
    if not fits.all():
        first = int(np.argmax(~fits))
        notes.append(
            f"{jobs.source}: left out {int((~fits).sum())} of {len(jobs)} jobs that can never run "
            f"on {cluster.name} (first: line {jobs.line[first]}, {jobs.num_gpus[first]} GPUs)"
        )
        warnings.warn(notes[-1], traces.TraceWarning, stacklevel=4)
        jobs, demand, bits = jobs.select(fits), demand[fits], bits[fits]
    if offered_load > 0 and workload != "toy":
        jobs = jobs.at_load(offered_load, cluster.gpus)
    notes.extend(jobs.against(cluster).warnings)
    profile, profiles = speeds.profiles(jobs, multi_resource)
    first, last = {
        "all": (0, len(jobs)),
        "train": (0, int(TRAIN_SHARE * len(jobs))),
        "test": (int(TRAIN_SHARE * len(jobs)), len(jobs)),
    }[split]
    windows = last - first - jobs_per_episode + 1
    if windows < 1:
        raise InvalidInput(
            f"jobs_per_episode must be at most {last - first}, the {split} jobs of {jobs.source}; "
            f"got {jobs_per_episode}"
        )
    stream = _stream(jobs, demand, bits, profile)
    rate, busy = speeds.tables(profiles, cluster, kinds, overlap)
    return Instance(
        cluster=cluster,
        jobs=jobs,
        kinds=kinds,
        stream=stream,
        nodes=nodes,
        rate=rate,
        busy=busy,
        job_features=_job_features(jobs, demand, profiles.stages[profile], nodes),
        node_features=node_features,
        first_window=first,
        windows=windows,
        mean_duration_s=float(jobs.duration_s.mean()),
        notes=tuple(notes),
    )


def _stream_jobs(
    workload: str, virtual_cluster: str, count: int, seed: int, cluster: hardware.Cluster
) -> JobTable:
    if virtual_cluster and workload in ("toy", *job_generator.PROFILES):
        raise InvalidInput(f"virtual_cluster: {workload} has no virtual clusters")
    if workload == "toy":
        return toy_jobs(count)
    if workload in job_generator.PROFILES:
        return job_generator.generate(workload, jobs=count, seed=seed, largest_gpus=cluster.gpus)
    if not Path(workload).is_file():
        known = ", ".join(("toy", *job_generator.PROFILES))
        raise InvalidInput(f"workload must be one of {known} or a trace file, got {workload!r}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", traces.TraceWarning)  # kept in the table's notes
        jobs = traces.read(workload)
    if virtual_cluster:
        if jobs.vc is None:
            raise InvalidInput(f"virtual_cluster: {workload} has no virtual clusters")
        if virtual_cluster not in jobs.vc:
            raise InvalidInput(
                f"virtual_cluster must be one of {', '.join(np.unique(jobs.vc))} of {workload}, "
                f"got {virtual_cluster!r}"
            )
        jobs = jobs.select(jobs.vc == virtual_cluster)
    if (jobs.num_gpus > 0).sum() < len(jobs):
        jobs = jobs.select(jobs.num_gpus > 0)
    return jobs.select(jobs.submit_order[:count])


def rule_codes(placements: tuple[str, ...], kinds: tuple[str, ...]) -> NDArray[np.int64]:
    """Codes of placement rules.

    Raises:
        InvalidInput: A GPU type that the cluster does not have.
    """
    codes: list[int] = []
    for rule in placements:
        if rule in PLACEMENTS:
            codes.append(PLACEMENTS.index(rule))
            continue
        kind = rule.removeprefix("type:")
        if kind not in kinds:
            raise InvalidInput(
                f"placements: {rule} names a type that is none of {', '.join(kinds)}"
            )
        codes.append(layout.TYPE_0 + kinds.index(kind))
    return np.array(codes, dtype=np.int64)


def _nodes(
    cluster: hardware.Cluster, kinds: tuple[str, ...], multi_resource: bool
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Nodes for the kernel, (nodes, layout.NODE_COLUMNS), and their features."""
    arrays = cluster.arrays()
    nodes = np.zeros((len(arrays.gpus), layout.NODE_COLUMNS), dtype=np.int64)
    nodes[:, 0] = arrays.gpus
    if multi_resource:
        nodes[:, 1] = arrays.cpu_cores * _MILLI
        nodes[:, 2] = arrays.memory_bytes / _MIB
        nodes[:, 3] = arrays.io_bytes_per_s / _KILO
        nodes[:, 4] = arrays.network_bytes_per_s / _KILO
        nodes[:, 1 : layout.RESOURCES] *= 4
    names = [group.node.accelerator.name for group in cluster.groups]
    nodes[:, layout.KIND] = [kinds.index(names[group]) for group in arrays.group]
    nodes[:, layout.RACK] = arrays.rack
    features = np.stack(
        [
            nodes[:, 0] / nodes[:, 0].max(),
            speeds.gpu_speed(cluster, kinds)[nodes[:, layout.KIND]],
            arrays.rack / len(arrays.racks),
        ],
        axis=1,
    )
    return nodes, features.astype(np.float32)


def _stream(
    jobs: JobTable,
    demand: NDArray[np.int64],
    bits: NDArray[np.int64],
    profile: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Jobs for the kernel, (jobs, layout.STREAM_COLUMNS)."""
    stream = np.empty((len(jobs), layout.STREAM_COLUMNS), dtype=np.int64)
    stream[:, layout.SUBMIT] = jobs.submit_ms
    stream[:, layout.DURATION] = jobs.duration_ms
    stream[:, layout.GPUS] = jobs.num_gpus
    stream[:, layout.DEMAND : layout.DEMAND + 4] = demand
    stream[:, layout.PROFILE] = profile
    stream[:, layout.TYPE_BITS] = bits
    stream[:, layout.JOB_WEIGHT] = np.rint(jobs.column("weight", 1.0) * 1000)
    return stream


def _demand(jobs: JobTable, multi_resource: bool) -> NDArray[np.int64]:
    """Per GPU: CPU millicores, memory MiB, I/O and network kB/s, rounded down; (jobs, 4)."""
    if not multi_resource:
        return np.zeros((len(jobs), 4), dtype=np.int64)
    gpus = np.maximum(jobs.num_gpus, 1)
    columns = (
        ("cpu_cores", _MILLI),
        ("memory_bytes", 1 / _MIB),
        ("io_bytes_per_s", 1 / _KILO),
        ("network_bytes_per_s", 1 / _KILO),
    )
    amounts = [np.floor(jobs.column(name, 0.0) / gpus * factor) for name, factor in columns]
    return np.ascontiguousarray(np.stack(amounts, axis=1).astype(np.int64))


def _type_bits(jobs: JobTable, kinds: tuple[str, ...]) -> NDArray[np.int64]:
    """Bit t is set where GPU type t will do."""
    every = (1 << len(kinds)) - 1
    if jobs.gpu_type is None:
        return np.full(len(jobs), every, dtype=np.int64)
    wanted, which = np.unique(jobs.gpu_type, return_inverse=True)
    bits = [
        every
        if not text
        else sum(1 << kinds.index(one) for one in str(text).split("|") if one in kinds)
        for text in wanted
    ]
    return np.array(bits, dtype=np.int64)[which]


def _fits_empty(
    jobs: JobTable,
    demand: NDArray[np.int64],
    bits: NDArray[np.int64],
    nodes: NDArray[np.int64],
    codes: NDArray[np.int64],
    choose_levels: bool,
) -> NDArray[np.bool_]:
    """Whether some offered rule places each job on the empty cluster, (jobs,): asks the kernel."""
    shapes = np.column_stack([jobs.num_gpus, bits, demand])
    distinct, which = np.unique(shapes, axis=0, return_inverse=True)
    stream = np.zeros((len(distinct), layout.STREAM_COLUMNS), dtype=np.int64)
    stream[:, layout.GPUS] = distinct[:, 0]
    stream[:, layout.TYPE_BITS] = distinct[:, 1]
    stream[:, layout.DEMAND : layout.DEMAND + 4] = distinct[:, 2:]
    rules = layout.Rules.of(
        nodes,
        slots=1,
        jobs=1,
        kinds=int(nodes[:, layout.KIND].max()) + 1,
        codes=codes,
        choose_place=False,
        choose_levels=choose_levels,
    )
    state = np.zeros((1, rules.words), dtype=np.int64)
    grid = np.zeros((1, 2, len(nodes)), dtype=np.int16)
    state[0, layout.SLOTS_USED] = 1
    free = rules.constants[layout.B_FREE]
    state[0, free : free + nodes.shape[0] * layout.RESOURCES] = nodes[:, : layout.RESOURCES].ravel()
    good = np.zeros(len(distinct), dtype=np.bool_)
    for row in range(len(distinct)):
        state[0, layout.WINDOW] = row
        state[0, rules.constants[layout.B_SLOTS] + layout.SLOT_ROOM] = 0
        grid[:] = 0
        good[row] = kernel.fits_first_slot(0, state, grid, rules.constants, stream, nodes)
    return good[which.ravel()] & (jobs.num_gpus > 0) & (bits != 0)


def rules_of(parameters: Parameters, given: Instance) -> layout.Rules:
    """Constants of an environment for the kernel."""
    return layout.Rules.of(
        given.nodes,
        slots=int(parameters.queue_slots),
        jobs=int(parameters.jobs_per_episode),
        kinds=len(given.kinds),
        codes=rule_codes(tuple(parameters.placements), given.kinds),
        choose_place="placement" in parameters.decisions,
        choose_levels="levels" in parameters.decisions,
        multi_resource=parameters.multi_resource,
        horizon_ms=round(parameters.horizon_s * 1000) if parameters.horizon_s > 0 else -1,
        first_window=given.first_window,
        windows=given.windows,
        discount_per_ms=float(parameters.discount_per_s) / 1000.0,
        estimate_sigma=0.0 if parameters.oracle else float(parameters.estimate_sigma),
        idle_w=int(parameters.idle_power_w),
        active_w=int(parameters.active_power_w),
    )


def _job_features(
    jobs: JobTable,
    demand: NDArray[np.int64],
    stages: NDArray[np.float64],
    nodes: NDArray[np.int64],
) -> NDArray[np.float32]:
    """Queue features 1 to 11 of every job of the stream, (jobs, 11)."""
    total = nodes[:, : layout.RESOURCES].sum(axis=0)
    supply = total[1:] / 4 / total[0]
    asked = np.divide(demand, 2 * supply, out=np.zeros(demand.shape), where=supply > 0)
    weight = jobs.column("weight", 1.0)
    features = np.column_stack(
        [
            jobs.num_gpus / total[0],
            np.minimum(jobs.num_gpus / nodes[:, 0].max(), 1.0),
            np.minimum(asked, 1.0),
            stages / stages.sum(axis=1, keepdims=True),
            weight / (1 + weight),
        ]
    )
    return features.astype(np.float32)
