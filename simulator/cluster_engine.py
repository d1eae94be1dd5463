"""The slow path: the same machine, with a Python scheduler deciding at every event.

All resources move through the kernels' own functions, so a Python policy that decides as a compiled
one does gives the same schedule to the millisecond.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from dtgym.simulator.cluster_resources import Resources
from dtgym.simulator.errors import InvalidInput, one_of
from dtgym.simulator.jobs import milliseconds
from dtgym.simulator.kernels import cluster_machine as kernel
from dtgym.simulator.kernels import cluster_state as layout
from dtgym.simulator.kernels.cluster_placement import find_places, node_room
from dtgym.simulator.outcome import Outcome
from dtgym.simulator.scheduling import Decision, EngineView, SchedulerState, Start

PAIRINGS = {"contending": layout.CONTENDING, "interleaved": layout.INTERLEAVED}
MOST_IDLE_WAKES = 1000
"""Decisions that a policy may ask for in a row on an idle cluster without starting anything."""
SHARES = ((layout.CPU, "cpu"), (layout.IO, "io"), (layout.NETWORK, "network"))


def run(resources: Resources, policy: Any, *, interval_ms: int = 0) -> Outcome:
    """Runs a machine to the end under a Python policy.

    Args:
        resources: The machine before its first event; it is used up.
        policy: The scheduler; see `dtgym.simulator.scheduling.Scheduler`.
        interval_ms: Decide only at multiples of this; 0 decides at every event.

    Raises:
        InvalidInput: The policy has neither `decide` nor `act`, decides something impossible, or
            leaves jobs waiting for ever on an idle cluster.
    """
    name = getattr(policy, "name", type(policy).__name__)
    if not (hasattr(policy, "decide") or hasattr(policy, "act")):
        raise InvalidInput(f"policy {name} must have a method decide(state) or act(view)")
    oracle = bool(getattr(policy, "oracle", False))
    pairing = PAIRINGS[one_of("pairing", getattr(policy, "pairing", "contending"), tuple(PAIRINGS))]
    resources.with_rank(None)
    if hasattr(policy, "reset"):
        policy.reset(_view(SchedulerState(resources, oracle=oracle)))
    decision_s: list[float] = []
    wake_ms = layout.NEVER
    starved = 0
    while True:
        m = resources.machine
        kernel.replan(m, pairing)
        if not kernel.log_has_room(m):
            resources.grow_log()
            continue
        now = int(m.counters[layout.NOW])
        waits = int(m.counters[layout.WAITING_COUNT])
        event = int(kernel.next_instant(m))
        when = min(event, int(wake_ms)) if waits or m.counters[layout.RUNNING_COUNT] else event
        if interval_ms and waits:
            when = min(when, (now // interval_ms + 1) * interval_ms)
        if when == layout.NEVER:
            if waits:
                raise InvalidInput(
                    f"policy {name} leaves {waits} jobs waiting for ever on an idle cluster"
                )
            return resources.outcome(name, decision_s)
        idle = event == layout.NEVER
        kernel.advance(m, when)
        if interval_ms and when % interval_ms:
            continue
        active = m.counters[layout.WAITING_COUNT] + m.counters[layout.RUNNING_COUNT]
        if active == 0:
            continue
        begun_s = time.perf_counter()
        if hasattr(policy, "decide"):
            decision = policy.decide(SchedulerState(resources, oracle=oracle))
            decision_s.append(time.perf_counter() - begun_s)
            _apply(resources, decision, name)
        else:
            decision = Decision()
            _act(resources, policy, name, oracle)
            decision_s.append(time.perf_counter() - begun_s)
        wake_ms = layout.NEVER
        if decision.wake_s is not None:
            wake_ms = int(milliseconds(decision.wake_s))
            if wake_ms <= when:
                raise InvalidInput(
                    f"policy {name}: wake_s must lie after now, {when / 1000:g} s, "
                    f"got {decision.wake_s:g} s"
                )
        starved = starved + 1 if idle and m.counters[layout.RUNNING_COUNT] == 0 else 0
        if starved and (wake_ms == layout.NEVER or starved > MOST_IDLE_WAKES):
            raise InvalidInput(
                f"policy {name} leaves {m.counters[layout.WAITING_COUNT]} jobs waiting for ever "
                "on an idle cluster"
            )


def _view(state: SchedulerState) -> EngineView:
    startable = state.waiting.startable
    return EngineView(state=state, action_mask=np.append(startable, True))


def _act(resources: Resources, policy: Any, name: str, oracle: bool) -> None:
    """Asks a method again and again until it lets time pass."""
    while True:
        state = SchedulerState(resources, oracle=oracle)
        view = _view(state)
        action = int(policy.act(view))
        if action == state.advance:
            return
        if not (0 <= action < len(view.action_mask)) or not view.action_mask[action]:
            raise InvalidInput(
                f"policy {name}: action {action} is not legal at {state.now_s:g} s; "
                "choose a waiting job that fits, or state.advance"
            )
        _apply(resources, Decision(start=(Start(int(state.waiting.job[action])),)), name)


def _apply(resources: Resources, decision: Decision, name: str) -> None:
    m = resources.machine
    now_s = m.counters[layout.NOW] / 1000
    for job in decision.preempt:
        if not (0 <= job < len(m.jobs["status"])) or m.jobs["status"][job] != layout.RUNNING:
            raise InvalidInput(f"policy {name}: job {job} does not run at {now_s:g} s")
        kernel.preempt(m, int(job))
    for start in decision.start:
        job = int(start.job)
        if decision.alternatives and m.jobs["status"][job] == layout.RUNNING:
            continue
        if not (0 <= job < len(m.jobs["status"])) or m.jobs["status"][job] != layout.WAITING:
            raise InvalidInput(f"policy {name}: job {job} does not wait at {now_s:g} s")
        m.held[job] = m.demand[job]
        for r, field in SHARES:
            share = getattr(start, field)
            if not share > 0:
                raise InvalidInput(f"policy {name}: Start.{field} must be above 0, got {share}")
            if share != 1.0 and m.demand[job, r] > 0:
                m.held[job, r] = max(int(m.demand[job, r] * share), 1)
        if start.host >= 0:
            _beside(m, job, start.host, name)
        elif start.nodes is not None:
            _on_nodes(resources, start, name)
        else:
            _resize(m, job, int(m.jobs["asked_units"][job]))
            count = find_places(
                m, m.free, job, m.held[job], resources.rule, resources.seed)  # fmt: skip
            if count < 0 and decision.in_order:
                return
            if count < 0:
                continue
            m.jobs["place_count"][job] = count
        kernel.start(m, job, start.host)


def _resize(m: layout.Machine, job: int, units: int) -> None:
    m.jobs["units"][job] = units
    if m.jobs["gpus"][job] > 0:
        m.jobs["gpus"][job] = units


def _on_nodes(resources: Resources, start: Start, name: str) -> None:
    """Checks and sets places that the policy chose itself."""
    m, job = resources.machine, int(start.job)
    nodes = [int(node) for node in start.nodes or ()]
    parts = [int(part) for part in start.gpus or ()]
    where = f"policy {name}: Start of job {job}"
    if len(nodes) != len(parts) or len(set(nodes)) != len(nodes) or not nodes:
        raise InvalidInput(f"{where}: nodes and gpus must be equally long, nodes distinct")
    if min(parts) < 1 or min(nodes) < 0 or max(nodes) >= len(m.free):
        raise InvalidInput(f"{where}: at least 1 GPU on nodes 0 to {len(m.free) - 1}")
    units = sum(parts)
    table, row = resources.jobs, resources.row[job]
    asked = int(m.jobs["asked_units"][job])
    least = asked if table.min_gpus is None else int(table.min_gpus[row])
    most = asked if table.max_gpus is None else int(table.max_gpus[row])
    if units != asked and not least <= units <= most:
        raise InvalidInput(f"{where}: {units} GPUs, but the job takes {least} to {most}")
    for node, part in zip(nodes, parts, strict=True):
        if node_room(m, m.free, node, m.held[job], m.jobs["kinds_ok"][job], part) < part:
            raise InvalidInput(f"{where}: node {node} has no room for {part} GPUs of it")
    _resize(m, job, units)
    base = m.jobs["place_base"][job]
    m.places["node"][base : base + len(nodes)] = nodes
    m.places["units"][base : base + len(nodes)] = parts
    m.jobs["place_count"][job] = len(nodes)


def _beside(m: layout.Machine, job: int, host: int, name: str) -> None:
    """Checks and sets places on the GPUs of a running job."""
    where = f"policy {name}: Start of job {job} beside job {host}"
    if (
        host >= len(m.jobs["status"])
        or m.jobs["status"][host] != layout.RUNNING
        or m.jobs["partner"][host] >= 0
    ):
        raise InvalidInput(f"{where}: the host must run and share with nobody yet")
    _resize(m, job, int(m.jobs["asked_units"][job]))
    if m.jobs["units"][job] != m.jobs["units"][host] or m.demand[job, 0] != m.demand[host, 0]:
        raise InvalidInput(f"{where}: both must have the same gang")
    for place in range(m.jobs["place_count"][host]):
        at, to = m.jobs["place_base"][host] + place, m.jobs["place_base"][job] + place
        node, parts = m.places["node"][at], m.places["units"][at]
        without_gpu = m.held[job].copy()
        without_gpu[layout.GPU] = 0
        if (
            node_room(m, m.free, int(node), without_gpu, m.jobs["kinds_ok"][job], int(parts))
            < parts
        ):
            raise InvalidInput(f"{where}: node {node} lacks CPU, memory, I/O or network, or type")
        m.places["node"][to], m.places["units"][to] = node, parts
    m.jobs["place_count"][job] = m.jobs["place_count"][host]
