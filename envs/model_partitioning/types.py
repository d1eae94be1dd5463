"""What goes into and comes out of model partitioning: arguments, features, public state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.envs.model_partitioning.generator import FAMILIES, Choices, Pool, make_pool, pool_of
from dtgym.simulator import partition, pipeline, workload
from dtgym.simulator.errors import InvalidInput, above, one_of
from dtgym.simulator.partition_settings import Setting, load_sites
from dtgym.simulator.partition_space import Candidate, PlanSpace, Rules
from dtgym.simulator.partition_types import Assumptions


@dataclass(frozen=True, slots=True)
class Parameters:
    """Arguments of the environments: plain data, checked once.

    Attributes:
        family: Kind of instances, a key of `dtgym.envs.model_partitioning.generator.FAMILIES`.
        instances: Size of the pool that episodes draw from (family ``drift``: steps of the drift).
        pool_seed: Seed of the pool; other seeds give other instances.
        instance: Every episode is this one of the pool; None draws one per episode.
        model: Transformer to train, or a list to draw from; None takes the family's.
        wan_gbit_per_s: Bandwidth of every wide-area link, Gbit/s; None takes the family's.
        max_stages: Most stages of a plan; None takes the family's.
        wires: Formats that may cross clusters; None takes the family's.
        recompute: ``none``, ``selective`` or ``full``.
        zero: ZeRO stage of every stage, 0 to 3.
        overlap: Overlap rule of the pipeline, ``overlapped``, ``sender_blocked`` or ``both_ends``.
        sites: Path of a user's sites or cluster file instead of a family; needs `model` and
            `global_batch`.
        global_batch: Sequences per iteration, with `sites` only.
        horizon: Moves of an episode; the improvement environment alone reads it.
    """

    family: str = "medium"
    instances: int = 64
    pool_seed: int = 0
    instance: int | None = None
    model: str | tuple[str, ...] | None = None
    wan_gbit_per_s: float | None = None
    max_stages: int | None = None
    wires: tuple[str, ...] | None = None
    recompute: str = "selective"
    zero: int = 1
    overlap: str = "overlapped"
    sites: str | None = None
    global_batch: int | None = None
    horizon: int = 32

    def __post_init__(self) -> None:
        one_of("family", self.family, tuple(FAMILIES))
        for name in ("model", "wires"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                object.__setattr__(self, name, tuple(value))
        for name in ("instances", "pool_seed", "horizon"):
            least = 0 if name == "pool_seed" else 1
            _whole(name, getattr(self, name), least)
        for name in ("max_stages", "global_batch", "instance"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 0 if name == "instance" else 1)
        if self.instance is not None and self.instance >= self.instances:
            raise InvalidInput(
                f"instance must be below instances ({self.instances}), got {self.instance}"
            )
        if self.wan_gbit_per_s is not None:
            above("wan_gbit_per_s", self.wan_gbit_per_s, 0, "Gbit/s")
        for model in self.models:
            workload.transformer(model)
        one_of("overlap", self.overlap, pipeline.OVERLAP_RULES)
        if self.sites is not None and (len(self.models) != 1 or self.global_batch is None):
            raise InvalidInput("sites needs one model and a global_batch beside it")

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Parameters:
        """Parameters from keyword arguments.

        Raises:
            InvalidInput: An unknown name, or a value out of range.
        """
        known = tuple(field.name for field in fields(cls))
        for name in arguments:
            if name not in known:
                raise InvalidInput(f"unknown argument {name}; known: {', '.join(known)}")
        return cls(**arguments)

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models to draw from; empty takes the family's."""
        if self.model is None:
            return ()
        return (self.model,) if isinstance(self.model, str) else self.model


@lru_cache(maxsize=16)
def pool_of_parameters(parameters: Parameters) -> Pool:
    """The instances of these arguments; made once per process, for a pool is never changed.

    Raises:
        InvalidInput: A sites file that cannot be read, or a family without solvable instances.
    """
    family = FAMILIES[parameters.family]
    rules = Rules(
        max_stages=parameters.max_stages or family.max_stages,
        wires=parameters.wires or family.wires,
        recompute=parameters.recompute,
        zero=parameters.zero,
    )
    assumptions = Assumptions(overlap=parameters.overlap)
    if parameters.sites is not None:
        setting = load_sites(
            Path(parameters.sites),
            model=parameters.models[0],
            global_batch=parameters.global_batch or 1,
        )
        return pool_of([setting], rules, assumptions)
    return make_pool(
        parameters.family,
        parameters.instances,
        parameters.pool_seed,
        Choices(parameters.models, parameters.wan_gbit_per_s),
        rules,
        assumptions,
    )


def _whole(name: str, value: object, least: int) -> None:
    good = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not good or value < least:  # type: ignore[operator]
        raise InvalidInput(f"{name} must be a whole number of at least {least}, got {value!r}")


CLUSTER_FEATURES = (
    "present: 1 for a cluster of the instance, 0 for padding",
    "log10 of samples per second of one accelerator on the whole model, without parallelism",
    "log10 of the accelerator's memory in units of 10 GB",
    "log2 of the cluster's accelerators, over 8",
    "log2 of the accelerators of a node, over 8",
    "log10 of the bandwidth inside a node in GB/s, over 3",
    "log10 of an accelerator's share of the network between nodes in GB/s",
    "share of the cluster's accelerators that are still free",
    "visited: 1 where a stage of the plan lies on it",
    "current: 1 for the cluster of the newest stage",
)
"""Columns of ``clusters``, one row per cluster."""

LINK_FEATURES = (
    "log10 of the bandwidth from the row's to the column's cluster in Gbit/s; -3 for no link",
    "log10 of the one-way delay in ms, over 3",
)
"""Last axis of ``links``."""

MODEL_FEATURES = (
    "layers, over 100",
    "log10 of the parameters in billions",
    "log10 of the parameters of one block in millions, over 4",
    "log10 of stored bytes of one block per sample in MB, over 4",
    "log10 of the bytes of one sample's border in MB, over 3",
    "log2 of the global batch, over 12",
)
"""Entries of ``model``."""

STAGE_FEATURES = (
    "placed: 1 for a stage of the plan, 0 behind it",
    "cluster of the stage over the number of clusters",
    "log2 of its accelerators, over 8",
    "log2 of its tensor parallelism, over 4",
    "share of the model's layers",
    "border behind it over the model's layers",
    "log10 of its time per sample over the reference plan's time per sample",
    "wire on the border before it, over 3",
    "extra warm-up depth, over 3",
)
"""Columns of ``stages``, one row per stage of the longest plan."""

PROGRESS_FEATURES = (
    *(f"1 while the head {head} is due" for head in (
        "micro_batch", "cluster", "gpus", "tensor", "layers", "wire", "warmup")),
    "log2 of the micro-batch, over 8",
    "log2 of the number of micro-batches, over 10",
    "share of the layers not yet placed",
    "stages placed over the most stages",
    "most stages that memory of the placed stages allows, over the most stages",
)  # fmt: skip
"""Entries of ``progress``."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What a planner can know of an episode: all of it, for nothing here is hidden.

    Attributes:
        setting: Sites, network, model and batch.
        space: The space of plans of this one instance; prices plans exactly.
        head: The decision that is due, a name of `plan_construction.HEADS`.
        plan: The plan so far.
        reference: The rules of thumb's best plan, from which rewards count.
        reference_time_s: Its iteration time, s.
        improving: Whether actions are moves on a whole plan instead of decisions.
    """

    setting: Setting
    space: PlanSpace
    head: str
    plan: Candidate
    reference: Candidate
    reference_time_s: float
    improving: bool = False


def static_features(pool: Pool) -> dict[str, NDArray[np.float32]]:
    """Features that an episode does not change, by key: (I, ...) float32."""
    problem = pool.space.problem
    tables = problem.tables
    present = problem.row >= 0
    row = np.maximum(problem.row, 0)
    layers = problem.layers
    last = layers[:, None]
    alone_s = pool.space.stage_time_s[row, 0, 0, last]
    parameters = tables.parameters[row, 0, last]
    clusters = np.zeros((*present.shape, len(CLUSTER_FEATURES)))
    with np.errstate(divide="ignore", invalid="ignore"):
        columns = (
            np.ones(present.shape),
            -np.log10(alone_s),
            np.log10(problem.memory_bytes / 1e10),
            np.log2(np.maximum(problem.gpus, 1)) / 8,
            np.log2(np.maximum(problem.gpus_per_node, 1)) / 8,
            np.log10(problem.intra_bytes_per_s / 1e9) / 3,
            np.log10(problem.inter_bytes_per_s / 1e9),
        )
        for number, column in enumerate(columns):
            clusters[..., number] = np.where(present, column, 0.0)
        connected = problem.wan_bytes_per_s > 0
        gbit = np.log10(problem.wan_bytes_per_s * 8e-9)
        delay = np.log10(problem.wan_delay_s * 1e3 + 1e-3) / 3
    links = np.stack([np.where(connected, gbit, -3.0), np.where(connected, delay, -1.0)], axis=-1)
    one = np.arange(len(problem)), row[:, 0]
    middle = layers // 2
    block = tables.parameters[one[1], 0, middle + 1] - tables.parameters[one[1], 0, middle]
    kind = partition.RECOMPUTE.index(pool.space.rules.recompute)
    stored = tables.activation_bytes[one[1], kind, 0]
    stored = stored[one[0], middle + 1] - stored[one[0], middle]
    border = tables.output_elements[one[1], middle] * 2
    model = np.stack(
        [
            layers / 100,
            np.log10(parameters[:, 0] / 1e9),
            np.log10(block / 1e6) / 4,
            np.log10(stored / 1e6 + 1e-3) / 4,
            np.log10(border / 1e6 + 1e-3) / 3,
            np.log2(problem.global_batch) / 12,
        ],
        axis=1,
    )
    return {
        "clusters": clusters.astype(np.float32),
        "links": links.astype(np.float32),
        "model": model.astype(np.float32),
    }
