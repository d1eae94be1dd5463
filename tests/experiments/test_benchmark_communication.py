"""The benchmark of the communication kernel reports what it says, and the kernel is the faster."""

from __future__ import annotations

from dtgym.experiments.benchmarks import communication, communication_environment


def test_figures_are_rates_and_their_ratio(monkeypatch):
    monkeypatch.setattr(communication, "MODELS", ("vgg16",))
    monkeypatch.setattr(communication, "CONFIGURATIONS", 500)
    monkeypatch.setattr(communication, "REFERENCE_CONFIGURATIONS", 2)
    monkeypatch.setattr(communication_environment, "environment_rates", lambda: {"steps": 1})
    figures = communication.run()
    rates = figures["models"]["vgg16"]
    one, slow = (
        rates["configurations_per_s_one_thread"],
        rates["reference_configurations_per_s"],
    )
    assert rates["ratio_to_reference"] == one / slow > 20
    assert rates["configurations_per_s_two_threads"] > 0
    assert figures["environment"] == {"steps": 1}
