"""Statistics of results: few seeds, several tasks, and honest intervals.

Scores lie in arrays ``(seeds, tasks, episodes)``: `seeds` are independent runs of a method
(training, tuning), `tasks` are test instances, `episodes` are unseen episodes of one instance.
Tasks are fixed strata; what is random is the run and the episode. The bootstrap therefore resamples
whole runs (one draw for all tasks, since a trained policy is the same on every task) and, inside
every drawn run and task, episodes. With one seed only the episodes are resampled, and the interval
then says nothing about the variation between training runs; tables state the number of seeds.

Source: Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical Precipice,
NeurIPS 2021, sections 4.1 (stratified bootstrap) and 4.3 (interquartile mean, probability of
improvement). Two-level resampling: Davison and Hinkley, Bootstrap Methods and their Application,
1997, section 3.8. Resampling is seeded, so that a table has the same bytes every time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtgym.simulator.errors import InvalidInput, finite_array

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""Maps scores (resamples, seeds, tasks, episodes) to one figure per resample, (resamples,)."""

RESAMPLES = 2000
CHUNK = 100
"""Resamples drawn at once, to bound memory; part of what a seed means."""


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % bootstrap interval (percentile method)."""

    point: float
    low: float
    high: float

    @property
    def above_zero(self) -> bool:
        """Whether the whole interval lies above zero."""
        return self.low > 0

    @property
    def below_zero(self) -> bool:
        """Whether the whole interval lies below zero."""
        return self.high < 0


def interquartile_mean(scores: ArrayLike) -> float:
    """Mean of the middle half: a quarter of the values (rounded down) is cut at either end.

    Args:
        scores: Any shape; every value counts once.

    Source:
        Agarwal et al. 2021, section 4.3.

    Examples:
        >>> interquartile_mean([0, 1, 2, 100])
        1.5
    """
    return float(_iqm(np.asarray(scores, dtype=np.float64).reshape(1, 1, 1, -1))[0])


def iqm_estimate(scores: ArrayLike, *, seed: int = 0) -> Estimate:
    """Interquartile mean over all seeds, tasks and episodes with its bootstrap interval."""
    return bootstrap(scores, _iqm, seed=seed)


def mean_estimate(scores: ArrayLike, *, seed: int = 0) -> Estimate:
    """Mean over tasks, seeds and episodes with its bootstrap interval."""
    return bootstrap(scores, _mean, seed=seed)


def paired_difference(scores: ArrayLike, others: ArrayLike, *, seed: int = 0) -> Estimate:
    """Mean of ``scores - others`` over the same (seed, task, episode), with its interval.

    Pairing removes what both share: the luck of an episode. Above zero, `scores` is better.

    Args:
        scores: Shape (seeds, tasks, episodes).
        others: The same shape: the same episodes under the other method.
        seed: Seed of the resampling.

    Raises:
        InvalidInput: Shapes differ, or a value is not finite.

    Examples:
        >>> estimate = paired_difference([[[2.0, 3.0, 4.0]]], [[[1.0, 2.0, 3.0]]])
        >>> (estimate.point, estimate.low, estimate.high)
        (1.0, 1.0, 1.0)
    """
    first, second = _same_shape(scores, others)
    return bootstrap(first - second, _mean, seed=seed)


def probability_of_improvement(
    scores: ArrayLike, others: ArrayLike, *, seed: int = 0, resamples: int = RESAMPLES
) -> Estimate:
    """How likely a random outcome of one method beats a random one of the other, over tasks.

    Per task it is the Mann-Whitney statistic over all pairs (a tie counts one half); tasks are
    averaged. Both methods' outcomes are resampled with the same draws, as they share episodes.

    Args:
        scores: Shape (seeds, tasks, episodes).
        others: The same shape.
        seed: Seed of the resampling.
        resamples: Number of bootstrap resamples.

    Source:
        Agarwal et al. 2021, section 4.3.

    Examples:
        >>> probability_of_improvement([[[1.0, 2.0]]], [[[0.0, 1.0]]]).point
        0.875
    """
    first, second = _same_shape(scores, others)
    rng = np.random.default_rng(seed)
    draws: list[Floats] = []
    for count in _chunks(resamples):
        index = _draw(rng, count, first.shape)
        draws.append(_improvement(first[index], second[index]))
    point = float(_improvement(first[np.newaxis], second[np.newaxis])[0])
    return _estimate(point, np.concatenate(draws))


def bootstrap(
    scores: ArrayLike, statistic: Statistic, *, seed: int = 0, resamples: int = RESAMPLES
) -> Estimate:
    """95 % interval of `statistic` by the two-level stratified bootstrap described above.

    Args:
        scores: Shape (seeds, tasks, episodes).
        statistic: Figure per resample, see `Statistic`.
        seed: Seed of the resampling.
        resamples: Number of bootstrap resamples.

    Raises:
        InvalidInput: Wrong number of axes, an empty axis, or a value that is not finite.
    """
    array = _scores("scores", scores)
    rng = np.random.default_rng(seed)
    draws = [statistic(array[_draw(rng, count, array.shape)]) for count in _chunks(resamples)]
    return _estimate(float(statistic(array[np.newaxis])[0]), np.concatenate(draws))


def _draw(
    rng: np.random.Generator, resamples: int, shape: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Indices of `resamples` resamples: runs are drawn jointly for all tasks, episodes within."""
    seeds, tasks, episodes = shape
    run = rng.integers(seeds, size=(resamples, seeds, 1, 1))
    episode = rng.integers(episodes, size=(resamples, seeds, tasks, episodes))
    return run, np.arange(tasks)[np.newaxis, np.newaxis, :, np.newaxis], episode


def _iqm(scores: Floats) -> Floats:
    flat = np.sort(scores.reshape(len(scores), -1), axis=1)
    cut = flat.shape[1] // 4
    return flat[:, cut : flat.shape[1] - cut].mean(axis=1)


def _mean(scores: Floats) -> Floats:
    return scores.mean(axis=(1, 2, 3))


def _improvement(scores: Floats, others: Floats) -> Floats:
    by_task = np.moveaxis(scores, 2, 1).reshape(len(scores), scores.shape[2], -1)
    other = np.moveaxis(others, 2, 1).reshape(len(others), others.shape[2], -1)
    sign = np.sign(by_task[..., :, np.newaxis] - other[..., np.newaxis, :])
    return 0.5 + 0.5 * sign.mean(axis=(1, 2, 3))


def _estimate(point: float, draws: Floats) -> Estimate:
    low, high = np.quantile(draws, [0.025, 0.975])
    return Estimate(point, float(low), float(high))


def _chunks(resamples: int) -> list[int]:
    full, rest = divmod(resamples, CHUNK)
    return [CHUNK] * full + ([rest] if rest else [])


def _scores(field: str, values: ArrayLike) -> Floats:
    array = finite_array(field, values)
    if array.ndim != 3 or array.size == 0:
        raise InvalidInput(
            f"{field} must have the shape (seeds, tasks, episodes), none empty; got {array.shape}"
        )
    return array


def _same_shape(scores: ArrayLike, others: ArrayLike) -> tuple[Floats, Floats]:
    first, second = _scores("scores", scores), _scores("others", others)
    if first.shape != second.shape:
        raise InvalidInput(
            f"scores and others must be paired: shapes {first.shape} and {second.shape} differ"
        )
    return first, second
