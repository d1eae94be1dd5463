"""Speed of jobs as tables for the kernel: profile x GPU type x locality x allocation levels.

All figures come from `dtgym.simulator.job_speed`; what is added here is which GPU and network a
placement means.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dtgym.envs.cluster_scheduling.layout import LEVELS, RESOURCES, UNIT_LEVEL
from dtgym.simulator import hardware, job_speed
from dtgym.simulator.job_synthesis import STAGES
from dtgym.simulator.jobs import JobTable

NETWORK_FACTOR = (1.0, 5.0, 8.0)
"""Length of the network stage on one node, in one rack and across racks, for gangs that one node
could hold [assumed: of the order of Gavel's published consolidated / spread throughputs on V100
(ResNet-18 0.68 and Transformer 0.60 at 2 GPUs), given Muri's network shares at 2 GPUs]. A gang that
no node holds was profiled over several nodes: its factors are relative to one rack."""


@dataclass(frozen=True, eq=False)
class Profiles:
    """Distinct speed profiles of a stream.

    Attributes:
        stages: Seconds of the storage, CPU, GPU and network stage as requested, (profiles, 4).
        cpu_shape: See `job_speed.relative_speed`, (profiles, 3).
        cores_per_gpu: As requested, (profiles,).
        gpus: Gang, (profiles,).
    """

    stages: NDArray[np.float64]
    cpu_shape: NDArray[np.float64]
    cores_per_gpu: NDArray[np.float64]
    gpus: NDArray[np.int64]


def profiles(jobs: JobTable, multi_resource: bool) -> tuple[NDArray[np.int64], Profiles]:
    """Profile of each job (a row of the second result), and the distinct profiles.

    Where only GPUs matter there is one profile, whose time all lies on the GPU.
    """
    if not multi_resource:
        one = Profiles(
            np.array([[0.0, 0.0, 1.0, 0.0]]),
            np.array([[0.0, 1.0, 0.0]]),
            np.zeros(1),
            np.ones(1, np.int64),
        )
        return np.zeros(len(jobs), dtype=np.int64), one
    models = jobs.column("model", "")
    names, model = np.unique(models, return_inverse=True)
    curves = job_speed.cpu_curves()
    shapes = np.array(
        [
            (curves[name].squared, curves[name].linear, curves[name].constant)
            if name in curves
            else (0.0, 1.0, 0.0)
            for name in names.tolist()
        ]
    )
    cores = jobs.column("cpu_cores", 0.0) / np.maximum(jobs.num_gpus, 1)
    columns = np.column_stack(
        [*(jobs.column(name, 0.0) for name in STAGES), shapes[model], cores, jobs.num_gpus]
    ).astype(np.float64)
    rows, profile = np.unique(columns, axis=0, return_inverse=True)
    return profile.ravel().astype(np.int64), Profiles(
        rows[:, :4], rows[:, 4:7], rows[:, 7], rows[:, 8].astype(np.int64)
    )


def gpu_speed(cluster: hardware.Cluster, kinds: tuple[str, ...]) -> NDArray[np.float64]:
    """Speed of each GPU type relative to the fastest of the cluster, (kinds,).

    The root of the ratio of half-precision peaks [assumed]: between V100 and P100 or K80 that is
    0.4 and 0.26, against 0.58 and 0.16-0.25 measured for most models of Gavel's table, while the
    ratio itself would be 0.17 and 0.07. Durations of a trace are read as those on the fastest type.
    """
    peak = {
        group.node.accelerator.name: group.node.accelerator.half_flop_per_s
        for group in cluster.groups
    }
    speed = np.sqrt(np.array([peak[kind] for kind in kinds]))
    return speed / speed.max()


def tables(
    profiles: Profiles, cluster: hardware.Cluster, kinds: tuple[str, ...], overlap: float
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Speed tables of every profile, GPU type, locality and choice of levels.

    Returns:
        rate: Progress relative to the request on the fastest GPU type, flattened from (profiles,
            kinds, 3 localities, 5 CPU, 5 I/O, 5 network levels).
        busy: Share of each held resource that is kept busy, thousandths, likewise with a last axis
            of 5 resources; what is held of memory is used.
    """
    levels = LEVELS / LEVELS[UNIT_LEVEL]
    largest = max(group.node.gpus for group in cluster.groups)
    factor = np.array(NETWORK_FACTOR)
    split = (profiles.gpus > largest)[:, None]
    network = np.where(split, np.maximum(factor / factor[1], 1.0), factor)
    count = len(profiles.stages)
    shape = (count, len(kinds), len(factor), len(levels), len(levels), len(levels))
    row, kind, locality, cpu, io, net = (axis.ravel() for axis in np.indices(shape))
    asked = profiles.cores_per_gpu[row]
    given = np.where(asked > 0, asked * levels[cpu], 1.0)
    speed = gpu_speed(cluster, kinds)[kind]
    network_share = levels[net] / network[row, locality]
    rate = job_speed.relative_speed(
        profiles.stages[row],
        overlap=overlap,
        cpu_shape=profiles.cpu_shape[row],
        cores_asked=asked,
        cores_given=given,
        io_share=levels[io],
        gpu_speed=speed,
        network_share=network_share,
    )
    stages = profiles.stages[row].copy()
    squared, linear, constant = profiles.cpu_shape[row].T

    def cpu_length(cores: NDArray[np.float64]) -> NDArray[np.float64]:
        return squared / cores**2 + linear / cores + constant

    depends = asked > 0
    stages[depends, 1] *= cpu_length(given)[depends] / cpu_length(np.maximum(asked, 1e-9))[depends]
    stages[:, 0] /= levels[io]
    stages[:, 2] /= speed
    stages[:, 3] /= network_share
    iteration = job_speed.iteration_s(stages, overlap)
    share = stages / iteration[:, None]
    # GPU, CPU, memory (held is used), I/O, network.
    busy = np.stack(
        [share[:, 2], share[:, 1], np.ones(len(share)), share[:, 0], share[:, 3]], axis=1
    )
    milli = np.rint(np.minimum(busy, 1.0) * 1000).astype(np.int64)
    assert milli.shape == (len(rate), RESOURCES)
    return rate, milli.ravel()
