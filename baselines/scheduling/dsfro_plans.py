"""Plans of the DSFRO-style search: what a genome means and how good it is.

A genome has a row per job: the node its gang starts on (-1: held back; the number of nodes: stays
where it runs) and its levels of CPU, storage and network. Rows are placed in order. `place` is also
the repair: a node without room gives way to the next one that has some, a job that fits nowhere is
held back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dtgym.baselines.scheduling.base import LEVELS, WHOLE

GENES = 4
"""Node, then levels of CPU, storage and network."""
SHORTEST_S = 10.0
"""Completion times are divided by the remaining time, at least this, as in bounded slowdown."""
_LEVELS = np.array(LEVELS)
_LEVELLED = (1, 3, 4)


@dataclass(frozen=True, eq=False)
class Candidates:
    """The jobs a search decides on and the cluster they meet; J jobs, N nodes, K others.

    Amounts are whole: GPUs and cores in thousandths, bytes, bytes/s.

    Attributes:
        units: Equal parts of each job, (J,).
        demand: Of one part, (J, 5), as requested.
        allowed: Nodes of a type that the job takes, (J, N).
        stage_s: Stages of one iteration as requested, (J, 4); (0, 0, 1, 0) where unknown.
        overlap: Of the stages, (J,).
        cpu_shape: CPU curve, (J, 3).
        gpu_speed: Speed of the GPU stage on each node, (J, N).
        cross: Factors on the network stage across nodes and across racks, (J, 2).
        traffic: Network of one part where the network is shared, bytes/s, (J,).
        age_s: Time since submission, (J,).
        remaining_s: Estimated remaining time as requested, (J,).
        present: Parts where the job runs now, (J, N); zeros for a waiting job.
        present_levels: CPU, storage and network given over asked now, (J, 3).
        capacity: (N, 5).
        free: Free once every candidate that runs has been stopped, (N, 5).
        rack: (N,).
        network_load: Of gangs that span nodes and are no candidates, bytes/s, (N,).
        other_units: GPUs, in thousandths, and cores of running jobs that are no candidates, (K, 2).
        other_end_s: Their estimated remaining times, (K,).
    """

    units: NDArray[np.int64]
    demand: NDArray[np.int64]
    allowed: NDArray[np.bool_]
    stage_s: NDArray[np.float64]
    overlap: NDArray[np.float64]
    cpu_shape: NDArray[np.float64]
    gpu_speed: NDArray[np.float64]
    cross: NDArray[np.float64]
    traffic: NDArray[np.int64]
    age_s: NDArray[np.float64]
    remaining_s: NDArray[np.float64]
    present: NDArray[np.int64]
    present_levels: NDArray[np.float64]
    capacity: NDArray[np.int64]
    free: NDArray[np.int64]
    rack: NDArray[np.int64]
    network_load: NDArray[np.int64]
    other_units: NDArray[np.int64]
    other_end_s: NDArray[np.float64]

    @property
    def bounds(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Least and largest genes, (J, GENES) each; a resource not asked for has no level."""
        low = np.zeros((len(self.units), GENES), dtype=np.int64)
        high = np.full_like(low, len(LEVELS) - 1)
        low[:, 0] = -1
        runs = self.present.any(axis=1)
        high[:, 0] = np.where(runs, len(self.capacity), len(self.capacity) - 1)
        for gene, resource in enumerate(_LEVELLED, 1):
            fixed = self.demand[:, resource] == 0
            low[fixed, gene] = high[fixed, gene] = WHOLE
        return low, high

    @property
    def current(self) -> NDArray[np.int64]:
        """Everything as it is: running jobs stay, waiting jobs wait; (J, GENES)."""
        genes = np.full((len(self.units), GENES), WHOLE, dtype=np.int64)
        genes[:, 0] = np.where(self.present.any(axis=1), len(self.capacity), -1)
        return genes


@njit(cache=True, nogil=True)
def _place(
    genomes: Any,
    units: Any,
    demand: Any,
    allowed: Any,
    free: Any,
    rack: Any,
    present: Any,
    present_levels: Any,
    levels: Any,
    placed: Any,
) -> None:
    nodes = free.shape[0]
    left = np.empty_like(free)
    need = np.empty(5, dtype=np.int64)
    room = np.empty(nodes, dtype=np.int64)
    for one in range(genomes.shape[0]):
        left[:] = free
        # Who stays has its place for certain, so these rows come first.
        for stays in (True, False):
            for job in range(genomes.shape[1]):
                node = genomes[one, job, 0]
                if node < 0 or (node == nodes) != stays:
                    continue
                for r in range(5):
                    need[r] = demand[job, r]
                    gene = 1 if r == 1 else r - 1
                    if r == 1 or r >= 3:
                        share = levels[genomes[one, job, gene]]
                        if stays:
                            share = present_levels[job, gene - 1]
                        if share != 1.0 and need[r] > 0:
                            need[r] = max(np.int64(need[r] * share), 1)
                if stays:
                    for at in range(nodes):
                        placed[one, job, at] = present[job, at]
                        for r in range(5):
                            left[at, r] -= need[r] * present[job, at]
                    continue
                total = 0
                for at in range(nodes):
                    room[at] = units[job] if allowed[job, at] else 0
                    for r in range(5):
                        if need[r] > 0:
                            room[at] = min(room[at], max(left[at, r] // need[r], 0))
                    total += room[at]
                if total < units[job]:
                    genomes[one, job, 0] = -1
                    continue
                while room[node] == 0:
                    node = (node + 1) % nodes
                genomes[one, job, 0] = node
                home = rack[node]
                missing = units[job]
                # The first node gives what it has; then the roomiest, of the same rack if possible.
                while missing > 0:
                    part = min(room[node], missing)
                    placed[one, job, node] = part
                    missing -= part
                    room[node] = 0
                    for r in range(5):
                        left[node, r] -= need[r] * part
                    best = 0
                    for at in range(nodes):
                        if room[at] > 0 and (
                            room[best] == 0
                            or (rack[at] == home) > (rack[best] == home)
                            or (
                                (rack[at] == home) == (rack[best] == home) and room[at] > room[best]
                            )
                        ):
                            best = at
                    node = best


def place(jobs: Candidates, genomes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places every genome, and repairs it in place.

    Args:
        jobs: The candidates.
        genomes: Within `Candidates.bounds`, (genomes, J, GENES); rows that cannot be are changed to
            what is done instead.

    Returns:
        Parts of each job on each node, (genomes, J, N), within every capacity.
    """
    placed = np.zeros((*genomes.shape[:2], len(jobs.capacity)), dtype=np.int64)
    _place(
        genomes, jobs.units, jobs.demand, jobs.allowed, jobs.free, jobs.rack, jobs.present,
        jobs.present_levels, _LEVELS, placed,
    )  # fmt: skip
    return placed


def shares(jobs: Candidates, genomes: NDArray[np.int64]) -> NDArray[np.float64]:
    """CPU, storage and network given over asked, (genomes, J, 3)."""
    stays = genomes[..., :1] == len(jobs.capacity)
    return np.where(stays, jobs.present_levels, _LEVELS[genomes[..., 1:]])


def _shape(jobs: Candidates, cores: NDArray[np.float64]) -> NDArray[np.float64]:
    squared, linear, constant = jobs.cpu_shape.T
    return squared / cores**2 + linear / cores + constant


def objectives(
    jobs: Candidates,
    genomes: NDArray[np.int64],
    placed: NDArray[np.int64],
    *,
    horizon_s: float,
    coming: NDArray[np.float64],
    headroom_weight: float,
    restart_s: float,
) -> NDArray[np.float64]:
    """Scores plans; all objectives are to be minimised.

    Args:
        jobs: The candidates.
        genomes: Repaired genomes, (genomes, J, GENES).
        placed: What `place` gave for them.
        horizon_s: For how long `coming` looks ahead.
        coming: Predicted GPUs and, where known, cores to be submitted until then, (1 or 2,).
        headroom_weight: Price of predicted load that would find no room, per share of the cluster.
        restart_s: Time that a job which does not stay where it runs loses.

    Returns:
        (genomes, 3): mean over jobs of the predicted time from submission to completion over the
        remaining time; minus the effective utilisation (allocated x busy share of the iteration,
        mean over resources asked for) plus the headroom penalty; summed slowdown from networks that
        are crossed or contended.
    """
    on: NDArray[np.bool_] = placed.sum(axis=2) > 0
    given = shares(jobs, genomes)
    where = placed > 0
    gpu_speed = np.where(where, jobs.gpu_speed, np.inf).min(axis=2)
    spans = where.sum(axis=2) > 1
    highest = np.where(where, jobs.rack, -1).max(axis=2)
    far = highest != np.where(where, jobs.rack, np.iinfo(np.int64).max).min(axis=2)
    factor = np.where(spans, np.where(far, jobs.cross[:, 1], jobs.cross[:, 0]), 1.0)
    load = jobs.network_load + np.einsum(
        "gjn,gj->gn", placed, np.where(spans, jobs.traffic, 0).astype(np.float64)
    )
    crowd = np.maximum(load / np.maximum(jobs.capacity[:, 4], 1), 1.0)
    factor = factor * np.where(
        spans & (jobs.demand[:, 4] == 0), np.where(where, crowd[:, None], 1.0).max(axis=2), 1.0
    )
    cores = np.maximum(jobs.demand[:, 1] / 1000.0, 1e-3)
    cpu = np.where(
        jobs.demand[:, 1] > 0, _shape(jobs, cores * given[..., 0]) / _shape(jobs, cores), 1.0
    )
    stages = np.broadcast_to(jobs.stage_s, (*on.shape, 4)).copy()
    stages[..., 0] /= np.where(jobs.demand[:, 3] > 0, given[..., 1], 1.0)
    stages[..., 1] *= cpu
    stages[..., 2] /= np.where(on, gpu_speed, 1.0)
    stages[..., 3] /= np.where(jobs.demand[:, 4] > 0, given[..., 2], 1.0)
    alone_s = _together(stages, jobs.overlap)
    stages[..., 3] *= factor
    period_s = np.maximum(_together(stages, jobs.overlap), 1e-12)
    asked_s = np.maximum(_together(jobs.stage_s, jobs.overlap), 1e-12)
    run_s = jobs.remaining_s * period_s / asked_s

    moved = jobs.present.any(axis=1) & (genomes[..., 0] != len(jobs.capacity))
    end_s = np.where(on, run_s + np.where(moved, restart_s, 0.0), np.inf)
    held_s = _held_until_s(jobs, on, end_s, horizon_s)
    done_s = np.where(on, end_s, held_s + jobs.remaining_s + np.where(moved, restart_s, 0.0))
    completion = ((jobs.age_s + done_s) / np.maximum(jobs.remaining_s, SHORTEST_S)).mean(axis=1)

    total = np.maximum(jobs.capacity.sum(axis=0), 1)
    busy = np.ones((*on.shape, 5))
    busy[..., [3, 1, 0, 4]] = np.minimum(stages / period_s[..., None], 1.0)
    amount = np.broadcast_to(jobs.demand * jobs.units[:, None] / total, (*on.shape, 5)).copy()
    amount[..., [1, 3, 4]] *= given
    amount[~on] = 0.0
    asked_for = jobs.demand.any(axis=0)
    used = (amount * busy).sum(axis=1)[:, asked_for].sum(axis=1) / max(int(asked_for.sum()), 1)

    known = len(coming)
    later = amount[..., :known] * (end_s > horizon_s)[..., None]
    others = (jobs.other_units[:, :known] * (jobs.other_end_s > horizon_s)[:, None]).sum(axis=0)
    room = np.maximum(1.0 - later.sum(axis=1) - others / total[:known], 0.0)
    wanted = np.minimum(coming * 1000.0 / total[:known], 1.0)
    headroom = np.maximum(wanted - room, 0.0).mean(axis=1)

    slowed = np.where(on, (period_s - alone_s) / asked_s, 0.0).sum(axis=1)
    return np.column_stack((completion, headroom_weight * headroom - used, slowed))


def _together(stages: NDArray[np.float64], overlap: NDArray[np.float64]) -> NDArray[np.float64]:
    """Iteration times of stages (..., J, 4), (..., J)."""
    return (1.0 - overlap) * stages.sum(axis=-1) + overlap * stages.max(axis=-1)


def _held_until_s(
    jobs: Candidates, on: NDArray[np.bool_], end_s: NDArray[np.float64], horizon_s: float
) -> NDArray[np.float64]:
    """When a job that is held back could start at the earliest, (genomes, J).

    That is when running jobs have given back enough GPUs, anywhere in the cluster, but not before
    the first of them ends; where none runs, after the horizon. Other held jobs are not considered.
    """
    gang = jobs.demand[:, 0] * jobs.units
    genomes = len(on)
    ends = np.concatenate((np.tile(jobs.other_end_s, (genomes, 1)), end_s), axis=1)
    back = np.concatenate(
        (np.tile(jobs.other_units[:, 0], (genomes, 1)), np.where(on, gang, 0)), axis=1
    )
    order = np.argsort(ends, axis=1, kind="stable")
    ends = np.take_along_axis(ends, order, axis=1)
    free = jobs.free[:, 0].sum() - np.where(on, gang, 0).sum(axis=1)
    growing = free[:, None] + np.cumsum(np.take_along_axis(back, order, axis=1), axis=1)
    first = np.argmax(growing[:, None, :] >= gang[:, None], axis=2)
    start_s = np.take_along_axis(ends, first, axis=1)
    return np.where(np.isfinite(start_s), start_s, horizon_s)


def knee(values: NDArray[np.float64]) -> int:
    """Row of a front that lies farthest below the plane through its extremes.

    Args:
        values: Objectives to be minimised, (points, objectives).

    Returns:
        The row with the least sum of objectives scaled to [0, 1]; the first of equals.

    Source:
        Das, On characterizing the "knee" of the Pareto curve, Structural Optimization 18, 1999.

    Example:
        >>> knee(np.array([[0.0, 1.0], [0.2, 0.3], [1.0, 0.0]]))
        1
    """
    low, span = values.min(axis=0), np.ptp(values, axis=0)
    scaled = (values - low) / np.where(span > 0, span, 1.0)
    return int(np.argmin(scaled.sum(axis=1).round(12)))
