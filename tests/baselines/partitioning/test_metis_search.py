"""The Metis search: the outer loop plan for plan, its winners, and the rules of its space."""

from __future__ import annotations

import json
from itertools import product
from math import factorial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtgym.baselines.partitioning import metis
from dtgym.baselines.partitioning.metis_search import (
    SearchArguments,
    SearchResult,
    group_lists,
    inter_stage_plans,
    search,
)
from dtgym.simulator.errors import InvalidInput


def golden(shared: Path, name: str) -> dict[str, Any]:
    return json.loads((shared / f"data/partition/metis_golden_{name}.json").read_text())


def run(document: dict[str, Any], mode: str) -> SearchResult:
    return search(
        metis.read_inputs(document), SearchArguments.of(document["args"]), mode=mode
    )  # fmt: skip


def is_mixed(document: dict[str, Any], sequence: Any, groups: Any) -> bool:
    inputs = metis.read_inputs(document)
    ranks = inputs.ranks(sequence)
    start = 0
    for size in groups:
        if len({inputs.nodes[node].gpu_type for node in ranks[start : start + size]}) > 1:
            return True
        start += size
    return False


@pytest.mark.parametrize(("name", "slack"), [("B_asis", 0), ("C_asis", 1)])
def test_as_shipped_enumerates_what_the_released_planner_does(
    shared: Path, name: str, slack: int
) -> None:
    document = golden(shared, name)
    found = run(document, "as-shipped")
    measured = document["measured"]
    assert found.inter_stage_plans == measured["inter_stage_plans"]
    assert abs(len(found.plans) - measured["costed_plans"]) <= slack
    mine = {(p.node_sequence, p.num_stage, p.device_groups, p.strategies, p.batches)
            for p in found.plans}  # fmt: skip
    theirs = {
        (tuple(r[0]), r[1], tuple(r[2]), tuple(tuple(pair) for pair in r[3]), r[4])
        for r in document["plans_sorted_by_cost"]
    }
    assert len(mine & theirs) >= 0.96 * len(theirs)


@pytest.mark.parametrize("name", ["B_asis", "C_fixed"])
def test_cheapest_well_formed_plan_of_one_type_per_group_is_the_golden_one(
    shared: Path, name: str
) -> None:
    """Over both files' plans, costed with the file's own bandwidth rule."""
    document = golden(shared, name)
    plans = [
        plan
        for plan in run(document, "well-formed").plans
        if not is_mixed(document, plan.node_sequence, plan.device_groups)
    ]
    costs = metis.plan_costs_ms(
        document, plans, honour_inter_bandwidth=document["variant"] != "as_shipped"
    )
    best = next(
        row
        for row in document["plans_sorted_by_cost"]
        if row[-1] and not is_mixed(document, row[0], row[2])
    )
    assert costs.min() == pytest.approx(best[-2], rel=1e-9)
    chosen = plans[int(costs.argmin())]
    assert (list(chosen.device_groups), list(chosen.layer_partition)) == (best[2], best[5])


def test_modes_differ_as_documented(shared: Path) -> None:
    document = golden(shared, "B_asis")
    shipped, mended = run(document, "as-shipped"), run(document, "well-formed")
    layers = document["args"]["num_layers"]
    assert all(plan.is_well_formed(layers) for plan in mended.plans)
    assert not shipped.plans[0].is_well_formed(layers), "the winner as shipped is an artefact"
    assert (np.diff(shipped.costs_ms) >= 0).all()
    assert shipped.costs_ms[0] == pytest.approx(
        document["plans_sorted_by_cost"][0][-2], rel=1e-9
    )  # fmt: skip


def test_attempts_bound_the_search(shared: Path) -> None:
    document = golden(shared, "B_asis")
    found = search(
        metis.read_inputs(document),
        SearchArguments.of(document["args"]),
        mode="well-formed",
        max_attempts=50,
    )
    assert 50 <= found.attempts < 60


@given(st.integers(1, 8), st.integers(1, 24), st.sampled_from([0.25, 1.0]))
def test_unglued_lists_are_all_compositions_into_allowed_powers(
    stages: int, gpus: int, variance: float
) -> None:
    smallest = variance * max(gpus // stages, stages // gpus)
    sizes = [2**k for k in range(6) if smallest <= 2**k <= gpus]
    if len(sizes) ** stages > 20_000:
        return
    expected = {groups for groups in product(sizes, repeat=stages) if sum(groups) == gpus}
    found = list(group_lists(stages, gpus, variance, max_permute_len=8))
    assert set(found) == expected
    assert len(found) == len(expected), "each order once"


@given(st.integers(5, 16), st.integers(8, 32))
def test_glued_lists_keep_sum_and_length(stages: int, gpus: int) -> None:
    for groups in group_lists(stages, gpus, 1, max_permute_len=4):
        assert sum(groups) == gpus
        assert len(groups) == stages


def test_glueing_leaves_at_most_four_blocks_to_permute() -> None:
    assert len(list(group_lists(9, 16, 1, 4))) <= 4 * factorial(4)
    assert (1, 1, 2, 1, 1, 1, 1, 4, 4) in set(group_lists(9, 16, 1, 4))


def test_stage_limit_cuts_the_space(shared: Path) -> None:
    document = golden(shared, "B_asis")
    arguments = SearchArguments(4, 4, max_stages=3)
    inputs = metis.read_inputs(document)
    found = list(inter_stage_plans(inputs, arguments, as_shipped=False))
    assert max(plan.num_stage for plan in found) == 2, "no list of 3 powers of two sums to 16"
    assert all(inputs.global_batch % plan.batches == 0 for plan in found)


def test_unknown_mode_is_refused(shared: Path) -> None:
    with pytest.raises(InvalidInput, match="mode must be one of"):
        run(golden(shared, "B_asis"), "fast")
