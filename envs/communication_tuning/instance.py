"""The whole problem of one episode, future included: for oracles and regret, never for agents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dtgym.envs.communication_tuning.generator import Networks
from dtgym.envs.communication_tuning.types import ITERATIONS_UNTIL_PARTITION_APPLIES, Parameters
from dtgym.simulator.communication import LayerTables, LayerTimes, batch_iteration_time_s
from dtgym.simulator.communication_mechanisms import (
    DEFAULT_CREDIT_BYTES,
    DEFAULT_PARTITION_BYTES,
    MECHANISMS,
)
from dtgym.simulator.errors import InvalidInput


@dataclass(frozen=True)
class Plan:
    """A best plan for an episode.

    Attributes:
        cells: Cell of the grid to choose at each step, int64, (steps,).
        objective: Sum of rewards that it earns.
    """

    cells: NDArray[np.int64]
    objective: float


@dataclass(frozen=True, eq=False)
class TuningInstance:
    """One episode: the model and the true state of the network and the workers in every step.

    Attributes:
        parameters: Arguments of the environment.
        model: Name of the workload of this episode.
        layers: Its profile.
        factors: True state of each step, (steps, factors); see `generator.FACTORS`.
    """

    parameters: Parameters
    model: str
    layers: LayerTimes
    factors: NDArray[np.float64]

    def iteration_time_table_s(self) -> NDArray[np.float64]:
        """True iteration time of every cell of the grid in the state of every step.

        Returns:
            Seconds, float64, (steps, cells); cell = partition index x credits + credit index,
            which in ``grid`` mode is the action.
        """
        partition = np.repeat(
            self.parameters.partition_grid_bytes, len(self.parameters.credit_grid_bytes)
        )
        credit = np.tile(
            self.parameters.credit_grid_bytes, len(self.parameters.partition_grid_bytes)
        )
        return self._table(partition, credit)

    def default_iteration_time_s(self) -> NDArray[np.float64]:
        """True iteration time of the release's default in the state of every step, (steps,)."""
        sizes = np.array([DEFAULT_PARTITION_BYTES]), np.array([DEFAULT_CREDIT_BYTES])
        return self._table(*sizes)[:, 0]

    def _table(
        self, partition: NDArray[np.float64], credit: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        states, place = np.unique(self.factors, axis=0, return_inverse=True)
        networks = Networks(self.parameters.architecture, self.parameters.workers)
        times = batch_iteration_time_s(
            LayerTables.stack([self.layers]),
            0,
            np.repeat(networks.matrix(states), len(partition), axis=0),
            np.tile(partition, len(states)),
            np.tile(credit, len(states)),
            flags=MECHANISMS["bytescheduler"].flags(self.parameters.architecture),
        )
        return times.reshape(len(states), len(partition))[place.reshape(-1)]

    def static_plans(self) -> NDArray[np.float64]:
        """Sum of rewards of choosing one and the same cell in every step, (cells,).

        The first step pays for leaving the default configuration.
        """
        durations_s = self._durations_s()
        steps, partitions, _, credits = durations_s.shape
        start = self.parameters.default_cell[0]
        kept = np.arange(partitions)
        total = -np.log(durations_s[0, start])
        total = total - np.log(durations_s[1:, kept, kept]).sum(axis=0)
        total = total + steps * np.log(self.parameters.iterations_per_step)
        return (total + np.log(self.default_iteration_time_s()).sum()).reshape(partitions * credits)

    def best_static_plan(self) -> Plan:
        """The best single cell in hindsight, with what it earns."""
        totals = self.static_plans()
        best = int(totals.argmax())
        return Plan(np.full(len(self.factors), best), float(totals[best]))

    def best_plan(self) -> Plan:
        """The best sequence of cells, with the true cost of every change of the partition.

        An exact dynamic programme over the partition in force: the drift does not depend on the
        actions, and a change of credit is free.

        Raises:
            InvalidInput: All-reduce with steps shorter than the delay of a new partition.
        """
        durations_s = self._durations_s()
        steps, partitions, _, credits = durations_s.shape
        credit = durations_s.argmin(axis=3)
        cost = np.log(durations_s.min(axis=3))
        value = np.zeros(partitions)
        following = np.zeros((steps, partitions), dtype=np.int64)
        for step in range(steps - 1, -1, -1):
            to_go = cost[step] + value[None, :]
            following[step] = to_go.argmin(axis=1)
            value = to_go.min(axis=1)
        held = self.parameters.default_cell[0]
        start = held
        cells = np.empty(steps, dtype=np.int64)
        for step in range(steps):
            chosen = following[step, held]
            cells[step] = chosen * credits + credit[step, held, chosen]
            held = chosen
        reference = steps * np.log(self.parameters.iterations_per_step)
        reference += np.log(self.default_iteration_time_s()).sum()
        return Plan(cells, float(reference - value[start]))

    def _durations_s(self) -> NDArray[np.float64]:
        """Duration of each step by (step, partition in force, chosen partition, credit), s."""
        iterations = self.parameters.iterations_per_step
        partitions = len(self.parameters.partition_grid_bytes)
        table = self.iteration_time_table_s().reshape(len(self.factors), partitions, -1)
        before, after = table[:, :, None, :], table[:, None, :, :]
        change = ~np.eye(partitions, dtype=np.bool_)[None, :, :, None]
        if self.parameters.architecture == "ps":
            return iterations * after + np.where(change, self.parameters.restart_s, 0.0)
        if iterations < ITERATIONS_UNTIL_PARTITION_APPLIES:
            raise InvalidInput(
                f"iterations_per_step must be at least {ITERATIONS_UNTIL_PARTITION_APPLIES} for "
                f"planning with allreduce, got {iterations}"
            )
        waits = np.where(change, ITERATIONS_UNTIL_PARTITION_APPLIES, 0)
        return waits * before + (iterations - waits) * after
