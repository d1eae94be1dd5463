"""Time of single operations on one accelerator: matrix products and attention.

These are the functions the training cost model itself runs on, for spot checks and calibration.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtgym.simulator import calibration as calibrations
from dtgym.simulator.calibration import Calibration
from dtgym.simulator.errors import above, one_of
from dtgym.simulator.hardware import Accelerator
from dtgym.simulator.hardware_rows import hardware_row
from dtgym.simulator.kernels import training_columns as columns
from dtgym.simulator.kernels.training_checks import attention_array, matmul_array
from dtgym.simulator.kernels.training_cost import matmul_rates
from dtgym.simulator.plans import TRAINING_PRECISIONS
from dtgym.simulator.software import ATTENTION_KERNELS

Floats = NDArray[np.float64]


def matmul_time_s(
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    accelerator: Accelerator,
    *,
    precision: str = "half",
    calibration: Calibration | None = None,
) -> Floats:
    """Time of products (m, k) x (k, n).

    2 m n k over the sustained rate, times (1 + m0 / m) (1 + n0 / n) (1 + k0 / k) for the tiles that
    stay partly empty and for prologue and epilogue; or the traffic's time where that is longer.

    Args:
        m: Rows; broadcasts with `n` and `k`.
        n: Columns.
        k: Inner size.
        accelerator: The device.
        precision: ``half``, ``fp8`` or ``fp4``.
        calibration: Constants of the model; None takes the shipped ones.

    Returns:
        Seconds, in the broadcast shape.

    Raises:
        InvalidInput: A size that is not above 0, or a precision the device does not have.

    Source:
        The product form was fitted to the shapes measured by SimuMax (facts of docs/fidelity.md).

    Examples:
        >>> from dtgym.simulator import hardware
        >>> time_s = matmul_time_s(4096, 4096, 4096, hardware.accelerator("A100"))
        >>> bool(4e-4 < time_s < 9e-4)
        True
    """
    one_of("precision", precision, TRAINING_PRECISIONS)
    sizes = np.broadcast_arrays(above("m", m, 0), above("n", n, 0), above("k", k, 0))
    constants = (calibration or calibrations.shipped()).vector()
    row = hardware_row(accelerator, precision)
    rate, _ = matmul_rates(row, constants)
    shapes = np.stack([size.ravel() for size in sizes], axis=1)
    out = np.empty(shapes.shape[0])
    matmul_array(
        shapes,
        rate,
        row[columns.MEMORY_RATE],
        constants[columns.C_HALF_MN],
        constants[columns.C_HALF_K],
        out,
    )
    return out.reshape(sizes[0].shape)


def attention_time_s(
    batch_heads: ArrayLike,
    tokens: ArrayLike,
    head_dim: ArrayLike,
    accelerator: Accelerator,
    *,
    kernel: str = "fused",
    calibration: Calibration | None = None,
) -> tuple[Floats, Floats]:
    """Forward and backward time of causal self-attention.

    Args:
        batch_heads: Sequences times heads on the device.
        tokens: Tokens of a sequence.
        head_dim: Width of a head.
        accelerator: The device.
        kernel: ``unfused`` (scores pass through memory), ``flash1``, ``flash2`` or ``fused``.
        calibration: Constants of the model; None takes the shipped ones.

    Returns:
        Seconds forward and seconds backward, in the broadcast shape.

    Raises:
        InvalidInput: A size that is not above 0, or an unknown kernel.

    Examples:
        >>> from dtgym.simulator import hardware
        >>> device = hardware.accelerator("A100")
        >>> flash, _ = attention_time_s(32, 8192, 128, device, kernel="flash2")
        >>> unfused, _ = attention_time_s(32, 8192, 128, device, kernel="unfused")
        >>> bool(flash < unfused)
        True
    """
    code = ATTENTION_KERNELS.index(one_of("kernel", kernel, ATTENTION_KERNELS))
    sizes = np.broadcast_arrays(
        above("batch_heads", batch_heads, 0),
        above("tokens", tokens, 0),
        above("head_dim", head_dim, 0),
    )
    constants = (calibration or calibrations.shipped()).vector()
    row = hardware_row(accelerator, "half")
    _, rate = matmul_rates(row, constants)
    peak = row[columns.HALF_PEAK]
    shapes = np.stack([size.ravel() for size in sizes], axis=1)
    out = np.empty((shapes.shape[0], 2))
    attention_array(shapes, code, peak, rate, row, constants, out)
    return out[:, 0].reshape(sizes[0].shape), out[:, 1].reshape(sizes[0].shape)
