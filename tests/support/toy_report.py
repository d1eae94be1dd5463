"""A report of one row a seed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Count:
    """A row.

    Attributes:
        seed: Its seed.
    """

    seed: int


def rows(*, start: int, seeds: int = 2) -> list[Count]:
    """One row a seed."""
    return [Count(start + seed) for seed in range(seeds)]
