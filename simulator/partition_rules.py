"""Rules of thumb for model partitioning: what people do by hand, and the reference for rewards.

* `single_cluster`: Megatron's manual rule on one cluster: the smallest model parallelism that fits,
  tensor parallelism inside a node first, the rest data parallelism, equal layers.
* `proportional`: a pipeline over all clusters, layers in proportion to the speed of the stages.

Each rule leaves a few free numbers (micro-batch, tensor degree); `best_rule` prices them all with
the exact evaluator and keeps the best.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.kernels import plan_construction as kernels
from dtgym.simulator.partition_space import Candidate, PlanSpace, Stage

MICRO_BATCHES_PER_REPLICA = (1, 2, 4)


def single_cluster(space: PlanSpace, instance: int, cluster: int) -> Iterator[list[Candidate]]:
    """Megatron's ladder on one cluster: rungs of growing model parallelism.

    The rule takes the first rung of which any plan fits. Candidates of a rung differ in the
    micro-batch of a replica only.
    """
    gpus = int(space.problem.gpus[instance, cluster])
    node = int(space.problem.gpus_per_node[instance, cluster])
    layers = int(space.problem.layers[instance])
    degrees = [int(tp) for tp in space.tensor_options if node % tp == 0]
    widest = max(degrees)
    shapes = [(tp, 1) for tp in degrees]
    shapes += [(widest, stages) for stages in range(2, min(space.rules.max_stages, layers) + 1)]
    for tp, stages in shapes:
        replicas = _power_of_two(gpus // (tp * stages))
        if replicas == 0:
            continue
        borders = [round(layers * s / stages) for s in range(1, stages + 1)]
        rung = [
            Candidate(
                samples * replicas,
                tuple(Stage(cluster, tp * replicas, tp, high) for high in borders),
            )
            for samples in MICRO_BATCHES_PER_REPLICA
            if samples * replicas in space.microbatch[instance]
        ]
        if rung:
            yield rung


def proportional(
    space: PlanSpace, instance: int, order: Sequence[int], speed_of: str = "stage"
) -> list[Candidate]:
    """Pipelines over the clusters of `order`, equal numbers of equal stages in each.

    Args:
        space: The space of plans.
        instance: Which instance.
        order: Clusters in pipeline order.
        speed_of: ``stage`` splits layers by the profiled speed of the stages; ``peak`` by the
            clusters' profiled speed without tensor parallelism, whatever the stages look like.

    Returns:
        One candidate per number of stages, tensor degree and micro-batch that the space has.
    """
    layers = int(space.problem.layers[instance])
    result: list[Candidate] = []
    for each in range(1, space.rules.max_stages // len(order) + 1):
        sizes = [_power_of_two(int(space.problem.gpus[instance, c]) // each) for c in order]
        if min(sizes) == 0 or each * len(order) > layers:
            continue
        for tp in space.tensor_options.tolist():
            for microbatch in space.microbatch[instance][space.microbatch[instance] > 0].tolist():
                shapes = [
                    (c, size, min(tp, size, int(space.problem.gpus_per_node[instance, c])))
                    for c, size in zip(order, sizes, strict=True)
                    for _ in range(each)
                ]
                speeds = [
                    stage_speed(space, instance, c, size if speed_of == "stage" else 1,
                                degree if speed_of == "stage" else 1, microbatch)
                    * (1.0 if speed_of == "stage" else size)
                    for c, size, degree in shapes
                ]  # fmt: skip
                if not all(np.isfinite(speeds)):
                    continue
                borders = split_layers(layers, speeds)
                stages = tuple(
                    Stage(c, size, degree, high)
                    for (c, size, degree), high in zip(shapes, borders[1:], strict=True)
                )
                result.append(Candidate(microbatch, stages))
    return result


def stage_speed(
    space: PlanSpace, instance: int, cluster: int, gpus: int, tp: int, microbatch: int
) -> float:
    """Micro-batches per second of the whole model on such a stage; NaN where it has no price."""
    samples = max(microbatch * tp // gpus, 1) if gpus > tp else microbatch
    k = samples.bit_length() - 1
    t = int(np.flatnonzero(space.tensor_options == tp)[0])
    row = space.problem.row[instance, cluster]
    table = space.stage_time_s[row, t]
    if gpus // tp > microbatch or k >= len(table):
        return float("nan")
    return float(1.0 / table[k, space.problem.layers[instance]])


def split_layers(layers: int, speeds: Sequence[float]) -> list[int]:
    """Borders of a split in proportion to `speeds`, each stage at least one layer.

    Raises:
        InvalidInput: More stages than layers.

    Examples:
        >>> split_layers(10, [3.0, 1.0, 1.0])
        [0, 5, 8, 10]
    """
    if len(speeds) > layers:
        raise InvalidInput(f"{len(speeds)} stages need as many layers, the model has {layers}")
    share = np.asarray(speeds, dtype=np.float64)
    exact = share / share.sum() * (layers - len(speeds)) + 1
    counts = np.floor(exact).astype(np.int64)
    order = np.argsort(-(exact - counts), kind="stable")
    counts[order[: layers - int(counts.sum())]] += 1
    return [0, *np.cumsum(counts).tolist()]


def open_path_order(space: PlanSpace, instance: int, clusters: Sequence[int]) -> list[int]:
    """The order of clusters with the cheapest chain of links, as DT-FM orders them.

    Exact by dynamic programming over subsets; the cost of a link is delay plus the time of one
    sample's border at its bandwidth, the slower of both directions.
    """
    cost = link_cost_s(space, instance)
    chosen = list(clusters)
    count = len(chosen)
    best = {(1 << a, a): (0.0, [chosen[a]]) for a in range(count)}
    for _ in range(count - 1):
        longer: dict[tuple[int, int], tuple[float, list[int]]] = {}
        for (members, end), (length, path) in best.items():
            for b in range(count):
                if members >> b & 1:
                    continue
                key = (members | 1 << b, b)
                total = length + cost[chosen[end], chosen[b]]
                if key not in longer or total < longer[key][0]:
                    longer[key] = (total, [*path, chosen[b]])
        best = longer
    return min(best.values(), key=lambda item: item[0])[1]


def link_cost_s(space: PlanSpace, instance: int) -> NDArray[np.float64]:
    """(C, C) time of one sample's border between two clusters; inf where there is no link."""
    problem = space.problem
    row = int(problem.row[instance, 0])
    middle = int(problem.layers[instance]) // 2
    size = problem.tables.output_elements[row, middle] * 2.0
    rate, delay = problem.wan_bytes_per_s[instance], problem.wan_delay_s[instance]
    with np.errstate(divide="ignore"):
        cost = np.where(rate > 0, delay + size / np.where(rate > 0, rate, 1.0), np.inf)
    return np.maximum(cost, cost.T)


def best_rule(space: PlanSpace, instance: int) -> tuple[Candidate, float]:
    """The best plan of the rules of thumb and its exact time, s.

    Where no rule fits the memory, the witness that proves the instance solvable stands in.

    Raises:
        InvalidInput: The instance has no known feasible plan.
    """
    best: tuple[Candidate, float] | None = None
    count = int(space.arrays.clusters[instance])
    groups = [_first_rung(space, instance, cluster) for cluster in range(count)]
    order = open_path_order(space, instance, range(count))
    groups += [proportional(space, instance, order), proportional(space, instance, order[::-1])]
    for group in groups:
        if not group:
            continue
        times = space.time_s(group, instance)
        chosen = int(times.argmin())
        if np.isfinite(times[chosen]) and (best is None or times[chosen] < best[1]):
            best = group[chosen], float(times[chosen])
    if best is None or not space.is_buildable(best[0], instance):
        witness = witness_plan(space, instance)
        time_s = float(space.time_s([witness], instance)[0])
        if best is None or not time_s > best[1]:
            best = witness, time_s
    return best


def _first_rung(space: PlanSpace, instance: int, cluster: int) -> list[Candidate]:
    for rung in single_cluster(space, instance, cluster):
        if np.isfinite(space.time_s(rung, instance)).any():
            return rung
    return []


def witness_plan(space: PlanSpace, instance: int) -> Candidate:
    """Some feasible plan: the first legal decision, step by step.

    Raises:
        InvalidInput: The instance has no known feasible plan.
    """
    builds = space.new_builds(1)
    one = np.zeros(1, dtype=np.int64)
    kernels.begin(space.arrays, builds, one, one + instance)
    while builds.head[0] != kernels.DONE:
        mask = space.masks(builds)[0]
        if not mask.any():
            raise InvalidInput(f"instance {instance} has no known feasible plan")
        # The last legal number of layers keeps the pipeline short.
        last = builds.head[0] == kernels.LAYERS
        action = np.flatnonzero(mask)[-1 if last else 0]
        kernels.advance(space.arrays, builds, one + action, np.ones(1, dtype=np.bool_))
    return space.candidate(builds, 0)


def _power_of_two(number: int) -> int:
    """The largest power of two that is at most `number`; 0 for 0."""
    return 1 << (number.bit_length() - 1) if number > 0 else 0
