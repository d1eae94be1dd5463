"""Scheduling training jobs on a GPU cluster as an MDP."""

from __future__ import annotations

from typing import Any

from dtgym.envs.registration import EnvironmentSpec


def _spec(name: str, description: str, **kwargs: Any) -> EnvironmentSpec:
    return EnvironmentSpec(
        id=f"dtgym/ClusterScheduling{name}-v0",
        entry_point="dtgym.envs.cluster_scheduling.env:ClusterSchedulingEnv",
        vector_entry_point="dtgym.envs.cluster_scheduling.env:ClusterSchedulingVectorEnv",
        kwargs=kwargs,
        description=description,
    )


SPECS = (
    _spec("", "16 nodes of 4 equal GPUs, calibrated arrivals; which job, packed or spread"),
    _spec(
        "-Heterogeneous",
        "16 nodes of 4 GPUs of three types; which job, which type or rule",
        cluster="heterogeneous",
        placements=[
            "best_fit",
            "worst_fit",
            "same_rack",
            "spread",
            "type:V100-32",
            "type:P100-16",
            "type:T4",
        ],
    ),
    _spec(
        "-MultiResource",
        "GPU, CPU, memory, I/O and network; which job, where, how much of each",
        multi_resource=True,
        decisions=["slot", "placement", "levels"],
        placements=["best_fit", "worst_fit", "same_rack", "spread"],
    ),
    _spec(
        "-Replay",
        "windows of a job stream on 8 nodes of 8 GPUs, at its own arrival rate; give workload=FILE",
        cluster="g1",
        longest_s=86_400.0,
        offered_load=0.0,
    ),
    _spec(
        "-Small",
        "16 GPUs, 64 jobs: quick to learn on",
        cluster="small",
        jobs_per_episode=64,
        queue_slots=16,
        decisions=["slot"],
        placements=["best_fit"],
    ),
    _spec(
        "-Toy",
        "one GPU, two batches of four jobs: 1,120 s at best (shortest first), 3,480 s in order",
        cluster="toy",
        workload="toy",
        stream_jobs=8,
        jobs_per_episode=8,
        queue_slots=4,
        running_slots=1,
        decisions=["slot"],
        placements=["best_fit"],
        oracle=True,
    ),
)
"""Registered ids: the family's default, presets, and an instance with a known optimum."""
