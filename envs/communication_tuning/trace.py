"""Reader of recorded network traces: strict, because a silent repair would be another network."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.networks import FASTEST_BYTES_PER_S, SLOWEST_BYTES_PER_S

COLUMNS = ("time_s", "bandwidth_bytes_per_s", "latency_s")
LARGEST_LATENCY_S = 10.0


def read_trace(path: str | Path) -> NDArray[np.float64]:
    """Reads a trace of a link.

    Args:
        path: CSV with a header that names at least `COLUMNS`: ascending times in s, effective
            bandwidth in bytes/s, latency of a message in s. Other columns are ignored.

    Returns:
        Bandwidth in bytes/s and latency in s, float64, (rows, 2).

    Raises:
        InvalidInput: No file, a missing column, no row, a cell that is no number or not finite,
            times that do not ascend, a negative value, or a magnitude that only another unit
            explains. The message names file, row (the header is row 1) and column.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file}: cannot be read: {error}") from error
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    for name in COLUMNS:
        if name not in (reader.fieldnames or ()):
            raise InvalidInput(f"{file}, row 1: column {name} is missing")
    rows: list[tuple[float, float]] = []
    before_s = -math.inf
    for record in reader:
        where = f"{file}, row {reader.line_num}, column"
        time_s, bandwidth, latency_s = (
            _number(record[name], f"{where} {name}") for name in COLUMNS
        )
        if time_s <= before_s:
            raise InvalidInput(
                f"{where} time_s: times must ascend, got {time_s:g} s after {before_s:g} s"
            )
        before_s = time_s
        if not SLOWEST_BYTES_PER_S <= bandwidth <= FASTEST_BYTES_PER_S:
            raise InvalidInput(
                f"{where} bandwidth_bytes_per_s: must be in bytes/s ({SLOWEST_BYTES_PER_S:g} to "
                f"{FASTEST_BYTES_PER_S:g}), got {bandwidth:g}; 1 Gbit/s is 1.25e8 bytes/s"
            )
        if not 0 <= latency_s <= LARGEST_LATENCY_S:
            raise InvalidInput(
                f"{where} latency_s: must be in s (0 to {LARGEST_LATENCY_S:g}), got {latency_s:g}"
            )
        rows.append((bandwidth, latency_s))
    if not rows:
        raise InvalidInput(f"{file}: holds no row")
    return np.array(rows)


def _number(text: str | None, where: str) -> float:
    try:
        number = float(text or "")
    except ValueError:
        raise InvalidInput(f"{where}: must be a number, got {text!r}") from None
    if not math.isfinite(number):
        raise InvalidInput(f"{where}: must be finite, got {text}")
    return number
