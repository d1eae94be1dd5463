"""The multi-resource cluster as arrays: room, placement, starting, stopping, speed.

Everything that happens to a cluster with capacity vectors happens through these functions, whether
a compiled policy or a Python one decides. Amounts are int64 (GPUs and cores in thousandths, bytes,
bytes/s), so that an empty node is exactly empty; times are int64 milliseconds; remaining work is
float64 milliseconds at speed 1, exact while jobs run at their stated durations.

A job is `units` equal parts (GPUs; a job without GPUs is one part), each with the same demand.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from dtgym.simulator.kernels.job_speed import (
    combine_stages,
    cpu_stage_shape,
    interleaved_period,
    shared_gpu_speed,
)

NEVER = np.int64(2**62)
STALE = np.int64(-1)
TAKE, GIVE = np.int64(1), np.int64(-1)
# Typed constants: a literal would compile every function it is passed to once more.
NOBODY = np.int64(-1)
FUTURE, WAITING, RUNNING, DONE = 0, 1, 2, 3
GPU, CPU, MEMORY, IO, NETWORK = 0, 1, 2, 3, 4

CONSOLIDATE = 1
BEST_FIT = 2
WORST_FIT = 3
FIRST_FIT = 4
SPREAD = 5
RANDOM_FIT = 6
ALIGNED = 7
LEAST_FRAGMENTATION = 8
PLACEMENTS = {
    "consolidate": CONSOLIDATE,
    "best_fit": BEST_FIT,
    "worst_fit": WORST_FIT,
    "first_fit": FIRST_FIT,
    "spread": SPREAD,
    "random_fit": RANDOM_FIT,
    "aligned": ALIGNED,
    "fgd": LEAST_FRAGMENTATION,
}

CONTENDING = 0
INTERLEAVED = 1


JOB = np.dtype(
    [
        # Read-only.
        ("submit_ms", np.int64),
        ("work_ms", np.int64),  # at speed 1
        ("asked_units", np.int64),  # parts as requested
        ("kinds_ok", np.int64),  # bit k: GPU type k will do
        ("shape", np.int64),  # jobs with equal parts, demand and types share a number
        ("rank", np.int64),  # waiting order
        ("traffic", np.int64),  # network of one part
        ("estimate_ms", np.int64),
        ("cost_ms", np.int64),  # work added by a preemption
        ("place_base", np.int64),  # first of its places
        ("has_stages", np.int64),  # whether the speed model applies
        ("overlap", np.float64),
        ("squared", np.float64),  # CPU curve
        ("linear", np.float64),
        ("constant", np.float64),
        ("cross_node", np.float64),  # factor on the network stage across nodes
        ("cross_rack", np.float64),  # and across racks
        # State.
        ("status", np.int64),
        ("gpus", np.int64),  # of the gang; a Python policy may start a job on fewer or more
        ("units", np.int64),  # parts: GPUs, at least 1
        ("left_ms", np.float64),
        ("rate", np.float64),
        ("since_ms", np.int64),  # when left_ms was true
        ("finish_ms", np.int64),  # planned; NEVER unless running
        ("begun_ms", np.int64),  # of the present stretch
        ("idle_ms", np.int64),  # since when it waits
        ("first_ms", np.int64),  # first start
        ("attained", np.int64),  # GPU-ms before the present stretch
        ("waited_ms", np.int64),
        ("preemptions", np.int64),
        ("partner", np.int64),  # job on the same GPUs, -1
        ("place_count", np.int64),
        ("spot", np.int64),  # in the list of running or waiting jobs
        ("logged_ms", np.int64),  # since when the present stretch is not in the log
        ("logged_left_ms", np.float64),  # remaining work at that time
    ],
    align=True,
)
NODE = np.dtype(
    [
        ("kind", np.int64),  # GPU type
        ("rack", np.int64),
        ("network_load", np.int64),  # bytes/s asked by gangs that span nodes
        ("room", np.int64),  # scratch
        ("taken", np.int64),  # scratch
    ],
    align=True,
)
PLACE = np.dtype([("node", np.int64), ("units", np.int64)], align=True)
CLASS = np.dtype([("units", np.int64), ("share", np.float64)], align=True)


class Machine(NamedTuple):
    """Cluster and jobs; J jobs in the order (submission, id), N nodes, R = 5 resources.

    Records instead of an array per field: compiled functions pass every array of the machine on,
    and dozens of them would triple the time to compile.
    """

    capacity: Any  # (N, R)
    demand: Any  # (J, R) of one part, as requested; no network where that is shared
    stage_s: Any  # (J, 4)
    kind_speed: Any  # (J, K) of the GPU stage
    classes: Any  # (C,) the workload's typical jobs: parts, how frequent
    class_demand: Any  # (C, R) of one part
    jobs: Any  # (J,)
    nodes: Any  # (N,)
    free: Any  # (N, R)
    held: Any  # (J, R) of one part, as given
    places: Any  # of all jobs
    running: Any  # (J,) list
    waiting: Any  # (J,) list, in order of rank
    counters: Any  # see below
    log_row: Any  # (rows, 9) job, begin, end, places, then what one part held
    log_work_ms: Any  # (rows,) work done
    log_places: Any  # of the rows, end to end


ARRIVED, RUNNING_COUNT, WAITING_COUNT, EVENTS, RELEASED, LOG_ROWS, LOG_PLACES = 0, 1, 2, 3, 4, 5, 6
NOW, SHARE_NETWORK = 7, 8
COUNTERS = 9
"""Counters of a machine, the clock in ms, and whether the network is shared."""


@njit(cache=True, nogil=True)
def mix(x: Any) -> Any:
    """SplitMix64: a well-mixed 64-bit number from another."""
    x = np.uint64(x) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True)
def node_room(m: Any, free: Any, node: int, demand: Any, kinds_ok: int, most: int) -> int:
    """Parts of a job that a node has room for, at most `most`."""
    if not (kinds_ok >> m.nodes[node].kind) & 1:
        return 0
    room = most
    for r in range(5):
        if demand[r] > 0:
            fits = free[node, r] // demand[r]
            if fits < room:
                room = fits
    return max(room, 0)


@njit(cache=True, nogil=True)
def _fragmentation(m: Any, free: Any, node: int) -> float:
    """Free GPUs of a node that the workload's typical jobs cannot use, expected over them."""
    lost = 0.0
    for c in range(m.classes.shape[0]):
        if m.class_demand[c, GPU] == 0:
            continue
        largest = m.capacity[node, GPU] // m.class_demand[c, GPU]
        wanted = min(m.classes[c].units, largest)
        if wanted == 0:
            continue
        room = node_room(m, free, node, m.class_demand[c], -1, wanted)
        if room < wanted:
            lost += m.classes[c].share * free[node, GPU]
    return lost


@njit(cache=True, nogil=True)
def _score(
    m: Any, free: Any, node: int, job: int, demand: Any, parts: int, rule: int, seed: int
) -> float:
    """Which node a rule likes: the lowest score first, the lowest node on a tie."""
    if rule == FIRST_FIT:
        return 0.0
    if rule == WORST_FIT:
        return -float(free[node, GPU])
    if rule == RANDOM_FIT:
        return float(mix(mix(np.uint64(seed) + np.uint64(job)) + np.uint64(node)) >> np.uint64(12))
    if rule == ALIGNED:
        dot = 0.0
        for r in range(5):
            if m.capacity[node, r] > 0:
                dot += (demand[r] / m.capacity[node, r]) * (free[node, r] / m.capacity[node, r])
        return -dot
    if rule == LEAST_FRAGMENTATION:
        before = _fragmentation(m, free, node)
        for r in range(5):
            free[node, r] -= demand[r] * parts
        after = _fragmentation(m, free, node)
        for r in range(5):
            free[node, r] += demand[r] * parts
        return after - before
    return float(free[node, GPU])


@njit(cache=True, nogil=True)
def find_places(m: Any, free: Any, job: int, demand: Any, rule: int, seed: int) -> int:
    """Chooses nodes for all parts of a job out of `free`, without taking anything.

    They are written to `m.places` from the job's `place_base` on.

    Args:
        m: The machine.
        free: What may be used, (N, R); left as it was.
        job: The job.
        demand: Of one part, (R,).
        rule: A value of `PLACEMENTS`.
        seed: Of RANDOM_FIT.

    Returns:
        Number of nodes; -1 where the job does not fit.
    """
    nodes = m.nodes
    units = m.jobs[job].units
    base = m.jobs[job].place_base
    total = 0
    for node in range(free.shape[0]):
        nodes[node].room = node_room(m, free, node, demand, m.jobs[job].kinds_ok, units)
        nodes[node].taken = 0
        total += nodes[node].room
    if total < units:
        return -1
    if rule == SPREAD:
        for _ in range(units):
            widest = -1
            most = np.int64(-1)
            for node in range(free.shape[0]):
                left = free[node, GPU] - nodes[node].taken * demand[GPU]
                if nodes[node].room > nodes[node].taken and left > most:
                    widest = node
                    most = left
            nodes[widest].taken += 1
        used = 0
        for node in range(free.shape[0]):
            if nodes[node].taken > 0:
                m.places[base + used].node = node
                m.places[base + used].units = nodes[node].taken
                used += 1
        return used
    chosen = -1
    best = np.inf
    for node in range(free.shape[0]):
        if nodes[node].room == units:
            score = _score(m, free, node, job, demand, units, rule, seed)
            if score < best:
                best = score
                chosen = node
    if chosen >= 0:
        m.places[base].node = chosen
        m.places[base].units = units
        return 1
    largest = 0
    if rule == CONSOLIDATE:
        for node in range(free.shape[0]):
            if (m.jobs[job].kinds_ok >> m.nodes[node].kind) & 1:
                size = units
                if demand[GPU] > 0:
                    size = m.capacity[node, GPU] // demand[GPU]
                largest = max(largest, size)
        if units <= largest:
            return -1
    used = 0
    missing = units
    while missing > 0:
        chosen = -1
        last = False
        if rule == CONSOLIDATE:
            biggest = 0
            for node in range(free.shape[0]):
                if (
                    nodes[node].taken == 0
                    and nodes[node].room > 0
                    and free[node, GPU] == m.capacity[node, GPU]
                ):
                    size = m.capacity[node, GPU] // max(demand[GPU], 1)
                    if size == min(nodes[node].room, size) and biggest < size <= missing:
                        biggest = size
                        chosen = node
            last = chosen < 0
        else:
            best = np.inf
            for node in range(free.shape[0]):
                if nodes[node].taken == 0 and nodes[node].room > 0:
                    # Whoever gives most parts keeps the gang together.
                    score = float(node) if rule == FIRST_FIT else -float(nodes[node].room)
                    if rule in (WORST_FIT, BEST_FIT):
                        score = -float(free[node, GPU])
                    if score < best:
                        best = score
                        chosen = node
            if chosen < 0:
                return -1
            last = rule == BEST_FIT and nodes[chosen].room >= missing
        if last:
            chosen = -1
            for node in range(free.shape[0]):
                if (
                    nodes[node].taken == 0
                    and nodes[node].room >= missing
                    and (chosen < 0 or free[node, GPU] < free[chosen, GPU])
                ):
                    chosen = node
            if chosen < 0:
                return -1
        part = min(missing, nodes[chosen].room)
        nodes[chosen].taken = part
        m.places[base + used].node = chosen
        m.places[base + used].units = part
        used += 1
        missing -= part
    return used


@njit(cache=True, nogil=True)
def take(m: Any, free: Any, job: int, demand: Any, sign: int) -> None:
    """Takes (sign TAKE) or gives back (GIVE) a job's parts at its places."""
    for place in range(m.jobs[job].place_base, m.jobs[job].place_base + m.jobs[job].place_count):
        for r in range(5):
            free[m.places[place].node, r] -= sign * demand[r] * m.places[place].units


@njit(cache=True, nogil=True)
def speed(m: Any, job: int, pairing: int) -> float:
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


GPU_STAGE = 2


@njit(cache=True, nogil=True)
def settle(m: Any, job: int) -> None:
    """Brings a running job's remaining work up to now."""
    now = m.counters[NOW]
    m.jobs[job].left_ms = max(
        m.jobs[job].left_ms - (now - m.jobs[job].since_ms) * m.jobs[job].rate, 0.0
    )
    m.jobs[job].since_ms = now


@njit(cache=True, nogil=True)
def replan(m: Any, pairing: int) -> None:
    """Sets speed and completion of running jobs whose speed may have changed in this instant."""
    for place in range(m.counters[RUNNING_COUNT]):
        job = m.running[place]
        if m.jobs[job].finish_ms == STALE:
            m.jobs[job].rate = speed(m, job, pairing)
            # A whole number of milliseconds up to rounding errors of the speed is that number.
            left_ms = np.int64(np.ceil(m.jobs[job].left_ms / m.jobs[job].rate - 1e-6))
            m.jobs[job].finish_ms = m.counters[NOW] + left_ms


@njit(cache=True, nogil=True)
def _load_network(m: Any, job: int, sign: int) -> None:
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
def _log(m: Any, job: int) -> None:
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
def start(m: Any, job: int, host: int) -> None:
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
def _leave(m: Any, job: int) -> None:
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
def complete(m: Any, job: int) -> None:
    """Ends a job at its completion."""
    m.jobs[job].left_ms = 0.0
    m.jobs[job].since_ms = m.counters[NOW]
    _leave(m, job)
    m.jobs[job].finish_ms = m.counters[NOW]
    m.jobs[job].status = DONE
    m.counters[EVENTS] += 1


@njit(cache=True, nogil=True)
def enqueue(m: Any, job: int) -> None:
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
def preempt(m: Any, job: int) -> None:
    """Takes a running job's resources; it waits again, behind those ranked before it."""
    settle(m, job)
    _leave(m, job)
    m.jobs[job].left_ms += m.jobs[job].cost_ms
    m.jobs[job].finish_ms = NEVER
    m.jobs[job].preemptions += 1
    m.jobs[job].idle_ms = m.counters[NOW]
    enqueue(m, job)


@njit(cache=True, nogil=True)
def next_instant(m: Any) -> int:
    """The next completion or arrival; NEVER if there is none."""
    when = NEVER
    for place in range(m.counters[RUNNING_COUNT]):
        when = min(when, m.jobs[m.running[place]].finish_ms)
    if m.counters[ARRIVED] < m.jobs.shape[0]:
        when = min(when, m.jobs[m.counters[ARRIVED]].submit_ms)
    return when


@njit(cache=True, nogil=True)
def advance(m: Any, when: int) -> None:
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
    """Whether all running jobs can leave without a larger log."""
    running = m.counters[RUNNING_COUNT] + m.counters[WAITING_COUNT] + 1
    places = m.counters[LOG_PLACES]
    for place in range(m.counters[RUNNING_COUNT]):
        places += m.jobs[m.running[place]].place_count
    return m.counters[LOG_ROWS] + running <= m.log_row.shape[0] and places <= m.log_places.shape[0]
