"""The cluster engine against an independent slow scheduler, golden files and its own laws."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtgym.simulator import cluster, cluster_reference, hardware
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.job_speed import SpeedModel
from dtgym.simulator.jobs import JobTable
from dtgym.simulator.service_levels import gittins_index

_spec = importlib.util.spec_from_file_location(
    "slow_scheduler", Path(__file__).with_name("slow_scheduler.py")
)
slow = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(slow)

RULES = ("pooled", "consolidate", "best_fit", "worst_fit", "first_fit", "spread")


def uneven(sizes):
    """A cluster of single nodes of these sizes."""
    kind = hardware.accelerator("V100-32")
    return hardware.Cluster(
        "uneven",
        tuple(
            hardware.NodeGroup(1, hardware.Node(f"n{i}", kind, size, 24, 5e11, 5e8, 1e10))
            for i, size in enumerate(sizes)
        ),
    )


@st.composite
def cases(draw, max_jobs=24, step_ms=1000):
    """Jobs with many ties, zero durations and simultaneous events, on a small uneven cluster."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=5))
    count = draw(st.integers(1, max_jobs))
    ids = draw(st.permutations(range(count)))
    span = draw(st.sampled_from([3, 20, 60]))
    unit = draw(st.sampled_from([step_ms, step_ms // 8]))
    rows = [
        (
            ids[i],
            unit * draw(st.integers(0, span)),
            unit * draw(st.integers(0, 12)),
            draw(st.sampled_from([0, 1, 1, 2, 3, 4, 5, 8, 12])),
        )
        for i in range(count)
    ]
    return [row for row in rows if row[3] <= sum(sizes)] or [(0, 0, unit, 1)], sizes


def table(rows):
    ids, submit, duration, gpus = zip(*rows, strict=True)
    return JobTable.from_columns(
        job_id=ids,
        submit_s=np.array(submit) / 1000,
        duration_s=np.array(duration) / 1000,
        num_gpus=gpus,
    )


def times_ms(outcome, rows):
    """id -> (start, finish)."""
    start, finish = np.rint(outcome.start_s * 1000), np.rint(outcome.finish_s * 1000)
    return {row[0]: (int(start[i]), int(finish[i])) for i, row in enumerate(rows)}


@settings(max_examples=150)
@given(
    case=cases(),
    policy=st.sampled_from(["fifo", "sjf"]),
    rule=st.sampled_from(RULES),
    skip=st.booleans(),
)
def test_queue_policies_equal_the_slow_scheduler(case, policy, rule, skip):
    rows, sizes = case
    rows = [row for row in rows if slow.place(rule, row[3], list(sizes), sizes) is not None]
    if not rows:
        return
    nodes = [sum(sizes)] if rule == "pooled" else sizes
    wanted = slow.run_queue(rows, nodes, policy, "first_fit" if rule == "pooled" else rule, skip)
    got = cluster.simulate(
        table(rows),
        uneven(sizes),
        policy,
        placement=rule,
        head_of_line="skip" if skip else "block",
    )
    assert times_ms(got, rows) == wanted


@settings(max_examples=200)
@given(
    case=cases(),
    policy=st.sampled_from(["srtf", "srsf", "las"]),
    thresholds=st.lists(st.integers(0, 40), max_size=3, unique=True).map(sorted),
    resolution=st.sampled_from([1000, 250, 375]),
    cost=st.sampled_from([0, 0, 125, 2000]),
)
def test_preemptive_policies_equal_the_slow_scheduler(case, policy, thresholds, resolution, cost):
    rows, sizes = case
    wanted = slow.run_preemptive(
        rows,
        sum(sizes),
        policy,
        thresholds=[bound * 1000 for bound in thresholds],
        step_ms=resolution,
        cost_ms={row[0]: cost for row in rows},
    )
    got = cluster.simulate(
        table(rows),
        uneven(sizes),
        policy,
        las_thresholds_gpu_s=thresholds,
        las_resolution_s=resolution / 1000,
        preemption_cost_s=cost / 1000,
    )
    assert times_ms(got, rows) == {name: value[:2] for name, value in wanted.items()}
    assert {row[0]: int(n) for row, n in zip(rows, got.preemptions, strict=True)} == {
        name: value[2] for name, value in wanted.items()
    }
    waited = np.rint(got.queueing_s * 1000).astype(int)
    assert {row[0]: int(n) for row, n in zip(rows, waited, strict=True)} == {
        name: value[3] for name, value in wanted.items()
    }


POLICIES = ("fifo", "sjf", "srtf", "srsf", "las", "gittins")


@settings(max_examples=40)
@given(many=st.lists(cases(max_jobs=10), min_size=1, max_size=5), policy=st.sampled_from(POLICIES))
def test_a_batch_equals_its_cases_one_by_one(many, policy):
    tables = [table(rows) for rows, _ in many]
    clusters = [uneven(sizes) for _, sizes in many]
    options = {"gittins_samples_gpu_s": [1, 2, 5, 9, 40]} if policy == "gittins" else {}
    batch = cluster.simulate_batch(tables, clusters, policy, head_of_line="skip", **options)
    assert len(batch) == len(many)
    for index, one in enumerate(batch):
        alone = cluster.simulate(
            tables[index], clusters[index], policy, head_of_line="skip", **options
        )
        for name in ("start_s", "finish_s", "queueing_s", "preemptions"):
            assert np.array_equal(getattr(one, name), getattr(alone, name))
        assert one.events == alone.events
        assert np.array_equal(one.stretches.start_s, alone.stretches.start_s)


@settings(max_examples=40)
@given(case=cases(), policy=st.sampled_from(POLICIES), data=st.data())
def test_the_order_of_rows_does_not_matter(case, policy, data):
    rows, sizes = case
    order = data.draw(st.permutations(range(len(rows))))
    straight = cluster.simulate(table(rows), uneven(sizes), policy)
    mixed = cluster.simulate(table([rows[i] for i in order]), uneven(sizes), policy)
    assert np.array_equal(straight.finish_s[list(order)], mixed.finish_s)
    assert np.array_equal(straight.preemptions[list(order)], mixed.preemptions)


@settings(max_examples=60)
@given(
    case=cases(),
    policy=st.sampled_from(POLICIES),
    cost=st.sampled_from([0.0, 1.5]),
    rule=st.sampled_from(RULES),
)
def test_nothing_is_lost_and_nothing_oversold(case, policy, cost, rule):
    """Every job ends, receives exactly its work and holds its gang; no node gives what it lacks."""
    rows, sizes = case
    if policy not in ("fifo", "sjf"):
        rule = "pooled"
    rows = [row for row in rows if slow.place(rule, row[3], list(sizes), sizes) is not None]
    if not rows:
        return
    jobs = table(rows)
    outcome = cluster.simulate(jobs, uneven(sizes), policy, placement=rule, preemption_cost_s=cost)
    stretches = outcome.stretches
    served = np.zeros(len(jobs))
    np.add.at(served, stretches.job, stretches.end_s - stretches.start_s)
    assert np.allclose(served, jobs.duration_s + cost * outcome.preemptions, atol=1e-9)
    assert (outcome.start_s >= jobs.submit_s).all()
    assert np.allclose(outcome.queueing_s, outcome.jct_s - served, atol=1e-9)
    assert (stretches.held[:, 0] == jobs.num_gpus[stretches.job]).all()
    for now in np.unique(stretches.start_s):
        live = (stretches.start_s <= now) & (now < stretches.end_s)
        assert stretches.held[live, 0].sum() <= sum(sizes)
        if rule != "pooled":
            used = np.zeros(len(sizes))
            for one in np.flatnonzero(live):
                places = slice(stretches.place_base[one], stretches.place_base[one + 1])
                assert stretches.place_gpus[places].sum() == jobs.num_gpus[stretches.job[one]]
                np.add.at(used, stretches.place_node[places], stretches.place_gpus[places])
            assert (used <= sizes).all()
    work = (jobs.num_gpus * served).sum()
    share = outcome.utilisation["makespan"]["gpu"]
    if outcome.makespan_s > 0:
        assert share == pytest.approx(work / (sum(sizes) * outcome.makespan_s))
    waiting = outcome.waiting_steps()[1]
    assert waiting.min() >= 0 and waiting[-1] == 0


def test_busy_window_by_hand():
    """One GPU; a runs 0-10, b waits 2-10 and runs 10-12, c (no wait) runs 20-25."""
    jobs = JobTable.from_columns(submit_s=[0, 2, 20], duration_s=[10, 2, 5], num_gpus=[1, 1, 1])
    outcome = cluster.simulate(jobs, cluster.homogeneous(1, 2), "priority", priority=[0, 1, 2])
    assert np.isnan(outcome.utilisation["busy"]["gpu"])
    outcome = cluster.simulate(jobs, cluster.homogeneous(1, 1), "fifo")
    assert outcome.utilisation["busy"]["gpu"] == 1.0
    assert outcome.utilisation["makespan"]["gpu"] == pytest.approx(17 / 25)
    assert outcome.utilisation_between(8, 16)["gpu"] == pytest.approx(4 / 8)
    assert outcome.utilisation_between(8, 16)["cpu"] == 0.0


def test_a_job_that_can_never_run_is_named_or_listed():
    jobs = JobTable.from_columns(
        job_id=["a", "b", "c"], submit_s=[0, 1, 2], duration_s=[5, 5, 5], num_gpus=[1, 9, 1]
    )
    small = cluster.homogeneous(nodes=1, gpus_per_node=8)
    with pytest.raises(InvalidInput, match=r"row 2 .*num_gpus: job b can never run.* 9 GPUs"):
        cluster.simulate(jobs, small)
    outcome = cluster.simulate(jobs, small, impossible="reject")
    assert outcome.rejected.tolist() == [1]
    assert "job b" in outcome.rejections[0]
    assert outcome.finish_s[[0, 2]].tolist() == [5, 7]
    assert np.isnan(outcome.finish_s[1]) and outcome.makespan_s == 7
    outcome = cluster.simulate(jobs, uneven([4, 4]), placement="consolidate", impossible="reject")
    assert outcome.rejected.tolist() == [1] and outcome.events == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "fifi"}, "policy must be one of"),
        ({"placement": "best"}, "placement must be one of"),
        ({"head_of_line": "jump"}, "head_of_line must be one of"),
        ({"impossible": "drop"}, "impossible must be one of"),
        ({"policy": "srtf", "preemption_cost_s": -1}, "preemption_cost_s must be at least 0 s"),
        ({"policy": "srtf", "preemption_cost_s": [1, 2]}, "one per job"),
        ({"policy": "srtf", "preemption_cost_s": {"bert": 4}}, "no entry for model ''"),
        ({"policy": "las", "las_thresholds_gpu_s": (9, 3)}, "must ascend"),
        ({"policy": "las", "las_resolution_s": 0}, "las_resolution_s must be above 0 s"),
        ({"policy": "qssf"}, "estimate_s is needed"),
        ({"policy": "priority"}, "priority is needed"),
        ({"policy": "easy", "estimate_s": [-1]}, "estimate_s must be at least 0 s"),
        ({"policy": "easy", "estimate_s": [1, 2]}, r"estimate_s must have shape \(1,\)"),
        ({"policy": "lucid"}, "needs speed=SpeedModel"),
        ({"resources": ("tpu",)}, "resources must be one of"),
        ({"resources": ("cpu",)}, "has no column cpu_cores"),
        ({"decision_interval_s": -1}, "decision_interval_s must be at least 0 s"),
        ({"policy": "lucid_srtf", "placement": "pooled"}, "at least 1 GPU and 1 s"),
    ],
)
def test_bad_options_get_one_clear_line(options, message):
    seconds = 0 if options.get("policy") == "lucid_srtf" else 5
    jobs = JobTable.from_columns(submit_s=[0], duration_s=[seconds], num_gpus=[1])
    with pytest.raises(InvalidInput, match=message):
        cluster.simulate(jobs, cluster.homogeneous(1, 1), **options)


def test_what_is_no_table_or_no_cluster_is_named():
    jobs = JobTable.from_columns(submit_s=[0], duration_s=[5], num_gpus=[1])
    with pytest.raises(InvalidInput, match=r"cluster must be a hardware\.Cluster"):
        cluster.simulate(jobs, 8)
    with pytest.raises(InvalidInput, match="jobs must be a JobTable"):
        cluster.simulate([1], cluster.homogeneous(1, 1))
    with pytest.raises(InvalidInput, match=r"nodes must be a whole number, got 2\.5"):
        cluster.homogeneous(2.5, 8)
    with pytest.raises(InvalidInput, match="as many job tables as clusters"):
        cluster.prepare([jobs], [])


@pytest.mark.parametrize("policy", ["fifo", "drf"])
@pytest.mark.parametrize(
    ("tables", "clusters", "message"),
    [
        (["good", None], ["good", "good"], r"jobs\[1\] must be a JobTable, got NoneType"),
        ([{"submit_s": [0]}], ["good"], r"jobs\[0\] must be a JobTable, got dict"),
        (["good"], [8], r"clusters\[0\] must be a hardware.Cluster, got int"),
        ("good", ["good"], "jobs must be a list, one per case; got JobTable"),
        (["good"], "good", "clusters must be a list, one per case; got Cluster"),
        ([], [], "as many job tables as clusters, at least one; got 0 job tables"),
        (["good"], ["good", "good"], "got 1 job tables and 2 clusters"),
    ],
)
def test_a_batch_names_what_is_no_case(policy, tables, clusters, message):
    jobs = JobTable.from_columns(submit_s=[0], duration_s=[5], num_gpus=[1])
    machines = cluster.homogeneous(1, 4)

    def given_as(form, good):
        if isinstance(form, list):
            return [given_as(one, good) for one in form]
        return good if form == "good" else form

    tables, clusters = given_as(tables, jobs), given_as(clusters, machines)
    with pytest.raises(InvalidInput, match=message):
        cluster.simulate_batch(tables, clusters, policy)
    with pytest.raises(InvalidInput, match=message):
        cluster.prepare(tables, clusters)


def test_a_batch_with_other_resources_equals_its_cases():
    """One node of 4 GPUs and 12 cores: two jobs of 8 cores cannot run together."""
    jobs = JobTable.from_columns(
        submit_s=[0, 0], duration_s=[5, 5], num_gpus=[1, 1], cpu_cores=[8, 8]
    )
    machines = cluster.homogeneous(1, 4)
    (outcome,) = cluster.simulate_batch([jobs], [machines])
    assert outcome.finish_s.tolist() == [5, 10]
    assert outcome.utilisation["makespan"]["cpu"] == pytest.approx(8 / 12)
    assert cluster.simulate(jobs, machines).finish_s.tolist() == [5, 10]
    (counted,) = cluster.simulate_batch([jobs], [machines], resources=("gpu",))
    assert counted.finish_s.tolist() == [5, 5]
    with pytest.raises(InvalidInput, match="whole GPUs of any type only"):
        cluster.prepare([jobs], [machines])


@settings(max_examples=40)
@given(samples=st.lists(st.integers(1, 50), min_size=1, max_size=12), attained=st.integers(0, 60))
def test_gittins_index_is_the_best_ratio_over_all_stopping_times(samples, attained):
    left = [s for s in samples if s > attained]
    ratios = [
        sum(s - attained <= d for s in left) / sum(min(s - attained, d) for s in left)
        for d in range(1, 60)
        if left
    ]
    assert gittins_index(samples, [attained])[0] == pytest.approx(max(ratios, default=0.0))


def test_goldens_job_for_job(shared):
    from dtgym.experiments.validation import schedulers

    report = schedulers.validate(shared / "data" / "traces")
    assert report.passed, "\n".join(report.lines)


@settings(max_examples=120)
@given(
    case=cases(),
    policy=st.sampled_from(POLICIES),
    rule=st.sampled_from(RULES),
    skip=st.booleans(),
    cost=st.sampled_from([0.0, 0.0, 1.5]),
)
def test_the_resource_kernel_equals_the_fast_kernels_where_both_apply(
    case, policy, rule, skip, cost
):
    """A speed model without stages leaves every job at its stated duration."""
    rows, sizes = case
    if policy not in ("fifo", "sjf"):
        rule = "pooled"
    rows = [row for row in rows if slow.place(rule, row[3], list(sizes), sizes) is not None]
    if not rows:
        return
    options = {
        "placement": rule,
        "head_of_line": "skip" if skip else "block",
        "preemption_cost_s": cost,
        "las_thresholds_gpu_s": (3, 17),
        "gittins_samples_gpu_s": [1, 2, 5, 9, 40],
    }
    fast = cluster.simulate(table(rows), uneven(sizes), policy, **options)
    general = cluster.simulate(table(rows), uneven(sizes), policy, speed=SpeedModel(), **options)
    for name in ("start_s", "finish_s", "queueing_s", "preemptions"):
        assert np.array_equal(getattr(fast, name), getattr(general, name)), name


@settings(max_examples=80)
@given(case=cases(max_jobs=16), policy=st.sampled_from(["easy", "conservative"]), data=st.data())
def test_backfilling_equals_the_slow_scheduler(case, policy, data):
    rows, sizes = case
    off = data.draw(st.sampled_from([0, 1000, 125]))
    estimates = {row[0]: row[2] + off * data.draw(st.integers(-2, 4)) for row in rows}
    estimates = {name: max(value, 0) for name, value in estimates.items()}
    wanted = slow.run_backfill(rows, sum(sizes), policy, estimates)
    got = cluster.simulate(
        table(rows),
        uneven(sizes),
        policy,
        estimate_s=[estimates[row[0]] / 1000 for row in rows],
    )
    assert times_ms(got, rows) == wanted


@settings(max_examples=40)
@given(case=cases(), policy=st.sampled_from(cluster_reference.POLICIES), skip=st.booleans())
def test_the_shipped_reference_gives_the_same_schedule(case, policy, skip):
    rows, sizes = case
    options = {"las_thresholds_gpu_s": (3, 17), "preemption_cost_s": 0.5}
    start_s, finish_s, events = cluster_reference.simulate(
        table(rows), sum(sizes), policy, skip=skip, **options
    )
    fast = cluster.simulate(
        table(rows), uneven(sizes), policy, head_of_line="skip" if skip else "block", **options
    )
    assert np.array_equal(fast.start_s, start_s)
    assert np.array_equal(fast.finish_s, finish_s)
    assert fast.events >= 2 * len(rows) and events >= 2 * len(rows)


@settings(max_examples=120)
@given(
    case=cases(),
    policy=st.sampled_from(["srtf", "srsf"]),
    rule=st.sampled_from(RULES[1:]),
    cost=st.sampled_from([0, 0, 1500]),
)
def test_preemption_on_nodes_equals_the_slow_scheduler(case, policy, rule, cost):
    rows, sizes = case
    rows = [row for row in rows if slow.place(rule, row[3], list(sizes), sizes) is not None]
    # A job without GPUs is one part on some node here, which GPUs alone do not decide.
    rows = [row for row in rows if row[3] > 0]
    if not rows:
        return
    wanted = slow.run_preemptive_on_nodes(rows, sizes, policy, rule, cost)
    got = cluster.simulate(
        table(rows), uneven(sizes), policy, placement=rule, preemption_cost_s=cost / 1000
    )
    assert times_ms(got, rows) == {name: value[:2] for name, value in wanted.items()}
    assert {row[0]: int(n) for row, n in zip(rows, got.preemptions, strict=True)} == {
        name: value[2] for name, value in wanted.items()
    }
