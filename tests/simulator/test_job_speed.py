"""The speed model: closed forms, bounds, monotonicity, published rows."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtgym.simulator import job_speed
from dtgym.simulator.errors import InvalidInput

seconds = st.floats(0, 100)
stages = st.tuples(seconds, seconds, seconds, seconds)
share = st.floats(0.1, 4)

# Relative speed on 1, 2, 3, 4, 5 and 6 cores per GPU, as published (Blox, Synergy's profiles).
PUBLISHED = {
    "resnet18": (0.37, 0.72, 1, 1.30, 1.53, 1.75),
    "alexnet": (0.30, 0.66, 1, 1.25, 1.53, 1.75),
    "shufflenet": (0.30, 0.66, 1, 1.25, 1.53, 1.75),
    "mobilenet": (0.37, 0.72, 1, 1.30, 1.49, 1.55),
    "resnet50": (0.40, 0.74, 1, 1.15, 1.15, 1.15),
    "deepspeech": (0.30, 0.66, 1, 1, 1, 1),
    "gnmt": (1, 1, 1, 1, 1, 1),
    "lstm": (1, 1, 1, 1, 1, 1),
    "transformer": (1, 1, 1, 1, 1, 1),
}


@pytest.mark.parametrize("model", PUBLISHED)
def test_cpu_curves_meet_the_published_rows(model):
    speed = job_speed.cpu_curve(model).speed(np.arange(1, 7))
    assert np.abs(speed / PUBLISHED[model] - 1).max() < 0.05


@pytest.mark.parametrize("model", PUBLISHED)
def test_the_general_model_with_full_overlap_is_the_cpu_curve(model):
    curve = job_speed.cpu_curve(model)
    asked = [[0, float(curve.cpu_stage(3)), curve.gpu, 0]]
    for cores in (1, 2, 5, 12):
        speed = job_speed.relative_speed(
            asked,
            overlap=1.0,
            cpu_shape=[curve.squared, curve.linear, curve.constant],
            cores_asked=3.0 if curve.linear else 0.0,
            cores_given=cores,
        )
        assert speed[0] == pytest.approx(curve.speed(cores) / curve.speed(3), rel=1e-12)


@given(stages=stages, overlap=st.floats(0, 1), io=share, cores=share, gpu=share, net=share)
def test_speed_equals_the_stages_written_out(stages, overlap, io, cores, gpu, net):
    given_s = [stages[0] / io, stages[1] / cores, stages[2] / gpu, stages[3] / net]
    wanted = 1.0
    if max(given_s) > 0:
        asked = (1 - overlap) * sum(stages) + overlap * max(stages)
        wanted = asked / ((1 - overlap) * sum(given_s) + overlap * max(given_s))
    speed = job_speed.relative_speed(
        [stages], overlap=overlap, cores_given=cores, io_share=io, gpu_speed=gpu, network_share=net
    )
    assert speed[0] == pytest.approx(wanted, rel=1e-9)


@given(stages=stages, overlap=st.floats(0, 1), more=st.floats(1, 4), which=st.integers(0, 3))
def test_more_of_anything_is_never_slower_and_never_super_linear(stages, overlap, more, which):
    name = ("io_share", "cores_given", "gpu_speed", "network_share")[which]
    speed = job_speed.relative_speed([stages], overlap=overlap, **{name: more})[0]
    assert 1 - 1e-12 <= speed <= more + 1e-12


@given(stages=stages, ratio=st.floats(0.05, 1.3), overlap=st.floats(0, 0.95))
def test_the_network_scale_gives_back_the_measured_ratio(stages, ratio, overlap):
    stages = (*stages[:3], stages[3] + 0.01)
    scale = job_speed.network_scale_for_ratio([stages], ratio, overlap)[0]
    got = job_speed.relative_speed([stages], overlap=overlap, network_share=1 / scale)[0]
    assert got == pytest.approx(min(ratio, 1.0), rel=1e-6)


@given(compute=st.floats(0, 3), memory=st.floats(0, 3))
def test_sharing_a_gpu_slows_within_bounds(compute, memory):
    speed = float(job_speed.shared_gpu_speed(compute, memory))
    assert 0.1 <= speed <= 1
    assert speed >= job_speed.shared_gpu_speed(compute + 0.1, memory) - 1e-12


@given(a=st.lists(seconds, min_size=3, max_size=3), b=st.lists(seconds, min_size=3, max_size=3))
def test_interleaving_is_the_best_shift_and_within_bounds(a, b):
    speeds = job_speed.interleaved_speeds(a, b)
    if sum(a) + sum(b) == 0:
        return
    used = [(x, y) for x, y in zip(a, b, strict=True) if x or y]
    mine, theirs = [x for x, _ in used], [y for _, y in used]
    periods = [
        sum(max(x, y) for x, y in zip(mine, theirs[k:] + theirs[:k], strict=True))
        for k in range(1, len(used))
    ] or [sum(a) + sum(b)]
    assert speeds[0] == pytest.approx(sum(a) / min(periods)) if min(periods) else True
    assert (speeds <= 1 + 1e-12).all()
    # Never worse than one after the other, never better than the busiest resource allows.
    assert min(periods) <= sum(a) + sum(b) + 1e-9
    assert min(periods) >= max(sum(a), sum(b)) - 1e-9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overlap": 1.5}, "overlap must be at most 1"),
        ({"gpu_speed": 0}, "gpu_speed must be above 0"),
        ({"cores_given": 0}, "cores_given must be above 0 cores"),
        ({"io_share": -1}, "io_share must be above 0"),
    ],
)
def test_bad_values_are_named(options, message):
    with pytest.raises(InvalidInput, match=message):
        job_speed.relative_speed([[1, 1, 1, 1]], **options)
    with pytest.raises(InvalidInput, match="axis of 4 stages"):
        job_speed.relative_speed([[1, 1, 1]])
    with pytest.raises(InvalidInput, match="model must be one of"):
        job_speed.cpu_curve("resnet5")


def test_stage_sum_beats_the_longest_stage_on_published_iterations(shared):
    from dtgym.experiments.validation import schedulers

    errors = schedulers.muri_iteration_errors(shared / "data" / "traces")
    assert errors["sum"] < 0.15 < errors["max"]
    for overlap, later in itertools.pairwise((0.0, 0.5, 1.0)):
        assert errors[f"overlap_{overlap}"] < errors[f"overlap_{later}"]
