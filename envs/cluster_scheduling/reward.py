"""What a step is worth: one figure per objective, and the scalar that is asked for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dtgym.envs.cluster_scheduling.types import OBJECTIVES

_UTILISATIONS = slice(
    OBJECTIVES.index("gpu_utilisation"), OBJECTIVES.index("network_utilisation") + 1
)


def vector_reward(
    *,
    job_s: NDArray[np.float64],
    weighted_job_s: NDArray[np.float64],
    slowdown: NDArray[np.float64],
    idle_s: NDArray[np.float64],
    unfairness: NDArray[np.float64],
    joules: NDArray[np.float64],
    scale_s: float,
    jobs: int,
    cluster_w: float,
) -> NDArray[np.float64]:
    """Vector reward of a batch of steps; every objective is a cost, so all are at most 0.

    * jct: minus the integral of the number of jobs in the system over the step, over `scale_s`.
      Its sum over an episode is exactly ``-(sum of JCT) / scale_s``.
    * weighted_jct: likewise with each job counted by its weight.
    * slowdown: minus the bounded slowdowns, ``max(1, JCT / max(duration, 10 s))``, of the jobs that
      completed, over the jobs of the episode: sums to minus the mean slowdown.
    * <resource>_utilisation: minus the integral of the share of the resource that is not kept busy
      while jobs wait, over `scale_s`: lost capacity in the busy window.
    * fairness: minus the finish-time-fairness ratios of the jobs that completed, over the jobs of
      the episode: JCT over the JCT under a 1/n share of the GPUs, n the mean number of jobs in the
      system during the job's life (Themis, NSDI'20, section 3; the estimator of n is ours).
    * energy: minus the energy of all GPUs, over `scale_s` times the cluster's full power.

    Args:
        job_s: Integral of the number of jobs, job-seconds, (steps,).
        weighted_job_s: Likewise weighted, (steps,).
        slowdown: Sum over completed jobs, (steps,).
        idle_s: Integral of the idle share while jobs wait, (steps, 5).
        unfairness: Sum over completed jobs, (steps,).
        joules: Energy, (steps,).
        scale_s: Mean duration of the stream's jobs.
        jobs: Jobs of an episode.
        cluster_w: Power of all GPUs at full load.

    Returns:
        float64, (steps, objectives) in the order of `OBJECTIVES`.
    """
    vector = np.empty((len(job_s), len(OBJECTIVES)))
    vector[:, 0] = -job_s / scale_s
    vector[:, 1] = -weighted_job_s / scale_s
    vector[:, 2] = -slowdown / jobs
    vector[:, _UTILISATIONS] = -idle_s / scale_s
    vector[:, 8] = -unfairness / jobs
    vector[:, 9] = -joules / (scale_s * cluster_w)
    return vector


def scalar_reward(vector: NDArray[np.float64], reward: str) -> NDArray[np.float64]:
    """The objective of that name; ``utilisation`` is the mean over the five resources, (steps,)."""
    if reward == "utilisation":
        return vector[:, _UTILISATIONS].mean(axis=1)
    return vector[:, OBJECTIVES.index(reward)].copy()
