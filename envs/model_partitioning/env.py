"""Model partitioning as Gymnasium environments: the interface; the physics is in `dynamics`."""

from __future__ import annotations

from typing import Any

from dtgym.envs.model_partitioning.dynamics import ConstructionDynamics, ImprovementDynamics
from dtgym.envs.model_partitioning.types import Parameters
from dtgym.envs.native import NativeEnv, NativeVectorEnv
from dtgym.simulator.errors import InvalidInput


class ModelPartitioningEnv(NativeEnv):
    """Place a large model on heterogeneous clusters far apart, decision by decision.

    ## Description
    A transformer is cut into pipeline stages that lie on clusters of different accelerators joined
    by slow links. Each episode builds one plan for one instance: which clusters, how many
    accelerators, which tensor and data parallelism, which layers, which precision over the links
    and how deep a warm-up. The finished plan is priced by the exact 1F1B recurrence.

    ## Action Space
    `Discrete(n)`, n the size of the largest head. What an action means depends on the head that is
    due (one-hot in ``progress``), in this turn:

    | Head | Action k |
    |------|----------|
    | micro_batch | 2^k samples per micro-batch over all replicas of a stage |
    | cluster | next stage on cluster k; k = number of clusters: one last stage on this cluster |
    | gpus | 2^k accelerators |
    | tensor | k-th tensor-parallel degree (1, 2, 4, 8) |
    | layers | k + 1 layers (not asked of the last stage after "stop") |
    | wire | precision over the link: fp32, bf16, fp8, int4 (where the border crosses clusters) |
    | warmup | k micro-batches deeper than usual, 0 to 3 (not asked of the last stage) |

    The mask allows what leaves some feasible way to finish, and is never empty. A forbidden action
    changes nothing; an agent that ignores masks is cut off (truncated) after eight times the
    decisions of the longest plan.

    ## Observation Space
    `Dict`, float32 in -10..10, with ``action_mask`` int8 (n,):

    | Key | Shape | Entries |
    |-----|-------|---------|
    | clusters | (C, 10) | `types.CLUSTER_FEATURES` |
    | links | (C, C, 2) | `types.LINK_FEATURES` |
    | model | (6,) | `types.MODEL_FEATURES` |
    | stages | (S, 9) | `types.STAGE_FEATURES` of the plan so far |
    | progress | (12,) | `types.PROGRESS_FEATURES` |

    ## Rewards
    0 until the plan is whole, then ``log(reference time / time)``: 0 is as good as the best rule of
    thumb (Megatron's manual rule on the best single cluster, or a proportional split over all),
    0.69 is twice as fast. ``info["vector_reward"]`` holds throughput, accelerators, memory and
    precision; see `reward`.

    ## Starting State
    An empty plan for an instance drawn from the pool.

    ## Episode End
    Terminates when all layers are placed: at most 6 S + 1 legal decisions.

    ## Arguments
    See `dtgym.envs.model_partitioning.types.Parameters`. All are plain data.

    ## Vectorized environment
    `ModelPartitioningVectorEnv` owns the batch. Environment i of ``reset(seed=s)`` equals a scalar
    environment after ``reset(seed=dtgym.envs.seeding.child_seeds(s, n)[i])``, bit for bit.

    ## Version History
    * v0: initial release.

    Examples:
        >>> import gymnasium as gym
        >>> import dtgym.envs
        >>> env = gym.make("dtgym/ModelPartitioning-Toy-v0")
        >>> observation, info = env.reset(seed=0)
        >>> int(info["action_mask"].sum())  # micro-batches of 1, 2, 4, 8 and 16 samples
        5
    """

    dynamics: ConstructionDynamics

    def __init__(self, *, render_mode: str | None = None, **arguments: Any) -> None:
        """Makes one environment; for `arguments` see `types.Parameters`.

        Raises:
            InvalidInput: An unknown argument, or a value out of range.
        """
        super().__init__(ConstructionDynamics(1, Parameters.of(arguments)), render_mode)

    def timeline(self) -> dict[str, Any]:
        """The plan's pipeline as Chrome trace events; the reference plan's until it is whole.

        Write it with ``json.dump`` and open the file in Perfetto.
        """
        return _chrome_trace(self.dynamics)


class ModelPartitioningVectorEnv(NativeVectorEnv):
    """A batch of `ModelPartitioningEnv`."""

    dynamics: ConstructionDynamics

    def __init__(
        self, num_envs: int = 1, *, render_mode: str | None = None, **arguments: Any
    ) -> None:
        """Makes a batch; for `arguments` see `types.Parameters`.

        Raises:
            InvalidInput: An unknown argument, or a value out of range.
        """
        super().__init__(
            ConstructionDynamics(_at_least_one(num_envs), Parameters.of(arguments)), render_mode
        )


class ModelPartitioningImproveEnv(NativeEnv):
    """Improve a whole plan by local moves.

    ## Description
    The episode starts with the best plan of the rules of thumb; each step moves one layer border,
    changes one stage's accelerators or tensor parallelism, one link's precision, one warm-up depth
    or the micro-batch, and the new plan is priced exactly.

    ## Action Space
    `Discrete(n)`: the rows of `plan_construction.move_table`, the last of which stops. The mask
    allows moves that lead to a feasible plan, and stopping. A forbidden move keeps the plan.

    ## Observation Space
    As `ModelPartitioningEnv`.

    ## Rewards
    ``log(time before / time after)`` of each move; the return is the log of the speed-up over the
    rules of thumb. ``info["vector_reward"]`` holds what each objective gained.

    ## Starting State
    The reference plan of an instance drawn from the pool.

    ## Episode End
    Terminates at the stop or after `horizon` moves.

    ## Arguments
    See `dtgym.envs.model_partitioning.types.Parameters`. All are plain data.

    ## Vectorized environment
    `ModelPartitioningImproveVectorEnv` owns the batch, as `ModelPartitioningVectorEnv` does.

    ## Version History
    * v0: initial release.
    """

    dynamics: ImprovementDynamics

    def __init__(self, *, render_mode: str | None = None, **arguments: Any) -> None:
        """Makes one environment; for `arguments` see `types.Parameters`.

        Raises:
            InvalidInput: An unknown argument, or a value out of range.
        """
        super().__init__(ImprovementDynamics(1, Parameters.of(arguments)), render_mode)

    def timeline(self) -> dict[str, Any]:
        """The present plan's pipeline as Chrome trace events."""
        return _chrome_trace(self.dynamics)


class ModelPartitioningImproveVectorEnv(NativeVectorEnv):
    """A batch of `ModelPartitioningImproveEnv`."""

    dynamics: ImprovementDynamics

    def __init__(
        self, num_envs: int = 1, *, render_mode: str | None = None, **arguments: Any
    ) -> None:
        """Makes a batch; for `arguments` see `types.Parameters`.

        Raises:
            InvalidInput: An unknown argument, or a value out of range.
        """
        super().__init__(
            ImprovementDynamics(_at_least_one(num_envs), Parameters.of(arguments)), render_mode
        )


def _at_least_one(num_envs: int) -> int:
    if num_envs < 1:
        raise InvalidInput(f"num_envs must be at least 1, got {num_envs}")
    return num_envs


def _chrome_trace(dynamics: ConstructionDynamics | ImprovementDynamics) -> dict[str, Any]:
    from dtgym.envs.model_partitioning import render

    setting = dynamics.pool.settings[int(dynamics.builds.instance[0])]
    names = tuple(site.name for site in setting.sites)
    return render.timeline(dynamics, 0).chrome_trace(names)
