"""The dynamics of cluster scheduling: a batch of clusters over one stream of jobs.

One step is one choice: a waiting job or "let time pass", then where to put the job, then how much
CPU, I/O and network it gets. Time only moves by "let time pass" and where nobody could be started.
All of it happens in `kernel`; this file lays out the arrays and hands them over, in slices, to as
many threads as there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from dtgym.envs.cluster_scheduling import generator, kernel, layout, observation, reward
from dtgym.envs.cluster_scheduling.types import (
    CLUSTER_FEATURES,
    NODE_FEATURES,
    QUEUE_FEATURES,
    RUNNING_FEATURES,
    Parameters,
    Running,
    SchedulingState,
    Waiting,
)
from dtgym.envs.dynamics import Dynamics, Transition
from dtgym.simulator.jobs import JobTable
from dtgym.simulator.threads import map_ranges

FEWEST_PER_SLICE = 128
_UNITS = np.array([1.0, 1 / 4000.0, 2.0**20 / 4, 1e3 / 4, 1e3 / 4])
"""From the kernel's integer amounts to GPUs, cores, bytes, bytes/s and bytes/s."""


class SchedulingDynamics(Dynamics):
    """A batch of clusters; see the environment for the rules."""

    def __init__(self, num_envs: int, parameters: Parameters) -> None:
        """Builds the instance and lays out the batch.

        Raises:
            InvalidInput: See `generator.build`.
        """
        self.num_envs = num_envs
        self.parameters = parameters
        self.given = generator.build(parameters)
        self.rules = generator.rules_of(parameters, self.given)
        nodes, jobs = len(self.given.nodes), parameters.jobs_per_episode
        self.table = np.zeros((num_envs, self.rules.words), dtype=np.int64)
        grid = (num_envs, jobs + parameters.queue_slots, nodes)
        self.grids = np.zeros(grid, dtype=np.int16)
        self.brought = np.zeros((num_envs, layout.STEP_COLUMNS))
        self.masks = np.zeros((num_envs, parameters.actions), dtype=np.bool_)
        self.everyone = np.arange(num_envs)
        self.ready: dict[str, NDArray[Any]] | None = None
        self.action_space = spaces.Discrete(parameters.actions)
        self.shapes = {
            "queue": (parameters.queue_slots, len(QUEUE_FEATURES)),
            "nodes": (nodes, len(NODE_FEATURES)),
            "running": (parameters.running_slots, len(RUNNING_FEATURES)),
            "cluster": (len(CLUSTER_FEATURES),),
        }
        low = np.zeros(len(CLUSTER_FEATURES), dtype=np.float32)
        low[-4:] = -1
        boxes: dict[str, spaces.Space[Any]] = {
            name: spaces.Box(0.0, 1.0, shape, dtype=np.float32)
            for name, shape in self.shapes.items()
        }
        boxes["cluster"] = spaces.Box(low, np.ones_like(low), dtype=np.float32)
        boxes["action_mask"] = spaces.Box(0, 1, (parameters.actions,), dtype=np.int8)
        self.observation_space = spaces.Dict(boxes)
        self.epoch_s = self.given.jobs.epoch_unix_s or 0.0
        self.cluster_w = float(self.given.nodes[:, 0].sum() * parameters.active_power_w)
        self.scales = reward.scales(self.given.mean_duration_s, jobs, self.cluster_w)

    def begin(self, which: NDArray[np.int64], episode_keys: NDArray[np.uint64]) -> None:
        """Starts new episodes: a window of the stream each, at its first submission."""
        self.ready = None
        kernel.begin_some(
            np.ascontiguousarray(which),
            np.ascontiguousarray(episode_keys),
            self.table,
            self.grids,
            self.rules.constants,
            self.rules.numbers,
            self.given.stream,
            self.given.nodes,
            self.masks,
        )

    def _arrays(self) -> tuple[NDArray[Any], ...]:
        """What every kernel call takes, in its order."""
        given = self.given
        return (
            self.table,
            self.grids,
            self.rules.constants,
            self.rules.numbers,
            given.stream,
            given.nodes,
            given.rate,
            given.busy,
        )

    def advance(self, actions: NDArray[np.int64], legal: NDArray[np.bool_]) -> Transition:
        """One choice in every cluster; a forbidden one changes nothing and takes no time."""
        step: Any = kernel.step_range
        arrays = self._arrays()
        out = self._empty_observations(self.num_envs)

        def slice_of(first: int, last: int) -> None:
            step(first, last, actions, legal, *arrays, self.brought, self.masks)
            self._write(first, last, self.everyone, out)

        map_ranges(slice_of, self.num_envs, FEWEST_PER_SLICE)
        out["action_mask"] = self.masks.view(np.int8).copy()
        self.ready = out
        lost = kernel.stranded(self.table, self.rules.constants)
        assert lost < 0, f"cluster {lost} is empty, jobs wait and none can start"
        vector = self.brought * self.scales
        elapsed_s = self.table[:, layout.STEP_TIME] / 1000.0
        return Transition(
            reward=reward.scalar_reward(vector, self.parameters.reward),
            terminated=self.table[:, layout.DONE] != 0,
            truncated=np.zeros(self.num_envs, dtype=np.bool_),
            infos={
                "vector_reward": vector,
                "job_ms": self.table[:, layout.STEP_JOB].copy(),
                "elapsed_s": elapsed_s,
                "discount": np.exp(-self.parameters.discount_per_s * elapsed_s),
            },
        )

    def observe(self, which: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Observations of the environments `which`."""
        if self.ready is not None and len(which) == self.num_envs:
            # Written right after the step, slice by slice, while the rows lay in the cache.
            out, self.ready = self.ready, None
            return out
        which = np.ascontiguousarray(which)
        out = self._empty_observations(len(which))
        map_ranges(
            lambda first, last: self._write(first, last, which, out),
            len(which),
            FEWEST_PER_SLICE,
        )
        out["action_mask"] = self.masks[which].view(np.int8)
        return out

    def _empty_observations(self, count: int) -> dict[str, NDArray[Any]]:
        return {
            name: np.empty((count, *shape), dtype=np.float32) for name, shape in self.shapes.items()
        }

    def _write(
        self, first: int, last: int, which: NDArray[np.int64], out: dict[str, NDArray[Any]]
    ) -> None:
        """Writes the observations of which[first:last]."""
        observation.write_range(
            first,
            last,
            which,
            self.table,
            self.rules.constants,
            self.rules.numbers,
            self.given.stream,
            self.given.job_features,
            self.given.nodes,
            self.given.node_features,
            self.epoch_s,
            out["queue"],
            out["nodes"],
            out["running"],
            out["cluster"],
        )

    def action_masks(self) -> NDArray[np.bool_]:
        """Legal actions, (environments, actions)."""
        return self.masks.copy()

    def infos(self) -> dict[str, NDArray[Any]]:
        """Clock, jobs done and the phase of the decision."""
        return {
            "now_s": self.table[:, layout.NOW] / 1000.0,
            "finished": self.table[:, layout.FINISHED].copy(),
            "phase": self.table[:, layout.PHASE].copy(),
        }

    def state(self, index: int) -> SchedulingState:
        """Typed public state in raw units."""
        row, given, parameters = self.table[index], self.given, self.parameters
        nodes, slots = len(given.nodes), parameters.queue_slots
        jobs = parameters.jobs_per_episode
        window, now = int(row[layout.WINDOW]), int(row[layout.NOW])
        slot = self._block(index, layout.B_SLOTS, slots, layout.SLOT_WORDS)
        slot = slot[: row[layout.SLOTS_USED]]
        job = self._jobs(index)
        running = self._block(index, layout.B_RUNNING, jobs, layout.RUNNING_WORDS)
        running = running[: row[layout.RUNNING], layout.RUNNING_JOB].copy()
        shown = slot[:, layout.SLOT_JOB].copy()
        asked = given.stream[window + shown]
        gpus = asked[:, layout.GPUS].copy()
        demand = asked[:, layout.DEMAND : layout.DEMAND + 4].astype(np.float64)
        amounts = demand * gpus[:, None] * 4 * _UNITS[1:]
        choose = "placement" in parameters.decisions
        first_level = slots + 1 + (len(parameters.placements) if choose else 0)
        return SchedulingState(
            now_s=now / 1000.0,
            phase=int(row[layout.PHASE]),
            chosen=int(row[layout.CHOSEN]),
            advance=slots,
            first_placement=slots + 1 if choose else -1,
            first_level=first_level if "levels" in parameters.decisions else -1,
            placements=tuple(parameters.placements),
            free=self._block(index, layout.B_FREE, nodes, layout.RESOURCES).astype(np.float64)
            * _UNITS,
            capacity=given.nodes[:, : layout.RESOURCES].astype(np.float64) * _UNITS,
            kind=given.nodes[:, layout.KIND].copy(),
            kinds=given.kinds,
            rack=given.nodes[:, layout.RACK].copy(),
            tentative=self._block(index, layout.B_TENTATIVE, nodes).copy(),
            waiting=Waiting(
                job=shown,
                num_gpus=gpus,
                age_s=(now + row[layout.ORIGIN] - asked[:, layout.SUBMIT]) / 1000.0,
                estimate_s=job[shown, layout.ESTIMATE] / 1000.0,
                cpu_cores=amounts[:, 0],
                memory_bytes=amounts[:, 1],
                io_bytes_per_s=amounts[:, 2],
                network_bytes_per_s=amounts[:, 3],
                startable=slot[:, layout.STARTABLE] != 0,
                room=self.grids[index, jobs : jobs + len(shown)].astype(np.int64),
            ),
            running=Running(
                job=running,
                gpus=self.grids[index, running].astype(np.int64),
                elapsed_s=(now - job[running, layout.START]) / 1000.0,
                estimate_s=job[running, layout.ESTIMATE] / 1000.0,
            ),
            backlog=int(row[layout.ARRIVED] - row[layout.SHOWN]),
            finished=int(row[layout.FINISHED]),
            jobs=jobs,
        )

    def _block(self, index: int, begin: int, *shape: int) -> NDArray[np.int64]:
        """A view of a block of one environment's row."""
        return self.rules.block(self.table[index : index + 1], begin, *shape)[0]

    def _jobs(self, index: int) -> NDArray[np.int64]:
        """Words of the episode's jobs, (jobs, layout.JOB_WORDS)."""
        jobs = self.parameters.jobs_per_episode
        return self._block(index, layout.B_JOBS, jobs, layout.JOB_WORDS)

    def instance(self, index: int) -> JobTable:
        """The episode's jobs with their true durations, on the episode's clock."""
        first = int(self.table[index, layout.WINDOW])
        jobs = self.given.jobs.select(np.arange(first, first + self.parameters.jobs_per_episode))
        origin_s = float(self.table[index, layout.ORIGIN]) / 1000.0
        return jobs.with_columns(
            {"submit_s": jobs.submit_ms / 1000.0 - origin_s},
            synthetic="submit_s" in jobs.synthetic,
        )

    def schedule(self, index: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Start and completion of each job of the episode so far, seconds, NaN before; (jobs,)."""
        job = self._jobs(index)
        start_ms, finish_ms = job[:, layout.START], job[:, layout.FINISH]
        done = (start_ms >= 0) & (finish_ms <= self.table[index, layout.NOW])
        return (
            np.where(start_ms >= 0, start_ms / 1000.0, np.nan),
            np.where(done, finish_ms / 1000.0, np.nan),
        )

    def render(self, index: int, mode: str) -> NDArray[np.uint8] | str:
        """Gantt chart and utilisation, or text."""
        from dtgym.envs.cluster_scheduling import render

        return render.text(self, index) if mode == "ansi" else render.picture(self, index)
