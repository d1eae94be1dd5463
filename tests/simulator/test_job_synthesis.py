"""Filling columns: only what is missing, marked, seeded, and with the published figures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtgym.simulator import job_generator, job_synthesis, traces
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.jobs import JobTable
from dtgym.simulator.trace_formats import native


def plain(**columns) -> JobTable:
    return JobTable.from_columns(
        submit_s=[0.0, 1.0, 2.0], duration_s=[10.0, 10.0, 10.0], num_gpus=[1, 2, 16], **columns
    )


def test_the_same_seed_gives_the_same_table():
    jobs = job_generator.generate("philly", jobs=200, seed=0)
    assert native.same(job_synthesis.fill(jobs, seed=1), job_synthesis.fill(jobs, seed=1))
    assert not native.same(job_synthesis.fill(jobs, seed=1), job_synthesis.fill(jobs, seed=2))


@given(given_columns=st.sets(st.sampled_from(["model", "cpu_cores", "memory_bytes", "gpu_type"])))
def test_measured_columns_stay_and_added_ones_are_marked(given_columns):
    values = {
        "model": ["bert", "a2c", "vgg16"],
        "cpu_cores": [5.0, 6.0, 7.0],
        "memory_bytes": [1.0, 2.0, 3.0],
        "gpu_type": ["", "V100", ""],
    }
    jobs = plain(**{name: values[name] for name in given_columns})
    full = job_synthesis.fill(jobs, seed=0)
    for name in given_columns:
        assert np.array_equal(full.columns()[name], values[name])
        assert name not in full.synthetic
    assert full.synthetic == set(full.columns()) - set(jobs.columns())
    assert native.same(full, job_synthesis.fill(full, seed=5))  # nothing is left to fill


def test_shares_are_the_published_ones():
    full = job_synthesis.fill(plain(), seed=0)
    assert full.cpu_cores.tolist() == [3, 6, 48]
    assert full.memory_bytes.tolist() == [62.5e9, 125e9, 1000e9]
    assert full.io_bytes_per_s.tolist() == [62.5e6, 125e6, 1000e6]
    assert full.network_bytes_per_s[0] == 0
    assert full.network_bytes_per_s[2] == 2 * 12.5e9


def test_stages_are_muris_at_the_nearest_profiled_gang():
    model = np.array(["resnet18", "resnet18", "resnet50", "nobody"])
    stages = job_synthesis.stage_times_s(model, np.array([1, 100, 1, 2]))
    assert stages[0] == pytest.approx([0.2 * 0.711, 0.8 * 0.711, 0.110, 0.0])
    assert stages[1][3] == 0.093  # 32 GPUs is the largest profiled gang
    assert np.array_equal(stages[2], stages[0])  # its stand-in
    assert stages[3] == pytest.approx([0.2 * 0.0005, 0.8 * 0.0005, 0.163, 0.018])


def test_a_host_stage_without_storage_is_split(tmp_path):
    file = tmp_path / "muri.csv"
    file.write_text(
        "job_id,num_gpu,submit_time,iterations,model_name,duration,iteration_time,"
        "resource_time_0,resource_time_1,resource_time_2\n"
        "0,1,0,100,vgg19,10900,109,114.0,80,0.0\n"
    )
    full = job_synthesis.fill(traces.read(file), seed=0)
    assert full.io_stage_s[0] == pytest.approx(0.2 * 0.114)
    assert full.cpu_stage_s[0] == pytest.approx(0.8 * 0.114)
    assert full.gpu_stage_s[0] == 0.08


def test_the_catalogue_is_whole_and_the_sum_of_stages_is_near_the_iteration():
    table = job_synthesis.muri_stage_times_s()
    assert len(table) == 48 and len(job_synthesis.classes()) == 8
    whole = np.array([row[0] for row in table.values()])
    total = np.array([sum(row[1:]) for row in table.values()])
    assert np.mean(np.abs(total / whole - 1)) == pytest.approx(0.119, abs=0.002)
    for model in job_synthesis.STAND_INS.values():
        assert model in job_synthesis.classes()


def test_refuses_an_unknown_synthesiser_and_a_negative_seed():
    with pytest.raises(InvalidInput, match="synthesiser must be one of muri-synergy"):
        job_synthesis.fill(plain(), seed=0, synthesiser="guess")
    with pytest.raises(InvalidInput, match="seed must be at least 0"):
        job_synthesis.fill(plain(), seed=-1)
