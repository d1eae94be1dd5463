"""Compiled policies on the multi-resource machine: from a name to what the kernel needs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.cluster_resources import Resources
from dtgym.simulator.errors import InvalidInput, above
from dtgym.simulator.job_speed import relative_speed
from dtgym.simulator.kernels import cluster_policies as kernel
from dtgym.simulator.kernels import cluster_state as layout
from dtgym.simulator.outcome import Outcome

KINDS = {
    "easy": kernel.EASY,
    "conservative": kernel.CONSERVATIVE,
    "drf": kernel.DOMINANT_SHARE,
    "tetris": kernel.ALIGNMENT,
    "tetris_short": kernel.ALIGNMENT,
    "srtf": kernel.PREEMPTIVE,
    "srsf": kernel.PREEMPTIVE,
    "las": kernel.PREEMPTIVE,
    "gittins": kernel.PREEMPTIVE,
}
KEYS = {"srtf": kernel.REMAINING, "srsf": kernel.REMAINING_GPU_TIME}
SHARING = {
    "lucid": (layout.CONTENDING, 0.85),
    "muri": (layout.INTERLEAVED, 1.2),
}
"""How pairs share GPUs, and the least speed for it."""

CPU_LEVELS = np.array([0.5, 0.75, 1.0, 1.5, 2.0])
"""CPU shares that `synergy` may give, relative to the request."""
CPU_GAIN = 0.95
"""`synergy` gives the least share that keeps this part of the speed of the largest one."""
CPU_LOSS = 0.9
"""Where that does not fit it goes down to the least share that keeps this part of the requested
speed."""


def run(
    resources: Resources,
    policy: str,
    *,
    order: NDArray[np.float64] | None,
    skip: bool,
    levels: tuple[NDArray[np.int64], NDArray[np.int64], int],
    interval_ms: int,
    depth: int,
    threshold: float | None,
) -> Outcome:
    """Runs a compiled policy to the end.

    Args:
        resources: The machine before its first event; it is used up.
        policy: A name of `dtgym.simulator.cluster.POLICIES`.
        order: Waiting order by table row, (jobs,); None takes the policy's own.
        skip: Whether jobs may overtake one that does not fit.
        levels: Ends (GPU-ms), ranks and grid (ms) of service levels.
        interval_ms: Decide at multiples of this; 0 at every event.
        depth: Reservations of conservative backfilling.
        threshold: Least speed of jobs that share GPUs; None takes the policy's own.

    Raises:
        InvalidInput: `lucid` or `muri` without a speed model.
    """
    m = resources.machine
    row = resources.row
    key: NDArray[Any] | None = None if order is None else order[row]
    if policy in ("qssf", "lucid", "muri"):
        key = m.jobs["estimate_ms"] * m.jobs["gpus"]
    elif policy == "random":
        key = np.random.Generator(np.random.PCG64(resources.seed)).permutation(len(row))
    resources.with_rank(key)
    pairing, least = SHARING.get(policy, (layout.CONTENDING, 1.0))
    if policy in SHARING and len(row) and not m.jobs["has_stages"].any():
        raise InvalidInput(
            f"policy {policy} needs speed=SpeedModel(...) and the jobs' stage times "
            "(columns cpu_stage_s, gpu_stage_s, network_stage_s)"
        )
    if threshold is not None:
        least = float(above("sharing_threshold", threshold, 0))
    choices = cpu_choices(m) if policy == "synergy" else m.demand[:, [layout.CPU]]
    shapes, shape = np.unique(
        np.column_stack((m.jobs["shape"], choices)), axis=0, return_inverse=True
    )
    m.jobs["shape"] = shape.ravel()
    owner = _owners(resources)
    bound, rank, step_ms = levels
    level = np.zeros(len(row), dtype=np.int64)
    while True:
        ended = kernel.run_policy(
            resources.machine,
            KINDS.get(policy, kernel.IN_ORDER),
            layout.ALIGNED if policy.startswith("tetris") else resources.rule,
            skip or policy in ("drf", "tetris", "tetris_short", "synergy", "lucid", "muri"),
            np.ascontiguousarray(choices),
            KEYS.get(policy, kernel.LEVEL),
            bound,
            rank,
            step_ms,
            level,
            owner,
            int(owner.max(initial=0)) + 1,
            max(len(shapes), 1),
            depth,
            policy == "tetris_short",
            policy in SHARING,
            least,
            pairing,
            interval_ms,
            resources.seed,
        )
        if ended != kernel.LOG_FULL:
            return resources.outcome(policy)
        resources.grow_log()


def cpu_choices(m: layout.Machine) -> NDArray[np.int64]:
    """CPU of one part that Synergy-like scheduling tries for each job, in order, (J, 3).

    First the least share that keeps nearly the speed of the largest one, then the request, then the
    least that hardly slows the job; a job whose speed does not depend on CPU goes straight down.
    """
    count = len(m.jobs["work_ms"])
    asked = m.demand[:, layout.CPU]
    speeds = np.ones((count, len(CPU_LEVELS)))
    for index, level in enumerate(CPU_LEVELS):
        moved = (m.jobs["has_stages"] > 0) & (asked > 0)
        if moved.any():
            speeds[moved, index] = relative_speed(
                m.stage_s[moved],
                overlap=m.jobs["overlap"][moved],
                cpu_shape=np.column_stack(
                    [m.jobs[name][moved] for name in ("squared", "linear", "constant")]
                ),
                cores_asked=asked[moved] / 1000.0,
                cores_given=level * asked[moved] / 1000.0,
            )
    requested = int(np.flatnonzero(CPU_LEVELS == 1.0)[0])
    gain = np.argmax(speeds >= CPU_GAIN * speeds[:, -1:], axis=1)
    loss = np.argmax(speeds >= CPU_LOSS * speeds[:, [requested]], axis=1)
    levels = np.stack((CPU_LEVELS[gain], np.ones(count), CPU_LEVELS[loss]), axis=1)
    whole = np.floor(levels * asked[:, None]).astype(np.int64)
    return np.maximum(whole, np.minimum(asked, 1)[:, None])


def _owners(resources: Resources) -> NDArray[np.int64]:
    """Number of each job's user (column user, else vc), (J,)."""
    jobs = resources.jobs
    names = jobs.user if jobs.user is not None else jobs.vc
    if names is None:
        return np.zeros(len(resources.row), dtype=np.int64)
    return np.unique(names[resources.row], return_inverse=True)[1].ravel().astype(np.int64)
