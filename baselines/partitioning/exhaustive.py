"""Exact optima of small spaces of plans: full enumeration, and branch and bound beyond it.

Full enumeration prices every plan, which a minute allows for some 5e7 of them. Branch and bound
tabulates the cost of every stage for every range of layers once per shape, grows plans stage by
stage, and drops whatever cannot beat the best plan so far, by the bound of
`pipeline.lower_bound_s` on the stages placed and by the best bottleneck that the remaining layers
allow. Both prove what they return.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dtgym.baselines.partitioning import enumeration
from dtgym.simulator import partition, pipeline
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.partition import Plans, Problem

Floats = NDArray[np.float64]

CHUNK = 1 << 17
"""Plans priced in one call of full enumeration: enough for speed, little enough for memory."""


@dataclass(frozen=True)
class Solution:
    """A proven optimum.

    Attributes:
        plan: The plan, alone in its arrays.
        time_s: Its exact iteration time.
        evaluated: Plans whose exact time was computed.
        candidates: Plans of the space, feasible or not; for branch and bound those not cut off
            before their last stage.
    """

    plan: Plans
    time_s: float
    evaluated: int
    candidates: int


def feasible_plans(problem: Problem, shapes: Iterable[Plans]) -> Iterator[tuple[Plans, int]]:
    """Every feasible plan of the given shapes, with every split of the layers.

    Args:
        problem: Instances.
        shapes: As `enumeration.shapes` yields them; all of one instance.

    Yields:
        Feasible plans of one stage count, and how many plans were looked at for them.
    """
    for shape in shapes:
        # What the structure or the profile forbids does not depend on the split.
        kept = shape.take(partition.stage_costs(problem, shape).priced)
        if not len(kept):
            continue
        borders = enumeration.splits(int(kept.bound[0, -1]), kept.width)
        step = max(1, CHUNK // len(borders))
        for first in range(0, len(kept), step):
            plans = enumeration.with_borders(
                kept.take(np.arange(first, min(first + step, len(kept)))), borders
            )
            feasible = partition.stage_costs(problem, plans).feasible
            yield plans.take(feasible), len(plans)


def enumerate_all(problem: Problem, shapes: Iterable[Plans]) -> Solution:
    """Prices every feasible plan of the given shapes.

    Raises:
        InvalidInput: No feasible plan among them.
    """
    best: Plans | None = None
    best_s, evaluated, candidates = np.inf, 0, 0
    for plans, looked_at in feasible_plans(problem, shapes):
        candidates += looked_at
        evaluated += len(plans)
        if not len(plans):
            continue
        time_s = partition.evaluate(problem, plans).time_s
        if time_s.min() < best_s:
            best_s, best = float(time_s.min()), plans.take([time_s.argmin()])
    if best is None:
        raise InvalidInput("no plan of the space is feasible")
    return Solution(best, best_s, evaluated, candidates)
