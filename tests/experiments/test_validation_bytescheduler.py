"""The charts of the ByteScheduler release, predicted by one set of constants."""

from __future__ import annotations

import numpy as np
import pytest

from dtgym.experiments.validation import bytescheduler, validate
from dtgym.simulator.errors import InvalidInput


def test_one_set_of_constants_meets_the_targets_on_all_points():
    report = validate("bytescheduler", None)
    assert report.passed
    assert report.figures["rms_images"] <= 0.06 and report.figures["rms_all"] <= 0.10
    assert len(report.figures["points"]) == 18
    errors = np.array([point["relative_error"] for point in report.figures["points"]])
    assert report.figures["rms_all"] == pytest.approx(np.sqrt((errors**2).mean()))
    # Scheduling wins wherever it won in the charts.
    predicted = {
        (p["model"], p["gpus"], p["method"]): p["predicted_s"] for p in report.figures["points"]
    }
    for model, gpus, method in predicted:
        assert predicted[model, gpus, "bytescheduler"] <= predicted[model, gpus, "baseline"], method


def test_worse_constants_fail(monkeypatch):
    line_rate = bytescheduler.Constants(1.25e10, 5e-5, 1e-4, 0.0, 0.0)
    monkeypatch.setattr(bytescheduler, "FITTED", line_rate)
    assert not validate("bytescheduler", None).passed


def test_shipped_charts_equal_the_research_data(shared):
    published = bytescheduler.read_published(shared / "data" / "autobyte")
    shipped = bytescheduler.read_shipped()
    assert shipped == {key: published[key] for key in shipped}


def test_bad_tables_get_one_clear_line(tmp_path):
    with pytest.raises(InvalidInput, match=r"no published\.csv"):
        validate("bytescheduler", tmp_path)
    table = tmp_path / "published.csv"
    table.write_text("figure,model,gpus,config,value\nmxnet_ps_rdma_x,VGG16,16,baseline,x\n")
    with pytest.raises(InvalidInput, match="line 2"):
        validate("bytescheduler", table)
    table.write_text("figure,model,gpus,config,value\nmxnet_ps_rdma_x,VGG16,16,baseline,700\n")
    with pytest.raises(InvalidInput, match="no speed of bytescheduler for vgg16 on 16"):
        validate("bytescheduler", table)
