"""Local moves on a plan: what hill climbing, annealing and the refinement of plans share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dtgym.simulator import partition
from dtgym.simulator.kernels.plan_construction import MAX_EXTRA_WARMUP
from dtgym.simulator.partition_space import Candidate, PlanSpace, Stage

BORDER_STEPS = (1, 2, 4)


def neighbours(
    space: PlanSpace,
    plan: Candidate,
    *,
    wires: tuple[int, ...] | None = None,
    warmup: bool = True,
    structure: bool = True,
) -> list[Candidate]:
    """Plans one move away; they may be infeasible.

    Moves: shift a border, double or halve a stage's accelerators, tensor degree or both, another
    micro-batch, another wire, one step of warm-up, split a stage in two, merge two stages of a
    cluster, swap the places of two neighbouring clusters' stages, turn the order of stages round,
    drop the first or last cluster, add a cluster at either end.

    Args:
        space: Gives the choices.
        plan: Where to start.
        wires: Codes allowed on links; None takes the space's.
        warmup: Whether warm-up depths may change.
        structure: Whether stages may be split, merged, swapped and dropped.
    """
    result: list[Candidate] = []
    stages = plan.stages
    borders = plan.borders
    for s in range(len(stages) - 1):
        for step in BORDER_STEPS:
            for high in (stages[s].high - step, stages[s].high + step):
                if borders[s] < high < borders[s + 2]:
                    result.append(plan.with_stage(s, high=high))
        # A stage of one layer: it hides a link's round trip where warm-up cannot be deepened.
        for high in (borders[s] + 1, borders[s + 2] - 1):
            if borders[s] < high < borders[s + 2] and high != borders[s + 1]:
                result.append(plan.with_stage(s, high=high))
        # A whole stage moves along the model: both of its borders shift together.
        for step in (*BORDER_STEPS, *(-step for step in BORDER_STEPS)):
            if s + 1 < len(stages) - 1:
                first, second = stages[s].high + step, stages[s + 1].high + step
                if borders[s] < first and second < borders[s + 3]:
                    result.append(plan.with_stage(s, high=first).with_stage(s + 1, high=second))
    for s, stage in enumerate(stages):
        for gpus, tp in (
            (stage.gpus * 2, stage.tp),
            (stage.gpus // 2, stage.tp),
            (stage.gpus, stage.tp * 2),
            (stage.gpus, stage.tp // 2),
            (stage.gpus * 2, stage.tp * 2),
            (stage.gpus // 2, stage.tp // 2),
        ):
            if tp >= 1 and gpus >= tp and tp in space.tensor_options:
                result.append(plan.with_stage(s, gpus=gpus, tp=tp))
        if warmup and s < len(stages) - 1:
            for extra in (stage.extra - 1, stage.extra + 1):
                if 0 <= extra <= MAX_EXTRA_WARMUP:
                    result.append(plan.with_stage(s, extra=extra))
            if stage.extra < MAX_EXTRA_WARMUP:
                # Depths must not rise along the pipeline: deepen all stages up to this one.
                deeper = tuple(
                    replace(one, extra=min(one.extra + 1, MAX_EXTRA_WARMUP)) if k <= s else one
                    for k, one in enumerate(stages)
                )
                result.append(replace(plan, stages=deeper))
        if s and stages[s - 1].cluster != stage.cluster:
            allowed = wires
            if allowed is None:
                allowed = tuple(partition.WIRES.index(wire) for wire in space.rules.wires)
            result += [plan.with_stage(s, wire=wire) for wire in allowed if wire != stage.wire]
    for size in space.microbatch[0]:
        if size > 0 and plan.microbatch in (2 * size, size // 2, 4 * size, size // 4):
            result.append(replace(plan, microbatch=int(size)))
    if structure:
        result += _restructured(space, plan)
    return result


def _restructured(space: PlanSpace, plan: Candidate) -> list[Candidate]:
    stages, borders = plan.stages, plan.borders
    result: list[Candidate] = []
    for s, stage in enumerate(stages):
        width = stage.high - borders[s]
        if width >= 2 and stage.gpus >= 2 and len(stages) < space.rules.max_stages:
            half = stage.gpus // 2
            tp = min(stage.tp, half)
            middle = borders[s] + width // 2
            first = replace(stage, gpus=half, tp=tp, high=middle)
            second = replace(stage, gpus=half, tp=tp)
            result.append(replace(plan, stages=(*stages[:s], first, second, *stages[s + 1 :])))
        if s + 1 < len(stages) and stages[s + 1].cluster == stage.cluster:
            after = stages[s + 1]
            for gpus in {stage.gpus, after.gpus, 2 * max(stage.gpus, after.gpus)}:
                tp = min(max(stage.tp, after.tp), gpus)
                merged = replace(stage, gpus=gpus, tp=tp, high=after.high, extra=after.extra)
                result.append(replace(plan, stages=(*stages[:s], merged, *stages[s + 2 :])))
    runs = cluster_runs(plan)
    for k in range(len(runs) - 1):
        result.append(_in_order(plan, [*runs[:k], runs[k + 1], runs[k], *runs[k + 2 :]]))
    if len(runs) > 1:
        result += [_in_order(plan, runs[1:]), _in_order(plan, runs[:-1])]
    # Backwards: all of it, and the stages of each cluster.
    result.append(_in_order(plan, [run[::-1] for run in runs[::-1]]))
    for k, run in enumerate(runs):
        if len(run) > 1:
            result.append(_in_order(plan, [*runs[:k], run[::-1], *runs[k + 1 :]]))
    result = [one for one in result if one != plan]
    free = [c for c in range(int(space.arrays.clusters[0]))
            if c not in {stage.cluster for stage in stages}]  # fmt: skip
    if free and len(stages) < space.rules.max_stages:
        layers = borders[-1]
        for c in free:
            # A newcomer at either end with a share of the layers like that of the others.
            gpus = 1 << (int(space.problem.gpus[0, c]).bit_length() - 1)
            share = max(1, layers // (len(stages) + 1))
            tp = min(stages[0].tp, gpus)
            new = Stage(c, gpus, tp, layers, stages[-1].wire)
            if stages[-1].high - borders[-2] > share:
                cut = replace(stages[-1], high=layers - share)
                result.append(replace(plan, stages=(*stages[:-1], cut, new)))
            if stages[0].high > share:
                head = replace(new, high=share)
                result.append(replace(plan, stages=(head, *stages)))
    return result


def cluster_runs(plan: Candidate) -> list[list[tuple[Stage, int]]]:
    """Stages by cluster, each with its number of layers, in pipeline order."""
    runs: list[list[tuple[Stage, int]]] = []
    low = 0
    for s, stage in enumerate(plan.stages):
        if s == 0 or plan.stages[s - 1].cluster != stage.cluster:
            runs.append([])
        runs[-1].append((stage, stage.high - low))
        low = stage.high
    return runs


def _in_order(plan: Candidate, runs: list[list[tuple[Stage, int]]]) -> Candidate:
    """The plan with its clusters in another order; layers left over are shared out evenly."""
    layers = plan.borders[-1]
    flat = [pair for run in runs for pair in run]
    weights = np.array([count for _, count in flat], dtype=np.float64)
    ends = np.rint(np.cumsum(weights) / weights.sum() * layers).astype(np.int64)
    depth = MAX_EXTRA_WARMUP
    stages = []
    for (stage, _), high in zip(flat, ends.tolist(), strict=True):
        depth = min(stage.extra, depth)
        stages.append(replace(stage, high=int(high), extra=depth))
    return replace(plan, stages=tuple(stages))
