"""Planners that search blindly: random construction, a genetic algorithm, simulated annealing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.baselines.partitioning.hgtrainer import random_plans
from dtgym.baselines.partitioning.moves import neighbours
from dtgym.baselines.partitioning.planner import Evaluator, Planner
from dtgym.simulator.kernels import plan_construction as kernels
from dtgym.simulator.partition_space import Candidate, PlanSpace


@dataclass
class RandomSearch(Planner):
    """The best of plans built by uniformly random legal decisions.

    Attributes:
        plans: Number of plans drawn.
    """

    name: str = "random"
    plans: int = 2000

    def search(self, evaluator: Evaluator) -> None:
        """Draws and prices."""
        random = np.random.default_rng(self.seed)
        evaluator.time_s(random_plans(evaluator.space, random, self.plans))


@dataclass
class Genetic(Planner):
    """pymoo's genetic algorithm over random keys.

    A plan is a vector of numbers in [0, 1], one per decision: the share of the legal choices that
    it skips. So every vector is a plan that can be built, and crossover keeps whole prefixes alive.

    Attributes:
        population: Plans of a generation.
        generations: Number of generations.
    """

    name: str = "genetic"
    population: int = 80
    generations: int = 25

    def search(self, evaluator: Evaluator) -> None:
        """Evolves the population."""
        from pymoo.algorithms.soo.nonconvex.ga import GA
        from pymoo.core.problem import Problem as PymooProblem
        from pymoo.optimize import minimize

        space = evaluator.space
        decisions = 1 + 6 * space.rules.max_stages

        class Keys(PymooProblem):
            def __init__(self) -> None:
                super().__init__(n_var=decisions, n_obj=1, xl=0.0, xu=1.0)

            def _evaluate(self, x: NDArray[np.float64], out: dict[str, Any], *_: Any) -> None:
                times = evaluator.time_s(decoded(space, x))
                # A plan that the evaluator refuses is worse than any.
                out["F"] = np.log(np.where(np.isfinite(times), times, 1e9))[:, None]

        minimize(
            Keys(),
            GA(pop_size=self.population, eliminate_duplicates=False),
            ("n_gen", self.generations),
            seed=self.seed,
            verbose=False,
        )


def decoded(space: PlanSpace, keys: NDArray[np.float64]) -> list[Candidate]:
    """Random keys as plans.

    Args:
        space: The space of one instance.
        keys: (plans, decisions) in [0, 1].
    """
    count = len(keys)
    builds = space.new_builds(count)
    everyone = np.arange(count)
    kernels.begin(space.arrays, builds, everyone, np.zeros(count, dtype=np.int64))
    legal = np.ones(count, dtype=np.bool_)
    step = 0
    while (builds.head != kernels.DONE).any():
        mask = space.masks(builds)
        rank = np.minimum(keys[:, step] * mask.sum(axis=1), mask.sum(axis=1) - 1).astype(np.int64)
        # The action with exactly `rank` legal ones before it.
        actions = ((np.cumsum(mask, axis=1) == rank[:, None] + 1) & mask).argmax(axis=1)
        kernels.advance(space.arrays, builds, actions, legal)
        step += 1
    return [space.candidate(builds, index) for index in range(count)]


@dataclass
class Annealing(Planner):
    """Simulated annealing over local moves, from the best of a few random plans.

    Attributes:
        steps: Moves tried.
        start_temperature: In units of the logarithm of the time; falls geometrically.
        end_temperature: At the last step.
    """

    name: str = "annealing"
    steps: int = 1500
    start_temperature: float = 0.3
    end_temperature: float = 0.003

    def search(self, evaluator: Evaluator) -> None:
        """Walks from plan to plan."""
        random = np.random.default_rng(self.seed)
        space = evaluator.space
        starts = random_plans(space, random, 32)
        times = evaluator.time_s(starts)
        plan, time_s = starts[int(times.argmin())], float(times.min())
        ratio = self.end_temperature / self.start_temperature
        for step in range(self.steps):
            around = neighbours(space, plan)
            if not around:
                return
            trial = around[int(random.integers(len(around)))]
            trial_s = float(evaluator.time_s([trial])[0])
            temperature = self.start_temperature * ratio ** (step / self.steps)
            worse = np.log(trial_s / time_s)
            if worse <= 0 or random.random() < np.exp(-worse / temperature):
                plan, time_s = trial, trial_s
