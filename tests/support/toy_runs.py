"""Runs of toy methods, shared among tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dtgym.experiments.runner import RunSpec

SUITE = str(Path(__file__).resolve().parent / "toy_suite.yaml")
SMALL_PPO = {
    "num_envs": 16,
    "network": [16],
    "learning_rate": 0.01,
    "checkpoints": 4,
    "algorithm": {"n_steps": 16, "gamma": 0.5},
}


def spec(method: str, runs: Path, **changes: Any) -> RunSpec:
    """A run of a toy method (by class name) or an agent (by name) on the toy suite."""
    known = method if method.islower() else f"toy_environment:{method}"
    return RunSpec(**{"suite": SUITE, "method": known, "seed": 0, "runs": runs, **changes})


def small_ppo(runs: Path, **changes: Any) -> RunSpec:
    """A PPO that solves the toy suite in about two seconds."""
    options = {"hyperparameters": SMALL_PPO}
    return spec("ppo", runs, **{"options": options, "budget": 2048, **changes})


def compared_bytes(folder: Path) -> dict[str, bytes]:
    """Everything below a folder that an interrupted and resumed sweep must reproduce."""
    skipped = ("timing", "provenance", "events.", "state.pkl", "policy.zip")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(skipped)
    }
