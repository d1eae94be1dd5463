"""Trace readers: small hand-made files of every format, and one clear line for a bad one."""

# ruff: noqa: E501 (the sample files are as wide as the real ones)

from __future__ import annotations

import gzip
import json
import time
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtgym.simulator import traces
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.jobs import JobTable
from dtgym.simulator.trace_formats import native

PHILLY_CSV = """timestamp,duration,num_gpus,gpu_time,vc
2017-10-07 01:00:00,60.0,8,480.0,aa
2017-10-07 00:59:00,90.0,1,90.0,bb
"""
PHILLY_JSON = [
    {
        "status": "Pass",
        "vc": "ee",
        "jobid": "application_2",
        "user": "u1",
        "submitted_time": "2017-10-07 01:11:39",
        "attempts": [
            {
                "start_time": "2017-10-07 01:12:09",
                "end_time": "2017-10-07 01:13:23",
                "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}],
            },
            {
                "start_time": "2017-10-07 01:13:30",
                "end_time": "2017-10-07 01:14:30",
                "detail": [
                    {"ip": "m4", "gpus": ["gpu0", "gpu1"]},
                    {"ip": "m5", "gpus": ["gpu0", "gpu1"]},
                ],
            },
        ],
    },
    {
        "status": "Killed",
        "vc": "ee",
        "jobid": "application_1",
        "user": None,
        "submitted_time": "2017-10-07 01:11:40",
        "attempts": [],
    },
    {
        "status": "Failed",
        "vc": "ff",
        "jobid": "application_3",
        "user": "u2",
        "submitted_time": "2017-10-07 01:11:49",
        "attempts": [
            {
                "start_time": "2017-10-07 01:12:00",
                "end_time": "None",
                "detail": [{"ip": "m1", "gpus": ["gpu0"]}],
            },
            {
                "start_time": "2017-10-07 01:12:00",
                "end_time": "2017-10-07 01:12:10",
                "detail": [{"ip": "m1", "gpus": ["gpu0"]}],
            },
        ],
    },
]
HELIOS = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1425511,uX,vcJ,1,4,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0
1425512,uV,vch,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:37,2020-06-09 18:45:46,249,10
1425513,uV,vch,4,16,1,CANCELLED,2020-06-09 18:41:27,,2020-06-09 18:45:46,,
"""
ACME = """job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,end_time,fail_time,stop_time,duration,queue,gpu_time
dlctk,uf794,8,64,960,1000,100.0,Other,FAILED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,2023-05-17 11:01:16+00:00,2023-05-17 11:01:16+00:00,,18,10.0,1152.0
dlc1t,uf794,1,8,96,100,10.0,Eval,DONE,2023-05-17 19:00:00+08:00,2023-05-17 19:00:30+08:00,2023-05-17 19:02:00+08:00,,,90,30.0,720.0
"""
OPENB = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
pod-0,12000,16384,1,460,,LS,Running,100,400,110
pod-1,88000,327680,8,1000,V100M16|V100M32,BE,Succeeded,150,500,150
pod-2,1000,2048,1,1000,,LS,Pending,160,300,
pod-3,1000,2048,0,0,,LS,Running,170,300,171
"""
GAVEL = (
    "LM (batch size 10)\tpython main.py\tworkloads/lm\t--steps\t1\t8601\t1\t1\t-1.0\t0\n"
    "CycleGAN\tpython cyclegan.py\tworkloads/gan\t--n_steps\t1\t295\t4\t1\t-1.0\t12.5\n"
)
MURI = """job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,resource_time_0,resource_time_1,resource_time_2,priority
0,1,0,100,vgg19,16,10900,0,109,114.0,80,0.0,1
1,8,6000,10,bert,4,1920,6000,192,0.5,167,59.0,0
"""
TIRESIAS = """job_id,num_gpu,submit_time,iterations,model_name,duration,interval
0,1,0,606,vgg19,164,30
1,8,30,133,vgg11,147,23
"""
SWF = """; Computer: test
; MaxProcs: 128
  1  0  10  100  4  -1  -1  8  3600  -1  1  3  1  -1  2  -1  -1  -1
  2  5  -1   -1  4  -1  -1  8  3600  -1  5  3  1  -1  2  -1  -1  -1
  3  9   0   50  4  -1  -1 -1  60    -1  1  4  1  -1  1  -1  -1  -1
"""
NATIVE = """job_id,submit_s,duration_s,num_gpus,cpu_cores,model
a,1.5,60.0,2,6.0,bert
b,2.5,30.0,1,3.0,vgg16
"""
EXAMPLES = {
    "philly": PHILLY_CSV,
    "helios": HELIOS,
    "acme": ACME,
    "openb": OPENB,
    "gavel": GAVEL,
    "muri": MURI,
    "tiresias": TIRESIAS,
    "swf": SWF,
    "native": NATIVE,
}


def read_text(tmp_path, text: str | bytes, name="trace.txt", **options) -> JobTable:
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", traces.TraceWarning)
        return traces.read(file, **options)


@pytest.mark.parametrize("name", EXAMPLES)
def test_detects_the_format_plain_and_gzipped(tmp_path, name):
    text = EXAMPLES[name]
    assert traces.detect(tmp_path / "x", text) == name
    plain = read_text(tmp_path, text)
    zipped = read_text(tmp_path, gzip.compress(text.encode(), mtime=0))
    assert native.same(plain, zipped)
    assert native.same(plain, read_text(tmp_path, text, format=name))


def test_philly_csv(tmp_path):
    jobs = read_text(tmp_path, PHILLY_CSV)
    assert jobs.submit_s.tolist() == [60, 0]
    assert jobs.duration_s.tolist() == [60, 90]
    assert jobs.vc is not None and jobs.vc.tolist() == ["aa", "bb"]
    stamp = np.datetime64("2017-10-07T00:59:00", "s").astype(int)
    assert jobs.epoch_unix_s == stamp


def test_philly_json_sums_attempts_and_counts_the_unfinished(tmp_path):
    jobs = read_text(tmp_path, json.dumps(PHILLY_JSON))
    assert jobs.job_id.tolist() == ["application_2", "application_3"]
    assert jobs.duration_s.tolist() == [74 + 60, 10]
    assert jobs.num_gpus.tolist() == [4, 1]
    assert jobs.submit_s.tolist() == [0, 10]
    assert len(jobs.notes) == 1 and "left out 1 of 3 jobs without a finished" in jobs.notes[0]


def test_notes_are_warnings_too(tmp_path):
    file = tmp_path / "pods.csv"
    file.write_text(OPENB)
    with pytest.warns(traces.TraceWarning, match="left out 1 of 4 jobs that were never scheduled"):
        traces.read(file)


def test_helios(tmp_path):
    jobs = read_text(tmp_path, HELIOS)
    assert jobs.job_id.tolist() == [1425511, 1425512]
    assert jobs.duration_s.tolist() == [36848, 249]
    assert jobs.submit_s.tolist() == [0, 26]
    assert jobs.cpu_cores is not None and jobs.cpu_cores.tolist() == [4, 16]
    assert "that never started" in jobs.notes[0]


def test_acme_reads_zones_and_memory(tmp_path):
    jobs = read_text(tmp_path, ACME)
    assert jobs.duration_s.tolist() == [8, 90]
    assert jobs.submit_s.tolist() == [58, 0]
    assert jobs.memory_bytes is not None and jobs.memory_bytes.tolist() == [8e12, 1e11]


def test_openb_shares_types_and_units(tmp_path):
    jobs = read_text(tmp_path, OPENB)
    assert jobs.job_id.tolist() == ["pod-0", "pod-1", "pod-3"]
    assert jobs.gpu_fraction is not None and jobs.gpu_fraction.tolist() == [0.46, 1, 1]
    assert jobs.gpu_type is not None and jobs.gpu_type.tolist() == ["", "V100M16|V100M32", ""]
    assert jobs.memory_bytes is not None and jobs.memory_bytes[0] == 16 * 2**30
    assert jobs.duration_s.tolist() == [290, 350, 129]


def test_pai_joins_the_task_table(tmp_path):
    (tmp_path / "pai_task_table.csv").write_text(
        "j1,ps,1.0,Terminated,105.0,190.0,600.0,29.296875,,\n"
        "j1,worker,2.0,Terminated,110.0,200.0,400.0,10,50.0,MISC\n"
        "j2,worker,1.0,Waiting,,,400.0,10,100.0,V100\n"
        "other,worker,1.0,Terminated,1,2,400.0,10,100.0,V100\n"
    )
    jobs = read_text(
        tmp_path,
        "j2,i2,u,Waiting,120.0,\nj1,i1,u,Terminated,100.0,200.0\n",
        name="pai_job_table.csv",
    )
    assert jobs.job_id.tolist() == ["j1"]
    assert (jobs.duration_s[0], jobs.num_gpus[0]) == (95, 2)
    assert jobs.gpu_fraction is not None and jobs.gpu_fraction[0] == 0.5
    assert jobs.cpu_cores is not None and jobs.cpu_cores[0] == 14
    assert jobs.memory_bytes is not None
    assert jobs.memory_bytes[0] == pytest.approx((29.296875 + 20) * 2**30)
    assert "1 of 2 jobs without a started and ended task" in jobs.notes[0]


def test_gavel_durations_come_from_the_profiled_rate(tmp_path):
    jobs = read_text(tmp_path, GAVEL)
    assert jobs.duration_s[0] == pytest.approx(8601 / 81.651635)
    assert jobs.duration_s[1] == pytest.approx(295 / 4.426088)  # only profiled on one GPU
    assert jobs.model is not None and jobs.model.tolist() == ["lm", "cyclegan"]
    assert {"duration_s", "model"} <= jobs.synthetic


def test_muri_is_in_milliseconds_and_says_what_is_synthetic(tmp_path):
    jobs = read_text(tmp_path, MURI)
    assert jobs.submit_s.tolist() == [0, 6]
    assert jobs.duration_s.tolist() == [10.9, 1.92]
    assert jobs.gpu_stage_s is not None and jobs.gpu_stage_s.tolist() == [0.08, 0.167]
    assert "model" in jobs.synthetic and "duration_s" not in jobs.synthetic


def test_swf_takes_requested_then_allocated_processors(tmp_path):
    jobs = read_text(tmp_path, SWF)
    assert jobs.job_id.tolist() == [1, 3]
    assert jobs.num_gpus.tolist() == [8, 4]
    assert jobs.estimate_s is not None and jobs.estimate_s.tolist() == [3600, 60]
    assert jobs.line.tolist() == [3, 5]


BAD = [
    ("", "is empty"),
    ("timestamp,duration,num_gpus\n", "a header but no jobs"),
    (PHILLY_CSV.replace(",duration", ",seconds"), "row 0 .line 1., column duration: is missing"),
    (
        PHILLY_CSV.replace("90.0,1,90.0", "-90.0,1,-90.0"),
        r"row 2 \(line 3\), column duration: must be at least 0 \(in s\), got '-90.0'",
    ),
    (
        PHILLY_CSV.replace("60.0,8", "60000.0,8"),
        r"row 1 \(line 2\), column gpu_time: .*mixed units",
    ),
    (
        PHILLY_CSV.replace("2017-10-07 00:59:00", "1507337940"),
        r"row 2 \(line 3\), column timestamp: must be a time such as",
    ),
    (
        PHILLY_CSV.replace("2017-10-07 00:59:00", "2017-13-07 00:59:00"),
        r"row 2 \(line 3\), column timestamp: must be a time such as",
    ),
    (HELIOS.replace(",249,", ",249000,"), r"row 2 \(line 3\), column duration: .*mixed units"),
    (
        HELIOS.replace("2020-06-09 18:41:27,2020", "2020-06-11 18:41:27,2020"),
        r"row 2 \(line 3\), column submit_time: must not come after end_time",
    ),
    (
        OPENB.replace("150,500,150", "550,500,150"),
        r"row 2 \(line 3\), column creation_time: must not come after deletion_time, got '550'",
    ),
    (MURI.replace(",1920,", ",2,"), r"row 2 \(line 3\), column duration: .*milliseconds"),
    (
        TIRESIAS.replace("1,8,30,", "1,8,30000,"),
        r"row 1 \(line 2\), column interval: .*mixed units",
    ),
    (TIRESIAS.replace("\n1,", "\n0,"), r"row 2 \(line 3\), column job_id: duplicate id 0"),
    (TIRESIAS.replace("147", "147 s"), r"row 2 \(line 3\), column duration: must be a number"),
    (TIRESIAS.replace(",147,23", ",147"), r"row 2 \(line 3\), column interval: expected 7 fields"),
    (GAVEL.replace("CycleGAN\t", "Quantum\t"), "row 2 .*column job_type: is no job type"),
    (SWF.replace("  3  9", "  x  3  9"), r"row 3 \(line 5\), column think_time: expected 18"),
    (NATIVE.replace("duration_s", "duration_ms"), "column duration_s: is missing"),
    (NATIVE.replace("cpu_cores", "cores"), r"row 0 \(line 1\), column cores: is unknown"),
    (NATIVE.replace("30.0,1", "30.0,1.5"), "row 2.*column num_gpus: must be a whole number"),
    ("a,b,c\n1,2,3\n", "no known trace format has the columns"),
    ('[{"jobid": 1}]', "row 1, column submitted_time: is missing"),
    ("[{", "no JSON"),
    (TIRESIAS.replace("vgg11", "vgg\xff").encode("latin-1"), "row 2 .line 3., column model_name"),
    (
        gzip.compress(TIRESIAS.encode(), mtime=0)[:-20],
        r"row \d \(line \d\), column \w+: truncated gzip",
    ),
    (gzip.compress(TIRESIAS.encode(), mtime=0)[:4] + b"\xff" * 40, "damaged gzip"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_bad_file_gets_one_clear_line(tmp_path, text, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        read_text(tmp_path, text)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "trace.txt") in str(caught.value)


def test_gpus_above_the_cluster_and_overload(tmp_path):
    with pytest.raises(InvalidInput, match=r"row 2 \(line 3\), column num_gpus: asks for 8 GPUs"):
        read_text(tmp_path, TIRESIAS, cluster=4)
    file = tmp_path / "trace.csv"
    file.write_text(TIRESIAS)
    with pytest.warns(traces.TraceWarning, match="offered load is 5"):
        traces.read(file, cluster=8)


def test_missing_file_and_unknown_format(tmp_path):
    with pytest.raises(InvalidInput, match="no such file"):
        traces.read(tmp_path / "nothing.csv")
    with pytest.raises(InvalidInput, match="format must be one of"):
        traces.read(tmp_path / "nothing.csv", "excel")
    with pytest.raises(InvalidInput, match="is a folder"):
        traces.read(tmp_path)


seconds = st.floats(0, 1e9, allow_subnormal=False)
text_values = st.text(
    st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=8
)


@given(data=st.data(), count=st.integers(1, 8), zipped=st.booleans())
def test_native_round_trip_is_exact(tmp_path_factory, data, count, zipped):
    def column(values):
        return data.draw(st.lists(values, min_size=count, max_size=count))

    jobs = JobTable.from_columns(
        job_id=data.draw(
            st.lists(st.integers(-5, 99), min_size=count, max_size=count, unique=True)
        ),
        submit_s=column(seconds),
        duration_s=column(seconds),
        num_gpus=column(st.integers(0, 2048)),
        cpu_cores=column(seconds),
        user=column(text_values.map(str.strip)),
        synthetic=["cpu_cores"],
        epoch_unix_s=data.draw(st.none() | seconds),
    )
    file = tmp_path_factory.mktemp("jobs") / ("jobs.csv.gz" if zipped else "jobs.csv")
    traces.write(jobs, file)
    first = file.read_bytes()
    again = traces.read(file)
    assert native.same(jobs, again)
    traces.write(again, file)
    assert file.read_bytes() == first


def test_the_philly_table_reads_in_well_under_a_second(shared):
    path = shared / "data/traces/philly_82k.csv.gz"
    best = min(_timed(path) for _ in range(3))
    jobs = traces.read(path)
    assert len(jobs) == 82_247
    assert jobs.num_gpus.max() == 128
    assert jobs.vc is not None and len(np.unique(jobs.vc)) == 15
    assert best < 2.0  # 0.4 s on an idle core; the bound only catches a slow path


def _timed(path) -> float:
    start = time.process_time()
    traces.read(path)
    return time.process_time() - start


@pytest.mark.parametrize(
    ("name", "format", "rows"),
    [
        ("gavel_msr_vc_seed0.csv.gz", "gavel", 15_264),
        ("muri_trace1.csv.gz", "muri", 1_494),
        ("muri_trace2.csv.gz", "muri", 5_755),
        ("muri_trace3.csv.gz", "muri", 992),
        ("muri_trace4.csv.gz", "muri", 2_638),
        ("tiresias_60_job.csv.gz", "tiresias", 60),
        ("golden/g1_philly_ee9e8c_14d.jobs.csv.gz", "tiresias", 323),
        ("golden/gavel_mmf96.jobs.csv.gz", "gavel", 96),
    ],
)
def test_shared_traces_read_whole(shared, name, format, rows):
    jobs = traces.read(shared / "data/traces" / name)
    assert len(jobs) == rows
    assert native.same(jobs, traces.read(shared / "data/traces" / name, format))
