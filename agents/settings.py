"""Hyper-parameters of the agents: one YAML file an algorithm, a default block and one an id.

A block for an environment id holds only what differs from the default; an experiment may differ
once more through the method's ``hyperparameters`` option. Names under ``algorithm`` are
Stable-Baselines3's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import Field

from dtgym.simulator.documents import Document, read_yaml, validated

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


class Settings(Document):
    """Everything that decides a training run but the seed and the number of steps.

    Attributes:
        num_envs: Environments in the batch, shared out evenly among the training instances.
        learning_rate: Learning rate at the start.
        learning_rate_decay: ``linear`` goes down to zero at the end of training.
        network: Widths of the hidden layers, of policy and value function alike.
        network_kind: ``mlp``: layers over all observations; ``slots``: one network judges every
            slot of a queue, see `dtgym.agents.slot_policy` (maskable_ppo; the first width counts).
        activation: Activation function of the hidden layers.
        reward_scale: Rewards are multiplied by it while learning, so that values are of the order
            of 1; returns are logged without it.
        num_minibatches: Mini-batches an epoch (PPO); None for algorithms without them.
        logs: Times that figures are logged during training, evenly spaced.
        validations: Times that the validation episodes are played during training.
        checkpoints: Times that training can be resumed from.
        algorithm: Further arguments of the algorithm, as Stable-Baselines3 names them.
    """

    num_envs: Positive
    learning_rate: Annotated[float, Field(gt=0)]
    learning_rate_decay: Literal["none", "linear"] = "none"
    network: Annotated[list[Positive], Field(min_length=1)]
    network_kind: Literal["mlp", "slots"] = "mlp"
    activation: Literal["tanh", "relu"] = "tanh"
    reward_scale: Annotated[float, Field(gt=0)] = 1.0
    num_minibatches: Positive | None = None
    logs: Positive = 100
    validations: Count = 10
    checkpoints: Count = 5
    algorithm: dict[str, Any]


class _File(Document):
    default: dict[str, Any]
    environments: dict[str, dict[str, Any]] = Field(default_factory=dict)


def load(algorithm: str, env_id: str, changes: Mapping[str, Any]) -> Settings:
    """Settings of an algorithm for an environment.

    Args:
        algorithm: Name of the YAML file.
        env_id: Id whose block is laid over the default block; a ``module:`` prefix is ignored.
        changes: Laid over both.

    Raises:
        InvalidInput: An unknown or wrong field, in one line.

    Examples:
        >>> load("ppo", "dtgym/CommunicationTuning-v0", {"num_envs": 4}).num_envs
        4
    """
    source = f"hyperparameters/{algorithm}.yaml"
    resource = files("dtgym.agents") / "hyperparameters" / f"{algorithm}.yaml"
    content = read_yaml(resource.read_text(encoding="utf-8"), source=source)
    document = validated(_File, content, source=source)
    block = document.environments.get(env_id.rpartition(":")[2], {})
    merged = _merged(_merged(document.default, block), changes)
    return validated(Settings, merged, source=f"{source} with the method's hyperparameters")


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**base, **changes}
    if "algorithm" in base and "algorithm" in changes:
        merged["algorithm"] = {**base["algorithm"], **changes["algorithm"]}
    return merged
