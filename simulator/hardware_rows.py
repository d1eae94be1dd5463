"""Hardware and models as the rows of numbers that the training kernel reads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.hardware import ARCHITECTURES, PRECISIONS, Accelerator, Cluster
from dtgym.simulator.kernels import training_columns as columns
from dtgym.simulator.software import ATTENTION_KERNELS, TENSOR_OVERLAPS, Software
from dtgym.simulator.workload import Transformer

AMPERE_CEILING = 0.8692
"""Best product of an A100 over its peak: the yardstick for kinds without a calibration."""

_USUAL_MULTIPROCESSORS = 108


def model_row(model: Transformer) -> list[float]:
    """One row of `training_columns.MODEL_COLUMNS`."""
    return [float(getattr(model, name)) for name in columns.MODEL_COLUMNS]


def hardware_row(
    device: Accelerator,
    precision: str,
    cluster: Cluster | None = None,
    software: Software | None = None,
) -> NDArray[np.float64]:
    """One row of `training_columns.HARDWARE_COLUMNS`.

    Args:
        device: The accelerator.
        precision: Precision of the blocks' matrix products.
        cluster: Where it stands; None for operations on one device.
        software: Switches of the framework; None takes the defaults.
    """
    node = cluster.groups[0].node if cluster is not None else None
    known = software or Software()
    scale = 1.0
    if device.architecture == "other" and device.matmul_ceiling:
        scale = device.matmul_ceiling / AMPERE_CEILING
    values = {
        "matmul_flop_per_s": device.peak_flop_per_s(precision),
        "half_flop_per_s": device.half_flop_per_s,
        "memory_bytes_per_s": device.memory_bytes_per_s,
        "peer_bytes_per_s": device.intra_node_bytes_per_s,
        "network_bytes_per_s": node.network_bytes_per_s / node.gpus if node else 1.0,
        "network_latency_s": cluster.network_latency_s if cluster else 0.0,
        "gpus_per_node": node.gpus if node else 1,
        "multiprocessors": device.multiprocessors or _USUAL_MULTIPROCESSORS,
        "in_switch_reduction": device.in_switch_reduction,
        "architecture": ARCHITECTURES.index(device.architecture),
        "power_fraction": device.power_fraction,
        "matmul_scale": scale,
        "memory_bytes": device.memory_bytes,
        "dropout": known.dropout,
        "attention": ATTENTION_KERNELS.index(known.attention),
        "precision": PRECISIONS.index(precision),
        "overlap_tensor": TENSOR_OVERLAPS.index(known.overlap_tensor),
        "overlap_data": known.overlap_data,
        "blocking_launches": known.blocking_launches,
        "gather_tensors": known.gather_tensors,
        "balanced_context": known.balanced_context,
        "gradient_bytes": known.gradient_bytes,
        "reserve_bytes": known.reserve_bytes,
    }
    return np.array([float(values[name]) for name in columns.HARDWARE_COLUMNS])
