"""Instances of model partitioning: clusters near enough in speed that joining them can pay.

A family draws settings (`dtgym.simulator.partition_settings.Setting`) from a seeded generator. A
pool keeps those that can be solved and counts the others: an episode's masks never strand, because
an instance without a known way to finish never gets into a pool.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dtgym.simulator import hardware, partition_rules
from dtgym.simulator.errors import InvalidInput, one_of
from dtgym.simulator.partition_settings import Setting, Site, problem_of
from dtgym.simulator.partition_space import Candidate, PlanSpace, Rules
from dtgym.simulator.partition_types import Assumptions

GBIT = 1e9 / 8
MAX_REJECTED_PER_INSTANCE = 20

# Accelerators of comparable memory; prices are on-demand list prices per hour, rounded.
NEAR_ACCELERATORS = {
    "A100-80": 2.5,
    "A800-80": 2.3,
    "H20-96": 2.2,
    "H800-SXM-80": 4.0,
    "Ascend-910B": 1.8,
    "L40S": 1.6,
    "A100-40": 2.0,
}
LARGEST_SPEED_RATIO = 3.2
"""Peak of the fastest accelerator of an instance over that of its slowest, at most: beyond it a
second cluster is hardly worth its network."""
NODE_NETWORK_GBIT = (100.0, 200.0, 400.0)

SMALL_MODELS = ("gpt3-2.7b", "gpt3-6.7b", "llama2-7b")
MEDIUM_MODELS = ("gpt3-6.7b", "gpt3-13b", "llama2-13b", "gpt-neox-20b", "mpt-30b", "llama2-70b")
LARGE_MODELS = ("llama2-70b", "gpt3-175b")

WORLD_REGIONS = (
    "Oregon", "Virginia", "Ohio", "Tokyo", "Seoul", "London", "Frankfurt", "Ireland"
)  # fmt: skip
WORLD_CONNECTIONS = 16
"""Parallel connections per pair of regions: the catalogue's rates are those of a single one."""
BANDWIDTH_SWEEP_GBIT = (0.5, 1.0, 2.0, 3.0, 5.0, 7.0, 10.0)

Draw = Callable[[np.random.Generator, int, "Choices"], Setting]


@dataclass(frozen=True)
class Choices:
    """What a caller fixes of an otherwise random instance.

    Attributes:
        models: Names of transformers to draw from; empty takes the family's.
        wan_gbit_per_s: Bandwidth of every wide-area link, Gbit/s; None takes the family's.
    """

    models: tuple[str, ...] = ()
    wan_gbit_per_s: float | None = None


@dataclass(frozen=True)
class Family:
    """A kind of instances.

    Attributes:
        description: In a few words.
        draw: Makes a setting from a generator, the number of the instance and choices.
        max_stages: Most stages of a plan.
        wires: Formats that may cross clusters.
        ordered: Whether instance k is step k of one drifting system instead of a draw of its own.
    """

    description: str
    draw: Draw
    max_stages: int
    wires: tuple[str, ...] = ("bf16", "fp8", "int4")
    ordered: bool = False


def _accelerators(random: np.random.Generator, count: int) -> list[str]:
    """Names of accelerators, no two further apart in speed than `LARGEST_SPEED_RATIO`."""
    names = list(NEAR_ACCELERATORS)
    speed = {name: hardware.accelerator(name).half_flop_per_s for name in names}
    chosen = [str(random.choice(names))]
    while len(chosen) < count:
        near = [
            name
            for name in names
            if all(
                1 / LARGEST_SPEED_RATIO <= speed[name] / speed[one] <= LARGEST_SPEED_RATIO
                for one in chosen
            )
        ]
        chosen.append(str(random.choice(near)))
    return chosen


def _site(random: np.random.Generator, name: str, accelerator: str, nodes: int, gpus: int) -> Site:
    network = float(random.choice(NODE_NETWORK_GBIT)) * GBIT
    return Site(
        name,
        hardware.accelerator(accelerator),
        nodes,
        gpus,
        network,
        NEAR_ACCELERATORS[accelerator],
    )


def _wan(
    random: np.random.Generator, count: int, low_gbit: float, high_gbit: float, choices: Choices
) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric links: bandwidth log-uniform, one-way delay 2 to 60 ms log-uniform."""
    bandwidth, delay = np.zeros((count, count)), np.zeros((count, count))
    for a in range(count):
        for b in range(a):
            gbit = np.exp(random.uniform(np.log(low_gbit), np.log(high_gbit)))
            gbit = choices.wan_gbit_per_s or gbit
            bandwidth[a, b] = bandwidth[b, a] = gbit * GBIT
            delay[a, b] = delay[b, a] = np.exp(random.uniform(np.log(2e-3), np.log(60e-3)))
    return bandwidth, delay


def _small(random: np.random.Generator, number: int, choices: Choices) -> Setting:
    accelerators = _accelerators(random, 2)
    gpus = random.choice([4, 8], size=2)
    sites = tuple(_site(random, "ab"[i], accelerators[i], 1, int(gpus[i])) for i in range(2))
    model = str(random.choice(choices.models or SMALL_MODELS))
    bandwidth, delay = _wan(random, 2, 2.0, 25.0, choices)
    batch = int(random.choice([32, 64]))
    return Setting(f"small-{number}", sites, bandwidth, delay, model, batch)


def _medium(random: np.random.Generator, number: int, choices: Choices) -> Setting:
    count = int(random.integers(2, 5))
    accelerators = _accelerators(random, count)
    nodes = random.choice([2, 4] if count < 4 else [1, 2, 4], size=count)
    sites = tuple(_site(random, "abcd"[i], accelerators[i], int(nodes[i]), 8) for i in range(count))
    model = str(random.choice(choices.models or MEDIUM_MODELS))
    bandwidth, delay = _wan(random, count, 1.0, 25.0, choices)
    batch = int(random.choice([128, 256]))
    return Setting(f"medium-{number}", sites, bandwidth, delay, model, batch)


def _large(random: np.random.Generator, number: int, choices: Choices) -> Setting:
    """Eight regions with measured links, 64 accelerators each."""
    network = hardware.wide_area_network("dtfm-world").select(WORLD_REGIONS)
    accelerators = _accelerators(random, len(WORLD_REGIONS))
    sites = tuple(
        _site(random, region, accelerator, 8, 8)
        for region, accelerator in zip(WORLD_REGIONS, accelerators, strict=True)
    )
    off_diagonal = ~np.eye(len(sites), dtype=bool)
    bandwidth = np.where(off_diagonal, network.bandwidth_bytes_per_s * WORLD_CONNECTIONS, 0.0)
    if choices.wan_gbit_per_s is not None:
        bandwidth = np.where(off_diagonal, choices.wan_gbit_per_s * GBIT, 0.0)
    delay = np.where(off_diagonal, network.delay_s, 0.0)
    model = str(random.choice(choices.models or LARGE_MODELS))
    return Setting(f"large-{number}", sites, bandwidth, delay, model, 512)


def _two_sites(random: np.random.Generator, gbit: float, name: str, choices: Choices) -> Setting:
    """A100 and A800 nodes 20 ms apart: as fast as each other, so only the network decides."""
    del random
    sites = tuple(
        Site(place, hardware.accelerator(kind), 2, 8, 200 * GBIT, NEAR_ACCELERATORS[kind])
        for place, kind in (("north", "A100-80"), ("south", "A800-80"))
    )
    bandwidth = np.array([[0.0, gbit], [gbit, 0.0]]) * GBIT
    delay = np.array([[0.0, 0.02], [0.02, 0.0]])
    model = (choices.models or ("llama2-13b",))[0]
    return Setting(name, sites, bandwidth, delay, model, 128)


def _bandwidth(random: np.random.Generator, number: int, choices: Choices) -> Setting:
    sweep = BANDWIDTH_SWEEP_GBIT[number % len(BANDWIDTH_SWEEP_GBIT)]
    gbit = choices.wan_gbit_per_s or sweep
    return _two_sites(random, gbit, f"bandwidth-{gbit:g}", choices)


def _drift(random: np.random.Generator, number: int, choices: Choices) -> Setting:
    """Step `number` of one system whose link wanders: the logarithm reverts to 4 Gbit/s."""
    del random
    walk = np.random.default_rng(0xD21F7)
    log_gbit = mean = np.log(choices.wan_gbit_per_s or 4.0)
    for _ in range(number):
        log_gbit += 0.3 * (mean - log_gbit) + 0.5 * walk.standard_normal()
    gbit = float(np.clip(np.exp(log_gbit), 0.5, 10.0))
    return _two_sites(walk, gbit, f"drift-{number}", choices)


def _toy(random: np.random.Generator, number: int, choices: Choices) -> Setting:
    """Two accelerators in each of two places, a link so fast that joining them pays."""
    del random, number, choices
    sites = tuple(
        Site(place, hardware.accelerator("A100-80"), 1, 2, 200 * GBIT, 2.5)
        for place in ("here", "there")
    )
    bandwidth = np.array([[0.0, 1.0], [1.0, 0.0]]) * 25 * GBIT
    delay = np.array([[0.0, 1e-3], [1e-3, 0.0]])
    return Setting("toy", sites, bandwidth, delay, "gpt3-350m", 16)


FAMILIES: dict[str, Family] = {
    "toy": Family("two pairs of A100 on a fast link, solved by hand", _toy, 2, ("bf16",)),
    "small": Family("two clusters, at most 16 accelerators, solved exactly", _small, 4),
    "medium": Family("two to four clusters, 32 to 128 accelerators", _medium, 8),
    "large": Family("eight regions of the world, 512 accelerators", _large, 12),
    "bandwidth": Family("two clusters over 0.5 to 10 Gbit/s", _bandwidth, 8),
    "drift": Family("two clusters whose link wanders from instance to instance", _drift, 8,
                    ordered=True),
}  # fmt: skip
"""Kinds of instances by name."""


@dataclass(frozen=True)
class Pool:
    """Instances that can be solved, with a reference plan each.

    Attributes:
        settings: What each instance is.
        space: Their spaces of plans, stacked.
        reference: The best plan of the rules of thumb, one per instance.
        reference_time_s: Its exact iteration time, (instances,).
        rejected: Number of draws that had no known way to finish and were left out.
    """

    settings: tuple[Setting, ...]
    space: PlanSpace
    reference: tuple[Candidate, ...]
    reference_time_s: np.ndarray
    rejected: int

    def __len__(self) -> int:
        return len(self.settings)


def make_pool(
    family: str,
    instances: int,
    seed: int,
    choices: Choices,
    rules: Rules | None = None,
    assumptions: Assumptions | None = None,
) -> Pool:
    """Draws settings until `instances` of them are solvable.

    Args:
        family: A key of `FAMILIES`.
        instances: Number of instances wanted.
        seed: Instance k is a function of the family, this seed and the number of the draw.
        choices: What is fixed.
        rules: Rules of the space; None takes the family's.
        assumptions: Of the cost model; None takes the usual ones.

    Raises:
        InvalidInput: Unknown family, or a family of which too many draws are unsolvable.
    """
    kind = FAMILIES[one_of("family", family, tuple(FAMILIES))]
    rules = rules or Rules(max_stages=kind.max_stages, wires=kind.wires)
    settings: list[Setting] = []
    drawn = rejected = 0
    while len(settings) < instances:
        missing = instances - len(settings)
        batch = [
            kind.draw(np.random.default_rng([seed, number]), number, choices)
            for number in range(drawn, drawn + missing)
        ]
        drawn += missing
        solvable = PlanSpace(problem_of(batch, assumptions), rules).solvable
        settings += [setting for setting, good in zip(batch, solvable, strict=True) if good]
        rejected += int((~solvable).sum())
        if rejected > MAX_REJECTED_PER_INSTANCE * instances:
            raise InvalidInput(
                f"family {family}: {rejected} of {drawn} instances have no feasible plan; "
                "allow more stages, recompute or ZeRO, or smaller models"
            )
    return pool_of(settings, rules, assumptions, rejected)


def pool_of(
    settings: list[Setting],
    rules: Rules,
    assumptions: Assumptions | None = None,
    rejected: int = 0,
) -> Pool:
    """A pool of given settings.

    Raises:
        InvalidInput: A setting on which no plan is known to fit.
    """
    space = PlanSpace(problem_of(settings, assumptions), rules)
    unsolvable = np.flatnonzero(~space.solvable)
    if len(unsolvable):
        raise InvalidInput(
            f"{settings[unsolvable[0]].name}: no plan of at most {rules.max_stages} stages fits "
            f"the memory ({settings[unsolvable[0]].describe()})"
        )
    found = [partition_rules.best_rule(space, i) for i in range(len(settings))]
    return Pool(
        tuple(settings),
        space,
        tuple(candidate for candidate, _ in found),
        np.array([time_s for _, time_s in found]),
        rejected,
    )
