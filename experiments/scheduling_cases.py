"""The workloads of table D0: instances of every suite by seed and offered load.

Suites that need real traces are made where the data is: in a folder that is named, or that of
``DTGYM_SHARED``, or ``../shared``. Everything a policy learns (the Gittins index) comes from
training data only: other virtual clusters, or earlier weeks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dtgym.envs.cluster_scheduling import generator, speeds
from dtgym.simulator import cluster as engine
from dtgym.simulator import hardware, job_generator, job_synthesis, traces
from dtgym.simulator.job_speed import SpeedModel
from dtgym.simulator.jobs import JobTable

ESTIMATE_SIGMA = 0.5
"""Log standard deviation of the estimates that policies see; the true ones only where marked."""
LONGEST_S = 86_400.0
"""Run times are cut here, as in the golden cases."""
TRAIN_SHARE = 0.7
SEEN_CLUSTERS = ("6c71a0", "b436b2", "11cb48")
"""Philly virtual clusters whose first 70 % policies may learn from."""
UNSEEN_CLUSTERS = ("ee9e8c", "0e4a51", "103959")
"""Philly virtual clusters that nothing is learned from."""


@dataclass(frozen=True)
class Case:
    """One instance of a suite.

    Attributes:
        jobs: What arrives, at the asked load, with estimates.
        cluster: What it runs on.
        speed: Speed model, or None where jobs run for their durations.
        history_gpu_s: GPU times of training jobs.
        resources: What is limited; None is all that the jobs ask for.
    """

    jobs: JobTable
    cluster: hardware.Cluster
    speed: SpeedModel | None
    history_gpu_s: NDArray[np.float64]
    resources: tuple[str, ...] | None = None


def trace_folder(data: str = "") -> Path | None:
    """The folder with the shared traces, or None."""
    root = Path(data or os.environ.get("DTGYM_SHARED", "../shared"))
    folder = root / "data" / "traces"
    return folder if folder.is_dir() else None


def _with_estimates(jobs: JobTable, seed: int) -> JobTable:
    """True durations times exp(sigma z), as the environment shows them."""
    random = np.random.Generator(np.random.PCG64(seed))
    noise = np.exp(ESTIMATE_SIGMA * random.standard_normal(len(jobs)))
    return jobs.with_columns({"estimate_s": jobs.duration_s * noise}, synthetic=True)


def _cut(jobs: JobTable) -> JobTable:
    shortened = np.minimum(jobs.duration_s, LONGEST_S)
    return jobs.with_columns({"duration_s": shortened}, synthetic="duration_s" in jobs.synthetic)


@lru_cache(maxsize=4)
def _read(path: Path) -> JobTable:
    return traces.read(path)


def _golden(name: str, nodes: int) -> Callable[..., Case]:
    def build(folder: Path, seed: int, load: float, jobs: int) -> Case:
        del jobs  # the golden cases have their own
        table = _read(folder / "golden" / f"{name}.jobs.csv.gz")
        cluster = engine.homogeneous(nodes, 8)
        return Case(
            _with_estimates(table.at_load(load, cluster.gpus), seed),
            cluster,
            None,
            _philly_history(folder),
        )

    return build


def _philly(clusters: Sequence[str], *, later: bool) -> Callable[..., Case]:
    def build(folder: Path, seed: int, load: float, jobs: int) -> Case:
        table = _read(folder / "philly_82k.csv.gz")
        assert table.vc is not None
        table = _cut(table.select(table.vc == clusters[seed % len(clusters)]))
        table = table.select(table.submit_order)
        cluster = engine.homogeneous(8, 8)
        first = int(TRAIN_SHARE * len(table)) if later else 0
        random = np.random.Generator(np.random.PCG64(seed))
        start = int(random.integers(first, max(len(table) - jobs, first) + 1))
        window = table.select(np.arange(start, min(start + jobs, len(table))))
        window = window.select(window.num_gpus <= cluster.gpus)
        return Case(
            _with_estimates(window.at_load(load, cluster.gpus), seed),
            cluster,
            None,
            _philly_history(folder),
        )

    return build


@lru_cache(maxsize=1)
def _philly_history(folder: Path) -> NDArray[np.float64]:
    """GPU times of the first 70 % of the seen virtual clusters, at most 4,000 of them."""
    table = _read(folder / "philly_82k.csv.gz")
    assert table.vc is not None
    parts: list[NDArray[np.float64]] = []
    for name in SEEN_CLUSTERS:
        one = _cut(table.select(table.vc == name))
        one = one.select(one.submit_order[: int(TRAIN_SHARE * len(one))])
        parts.append(one.gpu_seconds)
    whole = np.concatenate(parts)
    return whole[:: max(len(whole) // 4000, 1)]


def _generated(
    cluster_name: str, *, multi_resource: bool, limited: tuple[str, ...] | None = None
) -> Callable[..., Case]:
    def build(folder: Path | None, seed: int, load: float, jobs: int) -> Case:
        del folder  # needs no data
        cluster = generator.cluster_named(cluster_name)
        table = _cut(
            job_generator.generate("philly", jobs=jobs, seed=seed, largest_gpus=cluster.gpus // 4)
        ).at_load(load, cluster.gpus)
        if multi_resource:
            table = job_synthesis.fill(table, seed=seed)
        kinds = tuple(dict.fromkeys(group.node.accelerator.name for group in cluster.groups))
        speed = None
        if multi_resource or len(kinds) > 1:
            relative = speeds.gpu_speed(cluster, kinds)
            speed = SpeedModel(
                gpu_speed=dict(zip(kinds, relative.tolist(), strict=True)),
                cross_node_network_scale=speeds.NETWORK_FACTOR[1],
                cross_rack_network_scale=speeds.NETWORK_FACTOR[2],
            )
        # Seeds of the past lie far from those of the instances.
        past = _cut(job_generator.generate("philly", jobs=2000, seed=10_000))
        return Case(_with_estimates(table, seed), cluster, speed, past.gpu_seconds, limited)

    return build


SUITES: dict[str, Callable[..., Case]] = {
    "g1": _golden("g1_philly_ee9e8c_14d", 8),
    "g2": _golden("g2_philly_6c71a0_2000", 5),
    "philly_later": _philly(SEEN_CLUSTERS, later=True),
    "philly_unseen": _philly(UNSEEN_CLUSTERS, later=False),
    "generated": _generated("homogeneous", multi_resource=False),
    "heterogeneous": _generated("heterogeneous", multi_resource=False),
    "multi_resource": _generated("homogeneous", multi_resource=True),
    "gpu_sharing": _generated("homogeneous", multi_resource=True, limited=("gpu",)),
}
"""Suites by name: functions of the trace folder, seed, load and number of jobs."""
NEED_DATA = ("g1", "g2", "philly_later", "philly_unseen")
