"""The drift: ranges, how often it changes, that nothing else enters."""

from __future__ import annotations

import numpy as np
import pytest

from dtgym.envs import seeding
from dtgym.envs.communication_tuning import generator
from dtgym.envs.communication_tuning.generator import FACTORS, SCENARIOS, drift, noise

KEYS = seeding.episode_keys(seeding.stream_keys(range(300)), 0)
DRIFTS = {
    "steady": (),
    "bandwidth-markov": (generator.BANDWIDTH,),
    "latency-shift": (generator.OVERHEAD, generator.DELAY, generator.HOST),
    "stragglers": (generator.SKEW, generator.SLOWDOWN),
    "incast": (generator.CONGESTION,),
    "mixed": tuple(range(len(FACTORS))),
    "toy": (),
}


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_what_drifts_is_what_the_scenario_says(scenario):
    factors = drift(KEYS, SCENARIOS[scenario], 60)
    drifting = np.flatnonzero((factors != factors[:, :1]).any(axis=(0, 1)))
    assert tuple(drifting) == DRIFTS[scenario]


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_factors_stay_in_their_ranges(scenario):
    spec = SCENARIOS[scenario]
    factors = drift(KEYS, spec, 60)
    for column, (low, high) in {
        generator.BANDWIDTH: spec.bandwidth_bytes_per_s,
        generator.OVERHEAD: spec.message_overhead_s,
        generator.DELAY: spec.completion_delay_s,
        generator.HOST: spec.host_overhead_s,
        generator.SLOWDOWN: (1.0, spec.largest_slowdown),
    }.items():
        values = factors[..., column]
        assert low <= values.min() and values.max() <= high * (1 + 1e-12)
        if high > low and column != generator.SLOWDOWN:
            # Log-uniform: the median is the geometric mean.
            assert np.log(np.median(values)) == pytest.approx(
                np.log(low * high) / 2, abs=0.08 * np.log(high / low)
            )
    assert set(np.unique(factors[..., generator.CONGESTION])) == set(spec.congestion_levels)
    assert (factors[..., generator.SKEW] >= 0).all()


def test_stragglers_come_half_of_the_time_and_are_exponential():
    factors = drift(KEYS, SCENARIOS["stragglers"], 200)
    skew, slowdown = factors[..., generator.SKEW], factors[..., generator.SLOWDOWN]
    assert np.mean(skew > 0) == pytest.approx(0.5, abs=0.02)
    assert np.mean(skew[skew > 0]) == pytest.approx(5e-3, rel=0.05)
    assert np.array_equal(skew > 0, slowdown > 1)


def test_states_last_as_long_as_the_probability_says():
    bandwidth = drift(KEYS, SCENARIOS["bandwidth-markov"], 400)[..., generator.BANDWIDTH]
    assert np.mean(bandwidth[:, 1:] != bandwidth[:, :-1]) == pytest.approx(0.05, rel=0.05)


def test_groups_change_in_the_same_moment():
    factors = drift(KEYS, SCENARIOS["latency-shift"], 100)
    change = factors[:, 1:] != factors[:, :-1]
    assert np.array_equal(change[..., generator.DELAY], change[..., generator.OVERHEAD])


def test_no_draw_serves_two_factors():
    spec = SCENARIOS["mixed"]
    factors = drift(KEYS[:50], spec, 100)
    draws: list[set[float]] = []
    for column, (low, high) in {
        generator.BANDWIDTH: spec.bandwidth_bytes_per_s,
        generator.OVERHEAD: spec.message_overhead_s,
        generator.DELAY: spec.completion_delay_s,
        generator.HOST: spec.host_overhead_s,
    }.items():
        uniform = np.log(factors[..., column] / low) / np.log(high / low)
        draws.append(set(np.round(np.unique(uniform), 9)))
    assert len(set.union(*draws)) == sum(map(len, draws)) > 1000


def test_a_longer_episode_begins_as_a_shorter_one():
    short, long = (drift(KEYS[:5], SCENARIOS["mixed"], states) for states in (20, 50))
    assert np.array_equal(short, long[:, :20])


def test_the_same_key_gives_the_same_drift_in_any_batch():
    together = drift(KEYS, SCENARIOS["mixed"], 30)
    alone = drift(KEYS[7:8], SCENARIOS["mixed"], 30)
    assert together[7:8].tobytes() == alone.tobytes()


def test_noise_is_normal_and_independent():
    values = noise(KEYS, 100, 5)
    assert values.shape == (300, 100, 5)
    assert values.mean() == pytest.approx(0, abs=0.01)
    assert values.std() == pytest.approx(1, abs=0.01)
    assert np.mean(np.abs(values) > 1.959964) == pytest.approx(0.05, abs=0.003)
    assert np.abs(np.corrcoef(values.reshape(-1, 5).T) - np.eye(5)).max() < 0.02


def test_replay_reads_the_trace_row_by_row_and_holds_its_last():
    recorded = np.stack([np.arange(1, 51) * 1e8, np.arange(1, 51) * 1e-3], axis=1)
    factors = generator.replay(KEYS, recorded, 20)
    rows = factors[..., generator.BANDWIDTH] / 1e8
    assert np.allclose(np.diff(rows, axis=1), 1)
    assert set(np.round(rows[:, 0]).astype(int)) == set(range(1, 32))
    assert np.allclose(factors[..., generator.DELAY], rows * 1e-3)
    short = generator.replay(KEYS, recorded[:5], 20)[..., generator.BANDWIDTH] / 1e8
    assert np.allclose(short[:, :5], [1, 2, 3, 4, 5]) and np.allclose(short[:, 5:], 5)
