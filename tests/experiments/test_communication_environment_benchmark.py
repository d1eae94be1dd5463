"""The benchmark of the communication environment measures what it says."""

from __future__ import annotations

import pytest

from dtgym.experiments.benchmarks import communication_environment as benchmark


def test_rates_are_those_of_the_steps_that_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "PARALLEL", 8)
    monkeypatch.setattr(benchmark, "STEPS", 5)
    monkeypatch.setattr(benchmark, "median_duration_s", lambda call: call() or 0.5)
    assert benchmark.environment_rates() == {
        "environment": benchmark.ENV_ID,
        "parallel_environments": 8,
        "single_steps_per_s": 10.0,
        "parallel_steps_per_s": 80.0,
    }
