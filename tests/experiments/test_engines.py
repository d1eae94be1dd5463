from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from toy_runs import compared_bytes, small_ppo, spec

from dtgym.experiments import engines, runner
from dtgym.simulator.errors import InvalidInput


def test_one_bad_run_takes_no_other_along(tmp_path: Path) -> None:
    good = [spec("Repeat", tmp_path, seed=seed) for seed in range(3)]
    bad = [
        spec("Broken", tmp_path),
        spec("Broken", tmp_path, label="killed", options={"kill": True}),
        spec("Forbidden", tmp_path),
    ]
    failures = engines.carry_out([bad[1], good[0], bad[0], bad[2], *good[1:]], workers=1)
    by_name = {failure.spec.name: failure for failure in failures}
    assert set(by_name) == {"broken", "killed", "forbidden"}
    assert by_name["broken"].message == "ArithmeticError: no luck"
    assert "Traceback" in by_name["broken"].details
    assert by_name["killed"].message == "the worker process died with exit code -9"
    assert by_name["forbidden"].is_bad_input and not by_name["forbidden"].details
    assert all(one.is_finished for one in good)


def test_workers_have_one_thread_each_and_give_the_bytes_of_this_process(tmp_path: Path) -> None:
    specs = [spec("Tuned", tmp_path / "workers", seed=seed) for seed in range(2)]
    before = dict(os.environ)
    assert engines.carry_out(specs, workers=2) == []
    assert dict(os.environ) == before
    for seed in range(2):
        runner.run(spec("Tuned", tmp_path / "here", seed=seed))
    assert compared_bytes(tmp_path / "workers") == compared_bytes(tmp_path / "here")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "slurm"}, "--engine must be one of local, ray; got 'slurm'"),
        ({"workers": 0}, "--workers must be at least 1, got 0"),
        ({"address": "auto"}, "--address belongs to --engine ray"),
    ],
)
def test_bad_input(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        engines.carry_out([spec("Repeat", tmp_path)], **options)


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is not None, reason="Ray is installed here, so it would start"
)
def test_ray_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"pip install 'dtgym\[cluster\]'"):
        engines.carry_out([spec("Repeat", tmp_path)], engine="ray")


SWEEP = """
from pathlib import Path
from toy_runs import small_ppo, spec
from dtgym.experiments import engines

if __name__ == "__main__":
    runs = Path({runs!r})
    slow = {{"options": {{"rounds": 5, "sleep_s": 0.02}}}}
    specs = [
        small_ppo(runs),
        *(spec("Tuned", runs, seed=seed, **slow) for seed in range(2)),
        spec("Constant", runs, options={{"sleep_s": 0.002}}),
    ]
    assert engines.carry_out(specs, workers=2, resume=True) == []
"""


def sweep(runs: Path, support: Path, *, kill_after_s: float | None = None) -> bool:
    """Runs the sweep in a process of its own; True if it ended by itself."""
    script = runs.parent / "sweep.py"
    script.write_text(SWEEP.format(runs=str(runs)))
    environment = {**os.environ, "PYTHONPATH": str(support)}
    process = subprocess.Popen([sys.executable, str(script)], env=environment)
    try:
        return process.wait(kill_after_s) == 0
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return False


def test_a_sweep_killed_at_any_moment_resumes_to_the_same_bytes(
    tmp_path: Path, support: Path
) -> None:
    whole, broken = tmp_path / "whole" / "runs", tmp_path / "broken" / "runs"
    for runs in (whole, broken):
        runs.mkdir(parents=True)
    started_s = time.perf_counter()
    assert sweep(whole, support)
    whole_s = time.perf_counter() - started_s
    kills = 0
    # Each attempt gets a little further, so that the kills fall on start-up, on searches, on
    # training between and after checkpoints, and on tests.
    for share in (0.4, 0.55, 0.7):
        kills += not sweep(broken, support, kill_after_s=share * whole_s)
    assert kills >= 1, "the sweep was never interrupted: nothing is tested"
    assert sweep(broken, support)
    expected, found = compared_bytes(whole), compared_bytes(broken)
    assert found.keys() == expected.keys()
    assert found == expected


def test_a_worker_ends_with_its_parent(tmp_path: Path, support: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys; from pathlib import Path; from toy_runs import spec\n"
        "from dtgym.experiments import engines\n"
        "if __name__ == '__main__':\n"
        f"    one = spec('Constant', Path({str(tmp_path)!r}), options={{'sleep_s': 0.3}})\n"
        "    engines.carry_out([one])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(support)}
    process = subprocess.Popen([sys.executable, str(script)], env=environment)
    deadline_s = time.monotonic() + 60
    while not list(tmp_path.rglob("config.json")) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    process.kill()
    process.wait()
    time.sleep(1)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    time.sleep(2)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert not list(tmp_path.rglob("result.json"))


def test_ctrl_c_ends_the_sweep_and_keeps_finished_runs(tmp_path: Path, support: Path) -> None:
    script = tmp_path / "stopped.py"
    script.write_text(
        "from pathlib import Path; from toy_runs import spec\n"
        "from dtgym.experiments import cli, engines\n"
        f"runs = Path({str(tmp_path)!r})\n"
        "def main(_):\n"
        "    engines.carry_out([spec('Repeat', runs),\n"
        "                       spec('Constant', runs, options={'sleep_s': 30.0})])\n"
        "if __name__ == '__main__':\n"
        # A shell starts its background jobs with Ctrl-C ignored, which children inherit.
        "    import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    from dataclasses import make_dataclass\n"
        "    cli.run(make_dataclass('Arguments', []), main, [])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(support)}
    process = subprocess.Popen(
        [sys.executable, str(script)], env=environment, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    deadline_s = time.monotonic() + 60
    while len(list(tmp_path.rglob("config.json"))) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == "stopped; finished runs are kept, --resume continues\n"
    assert spec("Repeat", tmp_path).is_finished


def test_the_progress_bar_is_silent_without_a_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert engines.carry_out([spec("Repeat", tmp_path), small_ppo(tmp_path, budget=256)]) == []
    assert capfd.readouterr() == ("", "")
