"""Preemptive policies of published simulators, reproduced with their habits.

`lucid_srtf` and `lucid_las`: Lucid's simulator (ticks of a second, 8-GPU nodes, `consolidate`, 40
or 60 s per preemption, one second more than the work). `tiresias_dlas`: the released simulator of
Tiresias (`dlas-gpu`, pooled GPUs, no cost). Reconstructions for comparison; see
docs/scheduling_engine.md. Starts, completions and preemptions are theirs; the stretches of an
outcome put all of a job's running before its completion, without gaps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dtgym.simulator import hardware
from dtgym.simulator.cluster_cases import BatchOutcome, Cases
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.jobs import JobTable
from dtgym.simulator.kernels import cluster_peers as kernel
from dtgym.simulator.outcome import Outcome

PEER_POLICIES = ("lucid_srtf", "lucid_las", "tiresias_dlas")
LUCID_INTERVAL_S = 60
"""Lucid's least-attained-service policy decides once a minute."""
TIRESIAS_LIMITS_GPU_S = (3250.0, 7200.0)
"""Queue limits as the released simulator of Tiresias ships them."""


def run(
    jobs: JobTable,
    cluster: hardware.Cluster,
    policy: str,
    *,
    thresholds_gpu_s: Sequence[float] | None = None,
    impossible: str = "raise",
) -> Outcome:
    """Runs a peer's policy.

    Args:
        jobs: Submissions and durations in whole seconds.
        cluster: Nodes of 8 GPUs for Lucid; any nodes, pooled, for Tiresias.
        policy: One of `PEER_POLICIES`.
        thresholds_gpu_s: Ends of the queues; None takes the peer's: 18,000 GPU-s (Lucid), 3,250 and
            7,200 GPU-s (Tiresias).
        impossible: See `dtgym.simulator.cluster.simulate`.

    Raises:
        InvalidInput: Times that are not whole seconds, jobs without GPUs or of no length, or
            thresholds that the peer cannot have.
    """
    lucid = policy.startswith("lucid")
    placement = "consolidate" if lucid else "pooled"
    cases = Cases.of([jobs], [cluster], placement=placement, impossible=impossible)
    submit_s, duration_s = cases.submit_ms // 1000, cases.duration_ms // 1000
    if (cases.submit_ms % 1000).any() or (cases.duration_ms % 1000).any():
        raise InvalidInput(f"policy {policy} counts whole seconds: round submit_s and duration_s")
    if (cases.gpus == 0).any() or (duration_s == 0).any():
        raise InvalidInput(f"policy {policy} needs jobs of at least 1 GPU and 1 s")
    count = len(submit_s)
    start_s, finish_s = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    preemptions = np.zeros(count, np.int64)
    cost_s = np.zeros(count, np.int64)
    if lucid:
        thresholds = np.asarray((18000.0,) if thresholds_gpu_s is None else thresholds_gpu_s)
        if len(thresholds) != 1 or (policy == "lucid_las" and thresholds[0] < 0):
            raise InvalidInput(f"policy {policy} takes one threshold of at least 0 GPU-s")
        cost_s = np.where(cases.gpus <= 8, 40, 60)
        kernel.run_ticks(
            submit_s,
            duration_s,
            cases.gpus,
            cost_s,
            cases.node_gpus,
            kernel.LEAST_REMAINING if policy == "lucid_srtf" else kernel.TWO_QUEUES,
            int(np.floor(thresholds[0])),
            1 if policy == "lucid_srtf" else LUCID_INTERVAL_S,
            start_s,
            finish_s,
            preemptions,
        )
    else:
        limits = TIRESIAS_LIMITS_GPU_S if thresholds_gpu_s is None else thresholds_gpu_s
        kernel.run_discretised(
            submit_s,
            duration_s,
            cases.gpus,
            int(cases.node_gpus.sum()),
            np.ceil(np.asarray(limits, dtype=np.float64)).astype(np.int64),
            start_s,
            finish_s,
            preemptions,
        )
    held_ms = 1000 * (duration_s + preemptions * cost_s + (1 if lucid else 0))
    return BatchOutcome(
        policy=policy,
        cases=cases,
        start_ms=1000 * start_s,
        last_start_ms=1000 * finish_s - held_ms,
        finish_ms=1000 * finish_s,
        preemptions=preemptions,
        queueing_ms=1000 * finish_s - cases.submit_ms - held_ms,
        events=np.array([2 * count]),
        segments=np.zeros((0, 3), np.int64),
        segment_base=np.zeros(2, np.int64),
        place_base=np.zeros(count, np.int64),
        place_count=np.zeros(count, np.int64),
        place_node=np.zeros(0, np.int64),
        place_gpus=np.zeros(0, np.int64),
    )[0]
