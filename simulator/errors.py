"""The one error that a user can mend, and the checks that raise it.

Every public entry point checks its input once, at the edge, with these helpers, so that a message
always says which field, what was expected and in which unit. Command lines print the message in
one line and exit with code 2 (see `dtgym.experiments.cli`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


class InvalidInput(ValueError):
    """Input that a user can mend: names the field (and file), the expectation and the unit."""


def finite_array(field: str, value: ArrayLike, unit: str = "") -> NDArray[np.float64]:
    """Returns `value` as a float64 array.

    Args:
        field: Name of the field for the message, such as ``Network.upload_s_per_byte``.
        value: Number or array of numbers.
        unit: Unit for the message, such as ``s``; empty for a pure number.

    Raises:
        InvalidInput: Something that is not a number, a NaN or an infinity.

    Examples:
        >>> finite_array("duration_s", [1, 2], "s")
        array([1., 2.])
        >>> finite_array("duration_s", float("nan"), "s")
        Traceback (most recent call last):
        dtgym.simulator.errors.InvalidInput: duration_s must be finite (in s), got nan
    """
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"{field} must be a number{_in(unit)}, got {_short(repr(value))}"
        ) from error
    bad = ~np.isfinite(array)
    if bad.any():
        raise InvalidInput(f"{field} must be finite{_in(unit)}, got {array[bad].flat[0]}")
    return array


def at_least(field: str, value: ArrayLike, minimum: float, unit: str = "") -> NDArray[np.float64]:
    """Returns `value` as a finite float64 array, all of it at least `minimum`.

    Raises:
        InvalidInput: A value that is not finite or lies below `minimum`.
    """
    array = finite_array(field, value, unit)
    if (array < minimum).any():
        raise InvalidInput(
            f"{field} must be at least {minimum:g}{_unit(unit)}, got {array.min():g}"
        )
    return array


def above(field: str, value: ArrayLike, bound: float, unit: str = "") -> NDArray[np.float64]:
    """Returns `value` as a finite float64 array, all of it strictly above `bound`.

    Raises:
        InvalidInput: A value that is not finite or does not exceed `bound`.
    """
    array = finite_array(field, value, unit)
    if (array <= bound).any():
        raise InvalidInput(f"{field} must be above {bound:g}{_unit(unit)}, got {array.min():g}")
    return array


def one_of(field: str, value: object, choices: tuple[str, ...]) -> str:
    """Returns `value` if it is one of `choices`.

    Raises:
        InvalidInput: Anything else; the message lists the choices.
    """
    if isinstance(value, str) and value in choices:
        return value
    raise InvalidInput(f"{field} must be one of {', '.join(choices)}; got {_short(repr(value))}")


def _in(unit: str) -> str:
    return f" (in {unit})" if unit else ""


def _unit(unit: str) -> str:
    return f" {unit}" if unit else ""


def _short(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
