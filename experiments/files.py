"""Files that are whole or absent: atomic writes, strict JSON, and the hash that names a run.

A sweep may be killed at any moment. Whatever a later run reads was therefore written beside its
final name, flushed to the disk, and renamed over it; a reader sees the old file or the new one,
never half of one.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dtgym.experiments.cli import to_plain
from dtgym.simulator.errors import InvalidInput


def write_atomic(path: Path, content: bytes | str) -> None:
    """Writes `content` to `path` as a whole: a temporary file, fsync, rename, fsync of the folder.

    Missing folders are made. Text is written as UTF-8 with its line ends untouched.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    # A fixed name: what a kill leaves behind is used up by the next write of the same file.
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes renames inside `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def json_text(document: Any, *, indent: int | None = 2) -> str:
    """JSON with sorted keys: equal documents have equal bytes; NumPy values become plain ones.

    Examples:
        >>> json_text({"b": 1, "a": 0.1}, indent=None)
        '{"a": 0.1, "b": 1}'
    """
    return json.dumps(to_plain(document), indent=indent, sort_keys=True, allow_nan=False)


def write_json(path: Path, document: Any) -> None:
    """Writes `document` atomically as sorted, indented JSON."""
    write_atomic(path, json_text(document) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        InvalidInput: The file is absent, malformed, or not an object.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InvalidInput(f"{path}: no such file") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidInput(f"{path}: expected a JSON object, got {type(document).__name__}")
    return document


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    r"""CSV with a header; floats are written so that reading gives the same float back.

    Examples:
        >>> csv_text(["method", "score"], [{"method": "fifo", "score": 0.1}])
        'method,score\nfifo,0.1\n'
    """
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return stream.getvalue()


def config_hash(config: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits that name a configuration: SHA-256 of its sorted JSON.

    Examples:
        >>> config_hash({"a": 1, "b": 2}) == config_hash({"b": 2, "a": 1})
        True
    """
    return hashlib.sha256(json_text(config, indent=None).encode()).hexdigest()[:8]


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one level with dotted keys; lists become their JSON text.

    Examples:
        >>> flatten({"ppo": {"gamma": 0.9, "net": [64, 64]}})
        {'ppo.gamma': 0.9, 'ppo.net': '[64, 64]'}
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        elif isinstance(value, list | tuple):
            flat[f"{prefix}{key}"] = json_text(value, indent=None)
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _cell(value: Any) -> Any:
    plain = to_plain(value)
    return repr(plain) if isinstance(plain, float) else plain
