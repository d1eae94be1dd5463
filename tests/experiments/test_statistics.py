from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import trim_mean

from dtgym.experiments import statistics
from dtgym.simulator.errors import InvalidInput

SCORES = arrays(
    np.float64,
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 5)),
    elements=st.floats(-1e3, 1e3),
)


@given(arrays(np.float64, st.integers(1, 40), elements=st.floats(-1e6, 1e6)))
def test_the_interquartile_mean_is_scipys_trimmed_mean(scores: np.ndarray) -> None:
    assert statistics.interquartile_mean(scores) == pytest.approx(
        float(trim_mean(scores, 0.25)), rel=1e-12, abs=1e-9
    )


@given(SCORES)
def test_intervals_hold_their_point_of_a_constant_shift(scores: np.ndarray) -> None:
    estimate = statistics.paired_difference(scores + 1, scores)
    assert estimate.point == pytest.approx(1, abs=1e-9)
    assert estimate.low == pytest.approx(1, abs=1e-9)
    assert estimate.high == pytest.approx(1, abs=1e-9)
    assert estimate.above_zero and not estimate.below_zero


@given(SCORES)
def test_bounds_stay_within_the_data_and_in_order(scores: np.ndarray) -> None:
    for estimate in (statistics.iqm_estimate(scores), statistics.mean_estimate(scores)):
        slack = 1e-9 * (1 + np.abs(scores).max())
        assert scores.min() - slack <= estimate.low <= estimate.high <= scores.max() + slack


def slow_improvement(scores: np.ndarray, others: np.ndarray) -> float:
    """Counts pairs one by one, task by task."""
    of_tasks = []
    for task in range(scores.shape[1]):
        pairs = list(itertools.product(scores[:, task].ravel(), others[:, task].ravel()))
        of_tasks.append(sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs))
    return float(np.mean(of_tasks))


@given(SCORES, st.randoms(use_true_random=False))
def test_the_probability_of_improvement_counts_pairs(scores: np.ndarray, random: object) -> None:
    rng = np.random.default_rng(random.randrange(2**32))  # type: ignore[attr-defined]
    others = rng.permutation(scores.ravel()).reshape(scores.shape)
    estimate = statistics.probability_of_improvement(scores, others, resamples=10)
    assert estimate.point == pytest.approx(slow_improvement(scores, others), abs=1e-12)
    back = statistics.probability_of_improvement(others, scores, resamples=10)
    assert estimate.point + back.point == pytest.approx(1, abs=1e-12)


def slow_bootstrap_of_means(scores: np.ndarray, resamples: int, seed: int) -> list[float]:
    """Loops over runs, tasks and episodes as the module's docstring says."""
    rng = np.random.default_rng(seed)
    seeds, tasks, episodes = scores.shape
    means = []
    for _ in range(resamples):
        drawn = []
        for run in [int(rng.integers(seeds)) for _ in range(seeds)]:
            for task in range(tasks):
                for _ in range(episodes):
                    drawn.append(scores[run, task, int(rng.integers(episodes))])
        means.append(float(np.mean(drawn)))
    return means


def test_the_bootstrap_draws_runs_jointly_and_episodes_within() -> None:
    rng = np.random.default_rng(0)
    scores = (
        rng.normal(size=(4, 1, 1)) + rng.normal(size=(1, 3, 1)) * 5 + rng.normal(size=(4, 3, 6))
    )
    slow = slow_bootstrap_of_means(scores, 4000, seed=1)
    fast = statistics.bootstrap(scores, lambda s: s.mean(axis=(1, 2, 3)), resamples=20000)
    spread = float(np.std(slow))
    # Two independent Monte Carlo estimates of a quantile: its standard error is about
    # sqrt(q (1 - q) / n) / density, below 0.05 spreads here.
    assert fast.low == pytest.approx(np.quantile(slow, 0.025), abs=0.2 * spread)
    assert fast.high == pytest.approx(np.quantile(slow, 0.975), abs=0.2 * spread)
    # Closed form: runs are a plain bootstrap of run means, episodes add their spread on top.
    between = scores.mean(axis=(1, 2)).var() / 4
    within = scores.var(axis=2).sum() / (4 * 3 * 3 * 6 * 4)
    assert spread == pytest.approx(np.sqrt(between + within), rel=0.05)


def test_the_interval_of_a_mean_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    trials = 300
    effects = np.array([0.0, 3.0, -1.0])[np.newaxis, :, np.newaxis]
    covered = 0
    for trial in range(trials):
        scores = effects + rng.normal(size=(1, 3, 20))
        estimate = statistics.bootstrap(
            scores, lambda s: s.mean(axis=(1, 2, 3)), resamples=400, seed=trial
        )
        covered += estimate.low <= effects.mean() <= estimate.high
    # 95 % nominal; a percentile bootstrap of 20 episodes falls short by about 2 points. The bounds
    # are 3 binomial standard errors (1.4 points each) around 93 %.
    assert 0.89 <= covered / trials <= 0.975


def test_equal_seeds_give_equal_intervals() -> None:
    scores = np.random.default_rng(0).normal(size=(3, 2, 4))
    assert statistics.iqm_estimate(scores) == statistics.iqm_estimate(scores.copy())
    assert statistics.iqm_estimate(scores, seed=1) != statistics.iqm_estimate(scores)


@pytest.mark.parametrize(
    ("scores", "others", "message"),
    [
        (np.zeros((2, 3)), np.zeros((2, 3)), r"must have the shape \(seeds, tasks, episodes\)"),
        (np.zeros((2, 3, 1)), np.zeros((2, 3, 2)), "must be paired"),
        (np.full((1, 1, 1), np.nan), np.zeros((1, 1, 1)), "scores must be finite"),
        (np.zeros((0, 1, 1)), np.zeros((0, 1, 1)), "none empty"),
    ],
)
def test_refuses_what_cannot_be_compared(
    scores: np.ndarray, others: np.ndarray, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        statistics.paired_difference(scores, others)
