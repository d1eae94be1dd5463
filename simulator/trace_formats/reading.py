"""Text files as columns, with checks that name the file, the row and the column.

Every reader works the same way: open the file as a `Columns`, turn the columns it needs into
numbers or moments, state its own consistency rules with `refuse`, leave out what the format
documents as "not a finished job" with `leave_out`, and call `jobs`.
"""

from __future__ import annotations

import csv
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.jobs import JobTable

_CHUNK_BYTES = 1 << 20


def read_text(path: Path) -> str:
    """Reads a plain or gzip-compressed UTF-8 file.

    Raises:
        InvalidInput: No such file, an empty one, a damaged or truncated gzip stream (with the row
            reached), or bytes that are not UTF-8 (with row and column).
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError as error:
        raise InvalidInput(f"{path}: no such file") from error
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error.strerror}") from error
    if raw[:2] == b"\x1f\x8b":
        raw = _gunzip(path, raw)
    if not raw.strip():
        raise InvalidInput(f"{path}: is empty; expected a trace")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line = before.count(b"\n") + 1
        header = raw[: raw.find(b"\n")].decode("utf-8", "replace").strip().split(",")
        fields_before = before[before.rfind(b"\n") + 1 :].count(b",")
        column = header[fields_before] if fields_before < len(header) else str(fields_before + 1)
        raise InvalidInput(
            f"{path}: row {line - 1} (line {line}), column {column}: byte "
            f"0x{raw[error.start]:02x} is not UTF-8 text"
        ) from error


def _gunzip(path: Path, raw: bytes) -> bytes:
    parts: list[bytes] = []
    rest = raw
    while rest:
        stream = zlib.decompressobj(wbits=31)
        start = 0
        try:
            for start in range(0, len(rest), _CHUNK_BYTES):
                parts.append(stream.decompress(rest[start : start + _CHUNK_BYTES]))
                if stream.eof:
                    break
        except zlib.error as error:
            raise InvalidInput(f"{path}: {_reached(parts)}: damaged gzip stream") from error
        if not stream.eof:
            raise InvalidInput(f"{path}: {_reached(parts)}: truncated gzip stream")
        rest = rest[start + len(rest[start : start + _CHUNK_BYTES]) - len(stream.unused_data) :]
        if not rest.startswith(b"\x1f\x8b"):
            break  # padding after the last member, as gzip(1) allows
    return b"".join(parts)


def _reached(parts: Sequence[bytes]) -> str:
    """Names the row and column that the text breaks off at."""
    text = b"".join(parts)
    line = text.count(b"\n") + 1
    header = text[: text.find(b"\n")].decode("utf-8", "replace").strip().split(",")
    at = text[text.rfind(b"\n") + 1 :].count(b",")
    column = header[at] if at < len(header) else str(at + 1)
    return f"row {max(line - 1, 0)} (line {line}), column {column}"


@dataclass
class Columns:
    """A delimited text file, column by column.

    Attributes:
        path: Where it lies, for messages.
        values: Column name to texts, all equally long.
        line: Line number of each row in the file, (rows,) int64.
        notes: What was left out and why.
    """

    path: Path
    values: dict[str, Sequence[str]]
    line: NDArray[np.int64]
    notes: list[str] = field(default_factory=list[str])
    _kept: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self._kept = np.ones(len(self.line), dtype=np.bool_)

    @classmethod
    def parse(
        cls,
        path: Path,
        text: str,
        *,
        delimiter: str = ",",
        header: Sequence[str] | None = None,
        skip: int = 0,
    ) -> Columns:
        """Splits a text into columns.

        Args:
            path: For messages.
            text: The file's text.
            delimiter: Between fields.
            header: Column names where the file has none of its own.
            skip: Lines to pass over before the header.

        Raises:
            InvalidInput: A row with another number of fields than the header, no rows, or a
                repeated column name.
        """
        lines = text.splitlines()[skip:]
        reader = csv.reader(lines, delimiter=delimiter)
        try:
            rows = list(reader)
        except csv.Error as error:
            at = reader.line_num
            raise InvalidInput(f"{path}: row {at - 1} (line {at + skip}): {error}") from error
        if len(rows) == len(lines):
            numbers = np.arange(1, len(rows) + 1) + skip
        else:  # a quoted field holds a line break
            numbers = np.array(_line_numbers(lines, delimiter)) + skip
        if header is None:
            names = [name.strip() for name in rows[0]]
            rows, numbers = rows[1:], numbers[1:]
        else:
            names = list(header)
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidInput(f"{path}: line {skip + 1}, column {twice}: named twice")
        filled = [bool(row) for row in rows]
        if not all(filled):
            numbers = numbers[np.array(filled, dtype=np.bool_)]
            rows = [row for row in rows if row]
        if not rows:
            raise InvalidInput(f"{path}: has a header but no jobs")
        for place, row in enumerate(rows):
            if len(row) != len(names):
                last = names[min(len(row), len(names) - 1)]
                raise InvalidInput(
                    f"{path}: row {place + 1} (line {numbers[place]}), column {last}: expected "
                    f"{len(names)} fields, got {len(row)}"
                )
        columns: dict[str, Sequence[str]] = dict(zip(names, zip(*rows, strict=True), strict=True))
        return cls(path, columns, numbers.astype(np.int64))

    def __len__(self) -> int:
        return len(self.line)

    def require(self, names: Sequence[str]) -> None:
        """Checks that all columns are there.

        Raises:
            InvalidInput: The first that is not.
        """
        for name in names:
            if name not in self.values:
                raise InvalidInput(
                    f"{self.path}: row 0 (line {max(int(self.line[0]) - 1, 1)}), column {name}: "
                    f"is missing; the header names {', '.join(self.values)}"
                )

    def text(self, name: str) -> NDArray[np.str_]:
        """A column as text."""
        self.require([name])
        return np.array(self.values[name], dtype=np.str_)

    def number(
        self, name: str, unit: str, *, blank: float | None = None, minimum: float = -np.inf
    ) -> NDArray[np.float64]:
        """A column as float64.

        Args:
            name: Column.
            unit: Unit, for messages.
            blank: What an empty field, ``NA``, ``nan`` or ``None`` means; None refuses it.
            minimum: Smallest legal value (not asked of blanks).

        Raises:
            InvalidInput: The first row that holds no finite number, or too small a one.
        """
        self.require([name])
        texts = self.values[name]
        try:
            numbers = np.array(texts, dtype=np.float64)
        except ValueError:
            numbers = np.array([_number(text) for text in texts])
        empty = ~np.isfinite(numbers)
        if empty.any():
            if blank is not None:
                blanks = np.array([text.strip().lower() in _BLANKS for text in texts])
                self.refuse(empty & ~blanks, name, f"must be a number{_in(unit)}")
                numbers[blanks] = blank
                empty &= blanks
            else:
                self.refuse(empty, name, f"must be a number{_in(unit)}")
        else:
            empty = np.zeros(len(numbers), dtype=np.bool_)
        self.refuse((numbers < minimum) & ~empty, name, f"must be at least {minimum:g}{_in(unit)}")
        return numbers

    def moment(self, name: str, *, blank: bool = False) -> NDArray[np.float64]:
        """A column of wall-clock times as Unix seconds, float64.

        Understands ``2020-06-09 18:41:01``, also with ``T`` and with a trailing ``Z`` or
        ``+08:00``. A time without a zone is read as if it were UTC; a change to or from summer
        time in it is one hour that nobody can see.

        Args:
            name: Column.
            blank: Whether an empty field is allowed; it becomes NaN.

        Raises:
            InvalidInput: The first row that is no such time.
        """
        self.require([name])
        texts = [text.strip() for text in self.values[name]]
        blanks = np.array([text.lower() in _BLANKS for text in texts], dtype=np.bool_)
        if not blank:
            self.refuse(blanks, name, _MOMENT)
        stamps = ["NaT" if text.lower() in _BLANKS else text[:19] for text in texts]
        shaped = np.array(
            [len(text) >= 19 and text[4] == "-" and text[13] == ":" for text in texts]
        )
        self.refuse(~shaped & ~blanks, name, _MOMENT)
        zones = [text[19:] for text in texts]
        offset = {zone: _zone_s(zone) for zone in set(zones)}
        shift = np.array([offset[zone] for zone in zones])
        self.refuse(np.isnan(shift) & ~blanks, name, _MOMENT)
        try:
            moments = np.array(stamps, dtype="datetime64[s]")
        except ValueError:
            bad = np.array([not _is_moment(stamp) for stamp in stamps])
            self.refuse(bad, name, _MOMENT)
            raise
        seconds = moments.astype(np.int64).astype(np.float64) - shift
        seconds[blanks] = np.nan
        return seconds

    def refuse(self, bad: NDArray[np.bool_], column: str, why: str) -> None:
        """Raises for the first bad row that has not been left out, with its text.

        Raises:
            InvalidInput: There is one.
        """
        bad = bad & self._kept
        if bad.any():
            row = int(np.argmax(bad))
            got = self.values[column][row] if column in self.values else ""
            raise InvalidInput(
                f"{self.path}: row {row + 1} (line {self.line[row]}), column {column}: {why}, "
                f"got {got[:60]!r}"
            )

    def leave_out(self, rows: NDArray[np.bool_], why: str) -> None:
        """Drops rows that the format documents as no finished job, and notes how many."""
        rows = rows & self._kept
        if rows.any():
            first = int(self.line[int(np.argmax(rows))])
            self.notes.append(
                f"{self.path}: left out {int(rows.sum())} of {len(self)} jobs {why} "
                f"(first: line {first})"
            )
            self._kept &= ~rows

    def jobs(
        self,
        *,
        submit_s: NDArray[np.float64],
        wall_clock: bool,
        synthetic: Sequence[str] = (),
        job_id: ArrayLike | None = None,
        **columns: Any,
    ) -> JobTable:
        """Makes the table of the kept rows; submissions count from the first of them.

        Args:
            submit_s: Submissions, seconds.
            wall_clock: Whether they are Unix time.
            synthetic: Columns that are not measured.
            job_id: Ids; None numbers all rows of the file from 0.
            **columns: See `JobTable.from_columns`; None leaves a column out.
        """
        if not self._kept.any():
            raise InvalidInput(f"{self.path}: no finished job is left; {'; '.join(self.notes)}")
        kept = self._kept
        origin = float(submit_s[kept].min())
        ids = np.arange(len(self)) if job_id is None else np.asarray(job_id)
        chosen = {
            name: np.asarray(value)[kept] for name, value in columns.items() if value is not None
        }
        return JobTable.from_columns(
            job_id=ids[kept],
            submit_s=submit_s[kept] - origin,
            line=self.line[kept],
            source=str(self.path),
            synthetic=tuple(synthetic),
            epoch_unix_s=origin if wall_clock else None,
            notes=tuple(self.notes),
            **chosen,
        )


_BLANKS = {"", "na", "nan", "none", "null"}
_MOMENT = "must be a time such as 2020-06-09 18:41:01"


def ids_of(texts: NDArray[np.str_]) -> NDArray[Any]:
    """Ids as whole numbers if all of them are, so that 10 comes after 9; else as text."""
    try:
        numbers = texts.astype(np.int64)
    except ValueError:
        return texts
    return numbers if (numbers.astype(np.str_) == texts).all() else texts


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _zone_s(zone: str) -> float:
    """Seconds east of Greenwich; NaN if it is no zone."""
    zone = zone.strip()
    if zone.startswith("."):  # fractions of a second carry nothing for a scheduler
        zone = zone[1:].lstrip("0123456789")
    if zone in ("", "Z", "UTC"):
        return 0.0
    sign = {"+": 1, "-": -1}.get(zone[0])
    digits = zone[1:].replace(":", "")
    if sign is None or len(digits) != 4 or not digits.isdigit():
        return float("nan")
    return float(sign * (int(digits[:2]) * 3600 + int(digits[2:]) * 60))


def _is_moment(stamp: str) -> bool:
    try:
        np.datetime64(stamp, "s")
    except ValueError:
        return False
    return True


def _line_numbers(lines: Sequence[str], delimiter: str) -> list[int]:
    reader = csv.reader(lines, delimiter=delimiter)
    numbers: list[int] = []
    before = 0
    for _ in reader:
        numbers.append(before + 1)
        before = reader.line_num
    return numbers


def _in(unit: str) -> str:
    return f" (in {unit})" if unit else ""
