from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from toy_runs import spec

from dtgym.experiments import runner, solutions
from dtgym.experiments.validation import validate
from dtgym.simulator.errors import InvalidInput


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    runner.run(spec("Constant", runs, episodes=2))
    runner.run(spec("Bonus", runs, episodes=2))
    return runs


def lines(folder: Path) -> list[str]:
    return [line for path in solutions.find(folder) for line in path.read_text().splitlines()]


def test_every_record_of_a_run_replays_exactly(folder: Path) -> None:
    report = validate("solutions", folder)
    assert report.passed
    assert report.figures["records"] == report.figures["exact"] == 8


def test_a_record_found_twice_is_replayed_once(folder: Path, tmp_path: Path) -> None:
    records = [record for path in solutions.find(folder) for _, record in solutions.read(path)]
    solutions.write(tmp_path / "solutions.jsonl.gz", records)
    solutions.write(tmp_path / "run" / "solutions.jsonl", records[:3])
    assert validate("solutions", tmp_path).figures["records"] == 8


def test_packed_records_have_the_same_bytes_every_time(folder: Path, tmp_path: Path) -> None:
    records = [record for path in solutions.find(folder) for _, record in solutions.read(path)]
    for name in ("a", "b"):
        solutions.write(tmp_path / f"{name}.jsonl.gz", records)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def another_action(record: dict) -> None:
    record["actions"][2] = (record["actions"][2] + 1) % 4


def better_claim(record: dict) -> None:
    record["objective"] += 1e-6


def better_vector(record: dict) -> None:
    record["vector_objective"][1] += 1.0


def shorter(record: dict) -> None:
    record["actions"].pop()


def longer(record: dict) -> None:
    record["actions"].append(0)


def outside(record: dict) -> None:
    record["actions"][0] = 99


def other_seed(record: dict) -> None:
    record["seed"] += 1


def other_environment(record: dict) -> None:
    record["env_kwargs"]["bonus"] = 0.25


def more_components(record: dict) -> None:
    record["vector_objective"].append(0.0)


@pytest.mark.parametrize(
    ("tamper", "problem"),
    [
        (better_claim, "claims objective"),
        (better_vector, r"claims vector_objective\.1"),
        (shorter, "the episode does not end after 5 actions"),
        (longer, "the episode ends after 6 actions, 7 are recorded"),
        (outside, "action 99 at step 0 is not legal"),
        (other_environment, "claims objective"),
        (more_components, "claims 3 vector components, the environment has 2"),
        (another_action, ""),
        (other_seed, ""),
    ],
)
def test_a_tampered_record_fails_and_is_named(
    folder: Path, tmp_path: Path, tamper: Callable[[dict], None], problem: str
) -> None:
    records = [json.loads(line) for line in lines(folder)]
    # The optimum of the toy: any other action, seed or bonus is seen in the objective.
    bonus = next(r for r in records if r["method"] == "bonus" and r["env_kwargs"]["horizon"] == 6)
    tamper(bonus)
    path = tmp_path / "solutions.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    report = validate("solutions", tmp_path)
    assert not report.passed
    [failure] = report.figures["failures"]
    number = records.index(bonus) + 1
    assert f"solutions.jsonl:{number}: bonus (method seed 0) on horizon-6 seed" in failure
    if problem:
        assert re.search(problem, failure)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": 1', "solutions.jsonl:1: not valid JSON"),
        ('{"format": 2}', "solutions.jsonl:1: format: must be 1"),
        ("[]", "solutions.jsonl:1: document: must be a valid dictionary"),
        ("", "the files hold no solution record"),
    ],
)
def test_a_malformed_record_is_bad_input(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "solutions.jsonl").write_text(text)
    with pytest.raises(InvalidInput, match=message):
        validate("solutions", tmp_path)


def test_fields_are_checked(folder: Path, tmp_path: Path) -> None:
    record = json.loads(lines(folder)[0])
    for field, value in (
        ("actions", []),
        ("actions", [-1]),
        ("seed", "7"),
        ("objective", None),
        ("author", "me"),
    ):
        (tmp_path / "solutions.jsonl").write_text(json.dumps({**record, field: value}))
        with pytest.raises(InvalidInput, match=rf"solutions\.jsonl:1: {field}"):
            validate("solutions", tmp_path)


def test_a_folder_without_records_and_a_broken_archive_are_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no solution records"):
        validate("solutions", tmp_path)
    (tmp_path / "solutions.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(InvalidInput, match="cannot be read"):
        validate("solutions", tmp_path)
