"""Levels of attained service for schedulers that rank jobs by what they have received."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtgym.simulator.errors import InvalidInput, at_least


def gittins_index(samples: ArrayLike, attained: ArrayLike) -> NDArray[np.float64]:
    """Gittins index of jobs that have attained some service, from a sample of total services.

    G(a) = max over d of P(S - a <= d | S > a) / E[min(S - a, d) | S > a]: the best chance of a
    completion per unit of service spent. Only d that reach to a sample point can be best.

    Args:
        samples: Total services of finished jobs, (samples,), above 0 to matter.
        attained: Services so far, (jobs,).

    Returns:
        Completions per unit of service, (jobs,); 0 beyond the largest sample.

    Source:
        Gittins, Bandit processes and dynamic allocation indices, JRSS B 1979; used on attained GPU
        time by Gu et al., Tiresias, NSDI 2019, section 3.

    Examples:
        >>> gittins_index([1.0, 1.0, 100.0], [0.0, 1.0]).round(4).tolist()
        [0.6667, 0.0101]
    """
    service = np.sort(at_least("samples", samples, 0).ravel())
    if len(service) == 0:
        raise InvalidInput("samples must hold at least one total service")
    total = np.concatenate(([0.0], np.cumsum(service)))
    index = np.zeros(np.shape(attained))
    for place, have in enumerate(np.ravel(at_least("attained", attained, 0))):
        first = int(np.searchsorted(service, have, side="right"))
        left = len(service) - first
        if left == 0:
            continue
        done = np.arange(1, left + 1)
        reach = service[first:] - have
        spent = (total[first + done] - total[first] - done * have) + (left - done) * reach
        index.flat[place] = np.max(done / spent)
    return index


def gittins_levels(
    samples: ArrayLike, levels: int = 32
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Discretises the Gittins index: level bounds at quantiles of the sample, and their ranks.

    Args:
        samples: Total services, (samples,).
        levels: At most how many levels.

    Returns:
        bounds, rank: Service at which each level but the last ends, ascending; the rank of each
        level, 0 runs first, all distinct (equal indices rank by attained service).

    Examples:
        >>> bounds, rank = gittins_levels([1.0, 1.0, 100.0], levels=2)
        >>> rank.tolist()
        [0, 1]
    """
    service = at_least("samples", samples, 0).ravel()
    if len(service) == 0:
        raise InvalidInput("samples must hold at least one total service")
    bounds = np.unique(np.quantile(service, np.arange(1, levels) / levels, method="lower"))
    bounds = bounds[bounds > 0]
    index = gittins_index(service, np.concatenate(([0.0], bounds)))
    rank = np.empty(len(index), dtype=np.int64)
    rank[np.argsort(-index, kind="stable")] = np.arange(len(index))
    return bounds, rank
