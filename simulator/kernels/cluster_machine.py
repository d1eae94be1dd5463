"""What happens to the multi-resource cluster: speed, starting, stopping, time.

Everything that happens to a cluster with capacity vectors happens through these functions, whether
a compiled policy or a Python one decides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from dtgym.simulator.kernels.cluster_placement import take
from dtgym.simulator.kernels.cluster_state import (
    ARRIVED,
    CPU,
    DONE,
    EVENTS,
    GIVE,
    GPU,
    GPU_STAGE,
    INTERLEAVED,
    IO,
    LOG_PLACES,
    LOG_ROWS,
    NETWORK,
    NEVER,
    NOW,
    RELEASED,
    RUNNING,
    RUNNING_COUNT,
    SHARE_NETWORK,
    STALE,
    TAKE,
    WAITING,
    WAITING_COUNT,
)
from dtgym.simulator.kernels.job_speed import (
    combine_stages,
    cpu_stage_shape,
    interleaved_period,
    shared_gpu_speed,
)


@njit(cache=True, nogil=True)
def speed(m: Any, job: Any, pairing: Any) -> float:
    """Progress per time of a placed job, relative to its request alone on the reference GPU."""
    smaller = m.jobs[job].asked_units / m.jobs[job].units
    if not m.jobs[job].has_stages:
        return 1.0 / smaller
    io_s, cpu_s, gpu_s, net_s = (
        m.stage_s[job, 0],
        m.stage_s[job, 1],
        m.stage_s[job, 2],
        m.stage_s[job, 3],
    )
    asked_s = combine_stages(io_s, cpu_s, gpu_s, net_s, m.jobs[job].overlap)
    if asked_s <= 0:
        return 1.0
    slowest = np.inf
    reach = 1.0
    rack = np.int64(-1)
    far = False
    for place in range(m.jobs[job].place_base, m.jobs[job].place_base + m.jobs[job].place_count):
        node = m.places[place].node
        slowest = min(slowest, m.kind_speed[job, m.nodes[node].kind])
        if rack >= 0 and m.nodes[node].rack != rack:
            far = True
        rack = m.nodes[node].rack
        if (
            m.counters[SHARE_NETWORK]
            and m.jobs[job].place_count > 1
            and m.nodes[node].network_load > 0
        ):
            reach = min(reach, m.capacity[node, NETWORK] / m.nodes[node].network_load)
    net_s /= min(reach, 1.0)
    if m.jobs[job].place_count > 1:
        net_s *= m.jobs[job].cross_rack if far else m.jobs[job].cross_node
    if m.demand[job, CPU] > 0 and m.held[job, CPU] != m.demand[job, CPU]:
        squared, linear, constant = m.jobs[job].squared, m.jobs[job].linear, m.jobs[job].constant
        cpu_s *= cpu_stage_shape(m.held[job, CPU] / 1000.0, squared, linear, constant)
        cpu_s /= cpu_stage_shape(m.demand[job, CPU] / 1000.0, squared, linear, constant)
    if m.demand[job, IO] > 0:
        io_s *= m.demand[job, IO] / m.held[job, IO]
    if m.demand[job, NETWORK] > 0 and m.held[job, NETWORK] > 0:
        net_s *= m.demand[job, NETWORK] / m.held[job, NETWORK]
    gpu_s /= slowest
    if smaller != 1.0:
        # The same global batch on another gang: each GPU does more or less of it.
        io_s *= smaller
        cpu_s *= smaller
        gpu_s *= smaller
        if m.jobs[job].units == 1:
            net_s = 0.0
    given_s = combine_stages(io_s, cpu_s, gpu_s, net_s, m.jobs[job].overlap)
    other = m.jobs[job].partner
    if other >= 0:
        if pairing == INTERLEAVED:
            period = interleaved_period(m.stage_s[job], m.stage_s[other])
            alone_s = combine_stages(
                m.stage_s[job, 0], m.stage_s[job, 1], m.stage_s[job, 2], m.stage_s[job, 3], 0.0
            )
            given_s *= max(period / alone_s, 1.0)
        else:
            mine = m.stage_s[job, GPU_STAGE] / asked_s
            theirs = m.stage_s[other, GPU_STAGE] / combine_stages(
                m.stage_s[other, 0],
                m.stage_s[other, 1],
                m.stage_s[other, 2],
                m.stage_s[other, 3],
                m.jobs[other].overlap,
            )
            given_s /= shared_gpu_speed(mine + theirs, 0.0)
    return asked_s / given_s


@njit(cache=True, nogil=True)
def settle(m: Any, job: Any) -> None:
    """Brings a running job's remaining work up to now."""
    now = m.counters[NOW]
    m.jobs[job].left_ms = max(
        m.jobs[job].left_ms - (now - m.jobs[job].since_ms) * m.jobs[job].rate, 0.0
    )
    m.jobs[job].since_ms = now


@njit(cache=True, nogil=True)
def replan(m: Any, pairing: Any) -> None:
    """Sets speed and completion of running jobs whose speed may have changed in this instant."""
    for place in range(m.counters[RUNNING_COUNT]):
        job = m.running[place]
        if m.jobs[job].finish_ms == STALE:
            m.jobs[job].rate = speed(m, job, pairing)
            # A whole number of milliseconds up to rounding errors of the speed is that number.
            left_ms = np.int64(np.ceil(m.jobs[job].left_ms / m.jobs[job].rate - 1e-6))
            m.jobs[job].finish_ms = m.counters[NOW] + left_ms


@njit(cache=True, nogil=True)
def _load_network(m: Any, job: Any, sign: Any) -> None:
    """Adds or removes a gang's traffic where it spans nodes, which touches all that do."""
    if m.counters[SHARE_NETWORK] == 0 or m.jobs[job].place_count < 2:
        return
    base = m.jobs[job].place_base
    for place in range(base, base + m.jobs[job].place_count):
        load = m.jobs[job].traffic * m.places[place].units
        m.nodes[m.places[place].node].network_load += sign * load
    for place in range(m.counters[RUNNING_COUNT]):
        other = m.running[place]
        if m.jobs[other].place_count > 1 and m.jobs[other].has_stages > 0:
            settle(m, other)
            m.jobs[other].finish_ms = STALE


@njit(cache=True, nogil=True)
def _log(m: Any, job: Any) -> None:
    """Logs a settled running job's stretch up to now; jobs that share GPUs hold half of them."""
    row = m.counters[LOG_ROWS]
    m.log_row[row, 0] = job
    m.log_row[row, 1] = m.jobs[job].logged_ms
    m.log_row[row, 2] = m.counters[NOW]
    m.log_row[row, 3] = m.jobs[job].place_count
    for r in range(5):
        m.log_row[row, 4 + r] = m.held[job, r]
    if m.jobs[job].partner >= 0:
        m.log_row[row, 4 + GPU] //= 2
    m.log_work_ms[row] = m.jobs[job].logged_left_ms - m.jobs[job].left_ms
    for place in range(m.jobs[job].place_base, m.jobs[job].place_base + m.jobs[job].place_count):
        m.log_places[m.counters[LOG_PLACES]].node = m.places[place].node
        m.log_places[m.counters[LOG_PLACES]].units = m.places[place].units
        m.counters[LOG_PLACES] += 1
    m.counters[LOG_ROWS] += 1
    m.jobs[job].logged_ms = m.counters[NOW]
    m.jobs[job].logged_left_ms = m.jobs[job].left_ms


@njit(cache=True, nogil=True)
def start(m: Any, job: Any, host: Any) -> None:
    """Starts a waiting job at its places; with `host` >= 0 on the GPUs of that running job."""
    now = m.counters[NOW]
    spot = m.jobs[job].spot
    m.counters[WAITING_COUNT] -= 1
    for place in range(spot, m.counters[WAITING_COUNT]):
        m.waiting[place] = m.waiting[place + 1]
        m.jobs[m.waiting[place]].spot = place
    m.jobs[job].spot = m.counters[RUNNING_COUNT]
    m.running[m.counters[RUNNING_COUNT]] = job
    m.counters[RUNNING_COUNT] += 1
    m.jobs[job].status = RUNNING
    m.jobs[job].waited_ms += now - m.jobs[job].idle_ms
    if m.jobs[job].first_ms < 0:
        m.jobs[job].first_ms = now
    m.jobs[job].begun_ms = now
    m.jobs[job].logged_ms = now
    m.jobs[job].logged_left_ms = m.jobs[job].left_ms
    m.jobs[job].since_ms = now
    take(m, m.free, job, m.held[job], TAKE)
    m.jobs[job].partner = host
    if host >= 0:
        settle(m, host)
        _log(m, host)
        m.jobs[host].partner = job
        for place in range(
            m.jobs[job].place_base, m.jobs[job].place_base + m.jobs[job].place_count
        ):
            m.free[m.places[place].node, GPU] += m.held[job, GPU] * m.places[place].units
        m.jobs[host].finish_ms = STALE
    m.jobs[job].finish_ms = STALE
    _load_network(m, job, TAKE)


@njit(cache=True, nogil=True)
def _leave(m: Any, job: Any) -> None:
    """Takes a settled running job off its places; a partner keeps the GPUs."""
    _log(m, job)
    other = m.jobs[job].partner
    take(m, m.free, job, m.held[job], GIVE)
    m.counters[RELEASED] += 1
    if other >= 0:
        settle(m, other)
        _log(m, other)
        for place in range(
            m.jobs[job].place_base, m.jobs[job].place_base + m.jobs[job].place_count
        ):
            m.free[m.places[place].node, GPU] -= m.held[job, GPU] * m.places[place].units
        m.jobs[other].partner = -1
        m.jobs[job].partner = -1
        m.jobs[other].finish_ms = STALE
    spot = m.jobs[job].spot
    m.counters[RUNNING_COUNT] -= 1
    last = m.running[m.counters[RUNNING_COUNT]]
    m.running[spot] = last
    m.jobs[last].spot = spot
    m.jobs[job].attained += (m.counters[NOW] - m.jobs[job].begun_ms) * m.jobs[job].gpus
    _load_network(m, job, GIVE)


@njit(cache=True, nogil=True)
def complete(m: Any, job: Any) -> None:
    """Ends a job at its completion."""
    m.jobs[job].left_ms = 0.0
    m.jobs[job].since_ms = m.counters[NOW]
    _leave(m, job)
    m.jobs[job].finish_ms = m.counters[NOW]
    m.jobs[job].status = DONE
    m.counters[EVENTS] += 1


@njit(cache=True, nogil=True)
def enqueue(m: Any, job: Any) -> None:
    """Puts a job among the waiting ones, in the order of `rank`."""
    spot = m.counters[WAITING_COUNT]
    while spot > 0 and m.jobs[m.waiting[spot - 1]].rank > m.jobs[job].rank:
        m.waiting[spot] = m.waiting[spot - 1]
        m.jobs[m.waiting[spot]].spot = spot
        spot -= 1
    m.waiting[spot] = job
    m.jobs[job].spot = spot
    m.jobs[job].status = WAITING
    m.counters[WAITING_COUNT] += 1


@njit(cache=True, nogil=True)
def preempt(m: Any, job: Any) -> None:
    """Takes a running job's resources; it waits again, behind those ranked before it."""
    settle(m, job)
    _leave(m, job)
    m.jobs[job].left_ms += m.jobs[job].cost_ms
    m.jobs[job].finish_ms = NEVER
    m.jobs[job].preemptions += 1
    m.jobs[job].idle_ms = m.counters[NOW]
    enqueue(m, job)


@njit(cache=True, nogil=True)
def next_instant(m: Any) -> Any:
    """The next completion or arrival; NEVER if there is none."""
    when = NEVER
    for place in range(m.counters[RUNNING_COUNT]):
        when = min(when, m.jobs[m.running[place]].finish_ms)
    if m.counters[ARRIVED] < m.jobs.shape[0]:
        when = min(when, m.jobs[m.counters[ARRIVED]].submit_ms)
    return when


@njit(cache=True, nogil=True)
def advance(m: Any, when: Any) -> None:
    """Goes to an instant not after `next_instant`: completions first, then arrivals."""
    m.counters[NOW] = when
    place = 0
    while place < m.counters[RUNNING_COUNT]:
        job = m.running[place]
        if m.jobs[job].finish_ms == when:
            complete(m, job)
        else:
            place += 1
    while m.counters[ARRIVED] < m.jobs.shape[0] and (m.jobs[m.counters[ARRIVED]].submit_ms == when):
        job = m.counters[ARRIVED]
        m.counters[ARRIVED] += 1
        m.counters[EVENTS] += 1
        m.jobs[job].idle_ms = when
        enqueue(m, job)


@njit(cache=True, nogil=True)
def log_has_room(m: Any) -> bool:
    """Whether the log holds whatever the next instant can bring.

    A job that shares GPUs logs its partner's stretch too, when it comes and when it goes, so that
    each active or arriving job can add three rows: its own, and two of partners, which are as wide.
    """
    jobs = m.jobs.shape[0]
    active = m.counters[RUNNING_COUNT] + m.counters[WAITING_COUNT]
    arriving = 0
    places = np.int64(0)
    for place in range(m.counters[RUNNING_COUNT]):
        places += _width(m, m.running[place])
    for place in range(m.counters[WAITING_COUNT]):
        places += _width(m, m.waiting[place])
    for job in range(m.counters[ARRIVED], jobs):
        if m.jobs[job].submit_ms != m.jobs[m.counters[ARRIVED]].submit_ms:
            break
        places += _width(m, job)
        arriving += 1
    return (
        m.counters[LOG_ROWS] + 3 * (active + arriving) <= m.log_row.shape[0]
        and m.counters[LOG_PLACES] + 3 * places <= m.log_places.shape[0]
    )


@njit(cache=True, nogil=True)
def _width(m: Any, job: Any) -> int:
    """Most nodes that a job can be on."""
    after = m.places.shape[0] if job + 1 == m.jobs.shape[0] else m.jobs[job + 1].place_base
    return after - m.jobs[job].place_base
