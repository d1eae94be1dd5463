"""What a step is worth: one figure per objective, and the scalar that is asked for.

Every objective is a cost that the kernel integrates exactly, times a negative constant, so all
rewards are at most 0 and their sums over an episode are the sums of the costs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dtgym.envs.cluster_scheduling.types import OBJECTIVES

_UTILISATIONS = slice(
    OBJECTIVES.index("gpu_utilisation"), OBJECTIVES.index("network_utilisation") + 1
)


def scales(mean_duration_s: float, jobs: int, cluster_w: float) -> NDArray[np.float64]:
    """Factors from the kernel's costs to the vector reward, (objectives,), all negative.

    * jct: integral of the number of jobs in the system (ms) over `mean_duration_s`. Its sum over an
      episode is ``-(sum of JCT) / mean_duration_s``.
    * weighted_jct: likewise with each job counted by its weight.
    * slowdown: bounded slowdowns, ``max(1, JCT / max(duration, 10 s))``, of the jobs that
      completed, over the jobs of the episode: sums to minus the mean slowdown.
    * <resource>_utilisation: integral of the share of the resource that is not kept busy while jobs
      wait (ms), over `mean_duration_s`: lost capacity in the busy window.
    * fairness: finish-time-fairness ratios of the jobs that completed, over the jobs of the
      episode: JCT over the JCT under a 1/n share of the GPUs, n the mean number of jobs in the
      system during the job's life (Themis, NSDI'20, section 3; the estimator of n is ours).
    * energy: joules of all GPUs, over `mean_duration_s` times the cluster's full power.

    Args:
        mean_duration_s: Mean duration of the stream's jobs.
        jobs: Jobs of an episode.
        cluster_w: Power of all GPUs at full load.

    Examples:
        >>> scales(100.0, 4, 1000.0)[[0, 2, 9]].tolist()
        [-1e-05, -0.25, -1e-05]
    """
    per_ms = 1 / (1000 * mean_duration_s)
    scale = np.full(len(OBJECTIVES), per_ms)
    scale[OBJECTIVES.index("slowdown")] = scale[OBJECTIVES.index("fairness")] = 1 / jobs
    scale[OBJECTIVES.index("energy")] = 1 / (mean_duration_s * cluster_w)
    return -scale


def scalar_reward(vector: NDArray[np.float64], reward: str) -> NDArray[np.float64]:
    """The objective of that name; ``utilisation`` is the mean over the five resources, (steps,)."""
    if reward == "utilisation":
        return vector[:, _UTILISATIONS].mean(axis=1)
    return vector[:, OBJECTIVES.index(reward)].copy()
