"""Reading layer profiles, and the tables made of them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.partition_tables import profiled_tables, read_profiles

OWN = """
model: tiny
bytes_per_element: 2
layers:
  1: [[1, [10, 4, 6]], [2, [20, 4, 8]]]
  2: [[1, [5, 4, 3]], [2, [10, 4, 4]]]
times_s:
  fast:
    1: {1: [[3, [1, 2, 9]]], 4: [[3, [3, 6, 9]]]}
    2: {1: [[3, [0.6, 1.2, 4.5]]]}
"""

SAILOR = {
    "sizes": {"tiny": {"tp1": [[1, [10, 4, 6]], [2, [20, 4, 8]]]}},
    "times": {"tiny": {"fast": {"mbs1_tp1": [[3, [1, 2, 9]]], "mbs4_tp1": [[3, [3, 6, 9]]]}}},
}


def test_both_formats_are_read(tmp_path):
    own, sailor = tmp_path / "own.yaml", tmp_path / "sailor.json"
    own.write_text(OWN)
    sailor.write_text(json.dumps(SAILOR))
    mine, theirs = read_profiles(own)["tiny"], read_profiles(sailor)["tiny"]
    assert mine.bytes_per_element == 2 and theirs.bytes_per_element == 4
    assert (
        mine.sizes[1].tolist() == theirs.sizes[1].tolist() == [[10, 4, 6], [20, 4, 8], [20, 4, 8]]
    )
    assert mine.times_s["fast"][1, 4].tolist() == theirs.times_s["fast"][1, 4].tolist()


def test_tables_are_prefix_sums_with_holes_where_nothing_was_measured(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(OWN)
    tables = profiled_tables(read_profiles(path)["tiny"], ["fast"])
    assert tables.tensor_parallel.tolist() == [1, 2] and tables.samples.tolist() == [1, 4]
    assert tables.forward_s[0, 0, 0].tolist() == [0, 1, 2, 3]
    assert tables.backward_s[0, 0, 1].tolist() == [0, 6, 12, 18]
    assert np.isnan(tables.forward_s[0, 1, 1]).all()
    assert tables.update_s[0, 0, 0].tolist() == [0, 3, 6, 9]
    assert tables.parameters[0, 1].tolist() == [0, 5, 15, 25]
    # Stored: everything, or under full recompute each layer's input and nothing for the first.
    assert tables.activation_bytes[0, 0, 0].tolist() == [0, 12, 28, 44]
    assert tables.activation_bytes[0, 2, 0].tolist() == [0, 0, 8, 16]
    assert tables.largest_activation_bytes[0].tolist() == [16, 8]


def test_samples_between_two_entries_are_interpolated(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(OWN)
    _, low, part = profiled_tables(read_profiles(path)["tiny"], ["fast"]).lookup
    assert low.tolist() == [-1, 0, 0, 0, 1]
    assert part[1:].tolist() == pytest.approx([0, 1 / 3, 2 / 3, 0])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("model: tiny\n", "", "model is missing"),
        ("[[3, [3, 6, 9]]]", "[[2, [3, 6, 9]]]", "2 layers, expected 3"),
        ("[1, 2, 9]", "[1, 2]", "times_s"),
        ("[1, 2, 9]", "[1, -2, 9]", "at least 0"),
        ("bytes_per_element: 2", "bytes_per_element: wide", "bytes_per_element"),
        ("  1: [[1, [10", "  one: [[1, [10", "whole numbers"),
        ("times_s:", "times: [1, 2]\nother:", "expected the keys"),
        ("model:", "model: [", "YAML"),
    ],
)
def test_a_bad_profile_is_one_line_with_file_and_field(tmp_path, old, new, message):
    path = tmp_path / "bad.yaml"
    path.write_text(OWN.replace(old, new, 1))
    with pytest.raises(InvalidInput, match=message) as caught:
        read_profiles(path)
    assert "bad.yaml" in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_accelerator_and_a_missing_file_are_named(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(OWN)
    with pytest.raises(InvalidInput, match="'slow' is not in the profile of tiny; it has fast"):
        profiled_tables(read_profiles(path)["tiny"], ["slow"])
    with pytest.raises(InvalidInput, match=r"none\.json"):
        read_profiles(tmp_path / "none.json")
