from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtgym.experiments import files
from dtgym.simulator.errors import InvalidInput

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deep" / "table.csv"
    files.write_atomic(path, "old")

    def full_disk(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        files.write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_a_write_replaces_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    files.write_atomic(path, "a long first text")
    files.write_atomic(path, b"short\r\n")
    assert path.read_bytes() == b"short\r\n"
    assert list(tmp_path.iterdir()) == [path]


@settings(max_examples=50)
@given(PLAIN)
def test_json_round_trips_and_is_independent_of_key_order(document: object) -> None:
    def reversed_keys(value: object) -> object:
        if isinstance(value, dict):
            return {key: reversed_keys(value[key]) for key in reversed(list(value))}
        return [reversed_keys(v) for v in value] if isinstance(value, list) else value

    text = files.json_text(document)
    assert files.json_text(reversed_keys(document)) == text
    assert files.json_text(json.loads(text)) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_csv_keeps_every_bit_of_a_float(value: float) -> None:
    line = files.csv_text(["x"], [{"x": np.float64(value)}]).splitlines()[1]
    assert float(line) == value


def test_the_hash_tells_configurations_apart() -> None:
    config = {"method": "ppo", "options": {"gamma": 0.9, "net": [64, 64]}}
    changed = {"method": "ppo", "options": {"gamma": 0.91, "net": [64, 64]}}
    assert files.config_hash(config) == files.config_hash(dict(reversed(config.items())))
    assert files.config_hash(config) != files.config_hash(changed)
    assert len(files.config_hash(config)) == 8


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not valid JSON"), ("[1]", "expected a JSON object, got list"), (None, "no such file")],
)
def test_reading_names_the_file_and_what_is_wrong(
    tmp_path: Path, content: str | None, message: str
) -> None:
    path = tmp_path / "result.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidInput, match=rf"result\.json: {message}"):
        files.read_json(path)
