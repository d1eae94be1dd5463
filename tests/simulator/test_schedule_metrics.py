"""Metrics against slow definitions: second by second, job by job."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtgym.simulator import cluster
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.jobs import JobTable
from dtgym.simulator.schedule_metrics import DEFINITIONS, measure

tables = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 30), st.sampled_from([1, 1, 1, 2, 3, 4, 6])),
    min_size=1,
    max_size=25,
)


def table_of(rows) -> JobTable:
    submit, duration, gpus = (np.array(column) for column in zip(*rows, strict=True))
    return JobTable.from_columns(submit_s=submit, duration_s=duration, num_gpus=gpus)


def second_by_second(outcome, jobs, node_gpus, placed):
    """Whole-second schedules only: looks at the middle of every second."""
    end = int(np.nanmax(outcome.finish_s))
    start = int(outcome.submit_s.min())
    stretches = outcome.stretches
    allocated = busy_allocated = busy = lost = free_time = 0.0
    for second in np.arange(start, end) + 0.5:
        on = (stretches.start_s < second) & (second < stretches.end_s)
        used = jobs.num_gpus[stretches.job[on]].sum()
        running = set(stretches.job[on].tolist())
        queue = [
            j
            for j in range(len(jobs))
            if outcome.submit_s[j] < second < outcome.finish_s[j] and j not in running
        ]
        allocated += used
        if queue:
            busy += 1
            busy_allocated += used
            free = np.array(node_gpus) if placed else np.array([sum(node_gpus)])
            for row in np.flatnonzero(on):
                if placed:
                    for place in range(stretches.place_base[row], stretches.place_base[row + 1]):
                        free[stretches.place_node[place]] -= stretches.place_gpus[place]
                else:
                    free[0] -= jobs.num_gpus[stretches.job[row]]
            if free.sum() > 0:
                smallest = min(jobs.num_gpus[j] for j in queue)
                split = smallest > max(node_gpus) and placed and free.sum() >= smallest
                usable = free[free >= smallest].sum() if not split else free.sum()
                lost += 1 - usable / free.sum()
                free_time += 1
    total = sum(node_gpus)
    return {
        "allocated_gpu_makespan": allocated / (total * (end - start)),
        "allocated_gpu_busy": busy_allocated / (total * busy) if busy else float("nan"),
        "fragmentation": lost / free_time if free_time else 0.0,
    }


@settings(max_examples=60)
@given(
    rows=st.lists(
        st.tuples(st.floats(0, 0.02), st.floats(0.0004, 0.03), st.sampled_from([1, 1, 2, 3, 4])),
        min_size=1,
        max_size=25,
    ),
    policy=st.sampled_from(["fifo", "sjf", "srtf", "srsf", "las", "easy"]),
    placement=st.sampled_from(["pooled", "consolidate"]),
)
def test_submissions_between_milliseconds_change_nothing(rows, policy, placement):
    """The engine rounds to milliseconds; metrics must not see a job start before it came."""
    jobs = table_of(rows)
    whole = jobs.with_columns(
        {"submit_s": jobs.submit_ms / 1000, "duration_s": jobs.duration_ms / 1000}, synthetic=False
    )
    machines = cluster.homogeneous(2, 2)
    options = {"policy": policy, "placement": placement, "preemption_cost_s": 0.002}
    outcome = cluster.simulate(jobs, machines, **options)
    assert (outcome.start_s >= outcome.submit_s).all()
    nodes = None if placement == "pooled" else np.array([2, 2])
    found = measure(outcome, jobs, node_gpus=nodes).summary
    wanted = measure(cluster.simulate(whole, machines, **options), whole, node_gpus=nodes).summary
    for name in ("jct_mean_s", "queueing_mean_s", "response_mean_s", "fragmentation"):
        assert found[name] == wanted[name]
    assert found["first_wait_mean_s"] >= 0


@settings(max_examples=60)
@given(
    rows=tables,
    setting=st.sampled_from(
        [
            ("fifo", "pooled", "block"),
            ("fifo", "consolidate", "block"),
            ("sjf", "consolidate", "skip"),
            ("srtf", "pooled", "skip"),
        ]
    ),
)
def test_windows_and_fragmentation_equal_a_look_at_every_second(rows, setting):
    policy, placement, head_of_line = setting
    jobs, nodes = table_of(rows), np.array([4, 4])
    outcome = cluster.simulate(
        jobs, cluster.homogeneous(2, 4), policy, placement=placement, head_of_line=head_of_line
    )
    placed = placement != "pooled"
    found = measure(outcome, jobs, node_gpus=nodes if placed else None).summary
    for name, value in second_by_second(outcome, jobs, nodes, placed).items():
        assert found[name] == pytest.approx(value, nan_ok=True), name


@settings(max_examples=60)
@given(rows=tables)
def test_response_is_zero_under_skipping_and_at_most_the_wait(rows):
    """Pooled FIFO with skip starts whoever fits at once: nobody is feasible and waits alone."""
    jobs = table_of(rows)
    for head_of_line in ("skip", "block"):
        outcome = cluster.simulate(
            jobs, cluster.homogeneous(2, 4), "fifo", head_of_line=head_of_line
        )
        found = measure(outcome, jobs)
        response_s, wait_s = found.per_job["response_s"], found.per_job["first_wait_s"]
        assert (response_s >= 0).all() and (response_s <= wait_s + 1e-9).all()


def test_response_counts_from_the_first_feasible_moment():
    """The head asks for 4 and blocks; the second could have started at 1 s and starts at 10 s."""
    jobs = JobTable.from_columns(
        submit_s=[0, 0, 1], duration_s=[10, 5, 5], num_gpus=[3, 4, 1], job_id=[0, 1, 2]
    )
    found = measure(cluster.simulate(jobs, cluster.homogeneous(1, 4), "fifo"), jobs)
    assert found.per_job["response_s"].tolist() == [0, 10, 14]
    assert found.per_job["start_s"].tolist() == [0, 10, 15]


def test_fairness_by_hand():
    """Two one-GPU jobs on one GPU: the second waits for the first."""
    jobs = JobTable.from_columns(submit_s=[0, 0], duration_s=[10, 10], num_gpus=[1, 1])
    outcome = cluster.simulate(jobs, cluster.homogeneous(1, 1), "fifo")
    found = measure(outcome, jobs)
    # First: n = 2, alone on half a GPU 20 s. Second: n = (2 x 10 + 1 x 10) / 20 = 1.5.
    assert found.per_job["rho"].tolist() == pytest.approx([10 / 20, 20 / 15])
    share = np.array([2.0, 0.75])
    assert found.summary["jain"] == pytest.approx(share.sum() ** 2 / (2 * (share**2).sum()))
    # JCTs of 10 and 20 s: the second just meets twice its duration.
    assert found.summary["slo_miss_rate"] == 0
    assert measure(outcome, jobs, slo_factor=1.5).summary["slo_miss_rate"] == 0.5


def test_horizon_energy_and_lost_gpu_hours():
    jobs = JobTable.from_columns(submit_s=[0, 0], duration_s=[3600, 3600], num_gpus=[1, 1])
    outcome = cluster.simulate(jobs, cluster.homogeneous(1, 2), "fifo")
    found = measure(outcome, jobs, horizon_s=7200, idle_power_w=50, active_power_w=250).summary
    assert found["allocated_gpu_horizon"] == 0.5
    assert found["energy_kwh"] == pytest.approx(0.5)
    assert found["gpu_hours_lost"] == 0
    assert np.isnan(measure(outcome, jobs).summary["allocated_gpu_horizon"])
    long_and_short = JobTable.from_columns(
        submit_s=[0, 600], duration_s=[3600, 60], num_gpus=[1, 1]
    )
    preempted = cluster.simulate(
        long_and_short, cluster.homogeneous(1, 1), "srtf", preemption_cost_s=360.0
    )
    lost = measure(preempted, long_and_short).summary
    assert (lost["preemptions"], lost["gpu_hours_lost"]) == (1, pytest.approx(0.1))


def test_every_metric_is_defined_and_the_job_file_is_exact(tmp_path):
    jobs = table_of([(0, 10, 1), (3, 5, 4), (3, 7, 2)])
    found = measure(cluster.simulate(jobs, cluster.homogeneous(1, 4), "fifo"), jobs)
    assert list(found.summary) == list(DEFINITIONS)
    found.write_jobs(tmp_path / "jobs.csv")
    with (tmp_path / "jobs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["finish_s"]) for row in rows] == found.per_job["finish_s"].tolist()
    assert [float(row["rho"]) for row in rows] == found.per_job["rho"].tolist()


def test_refuses_another_table():
    jobs = table_of([(0, 10, 1)])
    outcome = cluster.simulate(jobs, cluster.homogeneous(1, 4), "fifo")
    with pytest.raises(InvalidInput, match="is not the table of this outcome"):
        measure(outcome, table_of([(0, 10, 1), (0, 1, 1)]))
    with pytest.raises(InvalidInput, match="active_power_w must be above 60 W"):
        measure(outcome, jobs, active_power_w=10)


def test_golden_summary_of_tiresias(shared):
    """Facts, section 7: Tiresias g1 SRTF has 22,761 s first wait and 25,032 s total queueing."""
    from dtgym.simulator import traces

    jobs = traces.read(shared / "data/traces/golden/g1_philly_ee9e8c_14d.jobs.csv.gz")
    outcome = cluster.simulate(jobs, cluster.homogeneous(8, 8), "srtf")
    found = measure(outcome, jobs).summary
    assert found["first_wait_mean_s"] == pytest.approx(22_761, abs=1)
    assert found["queueing_mean_s"] == pytest.approx(25_032, abs=1)
    assert found["jct_mean_s"] == pytest.approx(80_600.7, abs=0.05)
