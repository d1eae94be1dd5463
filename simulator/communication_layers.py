"""What a model brings to communication scheduling: times and gradient bytes, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtgym.simulator.errors import InvalidInput, above, at_least


@dataclass(frozen=True, eq=False)
class LayerTimes:
    """Compute times and gradient sizes of a model's layers, in forward order.

    A layer is whatever communicates as one: a tensor, or all tensors of a module.

    Attributes:
        forward_s: Time of the forward pass of each layer, seconds, (layers,).
        backward_s: Time of the backward pass of each layer, seconds, (layers,).
        gradient_bytes: Size of each layer's gradient, bytes, (layers,); 0 is a layer without
            parameters.

    Raises:
        InvalidInput: No layer, unequal lengths, a negative or non-finite number.

    Examples:
        >>> LayerTimes([1, 1, 1], [1, 1, 1], [1.5, 3, 1.5]).layers
        3
    """

    forward_s: NDArray[np.float64]
    backward_s: NDArray[np.float64]
    gradient_bytes: NDArray[np.float64]

    def __init__(
        self, forward_s: ArrayLike, backward_s: ArrayLike, gradient_bytes: ArrayLike
    ) -> None:
        for field, value, unit in (
            ("forward_s", forward_s, "s"),
            ("backward_s", backward_s, "s"),
            ("gradient_bytes", gradient_bytes, "bytes"),
        ):
            array = at_least(f"LayerTimes.{field}", value, 0.0, unit).copy()
            if array.ndim != 1:
                raise InvalidInput(
                    f"LayerTimes.{field} must be one number per layer (1-D), got shape "
                    f"{array.shape}"
                )
            array.setflags(write=False)
            object.__setattr__(self, field, array)
        lengths = (len(self.forward_s), len(self.backward_s), len(self.gradient_bytes))
        if len(set(lengths)) != 1 or lengths[0] == 0:
            raise InvalidInput(
                "LayerTimes.forward_s, backward_s and gradient_bytes must have one entry per layer "
                f"and at least one layer, got lengths {lengths[0]}, {lengths[1]} and {lengths[2]}"
            )

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.forward_s)

    def scaled(self, *, forward: float = 1.0, backward: float = 1.0) -> LayerTimes:
        """Returns the same layers with forward and backward times multiplied by factors."""
        factor = above("LayerTimes.scaled factor", [forward, backward], 0.0)
        return LayerTimes(
            self.forward_s * factor[0], self.backward_s * factor[1], self.gradient_bytes
        )


@dataclass(frozen=True, eq=False)
class LayerTables:
    """Several models in rows of equal length, as the kernel reads them.

    Attributes:
        ready_s: Sum of backward times of this and all later layers, (models, layers): when the
            gradient is ready, counted from the start of the backward pass.
        tail_s: Sum of forward times of this and all later layers, (models, layers).
        gradient_bytes: Gradient sizes, (models, layers).
        layer_counts: Layers in use of each row, int64, (models,).
        total_bytes: Sum of gradient sizes, (models,).
    """

    ready_s: NDArray[np.float64]
    tail_s: NDArray[np.float64]
    gradient_bytes: NDArray[np.float64]
    layer_counts: NDArray[np.int64]
    total_bytes: NDArray[np.float64]

    @classmethod
    def stack(cls, models: Sequence[LayerTimes]) -> LayerTables:
        """Puts models into the rows of tables, padded with zeros to the longest.

        Raises:
            InvalidInput: No model.
        """
        if not models:
            raise InvalidInput("LayerTables.stack needs at least one model, got none")
        counts = np.array([model.layers for model in models], dtype=np.int64)
        shape = (len(models), int(counts.max()))
        ready_s, tail_s, gradient_bytes = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        for row, model in enumerate(models):
            # Summed from the last layer on, in the order in which the backward pass runs.
            ready_s[row, : model.layers] = np.cumsum(model.backward_s[::-1])[::-1]
            tail_s[row, : model.layers] = np.cumsum(model.forward_s[::-1])[::-1]
            gradient_bytes[row, : model.layers] = model.gradient_bytes
        return cls(ready_s, tail_s, gradient_bytes, counts, gradient_bytes.sum(axis=1))
