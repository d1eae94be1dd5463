"""Plans/s of the pipeline recurrence, its closed forms and full training plans."""

from __future__ import annotations

from typing import Any

import numpy as np

from dtgym.experiments.benchmarks import median_duration_s
from dtgym.simulator import hardware, pipeline, pipeline_reference, training, workload

STAGES = 8
MICROBATCHES = 32
PLANS = 200_000
REFERENCE_PLANS = 50
TRAINING_PLANS = 50_000


def run() -> dict[str, Any]:
    """Rates at 8 stages and 32 micro-batches on all cores, and the ratio to plain Python.

    Stage times differ by up to three, transfers reach a stage's forward.
    """
    generator = np.random.default_rng(0)
    forward_s = generator.uniform(1, 3, (PLANS, STAGES))
    backward_s = 2 * generator.uniform(1, 3, (PLANS, STAGES))
    activation_s, gradient_s = generator.uniform(0, 1, (2, PLANS, STAGES - 1))
    times = (forward_s, backward_s, activation_s, gradient_s)
    forward32, backward32 = forward_s.astype(np.float32), backward_s.astype(np.float32)
    narrow = (forward32, backward32, activation_s.astype("f4"), gradient_s.astype("f4"))
    extra = generator.integers(0, 4, (16, STAGES)).cumsum(axis=1)[:, ::-1] // 4
    warmup = np.arange(STAGES - 1, -1, -1) + extra[generator.integers(0, 16, PLANS)]

    def rate(call: Any) -> float:
        return PLANS / median_duration_s(call)

    exact = rate(lambda: pipeline.iteration_time_s(*times, MICROBATCHES))
    reference_s = median_duration_s(lambda: [_reference(times, i) for i in range(REFERENCE_PLANS)])
    return {
        "stages": STAGES,
        "microbatches": MICROBATCHES,
        "plans": PLANS,
        "plans_per_s_float64": exact,
        "plans_per_s_float32": rate(
            lambda: pipeline.iteration_time_s(*narrow, MICROBATCHES, dtype="float32")
        ),
        "plans_per_s_sixteen_warmups": rate(
            lambda: pipeline.iteration_time_s(*times, MICROBATCHES, warmup=warmup)
        ),
        "plans_per_s_sender_blocked": rate(
            lambda: pipeline.iteration_time_s(*times, MICROBATCHES, overlap="sender_blocked")
        ),
        "plans_per_s_gpipe": rate(
            lambda: pipeline.iteration_time_s(*times, MICROBATCHES, schedule="gpipe")
        ),
        "plans_per_s_interleaved": rate(
            lambda: pipeline.iteration_time_s(*times, MICROBATCHES, schedule="interleaved")
        ),
        "plans_per_s_zero_bubble": rate(
            lambda: pipeline.iteration_time_s(*times, MICROBATCHES, schedule="zero_bubble")
        ),
        "plans_per_s_closed_form": rate(lambda: pipeline.closed_form_s(*times, MICROBATCHES)),
        "plans_per_s_period": rate(lambda: pipeline.period_s(*times)),
        "reference_plans_per_s": REFERENCE_PLANS / reference_s,
        "ratio_to_reference": exact * reference_s / REFERENCE_PLANS,
        "training_plans_per_s": _training_rate("exact"),
        "training_plans_per_s_closed_form": _training_rate("closed_form"),
        "training_splits_screened_per_s": _screening_rate(),
    }


def _reference(times: tuple[Any, ...], plan: int) -> float:
    return pipeline_reference.iteration_time_s(
        *(time[plan].tolist() for time in times), microbatches=MICROBATCHES
    )


def _screening_rate() -> float:
    """Splits of 96 blocks over 8 stages, each under one of eight configurations."""
    problem = training.Problem(
        workload.transformer("gpt3-175b"), hardware.cluster("selene-64"), global_batch=512
    )
    plans = training.Plans.of(
        tensor=np.tile([4, 8], 4), pipeline=STAGES, data=np.tile([16, 8], 4), microbatch=1
    )
    generator = np.random.default_rng(0)
    splits = 10 * PLANS
    moved = generator.integers(0, 5, (splits, STAGES // 2)).astype(np.float64)
    layers = np.concatenate([12 + moved, 12 - moved], axis=1)
    chosen = generator.integers(0, plans.count, splits)
    return splits / median_duration_s(lambda: training.screen(problem, plans, chosen, layers))


def _training_rate(fidelity: str) -> float:
    """Full training plans of one model at 8 stages and 32 micro-batches."""
    problem = training.Problem(
        workload.transformer("gpt3-175b"), hardware.cluster("selene-64"), global_batch=512
    )
    plans = training.Plans.of(
        tensor=np.tile([4, 8], TRAINING_PLANS // 2),
        pipeline=np.full(TRAINING_PLANS, STAGES),
        data=np.tile([16, 8], TRAINING_PLANS // 2),
        microbatch=np.tile([1, 2], TRAINING_PLANS // 2),
    )
    return TRAINING_PLANS / median_duration_s(
        lambda: training.step(problem, plans, fidelity=fidelity)
    )
