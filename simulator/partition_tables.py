"""Cost tables of the partition evaluator, from measured layer profiles.

Two file formats are read, JSON or YAML, both with run-length lists (``[count, values]`` stands for
`count` equal layers):

Own format, one model::

    model: GPT-Neo-2.7B
    bytes_per_element: 4          # of activations, as they were measured
    layers:                       # by tensor-parallel size, per accelerator and sample:
      1: [[1, [134021120, 5242880, 6553600]], ...]   # parameters, output, stored elements
    times_s:                      # by accelerator, tensor-parallel size and samples:
      A100-40:
        1: {1: [[1, [0.0031, 0.0, 0.0066]], ...]}    # forward, backward, model update

Sailor's format, several models: ``sizes[model]["tp1"]`` and
``times[model][accelerator]["mbs1_tp1"]`` with the same values, 4 bytes per element.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.errors import InvalidInput, at_least
from dtgym.simulator.partition_types import RECOMPUTE, Assumptions, CostTables, Problem

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LayerProfile:
    """Measured costs of one model's layers on several accelerators.

    Attributes:
        model: Name.
        bytes_per_element: Bytes of one stored or sent element, as measured.
        sizes: By tensor-parallel size: (layers, 3) parameters per accelerator, output elements and
            stored elements per sample.
        times_s: By accelerator, tensor-parallel size and samples: (layers, 3) forward, backward,
            and the optimizer update of the whole model, repeated on each of its layers.
    """

    model: str
    bytes_per_element: float
    sizes: Mapping[int, Floats]
    times_s: Mapping[str, Mapping[tuple[int, int], Floats]]

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(next(iter(self.sizes.values())))


def read_profiles(path: Path) -> dict[str, LayerProfile]:
    """Reads measured layer profiles, by model.

    Raises:
        InvalidInput: A file that is neither format, or layers that do not match; the message names
            the file and the field.
    """
    from dtgym.simulator.documents import read_yaml

    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text) if path.suffix == ".json" else read_yaml(text, source=str(path))
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{path}: cannot be read as a layer profile: {error}") from error
    if not isinstance(document, Mapping):
        raise InvalidInput(
            f"{path}: expected a mapping with times_s and layers, or times and sizes"
        )
    if "times_s" in document:
        profile = _own_format(document, str(path))
        return {profile.model: profile}
    if "times" in document and "sizes" in document:
        return _sailor_format(document, str(path))
    raise InvalidInput(f"{path}: expected the keys times_s and layers, or times and sizes")


def profiled_tables(
    profiles: LayerProfile | Sequence[LayerProfile], accelerators: Sequence[str]
) -> CostTables:
    """Cost tables with a row for each profile on each accelerator, profiles outermost.

    Recompute in full stores a layer's input alone and repeats its forward; selective recompute is
    not in a profile, so plans that ask for it are infeasible ("profile").

    Args:
        profiles: One or several models.
        accelerators: Names as in the profile.

    Raises:
        InvalidInput: An accelerator that a profile does not have.
    """
    models = [profiles] if isinstance(profiles, LayerProfile) else list(profiles)
    pairs = [(model, name) for model in models for name in accelerators]
    for model, name in pairs:
        if name not in model.times_s:
            raise InvalidInput(
                f"accelerator {name!r} is not in the profile of {model.model}; "
                f"it has {', '.join(sorted(model.times_s))}"
            )
    keys = [key for model, name in pairs for key in model.times_s[name]]
    sizes = np.array(sorted({tp for tp, _ in keys}))
    samples = np.array(sorted({batch for _, batch in keys}))
    rows, borders = len(pairs), max(model.layers for model, _ in pairs) + 1
    forward_s = np.full((rows, sizes.size, samples.size, borders), np.nan)
    backward_s = forward_s.copy()
    update_s = forward_s.copy()
    parameters = np.full((rows, sizes.size, borders), np.nan)
    activation_bytes = np.full((rows, len(RECOMPUTE), sizes.size, borders), np.nan)
    largest = np.zeros((rows, sizes.size))
    output = np.zeros((rows, borders))
    for row, (model, name) in enumerate(pairs):
        stop = model.layers + 1
        times = model.times_s[name]
        for t, tp in enumerate(sizes.tolist()):
            measured = {batch: times[key] for key in times if key[0] == tp for batch in key[1:]}
            for batch, layer_times in measured.items():
                b = int(np.searchsorted(samples, batch))
                forward_s[row, t, b, :stop] = _prefix(layer_times[:, 0])
                backward_s[row, t, b, :stop] = _prefix(layer_times[:, 1])
                # A profile repeats the whole model's update on every layer.
                update_s[row, t, b, :stop] = _prefix(layer_times[:, 2] / model.layers)
            if tp not in model.sizes or not measured:
                continue
            layer = model.sizes[tp]
            parameters[row, t, :stop] = _prefix(layer[:, 0])
            stored = layer[:, 2] * model.bytes_per_element
            inputs = np.concatenate(([0.0], layer[:-1, 1])) * model.bytes_per_element
            activation_bytes[row, 0, t, :stop] = _prefix(stored)
            activation_bytes[row, 2, t, :stop] = _prefix(np.minimum(inputs, stored))
            largest[row, t] = stored.max()
        whole = model.sizes[min(model.sizes)]
        output[row, 1:stop] = whole[:, 1]
    return CostTables(
        names=tuple(f"{model.model} on {name}" for model, name in pairs),
        tensor_parallel=sizes,
        samples=samples,
        layers=np.array([model.layers for model, _ in pairs]),
        forward_s=forward_s,
        backward_s=backward_s,
        selective_s=np.full_like(forward_s, np.nan),
        update_s=update_s,
        parameters=parameters,
        activation_bytes=activation_bytes,
        largest_activation_bytes=largest,
        output_elements=output,
    )


def two_cluster_example() -> Problem:
    """A small problem for documentation and tests: 8 equal layers, two clusters of 4.

    The second cluster's accelerators are half as fast; 10 GB/s and 1 ms lie between.
    """
    layer = np.array([[50e6, 4e6, 40e6]] * 8)
    sizes = {tp: layer * [1 / tp, 1, 1 / tp] for tp in (1, 2, 4)}
    samples = (1, 2, 4, 8)
    times_s = {
        name: {
            (tp, batch): np.array([[batch, 2.5 * batch, 1.0]] * 8) * seconds / (0.9 * tp + 0.1)
            for tp in sizes
            for batch in samples
        }
        for name, seconds in (("fast", 1e-3), ("slow", 2e-3))
    }
    tables = profiled_tables(LayerProfile("example", 2.0, sizes, times_s), ("fast", "slow"))
    pair = np.ones((1, 2))
    return Problem(
        tables=tables,
        row=np.array([[0, 1]]),
        global_batch=np.array([32]),
        nodes=np.array([[1, 1]]),
        gpus_per_node=np.array([[4, 4]]),
        memory_bytes=16e9 * pair,
        memory_bytes_per_s=1e12 * pair,
        intra_bytes_per_s=100e9 * pair,
        inter_bytes_per_s=10e9 * pair,
        intra_latency_s=3e-6 * pair,
        inter_latency_s=5e-6 * pair,
        wan_bytes_per_s=np.array([[[0.0, 1e10], [1e10, 0.0]]]),
        wan_delay_s=np.array([[[0.0, 1e-3], [1e-3, 0.0]]]),
        gpu_usd_per_hour=np.array([[2.0, 1.0]]),
        wan_usd_per_byte=np.array([[[0.0, 2e-11], [2e-11, 0.0]]]),
        assumptions=Assumptions(),
    )


def _own_format(document: Mapping[str, Any], where: str) -> LayerProfile:
    for key in ("model", "bytes_per_element", "layers", "times_s"):
        if key not in document:
            raise InvalidInput(f"{where}: the field {key} is missing")
    sizes = {
        _size(key, f"{where}: layers"): _unroll(runs, f"{where}: layers[{key}]")
        for key, runs in _mapping(document["layers"], f"{where}: layers").items()
    }
    times_s: dict[str, dict[tuple[int, int], Floats]] = {}
    for name, by_size in _mapping(document["times_s"], f"{where}: times_s").items():
        times_s[str(name)] = {
            (_size(tp, f"{where}: times_s[{name}]"), _size(batch, f"{where}: times_s[{name}]")): (
                _unroll(runs, f"{where}: times_s[{name}][{tp}][{batch}]")
            )
            for tp, by_batch in _mapping(by_size, f"{where}: times_s[{name}]").items()
            for batch, runs in _mapping(by_batch, f"{where}: times_s[{name}][{tp}]").items()
        }
    element = float(at_least(f"{where}: bytes_per_element", document["bytes_per_element"], 0.5))
    return _checked(LayerProfile(str(document["model"]), element, sizes, times_s), where)


def _sailor_format(document: Mapping[str, Any], where: str) -> dict[str, LayerProfile]:
    profiles: dict[str, LayerProfile] = {}
    for model, by_name in _mapping(document["times"], f"{where}: times").items():
        if model not in document["sizes"]:
            raise InvalidInput(f"{where}: sizes[{model}] is missing")
        sizes = {
            int(key.removeprefix("tp")): _unroll(runs, f"{where}: sizes[{model}][{key}]")
            for key, runs in document["sizes"][model].items()
        }
        times_s: dict[str, dict[tuple[int, int], Floats]] = {}
        for name, entries in _mapping(by_name, f"{where}: times[{model}]").items():
            times_s[name] = {}
            for key, runs in entries.items():
                match = re.fullmatch(r"mbs(\d+)_tp(\d+)", key)
                if match is None:
                    raise InvalidInput(f"{where}: times[{model}][{name}]: bad key {key!r}")
                pair = int(match[2]), int(match[1])
                times_s[name][pair] = _unroll(runs, f"{where}: times[{model}][{name}][{key}]")
        profiles[model] = _checked(LayerProfile(model, 4.0, sizes, times_s), where)
    return profiles


def _checked(profile: LayerProfile, where: str) -> LayerProfile:
    for name, entries in profile.times_s.items():
        for (tp, batch), values in entries.items():
            if len(values) != profile.layers:
                raise InvalidInput(
                    f"{where}: {profile.model} on {name}, tp {tp}, {batch} samples: "
                    f"{len(values)} layers, expected {profile.layers}"
                )
    return profile


def _unroll(runs: Any, where: str) -> Floats:
    try:
        rows = [values for count, values in runs for _ in range(int(count))]
        array = at_least(where, rows, 0)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{where}: expected [count, [three numbers]] runs: {error}") from error
    if array.ndim != 2 or array.shape[1] != 3:
        raise InvalidInput(f"{where}: expected three numbers per layer, got shape {array.shape}")
    return array


def _mapping(value: Any, where: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{where} must be a mapping, got {type(value).__name__}")
    return value


def _size(value: Any, where: str) -> int:
    if isinstance(value, bool) or not str(value).isdigit() or int(value) < 1:
        raise InvalidInput(f"{where}: sizes must be whole numbers of at least 1, got {value!r}")
    return int(value)


def _prefix(values: Floats) -> Floats:
    return np.concatenate(([0.0], np.cumsum(values)))
