"""From what stages cost to step times: the exact form after the recurrence, and the closed form."""

from __future__ import annotations

from numba import njit

from dtgym.simulator.kernels import training_columns as c


@njit(cache=True, nogil=True)
def assemble(finish, parts, plan_rows, first, last, time, shares):
    """Step time of plans first..last-1 from the ends of their stages, and where it goes.

    Args:
        finish: (plans, stages) end of each stage's last operation, s.
        parts: (plans, stages, STAGE_PARTS).
        plan_rows: (plans, PLAN_COLUMNS).
        first: First plan.
        last: Behind the last plan.
        time: (plans,) out, s.
        shares: (plans, 5) out: compute, tensor, bubble, data, optimizer, s.
    """
    for p in range(first, last):
        slowest, total = 0, -1.0
        for s in range(int(plan_rows[p, c.PIPELINE])):
            end = finish[p, s] + parts[p, s, 3] + parts[p, s, 4]
            if end > total:
                slowest, total = s, end
        microbatches = plan_rows[p, c.MICROBATCHES]
        compute = microbatches * parts[p, slowest, 0]
        tensor = microbatches * parts[p, slowest, 1]
        data = microbatches * parts[p, slowest, 2] + parts[p, slowest, 3]
        update = parts[p, slowest, 4]
        time[p] = total
        shares[p, 0] = compute
        shares[p, 1] = tensor
        shares[p, 2] = max(total - compute - tensor - data - update, 0.0)
        shares[p, 3] = data
        shares[p, 4] = update


@njit(cache=True, nogil=True)
def screen_plans(table, configuration, stage_layers, first, last, time):
    """Closed form of splits first..last-1; returns the largest error of a split's sum of blocks.

    Args:
        table: (configurations, SCREEN_COLUMNS).
        configuration: (splits,) row of `table`.
        stage_layers: (splits, stages).
        first: First split.
        last: Behind the last split.
        time: (splits,) out, s.
    """
    worst = 0.0
    for i in range(first, last):
        row = table[configuration[i]]
        stages = int(row[c.SCREEN_STAGES])
        layer = row[c.SCREEN_LAYER]
        slowest = stage_layers[i, 0] * layer + row[c.SCREEN_FIRST]
        blocks = stage_layers[i, 0]
        for s in range(1, stages):
            blocks += stage_layers[i, s]
            slowest = max(slowest, stage_layers[i, s] * layer)
        end = stage_layers[i, stages - 1] * layer + row[c.SCREEN_LAST]
        if stages > 1:
            slowest = max(slowest, end)
        total = blocks * layer + row[c.SCREEN_FIRST] + row[c.SCREEN_LAST]
        ramp = (total - slowest + row[c.SCREEN_BORDERS]) / row[c.SCREEN_CHUNKS]
        time[i] = row[c.SCREEN_MICROBATCHES] * slowest + ramp + row[c.SCREEN_AFTER]
        worst = max(worst, abs(blocks - row[c.SCREEN_BLOCKS]))
    return worst
