"""The strict reader of recorded traces, and their replay."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from dtgym.envs.communication_tuning.trace import read_trace
from dtgym.simulator.errors import InvalidInput

HEADER = "time_s,bandwidth_bytes_per_s,latency_s\n"
GOOD = HEADER + "0,1.25e9,0.001\n10,2.5e9,0.002\n20,6e8,0\n"


@pytest.fixture
def write(tmp_path):
    def of(text: str) -> str:
        path = tmp_path / "link.csv"
        path.write_text(text)
        return str(path)

    return of


def test_reads_bandwidth_and_latency(write):
    expected = [[1.25e9, 0.001], [2.5e9, 0.002], [6e8, 0]]
    assert read_trace(write(GOOD)).tolist() == expected


def test_columns_may_stand_in_any_order_beside_others(write):
    text = "note,latency_s,time_s,bandwidth_bytes_per_s\nx,0.001,0,1e9\n"
    assert read_trace(write(text)).tolist() == [[1e9, 0.001]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "row 1: column time_s is missing"),
        ("time_s,latency_s\n0,1\n", "row 1: column bandwidth_bytes_per_s is missing"),
        (HEADER, "holds no row"),
        (HEADER + "0,1e9,0\n0,1e9,0\n", "row 3, column time_s: times must ascend"),
        (HEADER + "5,1e9,0\n2,1e9,0\n", "row 3, column time_s: times must ascend"),
        (HEADER + "0,nan,0\n", "row 2, column bandwidth_bytes_per_s: must be finite"),
        (HEADER + "0,1e9,inf\n", "row 2, column latency_s: must be finite"),
        (HEADER + "0,fast,0\n", "row 2, column bandwidth_bytes_per_s: must be a number"),
        (HEADER + "0,1e9\n", "row 2, column latency_s: must be a number"),
        (HEADER + "0,-1e9,0\n", "row 2, column bandwidth_bytes_per_s: must be in bytes/s"),
        (HEADER + "0,1e9,0\n1,100,0\n", "row 3, .*got 100; 1 Gbit/s is 1.25e8 bytes/s"),
        (HEADER + "0,1e9,-0.1\n", "row 2, column latency_s: must be in s"),
        (HEADER + "0,1e9,250\n", "row 2, column latency_s: must be in s"),
    ],
)
def test_refuses_what_is_not_a_trace(write, text, message):
    path = write(text)
    with pytest.raises(InvalidInput, match=message) as error:
        read_trace(path)
    assert str(error.value).startswith(path) and "\n" not in str(error.value)


def test_refuses_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_trace(tmp_path / "missing.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_trace(tmp_path / "binary.csv")


def test_an_environment_replays_a_trace(write):
    path = write(GOOD)
    env = gym.make(
        "dtgym/CommunicationTuning-v0", scenario="trace", trace_file=path, horizon=5
    ).unwrapped
    env.reset(seed=0)
    factors = env.view(oracle=True).instance.factors
    assert np.array_equal(factors[:, 0], [2.5e9, 6e8, 6e8, 6e8, 6e8])
    assert np.array_equal(factors[:, 2], [0.002, 0, 0, 0, 0])
    times = [env.step(40)[4]["default_iteration_time_s"] for _ in range(5)]
    assert times[1] > times[0] and len(set(times[1:])) == 1


def test_futures_of_two_traces_show_only_once_they_are_lived(write, tmp_path):
    rows = [f"{t},{1e9 + t * 1e7:g},0.001" for t in range(30)]
    first = write(HEADER + "\n".join(rows))
    second = tmp_path / "other.csv"
    second.write_text(HEADER + "\n".join(rows[:20] + [f"{t},7e8,0.004" for t in range(20, 30)]))
    observed = []
    for path in (first, second):
        env = gym.make(
            "dtgym/CommunicationTuning-v0", scenario="trace", trace_file=str(path), horizon=29
        )
        played = [env.reset(seed=0)[0]]
        played += [env.step(step % 81)[0] for step in range(29)]
        observed.append(np.array(played))
    same = (observed[0] == observed[1]).all(axis=1)
    # Row 0 of the trace is the warm-up; step t has lived row t.
    assert same[:20].all() and not same[20:].any()
