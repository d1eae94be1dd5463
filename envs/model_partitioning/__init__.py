"""Placing a large model on heterogeneous clusters far apart as an MDP."""

from __future__ import annotations

from typing import Any

from dtgym.envs.registration import EnvironmentSpec

_MODULE = "dtgym.envs.model_partitioning.env"


def _spec(name: str, description: str, **kwargs: Any) -> EnvironmentSpec:
    kind = "Improve" if name.startswith("-Improve") else ""
    return EnvironmentSpec(
        id=f"dtgym/ModelPartitioning{name}-v0",
        entry_point=f"{_MODULE}:ModelPartitioning{kind}Env",
        vector_entry_point=f"{_MODULE}:ModelPartitioning{kind}VectorEnv",
        kwargs=kwargs,
        description=description,
    )


_MEDIUM: dict[str, Any] = {
    "family": "medium",
    "model": ["gpt3-6.7b", "llama2-13b"],
    "instances": 32,
}

SPECS = (
    _spec("", "two to four clusters, 32 to 128 accelerators, models of 7 to 13 billion", **_MEDIUM),
    _spec("-Small", "two clusters of at most 16 accelerators, solved exactly", family="small",
          model=["gpt3-2.7b", "gpt3-6.7b"], instances=16),
    _spec("-Large", "eight regions of the world, 512 accelerators, Llama 2 of 70 billion",
          family="large", model="llama2-70b", instances=4),
    _spec("-Bandwidth", "two clusters over 0.5 to 10 Gbit/s", family="bandwidth", instances=7),
    _spec("-Drift", "two clusters whose link wanders", family="drift", instances=32),
    _spec("-Toy", "two pairs of accelerators, with a known optimum", family="toy", instances=1),
    _spec("-Improve", "local moves from the best rule of thumb, on the default's instances",
          **_MEDIUM),
)  # fmt: skip
"""Registered ids: the default, one preset per family, a known optimum, and improvement."""
