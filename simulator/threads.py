"""Runs a Numba kernel that releases the interpreter lock over several cores.

A pool of Python threads is enough for such kernels and, unlike Numba's own parallel loops, costs no
compile time and may be entered from several threads at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

from numba import config

Result = TypeVar("Result")

PIECES_PER_THREAD = 4
"""Pieces that a range is cut into per thread, so that a core busy with others delays no one."""


def map_ranges(
    call: Callable[[int, int], Result], count: int, minimum: int, threads: int | None = None
) -> list[Result]:
    """Calls `call(first, last)` on slices that cover ``range(count)``, on several cores at once.

    Args:
        call: Must release the interpreter lock to gain, and must not depend on the slicing.
        count: Length of the range.
        minimum: Fewest items worth a slice of its own; a shorter range runs in this thread.
        threads: Threads to use; None is ``NUMBA_NUM_THREADS``.

    Returns:
        The results, in the order of the slices.

    Examples:
        >>> sum(map_ranges(lambda first, last: last - first, 1000, 10))
        1000
    """
    threads = int(config.NUMBA_NUM_THREADS)  # pyright: ignore[reportAttributeAccessIssue] if threads is None else threads
    pieces = min(threads * PIECES_PER_THREAD, count // max(minimum, 1))
    if threads == 1 or pieces < 2:
        return [call(0, count)]
    borders = [count * i // pieces for i in range(pieces + 1)]
    # The pool is kept per process: threads do not survive a fork.
    return list(_pool(os.getpid(), threads).map(call, borders[:-1], borders[1:]))


@lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix=f"dtgym-{process}")
