"""The multi-resource cluster as arrays: what the machine's records and counters mean.

Amounts are int64 (GPUs and cores in thousandths, bytes, bytes/s), so that an empty node is exactly
empty; times are int64 milliseconds; remaining work is float64 milliseconds at speed 1, exact while
jobs run at their stated durations. A job is `units` equal parts (GPUs; a job without GPUs is one
part), each with the same demand.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

NEVER = np.int64(2**62)
STALE = np.int64(-1)
TAKE, GIVE = np.int64(1), np.int64(-1)
# Typed constants: a literal would compile every function it is passed to once more.
NOBODY = np.int64(-1)
FUTURE, WAITING, RUNNING, DONE = 0, 1, 2, 3
GPU, CPU, MEMORY, IO, NETWORK = 0, 1, 2, 3, 4

CONSOLIDATE = 1
BEST_FIT = 2
WORST_FIT = 3
FIRST_FIT = 4
SPREAD = 5
RANDOM_FIT = 6
ALIGNED = 7
LEAST_FRAGMENTATION = 8
PLACEMENTS = {
    "consolidate": CONSOLIDATE,
    "best_fit": BEST_FIT,
    "worst_fit": WORST_FIT,
    "first_fit": FIRST_FIT,
    "spread": SPREAD,
    "random_fit": RANDOM_FIT,
    "aligned": ALIGNED,
    "fgd": LEAST_FRAGMENTATION,
}

GPU_STAGE = 2
"""Place of the GPU among the stages."""
CONTENDING = 0
INTERLEAVED = 1


JOB = np.dtype(
    [
        # Read-only.
        ("submit_ms", np.int64),
        ("work_ms", np.int64),  # at speed 1
        ("asked_units", np.int64),  # parts as requested
        ("kinds_ok", np.int64),  # bit k: GPU type k will do
        ("shape", np.int64),  # jobs with equal parts, demand and types share a number
        ("rank", np.int64),  # waiting order
        ("traffic", np.int64),  # network of one part
        ("estimate_ms", np.int64),
        ("cost_ms", np.int64),  # work added by a preemption
        ("place_base", np.int64),  # first of its places
        ("has_stages", np.int64),  # whether the speed model applies
        ("overlap", np.float64),
        ("squared", np.float64),  # CPU curve
        ("linear", np.float64),
        ("constant", np.float64),
        ("cross_node", np.float64),  # factor on the network stage across nodes
        ("cross_rack", np.float64),  # and across racks
        # State.
        ("status", np.int64),
        ("gpus", np.int64),  # of the gang; a Python policy may start a job on fewer or more
        ("units", np.int64),  # parts: GPUs, at least 1
        ("left_ms", np.float64),
        ("rate", np.float64),
        ("since_ms", np.int64),  # when left_ms was true
        ("finish_ms", np.int64),  # planned; NEVER unless running
        ("begun_ms", np.int64),  # of the present stretch
        ("idle_ms", np.int64),  # since when it waits
        ("first_ms", np.int64),  # first start
        ("attained", np.int64),  # GPU-ms before the present stretch
        ("waited_ms", np.int64),
        ("preemptions", np.int64),
        ("partner", np.int64),  # job on the same GPUs, -1
        ("place_count", np.int64),
        ("spot", np.int64),  # in the list of running or waiting jobs
        ("logged_ms", np.int64),  # since when the present stretch is not in the log
        ("logged_left_ms", np.float64),  # remaining work at that time
    ],
    align=True,
)
NODE = np.dtype(
    [
        ("kind", np.int64),  # GPU type
        ("rack", np.int64),
        ("network_load", np.int64),  # bytes/s asked by gangs that span nodes
        ("room", np.int64),  # scratch
        ("taken", np.int64),  # scratch
    ],
    align=True,
)
PLACE = np.dtype([("node", np.int64), ("units", np.int64)], align=True)
CLASS = np.dtype([("units", np.int64), ("share", np.float64)], align=True)


class Machine(NamedTuple):
    """Cluster and jobs; J jobs in the order (submission, id), N nodes, R = 5 resources.

    Records instead of an array per field: compiled functions pass every array of the machine on,
    and dozens of them would triple the time to compile.
    """

    capacity: Any  # (N, R)
    demand: Any  # (J, R) of one part, as requested; no network where that is shared
    stage_s: Any  # (J, 4)
    kind_speed: Any  # (J, K) of the GPU stage
    classes: Any  # (C,) the workload's typical jobs: parts, how frequent
    class_demand: Any  # (C, R) of one part
    jobs: Any  # (J,)
    nodes: Any  # (N,)
    free: Any  # (N, R)
    held: Any  # (J, R) of one part, as given
    places: Any  # of all jobs
    running: Any  # (J,) list
    waiting: Any  # (J,) list, in order of rank
    counters: Any  # see below
    log_row: Any  # (rows, 9) job, begin, end, places, then what one part held
    log_work_ms: Any  # (rows,) work done
    log_places: Any  # of the rows, end to end


ARRIVED, RUNNING_COUNT, WAITING_COUNT, EVENTS, RELEASED, LOG_ROWS, LOG_PLACES = 0, 1, 2, 3, 4, 5, 6
NOW, SHARE_NETWORK = 7, 8
COUNTERS = 9
"""Counters of a machine, the clock in ms, and whether the network is shared."""
