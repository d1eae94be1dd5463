"""JobTable: what it accepts, what it refuses and how it names the place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtgym.simulator import hardware
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.jobs import JobTable, milliseconds


def table(**changes) -> JobTable:
    columns = {
        "job_id": [3, 1, 2],
        "submit_s": [0.0, 10.0, 10.0],
        "duration_s": [5.0, 6.0, 7.0],
        "num_gpus": [1, 2, 4],
    }
    return JobTable.from_columns(**{**columns, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"duration_s": [5, -1, 7]}, r"row 2, column duration_s: must lie in \[0"),
        ({"duration_s": [5, float("nan"), 7]}, "row 2, column duration_s: must be a finite"),
        ({"duration_s": [5, "abc", 7]}, "row 2, column duration_s: must be a number"),
        ({"num_gpus": [1, 2, 1.5]}, "row 3, column num_gpus: must be a whole number"),
        ({"num_gpus": [1, 2]}, "column num_gpus has 2 rows, submit_s has 3"),
        ({"job_id": [7, 8, 7]}, "row 3, column job_id: duplicate id 7, first seen in row 1"),
        ({"job_id": ["a", "b", "b"]}, "row 3, column job_id: duplicate id b"),
        ({"colour": [1, 2, 3]}, "unknown column colour"),
        ({"gpu_fraction": [1, 1, 2]}, "row 3, column gpu_fraction: must be at most 1"),
        ({"min_gpus": [1, 3, 4]}, "row 2, column min_gpus: must be at most num_gpus"),
        ({"max_gpus": [1, 2, 3]}, "row 3, column max_gpus: must be at least num_gpus"),
        ({"submit_s": [[0.0], [1.0], [2.0]]}, "must be one row of values"),
        ({"submit_s": [0, 1, 1e15]}, "row 3, column submit_s: must lie in"),
    ],
)
def test_refuses_and_names_row_and_column(changes, message):
    with pytest.raises(InvalidInput, match=message):
        table(**changes)


def test_an_empty_table_is_refused():
    with pytest.raises(InvalidInput, match="holds no jobs"):
        JobTable.from_columns(submit_s=[], duration_s=[], num_gpus=[])


def test_arrays_are_frozen_and_do_not_alias_the_callers():
    submit = np.array([0.0, 10.0, 10.0])
    jobs = table(submit_s=submit)
    submit[0] = 99
    assert jobs.submit_s[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        jobs.submit_s[0] = 1


def test_order_is_by_submission_then_id():
    assert table().submit_order.tolist() == [0, 1, 2]
    assert table(job_id=[3, 2, 1]).submit_order.tolist() == [0, 2, 1]
    assert table(job_id=["c", "b", "a"]).id_rank.tolist() == [2, 1, 0]


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=20))
def test_milliseconds_are_within_half_a_millisecond(seconds):
    assert np.all(np.abs(milliseconds(seconds) - np.array(seconds) * 1000) <= 0.5)


@given(load=st.floats(0.1, 3), gpus=st.integers(1, 100))
def test_at_load_reaches_the_load_and_keeps_the_order(load, gpus):
    jobs = table().at_load(load, gpus)
    assert jobs.against(gpus).offered_load == pytest.approx(load)
    assert np.array_equal(jobs.submit_order, table().submit_order)


def cluster_of(**gpus: int) -> hardware.Cluster:
    groups = tuple(
        hardware.NodeGroup(
            1,
            hardware.Node(
                name=kind,
                accelerator=hardware.Accelerator(
                    name=kind, half_flop_per_s=1e12, memory_bytes=1e9, memory_bytes_per_s=1e9
                ),
                gpus=count,
                cpu_cores=8,
                memory_bytes=1e9,
                io_bytes_per_s=1e9,
                network_bytes_per_s=1e9,
            ),
        )
        for kind, count in gpus.items()
    )
    return hardware.Cluster("test", groups)


def test_overload_and_impossible_jobs_are_reported_not_dropped():
    jobs = table(gpu_type=["", "V100", "H100|A100"])
    report = jobs.against(cluster_of(V100=1, A100=2))
    assert report.impossible.tolist() == [1, 2]
    assert "row 2, column num_gpus: asks for 2 V100 GPUs, the cluster has 1" in report.reasons[0]
    assert "asks for 4 H100|A100 GPUs, the cluster has 2" in report.reasons[1]
    assert report.offered_load == pytest.approx((5 + 12 + 28) / (3 * 10))
    assert "offered load is 1.5" in report.warnings[0]
    assert "2 of 3 jobs can never run" in report.warnings[1]
    assert table().against(100).warnings == ()


def test_jobs_above_the_clusters_memory_or_cores_are_reported():
    jobs = table(memory_bytes=[1e9, 3e9, 1e9], cpu_cores=[1, 1, 17])
    report = jobs.against(cluster_of(V100=8, A100=8))
    assert report.impossible.tolist() == [1, 2]
    assert "row 2, column memory_bytes: asks for 3e+09 bytes" in report.reasons[0]


def test_window_and_select_keep_rows_together():
    jobs = table(user=["x", "y", "z"]).window(5, 20)
    assert jobs.job_id.tolist() == [1, 2]
    assert jobs.user is not None and jobs.user.tolist() == ["y", "z"]
    assert jobs.submit_s.tolist() == [5, 5]
    assert jobs.line.tolist() == [2, 3]
    with pytest.raises(InvalidInput, match="no job is left"):
        table().window(100, 200)


def test_added_columns_are_marked_synthetic_until_replaced_by_measured_ones():
    jobs = table().with_columns({"cpu_cores": [1, 2, 3]}, synthetic=True)
    assert jobs.synthetic == {"cpu_cores"}
    assert jobs.with_columns({"cpu_cores": [1, 2, 3]}, synthetic=False).synthetic == frozenset()


def test_golden_load_is_the_published_one(shared):
    import csv
    import gzip

    path = shared / "data/traces/golden/g1_philly_ee9e8c_14d.jobs.csv.gz"
    with gzip.open(path, "rt") as file:
        rows = np.array(list(csv.reader(file))[1:], dtype=float)
    jobs = JobTable.from_columns(
        job_id=rows[:, 0], submit_s=rows[:, 1], num_gpus=rows[:, 2], duration_s=rows[:, 3]
    )
    assert jobs.against(1).offered_load == pytest.approx(73.1, abs=0.05)
