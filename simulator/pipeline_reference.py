"""The recurrence of `pipeline` in plain Python: slow, short, what benchmarks compare with."""

from __future__ import annotations

from collections.abc import Sequence


def iteration_time_s(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    activation_s: Sequence[float],
    gradient_s: Sequence[float],
    microbatches: int,
) -> float:
    """Iteration time of one plan under standard 1F1B with overlapped transfers.

    Args:
        forward_s: Per stage; the other times as in `pipeline.iteration_time_s`, one plan.
        backward_s: Per stage.
        activation_s: Per border.
        gradient_s: Per border.
        microbatches: At least 1.

    Examples:
        >>> iteration_time_s([1.0, 1.0], [2.0, 2.0], [1.0], [1.0], 4)
        19.0
    """
    last = len(forward_s) - 1
    free = [0.0] * (last + 1)
    arrived: list[list[float]] = [[0.0] * microbatches for _ in free]
    activation_link = [0.0] * last
    gradient_link = [0.0] * last
    for step in range(-last, microbatches):
        for stage in range(last + 1):
            m = step + last - stage
            if not 0 <= m < microbatches:
                continue
            free[stage] = max(free[stage], arrived[stage][m]) + forward_s[stage]
            if stage < last:
                sent = max(free[stage], activation_link[stage]) + activation_s[stage]
                activation_link[stage] = arrived[stage + 1][m] = sent
        if step < 0:
            continue
        message = 0.0
        for stage in range(last, -1, -1):
            free[stage] = max(free[stage], message) + backward_s[stage]
            if stage > 0:
                message = max(free[stage], gradient_link[stage - 1]) + gradient_s[stage - 1]
                gradient_link[stage - 1] = message
    return max(free)
