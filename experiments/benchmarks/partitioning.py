"""Plans/s of the full partition evaluator, and steps/s of its environment."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.experiments.benchmarks import median_duration_s
from dtgym.simulator import partition, partition_estimates
from dtgym.simulator.partition import Plans, Problem
from dtgym.simulator.partition_tables import LayerProfile, profiled_tables

STAGES = 8
MICROBATCHES = 32
LAYERS = 48
PLANS = 100_000
ENVIRONMENT = "dtgym.experiments.benchmarks.partitioning_environment"


def run() -> dict[str, Any]:
    """Rates at 8 stages and 32 micro-batches on all cores.

    Two clusters of 32 accelerators; plans differ in layer borders, tensor parallelism, wire
    precision and warm-up depth.
    """
    problem = _problem()
    plans = _plans(np.random.default_rng(0))
    costs = partition.stage_costs(problem, plans)
    figures: dict[str, Any] = {
        "stages": STAGES,
        "microbatches": MICROBATCHES,
        "plans": PLANS,
        "feasible_share": float(costs.feasible.mean()),
        "plans_per_s": _rate(lambda: partition.evaluate(problem, plans)),
        "plans_per_s_stage_costs": _rate(lambda: partition.stage_costs(problem, plans)),
        "plans_per_s_period_form": _rate(lambda: partition_estimates.period_form_s(costs, plans)),
        "plans_per_s_one_plan_per_call": _single_rate(problem, plans),
    }
    if importlib.util.find_spec(ENVIRONMENT) is not None:
        figures["environment"] = importlib.import_module(ENVIRONMENT).environment_rates()
    return figures


def _rate(call: Any) -> float:
    return PLANS / median_duration_s(call)


def _single_rate(problem: Problem, plans: Plans, calls: int = 200) -> float:
    alone = plans.take([0])
    return calls / median_duration_s(
        lambda: [partition.evaluate(problem, alone) for _ in range(calls)]
    )


def _problem() -> Problem:
    sizes = {tp: np.array([[200e6 / tp, 8e6, 120e6 / tp]] * LAYERS) for tp in (1, 2, 4, 8)}
    samples = (1, 2, 4, 8, 16)
    times_s = {
        name: {
            (tp, batch): np.array([[1.0, 2.2, 0.5]] * LAYERS) * seconds * batch / (0.9 * tp + 0.1)
            for tp in sizes
            for batch in samples
        }
        for name, seconds in (("fast", 4e-3), ("slow", 6e-3))
    }
    tables = profiled_tables(LayerProfile("uniform", 2.0, sizes, times_s), ("fast", "slow"))
    pair = np.ones((1, 2))
    between = 1.0 - np.eye(2)[None]
    return Problem(
        tables=tables,
        row=np.array([[0, 1]]),
        global_batch=np.array([8 * MICROBATCHES]),
        nodes=np.array([[4, 4]]),
        gpus_per_node=np.array([[8, 8]]),
        memory_bytes=80e9 * pair,
        memory_bytes_per_s=2e12 * pair,
        intra_bytes_per_s=200e9 * pair,
        inter_bytes_per_s=25e9 * pair,
        intra_latency_s=3e-6 * pair,
        inter_latency_s=5e-6 * pair,
        wan_bytes_per_s=0.6e9 * between,
        wan_delay_s=0.02 * between,
        gpu_usd_per_hour=2 * pair,
        wan_usd_per_byte=2e-11 * between,
    )


def _plans(generator: np.random.Generator) -> Plans:
    inner = np.argsort(generator.random((PLANS, LAYERS - 1)), axis=1)[:, : STAGES - 1] + 1
    bound = np.zeros((PLANS, STAGES + 1), dtype=np.int64)
    bound[:, 1:-1] = np.sort(inner, axis=1)
    bound[:, -1] = LAYERS
    extra: NDArray[np.int64] = generator.integers(0, 4, (PLANS, 1)) * (np.arange(STAGES) < 4)
    return partition.make_plans(
        np.broadcast_to(np.arange(STAGES) // 4, (PLANS, STAGES)),
        8,
        generator.choice([1, 2, 4, 8], (PLANS, STAGES)),
        bound,
        8,
        wire=generator.integers(1, 4, (PLANS, STAGES - 1)),
        warmup=np.arange(STAGES - 1, -1, -1) + extra,
        zero=1,
    )
