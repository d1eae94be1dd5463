"""Columns of the arrays that the training kernel reads and writes.

A tuple names the columns, and the constants behind it are their numbers in the same order. They are
whole numbers of a module because Numba compiles those in.
"""

from __future__ import annotations

MODEL_COLUMNS = (
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "head_dim",
    "ffn",
    "gated",
    "vocab",
    "sequence",
    "experts",
    "experts_per_token",
    "tied",
    "attention_parameters",
    "expert_parameters",
)
"""One row per model: its shape."""
(
    LAYERS,
    HIDDEN,
    HEADS,
    KV_HEADS,
    HEAD_DIM,
    FFN,
    GATED,
    VOCAB,
    SEQUENCE,
    EXPERTS,
    EXPERTS_PER_TOKEN,
    TIED,
    ATTENTION_PARAMETERS,
    EXPERT_PARAMETERS,
) = range(len(MODEL_COLUMNS))

HARDWARE_COLUMNS = (
    "matmul_flop_per_s",
    "half_flop_per_s",
    "memory_bytes_per_s",
    "peer_bytes_per_s",
    "network_bytes_per_s",
    "network_latency_s",
    "gpus_per_node",
    "multiprocessors",
    "in_switch_reduction",
    "architecture",
    "power_fraction",
    "matmul_scale",
    "memory_bytes",
    "dropout",
    "attention",
    "precision",
    "overlap_tensor",
    "overlap_data",
    "blocking_launches",
    "gather_tensors",
    "balanced_context",
    "gradient_bytes",
    "reserve_bytes",
)
"""One row per combination of hardware, precision and software."""
(
    MATMUL_PEAK,
    HALF_PEAK,
    MEMORY_RATE,
    PEER_RATE,
    NETWORK_RATE,
    NETWORK_LATENCY,
    GPUS_PER_NODE,
    MULTIPROCESSORS,
    IN_SWITCH,
    ARCHITECTURE,
    POWER,
    MATMUL_SCALE,
    MEMORY_BYTES,
    DROPOUT,
    ATTENTION,
    PRECISION,
    OVERLAP_TENSOR,
    OVERLAP_DATA,
    BLOCKING,
    GATHER_TENSORS,
    BALANCED_CONTEXT,
    GRADIENT_BYTES,
    RESERVE,
) = range(len(HARDWARE_COLUMNS))

PLAN_COLUMNS = (
    "tensor",
    "pipeline",
    "data",
    "context",
    "expert",
    "chunks",
    "microbatch",
    "microbatches",
    "zero",
    "sequence_parallel",
    "recompute",
)
"""One row per plan."""
(
    TENSOR,
    PIPELINE,
    DATA,
    CONTEXT,
    EXPERT,
    CHUNKS,
    MICROBATCH,
    MICROBATCHES,
    ZERO,
    SEQUENCE_PARALLEL,
    RECOMPUTE,
) = range(len(PLAN_COLUMNS))

CONSTANT_NAMES = (
    "matmul_volta",
    "matmul_ampere",
    "matmul_hopper",
    "matmul_blackwell",
    "fp8_gain",
    "fp4_gain",
    "power_exponent",
    "matmul_half_mn",
    "matmul_half_k",
    "misaligned",
    "flash1",
    "flash2",
    "fused_hopper",
    "fused_blackwell",
    "warp_level",
    "attention_backward",
    "elementwise",
    "softmax",
    "cast",
    "launch_s",
    "blocking_launch_s",
    "gather_launch_s",
    "peer_efficiency",
    "network_efficiency",
    "peer_hop_s",
    "network_start_s",
    "contention",
    "tensor_overlap",
    "optimizer_bytes",
    "iteration_s",
)
"""The vector of physical constants (see `dtgym.simulator.calibration`)."""
(
    C_VOLTA,
    C_AMPERE,
    C_HOPPER,
    C_BLACKWELL,
    C_FP8,
    C_FP4,
    C_POWER,
    C_HALF_MN,
    C_HALF_K,
    C_MISALIGNED,
    C_FLASH1,
    C_FLASH2,
    C_FUSED_HOPPER,
    C_FUSED_BLACKWELL,
    C_WARP_LEVEL,
    C_ATTENTION_BACKWARD,
    C_ELEMENTWISE,
    C_SOFTMAX,
    C_CAST,
    C_LAUNCH,
    C_BLOCKING,
    C_GATHER_LAUNCH,
    C_PEER,
    C_NETWORK,
    C_PEER_HOP,
    C_NETWORK_START,
    C_CONTENTION,
    C_TENSOR_OVERLAP,
    C_OPTIMIZER,
    C_ITERATION,
) = range(len(CONSTANT_NAMES))

SCALARS = ("layer_forward_s", "layer_backward_s", "embed_forward_s", "head_forward_s", "border_s")
"""Per-plan numbers beside the stage arrays: what interleaved schedules are put together from."""

STAGE_PARTS = ("compute_s", "tensor_s", "data_s", "sync_s", "update_s")
"""Per-stage times: the first three of one micro-batch, the last two once per iteration."""

MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "reserve")
"""Per-stage bytes."""

SCREEN_COLUMNS = (
    "layer_s",
    "first_s",
    "last_s",
    "borders_s",
    "microbatches",
    "chunks",
    "stages",
    "after_s",
    "layers",
)
"""What the closed form needs of one configuration."""
(
    SCREEN_LAYER,
    SCREEN_FIRST,
    SCREEN_LAST,
    SCREEN_BORDERS,
    SCREEN_MICROBATCHES,
    SCREEN_CHUNKS,
    SCREEN_STAGES,
    SCREEN_AFTER,
    SCREEN_BLOCKS,
) = range(len(SCREEN_COLUMNS))
