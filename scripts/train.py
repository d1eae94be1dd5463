"""Trains an agent, with TensorBoard and checkpoints, and leaves policy.zip for evaluate.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dtgym.agents import ALGORITHMS, POLICY
from dtgym.experiments import cli, engines, reproduce
from dtgym.experiments.runner import RunSpec
from dtgym.simulator.errors import InvalidInput, one_of


@dataclass
class Arguments:
    """Trains an agent, with TensorBoard and checkpoints, and leaves policy.zip for evaluate.py.

    Writes RESULTS/runs/ENV/LABEL/HASH/seedS/. Watch with `tensorboard --logdir RESULTS/runs`.
    """

    env: str
    """Environment id, such as dtgym/CommunicationTuning-v0."""
    algo: str
    """ppo, maskable_ppo, dqn or a2c (Stable-Baselines3, sb3-contrib)."""
    total_steps: int
    """Environment steps to train for; rounded up to whole rollouts."""
    num_envs: int | None = None
    """Environments in the batch; the algorithm's YAML file has the default."""
    seed: int = 0
    """Seed of everything random; equal seeds give bit-identical agents."""
    suite: str | None = None
    """Train on the training instances of this suite (name, or path of a YAML file); without it, on
    the environment as it is registered."""
    learning_rate: float | None = None
    """Learning rate at the start; the algorithm's YAML file has the default."""
    label: str = ""
    """Name of the run's folder; the algorithm's name without it."""
    resume: bool = False
    """Go on from the last checkpoint of the same configuration."""
    results: Path = Path("results")
    """Folder of all results."""


def main(arguments: Arguments) -> int:
    """Trains in one worker process, so that a progress bar can be shown and Ctrl-C is safe."""
    one_of("--algo", arguments.algo, ALGORITHMS)
    for name in ("total_steps", "num_envs"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise InvalidInput(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    changes = {"num_envs": arguments.num_envs, "learning_rate": arguments.learning_rate}
    spec = RunSpec(
        suite=arguments.suite or "",
        env_id=arguments.env,
        method=arguments.algo,
        seed=arguments.seed,
        runs=arguments.results / "runs",
        options={"hyperparameters": {k: v for k, v in changes.items() if v is not None}},
        label=arguments.label,
        budget=arguments.total_steps,
        episodes=0,
    )
    spec.check()
    failures = engines.carry_out([spec], resume=arguments.resume)
    if failures:
        reproduce.print_failures(failures)
        return cli.EXIT_BAD_INPUT if failures[0].is_bad_input else cli.EXIT_CHECK_FAILED
    print(f"trained: {spec.folder / POLICY}")
    return cli.EXIT_GOOD


if __name__ == "__main__":
    cli.run(Arguments, main)
