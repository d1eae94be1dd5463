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


class Machine(NamedTuple):
    """Cluster and jobs; J jobs in the order (submission, id), N nodes, R = 5 resources.

    The first block is read-only; the second changes.
    """

    capacity: Any  # (N, R)
    kind: Any  # (N,) GPU type
    rack: Any  # (N,)
    submit_ms: Any  # (J,)
    work_ms: Any  # (J,) at speed 1
    asked_units: Any  # (J,) parts as requested
    demand: Any  # (J, R) of one part, as requested; no network where that is shared
    traffic: Any  # (J,) network of one part
    kinds_ok: Any  # (J,) bit k: GPU type k will do
    shape: Any  # (J,) jobs with equal parts, demand and types share a number
    rank: Any  # (J,) waiting order
    estimate_ms: Any  # (J,)
    cost_ms: Any  # (J,) work added by a preemption
    has_stages: Any  # (J,) whether the speed model applies
    stage_s: Any  # (J, 4)
    overlap: Any  # (J,)
    cpu_curve: Any  # (J, 3)
    kind_speed: Any  # (J, K) of the GPU stage
    cross_node: Any  # (J, 2) factor on the network stage across nodes, across racks
    share_network: Any  # (1,) whether the network is shared fairly instead of reserved
    class_demand: Any  # (C, R) of one part of the workload's typical jobs
    class_units: Any  # (C,)
    class_share: Any  # (C,) how frequent
    place_base: Any  # (J,) first place of each job

    now: Any  # (1,)
    counters: Any  # (8,) see the constants below
    free: Any  # (N, R)
    network_load: Any  # (N,) bytes/s asked by gangs that span nodes
    status: Any  # (J,)
    gpus: Any  # (J,) GPUs of the gang; a Python policy may start a job on fewer or more
    units: Any  # (J,) parts: GPUs, at least 1
    held: Any  # (J, R) of one part, as given
    left_ms: Any  # (J,)
    rate: Any  # (J,)
    since_ms: Any  # (J,) when left_ms was true
    finish_ms: Any  # (J,) planned, NEVER unless running
    begun_ms: Any  # (J,) of the present stretch
    idle_ms: Any  # (J,) since when it waits
    first_ms: Any  # (J,) first start
    attained: Any  # (J,) GPU-ms before the present stretch
    waited_ms: Any  # (J,)
    preemptions: Any  # (J,)
    partner: Any  # (J,) job on the same GPUs, -1
    place_count: Any  # (J,)
    place_node: Any
    place_units: Any  # parts on each node
    running: Any  # (J,) list
    spot: Any  # (J,) place in `running` or `waiting`
    waiting: Any  # (J,) list, in the policy's order
    logged_ms: Any  # (J,) since when the present stretch is not in the log
    logged_left_ms: Any  # (J,) remaining work at that time
    room: Any  # (N,) scratch
    taken: Any  # (N,) scratch
    log_row: Any  # (rows, 9) job, begin, end, places, then what one part held
    log_work_ms: Any  # (rows,) work done
    log_node: Any  # places of the rows, end to end
    log_units: Any


ARRIVED, RUNNING_COUNT, WAITING_COUNT, EVENTS, RELEASED, LOG_ROWS, LOG_PLACES = 0, 1, 2, 3, 4, 5, 6
"""Counters of a machine."""


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
    if not (kinds_ok >> m.kind[node]) & 1:
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
    for c in range(m.class_units.shape[0]):
        if m.class_demand[c, GPU] == 0:
            continue
        largest = m.capacity[node, GPU] // m.class_demand[c, GPU]
        wanted = min(m.class_units[c], largest)
        if wanted == 0:
            continue
        room = node_room(m, free, node, m.class_demand[c], -1, wanted)
        if room < wanted:
            lost += m.class_share[c] * free[node, GPU]
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
def find_places(
    m: Any, free: Any, job: int, demand: Any, rule: int, seed: int, out_node: Any, out_units: Any
) -> int:
    """Chooses nodes for all parts of a job out of `free`, without taking anything.

    Args:
        m: The machine.
        free: What may be used, (N, R); left as it was.
        job: The job.
        demand: Of one part, (R,).
        rule: A value of `PLACEMENTS`.
        seed: Of RANDOM_FIT.
        out_node: Receives nodes from the job's `place_base` on.
        out_units: Receives parts on each of them.

    Returns:
        Number of nodes; -1 where the job does not fit.
    """
    nodes = free.shape[0]
    units = m.units[job]
    base = m.place_base[job]
    room, taken = m.room, m.taken
    total = 0
    for node in range(nodes):
        room[node] = node_room(m, free, node, demand, m.kinds_ok[job], units)
        taken[node] = 0
        total += room[node]
    if total < units:
        return -1
    if rule == SPREAD:
        for _ in range(units):
            widest = -1
            most = np.int64(-1)
            for node in range(nodes):
                left = free[node, GPU] - taken[node] * demand[GPU]
                if room[node] > taken[node] and left > most:
                    widest = node
                    most = left
            taken[widest] += 1
        used = 0
        for node in range(nodes):
            if taken[node] > 0:
                out_node[base + used] = node
                out_units[base + used] = taken[node]
                used += 1
        return used
    chosen = -1
    best = np.inf
    for node in range(nodes):
        if room[node] == units:
            score = _score(m, free, node, job, demand, units, rule, seed)
            if score < best:
                best = score
                chosen = node
    if chosen >= 0:
        out_node[base] = chosen
        out_units[base] = units
        return 1
    largest = 0
    if rule == CONSOLIDATE:
        for node in range(nodes):
            if (m.kinds_ok[job] >> m.kind[node]) & 1:
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
            for node in range(nodes):
                if taken[node] == 0 and room[node] > 0 and free[node, GPU] == m.capacity[node, GPU]:
                    size = m.capacity[node, GPU] // max(demand[GPU], 1)
                    if size == min(room[node], size) and biggest < size <= missing:
                        biggest = size
                        chosen = node
            last = chosen < 0
        else:
            best = np.inf
            for node in range(nodes):
                if taken[node] == 0 and room[node] > 0:
                    # Whoever gives most parts keeps the gang together.
                    score = float(node) if rule == FIRST_FIT else -float(room[node])
                    if rule in (WORST_FIT, BEST_FIT):
                        score = -float(free[node, GPU])
                    if score < best:
                        best = score
                        chosen = node
            if chosen < 0:
                return -1
            last = rule == BEST_FIT and room[chosen] >= missing
        if last:
            chosen = -1
            for node in range(nodes):
                if (
                    taken[node] == 0
                    and room[node] >= missing
                    and (chosen < 0 or free[node, GPU] < free[chosen, GPU])
                ):
                    chosen = node
            if chosen < 0:
                return -1
        part = min(missing, room[chosen])
        taken[chosen] = part
        out_node[base + used] = chosen
        out_units[base + used] = part
        used += 1
        missing -= part
    return used


@njit(cache=True, nogil=True)
def take(m: Any, free: Any, job: int, demand: Any, sign: int) -> None:
    """Takes (sign 1) or gives back (sign -1) a job's parts at its places."""
    for place in range(m.place_base[job], m.place_base[job] + m.place_count[job]):
        for r in range(5):
            free[m.place_node[place], r] -= sign * demand[r] * m.place_units[place]


@njit(cache=True, nogil=True)
def speed(m: Any, job: int, pairing: int) -> float:
    """Progress per time of a placed job, relative to its request alone on the reference GPU."""
    smaller = m.asked_units[job] / m.units[job]
    if not m.has_stages[job]:
        return 1.0 / smaller
    io_s, cpu_s, gpu_s, net_s = (
        m.stage_s[job, 0],
        m.stage_s[job, 1],
        m.stage_s[job, 2],
        m.stage_s[job, 3],
    )
    asked_s = combine_stages(io_s, cpu_s, gpu_s, net_s, m.overlap[job])
    if asked_s <= 0:
        return 1.0
    slowest = np.inf
    reach = 1.0
    rack = np.int64(-1)
    far = False
    for place in range(m.place_base[job], m.place_base[job] + m.place_count[job]):
        node = m.place_node[place]
        slowest = min(slowest, m.kind_speed[job, m.kind[node]])
        if rack >= 0 and m.rack[node] != rack:
            far = True
        rack = m.rack[node]
        if m.share_network[0] and m.place_count[job] > 1 and m.network_load[node] > 0:
            reach = min(reach, m.capacity[node, NETWORK] / m.network_load[node])
    net_s /= min(reach, 1.0)
    if m.place_count[job] > 1:
        net_s *= m.cross_node[job, 1] if far else m.cross_node[job, 0]
    if m.demand[job, CPU] > 0 and m.held[job, CPU] != m.demand[job, CPU]:
        curve = m.cpu_curve[job]
        cpu_s *= cpu_stage_shape(m.held[job, CPU] / 1000.0, curve[0], curve[1], curve[2])
        cpu_s /= cpu_stage_shape(m.demand[job, CPU] / 1000.0, curve[0], curve[1], curve[2])
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
        if m.units[job] == 1:
            net_s = 0.0
    given_s = combine_stages(io_s, cpu_s, gpu_s, net_s, m.overlap[job])
    other = m.partner[job]
    if other >= 0:
        if pairing == INTERLEAVED:
            period = interleaved_period(m.stage_s[job], m.stage_s[other])
            given_s *= max(period / max(m.stage_s[job].sum(), 1e-12), 1.0)
        else:
            mine = m.stage_s[job, GPU_STAGE] / asked_s
            theirs = m.stage_s[other, GPU_STAGE] / combine_stages(
                m.stage_s[other, 0],
                m.stage_s[other, 1],
                m.stage_s[other, 2],
                m.stage_s[other, 3],
                m.overlap[other],
            )
            given_s /= shared_gpu_speed(mine + theirs, 0.0)
    return asked_s / given_s


GPU_STAGE = 2


@njit(cache=True, nogil=True)
def settle(m: Any, job: int) -> None:
    """Brings a running job's remaining work up to now."""
    now = m.now[0]
    m.left_ms[job] = max(m.left_ms[job] - (now - m.since_ms[job]) * m.rate[job], 0.0)
    m.since_ms[job] = now


@njit(cache=True, nogil=True)
def plan(m: Any, job: int, pairing: int) -> None:
    """Sets a settled running job's speed and completion."""
    m.rate[job] = speed(m, job, pairing)
    m.finish_ms[job] = m.now[0] + np.int64(np.ceil(m.left_ms[job] / m.rate[job]))


@njit(cache=True, nogil=True)
def _replan_network(m: Any, pairing: int) -> None:
    """Speeds of gangs that span nodes, after the load of some link changed."""
    for place in range(m.counters[RUNNING_COUNT]):
        job = m.running[place]
        if m.place_count[job] > 1 and m.has_stages[job] and m.stage_s[job, 3] > 0:
            settle(m, job)
            plan(m, job, pairing)


@njit(cache=True, nogil=True)
def _load_network(m: Any, job: int, sign: int, pairing: int) -> None:
    """Adds or removes a gang's traffic where it spans nodes."""
    if m.share_network[0] and m.place_count[job] > 1 and m.stage_s[job, 3] > 0:
        for place in range(m.place_base[job], m.place_base[job] + m.place_count[job]):
            load = m.traffic[job] * m.place_units[place]
            m.network_load[m.place_node[place]] += sign * load
        _replan_network(m, pairing)


@njit(cache=True, nogil=True)
def _log(m: Any, job: int) -> None:
    """Logs a settled running job's stretch up to now; jobs that share GPUs hold half of them."""
    row = m.counters[LOG_ROWS]
    m.log_row[row, 0] = job
    m.log_row[row, 1] = m.logged_ms[job]
    m.log_row[row, 2] = m.now[0]
    m.log_row[row, 3] = m.place_count[job]
    for r in range(5):
        m.log_row[row, 4 + r] = m.held[job, r]
    if m.partner[job] >= 0:
        m.log_row[row, 4 + GPU] //= 2
    m.log_work_ms[row] = m.logged_left_ms[job] - m.left_ms[job]
    for place in range(m.place_base[job], m.place_base[job] + m.place_count[job]):
        m.log_node[m.counters[LOG_PLACES]] = m.place_node[place]
        m.log_units[m.counters[LOG_PLACES]] = m.place_units[place]
        m.counters[LOG_PLACES] += 1
    m.counters[LOG_ROWS] += 1
    m.logged_ms[job] = m.now[0]
    m.logged_left_ms[job] = m.left_ms[job]


@njit(cache=True, nogil=True)
def start(m: Any, job: int, host: int, pairing: int) -> None:
    """Starts a waiting job at its places; with `host` >= 0 on the GPUs of that running job."""
    now = m.now[0]
    spot = m.spot[job]
    m.counters[WAITING_COUNT] -= 1
    for place in range(spot, m.counters[WAITING_COUNT]):
        m.waiting[place] = m.waiting[place + 1]
        m.spot[m.waiting[place]] = place
    m.spot[job] = m.counters[RUNNING_COUNT]
    m.running[m.counters[RUNNING_COUNT]] = job
    m.counters[RUNNING_COUNT] += 1
    m.status[job] = RUNNING
    m.waited_ms[job] += now - m.idle_ms[job]
    if m.first_ms[job] < 0:
        m.first_ms[job] = now
    m.begun_ms[job] = now
    m.logged_ms[job] = now
    m.logged_left_ms[job] = m.left_ms[job]
    m.since_ms[job] = now
    take(m, m.free, job, m.held[job], 1)
    m.partner[job] = host
    if host >= 0:
        settle(m, host)
        _log(m, host)
        m.partner[host] = job
        for place in range(m.place_base[job], m.place_base[job] + m.place_count[job]):
            m.free[m.place_node[place], GPU] += m.held[job, GPU] * m.place_units[place]
        plan(m, host, pairing)
    plan(m, job, pairing)
    if m.has_stages[job]:
        _load_network(m, job, 1, pairing)


@njit(cache=True, nogil=True)
def _leave(m: Any, job: int, pairing: int) -> None:
    """Takes a settled running job off its places; a partner keeps the GPUs."""
    _log(m, job)
    other = m.partner[job]
    take(m, m.free, job, m.held[job], -1)
    m.counters[RELEASED] += 1
    if other >= 0:
        settle(m, other)
        _log(m, other)
        for place in range(m.place_base[job], m.place_base[job] + m.place_count[job]):
            m.free[m.place_node[place], GPU] -= m.held[job, GPU] * m.place_units[place]
        m.partner[other] = -1
        m.partner[job] = -1
        plan(m, other, pairing)
    spot = m.spot[job]
    m.counters[RUNNING_COUNT] -= 1
    last = m.running[m.counters[RUNNING_COUNT]]
    m.running[spot] = last
    m.spot[last] = spot
    m.attained[job] += (m.now[0] - m.begun_ms[job]) * m.gpus[job]
    if m.has_stages[job]:
        _load_network(m, job, -1, pairing)


@njit(cache=True, nogil=True)
def complete(m: Any, job: int, pairing: int) -> None:
    """Ends a job at its completion."""
    m.left_ms[job] = 0.0
    _leave(m, job, pairing)
    m.status[job] = DONE
    m.counters[EVENTS] += 1


@njit(cache=True, nogil=True)
def enqueue(m: Any, job: int) -> None:
    """Puts a job among the waiting ones, in the order of `rank`."""
    spot = m.counters[WAITING_COUNT]
    while spot > 0 and m.rank[m.waiting[spot - 1]] > m.rank[job]:
        m.waiting[spot] = m.waiting[spot - 1]
        m.spot[m.waiting[spot]] = spot
        spot -= 1
    m.waiting[spot] = job
    m.spot[job] = spot
    m.status[job] = WAITING
    m.counters[WAITING_COUNT] += 1


@njit(cache=True, nogil=True)
def preempt(m: Any, job: int, pairing: int) -> None:
    """Takes a running job's resources; it waits again, behind those ranked before it."""
    settle(m, job)
    _leave(m, job, pairing)
    m.left_ms[job] += m.cost_ms[job]
    m.finish_ms[job] = NEVER
    m.preemptions[job] += 1
    m.idle_ms[job] = m.now[0]
    enqueue(m, job)


@njit(cache=True, nogil=True)
def next_instant(m: Any) -> int:
    """The next completion or arrival; NEVER if there is none."""
    when = NEVER
    for place in range(m.counters[RUNNING_COUNT]):
        when = min(when, m.finish_ms[m.running[place]])
    if m.counters[ARRIVED] < m.submit_ms.shape[0]:
        when = min(when, m.submit_ms[m.counters[ARRIVED]])
    return when


@njit(cache=True, nogil=True)
def advance(m: Any, when: int, pairing: int) -> None:
    """Goes to an instant not after `next_instant`: completions first, then arrivals."""
    m.now[0] = when
    again = True
    while again:
        # A job whose partner ends may end with it.
        again = False
        place = 0
        while place < m.counters[RUNNING_COUNT]:
            job = m.running[place]
            if m.finish_ms[job] <= when:
                complete(m, job, pairing)
                again = True
            else:
                place += 1
    while m.counters[ARRIVED] < m.submit_ms.shape[0] and (m.submit_ms[m.counters[ARRIVED]] == when):
        job = m.counters[ARRIVED]
        m.counters[ARRIVED] += 1
        m.counters[EVENTS] += 1
        m.idle_ms[job] = when
        enqueue(m, job)


@njit(cache=True, nogil=True)
def log_has_room(m: Any) -> bool:
    """Whether all running jobs can leave without a larger log."""
    running = m.counters[RUNNING_COUNT] + m.counters[WAITING_COUNT] + 1
    places = m.counters[LOG_PLACES]
    for place in range(m.counters[RUNNING_COUNT]):
        places += m.place_count[m.running[place]]
    return m.counters[LOG_ROWS] + running <= m.log_row.shape[0] and places <= m.log_node.shape[0]
