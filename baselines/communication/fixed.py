"""Methods that tune nothing: the release's default, and mechanisms without knobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dtgym.baselines.method import BaseMethod, View

STAY = 4
"""The move of ``delta`` mode that changes nothing."""


@dataclass
class Fixed(BaseMethod):
    """Keeps ByteScheduler's default configuration in whatever mechanism the environment runs.

    Attributes:
        env_overrides: Arguments of the environment that this method needs: a mechanism other than
            ByteScheduler runs as published, whatever the configuration says.
    """

    env_overrides: dict[str, Any] = field(default_factory=lambda: {})

    def act(self, view: View) -> int:
        """Returns the action that stays at, or goes to, the default."""
        state = view.state
        return STAY if state.action_mode == "delta" else int(state.default_action)


def make(name: str) -> Fixed:
    """Makes ``default``, or a mechanism: ``fifo``, ``p3``, ``ddp-buckets``.

    Source:
        default: ByteScheduler's release, docs/scheduling.md (1,000,000 and 4,000,000 parameters).
        The mechanisms: see `dtgym.simulator.communication_mechanisms.MECHANISMS`.

    Examples:
        >>> make("ddp-buckets").env_overrides
        {'mechanism': 'ddp_buckets'}
    """
    overrides = {} if name == "default" else {"mechanism": name.replace("-", "_")}
    return Fixed(name=name, env_overrides=overrides)
