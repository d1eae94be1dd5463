"""Branch and bound against full enumeration, and the spaces both walk."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from dtgym.baselines.partitioning import enumeration, exhaustive
from dtgym.simulator import partition, partition_tables
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.partition_space import PlanSpace, Rules

WIRES = (1, 2, 3)
EXTRA = 2


def problem(seed):
    random = np.random.default_rng(seed)
    base = partition_tables.two_cluster_example()
    return replace(
        base,
        wan_bytes_per_s=base.wan_bytes_per_s * random.choice([0.03, 0.1, 1.0]),
        wan_delay_s=base.wan_delay_s * random.choice([1, 10]),
        memory_bytes=random.uniform(5e9, 12e9, (1, 2)),
        global_batch=np.array([16]),
        assumptions=replace(
            base.assumptions,
            overlap=str(random.choice(["overlapped", "sender_blocked", "both_ends"])),
        ),
    )


def shapes(instance, recompute):
    return enumeration.shapes(
        instance,
        groups=[enumeration.power_of_two_groups(4, 3)] * 2,
        max_stages=3,
        microbatches=[1, 2, 4, 8],
        recompute=recompute,
    )


def by_enumeration(instance, recompute):
    """The optimum over splits, wires and depths, each combination written out."""
    best = np.inf
    for shape in shapes(instance, recompute):
        standard = np.arange(shape.width - 1, -1, -1)
        crosses = shape.cluster[:, 1:] != shape.cluster[:, :-1]
        for extra in product(range(EXTRA + 1), repeat=shape.width - 1):
            depths = standard + np.array([*extra, 0])
            if (np.diff(depths) > 0).any():
                continue
            for codes in product(WIRES, repeat=shape.width - 1):
                wire = np.array(codes, dtype=int)
                # A wire is a choice on borders between clusters only.
                once = (np.where(crosses, 1, wire) == 1).all(axis=1)
                plans = replace(
                    shape,
                    wire=np.where(crosses, wire, 1),
                    warmup=np.broadcast_to(depths, shape.warmup.shape),
                ).take(once)
                for found, _ in exhaustive.feasible_plans(instance, [plans]):
                    if len(found):
                        best = min(best, partition.evaluate(instance, found).time_s.min())
    return best


@pytest.mark.parametrize(("seed", "recompute"), [(0, "none"), (1, "full"), (2, "none")])
def test_branch_and_bound_finds_what_full_enumeration_finds(seed, recompute):
    instance = problem(seed)
    variants = exhaustive.Variants(WIRES, EXTRA)
    solution = exhaustive.branch_and_bound(instance, shapes(instance, recompute), variants)
    assert solution.time_s == by_enumeration(instance, recompute)
    assert partition.evaluate(instance, solution.plan).time_s[0] == solution.time_s
    started = exhaustive.branch_and_bound(
        instance, shapes(instance, recompute), variants, solution.plan
    )
    assert started.time_s == solution.time_s


def test_full_enumeration_counts_the_splits_of_every_shape():
    instance = problem(3)
    found = list(shapes(instance, "none"))
    kept = [shape.take(partition.stage_costs(instance, shape).priced) for shape in found]
    expected = sum(len(shape) * math.comb(7, shape.width - 1) for shape in kept)
    solution = exhaustive.enumerate_all(instance, found)
    assert solution.candidates == expected
    assert 0 < solution.evaluated <= expected


def test_splits_are_all_rising_borders():
    for stages in range(1, 6):
        borders = enumeration.splits(6, stages)
        assert len(np.unique(borders, axis=0)) == len(borders) == math.comb(5, stages - 1)
        assert (np.diff(borders, axis=1) > 0).all()


def test_no_feasible_plan_is_one_clear_line():
    instance = replace(problem(0), memory_bytes=np.full((1, 2), 1e9))
    for solve in (
        lambda: exhaustive.enumerate_all(instance, shapes(instance, "none")),
        lambda: exhaustive.branch_and_bound(
            instance, shapes(instance, "none"), exhaustive.Variants(WIRES)
        ),
    ):
        with pytest.raises(InvalidInput, match="no plan of the space is feasible"):
            solve()
    with pytest.raises(InvalidInput, match="groups"):
        next(enumeration.shapes(instance, groups=[[(4,)]], max_stages=2, microbatches=[4]))


def test_the_planner_returns_a_buildable_optimum_and_counts_what_it_priced():
    space = PlanSpace(problem(4), Rules(max_stages=3, recompute="none", zero=0))
    planned = exhaustive.Exhaustive().plan(space)
    assert space.is_buildable(planned.plan)
    assert planned.time_s == exhaustive.solve(space).time_s
    assert planned.evaluations > 1


def test_a_space_that_is_too_large_is_refused():
    large = replace(problem(4), nodes=np.full((1, 2), 3))
    space = PlanSpace(large, Rules(max_stages=3, recompute="none", zero=0))
    with pytest.raises(InvalidInput, match="at most 16 accelerators"):
        exhaustive.solve(space)
