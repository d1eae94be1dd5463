"""The validations of pipeline, exhaustive and plans: they pass, and they can fail."""

from __future__ import annotations

import json

import pytest

from dtgym.experiments.validation import validate
from dtgym.simulator.errors import InvalidInput


def test_the_shipped_schedules_are_met_exactly():
    report = validate("pipeline", None)
    assert report.passed and report.figures["n"] == 60
    assert report.figures["worst_relative_error"] <= 1e-12


def test_a_wrong_golden_value_fails_and_a_broken_file_is_named(tmp_path, shared):
    source = shared / "data" / "partition" / "pipeline_schedule_golden.json"
    document = json.loads(source.read_text())
    path = tmp_path / "golden.json"
    document["cases"][7]["onef1b_sender_blocked"] *= 1 + 1e-8
    path.write_text(json.dumps(document))
    report = validate("pipeline", path)
    assert not report.passed
    assert report.figures["worst_relative_error"] == pytest.approx(1e-8, rel=1e-3)
    del document["cases"][3]["fwd"]
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidInput, match=r"golden\.json: cases\[3\]"):
        validate("pipeline", path)
    path.write_text("[]")
    with pytest.raises(InvalidInput, match=r"golden\.json"):
        validate("pipeline", path)


def test_the_solved_cases_are_reproduced(shared):
    report = validate("exhaustive", shared / "data" / "partition")
    assert report.passed and report.figures["n"] == 12
    assert report.figures["plan_counts_equal"]
    assert report.figures["worst_relative_error"] <= 1e-12
    losses = [case["loss_by_estimator"] for case in report.figures["cases"]]
    assert max(loss["pick_by_compute_only_closed_form"] for loss in losses) > 3


def test_measured_plans_are_predicted_better_than_by_their_source(shared):
    report = validate("plans", shared / "data" / "partition")
    assert report.passed and report.figures["n"] == 34
    for group in report.figures["groups"].values():
        assert group["sender_blocked"]["mape"] < 0.08 < group["sailor_mape"]
    assert len(report.figures["left_out"]) == 2


@pytest.mark.parametrize("target", ["exhaustive", "plans"])
def test_data_that_is_not_there_is_one_line(target, tmp_path):
    with pytest.raises(InvalidInput, match="--data"):
        validate(target, None)
    with pytest.raises(InvalidInput, match="json"):
        validate(target, tmp_path)
