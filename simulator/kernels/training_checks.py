"""The training kernel's device functions over arrays: what compute and collectives publish.

Numba's on-disk cache does not see changes in `training_cost`: touch this file after changing that.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dtgym.simulator.kernels.training_cost import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    attention_s,
    matmul_s,
)

ALL_GATHER, ALL_REDUCE, ALL_TO_ALL = range(3)


@njit(cache=True, nogil=True)
def matmul_array(shapes, flop_per_s, memory_bytes_per_s, half_mn, half_k, out):
    """`matmul_s` of (products, 3) shapes (m, n, k)."""
    for i in range(shapes.shape[0]):
        m, n, k = shapes[i]
        out[i] = matmul_s(m, n, k, flop_per_s, memory_bytes_per_s, half_mn, half_k)


@njit(cache=True, nogil=True)
def attention_array(shapes, kernel, half_peak, rate, hardware, constants, out):
    """`attention_s` of (cases, 3) shapes (batch x heads, tokens, head dimension)."""
    for i in range(shapes.shape[0]):
        heads, tokens, head_dim = shapes[i]
        out[i] = np.array(
            attention_s(
                heads, tokens, tokens, head_dim, kernel, half_peak, rate, hardware, constants
            )
        )


@njit(cache=True, nogil=True)
def collective_array(kind, size, ranks, local, peer, network, hop_s, start_s, in_switch, out):
    """One kind of collective over (cases,) sizes and ranks."""
    for i in range(size.size):
        s, n, g = size[i], ranks[i], local[i]
        if kind == ALL_GATHER:
            out[i] = all_gather_s(s, n, g, peer, network, hop_s, start_s)
        elif kind == ALL_REDUCE:
            out[i] = all_reduce_s(s, n, g, peer, network, hop_s, start_s, in_switch)
        else:
            out[i] = all_to_all_s(s, n, g, peer, network, hop_s, start_s)
