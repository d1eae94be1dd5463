"""One training iteration under a communication scheduler: how long, for many configurations.

Gradients become ready while the backward pass runs, from the last layer to the first. A scheduler
cuts them into pieces of at most `partition_bytes`, hands pieces down in an order, and keeps at most
about `credit_bytes` of them unfinished. The next forward pass waits, layer by layer, for the
gradients to come back. This is the model of ByteScheduler (Peng et al., SOSP 2019) and its
relatives; docs/communication.md derives the recurrence and says what it leaves out.

`iteration_time_s` answers for one model and many configurations; `batch_iteration_time_s` for a
batch in which each configuration has its own model. Both run the same kernel, so a configuration
gets the same bits alone and in a batch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtgym.simulator.communication_layers import LayerTables, LayerTimes
from dtgym.simulator.errors import InvalidInput, at_least, one_of
from dtgym.simulator.kernels import communication_window as kernel
from dtgym.simulator.networks import NETWORK_FIELDS, Network, column
from dtgym.simulator.threads import map_ranges

__all__ = [
    "LayerTables",
    "LayerTimes",
    "Network",
    "batch_iteration_time_s",
    "column",
    "exponential_skew_s",
    "iteration_time_s",
    "measured_time_s",
    "mechanism_flags",
]

ARCHITECTURES = ("ps", "allreduce")
ORDERS = ("priority", "fifo")
CREDIT_RULES = ("positive", "fit")
CREDIT_RETURNS = ("completion", "upload")

# Fewest configurations worth a thread's while.
_MINIMUM_CONFIGS = 128

# Unfinished pieces that one configuration may have: 2 GiB of ring.
_LARGEST_RING = 2**27


def iteration_time_s(
    layers: LayerTimes,
    network: Network,
    partition_bytes: ArrayLike,
    credit_bytes: ArrayLike,
    *,
    architecture: str = "ps",
    order: str = "priority",
    barrier: bool = False,
    credit_rule: str = "positive",
    credit_return: str = "completion",
    threads: int | None = None,
) -> NDArray[np.float64]:
    """Time of one iteration, from the start of the backward pass to the end of the next forward.

    Args:
        layers: The model.
        network: The network; its fields, `partition_bytes` and `credit_bytes` broadcast to one
            batch axis of configurations.
        partition_bytes: Largest piece, bytes, above 0; infinite sends gradients whole.
        credit_bytes: Window of unfinished bytes, above 0; infinite never holds a piece back.
        architecture: ``ps``: a piece is uploaded, then downloaded, on a duplex link.
            ``allreduce``: a piece occupies one channel; download and aggregation are ignored.
        order: ``priority``: the ready gradient of the lowest layer first. ``fifo``: in the order
            of readiness.
        barrier: The forward pass waits for all gradients (PyTorch and TensorFlow without changes)
            instead of each layer for its own.
        credit_rule: ``positive`` (ByteScheduler's release): a piece goes while unfinished bytes
            are below the credit. ``fit`` (BytePS): while it fits into the credit; the head of the
            queue is not overtaken.
        credit_return: Credit comes back when the piece is complete (``completion``), or already
            when its upload has ended (``upload``, as P3's blocking sender does).
        threads: Threads that share a large batch; None is ``NUMBA_NUM_THREADS``.

    Returns:
        Seconds, float64, (configs,); shape (1,) if everything is a plain number.

    Raises:
        InvalidInput: Anything out of range, of unknown name, or that does not broadcast.

    Source:
        ByteScheduler (Peng et al., SOSP 2019) and its release, docs/scheduling.md.

    Examples:
        The release's three-layer example: whole tensors in FIFO order against half-unit pieces.

        >>> layers = LayerTimes([1, 1, 1], [1, 1, 1], [1.5, 3, 1.5])
        >>> link = Network(0, 1, 0, 1)
        >>> iteration_time_s(layers, link, np.inf, np.inf, order="fifo").tolist()
        [13.0]
        >>> iteration_time_s(layers, link, 0.5, [0.5, 1.0, np.inf]).tolist()
        [14.0, 9.0, 10.5]
    """
    if not isinstance(layers, LayerTimes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"layers must be LayerTimes, got {type(layers).__name__}")
    flags = mechanism_flags(
        architecture=architecture,
        order=order,
        barrier=barrier,
        credit_rule=credit_rule,
        credit_return=credit_return,
    )
    return batch_iteration_time_s(
        LayerTables.stack([layers]),
        0,
        network,
        partition_bytes,
        credit_bytes,
        flags=flags,
        threads=threads,
    )


def batch_iteration_time_s(
    tables: LayerTables,
    model_index: ArrayLike,
    network: Network | NDArray[np.float64],
    partition_bytes: ArrayLike,
    credit_bytes: ArrayLike,
    *,
    flags: ArrayLike,
    forward_scale: ArrayLike = 1.0,
    backward_scale: ArrayLike = 1.0,
    threads: int | None = None,
) -> NDArray[np.float64]:
    """Iteration times of a batch in which every configuration may have its own everything.

    Args:
        tables: The models, see `LayerTables.stack`.
        model_index: Row of `tables`, int, (configs,) or a number.
        network: A `Network`, or its matrix (configs, fields) as made by `Network.matrix`; a matrix
            is taken as it is, without a check of its columns.
        partition_bytes: Largest piece, bytes, (configs,) or a number.
        credit_bytes: Window of unfinished bytes, (configs,) or a number.
        flags: Mechanism of each configuration, see `mechanism_flags`, (configs,) or a number.
        forward_scale: Factor on the forward times, (configs,) or a number.
        backward_scale: Factor on the backward times, (configs,) or a number.
        threads: Threads that share a large batch; None is ``NUMBA_NUM_THREADS``.

    Returns:
        Seconds, float64, (configs,).

    Raises:
        InvalidInput: Anything out of range, or that does not broadcast to one batch axis.

    Examples:
        >>> small = LayerTimes([1, 1], [1, 1], [1, 1])
        >>> large = LayerTimes([1, 1, 1], [1, 1, 1], [1.5, 3, 1.5])
        >>> tables = LayerTables.stack([small, large])
        >>> link = Network(0, 1, 0, 1)
        >>> ps = mechanism_flags(architecture="ps")
        >>> batch_iteration_time_s(tables, [0, 1], link, 0.5, 1.0, flags=ps).tolist()
        [5.5, 9.0]
    """
    index = np.asarray(model_index)
    bits = np.asarray(flags)
    partition = _size("partition_bytes", partition_bytes)
    credit = _size("credit_bytes", credit_bytes)
    forward = _scale("forward_scale", forward_scale)
    backward = _scale("backward_scale", backward_scale)
    batch = (network.configs,) if isinstance(network, Network) else network.shape[:1]
    batch = () if isinstance(network, Network) and network.configs == 1 else batch
    try:
        shape = np.broadcast_shapes(
            batch, *(np.shape(a) for a in (index, bits, partition, credit, forward, backward))
        )
    except ValueError as error:
        raise InvalidInput(
            "partition_bytes, credit_bytes and the fields of the network must broadcast to one "
            f"batch axis: {error}"
        ) from None
    if len(shape) > 1:
        raise InvalidInput(
            f"partition_bytes, credit_bytes and the network must have one batch axis, got shape "
            f"{shape}"
        )
    configs = shape[0] if shape else 1
    models = len(tables.layer_counts)
    if index.dtype.kind not in "iu" or (index < 0).any() or (index >= models).any():
        raise InvalidInput(f"model_index must be whole numbers from 0 to {models - 1}")
    if bits.dtype.kind not in "iu":
        raise InvalidInput("flags must come from mechanism_flags")
    if isinstance(network, Network):
        columns = network.matrix(configs)
    else:
        if network.ndim != 2 or network.shape[1] != len(NETWORK_FIELDS):
            raise InvalidInput(
                f"the network matrix must have shape (configs, {len(NETWORK_FIELDS)}), got "
                f"{network.shape}"
            )
        columns = np.ascontiguousarray(network, dtype=np.float64)
        if len(columns) != configs:
            columns = np.repeat(columns, configs, axis=0)
    configurations = Configurations(
        _integers(index, configs),
        _floats(forward, configs),
        _floats(backward, configs),
        columns,
        _floats(partition, configs),
        _floats(credit, configs),
        _integers(bits, configs),
    )
    result = np.empty(configs)

    def run(first: int, last: int) -> None:
        run_kernel(tables, configurations.part(first, last), result[first:last], _NO_RECORD)

    map_ranges(run, configs, _MINIMUM_CONFIGS, threads)
    return result


class Configurations(NamedTuple):
    """Checked, contiguous arrays of a batch, as the kernel takes them.

    Attributes:
        model_index: Row of the layer tables, int64, (configs,).
        forward_scale: Factor on forward times, (configs,).
        backward_scale: Factor on backward times, (configs,).
        network: See `Network.matrix`, (configs, fields).
        partition_bytes: Largest piece, (configs,).
        credit_bytes: Window, (configs,).
        flags: See `mechanism_flags`, int64, (configs,).
    """

    model_index: NDArray[np.int64]
    forward_scale: NDArray[np.float64]
    backward_scale: NDArray[np.float64]
    network: NDArray[np.float64]
    partition_bytes: NDArray[np.float64]
    credit_bytes: NDArray[np.float64]
    flags: NDArray[np.int64]

    def part(self, first: int, last: int) -> Configurations:
        """Returns configurations `first` to `last` (not included)."""
        return Configurations._make(array[first:last] for array in self)


def mechanism_flags(
    *,
    architecture: str = "ps",
    order: str = "priority",
    barrier: bool = False,
    credit_rule: str = "positive",
    credit_return: str = "completion",
) -> int:
    """Returns the mechanism as the bits that `batch_iteration_time_s` takes.

    Args and Raises: see `iteration_time_s`.

    Examples:
        >>> mechanism_flags(architecture="allreduce")
        0
    """
    flags = 0
    if one_of("architecture", architecture, ARCHITECTURES) == "ps":
        flags |= kernel.PARAMETER_SERVER
    if one_of("order", order, ORDERS) == "fifo":
        flags |= kernel.FIFO
    if barrier:
        flags |= kernel.BARRIER
    if one_of("credit_rule", credit_rule, CREDIT_RULES) == "fit":
        flags |= kernel.FIT
    if one_of("credit_return", credit_return, CREDIT_RETURNS) == "upload":
        flags |= kernel.RETURN_AT_UPLOAD
    return flags


def measured_time_s(
    time_s: ArrayLike, noise: ArrayLike, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Returns times as a measurement sees them: multiplied by log-normal noise of median 1.

    Args:
        time_s: True times, s.
        noise: Standard deviation of the logarithm; 0 returns the true times.
        generator: Source of randomness.

    Raises:
        InvalidInput: A negative or non-finite noise.

    Examples:
        >>> measured_time_s([0.25], 0.0, np.random.default_rng(0)).tolist()
        [0.25]
    """
    time = np.asarray(time_s, dtype=np.float64)
    deviation = np.asarray(noise, dtype=np.float64)
    if not (np.isfinite(deviation) & (deviation >= 0)).all():
        raise InvalidInput(f"noise must be finite and at least 0, got {deviation.min():g}")
    shape = np.broadcast_shapes(time.shape, deviation.shape)
    return time * np.exp(deviation * generator.standard_normal(shape))


def exponential_skew_s(
    mean_s: ArrayLike, workers: int, generator: np.random.Generator, *, size: int | None = None
) -> NDArray[np.float64]:
    """Draws how late the slowest of several workers starts: the largest of exponential delays.

    The result is meant for `Network.worker_delay_s`: gradients are ready when the slowest worker
    has them.

    Args:
        mean_s: Mean delay of one worker, s.
        workers: Number of workers.
        generator: Source of randomness.
        size: Length of the batch; None follows `mean_s`.

    Raises:
        InvalidInput: A negative mean or fewer than one worker.

    Examples:
        >>> exponential_skew_s(0.0, 8, np.random.default_rng(0), size=2).tolist()
        [0.0, 0.0]
    """
    mean = at_least("mean_s", mean_s, 0, "s")
    count = int(at_least("workers", workers, 1))
    shape = mean.shape if size is None else (size,)
    # Inverse of the distribution function (1 - exp(-x))^n of the largest.
    largest = -np.log1p(-(generator.random(shape) ** (1.0 / count)))
    return mean * largest


def run_kernel(
    tables: LayerTables,
    configurations: Configurations,
    result: NDArray[np.float64],
    record: NDArray[np.float64],
) -> None:
    """Runs the kernel; see there for `result` and `record`."""
    kernel.iteration_times(
        tables.ready_s,
        tables.tail_s,
        tables.gradient_bytes,
        tables.layer_counts,
        tables.total_bytes,
        *configurations,
        _ring_entries(tables, configurations, recording=record.shape[0] > 0),
        result,
        record,
    )


def _ring_entries(tables: LayerTables, configurations: Configurations, *, recording: bool) -> int:
    """Capacity of the kernel's ring: enough for the configuration with most unfinished pieces.

    Raises:
        InvalidInput: Pieces so small that the ring would not fit into memory.
    """
    network, credit = configurations.network, configurations.credit_bytes
    total = tables.total_bytes[configurations.model_index]
    # The same bound as in the kernel, which folds its counters by its own power of two.
    pieces = np.where(2.0 * credit < total, 2.0 * credit, total) / configurations.partition_bytes
    bound = 2.0 * (pieces + tables.layer_counts[configurations.model_index] + 2.0)
    by_load = (network[:, kernel.CONGESTION] > 0) | (network[:, kernel.FLOW_PER_BYTE] > 0)
    # Without a window that binds, the kernel needs no ring, unless it has pieces to record.
    uses_window = by_load | (credit < total) | recording
    largest = float(bound[uses_window].max(initial=64.0))
    if largest > _LARGEST_RING:
        raise InvalidInput(
            f"partition_bytes {configurations.partition_bytes.min():g} makes too many pieces: "
            f"more than {_LARGEST_RING // 2} may be unfinished at once"
        )
    return 1 << (math.ceil(largest) - 1).bit_length()


_NO_RECORD = np.empty((0, kernel.RECORD_COLUMNS))


def _floats(values: NDArray[np.float64], configs: int) -> NDArray[np.float64]:
    if values.shape == (configs,):
        return np.ascontiguousarray(values)
    filled = np.empty(configs)
    filled[:] = values
    return filled


def _integers(values: NDArray[np.generic], configs: int) -> NDArray[np.int64]:
    if values.shape == (configs,):
        return np.ascontiguousarray(values, dtype=np.int64)
    filled = np.empty(configs, dtype=np.int64)
    filled[:] = values
    return filled


def _size(field: str, value: ArrayLike) -> NDArray[np.float64]:
    """A size in bytes above 0; infinity is allowed."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(f"{field} must be a number of bytes, got {value!r}") from None
    bad = ~(array > 0)
    if bad.any():
        raise InvalidInput(f"{field} must be above 0 bytes, got {array[bad].flat[0]:g}")
    return array


def _scale(field: str, value: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(value, dtype=np.float64)
    if not (np.isfinite(array) & (array > 0)).all():
        raise InvalidInput(f"{field} must be finite and above 0, got {array.min():g}")
    return array
