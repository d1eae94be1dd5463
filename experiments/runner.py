"""One run: a method with one seed prepares on a suite's training instances, then is tested.

A run lives in ``<runs>/<env>/<method>/<config-hash8>/seed<k>/``:

==================  ==============================================================================
``config.json``     full configuration: suite, method with all its options, budget, episodes
``progress.csv``    figures while preparing, by simulator evaluations
``events.*``        the same for TensorBoard
``solutions.jsonl`` one replayable record for every test episode
``timing.json``     wall times, measured: never part of what a resumed sweep must reproduce
``provenance.json`` versions, git revision and machine; not part of it either
``result.json``     outcome of every test episode; written last, so its presence means "finished"
==================  ==============================================================================

Seed k of every method is tested on the same episodes: of each test instance with seeds
``[first, first + count)``, the `episodes` seeds from ``first + k * episodes``. All outcomes are
therefore paired across methods by (run seed, instance, episode seed).
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from dtgym.baselines.method import Budget, Method
from dtgym.experiments import episodes, methods, provenance, solutions, suites
from dtgym.experiments.episodes import Episode
from dtgym.experiments.files import config_hash, json_text, read_json, write_json
from dtgym.experiments.solutions import Solution
from dtgym.experiments.suites import Instance, Suite
from dtgym.experiments.tensorboard import RunLog
from dtgym.simulator.errors import InvalidInput

Outcome: TypeAlias = "tuple[Instance, int, Episode]"
"""A test episode: its instance, its seed and what it came to."""
Report = Callable[[float], None]
"""Called with the part of a run that is done, from 0 to 1."""

RESULT = "result.json"
PROVENANCE = "provenance.json"
TIMING = "timing.json"
RECENT_EPISODES = 100
"""Episodes in the running mean of ``rollout/ep_rew_mean``, as in Stable-Baselines3."""
PREPARATION_SHARE = 0.9
"""Part of a run that preparing counts for in progress reports, where it has a budget."""
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")


@dataclass(frozen=True)
class RunSpec:
    """What to run: plain data, so that it travels to a worker.

    Attributes:
        suite: Name of a shipped suite or path of a YAML file.
        method: Name of the method, see `dtgym.experiments.methods`.
        seed: Seed of the run (training, tuning, the method's dice); also selects test episodes.
        runs: Folder that holds all runs.
        options: Keyword arguments of the method's factory.
        label: Name of the row and of the run's folder; empty is the method's name.
        budget: Simulator evaluations allowed while preparing; None is no limit.
        episodes: Test episodes per test instance; 0 only prepares.
        validation_episodes: Episodes per training instance for ``eval/mean_reward``; 0 for none.
        env_id: Environment id: with a suite it must be the suite's (empty is not checked), without
            one it stands for a suite of its default instance.
    """

    suite: str
    method: str
    seed: int
    runs: Path
    options: Mapping[str, Any] = field(default_factory=lambda: {})
    label: str = ""
    budget: int | None = None
    episodes: int = 1
    validation_episodes: int = 2
    env_id: str = ""

    @property
    def name(self) -> str:
        """Row label: what the folder and the table call this method."""
        return row_name(self.method, self.label)

    @cached_property
    def loaded_suite(self) -> Suite:
        """The suite itself.

        Raises:
            InvalidInput: It does not exist, is malformed, or belongs to another environment.
        """
        if not self.suite:
            return suites.of_environment(self.env_id)
        suite = suites.load(self.suite)
        if self.env_id and suite.env_id != self.env_id:
            raise InvalidInput(
                f"--env: suite {suite.name} is one of {suite.env_id}, got {self.env_id}"
            )
        return suite

    @cached_property
    def config(self) -> dict[str, Any]:
        """Everything that decides the outcome but the seed; its hash names the folder."""
        suite = self.loaded_suite
        method = methods.build(self.method, suite.env_id, self.options)
        return {
            "env_id": suite.env_id,
            "suite": suite.name,
            "suite_version": suite.version,
            "suite_digest": suite.digest,
            "method": self.method,
            "label": self.name,
            "options": dict(self.options),
            "hyperparameters": dict(getattr(method, "hyperparameters", {})),
            "env_overrides": dict(getattr(method, "env_overrides", {})),
            "budget_evaluations": self.budget,
            "episodes": self.episodes,
            "validation_episodes": self.validation_episodes,
        }

    @property
    def folder(self) -> Path:
        """The run's folder."""
        env = self.loaded_suite.env_id.rpartition(":")[2].replace("/", "-")
        return self.runs / env / self.name / config_hash(self.config) / f"seed{self.seed}"

    def check(self) -> None:
        """Finds bad input before anything is run.

        Raises:
            InvalidInput: Anything in the specification that does not exist or does not fit.
        """
        assert self.config
        unseen_episodes(self.loaded_suite, self.seed, self.episodes)

    @property
    def is_finished(self) -> bool:
        """Whether the run has left its result."""
        return (self.folder / RESULT).is_file()


def row_name(method: str, label: str = "") -> str:
    """The label, or the method's name made fit for a folder.

    Raises:
        InvalidInput: A label that is no plain lower-case name.

    Examples:
        >>> row_name("my_package.tuners:Greedy")
        'greedy'
    """
    name = label or method.rpartition(":")[2].lower()
    if not NAME.fullmatch(name):
        raise InvalidInput(f"label of method {method} must match {NAME.pattern}; got {name!r}")
    return name


def run(spec: RunSpec, *, resume: bool = False, report: Report | None = None) -> Path:
    """Carries out one run and returns its folder.

    Args:
        spec: What to run.
        resume: Keep a finished result, and go on from the last checkpoint of an interrupted one.
            False begins again and overwrites.
        report: Told about progress.

    Raises:
        InvalidInput: Anything in `spec` that does not exist or does not fit.
    """
    folder = spec.folder
    if resume and spec.is_finished:
        return folder
    if not resume and folder.exists():
        shutil.rmtree(folder)
    write_json(folder / "config.json", {**spec.config, "seed": spec.seed})
    suite = spec.loaded_suite
    tests = unseen_episodes(suite, spec.seed, spec.episodes)
    method = methods.build(spec.method, suite.env_id, spec.options)
    player = Player(suite.env_id, method)
    with RunLog(folder) as log:
        budget = RunBudget(spec, player, log, report or (lambda _part: None), len(tests))
        started_s = time.perf_counter()
        method.prepare(suite.for_preparation(), seed=spec.seed, budget=budget)
        budget.finish(method)
        prepared_s = time.perf_counter()
        outcomes: list[Outcome] = []
        for instance, seed in tests:
            outcomes.append((instance, seed, player.play(instance, seed)))
            budget.tell(len(outcomes))
        tested_s = time.perf_counter()
        if outcomes:
            mean = float(np.mean([episode.objective for *_, episode in outcomes]))
            log.record(budget.axis, {"test/mean_reward": mean})
        log.hyperparameters({**spec.config, "seed": spec.seed}, str(folder.relative_to(spec.runs)))
    player.close()
    timing = {"preparation_s": prepared_s - started_s, "test_s": tested_s - prepared_s}
    _leave(spec, method, outcomes, timing)
    # Last of all: whoever finds this file finds all others.
    write_json(
        folder / RESULT,
        {
            "format": 1,
            "oracle": method.oracle,
            "preparation_evaluations": budget.spent_evaluations,
            "validation_mean_objective": log.latest.get("eval/mean_reward"),
            "episodes": [
                {
                    "instance": instance.name,
                    "seed": seed,
                    "steps": len(episode.actions),
                    "objective": episode.objective,
                    "vector_objective": episode.vector_objective,
                    "evaluations": episode.evaluations,
                }
                for instance, seed, episode in outcomes
            ],
        },
    )
    return folder


def _leave(
    spec: RunSpec, method: Method, outcomes: Sequence[Outcome], timing: Mapping[str, float]
) -> None:
    """Writes the records of the test episodes, wall times and provenance."""
    records = [_solution(spec, method, *outcome) for outcome in outcomes]
    solutions.write(spec.folder / solutions.FILE_NAME, records)
    decisions = sum(len(episode.actions) for *_, episode in outcomes)
    decision_s = sum(episode.decision_s for *_, episode in outcomes)
    write_json(
        spec.folder / TIMING,
        {**timing, "decisions": decisions, "mean_decision_s": decision_s / max(decisions, 1)},
    )
    write_json(
        spec.folder / PROVENANCE,
        {
            "versions": provenance.versions(),
            "git_revision": provenance.git_revision(),
            "machine": provenance.machine(),
        },
    )


def result(spec: RunSpec) -> dict[str, Any]:
    """The result of a finished run.

    Raises:
        InvalidInput: The run has not finished.
    """
    return read_json(spec.folder / RESULT)


def unseen_episodes(suite: Suite, run_seed: int, count: int) -> list[tuple[Instance, int]]:
    """The test episodes of a run: `count` seeds of every test instance.

    Raises:
        InvalidInput: The suite holds too few test seeds for this run seed.
    """
    chosen: list[tuple[Instance, int]] = []
    for instance in suite.test if count else ():
        seeds = instance.seeds[run_seed * count : (run_seed + 1) * count]
        if len(seeds) < count:
            raise InvalidInput(
                f"suite {suite.name}: test instance {instance.name} holds {instance.num_seeds} "
                f"seeds, run seed {run_seed} with {count} episodes needs {(run_seed + 1) * count}"
            )
        chosen.extend((instance, seed) for seed in seeds)
    return chosen


class Player:
    """Plays a method on instances of one environment; an instance's environment is made once."""

    def __init__(self, env_id: str, method: Method) -> None:
        """Plays `method` in `env_id` with the method's own overrides of its arguments."""
        self._env_id = env_id
        self._method = method
        self._envs: dict[str, gym.Env[Any, Any]] = {}

    def play(self, instance: Instance, seed: int) -> Episode:
        """Plays one episode of `instance`, reset with `seed`."""
        kwargs = env_kwargs(self._method, instance)
        key = json_text(kwargs, indent=None)
        if key not in self._envs:
            self._envs[key] = episodes.make(self._env_id, kwargs)
        return episodes.play(self._method, self._envs[key], seed)

    def close(self) -> None:
        """Closes every environment."""
        for env in self._envs.values():
            env.close()


def env_kwargs(method: Method, instance: Instance) -> dict[str, Any]:
    """Arguments of the environment in which `method` lives `instance`.

    A method may need another variant of the environment (a FIFO queue, say) than the suite names;
    its class attribute ``env_overrides`` holds the keywords.
    """
    return {**instance.env_kwargs, **getattr(method, "env_overrides", {})}


class RunBudget(Budget):
    """The harness's budget: counts, logs, validates and reports progress."""

    def __init__(
        self, spec: RunSpec, player: Player, log: RunLog, report: Report, num_tests: int
    ) -> None:
        """Opens an unspent budget for one run."""
        super().__init__(evaluations=spec.budget, folder=spec.folder)
        self._player = player
        self._log = log
        self._report = report
        self._num_tests = num_tests
        self._validation = [
            (instance, seed)
            for instance in spec.loaded_suite.train
            for seed in instance.validation_seeds[: spec.validation_episodes]
        ]
        self._validation_evaluations = 0
        self._restored_evaluations = 0
        self._started_s = time.perf_counter()

    @property
    def axis(self) -> int:
        """Where the log stands: evaluations spent, and those of the closing validation."""
        return self.spent_evaluations + self._validation_evaluations

    def restore(self, evaluations: int) -> None:
        """Goes on from a checkpoint, and the log with it."""
        super().restore(evaluations)
        self._restored_evaluations = evaluations
        self._log.restore(evaluations)

    def spend(self, evaluations: int) -> None:
        """Counts evaluations and tells how far the run is."""
        super().spend(evaluations)
        if self.evaluations:
            done = min(self.spent_evaluations / self.evaluations, 1.0)
            self._report(PREPARATION_SHARE * done)

    def tell(self, tests_done: int) -> None:
        """Tells how many test episodes are done."""
        share = PREPARATION_SHARE if self.evaluations else 0.0
        self._report(share + (1 - share) * tests_done / self._num_tests)

    def record(self, metrics: Mapping[str, float]) -> None:
        """Logs figures, with the count of evaluations and their rate beside them."""
        elapsed_s = max(time.perf_counter() - self._started_s, 1e-9)
        common = {
            "search/evaluations": self.axis,
            "time/fps": (self.axis - self._restored_evaluations) / elapsed_s,
        }
        self._log.record(self.axis, {**metrics, **common})

    def validate(self, method: Method) -> float | None:
        """Mean return on the validation episodes; logged as ``eval/mean_reward``."""
        if not self._validation:
            return None
        returns = [self._player.play(*episode).objective for episode in self._validation]
        mean = float(np.mean(returns))
        best = max(mean, self._log.latest.get("search/best_objective", mean))
        self.record({"eval/mean_reward": mean, "search/best_objective": best})
        return mean

    def finish(self, method: Method) -> None:
        """Validates a method that did not do so while preparing, episode by episode.

        A method that learns nothing thus has a curve as well, over the evaluations it lives.
        """
        if "eval/mean_reward" in self._log.latest:
            return
        returns: list[float] = []
        for number, (instance, seed) in enumerate(self._validation, start=1):
            episode = self._player.play(instance, seed)
            self._validation_evaluations += episode.evaluations
            returns.append(episode.objective)
            recent = float(np.mean(returns[-RECENT_EPISODES:]))
            metrics = {"rollout/ep_rew_mean": recent, "eval/mean_reward": float(np.mean(returns))}
            if number == len(self._validation) and "search/best_objective" not in self._log.latest:
                # Only now: the best of means over few episodes would be luck.
                metrics["search/best_objective"] = metrics["eval/mean_reward"]
            self.record(metrics)


def _solution(
    spec: RunSpec, method: Method, instance: Instance, seed: int, episode: Episode
) -> Solution:
    suite = spec.loaded_suite
    return Solution(
        env_id=suite.env_id,
        env_kwargs=env_kwargs(method, instance),
        suite=f"{suite.name} v{suite.version}",
        instance=instance.name,
        seed=seed,
        method=spec.name,
        method_seed=spec.seed,
        actions=list(episode.actions),
        objective=episode.objective,
        vector_objective=list(episode.vector_objective),
        versions=provenance.versions(),
    )
