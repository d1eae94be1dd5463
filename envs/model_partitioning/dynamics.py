"""The dynamics of model partitioning: batches of plans built or improved decision by decision.

Both environments keep their plans in the same arrays (`plan_construction.Builds`), read the same
masks and prices, and show the same observation. The evaluator prices all plans that are finished
(or moved) in a step with one call, whatever their instances.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from dtgym.envs import seeding
from dtgym.envs.dynamics import Dynamics, Observations, Transition
from dtgym.envs.model_partitioning import kernels as observing
from dtgym.envs.model_partitioning import reward
from dtgym.envs.model_partitioning.types import (
    CLUSTER_FEATURES,
    MODEL_FEATURES,
    PROGRESS_FEATURES,
    STAGE_FEATURES,
    Parameters,
    PartitionState,
    pool_of_parameters,
    static_features,
)
from dtgym.simulator.kernels import plan_construction as kernels
from dtgym.simulator.partition_space import Candidate
from dtgym.simulator.threads import map_ranges

_SIZES = (
    len(CLUSTER_FEATURES),
    len(MODEL_FEATURES),
    len(STAGE_FEATURES),
    len(PROGRESS_FEATURES),
)
_MINIMUM_ROWS = 128
STEPS_PER_DECISION = 8
"""An agent that ignores masks is cut off after so many steps per decision of the longest plan."""


class PartitionDynamics(Dynamics):
    """What both environments share: the pool, the plans, observation and state."""

    improving = False

    def __init__(self, num_envs: int, parameters: Parameters, num_actions: int | None) -> None:
        self.num_envs = num_envs
        self.parameters = parameters
        self.pool = pool_of_parameters(parameters)
        self.space = self.pool.space
        self.builds = self.space.new_builds(num_envs)
        kernels.begin(
            self.space.arrays, self.builds, np.arange(num_envs), np.zeros(num_envs, np.int64)
        )
        actions = self.space.num_actions if num_actions is None else num_actions
        self.action_space = spaces.Discrete(actions)
        self.steps = np.zeros(num_envs, dtype=np.int64)
        self.is_over = np.ones(num_envs, dtype=np.bool_)
        # Masks of environments that a step or a reset has changed are worked out when asked for.
        self._last_masks = np.ones((num_envs, actions), dtype=np.bool_)
        self._is_stale = np.ones(num_envs, dtype=np.bool_)
        self._static = static_features(self.pool)
        self._samples_log2 = np.log2(np.maximum(self.space.microbatch, 1))
        self._reference_stage_s = self._reference_stages()
        clusters, stages = self.space.problem.clusters, self.space.rules.max_stages
        shapes = observing.empty_observation(1, clusters, stages, _SIZES)
        self.observation_space = spaces.Dict(
            {
                **{
                    key: spaces.Box(-observing.CLAMP, observing.CLAMP, value.shape[1:], np.float32)
                    for key, value in shapes.items()
                },
                "action_mask": spaces.Box(0, 1, (actions,), np.int8),
            }
        )

    def _reference_stages(self) -> NDArray[np.float64]:
        """(I,) time of the reference plan per sample, which its slowest stage sets, s."""
        return self.pool.reference_time_s / self.space.problem.global_batch

    def _draw(self, episode_keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The instance of each episode."""
        if self.parameters.instance is not None:
            return np.full(len(episode_keys), self.parameters.instance)
        return (seeding.uniform(episode_keys, 0) * len(self.pool)).astype(np.int64)

    @abstractmethod
    def _masks(self, which: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Legal actions of the environments `which`, (k, actions)."""

    def action_masks(self) -> NDArray[np.bool_]:
        """Legal actions; of an episode that is over, all."""
        stale = np.flatnonzero(self._is_stale)
        if len(stale):
            self._last_masks[stale] = self._masks(stale)
            self._last_masks[self.is_over] = True
            self._is_stale[:] = False
        return self._last_masks.copy()

    def observe(self, which: NDArray[np.int64]) -> Observations:
        """Observations of the environments `which`; see `types` for every feature."""
        clusters, stages = self.space.problem.clusters, self.space.rules.max_stages
        rows = observing.empty_observation(len(which), clusters, stages, _SIZES)

        def run(first: int, last: int) -> None:
            observing.observe(
                self.space.arrays,
                self.builds,
                self._samples_log2,
                self.space.stage_time_s,
                self._reference_stage_s,
                self._static["clusters"],
                self._static["links"],
                self._static["model"],
                which,
                first,
                last,
                rows["clusters"],
                rows["links"],
                rows["model"],
                rows["stages"],
                rows["progress"],
            )

        map_ranges(run, len(which), _MINIMUM_ROWS)
        return {**rows, "action_mask": self._last_masks[which].astype(np.int8)}

    def state(self, index: int) -> PartitionState:
        """All there is to know: nothing of this problem is hidden."""
        instance = int(self.builds.instance[index])
        return PartitionState(
            setting=self.pool.settings[instance],
            space=self.space.take(instance),
            head=kernels.HEADS[self.builds.head[index]],
            plan=self.candidate(index),
            reference=self.pool.reference[instance],
            reference_time_s=float(self.pool.reference_time_s[instance]),
            improving=self.improving,
        )

    def instance(self, index: int) -> Any:
        """The setting of one environment; it has no hidden part."""
        return self.pool.settings[int(self.builds.instance[index])]

    def candidate(self, index: int) -> Candidate:
        """The plan of one environment, as far as it goes."""
        return self.space.candidate(self.builds, index)

    def infos(self) -> dict[str, NDArray[Any]]:
        """Number of the instance and draws that were rejected when the pool was made."""
        return {
            "instance": self.builds.instance.copy(),
            "rejected_instances": np.full(self.num_envs, self.pool.rejected),
        }

    def render(self, index: int, mode: str) -> NDArray[np.uint8] | str:
        """The plan so far as text, or as a Gantt chart of its pipeline once it is whole."""
        from dtgym.envs.model_partitioning import render

        if mode == "ansi":
            return render.text(self, index)
        return render.picture(self, index)

    def _price(self, which: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Iteration time, (k,), and vector reward, (k, objectives), of whole plans."""
        plans = self.space.built_plans(self.builds, which)
        costs = reward.evaluated(self.space.problem, plans)
        reference_s = self.pool.reference_time_s[plans.instance]
        vector = reward.vector_reward(self.space.problem, plans, costs, reference_s)
        return costs.time_s, vector


class ConstructionDynamics(PartitionDynamics):
    """Builds plans from nothing; see the environment for the rules."""

    def __init__(self, num_envs: int, parameters: Parameters) -> None:
        """Lays out the arrays of the batch.

        Raises:
            InvalidInput: Arguments of which no instance can be made.
        """
        super().__init__(num_envs, parameters, None)
        self._step_limit = STEPS_PER_DECISION * (1 + 6 * self.space.rules.max_stages)

    def begin(self, which: NDArray[np.int64], episode_keys: NDArray[np.uint64]) -> None:
        """Draws instances and empties the plans."""
        kernels.begin(self.space.arrays, self.builds, which, self._draw(episode_keys))
        self.steps[which] = 0
        self.is_over[which] = False
        self._is_stale[which] = True

    def advance(self, actions: NDArray[np.int64], legal: NDArray[np.bool_]) -> Transition:
        """Takes the decisions that are due; a forbidden one changes nothing."""
        if self.is_over.any():
            raise gym.error.ResetNeeded("the episode is over: call reset")
        kernels.advance(self.space.arrays, self.builds, actions, legal)
        self.steps += 1
        self._is_stale[:] = True
        terminated = self.builds.head == kernels.DONE
        truncated = ~terminated & (self.steps >= self._step_limit)
        vector = np.zeros((self.num_envs, len(reward.OBJECTIVES)))
        time_s = np.zeros(self.num_envs)
        finished = np.flatnonzero(terminated)
        if len(finished):
            time_s[finished], vector[finished] = self._price(finished)
        self.is_over = terminated | truncated
        infos = {"iteration_time_s": time_s, "vector_reward": vector}
        return Transition(vector[:, 0].copy(), terminated, truncated, infos)

    def _masks(self, which: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self.space.masks(self.builds, which)


class ImprovementDynamics(PartitionDynamics):
    """Improves the rules of thumb's plan by local moves; see the environment for the rules."""

    improving = True

    def __init__(self, num_envs: int, parameters: Parameters) -> None:
        """Lays out the arrays of the batch.

        Raises:
            InvalidInput: Arguments of which no instance can be made.
        """
        pool = pool_of_parameters(parameters)
        self.moves = kernels.move_table(pool.space.rules.max_stages)
        super().__init__(num_envs, parameters, len(self.moves))
        self._references = self._lay_references()
        self.time_s = np.ones(num_envs)
        self.vector = np.zeros((num_envs, len(reward.OBJECTIVES)))

    def _lay_references(self) -> kernels.Builds:
        """The reference plan of every instance, to be copied where an episode begins."""
        count = len(self.pool)
        laid = self.space.new_builds(count)
        kernels.begin(self.space.arrays, laid, np.arange(count), np.arange(count))
        for instance, candidate in enumerate(self.pool.reference):
            self.space.lay_down(laid, instance, candidate)
        return laid

    def begin(self, which: NDArray[np.int64], episode_keys: NDArray[np.uint64]) -> None:
        """Draws instances and lays down their reference plans."""
        instances = self._draw(episode_keys)
        for plans, laid in zip(self.builds, self._references, strict=True):
            plans[which] = laid[instances]
        self.steps[which] = 0
        self.is_over[which] = False
        self._is_stale[which] = True
        self.time_s[which], self.vector[which] = self._price(which)

    def advance(self, actions: NDArray[np.int64], legal: NDArray[np.bool_]) -> Transition:
        """Carries out the moves; a forbidden one keeps the plan and costs a step."""
        if self.is_over.any():
            raise gym.error.ResetNeeded("the episode is over: call reset")
        kernels.move(self.space.arrays, self.builds, self.moves, actions, legal)
        self.steps += 1
        self._is_stale[:] = True
        before_s, before = self.time_s.copy(), self.vector.copy()
        stopped = legal & (self.moves[actions, 0] == kernels.MOVE_STOP)
        moved = np.flatnonzero(legal & ~stopped)
        if len(moved):
            self.time_s[moved], self.vector[moved] = self._price(moved)
        terminated = stopped | (self.steps >= self.parameters.horizon)
        self.is_over = terminated.copy()
        gained = np.log(before_s / self.time_s)
        vector = self.vector - before
        vector[:, 0] = gained
        infos = {"iteration_time_s": self.time_s.copy(), "vector_reward": vector}
        return Transition(gained, terminated, np.zeros_like(terminated), infos)

    def _masks(self, which: NDArray[np.int64]) -> NDArray[np.bool_]:
        mask = np.zeros((len(which), len(self.moves)), dtype=np.bool_)

        def run(first: int, last: int) -> None:
            kernels.move_masks(self.space.arrays, self.builds, self.moves, which, first, last, mask)

        map_ranges(run, len(which), 64)
        return mask
