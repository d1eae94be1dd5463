"""What goes into and comes out of cluster scheduling: arguments, features, public state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.envs.cluster_scheduling.layout import LEVELS
from dtgym.simulator.errors import InvalidInput, above, at_least, one_of

RESOURCES = ("gpu", "cpu", "memory", "io", "network")
DECISIONS = ("slot", "placement", "levels")
PLACEMENTS = ("best_fit", "worst_fit", "same_rack", "spread")
"""Rules by their code in the kernel; ``type:t`` (best fit on GPU type t) come after them."""
OBJECTIVES = (
    "jct",
    "weighted_jct",
    "slowdown",
    "gpu_utilisation",
    "cpu_utilisation",
    "memory_utilisation",
    "io_utilisation",
    "network_utilisation",
    "fairness",
    "energy",
)
"""Axis of the vector reward; see `dtgym.envs.cluster_scheduling.reward`."""
REWARDS = ("jct", "weighted_jct", "slowdown", "utilisation")
SPLITS = ("all", "train", "test")
PHASES = ("slot", "placement", "cpu level", "io level", "network level")

QUEUE_FEATURES = (
    "present",
    "GPUs asked / GPUs of the cluster",
    "GPUs asked / GPUs of the largest node, at most 1",
    "CPU per GPU asked / twice the cluster's CPU per GPU, at most 1",
    "memory per GPU, likewise",
    "I/O per GPU, likewise",
    "network per GPU, likewise",
    "storage stage / iteration",
    "CPU stage / iteration",
    "GPU stage / iteration",
    "network stage / iteration",
    "weight / (1 + weight)",
    "estimated duration, squashed",
    "age since submission, squashed",
    "can be started now",
    "chosen in this decision",
)
"""Axis of ``observation["queue"]``; all lie in [0, 1]. Squashed times are
``sqrt(t) / (sqrt(t) + sqrt(1 h))``: a minute is 0.11, an hour 0.5, a hundred hours 0.91."""
NODE_FEATURES = (
    "GPUs / GPUs of the largest node",
    "speed of its GPUs / fastest",
    "rack / racks",
    "free GPUs / its GPUs",
    "free CPU / its CPU",
    "free memory / its memory",
    "free I/O / its I/O",
    "free network / its network",
    "GPUs it would give in this decision / its GPUs",
)
"""Axis of ``observation["nodes"]``; all lie in [0, 1]."""
RUNNING_FEATURES = (
    "present",
    "GPUs / GPUs of the cluster",
    "estimated remaining time, squashed",
    "time since the start, squashed",
    "nodes used / nodes",
)
"""Axis of ``observation["running"]``, oldest starts first; all lie in [0, 1]."""
CLUSTER_FEATURES = (
    *(f"phase: {name}" for name in PHASES),
    *(f"held {name} / capacity" for name in RESOURCES),
    *(f"busy {name} / capacity" for name in RESOURCES),
    "arrived and not shown jobs / (8 + themselves)",
    "jobs yet to arrive / jobs of the episode",
    "jobs unfinished / jobs of the episode",
    "spread of the estimates (log standard deviation, at most 1)",
    "sine of the time of day",
    "cosine of the time of day",
    "sine of the time of week",
    "cosine of the time of week",
)
"""Axis of ``observation["cluster"]``; the last four lie in [-1, 1], the others in [0, 1]."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Arguments of the environment: plain data, checked once.

    Attributes:
        cluster: A name of `generator.CLUSTERS` or of the hardware catalogue, or a YAML file of
            `dtgym.simulator.hardware.load_cluster`.
        workload: A profile of `dtgym.simulator.job_generator`, ``toy``, or a trace file that
            `dtgym.simulator.traces` reads.
        virtual_cluster: Keeps only this virtual cluster of a trace; empty keeps all.
        stream_jobs: Jobs to generate; of a trace, the largest number to keep.
        stream_seed: Of the generated stream and of synthesised columns. Episodes draw windows of
            the stream from their own seeds.
        split: Which part of the stream, in time, windows come from: the first 70 % (``train``), the
            rest (``test``) or ``all``.
        longest_s: Cuts run times, as the golden cases of the literature do (at a day); 0 does not.
            Four hours keep an episode of 256 jobs where jobs wait and their order matters.
        offered_load: Stretches arrivals of the whole stream to this load of the cluster; 0 keeps
            them as they are.
        jobs_per_episode: Jobs in an episode.
        multi_resource: Whether jobs hold CPU, memory, I/O and network (missing columns are
            synthesised) and run at the speed these give; otherwise only GPUs matter.
        decisions: Which choices the agent makes: ``slot`` alone, with ``placement``, or with
            ``placement`` and ``levels``.
        placements: Rules that are offered, or, where placement is not chosen, tried in order.
        queue_slots: Waiting jobs that are shown, oldest first.
        running_slots: Running jobs that are shown.
        reward: What the scalar reward is; one of `REWARDS`.
        estimate_sigma: Durations are shown as the true one times ``exp(sigma z)``, z standard
            normal and fixed per job: unbiased in the median, the error the same over all lengths.
        oracle: Shows true durations instead; only for upper bounds.
        horizon_s: Ends the episode at this time; 0 ends it when all jobs are done.
        discount_per_s: beta of the time-aware discount exp(-beta t); 0 is none.
        overlap: 0 runs the stages of an iteration one after the other, 1 all at once.
        idle_power_w: Of one GPU [assumed]; an input of the energy objective only.
        active_power_w: Of one fully busy GPU [assumed].
    """

    cluster: str = "homogeneous"
    workload: str = "philly"
    virtual_cluster: str = ""
    stream_jobs: int = 16_384
    stream_seed: int = 0
    split: str = "all"
    longest_s: float = 14_400.0
    offered_load: float = 1.0
    jobs_per_episode: int = 256
    multi_resource: bool = False
    decisions: Sequence[str] = ("slot", "placement")
    placements: Sequence[str] = ("best_fit", "spread")
    queue_slots: int = 32
    running_slots: int = 16
    reward: str = "jct"
    estimate_sigma: float = 0.5
    oracle: bool = False
    horizon_s: float = 0.0
    discount_per_s: float = 0.0
    overlap: float = 0.0
    idle_power_w: int = 60
    active_power_w: int = 300

    def __post_init__(self) -> None:
        for name in ("stream_jobs", "jobs_per_episode", "queue_slots", "running_slots"):
            at_least(name, getattr(self, name), 1)
        for name, unit in (
            ("stream_seed", ""),
            ("offered_load", ""),
            ("estimate_sigma", ""),
            ("longest_s", "s"),
            ("horizon_s", "s"),
            ("discount_per_s", "1/s"),
            ("overlap", ""),
            ("idle_power_w", "W"),
        ):
            at_least(name, getattr(self, name), 0, unit)
        above("active_power_w", self.active_power_w, self.idle_power_w, "W")
        if self.overlap > 1:
            raise InvalidInput(f"overlap must be at most 1, got {self.overlap}")
        one_of("split", self.split, SPLITS)
        one_of("reward", self.reward, REWARDS)
        if tuple(self.decisions) not in (
            DECISIONS[:1],
            DECISIONS[:2],
            DECISIONS,
            ("slot", "levels"),
        ):
            raise InvalidInput(
                "decisions must be ['slot'], with 'placement' and 'levels' optional in this order; "
                f"got {list(self.decisions)}"
            )
        if "levels" in self.decisions and not self.multi_resource:
            raise InvalidInput("decisions: 'levels' needs multi_resource = True")
        if not self.placements or len(set(self.placements)) != len(self.placements):
            raise InvalidInput(f"placements must be distinct rules, got {list(self.placements)}")
        for rule in self.placements:
            if not rule.startswith("type:"):
                one_of("placements", rule, (*PLACEMENTS, "type:<GPU type>"))

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Parameters:
        """Parameters from keyword arguments.

        Raises:
            InvalidInput: An unknown argument, or a value out of range.
        """
        known = {item.name for item in fields(cls)}
        for name in arguments:
            if name not in known:
                raise InvalidInput(f"unknown argument {name}; known are {', '.join(sorted(known))}")
        return cls(**arguments)

    @property
    def actions(self) -> int:
        """Size of the action space."""
        places = len(self.placements) if "placement" in self.decisions else 0
        levels = len(LEVELS) if "levels" in self.decisions else 0
        return self.queue_slots + 1 + places + levels


@dataclass(frozen=True, eq=False)
class Waiting:
    """The shown waiting jobs, oldest first. All arrays have shape (waiting,).

    Attributes:
        job: Number of the job in the episode, by submission.
        num_gpus: GPUs asked for.
        age_s: Time since submission.
        estimate_s: Estimated duration.
        cpu_cores, memory_bytes, io_bytes_per_s, network_bytes_per_s: Asked for, whole job.
        startable: Whether some offered rule can place it now.
        room: GPUs of the job that each node has room for, (waiting, nodes).
    """

    job: NDArray[np.int64]
    num_gpus: NDArray[np.int64]
    age_s: NDArray[np.float64]
    estimate_s: NDArray[np.float64]
    cpu_cores: NDArray[np.float64]
    memory_bytes: NDArray[np.float64]
    io_bytes_per_s: NDArray[np.float64]
    network_bytes_per_s: NDArray[np.float64]
    startable: NDArray[np.bool_]
    room: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Running:
    """The running jobs, oldest start first. Arrays have shape (running,) unless stated.

    Attributes:
        job: Number of the job in the episode.
        gpus: On each node, (running, nodes).
        elapsed_s: Time since the start.
        estimate_s: Estimated duration at the requested allocation.
    """

    job: NDArray[np.int64]
    gpus: NDArray[np.int64]
    elapsed_s: NDArray[np.float64]
    estimate_s: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SchedulingState:
    """Typed public state: everything a scheduler may know, nothing of the future.

    Attributes:
        now_s: Time since the episode's first submission.
        phase: Index into `PHASES`.
        chosen: Slot chosen in this decision, -1 before.
        advance: Number of the action that lets time pass.
        first_placement: Number of the first placement action, -1 where there are none.
        first_level: Number of the first level action, -1 where there are none.
        placements: Rules offered.
        free: Free amounts of each resource, (nodes, 5), in GPUs, cores, bytes, bytes/s, bytes/s.
        capacity: Likewise, (nodes, 5).
        kind: GPU type of each node, index into `kinds`, (nodes,).
        kinds: Names of the GPU types.
        rack: Of each node, (nodes,).
        tentative: GPUs of each node in the present decision, (nodes,).
        waiting: Shown waiting jobs.
        running: Running jobs.
        backlog: Jobs that have arrived and are not shown.
        finished: Jobs done.
        jobs: Jobs of the episode.
    """

    now_s: float
    phase: int
    chosen: int
    advance: int
    first_placement: int
    first_level: int
    placements: tuple[str, ...]
    free: NDArray[np.float64]
    capacity: NDArray[np.float64]
    kind: NDArray[np.int64]
    kinds: tuple[str, ...]
    rack: NDArray[np.int64]
    tentative: NDArray[np.int64]
    waiting: Waiting
    running: Running
    backlog: int
    finished: int
    jobs: int
