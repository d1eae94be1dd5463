"""Communication tuning as Gymnasium environments: the interface; the physics is in `dynamics`."""

from __future__ import annotations

from typing import Any

from dtgym.envs.communication_tuning.dynamics import TuningDynamics
from dtgym.envs.communication_tuning.types import Parameters
from dtgym.envs.native import NativeEnv, NativeVectorEnv
from dtgym.simulator.errors import InvalidInput


class CommunicationTuningEnv(NativeEnv):
    """Tune partition and credit size of a communication scheduler while the network drifts.

    ## Description
    A data-parallel job trains with a scheduler that cuts gradients into pieces of at most
    `partition_bytes` and keeps about `credit_bytes` of them in flight (ByteScheduler, SOSP 2019).
    Small pieces and windows react quickly and pay overhead; large ones fill the link and delay
    urgent gradients or congest the network. Where the optimum lies depends on the network and the
    workers, which drift (AutoByte's setting). One step is K = `iterations_per_step` training
    iterations under one configuration.

    ## Action Space
    `Discrete(partitions x credits)` in mode ``grid`` (default, 9 x 9 = 81): cell
    ``partition_index * credits + credit_index``. `Discrete(9)` in mode ``delta``: move by
    ``(action // 3 - 1, action % 3 - 1)`` on the partition and credit axis; the mask forbids
    leaving the grid, and a forbidden move keeps the configuration.

    A change of credit is free and immediate. A change of partition with a parameter server
    restarts the job (`restart_s`); with all-reduce it takes effect 10 iterations later.

    ## Observation Space
    `Box`, float32, shape (19,): the entries of `dtgym.envs.communication_tuning.types.FEATURES`.
    Times, throughput, latency and skew are noisy measurements of the last step; nothing of the
    present or future state of the network is shown before it has been lived.

    ## Rewards
    ``-log(duration of the step / duration under the release's default in the same state)``, with
    true (noise-free) times and including a restart. 0 is as good as the default (1 M / 4 M
    parameters), 0.69 is twice as fast. ``info["vector_reward"]`` holds speed and reconfiguration
    (which add up to the scalar reward) and footprint; see `reward`.

    ## Starting State
    The job has run one step's iterations under the default configuration, in state 0 of the drift,
    and has measured them. The model is drawn from `model` if that names several.

    ## Episode End
    Terminates after `horizon` steps; never truncates.

    ## Arguments
    See `dtgym.envs.communication_tuning.types.Parameters`. All are plain data.

    ## Vectorized environment
    `CommunicationTuningVectorEnv` owns the batch and calls the simulator once per step. Environment
    i of ``reset(seed=s)`` equals a scalar environment after
    ``reset(seed=dtgym.envs.seeding.child_seeds(s, n)[i])``, bit for bit.

    ## Version History
    * v0: initial release.

    Examples:
        >>> import gymnasium as gym
        >>> import dtgym.envs
        >>> env = gym.make("dtgym/CommunicationTuning-Toy-v0")
        >>> observation, info = env.reset(seed=0)
        >>> env.step(1)[4]["iteration_time_s"]
        9.0
    """

    dynamics: TuningDynamics

    def __init__(self, *, render_mode: str | None = None, **arguments: Any) -> None:
        """Makes one environment; for `arguments` see `types.Parameters`.

        Raises:
            InvalidInput: An unknown argument, or a value out of range.
        """
        super().__init__(TuningDynamics(1, Parameters.of(arguments)), render_mode)

    def timeline(self) -> dict[str, Any]:
        """One iteration in the present state and configuration as Chrome trace events.

        Write it with ``json.dump`` and open the file in Perfetto.
        """
        from dtgym.envs.communication_tuning import render

        return render.timeline(self.dynamics, 0).chrome_trace()


class CommunicationTuningVectorEnv(NativeVectorEnv):
    """A batch of `CommunicationTuningEnv`, stepped by one call of the simulator."""

    dynamics: TuningDynamics

    def __init__(
        self, num_envs: int = 1, *, render_mode: str | None = None, **arguments: Any
    ) -> None:
        """Makes a batch; for `arguments` see `types.Parameters`.

        Raises:
            InvalidInput: An unknown argument, or a value out of range.
        """
        if num_envs < 1:
            raise InvalidInput(f"num_envs must be at least 1, got {num_envs}")
        super().__init__(TuningDynamics(num_envs, Parameters.of(arguments)), render_mode)
