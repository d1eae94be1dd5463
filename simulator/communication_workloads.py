"""Nine models as communication tuning sees them: layer times and gradient bytes from a catalogue.

Tensor shapes are exact. Times come from published layer profiles where they exist and from FLOP
counts elsewhere; `Workload.times_source` says which.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.communication_layers import LayerTimes
from dtgym.simulator.errors import InvalidInput, above, at_least, one_of

NAMES: tuple[str, ...] = (
    "alexnet",
    "vgg16",
    "vgg19",
    "resnet50",
    "bert_base",
    "bert_large",
    "gpt2_small",
    "gpt2_medium",
    "transformer_base",
)
"""Every model of the catalogue."""

BYTES_PER_ELEMENT = 4
"""Gradients travel in fp32, as in the systems that this reconstructs."""

DEFAULT_FLOP_PER_S = 1.0e13
"""Sustained speed assumed where a model has no profile: about two thirds of a V100's fp32 peak."""

DEFAULT_MEMORY_BYTES_PER_S = 7.0e11
"""Sustained memory bandwidth assumed for normalisation layers: about 80 % of a V100's peak."""


@dataclass(frozen=True, eq=False)
class Workload:
    """Layers of a model of the catalogue, in forward order.

    Attributes:
        name: Key of the catalogue.
        unit: What FLOP and elements are counted per: ``sample`` or ``token``.
        sequence_length: Default tokens per sample; 1 if `unit` is ``sample``.
        layer_names: Name of each layer.
        tensor_elements: Elements of each layer's tensors, one tuple per layer.
        forward_flop: Forward FLOP of each layer per unit, (layers,).
        attention_flop: Further forward FLOP per token and position of context, (layers,).
        norm_elements: Activation elements per unit of normalisation layers, (layers,).
        profile_batch: Samples of the published profile; 0 if there is none.
        profile_forward_s: Published forward times of a whole batch, (layers,), or (0,).
        profile_backward_s: Published backward times of a whole batch, (layers,), or (0,).
    """

    name: str
    unit: str
    sequence_length: int
    layer_names: tuple[str, ...]
    tensor_elements: tuple[tuple[int, ...], ...]
    forward_flop: NDArray[np.float64]
    attention_flop: NDArray[np.float64]
    norm_elements: NDArray[np.float64]
    profile_batch: int
    profile_forward_s: NDArray[np.float64]
    profile_backward_s: NDArray[np.float64]

    @property
    def times_source(self) -> str:
        """Where times come from by default: ``profile`` (published) or ``flop`` (computed)."""
        return "profile" if self.profile_batch else "flop"

    @property
    def parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(sum(tensors) for tensors in self.tensor_elements)

    @property
    def tensors(self) -> int:
        """Number of trainable tensors."""
        return sum(len(tensors) for tensors in self.tensor_elements)


def load(
    name: str,
    *,
    batch_size: float = 32,
    sequence_length: int | None = None,
    accelerator_flop_per_s: float | None = None,
    memory_bytes_per_s: float = DEFAULT_MEMORY_BYTES_PER_S,
    granularity: str = "layer",
) -> LayerTimes:
    """Loads a model of the catalogue as layers of an iteration.

    Args:
        name: One of `NAMES`.
        batch_size: Samples per worker and iteration.
        sequence_length: Tokens per sample; None takes the model's default. Ignored for images.
        accelerator_flop_per_s: Sustained speed; times are then computed from FLOP. None takes the
            published profile, scaled to `batch_size`, where there is one, and
            `DEFAULT_FLOP_PER_S` elsewhere.
        memory_bytes_per_s: Sustained memory bandwidth, for normalisation layers without profile.
        granularity: ``layer``: the tensors of a layer communicate as one gradient. ``tensor``:
            each tensor on its own, as frameworks send them; all are ready when the layer's
            backward ends, and its forward waits for all of them.

    Returns:
        The layers. Backward FLOP are twice the forward's.

    Raises:
        InvalidInput: Unknown name or granularity, or a number out of range.

    Examples:
        >>> vgg16 = load("vgg16", batch_size=32)
        >>> int(vgg16.gradient_bytes.sum()), round(float(vgg16.forward_s.sum()), 4)
        (553430176, 0.0585)
        >>> load("vgg16", granularity="tensor").layers
        32
    """
    workload = describe(name)
    batch = float(above("batch_size", batch_size, 0, "samples"))
    one_of("granularity", granularity, ("layer", "tensor"))
    if accelerator_flop_per_s is None and workload.profile_batch:
        scale = batch / workload.profile_batch
        forward_s = workload.profile_forward_s * scale
        backward_s = workload.profile_backward_s * scale
    else:
        speed = DEFAULT_FLOP_PER_S if accelerator_flop_per_s is None else accelerator_flop_per_s
        speed = _rate("accelerator_flop_per_s", speed, 1e9, 1e18, "FLOP/s")
        memory = _rate("memory_bytes_per_s", memory_bytes_per_s, 1e8, 1e15, "bytes/s")
        units = batch
        context = 0.0
        if workload.unit == "token":
            context = float(
                at_least(
                    "sequence_length", sequence_length or workload.sequence_length, 1, "tokens"
                )
            )
            units = batch * context
        flop = workload.forward_flop + context * workload.attention_flop
        # A normalisation reads its input and writes its output once.
        moved = 2 * BYTES_PER_ELEMENT * workload.norm_elements
        forward_s = units * (flop / speed + moved / memory)
        backward_s = 2 * forward_s
    if granularity == "layer":
        sizes = [BYTES_PER_ELEMENT * sum(tensors) for tensors in workload.tensor_elements]
        return LayerTimes(forward_s, backward_s, sizes)
    return _by_tensor(workload, forward_s, backward_s)


@lru_cache(maxsize=len(NAMES))
def describe(name: str) -> Workload:
    """Reads a model's catalogue file.

    Raises:
        InvalidInput: Unknown name, or a file that does not add up to the model's totals.

    Examples:
        >>> describe("vgg16").parameters, describe("bert_large").times_source
        (138357544, 'flop')
    """
    one_of("model", name, NAMES)
    [totals] = [row for row in _rows("models.csv") if row["model"] == name]
    rows = _rows(f"{name}.csv")
    profile_batch = int(totals["profile_batch"] or 0)

    def column(key: str, factor: float = 1.0) -> NDArray[np.float64]:
        return np.array([float(row[key]) * factor for row in rows])

    workload = Workload(
        name=name,
        unit=totals["unit"],
        sequence_length=int(totals["sequence_length"] or 1),
        layer_names=tuple(row["layer"] for row in rows),
        tensor_elements=tuple(
            tuple(int(n) for n in row["tensor_elements"].split()) for row in rows
        ),
        forward_flop=column("forward_flop"),
        attention_flop=column("attention_flop"),
        norm_elements=column("norm_elements"),
        profile_batch=profile_batch,
        profile_forward_s=column("forward_ms", 1e-3) if profile_batch else np.empty(0),
        profile_backward_s=column("backward_ms", 1e-3) if profile_batch else np.empty(0),
    )
    found = (workload.parameters, workload.tensors, len(rows))
    expected = tuple(int(totals[key]) for key in ("parameters", "tensors", "layers"))
    if found != expected:
        raise InvalidInput(
            f"catalog/communication/{name}.csv must hold {expected[0]} parameters in {expected[1]} "
            f"tensors and {expected[2]} layers, got {found[0]}, {found[1]} and {found[2]}"
        )
    return workload


def at_throughput(layers: LayerTimes, batch_size: float, samples_per_s: float) -> LayerTimes:
    """Scales compute times so that the model alone reaches a measured speed.

    Args:
        layers: Layers whose proportions are kept.
        batch_size: Samples per worker and iteration.
        samples_per_s: Speed of one worker without communication, samples/s.

    Raises:
        InvalidInput: A number that is not above 0.

    Examples:
        >>> fast = at_throughput(load("vgg16"), batch_size=32, samples_per_s=100)
        >>> round(float(fast.forward_s.sum() + fast.backward_s.sum()), 9)
        0.32
    """
    batch = float(above("batch_size", batch_size, 0, "samples"))
    speed = float(above("samples_per_s", samples_per_s, 0, "samples/s"))
    factor = batch / speed / float(layers.forward_s.sum() + layers.backward_s.sum())
    return layers.scaled(forward=factor, backward=factor)


def _by_tensor(
    workload: Workload, forward_s: NDArray[np.float64], backward_s: NDArray[np.float64]
) -> LayerTimes:
    forward: list[float] = []
    backward: list[float] = []
    sizes: list[int] = []
    for tensors, f, b in zip(workload.tensor_elements, forward_s, backward_s, strict=True):
        # Both times sit on the last tensor: the forward then waits for all of the layer's
        # tensors, and all of them are ready when the layer's backward ends.
        own = [BYTES_PER_ELEMENT * n for n in tensors] or [0]
        sizes += own
        forward += [0.0] * (len(own) - 1) + [float(f)]
        backward += [0.0] * (len(own) - 1) + [float(b)]
    return LayerTimes(forward, backward, sizes)


def _rate(field: str, value: float, low: float, high: float, unit: str) -> float:
    rate = float(above(field, value, 0, unit))
    if not low <= rate <= high:
        raise InvalidInput(f"{field} must be in {unit} ({low:g} to {high:g}), got {rate:g}")
    return rate


def _rows(file: str) -> list[dict[str, str]]:
    path = resources.files("dtgym.simulator") / "catalog" / "communication" / file
    lines = path.read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))
