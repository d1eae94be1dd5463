"""What goes into and comes out of communication tuning: arguments, features, public state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.communication import ARCHITECTURES, LayerTimes
from dtgym.simulator.communication_mechanisms import (
    DEFAULT_CREDIT_BYTES,
    DEFAULT_PARTITION_BYTES,
    MECHANISMS,
)
from dtgym.simulator.errors import InvalidInput, above, at_least, one_of

PARTITION_GRID_BYTES = tuple(DEFAULT_PARTITION_BYTES * 2.0**k for k in range(-2, 7))
CREDIT_GRID_BYTES = tuple(DEFAULT_CREDIT_BYTES * 2.0**k for k in range(-4, 5))
"""1 to 256 MB on both axes. Holds the default, BytePS's 4 MB, PyTorch's 25 MB, the release's tuning
ranges (partition 8 to 128 MB; credit 4 to 64 MB with a parameter server and 16 to 256 MB with
all-reduce), and a window below the smallest bandwidth-delay product."""

ACTION_MODES = ("grid", "delta")
ITERATIONS_UNTIL_PARTITION_APPLIES = 10
"""All-reduce: a new partition takes effect so many iterations later (release, common/tuner.py)."""
DELTA_MOVES = tuple((p, c) for p in (-1, 0, 1) for c in (-1, 0, 1))
"""Moves of `action_mode="delta"`: steps on the partition and on the credit axis of the grid."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Arguments of the environment: plain data, checked once.

    Attributes:
        model: A workload's name (see `dtgym.simulator.communication_workloads`), a list of names
            of which each episode draws one, or ``random``: a list of all of them.
        architecture: ``allreduce`` (one channel) or ``ps`` (push and pull on a duplex link).
        scenario: What drifts, a key of `dtgym.envs.communication_tuning.generator.SCENARIOS`, or
            ``trace``: replay of `trace_file`.
        trace_file: CSV with the columns time_s, bandwidth_bytes_per_s and latency_s.
        horizon: Steps in an episode.
        iterations_per_step: Training iterations K in a step.
        batch_size: Samples per worker and iteration; scales compute times.
        workers: Workers n; a ring all-reduce moves 2 (n - 1) / n times the bytes.
        partition_grid_bytes: Largest piece, bytes, ascending.
        credit_grid_bytes: Window of unfinished bytes, bytes, ascending.
        action_mode: ``grid``: an action names a cell. ``delta``: an action is one of
            `DELTA_MOVES`.
        mechanism: A key of `dtgym.simulator.communication_mechanisms.MECHANISMS`. The action
            tunes ``bytescheduler`` and ``byteps``; the others (``fifo``, ``fifo_barrier``, ``p3``,
            ``tictac``, ``ddp_buckets``) run as they are, whatever the action: baselines on the
            same drift.
        restart_s: Parameter server: time that a change of the partition costs, s (keys are laid
            out anew, which takes a restart; the release forbids it while training).
        measurement_noise: Standard deviation of the logarithm of one iteration's measured time.
    """

    model: str | tuple[str, ...] = "vgg16"
    architecture: str = "allreduce"
    scenario: str = "mixed"
    trace_file: str | None = None
    horizon: int = 100
    iterations_per_step: int = 10
    batch_size: int = 32
    workers: int = 8
    partition_grid_bytes: tuple[float, ...] = PARTITION_GRID_BYTES
    credit_grid_bytes: tuple[float, ...] = CREDIT_GRID_BYTES
    action_mode: str = "grid"
    mechanism: str = "bytescheduler"
    restart_s: float = 30.0
    measurement_noise: float = 0.05

    def __post_init__(self) -> None:
        if not isinstance(self.model, str):
            object.__setattr__(self, "model", tuple(self.model))
        one_of("architecture", self.architecture, ARCHITECTURES)
        one_of("action_mode", self.action_mode, ACTION_MODES)
        one_of("mechanism", self.mechanism, tuple(MECHANISMS))
        for name in ("horizon", "iterations_per_step", "batch_size", "workers"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise InvalidInput(f"{name} must be a whole number of at least 1, got {value!r}")
        for name in ("partition_grid_bytes", "credit_grid_bytes"):
            grid = above(name, getattr(self, name), 0, "bytes")
            if grid.ndim != 1 or len(grid) < 1 or (np.diff(grid) <= 0).any():
                raise InvalidInput(f"{name} must hold ascending sizes in bytes")
            object.__setattr__(self, name, tuple(float(size) for size in grid))
        at_least("restart_s", self.restart_s, 0, "s")
        if at_least("measurement_noise", self.measurement_noise, 0) > 1:
            raise InvalidInput(f"measurement_noise must be at most 1, got {self.measurement_noise}")
        if (self.scenario == "trace") != (self.trace_file is not None):
            raise InvalidInput("trace_file and scenario='trace' go together: give both or neither")

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Parameters:
        """Parameters from keyword arguments.

        Raises:
            InvalidInput: An unknown name, or a value out of range.
        """
        known = tuple(field.name for field in fields(cls))
        for name in arguments:
            if name not in known:
                raise InvalidInput(f"unknown argument {name}; known: {', '.join(known)}")
        return cls(**arguments)

    @property
    def cells(self) -> int:
        """Cells of the grid: index = partition index x number of credits + credit index."""
        return len(self.partition_grid_bytes) * len(self.credit_grid_bytes)

    @property
    def default_cell(self) -> tuple[int, int]:
        """Partition and credit index nearest (in ratio) to the release's default."""
        return (
            _nearest(self.partition_grid_bytes, DEFAULT_PARTITION_BYTES),
            _nearest(self.credit_grid_bytes, DEFAULT_CREDIT_BYTES),
        )


def _nearest(grid: tuple[float, ...], size: float) -> int:
    return int(np.abs(np.log(np.asarray(grid) / size)).argmin())


@dataclass(frozen=True, slots=True)
class Feature:
    """One entry of the observation.

    Attributes:
        name: What it is.
        low: Smallest value; smaller ones are clipped.
        high: Largest value; larger ones are clipped.
        meaning: How it is made, with the units of what goes in.
    """

    name: str
    low: float
    high: float
    meaning: str


FEATURES = (
    Feature("log_time", -2, 5, "log of the last step's mean iteration time over nominal compute"),
    Feature("log_time_average", -2, 5, "the same for the exponential average (weight 0.3)"),
    Feature("log_time_change", -5, 5, "log of the last over the step before it"),
    Feature("exposed_share", -1, 1, "share of the iteration that is not compute"),
    Feature("busy_share", 0, 2, "time that the pieces occupy the channel over iteration time"),
    Feature("log_throughput", -4, 3, "log10 of a piece's throughput in GB/s"),
    Feature("log_latency", -4, 4, "log10 of a piece's time from hand-down to completion in ms"),
    Feature("log_compute", -1, 3, "log of the slowest worker's compute time over nominal"),
    Feature("worker_skew", 0, 3, "delay of the slowest worker over nominal compute time"),
    Feature("partition", 0, 1, "place of the chosen partition on its axis of the grid"),
    Feature("credit", 0, 1, "place of the chosen credit on its axis of the grid"),
    Feature("pending", 0, 1, "share of iterations that a new partition still has to wait"),
    Feature("time_left", 0, 1, "share of the horizon that is left"),
    Feature("log_gradient_bytes", -3, 4, "log10 of all gradients in units of 100 MB"),
    Feature("log_tensors", -3, 3, "log10 of the number of gradients in units of 100"),
    Feature("largest_share", 0, 1, "largest gradient's share of all bytes"),
    Feature("first_quarter_share", 0, 1, "share of the bytes in the first quarter of the layers"),
    Feature("log_nominal_compute", -4, 4, "log10 of nominal compute time in units of 100 ms"),
    Feature("parameter_server", 0, 1, "1 for a parameter server, 0 for all-reduce"),
)
"""The observation, entry by entry. All of it was measured in past steps or is known beforehand."""

MEASUREMENTS = (
    "iteration_time_s",
    "busy_share",
    "throughput_bytes_per_s",
    "latency_s",
    "compute_time_s",
    "worker_skew_s",
)
"""What a step measures, each with noise of its own."""


@dataclass(frozen=True, slots=True)
class TuningState:
    """What a deployed tuner can know, in SI units: measurements of the past, never of the future.

    Attributes:
        model: Name of the workload.
        architecture: ``ps`` or ``allreduce``.
        layers: The model's profile: compute times and gradient sizes.
        batch_size: Samples per worker and iteration.
        workers: Number of workers.
        step: Steps taken in this episode.
        horizon: Steps in an episode.
        iterations_per_step: Training iterations in a step.
        action_mode: ``grid`` or ``delta``.
        partition_grid_bytes: Partition axis of the grid, (partitions,).
        credit_grid_bytes: Credit axis of the grid, (credits,).
        partition_bytes: Chosen partition.
        credit_bytes: Chosen credit, in force.
        effective_partition_bytes: Partition in force: all-reduce applies a new one later.
        default_action: The release's default as a cell of the grid.
        restart_s: What a change of the partition costs with a parameter server, s.
        last_iteration_time_s: Measured mean iteration time of the last step, s.
        mean_iteration_time_s: Mean of that over the episode so far, s.
        mean_throughput_samples_per_s: Samples of all workers over `mean_iteration_time_s`.
        last_busy_share: See `FEATURES`.
        last_throughput_bytes_per_s: Measured throughput of a piece, bytes/s.
        last_latency_s: Measured time of a piece from hand-down to completion, s.
        last_compute_time_s: Measured compute time of the slowest worker, s.
        last_worker_skew_s: Measured delay of the slowest worker, s.
    """

    model: str
    architecture: str
    layers: LayerTimes
    batch_size: int
    workers: int
    step: int
    horizon: int
    iterations_per_step: int
    action_mode: str
    partition_grid_bytes: NDArray[np.float64]
    credit_grid_bytes: NDArray[np.float64]
    partition_bytes: float
    credit_bytes: float
    effective_partition_bytes: float
    default_action: int
    restart_s: float
    last_iteration_time_s: float
    mean_iteration_time_s: float
    mean_throughput_samples_per_s: float
    last_busy_share: float
    last_throughput_bytes_per_s: float
    last_latency_s: float
    last_compute_time_s: float
    last_worker_skew_s: float
