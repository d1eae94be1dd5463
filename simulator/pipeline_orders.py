"""Pipeline schedules as orders of operations: what each stage does, one after the other.

An order depends on the schedule, the number of stages and micro-batches and the warm-up depths,
never on durations. It serves the compiled program of a whole batch of plans, the timeline of one
plan and the count of stored activations alike.

Schedules:

- ``1f1b``: stage s runs forwards 0 .. w_s - 1 (warm-up), then alternates forward w_s + k and
  backward k, then runs the remaining backwards. The standard depth is w_s = S - 1 - s; deeper
  warm-up upstream of a slow link hides its round trip and costs memory.
- ``gpipe``: all forwards, then all backwards in the same micro-batch order.
- ``interleaved``: every stage holds `chunks` model chunks; virtual stage c * S + s is chunk c of
  stage s. Forwards go through micro-batches in groups of S, chunk by chunk; backwards the same
  with the chunks reversed. Warm-up is 2 (S - 1 - s) + (chunks - 1) S forwards. Micro-batches must
  be a multiple of S. One chunk is plain 1F1B.
- ``zero_bubble``: ZB-H1. A backward is split into the gradient of the input (B), which the stage
  before waits for, and the gradient of the weights (W), which nobody waits for. Warm-up as 1F1B;
  stage s runs W of micro-batch m - s right after B of micro-batch m, the last s of them at the
  end, so that every stage stores at most S micro-batches. ZB-H2 is left out: it shortens the time
  between iterations by letting a stage start the next one before the others have finished, while
  the time of one iteration, which is what this simulator reports, stays that of ZB-H1.

Source:
    Narayanan et al., Efficient large-scale language model training on GPU clusters using
    Megatron-LM, SC 2021, section 2.2 (1F1B and interleaved); Huang et al., GPipe, NeurIPS 2019;
    Qi et al., Zero bubble pipeline parallelism, arXiv 2401.10241, section 2 (ZB-H1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.errors import InvalidInput

SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero_bubble")

FORWARD = 0
BACKWARD = 1
WEIGHT = 2
"""Kinds of operation; under ``zero_bubble`` BACKWARD is the gradient of the input alone."""


@dataclass(frozen=True)
class Operations:
    """Every operation of one iteration, in an order in which each one's inputs come before it.

    Attributes:
        kind: `FORWARD`, `BACKWARD` or `WEIGHT`, (operations,).
        stage: Stage that runs it, (operations,).
        chunk: Model chunk, 0 unless interleaved, (operations,).
        microbatch: Micro-batch, (operations,).
    """

    kind: NDArray[np.int64]
    stage: NDArray[np.int64]
    chunk: NDArray[np.int64]
    microbatch: NDArray[np.int64]


def standard_warmup(stages: int) -> NDArray[np.int64]:
    """The warm-up depth of standard 1F1B: S - 1 - s.

    Examples:
        >>> standard_warmup(4).tolist()
        [3, 2, 1, 0]
    """
    return np.arange(stages - 1, -1, -1, dtype=np.int64)


@lru_cache(maxsize=256)
def operations(
    schedule: str, stages: int, microbatches: int, warmup: tuple[int, ...], chunks: int = 1
) -> Operations:
    """The operations of one iteration in a valid order of execution.

    Args:
        schedule: One of `SCHEDULES`.
        stages: Pipeline stages S, at least 1.
        microbatches: Micro-batches M, at least 1.
        warmup: (stages,) warm-up depths of ``1f1b`` and ``zero_bubble``; the others do not read it.
        chunks: Model chunks per stage, above 1 only for ``interleaved``.

    Raises:
        InvalidInput: Interleaved micro-batches that are no multiple of the stages, or warm-up
            depths with which stages would wait for each other for ever.

    Examples:
        >>> order = operations("1f1b", 2, 2, (1, 0))
        >>> ["FBW"[k] + f"{s}{m}" for k, s, m in zip(order.kind, order.stage, order.microbatch)]
        ['F00', 'F01', 'F10', 'B10', 'F11', 'B11', 'B00', 'B01']
    """
    if schedule == "interleaved" and microbatches % stages:
        raise InvalidInput(
            "num_microbatches must be a multiple of the stages under the interleaved schedule, "
            f"got {microbatches} for {stages} stages"
        )
    queues = [
        _stage_order(schedule, stages, microbatches, warmup, chunks, s) for s in range(stages)
    ]
    done: set[tuple[int, int, int]] = set()
    merged: list[tuple[int, int, int, int]] = []
    at = [0] * stages
    last = stages * chunks - 1
    moved = True
    while moved:
        moved = False
        for stage, queue in enumerate(queues):
            while at[stage] < len(queue):
                kind, chunk, microbatch = queue[at[stage]]
                virtual = chunk * stages + stage
                if kind == FORWARD:
                    ready = virtual == 0 or (FORWARD, virtual - 1, microbatch) in done
                elif kind == BACKWARD:
                    needed = (FORWARD, last) if virtual == last else (BACKWARD, virtual + 1)
                    ready = (*needed, microbatch) in done
                else:
                    ready = (BACKWARD, virtual, microbatch) in done
                if not ready:
                    break
                done.add((kind, virtual, microbatch))
                merged.append((kind, stage, chunk, microbatch))
                at[stage] += 1
                moved = True
    if len(merged) < sum(len(queue) for queue in queues):
        raise InvalidInput(
            "warmup must not increase from one stage to the next (stages would wait for each "
            f"other for ever), got {list(warmup)}"
        )
    columns = np.array(merged, dtype=np.int64).T
    return Operations(*(np.ascontiguousarray(column) for column in columns))


def in_flight(
    schedule: str,
    stages: int,
    microbatches: int,
    warmup: Sequence[int] | NDArray[np.int64] | None = None,
    chunks: int = 1,
) -> NDArray[np.float64]:
    """Largest number of micro-batches whose activations each stage stores at a time.

    An activation is stored from its forward to its backward (``zero_bubble``: to its weight
    gradient). A chunk's activation counts 1 / chunks.

    Args:
        schedule: One of `SCHEDULES`.
        stages: Pipeline stages.
        microbatches: Micro-batches.
        warmup: (stages,) warm-up depths; None is the standard depth.
        chunks: Model chunks per stage.

    Returns:
        (stages,) micro-batches of one full stage.

    Source:
        1F1B: min(w_s + 1, M). Interleaved, first stage: S (1 + (S - 1) / (S chunks)) (Korthikanti
        et al., Reducing activation recomputation in large transformer models, arXiv 2205.05198,
        section 4.2.3).

    Examples:
        >>> in_flight("1f1b", 4, 8).tolist()
        [4.0, 3.0, 2.0, 1.0]
        >>> in_flight("gpipe", 4, 8).tolist()
        [8.0, 8.0, 8.0, 8.0]
        >>> in_flight("zero_bubble", 4, 8).tolist()
        [4.0, 4.0, 4.0, 4.0]
    """
    depth = standard_warmup(stages) if warmup is None else np.asarray(warmup, dtype=np.int64)
    order = operations(schedule, stages, microbatches, tuple(depth.tolist()), chunks)
    release = WEIGHT if schedule == "zero_bubble" else BACKWARD
    change = (order.kind == FORWARD).astype(np.int64) - (order.kind == release)
    peaks = [np.cumsum(change[order.stage == s]).max() for s in range(stages)]
    return np.array(peaks, dtype=np.float64) / chunks


def _stage_order(
    schedule: str, stages: int, microbatches: int, warmup: Sequence[int], chunks: int, stage: int
) -> list[tuple[int, int, int]]:
    """(kind, chunk, micro-batch) of one stage, in its order."""
    total = microbatches * chunks
    if schedule == "gpipe":
        depth = total
    elif chunks > 1:
        depth = min(2 * (stages - 1 - stage) + (chunks - 1) * stages, total)
    else:
        depth = min(warmup[stage], total)
    forwards = [_in_groups(FORWARD, i, stages, chunks) for i in range(total)]
    backwards = [_in_groups(BACKWARD, i, stages, chunks) for i in range(total)]
    order = forwards[:depth]
    for i, backward in enumerate(backwards):
        if depth + i < total:
            order.append(forwards[depth + i])
        order.append(backward)
        if schedule == "zero_bubble" and i >= stage:
            order.append((WEIGHT, 0, i - stage))
    if schedule == "zero_bubble":
        order.extend((WEIGHT, 0, m) for m in range(max(0, total - stage), total))
    return order


def _in_groups(kind: int, index: int, stages: int, chunks: int) -> tuple[int, int, int]:
    """The index-th forward or backward of a stage: chunk by chunk in groups of `stages`."""
    if chunks == 1:
        return kind, 0, index
    group, within = divmod(index, stages * chunks)
    chunk, member = divmod(within, stages)
    return kind, chunks - 1 - chunk if kind == BACKWARD else chunk, group * stages + member
