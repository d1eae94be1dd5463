"""Cheaper estimates of a plan's time, as planners use them, and a bound that no plan beats.

All start from the same stage costs as the exact evaluation, so that what differs is the formula
alone: how a plan that looks best to a formula does under the exact recurrence is a table of its
own (the loss by estimator).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator import pipeline
from dtgym.simulator.partition import Plans, StageCosts

Floats = NDArray[np.float64]


def metis_form_s(costs: StageCosts, plans: Plans) -> Floats:
    """(M - 1) max(f + b) + sum(f + b), each border's transfer once, the longest synchronisation.

    The form of Metis and AMP: transfers are counted once per iteration and in one direction, so
    slow links hardly show.

    Args:
        costs: `partition.stage_costs` of the plans.
        plans: The plans.

    Returns:
        (plans,) seconds; inf where a plan has no time.

    Source:
        Um et al., Metis, USENIX ATC 2024, section 4; Li et al., AMP, NeurIPS 2022, section 4.

    Examples:
        >>> from dtgym.simulator import partition, partition_tables
        >>> problem = partition_tables.two_cluster_example()
        >>> plans = partition.make_plans([0, 1], 4, 2, [0, 5, 8], 4)
        >>> costs = partition.stage_costs(problem, plans)
        >>> bool(metis_form_s(costs, plans) < partition.evaluate(problem, plans).time_s)
        True
    """
    work, _ = _per_stage(costs, plans)
    slowest = work.max(axis=1)
    once = np.where(_borders(plans), costs.activation_s, 0).sum(axis=1)
    total = (costs.microbatches - 1) * slowest + work.sum(axis=1) + once + _after(costs, plans)
    return np.where(costs.priced, total, np.inf)


def sailor_form_s(costs: StageCosts, plans: Plans) -> Floats:
    """(M - 1) max(work + transfers) + sum of both, the longest synchronisation.

    The form of Sailor: a stage's transfers are its activation forward and its gradient back, and
    they never overlap with its work.

    Arguments and result as `metis_form_s`.

    Source:
        Strati et al., Sailor, SOSP 2025 (its simulator).
    """
    work, transfers = _per_stage(costs, plans)
    both = work + transfers
    total = (costs.microbatches - 1) * both.max(axis=1) + both.sum(axis=1) + _after(costs, plans)
    return np.where(costs.priced, total, np.inf)


def period_form_s(costs: StageCosts, plans: Plans) -> Floats:
    """One trip through the pipeline and M - 1 periods (`pipeline.period_form_s`).

    Arguments and result as `metis_form_s`.
    """
    total = pipeline.period_form_s(
        costs.forward_s,
        costs.backward_s,
        costs.activation_s,
        costs.gradient_s,
        costs.microbatches,
        warmup=np.maximum(plans.warmup, 0),
        stages=plans.stages,
    )
    return np.where(costs.priced, total + _after(costs, plans), np.inf)


def lower_bound_s(costs: StageCosts, plans: Plans) -> Floats:
    """A time that the exact evaluation of the plan cannot fall below, whatever the overlap rule.

    The pipeline's bound (`pipeline.lower_bound_s`) and what the first stage, which finishes last,
    does after it.

    Arguments and result as `metis_form_s`.
    """
    bound = pipeline.lower_bound_s(
        costs.forward_s,
        costs.backward_s,
        costs.activation_s,
        costs.gradient_s,
        costs.microbatches,
        warmup=np.maximum(plans.warmup, 0),
        stages=plans.stages,
    )
    after = costs.synchronise_s[:, 0] + costs.update_s[:, 0]
    return np.where(costs.priced, bound + after, np.inf)


ESTIMATORS: Mapping[str, Callable[[StageCosts, Plans], Floats]] = {
    "metis-form": metis_form_s,
    "sailor-form": sailor_form_s,
    "period-form": period_form_s,
}
"""Estimators by the name that tables print."""


def _borders(plans: Plans) -> NDArray[np.bool_]:
    return np.arange(plans.width - 1) < plans.stages[:, None] - 1


def _per_stage(costs: StageCosts, plans: Plans) -> tuple[Floats, Floats]:
    """Work of each stage, and its sends: the activation forward and the gradient back."""
    work = np.where(plans.used, costs.forward_s + costs.backward_s, 0)
    transfers = np.zeros_like(work)
    transfers[:, :-1] += np.where(_borders(plans), costs.activation_s, 0)
    transfers[:, 1:] += np.where(_borders(plans), costs.gradient_s, 0)
    return work, transfers


def _after(costs: StageCosts, plans: Plans) -> Floats:
    after = np.where(plans.used, costs.synchronise_s + costs.update_s, 0)
    return after.max(axis=1)
