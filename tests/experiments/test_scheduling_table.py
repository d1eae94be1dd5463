"""Table D0 in small: what is in it, what data it learns from, and that it is the engine's."""

from __future__ import annotations

import csv
import gzip
from dataclasses import fields, replace

import numpy as np
import pytest

from dtgym.baselines.scheduling import COMPILED
from dtgym.experiments import scheduling_cases, table_files
from dtgym.experiments.scheduling_table import PolicyRow, schedulers
from dtgym.simulator import cluster
from dtgym.simulator.errors import InvalidInput

SMALL = {"loads": [0.9], "seeds": 2, "jobs": 60}


def test_every_compiled_policy_has_a_row_and_fifo_is_the_engines(tmp_path):
    rows = schedulers(suites=["generated"], per_job_folder=str(tmp_path), **SMALL)
    assert {row.policy.split(" ")[0] for row in rows} == set(COMPILED) - {"lucid-like", "muri-like"}
    fifo = next(row for row in rows if row.policy == "fifo")
    assert fifo.jct_over_fifo == 1 and fifo.seeds == 2
    means = []
    for seed in range(2):
        case = scheduling_cases.SUITES["generated"](None, seed, 0.9, 60)
        outcome = cluster.simulate(case.jobs, case.cluster, "fifo", placement="consolidate")
        means.append(outcome.jct_s.mean())
        assert case.jobs.against(case.cluster.gpus).offered_load == pytest.approx(0.9)
    assert fifo.jct_mean_s == pytest.approx(np.mean(means))
    assert fifo.jct_low_s <= fifo.jct_mean_s <= fifo.jct_high_s
    with gzip.open(tmp_path / "generated_0.9.csv.gz", "rt", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(rows) * 2 * 60
    jct_s = [float(line["jct_s"]) for line in lines if line["policy"] == "fifo"]
    assert np.mean(jct_s) == pytest.approx(fifo.jct_mean_s)


def test_multi_resource_rows_and_python_policies():
    rows = schedulers(
        suites=["multi_resource"],
        policies=["fifo-skip", "muri-like"],
        slow_policies={"fifo-skip": 1},
        loads=[1.1],
        seeds=2,
        jobs=200,
    )
    assert [row.policy for row in rows] == ["fifo-skip", "muri-like", "fifo-skip (python)"]
    assert all(0 < row.effective_cpu_busy < 1 for row in rows)
    assert rows[2].seeds == 1 and rows[2].decision_p99_ms > 0
    assert np.isnan(rows[0].decision_p99_ms)


def test_sharing_policies_differ_where_only_gpus_are_limited():
    names = ["qssf", "lucid-like", "muri-like"]

    def mean_jct_s(suite):
        rows = schedulers(suites=[suite], policies=names, loads=[1.1], seeds=1, jobs=400)
        return {row.policy: row.jct_mean_s for row in rows}

    sharing = mean_jct_s("gpu_sharing")
    assert len(set(sharing.values())) == 3
    # Proportional demands leave a partner no CPU: nobody shares, as the table's note says.
    proportional = mean_jct_s("multi_resource")
    assert proportional["lucid-like"] == proportional["muri-like"]


def test_python_rows_tell_their_options_and_pay_for_preemption():
    options = {"pollux-like": {"population": 6, "generations": 2, "interval_s": 600}}
    rows = schedulers(
        suites=["generated"], policies=["fifo"], slow_policies={"pollux-like": 1, "lucid-like": 1},
        slow_options=options, loads=[0.9], seeds=2, jobs=30,
    )  # fmt: skip
    assert [(row.policy, row.seeds) for row in rows] == [
        ("fifo", 2),
        ("pollux-like (python, population 6, generations 2, interval_s 600)", 1),
    ]
    with pytest.raises(InvalidInput, match="slow_options must be one of sjf"):
        schedulers(slow_policies={"sjf": 1}, slow_options=options)


def test_estimates_differ_from_the_truth_by_the_stated_error():
    jobs = scheduling_cases.SUITES["generated"](None, 3, 0.9, 2000).jobs
    assert jobs.estimate_s is not None
    error = np.log(jobs.estimate_s / jobs.duration_s)
    assert error.std() == pytest.approx(scheduling_cases.ESTIMATE_SIGMA, rel=0.05)
    assert "estimate_s" in jobs.synthetic


def test_refuses_unknown_names_and_an_empty_table(tmp_path, monkeypatch):
    with pytest.raises(InvalidInput, match="suites must be one of g1"):
        schedulers(suites=["mars"])
    with pytest.raises(InvalidInput, match="policies must be one of"):
        schedulers(policies=["magic"])
    with pytest.raises(InvalidInput, match="no suite is left"):
        schedulers(suites=["g1"], data=str(tmp_path), **SMALL)


def test_workers_change_nothing_but_wall_times(tmp_path):
    options = {"suites": ["generated", "heterogeneous"], "policies": ["fifo", "srtf"], **SMALL}
    alone = schedulers(per_job_folder=str(tmp_path / "alone"), **options)
    shared = schedulers(per_job_folder=str(tmp_path / "shared"), workers=2, **options)
    for one, other in zip(alone, shared, strict=True):
        assert repr(replace(one, simulation_ms=0)) == repr(replace(other, simulation_ms=0))
    for file in (tmp_path / "alone").iterdir():
        assert file.read_bytes() == (tmp_path / "shared" / file.name).read_bytes()


def test_every_column_is_defined():
    text = PolicyRow.__doc__ or ""
    for field in fields(PolicyRow):
        assert f"{field.name}:" in text


def test_the_shipped_table_loads():
    table = table_files.load("D0")
    assert table.report.endswith("scheduling_table:schedulers")


def test_real_suites_keep_training_and_test_apart(shared):
    folder = scheduling_cases.trace_folder(str(shared))
    assert folder is not None
    table = scheduling_cases._read(folder / "philly_82k.csv.gz")
    for seed in range(3):
        later = scheduling_cases.SUITES["philly_later"](folder, seed, 0.9, 100).jobs
        unseen = scheduling_cases.SUITES["philly_unseen"](folder, seed, 0.9, 100).jobs
        name = scheduling_cases.SEEN_CLUSTERS[seed]
        assert set(later.vc.tolist()) == {name}
        assert set(unseen.vc.tolist()) == {scheduling_cases.UNSEEN_CLUSTERS[seed]}
        mine = table.select(table.vc == name)
        border = np.sort(mine.submit_s)[int(0.7 * len(mine))]
        original = table.submit_s[np.isin(table.job_id, later.job_id)]
        assert original.min() >= border
    assert not set(scheduling_cases.SEEN_CLUSTERS) & set(scheduling_cases.UNSEEN_CLUSTERS)
    rows = schedulers(suites=["g1"], policies=["fifo", "srtf"], data=str(shared), **SMALL)
    assert rows[1].jct_mean_s < rows[0].jct_mean_s
