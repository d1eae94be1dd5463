"""What a Python scheduler sees and says: public state, decisions, and the protocol.

The state has the same fields as the public state of `dtgym/ClusterScheduling-v0`, so that a method
written for one runs in the other. It never shows what the future holds, unless the scheduler
declares itself an oracle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.cluster_resources import PER_UNIT, Resources
from dtgym.simulator.jobs import JobTable, milliseconds
from dtgym.simulator.kernels import cluster_state as layout
from dtgym.simulator.kernels.cluster_placement import find_places, node_room, take


@dataclass(frozen=True)
class Start:
    """Starts a waiting job.

    Attributes:
        job: Number of the job (`state.waiting.job`).
        nodes: Nodes of its parts; None lets the placement rule of the simulation choose.
        gpus: GPUs on each of these nodes (parts, for a job without GPUs); their sum may differ from
            the request within the job's `min_gpus` and `max_gpus`.
        cpu: CPU given over asked, above 0.
        io: Storage rate given over asked, above 0.
        network: Network rate given over asked, above 0.
        host: Running job of the same gang whose GPUs it shares; -1 for GPUs of its own.
    """

    job: int
    nodes: Sequence[int] | None = None
    gpus: Sequence[int] | None = None
    cpu: float = 1.0
    io: float = 1.0
    network: float = 1.0
    host: int = -1


@dataclass(frozen=True)
class Decision:
    """What happens now: first the preemptions, then the starts, in order.

    Attributes:
        start: A start that does not fit is skipped, except where it names nodes.
        preempt: Numbers of running jobs that lose their resources.
        in_order: Leave out everything behind the first start that does not fit.
        alternatives: Starts of a job that an earlier one started are left out instead of refused.
        wake_s: Decide again at this time at the latest, after now (`SchedulerState.after`); None
            waits for the next event.
    """

    start: Sequence[Start] = ()
    preempt: Sequence[int] = ()
    in_order: bool = False
    alternatives: bool = False
    wake_s: float | None = None


@dataclass(frozen=True, eq=False)
class WaitingJobs:
    """Waiting jobs by submission, then id; arrays (waiting,).

    Attributes:
        job: Numbers of the jobs: their order of submission, then id.
        num_gpus: GPUs asked for.
        age_s: Time since submission.
        estimate_s: Estimated duration.
        attained_gpu_s: GPU time received so far.
        cpu_cores, memory_bytes, io_bytes_per_s, network_bytes_per_s: Asked for, whole job.
    """

    job: NDArray[np.int64]
    num_gpus: NDArray[np.int64]
    age_s: NDArray[np.float64]
    estimate_s: NDArray[np.float64]
    attained_gpu_s: NDArray[np.float64]
    cpu_cores: NDArray[np.float64]
    memory_bytes: NDArray[np.float64]
    io_bytes_per_s: NDArray[np.float64]
    network_bytes_per_s: NDArray[np.float64]
    _state: SchedulerState

    @cached_property
    def room(self) -> NDArray[np.int64]:
        """GPUs of the job that each node has room for, (waiting, nodes)."""
        m = self._state.resources.machine
        room = np.zeros((len(self.job), len(m.free)), dtype=np.int64)
        for row, job in enumerate(self.job):
            for node in range(len(m.free)):
                room[row, node] = node_room(
                    m, m.free, node, m.demand[job], m.jobs["kinds_ok"][job], m.jobs["units"][job]
                )
        return room

    @cached_property
    def startable(self) -> NDArray[np.bool_]:
        """Whether the placement rule finds room for the job now."""
        return np.array([self._state.fits(int(job)) for job in self.job], dtype=np.bool_)


@dataclass(frozen=True, eq=False)
class RunningJobs:
    """Running jobs by start, then number; arrays (running,) unless stated.

    Attributes:
        job: Numbers of the jobs.
        gpus: On each node, (running, nodes).
        num_gpus: GPUs held.
        elapsed_s: Time since the present start.
        estimate_s: Estimated duration as requested.
        attained_gpu_s: GPU time received so far.
        partner: Job on the same GPUs, -1.
    """

    job: NDArray[np.int64]
    gpus: NDArray[np.int64]
    num_gpus: NDArray[np.int64]
    elapsed_s: NDArray[np.float64]
    estimate_s: NDArray[np.float64]
    attained_gpu_s: NDArray[np.float64]
    partner: NDArray[np.int64]


class SchedulerState:
    """Typed public state at one decision.

    Attributes:
        resources: The engine's machine; schedulers read it through the members below.
        now_s: Time on the table's clock.
        phase, chosen, tentative, first_placement, first_level, backlog: As in the environment,
            where one decision takes several choices; here there is one, and all jobs are shown.
        kinds: Names of the GPU types.
        kind, rack: Of each node, (nodes,).
        jobs: Number of jobs of the table that can run.
    """

    phase = 0
    chosen = -1
    first_placement = -1
    first_level = -1
    backlog = 0

    def __init__(self, resources: Resources, *, oracle: bool) -> None:
        m = resources.machine
        self.resources = resources
        self.now_s = float(m.counters[layout.NOW]) / 1000.0
        self.kinds = resources.kinds
        self.kind = m.nodes["kind"]
        self.rack = m.nodes["rack"]
        self.tentative = np.zeros(len(m.free), dtype=np.int64)
        self.placements = (
            next(name for name, rule in layout.PLACEMENTS.items() if rule == resources.rule),
        )
        self.jobs = len(m.jobs["status"])
        self._oracle = oracle

    @property
    def table(self) -> JobTable:
        """Columns of the jobs; row `rows[job]` belongs to job number `job`.

        Schedulers that are not oracles do not look at `duration_s`.
        """
        return self.resources.jobs

    @property
    def rows(self) -> NDArray[np.int64]:
        """Row of the table of each job number, (jobs,)."""
        return self.resources.row

    @property
    def advance(self) -> int:
        """Number of the action that starts nothing more."""
        return len(self.waiting.job)

    def after(self, delay_s: float) -> float:
        """The instant of the engine's clock `delay_s` from now, at least one millisecond away.

        Times of later decisions are taken from here: `now_s` then equals them to the bit, while
        `now_s + delay_s` may lie a rounding error behind the instant that it stands for.
        """
        now_ms = int(self.resources.machine.counters[layout.NOW])
        return (now_ms + max(int(milliseconds(delay_s)), 1)) / 1000.0

    @property
    def finished(self) -> int:
        """Jobs done."""
        return int((self.resources.machine.jobs["status"] == layout.DONE).sum())

    @cached_property
    def free(self) -> NDArray[np.float64]:
        """Free amounts, (nodes, 5), in GPUs, cores, bytes, bytes/s, bytes/s."""
        return self.resources.machine.free / PER_UNIT

    @cached_property
    def capacity(self) -> NDArray[np.float64]:
        """Capacities, (nodes, 5), in GPUs, cores, bytes, bytes/s, bytes/s."""
        return self.resources.machine.capacity / PER_UNIT

    @cached_property
    def waiting(self) -> WaitingJobs:
        """The waiting jobs."""
        m = self.resources.machine
        job = np.sort(m.waiting[: m.counters[layout.WAITING_COUNT]])
        whole = m.demand[job] * m.jobs["asked_units"][job][:, None] / PER_UNIT
        return WaitingJobs(
            job=job,
            num_gpus=m.jobs["gpus"][job],
            age_s=(m.counters[layout.NOW] - m.jobs["submit_ms"][job]) / 1000.0,
            estimate_s=m.jobs["estimate_ms"][job] / 1000.0,
            attained_gpu_s=m.jobs["attained"][job] / 1000.0,
            cpu_cores=whole[:, 1],
            memory_bytes=whole[:, 2],
            io_bytes_per_s=whole[:, 3],
            network_bytes_per_s=m.jobs["traffic"][job] * m.jobs["asked_units"][job] / 1.0,
            _state=self,
        )

    @cached_property
    def running(self) -> RunningJobs:
        """The running jobs."""
        m = self.resources.machine
        job = m.running[: m.counters[layout.RUNNING_COUNT]]
        job = job[np.lexsort((job, m.jobs["begun_ms"][job]))]
        gpus = np.zeros((len(job), len(m.free)), dtype=np.int64)
        for row, one in enumerate(job):
            places = slice(
                m.jobs["place_base"][one], m.jobs["place_base"][one] + m.jobs["place_count"][one]
            )
            if m.jobs["gpus"][one] > 0:
                gpus[row, m.places["node"][places]] = m.places["units"][places]
        ran_ms = m.counters[layout.NOW] - m.jobs["begun_ms"][job]
        return RunningJobs(
            job=job,
            gpus=gpus,
            num_gpus=m.jobs["gpus"][job],
            elapsed_s=ran_ms / 1000.0,
            estimate_s=m.jobs["estimate_ms"][job] / 1000.0,
            attained_gpu_s=(m.jobs["attained"][job] + ran_ms * m.jobs["gpus"][job]) / 1000.0,
            partner=m.jobs["partner"][job],
        )

    def fits(self, job: int) -> bool:
        """Whether the placement rule finds room for a waiting job now."""
        return self.places(job) is not None

    def places(self, job: int) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Nodes and GPUs (parts) on each that the placement rule would choose now, or None."""
        m, rule = self.resources.machine, self.resources.rule
        count = find_places(m, m.free, job, m.demand[job], rule, self.resources.seed)
        if count < 0:
            return None
        places = slice(m.jobs["place_base"][job], m.jobs["place_base"][job] + count)
        return m.places["node"][places].copy(), m.places["units"][places].copy()

    def kind_speed(self, job: int) -> NDArray[np.float64]:
        """Speed of the job's GPU stage on each GPU type, relative to the reference, (kinds,)."""
        return self.resources.machine.kind_speed[job]

    def stage_s(self, job: int) -> NDArray[np.float64]:
        """Stages of one iteration as requested: I/O, CPU, GPU, network, (4,), seconds."""
        return self.resources.machine.stage_s[job]

    def can_share(self, job: int, host: int) -> bool:
        """Whether a waiting job can run on a running job's GPUs: gang, types, and the rest."""
        m = self.resources.machine
        one, other = m.jobs[job], m.jobs[host]
        if one["units"] != other["units"] or m.demand[job, 0] != m.demand[host, 0]:
            return False
        places = m.places[other["place_base"] : other["place_base"] + other["place_count"]]
        need = m.demand[job] * places["units"][:, None]
        types = (one["kinds_ok"] >> m.nodes["kind"][places["node"]]) & 1
        return bool(types.all() and (need[:, 1:] <= m.free[places["node"], 1:]).all())

    def remaining_s(self, job: int) -> float:
        """True remaining work at the requested speed; for oracles only.

        Raises:
            PermissionError: The scheduler did not declare itself an oracle.
        """
        if not self._oracle:
            raise PermissionError("remaining_s is for schedulers with oracle = True")
        m = self.resources.machine
        left_ms = m.jobs["left_ms"][job]
        if m.jobs["status"][job] == layout.RUNNING:
            left_ms -= (m.counters[layout.NOW] - m.jobs["since_ms"][job]) * m.jobs["rate"][job]
        return float(max(left_ms, 0.0)) / 1000.0


class Draft:
    """A decision in the making: what would be free after preemptions and starts so far.

    Attributes:
        state: The state it starts from.
    """

    def __init__(self, state: SchedulerState) -> None:
        self.state = state
        self._free = state.resources.machine.free.copy()
        self._preempt: list[int] = []
        self._start: list[Start] = []

    def preempt(self, job: int) -> None:
        """Takes a running job's resources."""
        m = self.state.resources.machine
        take(m, self._free, job, m.held[job], -1)
        self._preempt.append(job)

    def start(self, job: int, *, kind: int | None = None, rule: str | None = None) -> bool:
        """Places a waiting or preempted job and takes its resources, if it fits.

        Args:
            job: Number of the job.
            kind: Only on nodes of this GPU type.
            rule: A placement rule; None is that of the simulation.
        """
        resources = self.state.resources
        m = resources.machine
        free = self._free
        if kind is not None:
            free = np.where((m.nodes["kind"] == kind)[:, None], free, 0)
        number = resources.rule if rule is None else layout.PLACEMENTS[rule]
        # The scratch places of a job that runs must survive.
        base, widest = m.jobs["place_base"][job], min(int(m.jobs["units"][job]), len(free))
        kept = m.places[base : base + widest].copy()
        count = find_places(m, free, job, m.demand[job], number, resources.seed)
        chosen = m.places[base : base + max(count, 0)].copy()
        m.places[base : base + widest] = kept
        if count < 0:
            return False
        for node, units in chosen:
            self._free[node] -= m.demand[job] * units
        self._start.append(Start(job, chosen["node"].tolist(), chosen["units"].tolist()))
        return True

    def start_on(self, job: int, nodes: Sequence[int], gpus: Sequence[int]) -> bool:
        """Places a waiting or preempted job on these nodes, if all of it fits there."""
        m = self.state.resources.machine
        for node, units in zip(nodes, gpus, strict=True):
            kinds_ok = m.jobs["kinds_ok"][job]
            if node_room(m, self._free, node, m.demand[job], kinds_ok, units) < units:
                return False
        for node, units in zip(nodes, gpus, strict=True):
            self._free[node] -= m.demand[job] * units
        self._start.append(Start(job, nodes, gpus))
        return True

    def decision(self, wake_s: float | None = None) -> Decision:
        """The decision as drafted."""
        return Decision(start=self._start, preempt=self._preempt, wake_s=wake_s)


@runtime_checkable
class Scheduler(Protocol):
    """A Python policy for `dtgym.simulator.cluster.simulate`.

    A scheduler has `decide(state)`, or, like any Method of `dtgym.baselines`, `act(view)`: called
    again and again at one decision until it lets time pass, it returns the position of a waiting
    job to start or `state.advance`. `reset(view)` is called before the first decision where it
    exists; `pairing` ("contending" or "interleaved") says how jobs that share GPUs slow each other;
    `oracle` opens `state.remaining_s`.
    """

    name: str


@dataclass(frozen=True, eq=False)
class EngineView:
    """View of a running simulation for methods (see `dtgym.baselines.method.View`).

    Attributes:
        state: Typed public state.
        action_mask: Legal actions: each waiting job that fits, and letting time pass.
        observation: None: features are the environment's business.
    """

    state: SchedulerState
    action_mask: NDArray[np.bool_]
    observation: Any = None
