"""Plans sorted by the shape of their pipeline, so that one sequence of operations serves many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

Integers = NDArray[np.int64]


def for_kernel(value: ArrayLike, dtype: DTypeLike) -> NDArray[Any]:
    """Returns `value` contiguous and writable, copied where it is not.

    Numba compiles a kernel anew for read-only arrays, such as broadcast views: that costs seconds.
    """
    return np.require(value, dtype, ("C_CONTIGUOUS", "WRITEABLE"))


@dataclass(frozen=True)
class Groups:
    """Plans sorted into groups of one shape: stages, micro-batches and warm-up depths.

    Attributes:
        order: (plans,) plan indices, group by group, each group in ascending order.
        starts: (groups + 1,) borders of the groups in `order`.
        stages: (groups,).
        microbatches: (groups,).
        warmup: (groups, width) depths, no more than the micro-batches allow, 0 where unused.
    """

    order: Integers
    starts: Integers
    stages: Integers
    microbatches: Integers
    warmup: Integers


def group_by_shape(
    plans: int, stages: Integers, microbatches: Integers, warmup: Integers | int
) -> Groups:
    """Sorts plans into groups that one sequence of operations serves.

    Args:
        plans: Number of plans.
        stages: Stages in use, () or (plans,).
        microbatches: () or (plans,).
        warmup: Depths, (width,) or (plans, width); or the width alone for standard depths.
    """
    columns = [column for column in (stages, microbatches) if column.ndim == 1]
    if not isinstance(warmup, int) and warmup.ndim == 2:
        columns += list(warmup.T)
    columns = [column for column in columns if plans and (column != column[0]).any()]
    if columns:
        key = _joint_key(columns)
        order = np.argsort(key, kind="stable")
        key = key[order]
        starts = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1], [True])))
    else:
        order = np.arange(plans)
        starts = np.array([0, plans] if plans else [0], dtype=np.int64)
    first = order[starts[:-1]]
    used = np.broadcast_to(stages, (plans,))[first]
    batches = np.broadcast_to(microbatches, (plans,))[first]
    if isinstance(warmup, int):
        depths = used[:, None] - 1 - np.arange(warmup)
    else:
        depths = np.broadcast_to(warmup, (plans, warmup.shape[-1]))[first]
    depths = np.minimum(depths, batches[:, None] - 1)
    depths = np.where(np.arange(depths.shape[1]) < used[:, None], depths, 0)
    return Groups(order, starts, used, batches, np.ascontiguousarray(depths))


def _joint_key(columns: list[Integers]) -> Integers:
    """One number per row that equals another's exactly where all columns do."""
    key = np.zeros(columns[0].size, np.int64)
    radix = 1
    for column in columns:
        low = int(column.min())
        size = int(column.max()) - low + 1
        if radix * size >= 2**62:
            distinct, key = np.unique(key, return_inverse=True)
            radix = distinct.size
        key *= size
        key += column
        key -= low
        radix *= size
    return key


def cut_into_blocks(starts: Integers, lanes: int) -> tuple[Integers, Integers]:
    """Cuts groups into blocks of at most `lanes` plans: slice borders, group of each block."""
    sizes = np.diff(starts)
    per_group = -(-sizes // lanes)
    members = np.repeat(np.arange(sizes.size), per_group)
    index = np.arange(members.size) - np.repeat(np.cumsum(per_group) - per_group, per_group)
    return np.append(starts[members] + index * lanes, starts[-1]), members
