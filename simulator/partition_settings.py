"""Settings: sites with their accelerators, the network between them, a model and a batch.

A setting is what a user knows; `problem_of` turns settings into the arrays of `partition.Problem`
with tables from the training cost model. Own settings come from YAML (`load_sites`)::

    name: two-sites
    sites:
      - {name: north, accelerator: A100-80, nodes: 2, gpus_per_node: 8, network: 200 Gbit/s}
      - {name: south, accelerator: H20-96, nodes: 2, gpus_per_node: 8, network: 100 Gbit/s}
    links:                                    # both directions unless the way back is named too
      - {source: north, target: south, delay: 20 ms, bandwidth: 5 Gbit/s}

A cluster file as `hardware.load_cluster` reads is a setting, too: each group of nodes is a site on
one common network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator import calibration as calibrations
from dtgym.simulator import workload
from dtgym.simulator.errors import InvalidInput, above, at_least
from dtgym.simulator.hardware import Accelerator
from dtgym.simulator.partition_models import analytic_tables
from dtgym.simulator.partition_types import Assumptions, CostTables, Problem

Floats = NDArray[np.float64]

INTER_LATENCY_S = 5e-6
INTRA_LATENCY_S = 3e-6
WAN_USD_PER_BYTE = 0.02e-9
"""Price of traffic between regions, USD per byte (GCP's list price, 0.02 USD per GB)."""
LARGEST_SAMPLES = 64


@dataclass(frozen=True, slots=True)
class Site:
    """Equal nodes in one place.

    Attributes:
        name: Name of the place.
        accelerator: What each node holds.
        nodes: Number of nodes.
        gpus_per_node: Accelerators of a node.
        network_bytes_per_s: All network cards of a node together, one direction.
        gpu_usd_per_hour: Price of one accelerator; 0 where it does not matter.
    """

    name: str
    accelerator: Accelerator
    nodes: int
    gpus_per_node: int
    network_bytes_per_s: float
    gpu_usd_per_hour: float = 0.0

    def __post_init__(self) -> None:
        at_least(f"site {self.name}: nodes", self.nodes, 1)
        at_least(f"site {self.name}: gpus_per_node", self.gpus_per_node, 1)
        above(f"site {self.name}: network", self.network_bytes_per_s, 0, "bytes/s")
        at_least(f"site {self.name}: gpu_usd_per_hour", self.gpu_usd_per_hour, 0, "USD")

    @property
    def gpus(self) -> int:
        """Accelerators of the site."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, eq=False)
class Setting:
    """Sites, the network between them, and what is trained.

    Attributes:
        name: Name of the setting.
        sites: The places, C of them.
        wan_bytes_per_s: (C, C) from site to site, one pipe; 0 where there is no link.
        wan_delay_s: (C, C) one way.
        model: Name of a transformer, see `workload.transformer`.
        global_batch: Sequences per iteration.
    """

    name: str
    sites: tuple[Site, ...]
    wan_bytes_per_s: Floats
    wan_delay_s: Floats
    model: str
    global_batch: int

    def __post_init__(self) -> None:
        if not self.sites:
            raise InvalidInput(f"{self.name}: sites must name at least one site")
        names = [site.name for site in self.sites]
        if len(set(names)) != len(names):
            raise InvalidInput(f"{self.name}: the names of sites must differ")
        shape = (len(self.sites),) * 2
        for name in ("wan_bytes_per_s", "wan_delay_s"):
            array = at_least(f"{self.name}: {name}", getattr(self, name), 0)
            if array.shape != shape:
                raise InvalidInput(f"{self.name}: {name} must have shape {shape}")
        at_least(f"{self.name}: global batch", self.global_batch, 1, "sequences")

    @property
    def gpus(self) -> int:
        """Accelerators of all sites."""
        return sum(site.gpus for site in self.sites)

    def describe(self) -> str:
        """One line: model, batch and sites."""
        sites = " + ".join(
            f"{site.name} {site.nodes}x{site.gpus_per_node} {site.accelerator.name}"
            for site in self.sites
        )
        return f"{self.model}, batch {self.global_batch}, on {sites}"


def problem_of(settings: Sequence[Setting], assumptions: Assumptions | None = None) -> Problem:
    """Settings as instances of one problem, padded to the largest number of sites.

    Raises:
        InvalidInput: No setting, or a model that the zoo does not have.

    Examples:
        >>> from dtgym.simulator import hardware
        >>> site = Site("here", hardware.accelerator("A100-80"), 1, 8, 25e9)
        >>> one = Setting("one", (site,), np.zeros((1, 1)), np.zeros((1, 1)), "llama2-7b", 64)
        >>> problem_of([one]).gpus.tolist()
        [[8]]
    """
    if not settings:
        raise InvalidInput("settings must name at least one setting")
    clusters = max(len(setting.sites) for setting in settings)
    pairs = list(
        dict.fromkeys(
            (setting.model, site.accelerator, site.gpus_per_node)
            for setting in settings
            for site in setting.sites
        )
    )
    shape = (len(settings), clusters)
    row, nodes, per_node = np.full(shape, -1), np.zeros(shape, int), np.zeros(shape, int)
    memory, memory_rate, intra, inter, price = (np.zeros(shape) for _ in range(5))
    bandwidth, delay = np.zeros((*shape, clusters)), np.zeros((*shape, clusters))
    payload = calibrations.shipped().values
    for i, setting in enumerate(settings):
        count = len(setting.sites)
        bandwidth[i, :count, :count] = setting.wan_bytes_per_s
        delay[i, :count, :count] = setting.wan_delay_s
        for c, site in enumerate(setting.sites):
            row[i, c] = pairs.index((setting.model, site.accelerator, site.gpus_per_node))
            nodes[i, c], per_node[i, c] = site.nodes, site.gpus_per_node
            memory[i, c] = site.accelerator.memory_bytes
            memory_rate[i, c] = site.accelerator.memory_bytes_per_s
            intra[i, c] = site.accelerator.intra_node_bytes_per_s * payload["peer_efficiency"]
            share = site.network_bytes_per_s / site.gpus_per_node
            inter[i, c] = share * payload["network_efficiency"]
            price[i, c] = site.gpu_usd_per_hour
    return Problem(
        tables=_stacked([_tables(*pair) for pair in pairs]),
        row=row,
        global_batch=np.array([setting.global_batch for setting in settings]),
        nodes=nodes,
        gpus_per_node=per_node,
        memory_bytes=memory,
        memory_bytes_per_s=memory_rate,
        intra_bytes_per_s=intra,
        inter_bytes_per_s=inter,
        intra_latency_s=np.where(row >= 0, INTRA_LATENCY_S, 0.0),
        inter_latency_s=np.where(row >= 0, INTER_LATENCY_S, 0.0),
        wan_bytes_per_s=bandwidth,
        wan_delay_s=delay,
        gpu_usd_per_hour=price,
        wan_usd_per_byte=np.where(bandwidth > 0, WAN_USD_PER_BYTE, 0.0),
        assumptions=assumptions or Assumptions(),
    )


def load_sites(path: Path, *, model: str, global_batch: int) -> Setting:
    """Reads a user's sites or cluster file.

    Raises:
        InvalidInput: One line that names the file, the field, the expectation and the unit.
    """
    from dtgym.simulator import partition_files

    return partition_files.read(path, model=model, global_batch=global_batch)


@lru_cache(maxsize=256)
def _tables(model: str, accelerator: Accelerator, gpus_per_node: int) -> CostTables:
    samples = tuple(1 << k for k in range(LARGEST_SAMPLES.bit_length()))
    return analytic_tables(
        [workload.transformer(model)],
        [accelerator],
        gpus_per_node=gpus_per_node,
        samples=samples,
    )


def _stacked(tables: Sequence[CostTables]) -> CostTables:
    """Rows of several tables as one, padded to the deepest model and the widest node."""
    degrees = max((table.tensor_parallel for table in tables), key=len)
    borders = max(table.output_elements.shape[1] for table in tables)

    def rows(name: str, tensor_axis: int | None) -> Floats:
        padded = []
        for table in tables:
            value: Floats = getattr(table, name)
            widths = [(0, 0)] * value.ndim
            if name != "largest_activation_bytes":
                widths[-1] = (0, borders - value.shape[-1])
            if tensor_axis is not None:
                widths[tensor_axis] = (0, len(degrees) - value.shape[tensor_axis])
            padded.append(np.pad(value, widths, constant_values=np.nan))
        return np.concatenate(padded)

    return CostTables(
        names=tuple(name for table in tables for name in table.names),
        tensor_parallel=degrees,
        samples=tables[0].samples,
        layers=np.concatenate([table.layers for table in tables]),
        forward_s=rows("forward_s", 1),
        backward_s=rows("backward_s", 1),
        selective_s=rows("selective_s", 1),
        update_s=rows("update_s", 1),
        parameters=rows("parameters", 1),
        activation_bytes=rows("activation_bytes", 2),
        largest_activation_bytes=rows("largest_activation_bytes", 1),
        output_elements=rows("output_elements", None),
    )
