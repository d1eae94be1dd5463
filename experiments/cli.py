"""What every command line shares: one clear line and exit code 2 for input that a user can mend."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tyro

from dtgym.simulator.errors import InvalidInput

Arguments = TypeVar("Arguments")

EXIT_GOOD = 0
EXIT_CHECK_FAILED = 1
EXIT_BAD_INPUT = 2


def run(
    arguments: Callable[..., Arguments],
    main: Callable[[Arguments], int],
    argv: list[str] | None = None,
) -> None:
    """Parses the command line into `arguments`, runs `main` and exits with its code.

    Args:
        arguments: A dataclass with a docstring under each field; tyro makes ``--help`` of it.
        main: Returns 0 for good and 1 for a check that failed.
        argv: The command line without the program's name; None reads the real one.
    """
    try:
        code = main(tyro.cli(arguments, args=argv))
    except InvalidInput as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        code = EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print("stopped; finished runs are kept, --resume continues", file=sys.stderr)
        code = 130
    sys.exit(code)


def existing_path(field: str, path: Path) -> Path:
    """Returns `path` if it exists.

    Raises:
        InvalidInput: There is no such file or folder.
    """
    if not path.exists():
        raise InvalidInput(f"{field}: no such file or folder: {path}")
    return path


def print_json(document: dict[str, Any]) -> None:
    """Prints `document` as one JSON object; NumPy numbers become plain ones, NaN becomes null."""
    print(json.dumps(to_plain(document), indent=2, allow_nan=False))


def to_plain(value: Any) -> Any:
    """Turns NumPy values, paths and tuples into what JSON knows; a non-finite float is None."""
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return to_plain(value.tolist())
    if isinstance(value, np.generic):
        return to_plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value
