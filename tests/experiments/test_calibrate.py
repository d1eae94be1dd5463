"""Measuring a machine: links are fitted, and the model sustains what was measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtgym.experiments.calibrate import Measured, as_cluster, fit_link, measure
from dtgym.simulator import collectives, compute, hardware


@given(st.floats(1e-6, 1e-2), st.floats(1e7, 1e12), st.integers(2, 64))
def test_a_link_is_found_again(start_s: float, rate: float, ranks: int) -> None:
    sizes = np.array([1e4, 1e6, 1e8, 1e10])
    times = start_s + 2 * (ranks - 1) / ranks * sizes / rate
    found = fit_link(sizes, times, ranks)
    assert found == (pytest.approx(start_s, rel=1e-3), pytest.approx(rate, rel=1e-3))


def test_the_model_sustains_the_measured_rates() -> None:
    machine = Measured("box", 1e12, 64e9, 50e9, 4, 4, 1e-4, 2e9)
    cluster = as_cluster(machine)
    assert cluster.gpus == 4
    large = 1 << 16
    time = float(compute.matmul_time_s(large, large, large, cluster.groups[0].node.accelerator))
    assert 2 * large**3 / time == pytest.approx(1e12, rel=0.01)
    reduce_s = float(collectives.all_reduce_time_s(1e9, 4, cluster))
    assert reduce_s == pytest.approx(1.5 * 1e9 / 2e9, rel=0.01)


def test_this_machine_can_be_measured(tmp_path: Path) -> None:
    machine = measure(budget_s=0.01)
    assert machine.flop_per_s > 1e8
    assert machine.memory_bytes_per_s > 1e7
    path = tmp_path / "me.yaml"
    hardware.save_cluster(as_cluster(machine), path)
    assert hardware.load_cluster(path) == as_cluster(machine)
