"""Regret of static configurations against the dynamic oracle."""

from __future__ import annotations

import numpy as np
import pytest

from dtgym.envs.communication_tuning.types import Parameters
from dtgym.experiments.tuning_regret import regret, regrets, tuned_cell
from dtgym.simulator.errors import InvalidInput


@pytest.fixture(scope="module")
def rows():
    found = regrets(["vgg16", "resnet50"], scenarios=["steady", "mixed"], episodes=4, horizon=40)
    return {(row.model, row.architecture, row.scenario): row for row in found}


def test_covers_every_combination(rows):
    assert len(rows) == 8


def test_regrets_are_ordered(rows):
    for row in rows.values():
        assert 0 <= row.hindsight_static <= row.hindsight_static_largest
        assert row.hindsight_static <= row.one_static
        assert row.hindsight_static <= row.tuned_once + 1e-12
        assert row.tuned_once <= row.tuned_once_largest
        assert row.attainable >= 0


def test_without_drift_nothing_is_lost_by_tuning_once(rows):
    for (_, _, scenario), row in rows.items():
        if scenario == "steady":
            assert row.hindsight_static == 0
            # While a new partition waits (all-reduce), another credit may suit the old one better.
            assert row.attainable < 2e-3
            assert row.tuned_once < 1.1e-3
            assert row.default > 0


def test_drift_makes_tuning_pay_most_where_communication_binds(rows):
    for architecture in ("allreduce", "ps"):
        vgg16, resnet50 = (rows[model, architecture, "mixed"] for model in ("vgg16", "resnet50"))
        assert vgg16.hindsight_static > 0.02
        assert vgg16.hindsight_static > resnet50.hindsight_static
        assert vgg16.tuned_once > vgg16.hindsight_static


def test_the_same_seed_gives_the_same_figures(rows):
    again = regret("vgg16", "ps", "mixed", episodes=4, horizon=40)
    assert again == rows["vgg16", "ps", "mixed"]


def test_ties_go_to_the_cell_nearest_to_the_default():
    parameters = Parameters(
        partition_grid_bytes=(1e6, 4e6, 16e6), credit_grid_bytes=(4e6, 16e6, 64e6)
    )
    times_s = np.array([1.0, 1.0005, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.0])
    assert tuned_cell(times_s, parameters) == 1


def test_refuses_an_unknown_model():
    with pytest.raises(InvalidInput, match="model"):
        regrets(["lenet"])
