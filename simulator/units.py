"""Quantities with their unit, as people write them in YAML: ``80 GB``, ``400 Gbit/s``, ``5 us``.

Inside the simulator everything is SI and the unit is part of the name. In files that people write,
the unit stands beside the number, because a bare ``80`` could be anything.
"""

from __future__ import annotations

import re

from dtgym.simulator.errors import InvalidInput

_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}

_UNITS: dict[str, dict[str, float]] = {
    "bytes": {f"{p}B": f for p, f in (_DECIMAL | _BINARY).items()},
    "bytes/s": {f"{p}B/s": f for p, f in (_DECIMAL | _BINARY).items()}
    | {f"{p}bit/s": f / 8 for p, f in _DECIMAL.items()},
    "FLOP/s": {f"{p}FLOP/s": f for p, f in _DECIMAL.items()},
    "s": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9},
}
_EXAMPLES = {"bytes": "80 GB", "bytes/s": "400 Gbit/s", "FLOP/s": "312 TFLOP/s", "s": "5 us"}
_QUANTITY = re.compile(r"\s*([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/]*)\s*")


def parse(field: str, value: object, dimension: str) -> float:
    """Turns a written quantity into SI.

    Args:
        field: Name of the field for the message.
        value: Text such as ``80 GB``.
        dimension: ``bytes``, ``bytes/s``, ``FLOP/s`` or ``s``.

    Raises:
        InvalidInput: No number, no unit, or a unit of another dimension.

    Examples:
        >>> parse("network", "400 Gbit/s", "bytes/s")
        50000000000.0
        >>> parse("memory", 80, "bytes")
        Traceback (most recent call last):
        dtgym.simulator.errors.InvalidInput: memory needs a unit, such as '80 GB'; got 80
    """
    example = _EXAMPLES[dimension]
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    bare = isinstance(value, int | float) and not isinstance(value, bool)
    if bare or (match is not None and not match[2]):
        raise InvalidInput(f"{field} needs a unit, such as '{example}'; got {value}")
    if match is None:
        raise InvalidInput(f"{field} must be a quantity such as '{example}'; got {value!r}")
    number, unit = match[1], match[2]
    factor = _UNITS[dimension].get(unit)
    if factor is None:
        known = ", ".join(_UNITS[dimension])
        raise InvalidInput(f"{field} must be in {dimension} ({known}); got {value!r}")
    try:
        amount = float(number)
    except ValueError:
        raise InvalidInput(
            f"{field} must be a quantity such as '{example}'; got {value!r}"
        ) from None
    # Dividing by the exact inverse keeps "5 us" the double nearest to 5e-6.
    return amount * factor if factor >= 1 or dimension != "s" else amount / round(1 / factor)


def format_quantity(amount: float, dimension: str) -> str:
    """Writes an SI amount with the unit that reads shortest; `parse` gives back the same double.

    Examples:
        >>> format_quantity(80e9, "bytes")
        '80 GB'
        >>> format_quantity(5e-6, "s")
        '5 us'
    """
    texts: list[str] = []
    for unit, factor in _UNITS[dimension].items():
        for number in (f"{amount / factor:.6g}", repr(amount / factor)):
            text = f"{number} {unit}"
            if parse("", text, dimension) == amount:
                texts.append(text)
    return min(texts, key=len)
