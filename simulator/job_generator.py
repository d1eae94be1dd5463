"""Synthetic job tables whose statistics are fitted to real traces: the embedded default workload.

A `WorkloadProfile` holds the fitted constants of one cluster:

* Arrivals are a log-Gaussian Cox process in bins of ten minutes: log rate = hour of day + day of
  week + a slow and a fast first-order autoregression. The two give drift over days and bursts, and
  thereby counts far more dispersed than Poisson's.
* Gang sizes are drawn from a table.
* Run times are mixtures of three log-normals per class of gang sizes, cut at the longest seen.

`fit` takes the constants from any job table, `profile` reads the shipped ones, `generate` draws a
table and `compare` sets real and generated statistics side by side.

Source of the process: Møller, Syversveen and Waagepetersen, Log Gaussian Cox processes, Scand. J.
Statistics 25, 1998 (moments of counts, section 2). Source of the constants: `source` of each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtgym.simulator.errors import InvalidInput, above, at_least, one_of
from dtgym.simulator.jobs import COLUMNS, JobTable

BIN_S = 600.0
#: 1 January 2024, a Monday, 0:00: time zero of generated tables.
EPOCH_UNIX_S = 1_704_067_200.0
PROFILES = ("philly", "helios", "seren", "kalos")
_COMPONENTS = 3
_BINS_PER_DAY = 144
_LAGS = np.array([1, 2, 3, 6, 12, 36, 72, 144])


@dataclass(frozen=True, eq=False)
class WorkloadProfile:
    """Fitted constants of one cluster's workload.

    Attributes:
        name: Name of the profile.
        source: Where the constants come from, and what they are not good for.
        jobs_per_s: Mean arrival rate.
        hour_factor: Relative rate by hour of day, mean 1, (24,).
        weekday_factor: Relative rate by day, Monday first, mean 1, (7,).
        log_rate_variance: Variance of the two autoregressions together.
        slow_share: Share of that variance in the slow one.
        fast_time_s: Correlation time of the fast one.
        slow_time_s: Correlation time of the slow one.
        gpus: Gang sizes, ascending, (sizes,).
        gpu_probability: (sizes,).
        class_first_gpus: Smallest gang of each class of run times, ascending, (classes,).
        weight: Of the log-normals, (classes, 3).
        log_mean: Mean of log seconds, (classes, 3).
        log_std: Standard deviation of log seconds, (classes, 3).
        longest_s: Longest run time.
    """

    name: str
    source: str
    jobs_per_s: float
    hour_factor: NDArray[np.float64]
    weekday_factor: NDArray[np.float64]
    log_rate_variance: float
    slow_share: float
    fast_time_s: float
    slow_time_s: float
    gpus: NDArray[np.int64]
    gpu_probability: NDArray[np.float64]
    class_first_gpus: NDArray[np.int64]
    weight: NDArray[np.float64]
    log_mean: NDArray[np.float64]
    log_std: NDArray[np.float64]
    longest_s: float


@lru_cache(maxsize=8)
def profile(name: str) -> WorkloadProfile:
    """A shipped profile, one of `PROFILES`.

    Raises:
        InvalidInput: There is no such profile.

    Examples:
        >>> profile("philly").gpus.max()
        np.int64(128)
    """
    import yaml

    one_of("profile", name, PROFILES)
    file = files("dtgym.simulator") / "catalog/scheduling/workload_profiles.yaml"
    entry: dict[str, Any] = yaml.safe_load(file.read_text("utf-8"))[name]
    arrays: dict[str, Any] = {
        key: np.array(value, dtype=np.int64 if key in ("gpus", "class_first_gpus") else np.float64)
        for key, value in entry.items()
        if isinstance(value, list)
    }
    fields: dict[str, Any] = {**entry, **arrays, "name": name}
    return WorkloadProfile(**fields)


def generate(
    workload: WorkloadProfile | str = "philly",
    *,
    jobs: int,
    seed: int,
    offered_load: float | None = None,
    total_gpus: int | None = None,
    largest_gpus: int | None = None,
) -> JobTable:
    """Draws a job table; equal arguments give equal tables.

    Args:
        workload: A profile, or the name of a shipped one.
        jobs: Number of jobs.
        seed: Of all draws.
        offered_load: Stretches the arrivals to this load of `total_gpus`; None keeps the rate.
        total_gpus: GPUs of the cluster; asked for with `offered_load`.
        largest_gpus: Leaves larger gangs out of the draw (probabilities are renormalised).

    Returns:
        A table with every column synthetic, on a clock that starts on a Monday at 0:00.

    Raises:
        InvalidInput: No jobs, a load without GPUs, or no gang small enough.

    Examples:
        >>> jobs = generate("philly", jobs=1000, seed=0, offered_load=0.9, total_gpus=128)
        >>> len(jobs), round(jobs.against(128).offered_load, 6)
        (1000, 0.9)
    """
    at_least("jobs", jobs, 1)
    at_least("seed", seed, 0)
    model = profile(workload) if isinstance(workload, str) else workload
    arrivals, sizes, runs = (
        np.random.Generator(np.random.PCG64(child))
        for child in np.random.SeedSequence(seed).spawn(3)
    )
    submit_s = _arrivals(model, jobs, arrivals)
    fits = model.gpus <= (model.gpus.max() if largest_gpus is None else largest_gpus)
    if not fits.any():
        raise InvalidInput(
            f"largest_gpus must be at least {model.gpus.min()} GPUs, got {largest_gpus}"
        )
    probability = model.gpu_probability[fits] / model.gpu_probability[fits].sum()
    num_gpus = sizes.choice(model.gpus[fits], size=jobs, p=probability)
    table = JobTable.from_columns(
        submit_s=np.round(submit_s, 3),
        duration_s=_durations(model, num_gpus, runs),
        num_gpus=num_gpus,
        synthetic=[column.name for column in COLUMNS[:3]],
        source=f"{model.name} generator, seed {seed}",
        epoch_unix_s=EPOCH_UNIX_S,
    )
    if offered_load is None:
        return table
    if total_gpus is None:
        raise InvalidInput("offered_load needs total_gpus, the GPUs of the cluster")
    return table.at_load(offered_load, int(above("total_gpus", total_gpus, 0)))


def _arrivals(
    model: WorkloadProfile, jobs: int, random: np.random.Generator
) -> NDArray[np.float64]:
    """First `jobs` arrivals in seconds from Monday 0:00, ascending."""
    season = np.outer(model.weekday_factor, np.repeat(model.hour_factor, 6)).ravel()
    variance = np.array([1 - model.slow_share, model.slow_share]) * model.log_rate_variance
    decay = np.exp(-BIN_S / np.array([model.fast_time_s, model.slow_time_s]))
    state = random.standard_normal(2) * np.sqrt(variance)
    parts: list[NDArray[np.float64]] = []
    found, first = 0, 0
    week = len(season)
    while found < jobs:
        shocks = random.standard_normal((week, 2)) * np.sqrt(variance * (1 - decay**2))
        log_rate = np.empty(week)
        for b in range(week):
            log_rate[b] = state.sum()
            state = decay * state + shocks[b]
        # exp(-variance / 2) makes the mean of the log-normal factor one.
        rate = model.jobs_per_s * season * np.exp(log_rate - model.log_rate_variance / 2)
        counts = random.poisson(rate * BIN_S)
        bins = np.repeat(np.arange(first, first + week), counts)
        parts.append(np.sort((bins + random.random(len(bins))) * BIN_S))
        found += len(bins)
        first += week
    return np.concatenate(parts)[:jobs]


def _durations(
    model: WorkloadProfile, num_gpus: NDArray[np.int64], random: np.random.Generator
) -> NDArray[np.float64]:
    """Run times in seconds, whole milliseconds, at least one second."""
    row = np.searchsorted(model.class_first_gpus, num_gpus, side="right") - 1
    row = np.maximum(row, 0)
    component = (random.random(len(row))[:, None] > model.weight.cumsum(axis=1)[row]).sum(axis=1)
    component = np.minimum(component, model.weight.shape[1] - 1)
    mean, std = model.log_mean[row, component], model.log_std[row, component]
    seconds = np.clip(np.exp(mean + std * random.standard_normal(len(row))), 1.0, model.longest_s)
    return np.asarray(np.round(seconds, 3), dtype=np.float64)


def fit(
    jobs: JobTable, name: str, *, source: str = "", mean_gpus: float | None = None
) -> WorkloadProfile:
    """Fits a profile to a job table with a wall clock.

    Args:
        jobs: The table.
        name: Name of the new profile.
        source: Where the table comes from.
        mean_gpus: Tilts the gang sizes exponentially in log2 to this mean, for tables known to
            lack large jobs; None keeps them as they are.

    Raises:
        InvalidInput: A table without wall clock or shorter than two weeks.
    """
    if jobs.epoch_unix_s is None:
        raise InvalidInput(f"{jobs.source}: has no wall clock, so no day cycle can be fitted")
    clock_s = jobs.epoch_unix_s + jobs.submit_s
    start_s = np.ceil(clock_s.min() / 86_400) * 86_400
    days = int((clock_s.max() - start_s) // 86_400)
    if days < 14:
        raise InvalidInput(f"{jobs.source}: spans {days} whole days, a fit needs 14")
    inside = (clock_s >= start_s) & (clock_s < start_s + days * 86_400)
    count = np.bincount(
        ((clock_s[inside] - start_s) // BIN_S).astype(np.int64), minlength=days * _BINS_PER_DAY
    ).astype(np.float64)
    hour = count.reshape(days, 24, 6).sum(axis=2).mean(axis=0)
    # The Unix epoch was a Thursday; Monday is 0.
    weekday = (int(start_s // 86_400) + 3 + np.arange(days)) % 7
    per_day = count.reshape(days, -1).sum(axis=1)
    by_day = np.array([per_day[weekday == day].mean() for day in range(7)])
    season = np.outer((by_day / by_day.mean())[weekday], np.repeat(hour / hour.mean(), 6)).ravel()
    variance, share, fast_s, slow_s = _fit_log_rate(count, season)
    sizes, number = np.unique(jobs.num_gpus[jobs.num_gpus > 0], return_counts=True)
    classes = [first for first in (1, 2, 8) if ((jobs.num_gpus >= first).sum()) >= 100]
    weight, log_mean, log_std = _fit_durations(jobs, classes)
    return WorkloadProfile(
        name=name,
        source=source or jobs.source,
        jobs_per_s=float(count.mean() / BIN_S),
        hour_factor=hour / hour.mean(),
        weekday_factor=by_day / by_day.mean(),
        log_rate_variance=variance,
        slow_share=share,
        fast_time_s=fast_s,
        slow_time_s=slow_s,
        gpus=sizes,
        gpu_probability=_tilted(sizes, number / number.sum(), mean_gpus),
        class_first_gpus=np.array(classes),
        weight=weight,
        log_mean=log_mean,
        log_std=log_std,
        longest_s=float(jobs.duration_s.max()),
    )


def _fit_log_rate(
    count: NDArray[np.float64], season: NDArray[np.float64]
) -> tuple[float, float, float, float]:
    """Moments of a Cox process: variance, slow share, fast and slow time of the log rate.

    With rate = season x exp(Gaussian), E[N(t) N(t+k)] = m(t) m(t+k) exp(C(k)) and
    E[N(N-1)] = m^2 exp(C(0)), so that C is the log of a ratio of sums.
    """
    mean = season * count.mean() / season.mean()
    variance = np.log((count * (count - 1)).sum() / (mean**2).sum())
    covariance = np.array(
        [np.log((count[k:] * count[:-k]).sum() / (mean[k:] * mean[:-k]).sum()) for k in _LAGS]
    )
    best = (np.inf, 0.5, BIN_S, 86_400.0)
    for share in np.linspace(0.05, 0.95, 37):
        for fast_s in BIN_S * np.array([1, 1.5, 2, 3, 4, 6, 9, 12]):
            for slow_s in 3600.0 * np.array([6, 12, 24, 48, 96, 192]):
                lag_s = _LAGS * BIN_S
                model = variance * (
                    (1 - share) * np.exp(-lag_s / fast_s) + share * np.exp(-lag_s / slow_s)
                )
                error = float(((model - covariance) ** 2).sum())
                best = min(best, (error, float(share), float(fast_s), float(slow_s)))
    return float(variance), best[1], best[2], best[3]


def _tilted(
    sizes: NDArray[np.int64], probability: NDArray[np.float64], mean: float | None
) -> NDArray[np.float64]:
    """Probabilities times 2^(theta log2 size), theta such that the mean is as asked."""
    if mean is None:
        return probability
    low, high = -8.0, 8.0
    tilted = probability
    for _ in range(80):
        theta = (low + high) / 2
        tilted = probability * sizes**theta
        tilted /= tilted.sum()
        low, high = (theta, high) if (tilted * sizes).sum() < mean else (low, theta)
    return tilted


def _fit_durations(
    jobs: JobTable, classes: list[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Mixtures of log-normals by expectation-maximisation, one per class of gang sizes."""
    rows: list[tuple[NDArray[np.float64], ...]] = []
    upper = [*classes[1:], np.inf]
    for first, end in zip(classes, upper, strict=True):
        inside = (jobs.num_gpus >= first) & (jobs.num_gpus < end)
        rows.append(_mixture(np.log(np.maximum(jobs.duration_s[inside], 1.0))))
    weight, mean, std = (np.stack(part) for part in zip(*rows, strict=True))
    return weight, mean, std


def _mixture(x: NDArray[np.float64], steps: int = 300) -> tuple[NDArray[np.float64], ...]:
    mean = np.quantile(x, [0.15, 0.5, 0.85])
    std = np.full(_COMPONENTS, x.std() / 2)
    weight = np.full(_COMPONENTS, 1 / _COMPONENTS)
    for _ in range(steps):
        log_density = -0.5 * ((x[:, None] - mean) / std) ** 2 - np.log(std) + np.log(weight)
        log_density -= log_density.max(axis=1, keepdims=True)
        share = np.exp(log_density)
        share /= share.sum(axis=1, keepdims=True)
        total = share.sum(axis=0)
        weight = total / len(x)
        mean = (share * x[:, None]).sum(axis=0) / total
        # A floor keeps a component from collapsing onto one repeated run time.
        std = np.sqrt((share * (x[:, None] - mean) ** 2).sum(axis=0) / total + 1e-3)
    order = np.argsort(mean)
    return weight[order], mean[order], std[order]


@dataclass(frozen=True, slots=True)
class Statistic:
    """One statistic of two tables.

    Attributes:
        name: With its unit.
        real: Of the first table.
        generated: Of the second.
    """

    name: str
    real: float
    generated: float
    relative: float = field(init=False)

    def __post_init__(self) -> None:
        ratio = self.generated / self.real - 1 if self.real else float("nan")
        object.__setattr__(self, "relative", ratio)


def compare(real: JobTable, generated: JobTable) -> list[Statistic]:
    """Statistics of arrivals, sizes and run times, side by side.

    Examples:
        >>> table = generate("philly", jobs=4000, seed=1)
        >>> all(row.relative == 0 for row in compare(table, table))
        True
    """
    a, b = _statistics(real), _statistics(generated)
    return [Statistic(name, a[name], b[name]) for name in a]


def _statistics(jobs: JobTable) -> dict[str, float]:
    first_s = jobs.submit_s.min()
    count = np.bincount(((jobs.submit_s - first_s) // BIN_S).astype(np.int64)).astype(np.float64)
    hourly = np.add.reduceat(count, np.arange(0, len(count), 6))
    asked = np.sort(jobs.gpu_seconds)[::-1]
    top = asked.cumsum() / asked.sum()
    duration: dict[str, float] = {
        f"run time p{q} (s)": float(np.percentile(jobs.duration_s, q))
        for q in (10, 25, 50, 75, 90, 95, 99)
    }
    return {
        "jobs per hour": float(len(jobs) / len(count) * 6),
        "variance / mean of jobs per 10 min": _dispersion(count),
        "variance / mean of jobs per hour": _dispersion(hourly),
        "autocorrelation of jobs per 10 min, lag 10 min": _correlation(count, 1),
        "autocorrelation of jobs per 10 min, lag 1 h": _correlation(count, 6),
        "autocorrelation of jobs per 10 min, lag 1 day": _correlation(count, _BINS_PER_DAY),
        **duration,
        "run time mean (s)": float(jobs.duration_s.mean()),
        "mean GPUs": float(jobs.num_gpus.mean()),
        "share of one-GPU jobs": float((jobs.num_gpus == 1).mean()),
        "share of jobs of 8 GPUs or more": float((jobs.num_gpus >= 8).mean()),
        "GPU time of the largest 1% of jobs": float(top[max(len(top) // 100 - 1, 0)]),
        "GPU time of the largest 10% of jobs": float(top[max(len(top) // 10 - 1, 0)]),
    }


def _dispersion(count: ArrayLike) -> float:
    values = np.asarray(count, dtype=np.float64)
    return float(values.var() / values.mean())


def _correlation(count: NDArray[np.float64], lag: int) -> float:
    if len(count) <= lag or count.var() == 0:
        return 0.0
    centred = count - count.mean()
    return float((centred[lag:] * centred[:-lag]).mean() / count.var())
