"""Forecasts of the load that will arrive: persistence, a moving mean, and an LSTM with quantiles.

Load is what is submitted in bins of ten minutes: jobs, GPUs and, where the table knows them, CPU
cores. Every forecaster has `fit(jobs, seed)` and `predict(history)`, which gives the median and the
0.9 quantile of the next six bins.

Source:
    Bins of ten minutes follow Hu et al., Lucid, ASPLOS 2023; quantiles by the pinball loss
    (Koenker and Bassett 1978). Window, width and horizon are our choice.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.errors import InvalidInput, above
from dtgym.simulator.jobs import JobTable

BIN_S = 600.0
WINDOW = 24
"""Bins that the LSTM looks back."""
HORIZON = 6
"""Bins that are forecast."""
UPPER = 0.9
"""The upper quantile."""
TRAIN, VALIDATION = 0.7, 0.1
"""Shares of the bins, in time, that weights and early stopping see; the rest is for tests."""
WEEK_S = 7 * 86_400.0
_RESIDUALS = 144
"""Bins (a day) from which the simple forecasters take their spread."""


@dataclass(frozen=True, eq=False)
class Loads:
    """Load by bin.

    Attributes:
        values: Jobs, GPUs and, where known, CPU cores submitted in each bin, (bins, targets).
        start_s: Start of the first bin; Unix time where the table has a wall clock.
    """

    values: NDArray[np.float64]
    start_s: float = 0.0


@dataclass(frozen=True, eq=False)
class Forecast:
    """Load of the next bins, each (HORIZON, targets), at least 0.

    Attributes:
        median: Quantile 0.5 (for persistence and the moving mean: their one value).
        upper: Quantile 0.9.
    """

    median: NDArray[np.float64]
    upper: NDArray[np.float64]


class Forecaster(Protocol):
    """What predicts loads."""

    def fit(self, jobs: JobTable, seed: int) -> None:
        """Learns from the first 80 % (in time) of a table."""
        ...

    def predict(self, history: Loads) -> Forecast:
        """Forecasts the bins after the last one of `history`."""
        ...


def bin_loads(jobs: JobTable) -> Loads:
    """Counts what is submitted in each bin, from the first submission to the last.

    Example:
        >>> jobs = JobTable.from_columns(
        ...     submit_s=[0, 10, 1300], duration_s=[1, 1, 1], num_gpus=[1, 2, 4])
        >>> bin_loads(jobs).values.tolist()
        [[2.0, 3.0], [0.0, 0.0], [1.0, 4.0]]
    """
    if len(jobs) == 0:
        raise InvalidInput(f"{jobs.source}: a load needs at least one job")
    clock_s = jobs.submit_s + (jobs.epoch_unix_s or 0.0)
    start_s = float(np.floor(clock_s.min() / BIN_S) * BIN_S)
    weights = [np.ones(len(jobs)), jobs.num_gpus.astype(np.float64)]
    if jobs.cpu_cores is not None:
        weights.append(jobs.cpu_cores)
    return count_loads(clock_s, np.column_stack(weights), start_s, float(clock_s.max()) + BIN_S)


def count_loads(
    clock_s: NDArray[np.float64], weights: NDArray[np.float64], start_s: float, until_s: float
) -> Loads:
    """Sums by bin.

    Args:
        clock_s: Submissions, (jobs,).
        weights: What each adds, (jobs, targets).
        start_s: Start of the first bin.
        until_s: Now; only bins that have ended by then are given.
    """
    bins = max(int((until_s - start_s) // BIN_S), 0)
    place = ((clock_s - start_s) // BIN_S).astype(np.int64)
    values = np.zeros((bins, weights.shape[1]))
    inside = (place >= 0) & (place < bins)
    np.add.at(values, place[inside], weights[inside])
    return Loads(values, start_s)


def _with_spread(median: NDArray[np.float64], residuals: NDArray[np.float64]) -> Forecast:
    """The same value for all bins, and its upper quantile from log residuals (bins, targets)."""
    spread = np.quantile(residuals, UPPER, axis=0) if len(residuals) else np.zeros_like(median)
    upper = np.expm1(np.log1p(median) + np.maximum(spread, 0.0))
    return Forecast(np.tile(median, (HORIZON, 1)), np.tile(upper, (HORIZON, 1)))


@dataclass
class Persistence:
    """The last bin again; the spread is that of the past day's one-bin changes."""

    def fit(self, jobs: JobTable, seed: int) -> None:
        """Nothing to learn."""

    def predict(self, history: Loads) -> Forecast:
        """See the class; without any history, zeros."""
        values = history.values[-_RESIDUALS:]
        if not len(values):
            return _with_spread(np.zeros(history.values.shape[1]), values)
        return _with_spread(values[-1], np.diff(np.log1p(values), axis=0))


@dataclass
class Ewma:
    """Exponentially weighted moving mean; the spread is that of the past day's errors.

    Attributes:
        memory: Weight of the newest bin, in (0, 1].
        of_logs: Averages log(1 + load), which is nearer to the median of bursty loads, instead of
            the loads.
    """

    memory: float = 0.3
    of_logs: bool = True

    def __post_init__(self) -> None:
        """Checks the weight."""
        above("memory", self.memory, 0)
        if self.memory > 1:
            raise InvalidInput(f"memory must be at most 1, got {self.memory:g}")

    def fit(self, jobs: JobTable, seed: int) -> None:
        """Nothing to learn."""

    def predict(self, history: Loads) -> Forecast:
        """See the class; without any history, zeros."""
        # A weight of 0.3 forgets all but 1e-22 in a day.
        values = history.values[-_RESIDUALS:]
        if not len(values):
            return _with_spread(np.zeros(history.values.shape[1]), values)
        averaged = np.log1p(values) if self.of_logs else values
        means = np.empty_like(values)
        means[0] = averaged[0]
        for row in range(1, len(values)):
            means[row] = (1 - self.memory) * means[row - 1] + self.memory * averaged[row]
        means = np.expm1(means) if self.of_logs else means
        return _with_spread(means[-1], np.log1p(values[1:]) - np.log1p(means[:-1]))


def _inputs(loads: Loads, mean: NDArray[np.float64], scale: NDArray[np.float64]) -> Any:
    """Scaled log loads and the sine and cosine of the hour of the week, (bins, targets + 2)."""
    clock = 2 * np.pi * ((loads.start_s + BIN_S * np.arange(len(loads.values))) % WEEK_S) / WEEK_S
    scaled = (np.log1p(loads.values) - mean) / scale
    return np.column_stack((scaled, np.sin(clock), np.cos(clock))).astype(np.float32)


@dataclass
class Lstm:
    """One LSTM layer and a linear head that gives both quantiles of the whole horizon.

    Attributes:
        hidden: Width.
        learning_rate: Of Adam.
        batch: Windows in a step.
        epochs: At most so many passes.
        patience: Passes without a better validation loss before it stops; the best weights stay.
        mean, scale: Scaler of log loads, of the training bins only, (targets,).
        validation_loss: Pinball loss of the weights kept, on scaled log loads.
    """

    hidden: int = 64
    learning_rate: float = 1e-3
    batch: int = 64
    epochs: int = 40
    patience: int = 5
    mean: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0), init=False)
    scale: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0), init=False)
    validation_loss: float = field(default=np.inf, init=False)
    _network: Any = field(default=None, init=False, repr=False)

    def fit(self, jobs: JobTable, seed: int) -> None:
        """Trains on the first 70 % of the bins, stops early on the next 10 %.

        Raises:
            InvalidInput: The table is too short for a training and a validation window.
        """
        self.fit_loads(bin_loads(jobs), seed)

    def fit_loads(self, loads: Loads, seed: int) -> None:
        """Like `fit`, on loads.

        Raises:
            InvalidInput: Too few bins for a training and a validation window.
        """
        torch: Any = importlib.import_module("torch")
        bins = len(loads.values)
        train_end, end = int(bins * TRAIN), int(bins * (TRAIN + VALIDATION))
        if train_end < WINDOW + HORIZON or end - train_end < HORIZON:
            raise InvalidInput(
                f"an LSTM needs at least {10 * HORIZON} bins of {BIN_S:g} s, got {bins}"
            )
        logs = np.log1p(loads.values[:train_end])
        self.mean, self.scale = logs.mean(axis=0), np.maximum(logs.std(axis=0), 1e-6)
        inputs = torch.from_numpy(_inputs(Loads(loads.values[:end], loads.start_s), *self._scaler))
        targets = loads.values.shape[1]
        # First forecast bins whose whole horizon lies in the training or the validation part.
        train = torch.arange(WINDOW, train_end - HORIZON + 1)
        held = torch.arange(train_end, end - HORIZON + 1)
        back, ahead = torch.arange(-WINDOW, 0), torch.arange(HORIZON)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network: Any = torch.nn.ModuleDict(
                {
                    "lstm": torch.nn.LSTM(targets + 2, self.hidden, batch_first=True),
                    "head": torch.nn.Linear(self.hidden, HORIZON * targets * 2),
                }
            )
            self._network = network
            optimiser = torch.optim.Adam(network.parameters(), lr=self.learning_rate)

            def loss(first: Any) -> Any:
                wanted = inputs[first[:, None] + ahead][..., :targets, None]
                error = wanted - self._quantiles(inputs[first[:, None] + back])
                level = torch.tensor([0.5, UPPER])
                return torch.maximum(level * error, (level - 1) * error).mean()

            self.validation_loss, waited = np.inf, 0
            kept = {name: value.clone() for name, value in network.state_dict().items()}
            for _ in range(self.epochs):
                for rows in torch.randperm(len(train)).split(self.batch):
                    optimiser.zero_grad()
                    loss(train[rows]).backward()
                    optimiser.step()
                with torch.no_grad():
                    now = float(loss(held))
                waited += 1
                if now < self.validation_loss:
                    self.validation_loss, waited = now, 0
                    kept = {name: value.clone() for name, value in network.state_dict().items()}
                if waited >= self.patience:
                    break
            network.load_state_dict(kept)

    def predict(self, history: Loads) -> Forecast:
        """Forecasts; a history shorter than the window is filled up with the training mean.

        Raises:
            InvalidInput: Not fitted, or fitted on other targets.
        """
        if self._network is None or history.values.shape[1] != len(self.mean):
            raise InvalidInput(
                f"the LSTM is fitted on {len(self.mean)} targets, "
                f"the history has {history.values.shape[1]}"
            )
        torch: Any = importlib.import_module("torch")
        values = history.values[-WINDOW:]
        missing = WINDOW - len(values)
        start_s = history.start_s + BIN_S * (len(history.values) - WINDOW)
        filled = np.concatenate((np.tile(np.expm1(self.mean), (missing, 1)), values))
        window = torch.from_numpy(_inputs(Loads(filled, start_s), *self._scaler))
        with torch.no_grad():
            found = self._quantiles(window[None])[0].numpy().astype(np.float64)
        counts = np.maximum(np.expm1(found * self.scale[:, None] + self.mean[:, None]), 0.0)
        return Forecast(counts[..., 0], counts[..., 1])

    @property
    def _scaler(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self.mean, self.scale

    def _quantiles(self, windows: Any) -> Any:
        """(batch, WINDOW, inputs) -> (batch, HORIZON, targets, 2); the upper is never below."""
        torch: Any = importlib.import_module("torch")
        last = self._network["lstm"](windows)[0][:, -1]
        raw = self._network["head"](last).reshape(len(windows), HORIZON, -1, 2)
        median = raw[..., 0]
        return torch.stack((median, median + torch.nn.functional.softplus(raw[..., 1])), dim=-1)


def one_step_errors(forecaster: Forecaster, loads: Loads, first: int) -> NDArray[np.float64]:
    """Absolute error of the median of the next bin, for every bin from number `first` on.

    Returns:
        (bins - first, targets).

    Example:
        >>> loads = Loads(np.array([[1.0], [2.0], [2.0]]))
        >>> one_step_errors(Persistence(), loads, 1).tolist()
        [[1.0], [0.0]]
    """
    found = [
        forecaster.predict(Loads(loads.values[:bin_], loads.start_s)).median[0]
        for bin_ in range(first, len(loads.values))
    ]
    return np.abs(np.array(found) - loads.values[first:])
