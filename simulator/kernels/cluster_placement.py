"""Where a job fits: room, placement rules, taking and giving back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from dtgym.simulator.kernels.cluster_state import (
    ALIGNED,
    BEST_FIT,
    CONSOLIDATE,
    CPU,
    FIRST_FIT,
    GPU,
    LEAST_FRAGMENTATION,
    RANDOM_FIT,
    SPREAD,
    WORST_FIT,
)


@njit(cache=True, nogil=True)
def mix(x: Any) -> Any:
    """SplitMix64: a well-mixed 64-bit number from another."""
    x = np.uint64(x) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True)
def node_room(m: Any, free: Any, node: Any, demand: Any, kinds_ok: Any, most: Any) -> int:
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
def _fragmentation(m: Any, free: Any, node: Any) -> float:
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
    m: Any, free: Any, node: Any, job: Any, demand: Any, parts: Any, rule: Any, seed: Any
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
def find_places(m: Any, free: Any, job: Any, demand: Any, rule: Any, seed: Any) -> int:
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
def take(m: Any, free: Any, job: Any, demand: Any, sign: Any) -> None:
    """Takes (sign TAKE) or gives back (GIVE) a job's parts at its places."""
    for place in range(m.jobs[job].place_base, m.jobs[job].place_base + m.jobs[job].place_count):
        for r in range(5):
            free[m.places[place].node, r] -= sign * demand[r] * m.places[place].units


@njit(cache=True, nogil=True)
def fit_now(m: Any, job: Any, choices: Any, rule: Any, seed: Any) -> bool:
    """Looks for places with the first CPU share that fits; leaves share and places in the job."""
    for choice in range(choices.shape[1]):
        if choices[job, choice] < 0:
            break
        m.held[job, CPU] = choices[job, choice]
        count = find_places(m, m.free, job, m.held[job], rule, seed)
        if count >= 0:
            m.jobs[job].place_count = count
            return True
    return False
