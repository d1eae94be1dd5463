"""Evaluates one method on the unseen test instances of a suite."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dtgym.experiments import cli, engines, reproduce, runner, statistics
from dtgym.experiments.runner import RunSpec
from dtgym.simulator.errors import InvalidInput


@dataclass
class Arguments:
    """Evaluates one method on the unseen test instances of a suite.

    Writes a run folder with replayable solution records for every seed and prints mean returns.
    """

    env: str
    """Environment id; must be the suite's."""
    method: str
    """Name of a baseline or an agent (ppo, maskable_ppo, dqn, a2c), or package.module:Factory."""
    suite: str
    """Name of a suite (see experiments/suites/) or path of a YAML file."""
    checkpoint: Path | None = None
    """policy.zip of a trained agent (scripts/train.py prints its path)."""
    seeds: int = 1
    """Run seeds 0 .. seeds - 1; each is tested on its own unseen episodes."""
    episodes: int = 1
    """Test episodes per instance and run seed."""
    budget: int | None = None
    """Simulator evaluations (environment steps) that a method may prepare with; no limit without
    it. An agent without a checkpoint trains for this many."""
    label: str = ""
    """Name of the run's folder; the method's name without it."""
    workers: int = os.cpu_count() or 1
    """Worker processes, one thread each."""
    resume: bool = False
    """Keep finished runs of the same configuration."""
    results: Path = Path("results")
    """Folder of all results."""


def main(arguments: Arguments) -> int:
    """Evaluates and prints one line an instance."""
    for name in ("seeds", "episodes"):
        if getattr(arguments, name) < 1:
            raise InvalidInput(f"--{name} must be at least 1, got {getattr(arguments, name)}")
    options = {} if arguments.checkpoint is None else {"checkpoint": str(arguments.checkpoint)}
    specs = [
        RunSpec(
            suite=arguments.suite,
            env_id=arguments.env,
            method=arguments.method,
            seed=seed,
            runs=arguments.results / "runs",
            options=options,
            label=arguments.label,
            budget=arguments.budget,
            episodes=arguments.episodes,
        )
        for seed in range(arguments.seeds)
    ]
    for spec in specs:
        spec.check()
    failures = engines.carry_out(specs, workers=arguments.workers, resume=arguments.resume)
    if failures:
        reproduce.print_failures(failures)
        is_bad_input = all(failure.is_bad_input for failure in failures)
        return cli.EXIT_BAD_INPUT if is_bad_input else cli.EXIT_CHECK_FAILED
    instances = [instance.name for instance in specs[0].loaded_suite.test]
    results = [runner.result(spec)["episodes"] for spec in specs]
    objectives = np.array(
        [
            [[e["objective"] for e in run if e["instance"] == name] for name in instances]
            for run in results
        ]
    )
    width = max(map(len, instances))
    for i, name in enumerate(instances):
        print(f"{name:{width}}  mean return {objectives[:, i].mean():+.4f}")
    for title, estimate in (
        ("interquartile mean", statistics.iqm_estimate(objectives)),
        ("mean", statistics.mean_estimate(objectives)),
    ):
        interval = f", 95 % interval [{estimate.low:+.4f}, {estimate.high:+.4f}]"
        is_single = arguments.seeds * arguments.episodes == 1
        print(f"{title} of the return {estimate.point:+.4f}{'' if is_single else interval}")
    print(f"records: {', '.join(str(spec.folder) for spec in specs)}")
    return cli.EXIT_GOOD


if __name__ == "__main__":
    cli.run(Arguments, main)
