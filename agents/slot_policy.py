"""A policy for choosing among slots: every slot is judged by the same small network.

A flat network has to learn for each place in the queue anew what a short job looks like. Here one
network scores every slot from its features and a summary of the cluster, as schedulers learnt by
reinforcement have done since Decima (Mao et al., SIGCOMM 2019). Actions that are no slots (let
time pass, placements, levels) come from the summary and the features of the chosen slot.
"""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from dtgym.simulator.errors import InvalidInput

SETS = ("queue", "nodes", "running")
"""Parts of the observation with a row per slot, node and running job; the first is chosen from.

The first feature of ``queue`` and ``running`` tells whether a row is in use, the last one of
``queue`` whether it is the chosen one.
"""


IDLING = -4.0
"""First logit of "let time pass", the first action behind the slots; all others are near 0."""


class Flat(BaseFeaturesExtractor):
    """Lays the parts of the observation end to end; the mask itself is no feature."""

    def __init__(self, observation_space: spaces.Dict) -> None:
        """Reads the sizes.

        Raises:
            InvalidInput: The observations have no slots.
        """
        missing = [name for name in (*SETS, "cluster") if name not in observation_space.spaces]
        if missing:
            raise InvalidInput(
                f"network_kind slots needs observations with {', '.join((*SETS, 'cluster'))}; "
                f"{missing[0]} is missing"
            )
        self.shapes = {name: _shape(observation_space[name]) for name in SETS}
        self.cluster = _shape(observation_space["cluster"])[0]
        rows = sum(count * width for count, width in self.shapes.values())
        super().__init__(observation_space, rows + self.cluster)

    def forward(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        """Features, (batch, features)."""
        parts = [observations[name].flatten(1) for name in (*SETS, "cluster")]
        return torch.cat(parts, dim=1)


def _shape(space: spaces.Space[Any]) -> tuple[int, ...]:
    assert space.shape is not None
    return space.shape


class _Encoder(nn.Module):
    """Embeds every row with the network of its kind and sums the cluster up.

    Args:
        flat: Where the sizes come from.
        width: Of all layers.
        activation: Between them.
    """

    def __init__(self, flat: Flat, width: int, activation: type[nn.Module]) -> None:
        super().__init__()
        self.shapes, self.cluster = flat.shapes, flat.cluster
        self.rows = nn.ModuleDict(
            {
                name: nn.Sequential(
                    nn.Linear(features, width), activation(), nn.Linear(width, width), activation()
                )
                for name, (_, features) in flat.shapes.items()
            }
        )
        # Means over the kinds of rows, the chosen slot, and the cluster's own features.
        self.summary = nn.Sequential(
            nn.Linear((len(SETS) + 1) * width + flat.cluster, width), activation()
        )

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Embedded slots, (batch, slots, width), and summaries, (batch, width)."""
        parts: list[torch.Tensor] = []
        embedded: dict[str, torch.Tensor] = {}
        begin = 0
        chosen = features[:, :0]
        for name, (count, width) in self.shapes.items():
            rows = features[:, begin : begin + count * width].unflatten(1, (count, width))
            begin += count * width
            embedded[name] = self.rows[name](rows)
            used = torch.ones_like(rows[:, :, :1]) if name == "nodes" else rows[:, :, :1]
            parts.append((embedded[name] * used).sum(1) / used.sum(1).clamp(min=1.0))
            if name == "queue":
                chosen = (embedded[name] * rows[:, :, -1:]).sum(1)
        summary = self.summary(torch.cat([*parts, chosen, features[:, begin:]], dim=1))
        return embedded["queue"], summary


class SlotNetwork(nn.Module):
    """Logits of all actions and the critic's last layer, from separate encoders.

    Args:
        flat: Where the sizes come from.
        actions: Number of actions; the first ones are the slots.
        width: Of all layers.
        activation: Between them.
    """

    def __init__(self, flat: Flat, actions: int, width: int, activation: type[nn.Module]) -> None:
        super().__init__()
        slots = flat.shapes["queue"][0]
        if actions <= slots:
            raise InvalidInput(
                f"network_kind slots needs more actions than the {slots} slots, got {actions}"
            )
        self.latent_dim_pi, self.latent_dim_vf = actions, width
        self.actor = _Encoder(flat, width, activation)
        self.critic = _Encoder(flat, width, activation)
        self.critic_head = nn.Sequential(nn.Linear(width, width), activation())
        self.slot, self.context = nn.Linear(width, width), nn.Linear(width, width)
        self.activation = activation()
        self.score = nn.Linear(width, 1)
        self.others = nn.Sequential(
            nn.Linear(width, width), activation(), nn.Linear(width, actions - slots)
        )

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits, (batch, actions), and the critic's features, (batch, width)."""
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features: torch.Tensor) -> torch.Tensor:
        """Logits, (batch, actions)."""
        slots, summary = self.actor(features)
        hidden = self.activation(self.slot(slots) + self.context(summary)[:, None])
        return torch.cat([self.score(hidden)[:, :, 0], self.others(summary)], dim=1)

    def forward_critic(self, features: torch.Tensor) -> torch.Tensor:
        """The critic's features, (batch, width)."""
        return self.critic_head(self.critic(features)[1])


class SlotPolicy(MaskableActorCriticPolicy):
    """Actor and critic with a `SlotNetwork`; the first of ``net_arch`` is its width."""

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], *args: Any,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        """See `MaskableActorCriticPolicy`; the features extractor is always `Flat`."""
        kwargs["features_extractor_class"] = Flat
        kwargs["features_extractor_kwargs"] = {}
        super().__init__(observation_space, action_space, *args, **kwargs)

    def _build_mlp_extractor(self) -> None:
        flat, space, widths = self.features_extractor, self.action_space, self.net_arch
        assert isinstance(flat, Flat) and isinstance(space, spaces.Discrete)
        assert isinstance(widths, list)
        network: Any = SlotNetwork(flat, int(space.n), int(widths[0]), self.activation_fn)
        self.mlp_extractor = network

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        # The network's outputs are the logits already; nearly equal at the start, as SB3's are.
        self.action_net = nn.Identity()
        network: Any = self.mlp_extractor
        for layer in (network.score, network.others[-1]):
            self.init_weights(layer, gain=0.01)
        # But an agent that idles at random from the start sees little else than queues.
        with torch.no_grad():
            network.others[-1].bias[0] = IDLING
        make: Any = self.optimizer_class
        self.optimizer = make(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)
