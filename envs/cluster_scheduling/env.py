"""Cluster scheduling as Gymnasium environments: the interface; the rules are in `dynamics`."""

from __future__ import annotations

from typing import Any

from dtgym.envs.cluster_scheduling.dynamics import SchedulingDynamics
from dtgym.envs.cluster_scheduling.types import Parameters
from dtgym.envs.native import NativeEnv, NativeVectorEnv
from dtgym.simulator.errors import InvalidInput


class ClusterSchedulingEnv(NativeEnv):
    """Decide which waiting training job starts next, where, and with how much of each resource.

    ## Description
    Jobs arrive at a GPU cluster; each needs its whole gang of GPUs at once (and, with
    `multi_resource`, CPU, memory, I/O and network on the same nodes) and then runs to its end. An
    episode is a window of `jobs_per_episode` jobs of a long stream (generated with the statistics
    of a real trace, or read from a trace file) on an initially empty cluster. Events of one instant
    happen in the order completions, arrivals, decisions.

    A decision is made at every instant at which at least one shown job could be started. Time
    passes only by the action "let time pass", which moves to the next event, and where nobody could
    be started. Started jobs are never preempted. A job's speed is that of
    `dtgym.simulator.job_speed` on what it was given; with one GPU type and without
    `multi_resource` it runs for exactly its duration.

    ## Action Space
    One `Discrete`; the mask says which part of it is asked for. With K = `queue_slots`, P
    placements and 5 levels:

    | action | phase | meaning |
    |---|---|---|
    | 0 .. K-1 | slot | start the job in this slot (oldest first) |
    | K | slot | let time pass |
    | K+1 .. K+P | placement | put it by this rule of `placements` |
    | K+P+1 .. K+P+5 | cpu, io, network level | give 0.5, 0.75, 1, 1.5 or 2 times what it asks |

    Phases that `decisions` leaves out are not asked; levels of a resource that the job does not ask
    for neither. A rule is legal if it can place the job at the least levels that may still be
    chosen; a level is legal if the chosen nodes have room for it, so no choice can strand the next.
    "Let time pass" is legal unless no event is ahead. A forbidden action changes nothing, takes no
    time and is counted in ``info["invalid_actions"]``.

    Placements: ``best_fit`` (gangs that fit a node go whole to the fullest with room, larger ones
    take wholly free nodes and one part-node: the engine's ``consolidate``), ``worst_fit`` (likewise
    to the emptiest), ``same_rack`` (anywhere within the first rack with room), ``spread``
    (anywhere, roomiest nodes first), ``type:NAME`` (best fit on that GPU type).

    ## Observation Space
    `Dict` of float32 arrays; the features are named in `types`, and all are scaled to [0, 1] (the
    clock to [-1, 1]).

    | key | shape | features |
    |---|---|---|
    | queue | (K, 16) | `types.QUEUE_FEATURES` |
    | nodes | (nodes, 9) | `types.NODE_FEATURES` |
    | running | (16, 5) | `types.RUNNING_FEATURES` |
    | cluster | (23,) | `types.CLUSTER_FEATURES` |
    | action_mask | (actions,) int8 | legal actions |

    Durations are shown as estimates: the true one times ``exp(sigma z)`` (`estimate_sigma`), unless
    `oracle` is set.

    ## Rewards
    Default ``jct``: minus the integral of the number of jobs in the system over the step, divided
    by the mean duration of the stream's jobs, a constant. The undiscounted sum over an episode is
    therefore exactly ``-(sum of JCT) / mean duration``; ``info["job_ms"]`` holds the integral as a
    whole number of job-milliseconds. Other objectives by `reward`; all of them, always, in
    ``info["vector_reward"]`` (see `reward.vector_reward`). With `discount_per_s` = beta the
    integral is discounted by exp(-beta t) within the step, and ``info["discount"]`` is the factor
    for what comes after it (semi-Markov discounting, Bradtke and Duff, NIPS 1994).

    ## Starting State
    Time 0 is the submission of the window's first job; the cluster is empty.

    ## Episode End
    Terminates when all jobs are done, or at `horizon_s`; never truncates.

    ## Arguments
    See `dtgym.envs.cluster_scheduling.types.Parameters`. All are plain data.

    ## Vectorized environment
    `ClusterSchedulingVectorEnv` owns the batch. Environment i of ``reset(seed=s)`` equals a scalar
    environment after ``reset(seed=dtgym.envs.seeding.child_seeds(s, n)[i])``, bit for bit.

    ## Version History
    * v0: initial release.

    Examples:
        >>> import gymnasium as gym
        >>> import dtgym.envs
        >>> env = gym.make("dtgym/ClusterScheduling-Toy-v0")
        >>> observation, info = env.reset(seed=0)
        >>> job_ms, ended = 0, False
        >>> while not ended:  # the last slot holds the shortest job of the batch
        ...     slot = info["action_mask"][:-1].nonzero()[0].max(initial=-1)
        ...     action = int(slot) if slot >= 0 else env.action_space.n - 1
        ...     observation, reward, ended, _, info = env.step(action)
        ...     job_ms += info["job_ms"]
        >>> job_ms / 1000  # two batches of 560 s, the optimum
        1120.0
    """

    dynamics: SchedulingDynamics

    def __init__(self, *, render_mode: str | None = None, **arguments: Any) -> None:
        """Makes one environment; for `arguments` see `types.Parameters`.

        Raises:
            InvalidInput: An unknown argument, or a value out of range.
        """
        super().__init__(SchedulingDynamics(1, Parameters.of(arguments)), render_mode)

    def timeline(self) -> dict[str, Any]:
        """The schedule so far as Chrome trace events: a row per node, a bar per job.

        Write it with ``json.dump`` and open the file in Perfetto.
        """
        from dtgym.envs.cluster_scheduling import render

        return render.timeline(self.dynamics, 0)


class ClusterSchedulingVectorEnv(NativeVectorEnv):
    """A batch of `ClusterSchedulingEnv`, stepped by a few calls of a compiled kernel."""

    dynamics: SchedulingDynamics

    def __init__(
        self, num_envs: int = 1, *, render_mode: str | None = None, **arguments: Any
    ) -> None:
        """Makes a batch; for `arguments` see `types.Parameters`.

        Raises:
            InvalidInput: An unknown argument, or a value out of range.
        """
        if num_envs < 1:
            raise InvalidInput(f"num_envs must be at least 1, got {num_envs}")
        super().__init__(SchedulingDynamics(num_envs, Parameters.of(arguments)), render_mode)
