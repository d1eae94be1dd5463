"""``scripts/plan.py`` on a user's own clusters: what it prints, and one line for what is wrong."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

SITES = """
name: two-sites
sites:
  - {name: north, accelerator: A100-80, nodes: 1, gpus_per_node: 8, network: 200 Gbit/s}
  - {name: south, accelerator: H20-96, nodes: 1, gpus_per_node: 8, network: 100 Gbit/s}
links:
  - {source: north, target: south, delay: 20 ms, bandwidth: 5 Gbit/s}
"""
ONE_CLUSTER = """
name: lab
groups:
  - count: 2
    node: {name: box, accelerator: A100-80, gpus: 8, cpu_cores: 64, memory: 1 TB, io: 4 GB/s,
           network: 200 Gbit/s}
"""
ARGUMENTS = ("--model", "llama2-7b", "--global-batch", "64")


def call(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    *arguments: str,
) -> tuple[int, str, str]:  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["plan.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(repository / "scripts" / "plan.py"), run_name="__main__")
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


@pytest.mark.parametrize("text", [SITES, ONE_CLUSTER])
def test_every_planner_answers(repository, tmp_path, capsys, monkeypatch, text: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    timeline = tmp_path / "timeline.json"
    code, out, _ = call(
        repository, capsys, monkeypatch, "--cluster", str(file), *ARGUMENTS, "--json",
        "--timeline", str(timeline), "--planners", "megatron-manual", "proportional", "metis",
        "sailor", "hgtrainer",
    )  # fmt: skip
    assert code == 0
    document = json.loads(out)
    times = [plan["iteration_time_s"] for plan in document["plans"]]
    assert times == sorted(times)
    best = document["plans"][0]
    assert best["planner"] == "hgtrainer" or times[0] == min(times)
    assert best["tokens_per_s"] == pytest.approx(64 * 4096 / best["iteration_time_s"])
    assert best["stages"][0]["first_layer"] == 0
    assert best["stages"][-1]["last_layer"] == 33
    assert all(0 < stage["memory_bytes"] < 96e9 for stage in best["stages"])
    assert json.loads(timeline.read_text())["traceEvents"]


def test_a_person_reads_a_line_per_planner(repository, tmp_path, capsys, monkeypatch) -> None:
    file = tmp_path / "sites.yaml"
    file.write_text(SITES)
    code, out, _ = call(
        repository, capsys, monkeypatch, "--cluster", str(file), *ARGUMENTS,
        "--planners", "megatron-manual", "dt-fm",
    )  # fmt: skip
    assert code == 0
    assert "megatron-manual" in out and "dt-fm" in out
    assert "stage 0:" in out and "memory" in out and "tokens/s" in out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("5 Gbit/s", "5"), "links.0.bandwidth"),
        (("A100-80", "A999"), "site north: accelerator must be one of"),
        (("target: south", "target: west"), "links.0: site must be one of north, south"),
        (("nodes: 1", "nodes: 0"), "sites.0.nodes"),
        (("name: two-sites", "title: x"), "name: Field required"),
        (("links:", "links: ["), "not valid YAML"),
    ],
)
def test_a_mistake_in_the_file_is_one_line(
    repository, tmp_path, capsys, monkeypatch, change: tuple[str, str], message: str
) -> None:
    file = tmp_path / "sites.yaml"
    file.write_text(SITES.replace(*change, 1))
    code, _, err = call(repository, capsys, monkeypatch, "--cluster", str(file), *ARGUMENTS)
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert "sites.yaml" in err and message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--cluster", "nowhere.yaml", *ARGUMENTS), "no such file"),
        (("--model", "gpt9", "--global-batch", "64"), "model must be one of"),
        (("--model", "llama2-7b", "--global-batch", "0"), "global-batch"),
        (("--model", "gpt3-175b", "--global-batch", "64"), "does not fit the memory"),
        ((*ARGUMENTS, "--planners", "oracle"), "planner must be one of"),
        ((*ARGUMENTS, "--recompute", "some"), "recompute must be one of"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(
    repository, tmp_path, capsys, monkeypatch, arguments: tuple[str, ...], message: str
) -> None:
    file = tmp_path / "sites.yaml"
    file.write_text(SITES)
    if "--cluster" not in arguments:
        arguments = ("--cluster", str(file), *arguments)
    code, _, err = call(repository, capsys, monkeypatch, *arguments)
    assert code == 2
    assert len(err.strip().splitlines()) == 1 and message in err


def test_a_planner_without_a_plan_says_why(tmp_path: Path) -> None:
    from dtgym.experiments import planning

    file = tmp_path / "sites.yaml"
    file.write_text(
        "name: large\nsites:\n"
        "  - {name: north, accelerator: A100-80, nodes: 4, gpus_per_node: 8, network: 200 Gbit/s}\n"
    )
    report = planning.plan(
        file, model="llama2-13b", global_batch=64, planners=["exhaustive", "megatron-manual"]
    )
    assert list(report.without) == ["exhaustive"]
    assert "at most 16 accelerators" in report.without["exhaustive"]
    assert [row.planner for row in report.rows] == ["megatron-manual"]
