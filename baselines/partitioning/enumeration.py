"""Every plan of a small space, in arrays: stage shapes first, layer borders second.

A shape is a plan without its layer borders: which cluster, how many accelerators and how much
tensor parallelism each stage has, and the micro-batch. All shapes of one stage count are one
`Plans` with borders still to come; `with_borders` crosses them with every split of the layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations, product

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.partition import Plans, Problem, make_plans

Groups = Sequence[Sequence[int]]
"""Ways to cut one cluster's accelerators into stages: lists of stage sizes, in pipeline order."""


def power_of_two_groups(gpus: int, max_stages: int) -> list[tuple[int, ...]]:
    """Every list of at most `max_stages` powers of two that sums to `gpus` or less.

    Examples:
        >>> power_of_two_groups(2, 2)
        [(1,), (2,), (1, 1)]
    """
    sizes = [1 << k for k in range(gpus.bit_length())]
    return [
        group
        for count in range(1, max_stages + 1)
        for group in product(sizes, repeat=count)
        if sum(group) <= gpus
    ]


def shapes(
    problem: Problem,
    *,
    groups: Sequence[Groups],
    max_stages: int,
    microbatches: Sequence[int],
    instance: int = 0,
    wire: str = "bf16",
    recompute: str = "none",
    zero: int = 0,
) -> Iterator[Plans]:
    """Every shape of an instance, one `Plans` per number of stages.

    Args:
        problem: Instances.
        groups: Per cluster, the ways to cut it into stages.
        max_stages: Most stages of a plan.
        microbatches: Samples per micro-batch to try.
        instance: Which instance.
        wire: Precision on every border.
        recompute: Of every stage.
        zero: Of every stage.

    Yields:
        Plans with standard warm-up whose borders are 0, 1, 2, ... and the model's layers: a first
        split, to be replaced by `with_borders`. Orders of clusters come first, then groups, tensor
        parallelism and micro-batches.

    Raises:
        InvalidInput: Not one list of groups per cluster.
    """
    clusters = np.flatnonzero(problem.row[instance] >= 0).tolist()
    if len(groups) != len(clusters):
        raise InvalidInput(f"groups must hold one list per cluster ({len(clusters)})")
    sizes = problem.tables.tensor_parallel.tolist()
    layers = int(problem.layers[instance])
    found: dict[int, list[tuple[list[int], list[int], tuple[int, ...], int]]] = {}
    for used in range(1, len(clusters) + 1):
        for order in permutations(clusters, used):
            for chosen in product(*(groups[c] for c in order)):
                gpus = [size for group in chosen for size in group]
                stages = len(gpus)
                if stages > min(max_stages, layers):
                    continue
                home = [c for c, group in zip(order, chosen, strict=True) for _ in group]
                legal = [
                    [t for t in sizes if n % t == 0 and problem.gpus_per_node[instance, c] % t == 0]
                    for c, n in zip(home, gpus, strict=True)
                ]
                for tp in product(*legal):
                    for batch in microbatches:
                        if all(batch % (n // t) == 0 for n, t in zip(gpus, tp, strict=True)):
                            found.setdefault(stages, []).append((home, gpus, tp, batch))
    for stages, rows in sorted(found.items()):
        home, gpus, tp, batch = (np.array(column) for column in zip(*rows, strict=True))
        yield make_plans(
            home,
            gpus,
            tp,
            [*range(stages), layers],
            batch,
            instance=instance,
            wire=wire,
            recompute=recompute,
            zero=zero,
        )


def splits(layers: int, stages: int) -> NDArray[np.int32]:
    """Every way to cut `layers` into `stages`: (splits, stages + 1) borders.

    Examples:
        >>> splits(3, 2).tolist()
        [[0, 1, 3], [0, 2, 3]]
    """
    inner = list(combinations(range(1, layers), stages - 1))
    borders = np.zeros((len(inner), stages + 1), np.int32)
    borders[:, 1:-1] = np.array(inner, np.int32).reshape(len(inner), stages - 1)
    borders[:, -1] = layers
    return borders


def with_borders(shape: Plans, borders: NDArray[np.int32]) -> Plans:
    """Every given shape with every given split, shapes outermost.

    Args:
        shape: (P,) shapes that use all their columns.
        borders: (B, stages + 1).

    Returns:
        (P * B,) plans.
    """
    count = len(borders)
    plans = shape.take(np.repeat(np.arange(len(shape)), count))
    values = {name: getattr(plans, name) for name in _ALL_BUT_BOUND}
    return Plans(bound=np.tile(borders, (len(shape), 1)), **values)


_ALL_BUT_BOUND = (
    "instance",
    "stages",
    "cluster",
    "gpus",
    "tp",
    "microbatch",
    "wire",
    "warmup",
    "recompute",
    "zero",
)
