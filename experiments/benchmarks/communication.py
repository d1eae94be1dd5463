"""Configurations/s of the communication kernel, and steps/s of its environment."""

from __future__ import annotations

import importlib
import importlib.util
import time
from typing import Any

import numpy as np

from dtgym.experiments.benchmarks import median_duration_s
from dtgym.simulator import communication_reference, communication_workloads
from dtgym.simulator.communication import LayerTimes, Network, iteration_time_s

MODELS = ("vgg16", "resnet50", "bert_large")
CONFIGURATIONS = 20_000
REFERENCE_CONFIGURATIONS = 10
SMALLEST_PARTITION_BYTES = 2.0**20
"""Partitions are log-uniform from here to 64 times as much: 1 MiB pieces and above."""


def run() -> dict[str, Any]:
    """Rates by model on one and two threads, and the ratio to the plain Python reference.

    Every configuration has its own network, partition and credit, drawn over the ranges of the
    environment's scenarios; parameter server, priority order.
    """
    figures: dict[str, Any] = {
        "configurations": CONFIGURATIONS,
        "models": {model: _rates(model) for model in MODELS},
    }
    environment = "dtgym.experiments.benchmarks.communication_environment"
    if importlib.util.find_spec(environment) is not None:
        figures["environment"] = importlib.import_module(environment).environment_rates()
    return figures


def _rates(model: str) -> dict[str, float]:
    layers = communication_workloads.load(model)
    generator = np.random.default_rng(0)
    network, partition, credit = _configurations(generator, CONFIGURATIONS)

    def rate(threads: int) -> float:
        return CONFIGURATIONS / median_duration_s(
            lambda: iteration_time_s(layers, network, partition, credit, threads=threads)
        )

    one, two = rate(1), rate(2)
    reference = _reference_rate(layers)
    return {
        "layers": layers.layers,
        "pieces_per_configuration": float(
            np.mean([np.ceil(layers.gradient_bytes / p).sum() for p in partition[:1000]])
        ),
        "configurations_per_s_one_thread": one,
        "configurations_per_s_two_threads": two,
        "reference_configurations_per_s": reference,
        "ratio_to_reference": one / reference,
    }


def _reference_rate(layers: LayerTimes) -> float:
    generator = np.random.default_rng(0)
    network, partition, credit = _configurations(generator, REFERENCE_CONFIGURATIONS)
    matrix = network.matrix(REFERENCE_CONFIGURATIONS)
    start_s = time.perf_counter()
    for row, p, c in zip(matrix, partition, credit, strict=True):
        communication_reference.iteration_time_s(layers, Network(*row), p, c)
    return REFERENCE_CONFIGURATIONS / (time.perf_counter() - start_s)


def _configurations(
    generator: np.random.Generator, count: int
) -> tuple[Network, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    network = Network.parameter_server(
        10 ** generator.uniform(8.8, 10.1, count),
        workers=8,
        servers=8,
        message_overhead_s=10 ** generator.uniform(-4.7, -3.2, count),
        completion_delay_s=10 ** generator.uniform(-4.3, -2.2, count),
    )
    partition = SMALLEST_PARTITION_BYTES * 2 ** generator.uniform(0, 6, count)
    credit = SMALLEST_PARTITION_BYTES * 2 ** generator.uniform(0, 8, count)
    return network, partition, credit
