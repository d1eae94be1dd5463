"""The dynamics of communication tuning: a batch of training jobs, one (partition, credit) each.

One step: choose a cell, run K iterations under it in the step's state of the network, measure.
Every time comes from the simulator's kernel, in one call for all environments of the batch. Where
neither the state nor the configuration has changed, the time of the last step still holds and is
not computed again.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from dtgym.envs.communication_tuning import generator, reward
from dtgym.envs.communication_tuning.instance import TuningInstance
from dtgym.envs.communication_tuning.profiles import Profiles
from dtgym.envs.communication_tuning.trace import read_trace
from dtgym.envs.communication_tuning.types import (
    DELTA_MOVES,
    FEATURES,
    ITERATIONS_UNTIL_PARTITION_APPLIES,
    MEASUREMENTS,
    Parameters,
    TuningState,
)
from dtgym.envs.dynamics import Dynamics, Transition
from dtgym.simulator.communication import batch_iteration_time_s
from dtgym.simulator.communication_mechanisms import (
    DEFAULT_CREDIT_BYTES,
    DEFAULT_PARTITION_BYTES,
    MECHANISMS,
)
from dtgym.simulator.kernels.communication_window import CONGESTION_CAP

AVERAGE_WEIGHT = 0.3
"""Weight of the newest step in the exponential average of iteration time."""

_LOW = np.array([feature.low for feature in FEATURES], dtype=np.float32)
_HIGH = np.array([feature.high for feature in FEATURES], dtype=np.float32)
_TIME, _BUSY, _THROUGHPUT, _LATENCY, _COMPUTE, _SKEW = range(len(MEASUREMENTS))
_UNKNOWN = -1


class TuningDynamics(Dynamics):
    """A batch of training jobs whose communication is tuned; see the environment for the rules."""

    def __init__(self, num_envs: int, parameters: Parameters) -> None:
        """Lays out the arrays of the batch.

        Raises:
            InvalidInput: Unknown model or scenario, or a trace that cannot be read.
        """
        self.num_envs = num_envs
        self.parameters = parameters
        self.scenario = generator.scenario_named(parameters.scenario)
        self.networks = generator.Networks(parameters.architecture, parameters.workers)
        self.profiles = Profiles.load(parameters)
        self.recorded = read_trace(parameters.trace_file) if parameters.trace_file else None
        self.partition_grid = np.asarray(parameters.partition_grid_bytes)
        self.credit_grid = np.asarray(parameters.credit_grid_bytes)
        self.observation_space = spaces.Box(_LOW, _HIGH, dtype=np.float32)
        delta = parameters.action_mode == "delta"
        self.action_space = spaces.Discrete(len(DELTA_MOVES) if delta else parameters.cells)

        states = parameters.horizon + 1
        self.factors = np.ones((num_envs, states, len(generator.FACTORS)))
        self.changed = np.zeros((num_envs, states), dtype=np.bool_)
        self.noise = np.zeros((num_envs, states, len(MEASUREMENTS)))
        self.model = np.zeros(num_envs, dtype=np.int64)
        self.time = np.zeros(num_envs, dtype=np.int64)
        # Cell of the grid that was chosen, the partition in force, and how many iterations it
        # stays in force although another one was chosen.
        self.partition = np.zeros(num_envs, dtype=np.int64)
        self.credit = np.zeros(num_envs, dtype=np.int64)
        self.effective = np.zeros(num_envs, dtype=np.int64)
        self.waiting = np.zeros(num_envs, dtype=np.int64)
        # True times in the present state: the default's, and that of one cell.
        self.default_time = np.ones(num_envs)
        self.known_cell = np.full(num_envs, _UNKNOWN)
        self.known_time = np.ones(num_envs)
        # What the job has measured: the last step, the step before, averages.
        self.measured = np.ones((num_envs, len(MEASUREMENTS)))
        self.time_before = np.ones(num_envs)
        self.average = np.ones(num_envs)
        self.measured_sum = np.ones(num_envs)
        # True times and cells of the episode so far, for pictures.
        self.history = np.zeros((num_envs, states, 4))

    def begin(self, which: NDArray[np.int64], episode_keys: NDArray[np.uint64]) -> None:
        """Draws the drift of new episodes and runs one step under the default configuration."""
        states = self.parameters.horizon + 1
        if self.recorded is None:
            factors = generator.drift(episode_keys, self.scenario, states)
        else:
            factors = generator.replay(episode_keys, self.recorded, states)
        self.factors[which] = factors
        self.changed[which, 0] = True
        self.changed[which, 1:] = (factors[:, 1:] != factors[:, :-1]).any(axis=2)
        self.noise[which] = generator.noise(episode_keys, states, len(MEASUREMENTS))
        self.model[which] = generator.draw_models(episode_keys, len(self.profiles.names))
        self.time[which] = 0
        self.partition[which], self.credit[which] = self.parameters.default_cell
        self.effective[which] = self.partition[which]
        self.waiting[which] = 0
        time_s = self._run(which)
        self._measure(which, time_s)
        self.time_before[which] = self.measured[which, _TIME]
        self.average[which] = self.measured[which, _TIME]
        self.measured_sum[which] = self.measured[which, _TIME]

    def advance(self, actions: NDArray[np.int64], legal: NDArray[np.bool_]) -> Transition:
        """Chooses cells (a forbidden action keeps the present one) and runs K iterations."""
        if (self.time >= self.parameters.horizon).any():
            raise gym.error.ResetNeeded("the episode is over: call reset")
        iterations = self.parameters.iterations_per_step
        self.time += 1
        moved = self._choose(actions, legal)
        lost_s = np.zeros(self.num_envs)
        if self.parameters.architecture == "ps":
            self.effective[:] = self.partition
            lost_s[moved] = self.parameters.restart_s
        else:
            self.waiting[moved] = ITERATIONS_UNTIL_PARTITION_APPLIES
            self.waiting[self.partition == self.effective] = 0
        which = np.arange(self.num_envs)
        time_s = self._run(which)
        self.time_before[:] = self.measured[:, _TIME]
        self._measure(which, time_s)
        newest = self.measured[:, _TIME]
        self.average += AVERAGE_WEIGHT * (newest - self.average)
        self.measured_sum += newest

        credit_bytes = self.credit_grid[self.credit]
        in_flight = np.minimum(credit_bytes / self.profiles.total_bytes[self.model], 1.0)
        vector = reward.vector_reward(time_s, self.default_time, lost_s, iterations, in_flight)
        terminated = self.time >= self.parameters.horizon
        infos = {
            "iteration_time_s": time_s,
            "default_iteration_time_s": self.default_time.copy(),
            "measured_iteration_time_s": newest.copy(),
            "step_time_s": iterations * time_s + lost_s,
            "vector_reward": vector,
        }
        return Transition(
            reward.scalar_reward(vector), terminated, np.zeros_like(terminated), infos
        )

    def _choose(self, actions: NDArray[np.int64], legal: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Moves to the chosen cells; returns where the partition changed."""
        if self.parameters.action_mode == "delta":
            moves = np.asarray(DELTA_MOVES)[actions]
            partition, credit = self.partition + moves[:, 0], self.credit + moves[:, 1]
        else:
            partition, credit = np.divmod(actions, len(self.credit_grid))
        before = self.partition.copy()
        self.partition = np.where(legal, partition, before)
        self.credit = np.where(legal, credit, self.credit)
        if not MECHANISMS[self.parameters.mechanism].tunable:
            return np.zeros(self.num_envs, dtype=np.bool_)
        return self.partition != before

    def _run(self, which: NDArray[np.int64]) -> NDArray[np.float64]:
        """True mean iteration time of one step in the present states, (which,)."""
        iterations = self.parameters.iterations_per_step
        changed = self.changed[which, self.time[which]]
        self.known_cell[which[changed]] = _UNKNOWN
        credits = len(self.credit_grid)
        old = np.minimum(self.waiting[which], iterations)
        old_cell = self.effective[which] * credits + self.credit[which]
        self.waiting[which] -= old
        arrived = self.waiting[which] == 0
        self.effective[which] = np.where(arrived, self.partition[which], self.effective[which])
        # With nothing to wait for, the first part of the step is empty and costs no evaluation.
        new_cell = self.effective[which] * credits + self.credit[which]
        needs_old = (old > 0) & (old_cell != self.known_cell[which])
        needs_new = (old < iterations) & (new_cell != self.known_cell[which])
        parts = (np.flatnonzero(changed), np.flatnonzero(needs_old), np.flatnonzero(needs_new))
        times = self._evaluate(which, parts, old_cell, new_cell)
        self.default_time[which[parts[0]]] = times[0]
        old_time = self.known_time[which]
        old_time[parts[1]] = times[1]
        new_time = self.known_time[which]
        new_time[parts[2]] = times[2]
        ends_new = old < iterations
        self.known_cell[which] = np.where(ends_new, new_cell, old_cell)
        self.known_time[which] = np.where(ends_new, new_time, old_time)
        share = old / iterations
        # Not one formula: 0 x old + 1 x new is new only where old is finite and known.
        time_s = np.where(ends_new, new_time, old_time)
        both = ends_new & (old > 0)
        time_s[both] = share[both] * old_time[both] + (1 - share[both]) * new_time[both]
        self.history[which, self.time[which]] = np.stack(
            [
                time_s,
                self.default_time[which],
                self.partition_grid[self.effective[which]],
                self.credit_grid[self.credit[which]],
            ],
            axis=1,
        )
        return time_s

    def _evaluate(
        self,
        which: NDArray[np.int64],
        parts: tuple[NDArray[np.int64], ...],
        old_cell: NDArray[np.int64],
        new_cell: NDArray[np.int64],
    ) -> list[NDArray[np.float64]]:
        """One kernel call for three lists of places in `which`: default, old cell, new cell."""
        defaults, olds, news = parts
        places = np.concatenate(parts)
        if len(places) == 0:
            return [np.empty(0)] * 3
        envs = which[places]
        cells = np.concatenate([old_cell[olds], new_cell[news]])
        partition, credit = self.sizes(cells)
        runs = self.parameters.mechanism
        tunes = np.full(len(defaults), self.profiles.default_flags)
        times = batch_iteration_time_s(
            self.profiles.tables,
            np.concatenate(
                [
                    self.model[which[defaults]],
                    self.model[which[np.concatenate([olds, news])]] + len(self.profiles.names),
                ]
            ),
            self.networks.matrix(self.factors[envs, self.time[envs]]),
            np.concatenate([np.full(len(defaults), DEFAULT_PARTITION_BYTES), partition]),
            np.concatenate([np.full(len(defaults), DEFAULT_CREDIT_BYTES), credit]),
            flags=np.concatenate(
                [tunes, np.full(len(cells), MECHANISMS[runs].flags(self.parameters.architecture))]
            ),
        )
        return np.split(times, [len(defaults), len(defaults) + len(olds)])

    def sizes(self, cells: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Partition and credit in bytes that run under each cell."""
        mechanism = MECHANISMS[self.parameters.mechanism]
        if mechanism.partition_bytes is not None and mechanism.credit_bytes is not None:
            fixed = np.ones(len(cells))
            return fixed * mechanism.partition_bytes, fixed * mechanism.credit_bytes
        partition, credit = np.divmod(cells, len(self.credit_grid))
        return self.partition_grid[partition], self.credit_grid[credit]

    def _measure(self, which: NDArray[np.int64], time_s: NDArray[np.float64]) -> None:
        """What the job sees of the step it has just run: noisy means over its iterations.

        Throughput, latency and busy share are those of pieces of the largest gradient while the
        credit window is full.
        """
        factors = self.factors[which, self.time[which]]
        model = self.model[which]
        cells = self.effective[which] * len(self.credit_grid) + self.credit[which]
        partition, credit = self.sizes(cells)
        largest = self.profiles.largest_bytes[model]
        piece = largest / np.maximum(np.ceil(largest / partition), 1)
        total = self.profiles.total_bytes[model]
        in_window = np.minimum(total, np.maximum(np.ceil(credit / piece), 1) * piece)
        product = self.networks.bandwidth_delay_bytes(factors)
        excess = np.maximum(in_window - product, 0) / product
        stretch = np.minimum(1 + factors[:, generator.CONGESTION] * excess, CONGESTION_CAP)
        per_byte_s = self.networks.per_byte_s(factors) * stretch
        wire_s = factors[:, generator.OVERHEAD] + piece * per_byte_s
        directions = 2 if self.parameters.architecture == "ps" else 1
        pieces = self.profiles.pieces[model, self.effective[which]]
        values = np.empty((len(which), len(MEASUREMENTS)))
        values[:, _TIME] = time_s
        occupied_s = pieces * factors[:, generator.OVERHEAD] + total * per_byte_s
        values[:, _BUSY] = np.minimum(occupied_s / time_s, 1)
        values[:, _THROUGHPUT] = piece / wire_s
        values[:, _LATENCY] = (
            factors[:, generator.HOST] + directions * wire_s + factors[:, generator.DELAY]
        )
        slowdown = factors[:, generator.SLOWDOWN]
        values[:, _COMPUTE] = self.profiles.compute_s[model] * slowdown
        values[:, _SKEW] = factors[:, generator.SKEW]
        deviation = self.parameters.measurement_noise / np.sqrt(self.parameters.iterations_per_step)
        self.measured[which] = values * np.exp(deviation * self.noise[which, self.time[which]])

    def observe(self, which: NDArray[np.int64]) -> NDArray[np.float32]:
        """Features of `FEATURES`, clipped to their ranges: measurements and what is known."""
        model = self.model[which]
        measured = self.measured[which]
        nominal = self.profiles.compute_s[model]
        horizon = self.parameters.horizon
        features = np.empty((len(which), len(FEATURES)))
        features[:, 0] = np.log(measured[:, _TIME] / nominal)
        features[:, 1] = np.log(self.average[which] / nominal)
        features[:, 2] = np.log(measured[:, _TIME] / self.time_before[which])
        features[:, 3] = 1 - measured[:, _COMPUTE] / measured[:, _TIME]
        features[:, 4] = measured[:, _BUSY]
        features[:, 5] = np.log10(measured[:, _THROUGHPUT] / 1e9)
        features[:, 6] = np.log10(np.maximum(measured[:, _LATENCY], 1e-9) / 1e-3)
        features[:, 7] = np.log(measured[:, _COMPUTE] / nominal)
        features[:, 8] = measured[:, _SKEW] / nominal
        features[:, 9] = self.partition[which] / max(len(self.partition_grid) - 1, 1)
        features[:, 10] = self.credit[which] / max(len(self.credit_grid) - 1, 1)
        features[:, 11] = self.waiting[which] / ITERATIONS_UNTIL_PARTITION_APPLIES
        features[:, 12] = (horizon - self.time[which]) / horizon
        features[:, 13:18] = self.profiles.features[model]
        features[:, 18] = self.parameters.architecture == "ps"
        return np.clip(features.astype(np.float32), _LOW, _HIGH)

    def action_masks(self) -> NDArray[np.bool_]:
        """Every cell of the grid; in delta mode the moves that stay on it."""
        if self.parameters.action_mode == "grid":
            return np.ones((self.num_envs, self.parameters.cells), dtype=np.bool_)
        moves = np.asarray(DELTA_MOVES)
        partition = self.partition[:, None] + moves[:, 0]
        credit = self.credit[:, None] + moves[:, 1]
        return (
            (partition >= 0)
            & (partition < len(self.partition_grid))
            & (credit >= 0)
            & (credit < len(self.credit_grid))
        )

    def infos(self) -> dict[str, NDArray[Any]]:
        """The chosen configuration and the partition in force, bytes."""
        return {
            "partition_bytes": self.partition_grid[self.partition],
            "credit_bytes": self.credit_grid[self.credit],
            "effective_partition_bytes": self.partition_grid[self.effective],
        }

    def state(self, index: int) -> TuningState:
        """What a deployed tuner can know."""
        parameters = self.parameters
        measured = self.measured[index]
        mean_time_s = float(self.measured_sum[index] / (self.time[index] + 1))
        partition, credit = parameters.default_cell
        return TuningState(
            model=self.profiles.names[self.model[index]],
            architecture=parameters.architecture,
            layers=self.profiles.layers[self.model[index]],
            batch_size=parameters.batch_size,
            workers=parameters.workers,
            step=int(self.time[index]),
            horizon=parameters.horizon,
            iterations_per_step=parameters.iterations_per_step,
            action_mode=parameters.action_mode,
            partition_grid_bytes=self.partition_grid.copy(),
            credit_grid_bytes=self.credit_grid.copy(),
            partition_bytes=float(self.partition_grid[self.partition[index]]),
            credit_bytes=float(self.credit_grid[self.credit[index]]),
            effective_partition_bytes=float(self.partition_grid[self.effective[index]]),
            default_action=partition * len(self.credit_grid) + credit,
            restart_s=parameters.restart_s if parameters.architecture == "ps" else 0.0,
            last_iteration_time_s=float(measured[_TIME]),
            mean_iteration_time_s=mean_time_s,
            mean_throughput_samples_per_s=(
                parameters.batch_size * parameters.workers / mean_time_s
            ),
            last_busy_share=float(measured[_BUSY]),
            last_throughput_bytes_per_s=float(measured[_THROUGHPUT]),
            last_latency_s=float(measured[_LATENCY]),
            last_compute_time_s=float(measured[_COMPUTE]),
            last_worker_skew_s=float(measured[_SKEW]),
        )

    def instance(self, index: int) -> TuningInstance:
        """The whole drift of the episode, for oracles."""
        model = int(self.model[index])
        return TuningInstance(
            parameters=self.parameters,
            model=self.profiles.names[model],
            layers=self.profiles.layers[model],
            factors=self.factors[index, 1:].copy(),
        )

    def render(self, index: int, mode: str) -> NDArray[np.uint8] | str:
        """The present configuration and the episode so far."""
        from dtgym.envs.communication_tuning import render

        return render.text(self, index) if mode == "ansi" else render.picture(self, index)
