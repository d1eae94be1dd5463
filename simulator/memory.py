"""Memory of training on one device, by part, from the closed forms the cost model uses.

Weights are kept at 2 bytes, gradients at the framework's width, the optimizer at 12 bytes (a 32-bit
copy and two moments); ZeRO stage 1 shards the optimizer, 2 also gradients, 3 also weights.
Activations per block follow Korthikanti et al., for any width of feed-forward layer, grouped heads
and gates; how many micro-batches are alive follows from the schedule.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtgym.simulator.errors import at_least, one_of
from dtgym.simulator.kernels.training_columns import MEMORY_PARTS
from dtgym.simulator.plans import RECOMPUTE
from dtgym.simulator.workload import Transformer

__all__ = ["MEMORY_PARTS", "activation_bytes_per_layer", "state_bytes_per_parameter"]

Floats = NDArray[np.float64]


def state_bytes_per_parameter(
    zero: ArrayLike, ranks: ArrayLike, gradient_bytes: float = 2.0
) -> Floats:
    """Bytes of weights, gradients and optimizer state per parameter on one rank.

    Args:
        zero: ZeRO stage, 0..3.
        ranks: Ranks that share the state, at least 1.
        gradient_bytes: Bytes of one gradient.

    Source:
        Rajbhandari et al., ZeRO, SC 2020, section 5: 4 + 12/d, 2 + 14/d, 16/d.

    Examples:
        >>> state_bytes_per_parameter([0, 1, 2, 3], 8).tolist()
        [16.0, 5.5, 3.75, 2.0]
    """
    stage = at_least("zero", zero, 0)
    share = 1 / at_least("ranks", ranks, 1)
    weights = 2 * np.where(stage >= 3, share, 1.0)
    gradients = gradient_bytes * np.where(stage >= 2, share, 1.0)
    return weights + gradients + 12 * np.where(stage >= 1, share, 1.0)


def activation_bytes_per_layer(
    model: Transformer,
    microbatch: ArrayLike,
    *,
    tensor: ArrayLike = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
    scores_in_memory: bool = False,
    dropout: bool = False,
) -> Floats:
    """Bytes one block keeps of one micro-batch until its backward pass.

    Args:
        model: Shape of the model.
        microbatch: Sequences of the micro-batch.
        tensor: Tensor-parallel degree.
        sequence_parallel: Whether norms and dropout are split over the tensor ranks.
        recompute: One of `dtgym.simulator.plans.RECOMPUTE`.
        scores_in_memory: Whether attention writes its scores (no flash kernel).
        dropout: Whether dropout masks are kept.

    Source:
        Korthikanti et al., 2022, table 2: sbh (34 + 5as/h) with dropout and 4 h feed-forward,
        (10 + 24/t + 5as/(ht)) under tensor parallelism, all over t with sequence parallelism,
        34 sbh / t with selective and 2 sbh with full recomputation.

    Examples:
        >>> from dtgym.simulator import workload
        >>> gpt = workload.transformer("megatron-22b")
        >>> size = activation_bytes_per_layer(
        ...     gpt, 4, tensor=8, scores_in_memory=True, dropout=True)
        >>> round(float(48 * size / 2**30), 2)
        59.25
    """
    one_of("recompute", recompute, RECOMPUTE)
    sequences = at_least("microbatch", microbatch, 0)
    t = at_least("tensor", tensor, 1)
    tokens = sequences * model.sequence
    shared = t if sequence_parallel else 1.0
    if recompute == "full":
        return 2 * tokens * model.hidden / shared
    kept = tokens * model.hidden * (8.0 + (2.0 if dropout else 0.0)) / shared
    kept = kept + 2 * tokens * (model.qkv_width + model.heads * model.head_dim) / t
    gate = 4 if model.gated else 0
    width = model.experts_per_token * model.ffn / t
    if recompute == "operators":
        entering = width * (1 + gate / 4)
        outputs = model.qkv_width / t + model.hidden / shared + entering
        outputs = outputs + model.experts_per_token * model.hidden / shared
        kept = 2 * tokens * model.hidden / shared
        return kept + 2 * tokens * model.heads * model.head_dim / t + tokens * outputs
    kept = kept + tokens * (4 + gate) * width
    if scores_in_memory and recompute == "none":
        kept = kept + 5 * sequences * model.heads / t * model.sequence**2
    return kept
