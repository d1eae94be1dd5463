"""The physical constants of the training cost model, and where they come from.

Some constants are fixed from micro-benchmarks or data sheets, the others are fitted to published
training throughput within physical bounds (``scripts/validate.py measured --fit``). The shipped
values lie in ``catalog/calibration.yaml`` with the rows, date and error of the fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.kernels.training_columns import CONSTANT_NAMES


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant of the model.

    Attributes:
        meaning: What it is, with its unit.
        prior: Value before any fit: from micro-benchmarks, data sheets or counting.
        low: Lower physical bound; equal to `prior` for a constant that is not fitted.
        high: Upper physical bound.
    """

    meaning: str
    prior: float
    low: float
    high: float

    @property
    def fitted(self) -> bool:
        """Whether the fit may move it."""
        return self.low < self.high


def _fixed(meaning: str, value: float) -> Constant:
    return Constant(meaning, value, value, value)


CONSTANTS: dict[str, Constant] = {
    "matmul_volta": Constant("sustained share of the 16-bit peak, Volta", 0.80, 0.40, 0.95),
    "matmul_ampere": Constant("sustained share of the 16-bit peak, Ampere", 0.80, 0.60, 0.87),
    "matmul_hopper": Constant("sustained share of the 16-bit peak, Hopper", 0.72, 0.50, 0.80),
    "matmul_blackwell": Constant("sustained share of the 16-bit peak, Blackwell", 0.60, 0.40, 0.78),
    "fp8_gain": _fixed("share of peak at fp8 over that at 16 bits", 1.0),
    "fp4_gain": Constant("share of peak at fp4 over that at 16 bits", 0.80, 0.50, 1.00),
    "power_exponent": Constant("rate ~ (power limit / usual limit) ^ this", 0.50, 0.00, 1.00),
    "matmul_half_mn": _fixed("rows or columns at which a product runs at half rate (SimuMax)", 112),
    "matmul_half_k": _fixed("inner size at which a product runs at half rate (SimuMax)", 96),
    "misaligned": Constant("rate of attention if the head is no multiple of 8", 0.25, 0.05, 1.00),
    "flash1": Constant("share of peak, flash kernel of 2022, Ampere", 0.35, 0.15, 0.60),
    "flash2": _fixed("share of peak, flash kernel of 2023, Ampere (SimuMax)", 0.63),
    "fused_hopper": Constant("share of peak, vendor's attention kernel, Hopper", 0.60, 0.30, 0.80),
    "fused_blackwell": Constant("the same, Blackwell", 0.60, 0.30, 0.80),
    "warp_level": _fixed("rate of Ampere's instructions on Hopper, share of peak over share", 0.50),
    "attention_backward": _fixed("backward over forward time, flash kernels (SimuMax)", 2.9),
    "elementwise": Constant("bytes moved over bytes counted, element-wise work", 1.2, 1.0, 2.5),
    "softmax": Constant("bytes moved over bytes counted, scores in memory", 1.0, 0.5, 2.0),
    "cast": Constant("bytes moved over bytes counted, casts to fp8 or fp4", 1.0, 0.0, 3.0),
    "launch_s": Constant("host time per kernel, s", 20e-6, 10e-6, 30e-6),
    "blocking_launch_s": Constant("time per kernel if each is waited for, s", 60e-6, 2e-6, 200e-6),
    "gather_launch_s": Constant("copy per rank of a per-tensor gather, s", 12e-6, 2e-6, 30e-6),
    "peer_efficiency": Constant("payload share of the link inside a node", 0.78, 0.50, 0.95),
    "network_efficiency": Constant("payload share of the network", 0.80, 0.40, 0.92),
    "peer_hop_s": _fixed("latency per rank inside a node, s (vTrain collectives)", 3e-6),
    "network_start_s": Constant("start of a collective between nodes, s", 60e-6, 5e-6, 500e-6),
    "contention": Constant("slow-down by a hidden transfer, share of its time", 0.15, 0.0, 0.8),
    "tensor_overlap": Constant("share of products that hides tensor exchange", 0.6, 0.0, 1.0),
    "optimizer_bytes": _fixed("bytes moved per parameter and step by the optimizer", 28),
    "iteration_s": _fixed("host time per iteration, s", 5e-3),
}
"""Every constant, in the order of the kernel's vector."""

if tuple(CONSTANTS) != CONSTANT_NAMES:
    raise RuntimeError("calibration.CONSTANTS and training_columns.CONSTANT_NAMES differ")


@dataclass(frozen=True)
class Calibration:
    """Values of the constants.

    Attributes:
        values: Value by name, all of `CONSTANTS`.
        provenance: Rows, split, date and error of the fit; empty for priors.
    """

    values: dict[str, float]
    provenance: dict[str, Any]

    def __post_init__(self) -> None:
        for name in self.values:
            if name not in CONSTANTS:
                raise InvalidInput(f"calibration: unknown constant {name!r}")
        for name, constant in CONSTANTS.items():
            if name not in self.values:
                raise InvalidInput(f"calibration: constant {name!r} is missing")
            value: Any = self.values[name]
            if not isinstance(value, int | float) or not constant.low <= value <= constant.high:
                raise InvalidInput(
                    f"calibration: {name} must lie in {constant.low:g}..{constant.high:g} "
                    f"({constant.meaning}), got {value!r}"
                )

    def vector(self) -> NDArray[np.float64]:
        """The values in the kernel's order."""
        return np.array([self.values[name] for name in CONSTANTS], dtype=np.float64)


def priors() -> Calibration:
    """The constants before any fit."""
    return Calibration({name: constant.prior for name, constant in CONSTANTS.items()}, {})


def calibration_from_yaml(text: str, file: str = "<text>") -> Calibration:
    """Reads a calibration.

    Raises:
        InvalidInput: Not YAML, a constant that is unknown, missing or out of its bounds.
    """
    from dtgym.simulator.documents import read_yaml

    content = read_yaml(text, source=file)
    if not isinstance(content, dict) or set(content) != {"provenance", "constants"}:
        raise InvalidInput(f"{file}: must hold the two fields provenance and constants")
    values = {name: entry["value"] for name, entry in content["constants"].items()}
    return Calibration(values, content["provenance"])


def calibration_yaml(calibration: Calibration) -> str:
    """Writes a calibration with the meaning and bounds of each constant beside its value."""
    import yaml

    entries = {
        name: {
            "value": float(calibration.values[name]),
            "fitted": constant.fitted,
            "meaning": constant.meaning,
            **({"low": constant.low, "high": constant.high} if constant.fitted else {}),
        }
        for name, constant in CONSTANTS.items()
    }
    document = {"provenance": calibration.provenance, "constants": entries}
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)


@lru_cache(maxsize=1)
def shipped() -> Calibration:
    """The calibration that comes with the package."""
    file = files("dtgym.simulator") / "catalog" / "calibration.yaml"
    return calibration_from_yaml(file.read_text(encoding="utf-8"), "catalog/calibration.yaml")
