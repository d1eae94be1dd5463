"""Tuners and mechanisms for communication: published ones, searches and oracles.

=======================  ======  ================================================================
name                     oracle  what it does
=======================  ======  ================================================================
default                          ByteScheduler's default of 1 M / 4 M parameters, never changed
fifo                             MXNet without a scheduler: whole tensors as they become ready
p3                               P3: slices of 40,000 parameters, one on its way
ddp-buckets                      PyTorch DDP: buckets of 1 MiB, then 25 MiB, and a barrier
random-search                    tuned once beforehand by 14 random trials, then static
bytescheduler-bo                 tuned once beforehand by ByteScheduler's search, then static
random-search-online             the same search inside the episode, trials included in its return
bytescheduler-bo-online          the same search inside the episode, trials included in its return
best-static              yes     best single configuration of the episode, chosen in hindsight
oracle-dynamic           yes     best configuration for every step, changes paid for
=======================  ======  ================================================================

*Tuned once* and *best static in hindsight* are different things: the first has seen another state
of the cluster, the second the whole future.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dtgym.baselines.method import Method


def _fixed(name: str) -> Callable[..., Method]:
    def make() -> Method:
        from dtgym.baselines.communication import fixed

        return fixed.make(name)

    return make


def _search(kind: str, online: bool) -> Callable[..., Method]:
    def make(**options: Any) -> Method:
        from dtgym.baselines.communication import tuners

        made = tuners.OnlineTuner if online else tuners.BeforehandTuner
        return made(kind, **options)

    return make


def _oracle(name: str) -> Callable[..., Method]:
    def make() -> Method:
        from dtgym.baselines.communication import oracles

        return oracles.make(name)

    return make


METHODS: Mapping[str, Callable[..., Method]] = {
    "default": _fixed("default"),
    "fifo": _fixed("fifo"),
    "p3": _fixed("p3"),
    "ddp-buckets": _fixed("ddp-buckets"),
    "random-search": _search("random-search", online=False),
    "bytescheduler-bo": _search("bytescheduler-bo", online=False),
    "random-search-online": _search("random-search", online=True),
    "bytescheduler-bo-online": _search("bytescheduler-bo", online=True),
    "best-static": _oracle("best-static"),
    "oracle-dynamic": _oracle("oracle-dynamic"),
}
"""Factory of every baseline by name. Libraries are imported when a method is made."""
