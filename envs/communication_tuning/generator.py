"""How the network and the workers of an episode drift: a pure function of the episode's key.

The drift is exogenous: it knows nothing of the actions. So the best configuration of each step and
the best static one in hindsight are well defined, and every method meets the same future.

Each factor is a Markov jump process: at each step it is redrawn with some probability, from the
same range. Ranges are those under which tuning was found to pay (docs/envs/communication_tuning.md
gives their sources): where only bandwidth drifts, the best configuration hardly moves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dtgym.envs import seeding
from dtgym.simulator.errors import InvalidInput, one_of
from dtgym.simulator.networks import Network, column

BANDWIDTH, OVERHEAD, DELAY, HOST, CONGESTION, SKEW, SLOWDOWN = range(7)
FACTORS = (
    "bandwidth_bytes_per_s",
    "message_overhead_s",
    "completion_delay_s",
    "host_overhead_s",
    "congestion",
    "worker_delay_s",
    "worker_slowdown",
)
"""Axis of factors: effective bandwidth of a link, bytes/s; occupancy per message, s; delay until a
completion is known, s; host time per piece, s; congestion coefficient; delay and slowdown of the
slowest worker, s and factor."""

SMALLEST_BANDWIDTH_DELAY_BYTES = 4e6
"""Buffers of switches and hosts take at least so much before a queue hurts."""

# What is drawn: first counter of each kind of draw. Kinds must not share counters.
_CHANGES, _VALUES, _NOISE, _MODEL, _OFFSET = (kind << 40 for kind in range(5))
# Factors that change in the same moment, and the number of such groups.
_GROUP = np.array([0, 1, 1, 1, 2, 3, 3])
_GROUPS = 4


@dataclass(frozen=True, slots=True)
class Scenario:
    """What an episode's network and workers are like, and what of it drifts.

    Attributes:
        description: In a few words.
        bandwidth_change: Probability per step that the bandwidth is redrawn.
        latency_change: The same for message overhead, completion delay and host time together.
        congestion_change: The same for the congestion coefficient.
        straggler_change: The same for delay and slowdown of the slowest worker together.
        congestion_levels: Coefficients, each as likely as the others.
        straggler_probability: Probability that a redraw brings a straggler.
        bandwidth_bytes_per_s: Range, log-uniform.
        message_overhead_s: Range, log-uniform.
        completion_delay_s: Range, log-uniform.
        host_overhead_s: Range, log-uniform.
        mean_worker_delay_s: Mean of a straggler's exponential delay.
        largest_slowdown: A straggler's compute factor is log-uniform from 1 to this.
    """

    description: str
    bandwidth_change: float = 0.0
    latency_change: float = 0.0
    congestion_change: float = 0.0
    straggler_change: float = 0.0
    congestion_levels: tuple[float, ...] = (0.0,)
    straggler_probability: float = 0.0
    bandwidth_bytes_per_s: tuple[float, float] = (0.6e9, 12e9)
    message_overhead_s: tuple[float, float] = (20e-6, 0.6e-3)
    completion_delay_s: tuple[float, float] = (50e-6, 6e-3)
    host_overhead_s: tuple[float, float] = (5e-6, 100e-6)
    mean_worker_delay_s: float = 5e-3
    largest_slowdown: float = 1.5


SCENARIOS = {
    "steady": Scenario("nothing drifts; each episode draws its network"),
    "bandwidth-markov": Scenario("bandwidth jumps, as other traffic comes and goes", 0.05),
    "latency-shift": Scenario("overhead and delays jump together", latency_change=0.05),
    "stragglers": Scenario(
        "a slow worker comes and goes", straggler_change=0.1, straggler_probability=0.5
    ),
    "incast": Scenario(
        "windows beyond the bandwidth-delay product congest the link, now more, now less",
        congestion_change=0.05,
        congestion_levels=(0.0, 0.05, 0.3),
    ),
    "mixed": Scenario(
        "all of these at once",
        bandwidth_change=0.05,
        latency_change=0.05,
        congestion_change=0.05,
        straggler_change=0.1,
        congestion_levels=(0.0, 0.05, 0.3),
        straggler_probability=0.5,
    ),
    "toy": Scenario(
        "one byte takes a microsecond and nothing else takes time",
        bandwidth_bytes_per_s=(1e6, 1e6),
        message_overhead_s=(0.0, 0.0),
        completion_delay_s=(0.0, 0.0),
        host_overhead_s=(0.0, 0.0),
    ),
}
"""Scenario families. Probabilities are per step of ten iterations: a state lasts about 200."""


def scenario_named(name: str) -> Scenario:
    """The scenario of that name; ``trace`` takes what a trace does not say from ``steady``.

    Raises:
        InvalidInput: There is no such scenario.
    """
    one_of("scenario", name, (*SCENARIOS, "trace"))
    return SCENARIOS.get(name, SCENARIOS["steady"])


def drift(keys: NDArray[np.uint64], scenario: Scenario, states: int) -> NDArray[np.float64]:
    """Factors of every state of new episodes.

    Args:
        keys: Episode keys, (episodes,).
        scenario: What drifts.
        states: Number of states per episode.

    Returns:
        float64, (episodes, states, factors) in the order of `FACTORS`.

    Examples:
        >>> keys = seeding.episode_keys(seeding.stream_keys([0, 1]), 0)
        >>> steady = drift(keys, SCENARIOS["steady"], 50)
        >>> steady.shape, bool((steady == steady[:, :1]).all())
        ((2, 50, 7), True)
    """
    time = np.arange(states)
    probability = np.array(
        [
            scenario.bandwidth_change,
            scenario.latency_change,
            scenario.congestion_change,
            scenario.straggler_change,
        ]
    )
    counters = _CHANGES + time[:, None] * _GROUPS + np.arange(_GROUPS)
    change = seeding.uniform(keys[:, None, None], counters) < probability
    # Each state takes the value drawn at the last change before it (at 0 where there was none).
    since = np.maximum.accumulate(np.where(change, time[:, None], 0), axis=1)[:, :, _GROUP]
    counters = _VALUES + since * len(FACTORS) + np.arange(len(FACTORS))
    draws = seeding.uniform(keys[:, None, None], counters)

    result = np.empty_like(draws)
    result[..., BANDWIDTH] = _log_uniform(draws[..., BANDWIDTH], scenario.bandwidth_bytes_per_s)
    result[..., OVERHEAD] = _log_uniform(draws[..., OVERHEAD], scenario.message_overhead_s)
    result[..., DELAY] = _log_uniform(draws[..., DELAY], scenario.completion_delay_s)
    result[..., HOST] = _log_uniform(draws[..., HOST], scenario.host_overhead_s)
    levels = np.asarray(scenario.congestion_levels)
    result[..., CONGESTION] = levels[(draws[..., CONGESTION] * len(levels)).astype(np.int64)]
    # One draw decides whether there is a straggler and, stretched to [0, 1), how late it is.
    chance = scenario.straggler_probability
    late = np.where(draws[..., SKEW] < chance, draws[..., SKEW] / max(chance, 1e-300), 0.0)
    result[..., SKEW] = -scenario.mean_worker_delay_s * np.log1p(-late)
    slow = np.where(draws[..., SKEW] < chance, draws[..., SLOWDOWN], 0.0)
    result[..., SLOWDOWN] = _log_uniform(slow, (1.0, scenario.largest_slowdown))
    return result


def _log_uniform(draws: NDArray[np.float64], bounds: tuple[float, float]) -> NDArray[np.float64]:
    low, high = bounds
    if low == high:
        return np.full_like(draws, low)
    return low * np.power(high / low, draws)


def noise(keys: NDArray[np.uint64], states: int, channels: int) -> NDArray[np.float64]:
    """Standard normal numbers for the measurements of new episodes.

    Returns:
        float64, (episodes, states, channels).
    """
    pairs = (channels + 1) // 2
    counters = np.arange(states * pairs).reshape(states, pairs) * 2 + _NOISE
    radius = np.sqrt(-2.0 * np.log1p(-seeding.uniform(keys[:, None, None], counters)))
    angle = 2.0 * np.pi * seeding.uniform(keys[:, None, None], counters + 1)
    # Box and Muller: each pair of uniform numbers gives two independent normal ones.
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=2)
    return normal[..., :channels]


def draw_models(keys: NDArray[np.uint64], models: int) -> NDArray[np.int64]:
    """Which of `models` workloads each new episode trains, (episodes,)."""
    return (seeding.uniform(keys, _MODEL) * models).astype(np.int64)


def replay(
    keys: NDArray[np.uint64],
    recorded: NDArray[np.float64],
    states: int,
) -> NDArray[np.float64]:
    """Factors of episodes that replay a recorded trace.

    An episode reads one row per step, from a start drawn from its key; a trace that is shorter
    than an episode is read from its beginning and its last row lasts. What the trace does not say
    is drawn once per episode as in ``steady``.

    Args:
        keys: Episode keys, (episodes,).
        recorded: Bandwidth in bytes/s and latency in s, (rows, 2).
        states: Number of states per episode.

    Returns:
        float64, (episodes, states, factors).
    """
    result = drift(keys, SCENARIOS["steady"], states)
    starts = max(len(recorded) - states + 1, 1)
    first = (seeding.uniform(keys, _OFFSET) * starts).astype(np.int64)
    rows = np.minimum(first[:, None] + np.arange(states), len(recorded) - 1)
    result[..., BANDWIDTH] = recorded[rows, 0]
    result[..., DELAY] = recorded[rows, 1]
    return result


class Networks:
    """Turns factors into rows of the simulator's network matrix."""

    def __init__(self, architecture: str, workers: int) -> None:
        """Keeps what does not drift.

        Raises:
            InvalidInput: Fewer than two workers with all-reduce: there is nothing to send.
        """
        if architecture == "allreduce" and workers < 2:
            raise InvalidInput(f"workers must be at least 2 with allreduce, got {workers}")
        unit = 1e9
        network = (
            Network.parameter_server(unit, workers, workers)
            if architecture == "ps"
            else Network.ring_allreduce(unit, workers)
        )
        self._blank = network.matrix(1)
        # Both constructors' times per byte are inversely proportional to the bandwidth.
        self._bytes_per_byte = float(np.asarray(network.upload_s_per_byte)) * unit
        self._download = architecture == "ps"

    def per_byte_s(self, factors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Time per byte and direction without congestion, s/byte, shape of the leading axes."""
        return self._bytes_per_byte / factors[..., BANDWIDTH]

    def bandwidth_delay_bytes(self, factors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Bytes that may be outstanding before congestion sets in."""
        product = factors[..., BANDWIDTH] * factors[..., DELAY]
        return np.maximum(product, SMALLEST_BANDWIDTH_DELAY_BYTES)

    def matrix(self, factors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows of the network matrix, (configs, fields), from factors, (configs, factors)."""
        rows = np.repeat(self._blank, len(factors), axis=0)
        per_byte_s = self.per_byte_s(factors)
        rows[:, column("upload_overhead_s")] = factors[:, OVERHEAD]
        rows[:, column("upload_s_per_byte")] = per_byte_s
        if self._download:
            rows[:, column("download_overhead_s")] = factors[:, OVERHEAD]
            rows[:, column("download_s_per_byte")] = per_byte_s
        rows[:, column("completion_delay_s")] = factors[:, DELAY]
        rows[:, column("congestion")] = factors[:, CONGESTION]
        rows[:, column("bandwidth_delay_bytes")] = self.bandwidth_delay_bytes(factors)
        rows[:, column("worker_delay_s")] = factors[:, SKEW]
        rows[:, column("worker_slowdown")] = factors[:, SLOWDOWN]
        rows[:, column("host_overhead_s")] = factors[:, HOST]
        return rows
