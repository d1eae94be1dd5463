"""Planners by rule: Megatron by hand, proportional split, Holmes, DT-FM."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dtgym.baselines.partitioning.planner import Evaluator, Planner
from dtgym.simulator import partition_rules as rules
from dtgym.simulator.partition_space import Candidate, Stage


@dataclass
class MegatronManual(Planner):
    """Megatron's manual rule on each cluster alone; the best cluster wins.

    The smallest model parallelism that fits, tensor parallelism inside a node first, then pipeline
    stages of equal layers, the rest data parallelism (Narayanan et al., SC 2021, section 3).
    """

    name: str = "megatron-manual"

    def search(self, evaluator: Evaluator) -> None:
        """Climbs the ladder of model parallelism on each cluster until a rung fits."""
        space = evaluator.space
        for cluster in range(int(space.arrays.clusters[0])):
            for rung in rules.single_cluster(space, 0, cluster):
                if np.isfinite(evaluator.time_s(rung)).any():
                    break


@dataclass
class Proportional(Planner):
    """A pipeline over all clusters, layers in proportion to the speed of the stages."""

    name: str = "proportional"

    def search(self, evaluator: Evaluator) -> None:
        """Prices every number of stages, tensor degree and micro-batch of the rule."""
        space = evaluator.space
        order = rules.open_path_order(space, 0, range(int(space.arrays.clusters[0])))
        for direction in (order, order[::-1]):
            plans = rules.proportional(space, 0, direction)
            if plans:
                evaluator.time_s(plans)


@dataclass
class Holmes(Planner):
    """Holmes's rule: one stage per cluster, layers in proportion to the clusters' measured speed.

    Pipeline parallelism crosses clusters, data parallelism stays among accelerators with the same
    network cards; a cluster's speed is its profiled throughput (Yang et al., Holmes, ICPP 2024;
    reconstruction from its summary). Clusters stand in the order in which they are given.
    """

    name: str = "holmes"

    def search(self, evaluator: Evaluator) -> None:
        """Prices the rule's plan for every tensor degree and micro-batch."""
        space = evaluator.space
        order = list(range(int(space.arrays.clusters[0])))
        plans = [
            plan
            for plan in rules.proportional(space, 0, order, speed_of="peak")
            if len(plan.stages) == len(order)
        ] or rules.proportional(space, 0, order, speed_of="peak")
        if plans:
            evaluator.time_s(plans)


@dataclass
class DtFm(Planner):
    """DT-FM: equal stages of equal layers, placed so that communication costs least.

    Every stage gets the same number of accelerators, which divides every cluster; clusters stand in
    the order of the cheapest chain of links (Yuan et al., NeurIPS 2022: the open-path part of their
    cost; matching inside clusters of equal links is trivial). Blind for compute.
    """

    name: str = "dt-fm"

    def search(self, evaluator: Evaluator) -> None:
        """Prices the grids in order of their communication cost until one fits."""
        space = evaluator.space
        problem = space.problem
        count = int(space.arrays.clusters[0])
        layers = int(problem.layers[0])
        order = rules.open_path_order(space, 0, range(count))
        gpus = problem.gpus[0, :count]
        for size in sorted(space.gpu_options.tolist(), reverse=True):
            stages = int((gpus // size).sum())
            if not count <= stages <= min(space.rules.max_stages, layers):
                continue
            borders = [round(layers * s / stages) for s in range(1, stages + 1)]
            homes = [c for c in order for _ in range(int(gpus[c]) // size)]
            plans = [
                Candidate(
                    microbatch,
                    tuple(
                        Stage(c, size, min(tp, size), high)
                        for c, high in zip(homes, borders, strict=True)
                    ),
                )
                for tp in space.tensor_options.tolist()
                for microbatch in space.microbatch[0][space.microbatch[0] > 0].tolist()
            ]
            if np.isfinite(evaluator.time_s(plans)).any():
                return
