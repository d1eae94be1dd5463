from __future__ import annotations

import csv
import gzip
import importlib
import inspect
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from toy_runs import SUITE, compared_bytes

from dtgym.experiments import reproduce, statistics, table_files, tables
from dtgym.experiments.reports import ReportFile
from dtgym.experiments.table_files import Score
from dtgym.experiments.tables import TableResult
from dtgym.experiments.validation import validate
from dtgym.simulator.errors import InvalidInput


@pytest.fixture(scope="module")
def table_file(tmp_path_factory: pytest.TempPathFactory, support: Path) -> Path:
    path = tmp_path_factory.mktemp("tables") / "toy.yaml"
    path.write_text((support / "toy_table.yaml").read_text().replace("SUITE", SUITE))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, table_file: Path) -> tuple[TableResult, Path]:
    results = tmp_path_factory.mktemp("results")
    result = reproduce.reproduce(str(table_file), results=results, workers=2)
    assert isinstance(result, TableResult)
    return result, results


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as stream:
        return list(csv.DictReader(stream))


def test_the_folder_holds_what_design_says(made: tuple[TableResult, Path]) -> None:
    names = {path.name for path in (made[1] / "toy").iterdir()}
    assert names == {
        "figure.png", "manifest.json", "per_seed.csv", "solutions.jsonl.gz", "table.csv",
        "table.md", "timing.csv",
    }  # fmt: skip


def test_the_table_is_computed_from_its_own_per_seed_file(made: tuple[TableResult, Path]) -> None:
    folder = made[1] / "toy"
    episodes = rows(folder / "per_seed.csv")
    assert len(episodes) == 4 * 2 * 2 * 2  # methods, seeds, instances, episodes
    for row in rows(folder / "table.csv"):
        own = [e for e in episodes if e["method"] == row["method"]]
        reference = [e for e in episodes if e["method"] == "constant"]
        scores = [float(e["score"]) for e in own]
        assert float(row["mean"]) == pytest.approx(np.mean(scores))
        assert float(row["iqm"]) == pytest.approx(statistics.interquartile_mean(scores))
        keys = [(e["run_seed"], e["instance"], e["episode_seed"]) for e in own]
        assert keys == [(e["run_seed"], e["instance"], e["episode_seed"]) for e in reference]
        others = [float(e["score"]) for e in reference]
        difference = np.mean(scores) - np.mean(others)
        assert float(row["difference"]) == pytest.approx(difference, abs=1e-12)
        assert float(row["difference_low"]) <= float(row["difference"])


def test_oracles_are_marked_and_evaluations_counted(made: tuple[TableResult, Path]) -> None:
    by_name = {row["method"]: row for row in rows(made[1] / "toy" / "table.csv")}
    assert [name for name, row in by_name.items() if row["oracle"] == "True"] == ["oracle"]
    assert "| oracle | oracle: reads the future |" in (made[1] / "toy" / "table.md").read_text()
    assert float(by_name["tuned"]["preparation_evaluations"]) == 30
    assert float(by_name["ppo"]["preparation_evaluations"]) == 2048
    assert float(by_name["oracle"]["evaluations_per_episode"]) == 8  # mean of 6 and 8, and one


def test_the_table_says_who_beats_whom(made: tuple[TableResult, Path]) -> None:
    first, second = made[0].statements
    assert first.startswith("ppo beats constant (mean paired difference +")
    assert second.startswith("ppo ") and "tuned" in second
    scores = {name: np.full((1, 1, 3), value) for name, value in (("a", 1.0), ("b", 2.0))}
    scores["c"] = np.array([[[0.0, 1.0, 2.0]]])
    assert tables.statement("b", "a", scores).startswith("b beats a (")
    assert tables.statement("a", "b", scores).startswith("a does not beat b: it is worse (")
    assert tables.statement("a", "c", scores).startswith("a does not beat c: the interval incl")


def test_records_of_a_table_replay(made: tuple[TableResult, Path]) -> None:
    report = validate("solutions", made[1])
    assert report.passed
    packed = gzip.decompress((made[1] / "toy" / "solutions.jsonl.gz").read_bytes())
    assert report.figures["records"] == report.figures["exact"] == len(packed.splitlines()) == 32


def test_the_manifest_names_origin_and_command(made: tuple[TableResult, Path]) -> None:
    manifest = json.loads((made[1] / "toy" / "manifest.json").read_text())
    assert manifest["command"].startswith("python scripts/reproduce.py ")
    assert manifest["seeds"] == [0, 1]
    assert manifest["budgets"]["ppo"] == 2048
    assert {"git_revision", "machine", "versions", "suite", "episodes"} <= set(manifest)
    for run in manifest["runs"].values():
        assert (made[1] / "runs" / run / "result.json").is_file()


def test_pictures_are_pictures(made: tuple[TableResult, Path]) -> None:
    data = (made[1] / "toy" / "figure.png").read_bytes()
    assert data.startswith(b"\x89PNG") and len(data) > 10_000


def test_making_it_again_from_finished_runs_gives_the_same_bytes(
    made: tuple[TableResult, Path], table_file: Path
) -> None:
    folder = made[1] / "toy"
    before = compared_bytes(folder)
    revisions = b"git_revision"
    reproduce.reproduce(str(table_file), results=made[1], resume=True)
    after = compared_bytes(folder)
    # The revision of the checkout may move on meanwhile; nothing else may.
    for files in (before, after):
        lines = files["manifest.json"].splitlines()
        files["manifest.json"] = b"\n".join(line for line in lines if revisions not in line)
    assert before == after


def test_a_failed_run_is_reported_and_the_others_are_kept(tmp_path: Path, table_file: Path) -> None:
    document = yaml.safe_load(table_file.read_text())
    document["rows"] = [
        {"method": "toy_environment:Constant", "kind": "heuristic"},
        {"method": "toy_environment:Broken", "kind": "heuristic"},
    ]
    document["comparisons"] = []
    path = tmp_path / "broken.yaml"
    path.write_text(yaml.safe_dump(document))
    failures = reproduce.reproduce(str(path), results=tmp_path, seeds=1)
    assert isinstance(failures, list)
    assert [failure.spec.name for failure in failures] == ["broken"]
    assert not (tmp_path / "broken" / "table.md").exists()
    assert len(list(tmp_path.rglob("constant/*/seed0/result.json"))) == 1


@pytest.mark.parametrize(
    ("quantity", "expected"), [("return", 4.0), ("mean_reward", 0.5), ("exp_mean_reward", 1.6487)]
)
def test_scores(quantity: str, expected: float) -> None:
    score = Score(name="x", quantity=quantity)  # type: ignore[arg-type]
    assert score.of({"objective": 4.0, "steps": 8}) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reference": "nobody"}, "t.yaml: reference: no row is labelled 'nobody'"),
        ({"timeline": "nobody"}, "t.yaml: timeline: no row"),
        ({"comparisons": [{"method": "ppo", "against": ["x"]}]}, r"t.yaml: comparisons\.0: no row"),
        ({"seeds": 0}, "t.yaml: seeds: must be greater"),
        ({"rows": []}, "t.yaml: rows: List should have at least 1"),
        ({"score": {"name": "x", "quantity": "luck"}}, r"t.yaml: score\.quantity: must be"),
        ({"colour": "red"}, "t.yaml: colour: Extra"),
        ({"rows": [{"method": "fifo", "kind": "x"}] * 2}, "t.yaml: rows: two rows are labelled"),
    ],
)
def test_a_wrong_table_is_named_in_one_line(support: Path, change: dict, message: str) -> None:
    document = {**yaml.safe_load((support / "toy_table.yaml").read_text()), **change}
    with pytest.raises(InvalidInput, match=message):
        table_files.parse(yaml.safe_dump(document), source="t.yaml")


@pytest.mark.parametrize("name", table_files.names())
def test_every_shipped_table_names_methods_that_exist(name: str, tmp_path: Path) -> None:
    table = table_files.load(name)
    if isinstance(table, ReportFile):
        module, _, function = table.report.partition(":")
        signature = inspect.signature(getattr(importlib.import_module(module), function))
        signature.bind(**table.arguments)
        return
    for spec in table.specs(tmp_path):
        spec.check()


def test_a_report_is_computed_and_explained(tmp_path: Path) -> None:
    (tmp_path / "regret.yaml").write_text(
        "title: Regret\n"
        "report: dtgym.experiments.tuning_regret:regrets\n"
        "arguments: {models: [vgg16], architectures: [ps], scenarios: [steady], episodes: 2}\n"
        "notes: [A note.]\n"
    )
    text = reproduce.reproduce(str(tmp_path / "regret.yaml"), results=tmp_path)
    assert isinstance(text, str)
    assert text == (tmp_path / "regret" / "table.md").read_text()
    assert "| vgg16 | ps | steady | 2 | 0 |" in text
    assert "hindsight_static: Best single cell of each episode" in text
    [row] = rows(tmp_path / "regret" / "table.csv")
    assert float(row["default"]) > 0
    manifest = json.loads((tmp_path / "regret" / "manifest.json").read_text())
    assert manifest["arguments"]["models"] == ["vgg16"]


def test_seeds_are_refused_where_a_report_has_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="--seeds: table tuning_regret has no run seeds"):
        reproduce.reproduce("tuning_regret", results=tmp_path, seeds=2)
    source = "tests"
    report = ReportFile(title="x", report="random:Random", arguments={})
    with pytest.raises(InvalidInput, match="--seeds"):
        report.with_seeds(3, source=source)
    report = ReportFile(title="x", report="toy_report:rows", arguments={"start": 5})
    assert report.with_seeds(3, source=source).arguments == {"start": 5, "seeds": 3}


def test_a_report_that_does_not_exist_is_named(tmp_path: Path) -> None:
    for report, message in (
        ("dtgym.experiments.tuning_regret:nothing", "has no attribute 'nothing'"),
        ("dtgym.nowhere:rows", "No module named"),
        ("dtgym.experiments.tuning_regret:regrets", "missing 1 required"),
    ):
        (tmp_path / "r.yaml").write_text(f"title: x\nreport: {report}\n")
        with pytest.raises(InvalidInput, match=message):
            reproduce.reproduce(str(tmp_path / "r.yaml"), results=tmp_path)
