"""Kernel of the speed model: device functions for other kernels, and loops over batches of jobs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

COMPUTE_CONTENTION = 0.332
"""Speed lost per unit of summed SM utilisation above 1."""
MEMORY_CONTENTION = 0.035
"""Speed lost per unit of summed memory-bandwidth utilisation."""
SLOWEST_SHARED = 0.1
"""Least speed that the linear fit is allowed to give."""


@njit(cache=True, nogil=True)
def combine_stages(io_s: Any, cpu_s: Any, gpu_s: Any, net_s: Any, overlap: Any) -> float:
    """(1 - overlap) x sum + overlap x largest of the four stages, seconds."""
    total = io_s + cpu_s + gpu_s + net_s
    largest = max(max(io_s, cpu_s), max(gpu_s, net_s))
    return (1.0 - overlap) * total + overlap * largest


@njit(cache=True, nogil=True)
def cpu_stage_shape(cores: Any, squared: Any, linear: Any, constant: Any) -> float:
    """Length of the CPU stage on `cores` per GPU, up to a factor."""
    return squared / (cores * cores) + linear / cores + constant


@njit(cache=True, nogil=True)
def shared_gpu_speed(compute: Any, memory: Any) -> float:
    """Speed of each of several jobs on one GPU relative to running alone."""
    speed = 1.0 - COMPUTE_CONTENTION * max(0.0, compute - 1.0) - MEMORY_CONTENTION * memory
    return max(speed, SLOWEST_SHARED)


@njit(cache=True, nogil=True)
def relative_speeds(
    stage_s: Any,
    overlap: Any,
    cpu_curve: Any,
    cores_asked: Any,
    cores_given: Any,
    io_share: Any,
    gpu_speed: Any,
    network_share: Any,
    out: Any,
) -> None:
    """Speed of each job relative to its own request on the reference GPU; arguments (jobs, ...)."""
    for job in range(stage_s.shape[0]):
        io_s, cpu_s, gpu_s, net_s = (
            stage_s[job, 0],
            stage_s[job, 1],
            stage_s[job, 2],
            stage_s[job, 3],
        )
        asked_s = combine_stages(io_s, cpu_s, gpu_s, net_s, overlap[job])
        scale = 1.0
        if cores_asked[job] > 0:
            scale = cpu_stage_shape(
                cores_given[job], cpu_curve[job, 0], cpu_curve[job, 1], cpu_curve[job, 2]
            ) / cpu_stage_shape(
                cores_asked[job], cpu_curve[job, 0], cpu_curve[job, 1], cpu_curve[job, 2]
            )
        given_s = combine_stages(
            io_s / io_share[job],
            cpu_s * scale,
            gpu_s / gpu_speed[job],
            net_s / network_share[job],
            overlap[job],
        )
        out[job] = asked_s / given_s if given_s > 0 else 1.0


@njit(cache=True, nogil=True)
def interleaved_period(stage_a: Any, stage_b: Any) -> float:
    """Shortest period in which two jobs that take turns on the stages finish an iteration each.

    The jobs run through the stages in the same order, one of them some stages behind; a slot lasts
    as long as the longer of the two stages that meet in it. Stages that neither has do not count.

    Args:
        stage_a: Stages of one job, (stages,), seconds.
        stage_b: Stages of the other, (stages,).
    """
    count = stage_a.shape[0]
    used = 0
    for stage in range(count):
        used += stage_a[stage] > 0.0 or stage_b[stage] > 0.0
    best = np.inf
    for behind in range(1, max(used, 2)):
        # Walks through the stages that either job has; the other is `behind` of them further.
        period = 0.0
        other = 0
        for _ in range(behind + 1):
            while not (stage_a[other % count] > 0.0 or stage_b[other % count] > 0.0):
                other += 1
                if other > 2 * count:
                    return 0.0
            other += 1
        other -= 1
        for stage in range(count):
            if stage_a[stage] > 0.0 or stage_b[stage] > 0.0:
                period += max(stage_a[stage], stage_b[other % count])
                other += 1
                while not (stage_a[other % count] > 0.0 or stage_b[other % count] > 0.0):
                    other += 1
        best = min(best, period)
    if used == 1:
        # Both jobs have one and the same stage: one after the other.
        best = 0.0
        for stage in range(count):
            best += stage_a[stage] + stage_b[stage]
    return best
