"""Numba kernels of the pipeline's closed forms: a handful of operations per plan."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.floating[Any]]
Integers: TypeAlias = NDArray[np.integer[Any]]


@njit(cache=True, nogil=True)
def closed_form(
    forward_s: Floats,
    backward_s: Floats,
    activation_s: Floats,
    gradient_s: Floats,
    stages: Integers,
    microbatches: Integers,
    first: int,
    last: int,
    time_s: Floats,
) -> None:
    """`(M - 1) max(f + b) + sum(f + b) + sum(a + g)` of plans `first` to `last` - 1."""
    for plan in range(first, last):
        slowest = forward_s[plan, 0] + backward_s[plan, 0]
        total = slowest
        for s in range(1, stages[plan]):
            both = forward_s[plan, s] + backward_s[plan, s]
            total += both + activation_s[plan, s - 1] + gradient_s[plan, s - 1]
            slowest = max(slowest, both)
        time_s[plan] = (microbatches[plan] - 1) * slowest + total


@njit(cache=True, nogil=True)
def period(
    forward_s: Floats,
    backward_s: Floats,
    activation_s: Floats,
    gradient_s: Floats,
    stages: Integers,
    warmup: Integers,
    first: int,
    last: int,
    period_s: Floats,
) -> None:
    """Largest cycle mean of plans `first` to `last` - 1 (stages, links, windows of stages)."""
    for plan in range(first, last):
        longest = forward_s[plan, 0] * 0
        for s in range(stages[plan]):
            window = forward_s[plan, s] + backward_s[plan, s]
            longest = max(longest, window)
            for j in range(s + 1, stages[plan]):
                a = activation_s[plan, j - 1]
                g = gradient_s[plan, j - 1]
                if j == s + 1:
                    longest = max(longest, a, g)
                window += forward_s[plan, j] + backward_s[plan, j] + a + g
                longest = max(longest, window / (warmup[plan, s] - warmup[plan, j] + 1))
        period_s[plan] = longest


@njit(cache=True, nogil=True)
def lower_bound(
    forward_s: Floats,
    backward_s: Floats,
    activation_s: Floats,
    gradient_s: Floats,
    stages: Integers,
    microbatches: Integers,
    warmup: Integers,
    first: int,
    last: int,
    bound_s: Floats,
) -> None:
    """A time that no plan of `first` to `last` - 1 can beat: its longest window of rounds."""
    for plan in range(first, last):
        count = microbatches[plan]
        best = forward_s[plan, 0] * 0
        # Everything up to this stage and back from it, once: what surrounds its own work.
        outer = best
        inner = best
        for s in range(stages[plan]):
            f = forward_s[plan, s]
            b = backward_s[plan, s]
            if s > 0:
                a = activation_s[plan, s - 1]
                g = gradient_s[plan, s - 1]
                best = max(best, inner + count * max(a, g) + min(a, g) + f + b)
            best = max(best, outer + count * (f + b))
            window = f + b
            for j in range(s + 1, stages[plan]):
                window += (
                    forward_s[plan, j]
                    + backward_s[plan, j]
                    + activation_s[plan, j - 1]
                    + gradient_s[plan, j - 1]
                )
                depth = warmup[plan, j]
                stride = warmup[plan, s] - depth + 1
                # Either as many rounds as there are, or one and then the stage's own work.
                most = (count - 1 - depth) // stride + 1
                for rounds in (1, most):
                    done = (rounds - 1) * stride
                    rest = (count - 1 - done) * b + max(0, count - 1 - warmup[plan, s] - done) * f
                    best = max(best, outer + depth * f + rounds * window + rest)
            if s < stages[plan] - 1:
                inner = outer + f + b
                outer = inner + activation_s[plan, s] + gradient_s[plan, s]
        bound_s[plan] = best
