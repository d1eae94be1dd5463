"""Networks as a communication scheduler sees them: cost per message, cost per byte, delays.

A piece of a gradient crosses, in order: the host thread that hands it down, an optional reduction
inside the machine, the upload (or the whole all-reduce), the server's aggregation and the download
(parameter server only), an optional broadcast inside the machine, and a delay until the scheduler
learns of its completion. Stages work in parallel on different pieces and one by one on each piece.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtgym.simulator.errors import InvalidInput, at_least, finite_array

SLOWEST_BYTES_PER_S = 1e6
FASTEST_BYTES_PER_S = 1e13


@dataclass(frozen=True, eq=False)
class Network:
    """Cost of moving one piece, for one network or a batch of them.

    Every field is a number or an array; they broadcast to one batch axis. Fields after
    `completion_delay_s` are effects that are off by default; each is explained with its source in
    docs/communication.md.

    Attributes:
        upload_overhead_s: Time a message occupies the upload channel besides its bytes, s.
        upload_s_per_byte: Inverse bandwidth of the upload (parameter server) or of the whole
            all-reduce, s/byte.
        download_overhead_s: As `upload_overhead_s`, for the download; parameter server only.
        download_s_per_byte: As `upload_s_per_byte`, for the download; parameter server only.
        completion_delay_s: Propagation, acknowledgement, negotiation and callback until the
            scheduler knows that a piece is done; occupies no channel, s.
        aggregation_overhead_s: Server's time per piece between upload and download, s.
        aggregation_s_per_byte: Server's time per byte between upload and download, s/byte.
        congestion: Growth c of the time per byte by outstanding bytes beyond the bandwidth-delay
            product: factor 1 + c (outstanding - BDP) / BDP, at most 4.
        bandwidth_delay_bytes: The bandwidth-delay product BDP, bytes; needed if `congestion` > 0.
        flow_s_per_byte: Inverse bandwidth of a single flow, s/byte; pieces in flight are separate
            flows, so n of them move at the rate min(link, n x flow).
        max_flows: Largest number of flows that add up, such as the number of servers.
        worker_delay_s: How much later than the others the slowest worker starts its backward
            pass, s.
        worker_slowdown: Factor on the slowest worker's compute times, at least 1.
        host_overhead_s: Time of the serial host thread per piece, s.
        local_reduce_overhead_s: Time per piece of the reduction inside a machine, s.
        local_reduce_s_per_byte: Time per byte of the reduction inside a machine, s/byte.
        local_broadcast_overhead_s: Time per piece of the broadcast inside a machine, s.
        local_broadcast_s_per_byte: Time per byte of the broadcast inside a machine, s/byte.

    Raises:
        InvalidInput: A field that is negative or not finite, fields that do not broadcast, or
            congestion without a bandwidth-delay product.

    Examples:
        >>> Network(50e-6, [1e-9, 1e-10]).configs
        2
    """

    upload_overhead_s: ArrayLike
    upload_s_per_byte: ArrayLike
    download_overhead_s: ArrayLike = 0.0
    download_s_per_byte: ArrayLike = 0.0
    completion_delay_s: ArrayLike = 0.0
    aggregation_overhead_s: ArrayLike = 0.0
    aggregation_s_per_byte: ArrayLike = 0.0
    congestion: ArrayLike = 0.0
    bandwidth_delay_bytes: ArrayLike = 0.0
    flow_s_per_byte: ArrayLike = 0.0
    max_flows: ArrayLike = 1.0
    worker_delay_s: ArrayLike = 0.0
    worker_slowdown: ArrayLike = 1.0
    host_overhead_s: ArrayLike = 0.0
    local_reduce_overhead_s: ArrayLike = 0.0
    local_reduce_s_per_byte: ArrayLike = 0.0
    local_broadcast_overhead_s: ArrayLike = 0.0
    local_broadcast_s_per_byte: ArrayLike = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            minimum = 1.0 if field.name in ("max_flows", "worker_slowdown") else 0.0
            value = at_least(
                f"Network.{field.name}", getattr(self, field.name), minimum, _unit(field.name)
            )
            if value.ndim > 1:
                raise InvalidInput(
                    f"Network.{field.name} must be a number or one number per configuration, got "
                    f"shape {value.shape}"
                )
            object.__setattr__(self, field.name, value)
        try:
            congested, product = np.broadcast_arrays(self.congestion, self.bandwidth_delay_bytes)
            shape = np.broadcast_shapes(*(np.shape(getattr(self, f.name)) for f in fields(self)))
        except ValueError as error:
            raise InvalidInput(
                f"Network fields must broadcast to one batch axis: {error}"
            ) from None
        if ((congested > 0) & (product <= 0)).any():
            raise InvalidInput(
                "Network.bandwidth_delay_bytes must be above 0 bytes where congestion is on, got 0"
            )
        object.__setattr__(self, "_configs", shape[0] if shape else 1)

    @property
    def configs(self) -> int:
        """Length of the batch axis (1 if all fields are plain numbers)."""
        return self._configs  # type: ignore[attr-defined]

    def matrix(self, configs: int) -> NDArray[np.float64]:
        """Returns the fields as columns, in the order of the attributes: (configs, fields).

        A vector environment keeps this matrix and changes columns as its network drifts; see
        `column`.
        """
        rows = np.empty((configs, len(NETWORK_FIELDS)))
        for column, name in enumerate(NETWORK_FIELDS):
            rows[:, column] = getattr(self, name)
        return rows

    @classmethod
    def parameter_server(
        cls,
        bandwidth_bytes_per_s: ArrayLike,
        workers: ArrayLike,
        servers: ArrayLike,
        *,
        server_bandwidth_bytes_per_s: ArrayLike | None = None,
        colocated: bool = False,
        message_overhead_s: ArrayLike = 0.0,
        completion_delay_s: ArrayLike = 0.0,
        **effects: ArrayLike,
    ) -> Network:
        """Network of a parameter-server group.

        One direction takes max(1 / B_worker, workers / (servers x B_server)) per byte; where every
        machine is worker and server at once, each direction of a link carries pushes of its worker
        and replies of its server: 2 (n - 1) / (n B).

        Args:
            bandwidth_bytes_per_s: Effective bandwidth of a worker's link per direction, bytes/s.
            workers: Number of workers (machines that push), at least 1.
            servers: Number of servers, at least 1.
            server_bandwidth_bytes_per_s: Same for a server's link; default as the worker's.
            colocated: Every machine is worker and server; `servers` must equal `workers`.
            message_overhead_s: Occupancy per message and direction, s.
            completion_delay_s: See `Network`.
            effects: Further fields of `Network`.

        Raises:
            InvalidInput: A bandwidth that is no bytes/s figure, fewer than one worker or server,
                or a field out of range.

        Source:
            BytePS (OSDI 2020), analysis of parameter-server communication time.

        Examples:
            >>> Network.parameter_server(1.25e9, workers=4, servers=2).upload_s_per_byte.item()
            1.6e-09
        """
        bandwidth = bytes_per_s("bandwidth_bytes_per_s", bandwidth_bytes_per_s)
        n = at_least("workers", workers, 1)
        k = at_least("servers", servers, 1)
        if colocated:
            if (n != k).any():
                raise InvalidInput("servers must equal workers where they are colocated")
            per_byte = 2 * (n - 1) / (n * bandwidth)
        else:
            of_server = bandwidth
            if server_bandwidth_bytes_per_s is not None:
                of_server = bytes_per_s(
                    "server_bandwidth_bytes_per_s", server_bandwidth_bytes_per_s
                )
            per_byte = np.maximum(1 / bandwidth, n / (k * of_server))
        return cls(
            message_overhead_s,
            per_byte,
            message_overhead_s,
            per_byte,
            completion_delay_s,
            **effects,
        )

    @classmethod
    def ring_allreduce(
        cls,
        bandwidth_bytes_per_s: ArrayLike,
        workers: ArrayLike,
        *,
        step_latency_s: ArrayLike = 0.0,
        launch_overhead_s: ArrayLike = 0.0,
        completion_delay_s: ArrayLike = 0.0,
        **effects: ArrayLike,
    ) -> Network:
        """Network of a ring all-reduce: 2 (n - 1) steps, each of 1/n of the piece.

        Args:
            bandwidth_bytes_per_s: Effective bandwidth of the slowest link per direction, bytes/s.
            workers: Number of ranks n, at least 1.
            step_latency_s: Latency of each of the 2 (n - 1) steps, s.
            launch_overhead_s: Occupancy per call besides the steps, s.
            completion_delay_s: See `Network`.
            effects: Further fields of `Network`.

        Raises:
            InvalidInput: A bandwidth that is no bytes/s figure, fewer than one rank, or a field
                out of range.

        Source:
            Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, JPDC 2009, section 3.

        Examples:
            >>> ring = Network.ring_allreduce(1e9, workers=4, step_latency_s=10e-6)
            >>> ring.upload_s_per_byte.item(), round(ring.upload_overhead_s.item(), 9)
            (1.5e-09, 6e-05)
        """
        bandwidth = bytes_per_s("bandwidth_bytes_per_s", bandwidth_bytes_per_s)
        n = at_least("workers", workers, 1)
        latency = at_least("step_latency_s", step_latency_s, 0, "s")
        launch = at_least("launch_overhead_s", launch_overhead_s, 0, "s")
        return cls(
            2 * (n - 1) * latency + launch,
            2 * (n - 1) / (n * bandwidth),
            completion_delay_s=completion_delay_s,
            **effects,
        )

    @classmethod
    def hierarchical_allreduce(
        cls,
        bandwidth_bytes_per_s: ArrayLike,
        machines: ArrayLike,
        *,
        local_bandwidth_bytes_per_s: ArrayLike,
        gpus_per_machine: ArrayLike,
        step_latency_s: ArrayLike = 0.0,
        local_step_latency_s: ArrayLike = 0.0,
        launch_overhead_s: ArrayLike = 0.0,
        completion_delay_s: ArrayLike = 0.0,
        **effects: ArrayLike,
    ) -> Network:
        """Network of reduce-scatter in the machine, all-reduce among machines, all-gather.

        The three phases are stages in tandem: M (g - 1) / (g B_local), 2 (m - 1) / m M / B on the
        machine's network card, and M (g - 1) / (g B_local) again, each with its steps' latencies.

        Args:
            bandwidth_bytes_per_s: Effective bandwidth of a machine's network card per direction.
            machines: Number of machines m, at least 1.
            local_bandwidth_bytes_per_s: Bandwidth among the accelerators of a machine.
            gpus_per_machine: Accelerators per machine g, at least 1.
            step_latency_s: Latency of each of the 2 (m - 1) steps among machines, s.
            local_step_latency_s: Latency of each of the g - 1 steps of a local phase, s.
            launch_overhead_s: Occupancy per call of the phase among machines, s.
            completion_delay_s: See `Network`.
            effects: Further fields of `Network`.

        Raises:
            InvalidInput: A bandwidth that is no bytes/s figure, fewer than one machine or
                accelerator, or a field out of range.

        Source:
            Standard two-level all-reduce, each phase a ring (Patarasuk and Yuan, JPDC 2009).

        Examples:
            >>> two_level = Network.hierarchical_allreduce(
            ...     1e9, machines=2, local_bandwidth_bytes_per_s=1e10, gpus_per_machine=8
            ... )
            >>> two_level.upload_s_per_byte.item(), two_level.local_reduce_s_per_byte.item()
            (1e-09, 8.75e-11)
        """
        bandwidth = bytes_per_s("bandwidth_bytes_per_s", bandwidth_bytes_per_s)
        local = bytes_per_s("local_bandwidth_bytes_per_s", local_bandwidth_bytes_per_s)
        m = at_least("machines", machines, 1)
        g = at_least("gpus_per_machine", gpus_per_machine, 1)
        latency = at_least("step_latency_s", step_latency_s, 0, "s")
        local_latency = at_least("local_step_latency_s", local_step_latency_s, 0, "s")
        launch = at_least("launch_overhead_s", launch_overhead_s, 0, "s")
        return cls(
            2 * (m - 1) * latency + launch,
            2 * (m - 1) / (m * bandwidth),
            completion_delay_s=completion_delay_s,
            local_reduce_overhead_s=(g - 1) * local_latency,
            local_reduce_s_per_byte=(g - 1) / (g * local),
            local_broadcast_overhead_s=(g - 1) * local_latency,
            local_broadcast_s_per_byte=(g - 1) / (g * local),
            **effects,
        )


NETWORK_FIELDS: tuple[str, ...] = tuple(field.name for field in fields(Network))
"""Names of the columns of `Network.matrix`."""


def column(name: str) -> int:
    """Returns the column of `Network.matrix` that holds the field `name`."""
    return NETWORK_FIELDS.index(name)


def bytes_per_s(field: str, value: ArrayLike) -> NDArray[np.float64]:
    """Returns `value` if it can be a bandwidth in bytes/s.

    Raises:
        InvalidInput: Not finite, not above 0, or of a magnitude that only another unit explains,
            such as 100 (meant as Gbit/s).
    """
    bandwidth = finite_array(field, value, "bytes/s")
    low, high = bandwidth.min(initial=np.inf), bandwidth.max(initial=-np.inf)
    if low <= 0:
        raise InvalidInput(f"{field} must be above 0 bytes/s, got {low:g}")
    if low < SLOWEST_BYTES_PER_S or high > FASTEST_BYTES_PER_S:
        odd = low if low < SLOWEST_BYTES_PER_S else high
        raise InvalidInput(
            f"{field} must be in bytes/s ({SLOWEST_BYTES_PER_S:g} to {FASTEST_BYTES_PER_S:g}), got "
            f"{odd:g}; 1 Gbit/s is 1.25e8 bytes/s"
        )
    return bandwidth


def _unit(name: str) -> str:
    if name.endswith("_s_per_byte"):
        return "s/byte"
    if name.endswith("_bytes"):
        return "bytes"
    return "s" if name.endswith("_s") else ""
