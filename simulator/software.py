"""What the training software does: the switches of the cost model that are not hardware."""

from __future__ import annotations

from dataclasses import dataclass

from dtgym.simulator.errors import InvalidInput, above, at_least, one_of

TENSOR_OVERLAPS = ("none", "backward", "full")
"""Tensor-parallel exchange waits; runs behind weight gradients; or behind all matrix products."""

ATTENTION_KERNELS = ("unfused", "flash1", "flash2", "fused")
"""Scores in memory; flash kernels of 2022 and of 2023; the vendor's kernel for the architecture."""


@dataclass(frozen=True, slots=True)
class Software:
    """Switches of a training framework.

    Attributes:
        attention: One of `ATTENTION_KERNELS`.
        dropout: Whether blocks apply dropout, with its masks and additional passes over memory.
        overlap_tensor: One of `TENSOR_OVERLAPS`.
        overlap_data: Gradient synchronisation runs behind the backward pass.
        blocking_launches: Every kernel is waited for (CUDA_LAUNCH_BLOCKING).
        gather_tensors: Fully sharded weights are gathered tensor by tensor instead of by block.
        balanced_context: Context-parallel ranks take early and late parts of the sequence, so that
            causal attention weighs on all alike.
        gradient_bytes: Bytes per element of accumulated and synchronised gradients.
        reserve_bytes: Device memory that context, libraries and fragmentation take.
    """

    attention: str = "fused"
    dropout: bool = False
    overlap_tensor: str = "full"
    overlap_data: bool = True
    blocking_launches: bool = False
    gather_tensors: bool = False
    balanced_context: bool = True
    gradient_bytes: float = 4.0
    reserve_bytes: float = 3e9

    def __post_init__(self) -> None:
        one_of("Software.attention", self.attention, ATTENTION_KERNELS)
        one_of("Software.overlap_tensor", self.overlap_tensor, TENSOR_OVERLAPS)
        above("Software.gradient_bytes", self.gradient_bytes, 0, "bytes")
        at_least("Software.reserve_bytes", self.reserve_bytes, 0, "bytes")


_FRAMEWORKS: dict[str, Software] = {
    "megatron-core": Software(),
    "megatron-lm-2021": Software(
        attention="unfused",
        dropout=True,
        overlap_tensor="none",
        overlap_data=False,
        gradient_bytes=2.0,
    ),
    "megatron-lm-2022": Software(
        attention="unfused",
        dropout=True,
        overlap_tensor="backward",
        overlap_data=False,
        gradient_bytes=2.0,
    ),
    "megatron-deepspeed-2021": Software(
        attention="unfused",
        dropout=True,
        overlap_tensor="none",
        overlap_data=False,
        gradient_bytes=2.0,
        reserve_bytes=13e9,
    ),
    "deepspeed-zero3-2021": Software(
        attention="unfused",
        dropout=True,
        overlap_tensor="none",
        gather_tensors=True,
        gradient_bytes=2.0,
    ),
    "fsdp-2023": Software(attention="flash1", overlap_tensor="none", gradient_bytes=2.0),
    "torchtitan": Software(
        attention="flash2", overlap_tensor="none", balanced_context=False, gradient_bytes=2.0
    ),
}


def framework_names() -> tuple[str, ...]:
    """Names that `framework` knows."""
    return tuple(_FRAMEWORKS)


def framework(name: str) -> Software:
    """Switches of a known framework.

    Raises:
        InvalidInput: Unknown name; the message lists the known ones.
    """
    if name not in _FRAMEWORKS:
        raise InvalidInput(f"framework must be one of {', '.join(_FRAMEWORKS)}; got {name!r}")
    return _FRAMEWORKS[name]
