"""What a plan is worth: its throughput over that of the rules of thumb, on a log scale."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator import partition
from dtgym.simulator.partition import PlanCosts, Plans, Problem

OBJECTIVES = ("throughput", "accelerators", "memory", "precision")
"""Axis of the vector reward; the scalar reward is the first."""

BITS = np.array([32.0, 16.0, 8.0, 4.0])


def vector_reward(
    problem: Problem, plans: Plans, costs: PlanCosts, reference_time_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Vector reward of finished plans.

    * throughput: ``log(reference time / time)``; 0 is as good as the best rule of thumb, 0.69
      twice as fast;
    * accelerators: minus the share of the instance's accelerators that the plan uses;
    * memory: share of the fullest stage's memory that stays free;
    * precision: minus the bits cut from 16 on the narrowest border between clusters, over 16: a
      risk for convergence, kept apart from time.

    Args:
        problem: Instances.
        plans: Feasible plans, P of them.
        costs: Their exact costs.
        reference_time_s: (P,) iteration time of the reference plans, s.

    Returns:
        float64, (P, objectives) in the order of `OBJECTIVES`.
    """
    used = plans.used
    gpus = np.where(used, plans.gpus, 0).sum(axis=1)
    rows = np.arange(len(plans))[:, None]
    memory = problem.memory_bytes[plans.instance[rows], plans.cluster]
    free = np.where(used, costs.stages.slack_bytes / np.maximum(memory, 1.0), np.inf).min(axis=1)
    crosses = used[:, 1:] & (plans.cluster[:, 1:] != plans.cluster[:, :-1])
    bits = np.where(crosses, BITS[plans.wire], 16.0).min(axis=1, initial=16.0)
    return np.stack(
        [
            np.log(reference_time_s / costs.time_s),
            -gpus / problem.gpus[plans.instance].sum(axis=1),
            free,
            -(16.0 - np.minimum(bits, 16.0)) / 16.0,
        ],
        axis=1,
    )


def evaluated(problem: Problem, plans: Plans) -> PlanCosts:
    """Exact costs of finished plans, which must all be feasible.

    Raises:
        RuntimeError: One is not: the masks promised what the evaluator refuses.
    """
    costs = partition.evaluate(problem, plans)
    if not costs.feasible.all():
        worst = int(np.argmin(costs.feasible))
        raise RuntimeError(f"a finished plan is infeasible: {costs.why(worst)}")
    return costs
