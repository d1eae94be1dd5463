"""Models as the environment needs them: layer tables, totals and what the observation says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dtgym.envs.communication_tuning.types import Parameters
from dtgym.simulator import communication_workloads as workloads
from dtgym.simulator.communication import LayerTables, LayerTimes
from dtgym.simulator.communication_mechanisms import MECHANISMS
from dtgym.simulator.errors import InvalidInput, one_of

TOY_LAYERS = LayerTimes([1, 1, 1], [1, 1, 1], [1.5e6, 3e6, 1.5e6])
"""ByteScheduler's contrived example (docs/scheduling.md) with a megabyte as unit of size."""


@dataclass(frozen=True, eq=False)
class Profiles:
    """The models that episodes draw from.

    Attributes:
        names: Names, (models,).
        layers: Profiles in forward order, (models,).
        tables: Rows 0 to models - 1 for the reference (the release with its default), the same
            number again for the mechanism that runs (which may merge gradients).
        default_flags: Mechanism bits of the reference.
        compute_s: Forward and backward time, s, (models,).
        total_bytes: All gradients, bytes, (models,).
        largest_bytes: Largest gradient, bytes, (models,).
        pieces: Pieces of all gradients under the mechanism, (models, partitions).
        features: Entries 13 to 17 of the observation, (models, 5).
    """

    names: tuple[str, ...]
    layers: tuple[LayerTimes, ...]
    tables: LayerTables
    default_flags: int
    compute_s: NDArray[np.float64]
    total_bytes: NDArray[np.float64]
    largest_bytes: NDArray[np.float64]
    pieces: NDArray[np.float64]
    features: NDArray[np.float64]

    @classmethod
    def load(cls, parameters: Parameters) -> Profiles:
        """Loads the models that `parameters` name.

        Raises:
            InvalidInput: An unknown model, or no model at all.
        """
        names = model_names(parameters.model)
        layers = tuple(load_layers(name, parameters.batch_size) for name in names)
        mechanism = MECHANISMS[parameters.mechanism]
        running = [mechanism.layers(model) for model in layers]
        fixed = mechanism.partition_bytes
        partitions = [fixed] if fixed is not None else parameters.partition_grid_bytes
        pieces = np.array([[_pieces(model, size) for size in partitions] for model in running])
        axis = len(parameters.partition_grid_bytes)
        return cls(
            names=names,
            layers=layers,
            tables=LayerTables.stack([*layers, *running]),
            default_flags=MECHANISMS["bytescheduler"].flags(parameters.architecture),
            compute_s=np.array([(m.forward_s + m.backward_s).sum() for m in layers]),
            total_bytes=np.array([m.gradient_bytes.sum() for m in layers]),
            largest_bytes=np.array([m.gradient_bytes.max() for m in running]),
            pieces=np.broadcast_to(pieces, (len(names), axis)),
            features=np.array([_features(m) for m in layers]),
        )


def model_names(model: str | tuple[str, ...]) -> tuple[str, ...]:
    """Names of the models that an argument `model` stands for.

    Raises:
        InvalidInput: An unknown model, or no model at all.
    """
    if model == "random":
        return workloads.NAMES
    names = (model,) if isinstance(model, str) else model
    if not names:
        raise InvalidInput("model must name at least one workload, got none")
    for name in names:
        one_of("model", name, (*workloads.NAMES, "toy"))
    return names


def load_layers(name: str, batch_size: int) -> LayerTimes:
    """Layers of a workload, tensor by tensor as frameworks send them; ``toy`` ignores the batch."""
    if name == "toy":
        return TOY_LAYERS
    return workloads.load(name, batch_size=batch_size, granularity="tensor")


def _pieces(layers: LayerTimes, partition_bytes: float) -> float:
    sizes = layers.gradient_bytes[layers.gradient_bytes > 0]
    return float(np.maximum(np.ceil(sizes / partition_bytes), 1).sum())


def _features(layers: LayerTimes) -> tuple[float, ...]:
    sizes = layers.gradient_bytes
    quarter = max(layers.layers // 4, 1)
    return (
        np.log10(sizes.sum() / 1e8),
        np.log10(np.count_nonzero(sizes) / 100),
        sizes.max() / sizes.sum(),
        sizes[:quarter].sum() / sizes.sum(),
        np.log10((layers.forward_s + layers.backward_s).sum() / 0.1),
    )
