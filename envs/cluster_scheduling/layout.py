"""Where everything lies in the kernel's arrays.

The kernel takes few, flat arrays: passing a dozen arrays per helper costs more than the work they
do, in run time and in compile time. This file names their columns.

* ``state``: int64, (environments, words): one row is one cluster. Named words first, then blocks
  whose begins stand in ``constants``.
* ``grids``: int16, (environments, jobs + slots, nodes): first the GPUs that each job of the episode
  holds or held on each node, then the GPUs of each slot's job that each node has room for (at the
  least levels that may be chosen).
* ``stream``: int64, (rows, columns): jobs of the whole stream.
* ``nodes``: int64, (nodes, columns): the cluster.
* ``constants``: int64: sizes, switches, begins of blocks, then lists.
* ``numbers``: float64: real constants.
* ``rate``, ``busy``: the speed tables, flattened; see `speeds`.
* ``step``: float64, (environments, columns): what a step brought.

Times are milliseconds. CPU is counted in millicores, memory in MiB, I/O and network in kB/s, all
of them in quarters (allocation levels are quarters), so that amounts are whole numbers and a node
that is empty again is exactly empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

COMPILED: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}
"""Options of all kernels. They allocate nothing, so Numba's reference counting (`_nrt`) is left
out: it would count every array up and down at every call of a helper, atomically, and threads would
fight over the counts. Leaving it out halves the time of a step even on one thread."""

RESOURCES = 5
LEVELS = np.array([2, 3, 4, 6, 8], dtype=np.int64)
"""Allocation levels in quarters of what the job asked for: 0.5, 0.75, 1, 1.5, 2."""
UNIT_LEVEL = 2
"""Index of level 1 in `LEVELS`."""
UNIT_LEVELS = 222
"""Levels of CPU, I/O and network packed in decimal digits, all at 1."""
BUSY_SCALE = 1_000_000
"""Consumption is summed in millionths, as whole numbers, so that it returns to exactly zero."""

PICK, PLACE, LEVEL_CPU, LEVEL_IO, LEVEL_NETWORK = range(5)
"""Phases of a decision."""
BEST_FIT, WORST_FIT, SAME_RACK, SPREAD, TYPE_0 = range(5)
"""Placement rules; TYPE_0 + t is best fit among nodes of GPU type t."""

# Named words of a row of the state.
(
    WINDOW,  # row of the stream of the episode's first job
    ORIGIN,  # its submission
    NOW,
    ARRIVED,  # jobs submitted so far
    SHOWN,  # jobs that have been put into slots so far
    FINISHED,
    SLOTS_USED,
    RUNNING,  # number of running jobs
    PHASE,
    CHOSEN,
    CHOSEN_LEVELS,
    WATTS,  # milliwatts above idle
    IDLE_WATTS,  # milliwatts
    WEIGHT,  # thousandths, of the jobs in the system
    CROWD,  # integral of the number of jobs in the system since the begin
    DONE,
    NEXT_FINISH,
    STEP_JOB,  # integral of the number of jobs in the system over the step
    STEP_TIME,
) = range(19)
HELD = 19
BUSY = 24
WORDS = 29

# Columns of the stream.
SUBMIT, DURATION, GPUS, DEMAND = range(4)  # DEMAND and the next three: per GPU
PROFILE, TYPE_BITS, JOB_WEIGHT = 7, 8, 9
STREAM_COLUMNS = 10

# Columns of the nodes; the capacity takes five.
CAPACITY, KIND, RACK = 0, 5, 6
NODE_COLUMNS = 7

# Constants.
(
    K_SLOTS,
    K_JOBS,
    K_NODES,
    K_RACKS,
    K_KINDS,
    K_RULES,
    K_CHOOSE_PLACE,
    K_CHOOSE_LEVELS,
    K_HORIZON,  # -1: none
    K_FIRST_WINDOW,
    K_WINDOWS,
    K_MULTI,  # jobs hold more than GPUs
    K_ANY_NODE,  # some rule places a one-GPU job wherever there is room
    K_ANYWHERE,  # some rule places any gang wherever there is room
    B_SLOTS,  # begins of blocks of a row of the state
    B_FREE,
    B_TENTATIVE,
    B_PLACE_OK,
    B_LEVEL_OK,
    B_RUNNING,
    B_JOBS,
    L_RULES,  # begins of lists in the constants themselves
    L_IDLE_W,
    L_ACTIVE_W,
    L_LARGEST,  # most GPUs of a node, by kind; last: of any
) = range(25)
CONSTANTS = 25

# Words of a slot, of an entry of the running list, and of a job of the episode.
SLOT_JOB, SLOT_GANG, SLOT_ROOM, STARTABLE = range(4)  # SLOT_ROOM: sum of its row of the grid
SLOT_WORDS = 4
RUNNING_JOB, RUNNING_FINISH = range(2)
RUNNING_WORDS = 2
(
    START,  # -1 before
    FINISH,  # planned at the start; -1 before
    ESTIMATE,
    CROWD_AT,  # CROWD at its submission
    JOB_LEVELS,  # packed, see UNIT_LEVELS
    NODES_USED,
    FIRST_NODE,
    JOB_ROW,  # of the speed tables
) = range(8)
JOB_WORDS = 8

# Real constants: the totals take five.
N_DISCOUNT, N_SIGMA, N_TOTAL = 0, 1, 2
NUMBERS = 7

# Columns of a step, in the order of `types.OBJECTIVES`; IDLE takes five.
CROWDING, WEIGHTED, SLOWDOWN, IDLE = range(4)
UNFAIRNESS, JOULES = 8, 9
STEP_COLUMNS = 10


@dataclass(frozen=True, eq=False)
class Rules:
    """Constants of an environment, and the size of a row of the state.

    Attributes:
        constants: int64, see above.
        numbers: float64, see above.
        words: Length of a row of the state.
    """

    constants: NDArray[np.int64]
    numbers: NDArray[np.float64]
    words: int

    @classmethod
    def of(
        cls,
        nodes: NDArray[np.int64],
        *,
        slots: int,
        jobs: int,
        kinds: int,
        codes: NDArray[np.int64],
        choose_place: bool,
        choose_levels: bool,
        horizon_ms: int = -1,
        first_window: int = 0,
        windows: int = 1,
        multi_resource: bool = True,
        discount_per_ms: float = 0.0,
        estimate_sigma: float = 0.0,
        idle_w: int = 0,
        active_w: int = 0,
    ) -> Rules:
        """Lays out the blocks of a row and the lists of the constants."""
        count = len(nodes)
        sizes = {
            B_SLOTS: slots * SLOT_WORDS,
            B_FREE: count * RESOURCES,
            B_TENTATIVE: count,
            B_PLACE_OK: len(codes),
            B_LEVEL_OK: len(LEVELS),
            B_RUNNING: jobs * RUNNING_WORDS,
            B_JOBS: jobs * JOB_WORDS,
        }
        largest = [int(nodes[nodes[:, KIND] == kind, CAPACITY].max()) for kind in range(kinds)]
        lists = {
            L_RULES: codes.tolist(),
            L_IDLE_W: [idle_w] * kinds,
            L_ACTIVE_W: [active_w] * kinds,
            L_LARGEST: [*largest, max(largest)],
        }
        constants = np.zeros(CONSTANTS, dtype=np.int64)
        constants[:K_FIRST_WINDOW] = (
            slots,
            jobs,
            count,
            int(nodes[:, RACK].max()) + 1,
            kinds,
            len(codes),
            choose_place,
            choose_levels,
            horizon_ms,
        )
        constants[K_FIRST_WINDOW], constants[K_WINDOWS] = first_window, windows
        constants[K_MULTI] = multi_resource
        constants[K_ANY_NODE] = (codes < TYPE_0).any()
        constants[K_ANYWHERE] = (codes == SPREAD).any()
        words = WORDS
        for block, size in sizes.items():
            constants[block] = words
            words += size
        for begin, values in lists.items():
            constants[begin] = len(constants)
            constants = np.concatenate([constants, np.array(values, dtype=np.int64)])
        numbers = np.zeros(NUMBERS)
        numbers[N_DISCOUNT], numbers[N_SIGMA] = discount_per_ms, estimate_sigma
        numbers[N_TOTAL:] = nodes[:, CAPACITY : CAPACITY + RESOURCES].sum(axis=0)
        return cls(constants, numbers, words)

    def block(self, state: NDArray[np.int64], begin: int, *shape: int) -> NDArray[np.int64]:
        """A view of a block of all rows, (environments, *shape)."""
        first = int(self.constants[begin])
        size = int(np.prod(shape))
        return state[:, first : first + size].reshape(len(state), *shape)
