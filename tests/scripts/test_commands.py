"""The command lines, as a user calls them: exit codes, messages, what they leave."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from toy_runs import SUITE

ENV = "toy_environment:toy/Repeat-v0"


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def call(
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Done]:
    """Calls a script in this process (an interpreter's start takes seconds) in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(script: str, *arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(repository / "scripts" / script), run_name="__main__")
        captured = capsys.readouterr()
        return Done(int(ended.value.code or 0), captured.out, captured.err)

    return run


def test_a_script_is_a_program(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(repository / "scripts" / "train.py"), "--env", "No/Such-v0",
         "--algo", "ppo", "--total-steps", "64"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: environment No/Such-v0:")


def test_train_then_evaluate_then_validate(call: Callable[..., Done], tmp_path: Path) -> None:
    trained = call(
        "train.py", "--env", ENV, "--algo", "ppo", "--total-steps", "4096", "--num-envs", "16",
        "--seed", "3", "--suite", SUITE, "--learning-rate", "0.005",
    )  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    policy = trained.stdout.removeprefix("trained: ").strip()
    run = tmp_path / Path(policy).parent
    assert run.name == "seed3" and list(run.glob("events.*"))
    assert json.loads((run / "config.json").read_text())["budget_evaluations"] == 4096

    evaluated = call(
        "evaluate.py", "--env", ENV, "--method", "ppo", "--checkpoint", policy, "--suite", SUITE,
        "--seeds", "2", "--workers", "1",
    )  # fmt: skip
    assert evaluated.returncode == 0, evaluated.stderr
    assert "horizon-6  mean return +" in evaluated.stdout
    assert "95 % interval [" in evaluated.stdout

    assert call("validate.py", "solutions", "--data", "results").returncode == 0
    [records, *_] = sorted((tmp_path / "results").rglob("ppo/*/seed0/solutions.jsonl"))
    record = json.loads(records.read_text().splitlines()[0])
    record["objective"] += 1
    records.write_text(json.dumps(record) + "\n")
    tampered = call("validate.py", "solutions", "--data", "results", "--json")
    assert tampered.returncode == 1
    assert json.loads(tampered.stdout)["passed"] is False
    assert "claims objective" in tampered.stdout


def test_a_baseline_is_evaluated_by_its_import_path(call: Callable[..., Done]) -> None:
    done = call(
        "evaluate.py", "--env", ENV, "--method", "toy_environment:Repeat", "--suite", SUITE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "interquartile mean of the return +7.0000" in done.stdout
    assert done.stderr == ""


def test_reproduce_makes_a_table(call: Callable[..., Done], support: Path, tmp_path: Path) -> None:
    text = (support / "toy_table.yaml").read_text().replace("SUITE", SUITE)
    (tmp_path / "toy.yaml").write_text(text)
    made = call("reproduce.py", "toy.yaml", "--seeds", "1", "--workers", "1")
    assert made.returncode == 0, made.stderr
    assert "ppo beats constant" in made.stdout
    assert (tmp_path / "results" / "toy" / "table.md").is_file()
    again = call("reproduce.py", "toy.yaml", "--seeds", "1", "--workers", "1", "--resume")
    assert again.returncode == 0
    assert again.stdout == made.stdout


GOOD_TRAIN = {"--env": ENV, "--algo": "ppo", "--total-steps": "64"}
GOOD_EVALUATE = {"--env": ENV, "--method": "toy_environment:Repeat", "--suite": SUITE}


@pytest.mark.parametrize(
    ("script", "good", "bad", "message"),
    [
        ("train.py", GOOD_TRAIN, {"--algo": "sac"}, "--algo must be one of ppo"),
        ("train.py", GOOD_TRAIN, {"--env": "dtgym/Nothing-v0"}, "dtgym/Nothing-v0"),
        ("train.py", GOOD_TRAIN, {"--total-steps": "0"}, "--total-steps must be at least 1"),
        ("train.py", GOOD_TRAIN, {"--num-envs": "-1"}, "--num-envs must be at least 1"),
        ("train.py", GOOD_TRAIN, {"--suite": "nothing"}, "--suite must be one of"),
        ("train.py", GOOD_TRAIN, {"--learning-rate": "-1"}, "learning_rate: must be greater"),
        ("evaluate.py", GOOD_EVALUATE, {"--method": "ppo"}, "must be trained: give a budget"),
        ("evaluate.py", GOOD_EVALUATE, {"--method": "magic"}, "--method must be one of"),
        ("evaluate.py", GOOD_EVALUATE, {"--seeds": "0"}, "--seeds must be at least 1"),
        ("evaluate.py", GOOD_EVALUATE, {"--seeds": "99"}, "holds 40 seeds"),
        ("evaluate.py", GOOD_EVALUATE, {"--checkpoint": "x.zip"}, "checkpoint"),
        ("evaluate.py", GOOD_EVALUATE, {"--env": "CartPole-v1"}, "--env: suite toy is one of"),
        ("reproduce.py", {}, {"nothing": ""}, "TABLE must be one of all"),
        ("reproduce.py", {}, {"demo": "", "--engine": "slurm"}, "--engine must be one of"),
        ("reproduce.py", {}, {"demo": "", "--seeds": "0"}, "--seeds must be at least 1"),
        ("validate.py", {}, {"solutions": "", "--data": "nowhere"}, "no such file or folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    call: Callable[..., Done],
    tmp_path: Path,
    script: str,
    good: dict[str, str],
    bad: dict[str, str],
    message: str,
) -> None:
    arguments = [part for pair in {**good, **bad}.items() for part in pair if part]
    done = call(script, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("result.json"))


@pytest.mark.parametrize("script", ["train.py", "evaluate.py", "reproduce.py"])
def test_help_explains_every_argument(call: Callable[..., Done], script: str) -> None:
    done = call(script, "--help")
    assert done.returncode == 0
    assert "(required)" in done.stdout or "positional" in done.stdout
    assert "steps" in done.stdout or "seeds" in done.stdout
