"""How fast a training job runs on what it was given.

One iteration passes four stages: reading (storage), preparing (CPU), computing (GPU), exchanging
(network). Public stage times say that an iteration is close to their *sum* (12 % mean error over 48
published points), not to the longest (23 %): the overlap knob is 0 by default and 0.5-0.9 for input
pipelines that prefetch and all-reduces in buckets.

    T = (1 - o) sum(stages) + o max(stages)
    stages = io / share of the storage rate,  cpu x h(c) / h(c asked),  gpu / speed of the GPU,
             net / share of the network rate

A job's speed is T as requested over T as given; its `duration_s` is the run time as requested.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtgym.simulator.errors import InvalidInput, above, at_least
from dtgym.simulator.kernels import job_speed as kernel

STAGES = ("io", "cpu", "gpu", "network")
"""Order of the stage axis."""


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """What the engine assumes about speed; jobs bring their stages (columns ``*_stage_s``).

    A job without stages is all GPU.

    Attributes:
        overlap: 0 runs the stages of an iteration one after the other, 1 hides all behind the
            longest.
        gpu_speed: Speed of the GPU stage by accelerator name, relative to the GPU that the stated
            durations are for; 1 for types not named.
        cross_node_network_scale: Factor on the network stage of a gang on several nodes of a rack.
        cross_rack_network_scale: Factor across racks.
        share_network: Share each node's network fairly among the gangs that span nodes, which slows
            them where it is oversubscribed, instead of reserving what they ask for.
        use_cpu_curves: Use the shipped CPU curve of jobs whose model has one; otherwise the CPU
            stage is inversely proportional to the cores.
    """

    overlap: float = 0.0
    gpu_speed: Mapping[str, float] = field(default_factory=lambda: {})
    cross_node_network_scale: float = 1.0
    cross_rack_network_scale: float = 1.0
    share_network: bool = False
    use_cpu_curves: bool = True

    def __post_init__(self) -> None:
        at_least("SpeedModel.overlap", self.overlap, 0)
        if self.overlap > 1:
            raise InvalidInput(f"SpeedModel.overlap must be at most 1, got {self.overlap:g}")
        for name, value in self.gpu_speed.items():
            above(f"SpeedModel.gpu_speed[{name!r}]", value, 0)
        for name in ("cross_node_network_scale", "cross_rack_network_scale"):
            above(f"SpeedModel.{name}", getattr(self, name), 0)


@dataclass(frozen=True, slots=True)
class CpuCurve:
    """Length of the CPU stage on c cores per GPU, and of the GPU stage it hides behind.

    h(c) = squared / c^2 + linear / c + constant. The linear part is work that loader processes
    share, the constant part is serial, the squared part is what few cores lose to the training
    process that runs on them too.

    Attributes:
        model: Name.
        squared: See above, relative to an iteration on 3 cores.
        linear: See above.
        constant: See above.
        gpu: GPU stage, relative to an iteration on 3 cores.
    """

    model: str
    squared: float
    linear: float
    constant: float
    gpu: float

    def cpu_stage(self, cores_per_gpu: ArrayLike) -> NDArray[np.float64]:
        """h(c), relative to an iteration on 3 cores per GPU."""
        cores = above("cores_per_gpu", cores_per_gpu, 0, "cores")
        return self.squared / cores**2 + self.linear / cores + self.constant

    def speed(self, cores_per_gpu: ArrayLike) -> NDArray[np.float64]:
        """Speed relative to 3 cores per GPU, with the input pipeline fully overlapped.

        Examples:
            >>> cpu_curve("resnet50").speed([1, 2, 3, 4, 6]).round(2).tolist()
            [0.4, 0.74, 1.0, 1.15, 1.15]
        """
        return 1.0 / np.maximum(self.gpu, self.cpu_stage(cores_per_gpu))


@lru_cache(maxsize=1)
def cpu_curves() -> dict[str, CpuCurve]:
    """The shipped CPU curves by model, fitted to the profiles of Synergy that Blox ships."""
    file = resources.files("dtgym.simulator") / "catalog" / "scheduling" / "cpu_curves.csv"
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    return {
        row["model"]: CpuCurve(
            row["model"],
            *(float(row[name]) for name in ("squared", "linear", "constant", "gpu")),
        )
        for row in csv.DictReader(lines)
    }


def cpu_curve(model: str) -> CpuCurve:
    """The CPU curve of a model.

    Raises:
        InvalidInput: There is none; the message lists the models.
    """
    curves = cpu_curves()
    if model not in curves:
        raise InvalidInput(f"model must be one of {', '.join(sorted(curves))}; got {model!r}")
    return curves[model]


def iteration_s(stage_s: ArrayLike, overlap: ArrayLike = 0.0) -> NDArray[np.float64]:
    """Time of one iteration from its stages.

    Args:
        stage_s: Stage times, (..., stages), seconds.
        overlap: 0 runs the stages one after the other, 1 hides all behind the longest; broadcasts
            against (...).

    Raises:
        InvalidInput: A negative stage or an overlap outside [0, 1].

    Examples:
        >>> iteration_s([3.0, 1.0, 2.0, 0.0], [0.0, 0.5, 1.0]).tolist()
        [6.0, 4.5, 3.0]
    """
    stages = at_least("stage_s", stage_s, 0, "s")
    o = at_least("overlap", overlap, 0)
    if (o > 1).any():
        raise InvalidInput(f"overlap must be at most 1, got {o.max():g}")
    return (1 - o) * stages.sum(axis=-1) + o * stages.max(axis=-1)


def shared_gpu_speed(compute: ArrayLike, memory_bandwidth: ArrayLike) -> NDArray[np.float64]:
    """Speed of each job on a GPU that several jobs share, relative to running alone.

    Args:
        compute: SM utilisation summed over the jobs, 1 is a full GPU.
        memory_bandwidth: Memory-bandwidth utilisation summed over the jobs.

    Returns:
        Mean speed of the jobs, at least 0.1, at most 1.

    Source:
        Linear fit to 1,388 published pair measurements (mean absolute error 0.05):
        0.996 - 0.332 max(0, U - 1) - 0.035 M. Its constant is set to 1, so that a lone light job is
        not slowed.

    Examples:
        >>> shared_gpu_speed([0.5, 1.5], [0.0, 1.0]).round(3).tolist()
        [1.0, 0.799]
    """
    u = at_least("compute", compute, 0)
    m = at_least("memory_bandwidth", memory_bandwidth, 0)
    speed = (
        1.0 - kernel.COMPUTE_CONTENTION * np.maximum(0.0, u - 1.0) - (kernel.MEMORY_CONTENTION * m)
    )
    return np.maximum(speed, kernel.SLOWEST_SHARED)


def relative_speed(
    stage_s: ArrayLike,
    *,
    overlap: ArrayLike = 0.0,
    cpu_shape: ArrayLike = (0.0, 1.0, 0.0),
    cores_asked: ArrayLike = 1.0,
    cores_given: ArrayLike = 1.0,
    io_share: ArrayLike = 1.0,
    gpu_speed: ArrayLike = 1.0,
    network_share: ArrayLike = 1.0,
) -> NDArray[np.float64]:
    """Speed of jobs on what they were given, relative to what they asked for.

    Args:
        stage_s: Stages as requested, (jobs, 4) in the order of `STAGES`, seconds.
        overlap: (jobs,).
        cpu_shape: squared, linear, constant of `CpuCurve`, (jobs, 3); the default is CPU work that
            any number of cores shares.
        cores_asked: Cores per GPU as requested, (jobs,); 0 where the CPU stage does not depend.
        cores_given: Cores per GPU as given, above 0, (jobs,).
        io_share: Storage rate given over asked, above 0, (jobs,).
        gpu_speed: Speed of the GPU stage relative to the reference GPU alone: type of the GPU times
            `shared_gpu_speed`, above 0, (jobs,).
        network_share: Network rate given over asked, above 0, (jobs,).

    Returns:
        (jobs,); 1 for a job without stages.

    Raises:
        InvalidInput: A value out of range.

    Examples:
        >>> stages = [[1.0, 2.0, 6.0, 1.0]]
        >>> relative_speed(stages, cores_given=2.0, io_share=0.5).tolist()
        [1.0]
        >>> relative_speed(stages, gpu_speed=2.0).round(4).tolist()
        [1.4286]
    """
    stages = np.atleast_2d(at_least("stage_s", stage_s, 0, "s"))
    if stages.shape[-1] != len(STAGES):
        raise InvalidInput(f"stage_s must end in an axis of 4 stages, got shape {stages.shape}")
    jobs = len(stages)

    def row(values: NDArray[np.float64], *tail: int) -> NDArray[np.float64]:
        return np.ascontiguousarray(np.broadcast_to(values, (jobs, *tail)))

    o = at_least("overlap", overlap, 0)
    if (o > 1).any():
        raise InvalidInput(f"overlap must be at most 1, got {o.max():g}")
    out = np.empty(jobs)
    kernel.relative_speeds(
        np.ascontiguousarray(stages),
        row(o),
        row(at_least("cpu_shape", cpu_shape, 0), 3),
        row(at_least("cores_asked", cores_asked, 0, "cores")),
        row(above("cores_given", cores_given, 0, "cores")),
        row(above("io_share", io_share, 0)),
        row(above("gpu_speed", gpu_speed, 0)),
        row(above("network_share", network_share, 0)),
        out,
    )
    return out


def network_scale_for_ratio(
    stage_s: ArrayLike, speed_ratio: ArrayLike, overlap: ArrayLike = 0.0
) -> NDArray[np.float64]:
    """Factor on the network stage that explains a measured slow-down of a spread-out gang.

    Args:
        stage_s: Stages of the gang on one node, (jobs, 4), seconds; the network stage above 0.
        speed_ratio: Measured speed spread over nodes / on one node, in (0, 1]; above 1 is taken
            as 1 (noise of the measurement).
        overlap: (jobs,); below 1 unless the network stage is the longest.

    Returns:
        Factors at least 1, (jobs,).

    Examples:
        >>> network_scale_for_ratio([[0.0, 0.0, 3.0, 1.0]], 0.5).tolist()
        [5.0]
    """
    stages = np.atleast_2d(at_least("stage_s", stage_s, 0, "s"))
    ratio = np.minimum(above("speed_ratio", speed_ratio, 0), 1.0)
    above("network stage of stage_s", stages[:, 3], 0, "s")
    o = np.broadcast_to(np.asarray(overlap, dtype=np.float64), (len(stages),))
    wanted = iteration_s(stages, o) / ratio
    others, longest = stages[:, :3].sum(axis=1), stages[:, :3].max(axis=1)
    # Either the network stage stays below the longest other one or it becomes the longest.
    below = np.divide(
        wanted - (1 - o) * others - o * longest,
        1 - o,
        out=np.full(len(stages), np.inf),
        where=o < 1,
    )
    net = np.where(below <= longest, below, wanted - (1 - o) * others)
    return np.maximum(net / stages[:, 3], 1.0)


def interleaved_speeds(stage_a_s: ArrayLike, stage_b_s: ArrayLike) -> NDArray[np.float64]:
    """Speeds of two jobs that take turns on the stages, relative to running alone one by one.

    Args:
        stage_a_s: Stages of one job, (stages,), seconds.
        stage_b_s: Stages of the other, (stages,).

    Returns:
        (2,): sum of own stages / common period; 1 + 1 would be perfect sharing.

    Source:
        Zhao et al., Multi-resource interleaving for deep learning training (Muri), SIGCOMM 2022,
        section 4: jobs of a group shift against each other by whole stages.

    Examples:
        >>> interleaved_speeds([3.0, 1.0, 0.0], [1.0, 3.0, 0.0]).tolist()
        [1.0, 1.0]
    """
    a = np.ascontiguousarray(at_least("stage_a_s", stage_a_s, 0, "s"))
    b = np.ascontiguousarray(at_least("stage_b_s", stage_b_s, 0, "s"))
    if a.shape != b.shape or a.ndim != 1 or len(a) < 2:
        raise InvalidInput(f"both jobs must have the same stages, got {a.shape} and {b.shape}")
    period = kernel.interleaved_period(a, b)
    return np.array([a.sum(), b.sum()]) / period if period > 0 else np.ones(2)
