"""Time of collectives among accelerators of one cluster, in two levels.

A collective runs inside the nodes over the peer link and exchanges shares between nodes over the
network: reduce-scatter inside, exchange of 1/g of the bytes between, all-gather inside. All-reduces
take the fastest of ring, tree between nodes, and the switch's own addition where there is one.
Times are alpha + beta x bytes, with a start for messages between nodes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtgym.simulator import calibration as calibrations
from dtgym.simulator.calibration import Calibration
from dtgym.simulator.errors import above, at_least
from dtgym.simulator.hardware import Cluster
from dtgym.simulator.hardware_rows import hardware_row
from dtgym.simulator.kernels import training_checks as kernels
from dtgym.simulator.kernels import training_columns as columns

Floats = NDArray[np.float64]


def all_gather_time_s(
    size_bytes: ArrayLike,
    ranks: ArrayLike,
    cluster: Cluster,
    *,
    ranks_per_node: ArrayLike | None = None,
    calibration: Calibration | None = None,
) -> Floats:
    """Time until every rank holds all `size_bytes`, of which each brings an equal part.

    A reduce-scatter of the same bytes takes as long.

    Args:
        size_bytes: Bytes of the whole, as gathered.
        ranks: Number of ranks, at least 1.
        cluster: Where they run.
        ranks_per_node: Ranks of one group that share a node; None fills the nodes.
        calibration: Constants of the model; None takes the shipped ones.

    Returns:
        Seconds, in the broadcast shape.

    Raises:
        InvalidInput: Bytes below 0, fewer than one rank.

    Examples:
        >>> from dtgym.simulator import hardware
        >>> all_gather_time_s(1e9, [1, 8], hardware.cluster("selene-64")).round(4).tolist()[0]
        0.0
    """
    return _run(kernels.ALL_GATHER, size_bytes, ranks, cluster, ranks_per_node, calibration)


def all_reduce_time_s(
    size_bytes: ArrayLike,
    ranks: ArrayLike,
    cluster: Cluster,
    *,
    ranks_per_node: ArrayLike | None = None,
    calibration: Calibration | None = None,
) -> Floats:
    """Time until every rank holds the sum of `size_bytes` per rank; see `all_gather_time_s`."""
    return _run(kernels.ALL_REDUCE, size_bytes, ranks, cluster, ranks_per_node, calibration)


def all_to_all_time_s(
    size_bytes: ArrayLike,
    ranks: ArrayLike,
    cluster: Cluster,
    *,
    ranks_per_node: ArrayLike | None = None,
    calibration: Calibration | None = None,
) -> Floats:
    """Time until each rank has sent an equal part of its `size_bytes` to each other rank."""
    return _run(kernels.ALL_TO_ALL, size_bytes, ranks, cluster, ranks_per_node, calibration)


def point_to_point_time_s(
    size_bytes: ArrayLike,
    cluster: Cluster,
    *,
    same_node: bool,
    calibration: Calibration | None = None,
) -> Floats:
    """Time of one message between two accelerators.

    Args:
        size_bytes: Bytes of the message.
        cluster: Where it travels.
        same_node: Whether both ends share a node.
        calibration: Constants of the model; None takes the shipped ones.

    Raises:
        InvalidInput: Bytes below 0.
    """
    size = at_least("size_bytes", size_bytes, 0, "bytes")
    peer, network, hop, start, _, _ = _rates(cluster, calibration)
    return size / peer + hop if same_node else size / network + start


def _rates(
    cluster: Cluster, calibration: Calibration | None
) -> tuple[float, float, float, float, float, float]:
    constants = (calibration or calibrations.shipped()).vector()
    node = cluster.groups[0].node
    row = hardware_row(node.accelerator, "half", cluster)
    return (
        row[columns.PEER_RATE] * constants[columns.C_PEER],
        row[columns.NETWORK_RATE] * constants[columns.C_NETWORK],
        constants[columns.C_PEER_HOP],
        constants[columns.C_NETWORK_START] + cluster.network_latency_s,
        row[columns.IN_SWITCH],
        float(node.gpus),
    )


def _run(
    kind: int,
    size_bytes: ArrayLike,
    ranks: ArrayLike,
    cluster: Cluster,
    ranks_per_node: ArrayLike | None,
    calibration: Calibration | None,
) -> Floats:
    peer, network, hop, start, in_switch, per_node = _rates(cluster, calibration)
    local = per_node if ranks_per_node is None else above("ranks_per_node", ranks_per_node, 0)
    size, count, near = np.broadcast_arrays(
        at_least("size_bytes", size_bytes, 0, "bytes"), at_least("ranks", ranks, 1), local
    )
    out = np.empty(size.size)
    kernels.collective_array(
        kind,
        size.ravel().astype(np.float64),
        count.ravel().astype(np.float64),
        near.ravel().astype(np.float64),
        peer,
        network,
        hop,
        start,
        in_switch,
        out,
    )
    return out.reshape(size.shape)
