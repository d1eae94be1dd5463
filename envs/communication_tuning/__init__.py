"""Tuning partition and credit size of a communication scheduler as an MDP."""

from __future__ import annotations

from typing import Any

from dtgym.envs.registration import EnvironmentSpec


def _spec(name: str, description: str, **kwargs: Any) -> EnvironmentSpec:
    return EnvironmentSpec(
        id=f"dtgym/CommunicationTuning{name}-v0",
        entry_point="dtgym.envs.communication_tuning.env:CommunicationTuningEnv",
        vector_entry_point="dtgym.envs.communication_tuning.env:CommunicationTuningVectorEnv",
        kwargs=kwargs,
        description=description,
    )


SPECS = (
    _spec("", "VGG16 by all-reduce, everything drifts", scenario="mixed"),
    _spec("-Steady", "nothing drifts, each episode draws its network", scenario="steady"),
    _spec("-BandwidthMarkov", "bandwidth jumps", scenario="bandwidth-markov"),
    _spec("-LatencyShift", "overheads and delays jump", scenario="latency-shift"),
    _spec("-Stragglers", "a slow worker comes and goes", scenario="stragglers"),
    _spec("-Incast", "large windows congest the link, now more, now less", scenario="incast"),
    _spec("-AnyModel", "each episode trains another model", scenario="mixed", model="random"),
    _spec(
        "-ParameterServer",
        "VGG16 with a parameter server, everything drifts",
        scenario="mixed",
        architecture="ps",
    ),
    _spec(
        "-Toy",
        "ByteScheduler's three layers: 9 s at best (action 1), 13 s by default",
        model="toy",
        scenario="toy",
        architecture="ps",
        horizon=4,
        partition_grid_bytes=[0.5e6, 4e6],
        credit_grid_bytes=[0.5e6, 1e6, 16e6],
        restart_s=0.0,
        measurement_noise=0.0,
    ),
)
"""Registered ids: the family's default, one preset per scenario, and an instance with a known
optimum."""
