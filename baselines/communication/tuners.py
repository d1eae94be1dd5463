"""Methods that search by trial: once beforehand, or inside the episode."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from dtgym.baselines.communication.search import (
    ITERATIONS_PER_TRIAL,
    PROPOSERS,
    RANDOM_POINTS,
    SUGGESTED_POINTS,
    Tuning,
)
from dtgym.baselines.method import BaseMethod, Budget, View
from dtgym.simulator import communication_workloads
from dtgym.simulator.errors import InvalidInput, one_of


class _Tuner(BaseMethod):
    """What both tuners share: the search by name and the length of a trial."""

    def __init__(
        self, kind: str, name: str, *, iterations_per_trial: int = ITERATIONS_PER_TRIAL
    ) -> None:
        """Names the search.

        Raises:
            InvalidInput: Unknown search, or a trial without iterations.
        """
        super().__init__(name=name)
        self.kind = one_of("search", kind, tuple(PROPOSERS))
        if iterations_per_trial < 1:
            raise InvalidInput(
                f"iterations_per_trial must be at least 1, got {iterations_per_trial}"
            )
        self.iterations_per_trial = iterations_per_trial
        self.seed = 0

    def _tuning(self, state: Any, dice: tuple[int, ...]) -> Tuning:
        proposer = PROPOSERS[self.kind](state, np.random.default_rng([self.seed, *dice]))
        return Tuning(proposer, iterations_per_trial=self.iterations_per_trial)


class BeforehandTuner(_Tuner):
    """Tuned once beforehand, then static: what AutoByte calls static ByteScheduler.

    `prepare` tunes every pair of model and architecture that the training instances hold, each in
    one training episode drawn by the run's seed, and counts every environment step as spent. The
    best point seen is then kept through every test episode, whose network is another one. With
    the release's schedule one tuning takes 15 trials of 111 iterations, about 1,700.
    """

    def __init__(self, kind: str, **options: Any) -> None:
        """Names the search ``bytescheduler-bo`` or ``random-search``; see `search.PROPOSERS`."""
        super().__init__(kind, kind, **options)
        self.tuned: dict[tuple[str, str], int] = {}

    def prepare(self, suite: Any, *, seed: int, budget: Budget) -> None:
        """Tunes on training instances; a budget that runs out keeps the best points so far.

        Raises:
            InvalidInput: The environment's actions are not cells of the grid.
        """
        import gymnasium as gym

        self.seed = seed
        self.tuned = {}
        dice = np.random.default_rng([seed, 1])
        for instance in dice.permutation(np.array(suite.train, dtype=object)):
            for env_kwargs in _one_model_each(instance.env_kwargs):
                env = gym.make(suite.env_id, **env_kwargs)
                unwrapped: Any = env.unwrapped
                first = _draw(dice, instance.preparation_seeds)
                env.reset(seed=first)
                state = unwrapped.view(oracle=False).state
                if (state.model, state.architecture) not in self.tuned:
                    env.close()
                    # The search takes longer than an episode of the suite: the drift goes on.
                    trial_steps = math.ceil(self.iterations_per_trial / state.iterations_per_step)
                    horizon = (1 + RANDOM_POINTS + SUGGESTED_POINTS) * trial_steps + 1
                    env = gym.make(suite.env_id, **{**env_kwargs, "horizon": horizon})
                    self._tune(env, first, budget)
                env.close()

    def _tune(self, env: Any, seed: int, budget: Budget) -> None:
        env.reset(seed=seed)
        view = env.unwrapped.view(oracle=False)
        tuning = self._tuning(view.state, (2, len(self.tuned)))
        action = tuning.act(view.state)
        while not tuning.finished:
            if budget.evaluations is not None and budget.spent_evaluations >= budget.evaluations:
                break
            env.step(action)
            budget.spend(1)
            view = env.unwrapped.view(oracle=False)
            ended = tuning.trial
            action = tuning.act(view.state)
            if tuning.trial > max(ended, 1):
                gain = math.log(tuning.default_time_s / tuning.best_time_s)
                budget.record(
                    {
                        "search/best_objective": gain,
                        "search/evaluations": float(budget.spent_evaluations),
                    }
                )
        self.tuned[view.state.model, view.state.architecture] = tuning.best_action

    def act(self, view: View) -> int:
        """Returns the cell that was tuned for the episode's model and architecture.

        Raises:
            InvalidInput: No training instance held that model and architecture.
        """
        key = (view.state.model, view.state.architecture)
        if key not in self.tuned:
            raise InvalidInput(
                f"{self.name} was tuned for {', '.join(map('/'.join, self.tuned)) or 'nothing'}; "
                f"no training instance holds {'/'.join(key)}"
            )
        return self.tuned[key]


class OnlineTuner(_Tuner):
    """Searches inside the episode: trials cost what they cost, in the episode's return.

    Every trial holds its point for ``ceil(iterations_per_trial / iterations_per_step)`` steps.
    With the release's schedule the search takes about 1,700 iterations; in a shorter episode it
    does not come to an end. It tunes once: drift after the search finds it static.
    """

    def __init__(self, kind: str, **options: Any) -> None:
        """Names the search ``bytescheduler-bo`` or ``random-search``; see `search.PROPOSERS`."""
        super().__init__(kind, f"{kind}-online", **options)
        self.tuning: Tuning | None = None
        self.episode = 0

    def prepare(self, suite: Any, *, seed: int, budget: Budget) -> None:
        """Takes the run's seed for the search's dice."""
        self.seed = seed
        self.episode = 0

    def reset(self, view: View) -> None:
        """Begins a new search."""
        super().reset(view)
        self.tuning = self._tuning(view.state, (3, self.episode))
        self.episode += 1

    def act(self, view: View) -> int:
        """Returns the cell of the running trial, or the best one after the last."""
        assert self.tuning is not None, "reset comes first"
        return self.tuning.act(view.state)


def _one_model_each(env_kwargs: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The arguments, once for each model where they draw one of several."""
    models = env_kwargs.get("model")
    if models == "random":
        models = communication_workloads.NAMES
    if not isinstance(models, list | tuple):
        yield env_kwargs
        return
    for model in models:
        yield {**env_kwargs, "model": model}


def _draw(dice: np.random.Generator, seeds: range) -> int:
    return seeds[int(dice.integers(len(seeds)))]
