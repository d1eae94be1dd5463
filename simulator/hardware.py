"""What jobs run on: accelerators, links, nodes, clusters and wide-area networks.

One description serves both the cost simulator (which asks for peak rates, memory and links) and the
cluster scheduler (which asks for nodes, racks and their resources). Everything is immutable. The
shipped catalogue lies in ``simulator/catalog/``; own clusters come from YAML (see `load_cluster`).

Example:
    >>> accelerator("A100-80").memory_bytes
    80000000000.0
    >>> cluster("selene-64").gpus
    512
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.errors import InvalidInput, above, at_least, one_of

if TYPE_CHECKING:
    from dtgym.simulator.hardware_files import Catalogue

PRECISIONS = ("fp32", "half", "fp8", "fp4")
"""Arithmetic of the matrix units: full, 16-bit (fp16 or bf16), 8-bit and 4-bit floats."""

ARCHITECTURES = ("volta", "ampere", "hopper", "blackwell", "other")
"""Kinds of matrix units with an efficiency of their own (Turing counts as volta, Ada as ampere)."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One accelerator (GPU or alike) with the rates its maker states, dense.

    Attributes:
        name: Name in the catalogue, such as ``H100-SXM-80``.
        half_flop_per_s: Peak of fp16 or bf16 matrix products.
        memory_bytes: Device memory.
        memory_bytes_per_s: Bandwidth of the device memory.
        fp32_flop_per_s: Peak of fp32 matrix products; 0 if unknown.
        fp8_flop_per_s: Peak of fp8 matrix products; 0 if not supported.
        fp4_flop_per_s: Peak of fp4 matrix products; 0 if not supported.
        peer_bytes_per_s: Link to the other accelerators of the node (NVLink or alike), one
            direction; 0 where they only meet over PCIe.
        pcie_bytes_per_s: PCIe, one direction.
        multiprocessors: Number of streaming multiprocessors or compute units; 0 if unknown.
        in_switch_reduction: Whether the node's switch adds up all-reduces (NVLink SHARP).
        power_fraction: Power limit over the board's usual limit; 1 where it is not capped.
        architecture: One of `ARCHITECTURES`.
        matmul_ceiling: Best 16-bit matrix product found by search over the peak; 0 if unknown.
    """

    name: str
    half_flop_per_s: float
    memory_bytes: float
    memory_bytes_per_s: float
    fp32_flop_per_s: float = 0.0
    fp8_flop_per_s: float = 0.0
    fp4_flop_per_s: float = 0.0
    peer_bytes_per_s: float = 0.0
    pcie_bytes_per_s: float = 16e9
    multiprocessors: int = 0
    in_switch_reduction: bool = False
    power_fraction: float = 1.0
    architecture: str = "other"
    matmul_ceiling: float = 0.0

    def __post_init__(self) -> None:
        for name, unit in (("half_flop_per_s", "FLOP/s"), ("memory_bytes", "bytes")):
            above(f"Accelerator.{name}", getattr(self, name), 0, unit)
        above("Accelerator.memory_bytes_per_s", self.memory_bytes_per_s, 0, "bytes/s")
        above("Accelerator.pcie_bytes_per_s", self.pcie_bytes_per_s, 0, "bytes/s")
        for name in ("fp32_flop_per_s", "fp8_flop_per_s", "fp4_flop_per_s"):
            at_least(f"Accelerator.{name}", getattr(self, name), 0, "FLOP/s")
        at_least("Accelerator.peer_bytes_per_s", self.peer_bytes_per_s, 0, "bytes/s")
        at_least("Accelerator.multiprocessors", self.multiprocessors, 0)
        above("Accelerator.power_fraction", self.power_fraction, 0)
        at_least("Accelerator.matmul_ceiling", self.matmul_ceiling, 0)
        one_of("Accelerator.architecture", self.architecture, ARCHITECTURES)

    def peak_flop_per_s(self, precision: str) -> float:
        """Peak rate of matrix products at `precision`, one of `PRECISIONS`.

        Raises:
            InvalidInput: Unknown precision, or one the accelerator does not have.
        """
        if precision not in PRECISIONS:
            raise InvalidInput(
                f"precision must be one of {', '.join(PRECISIONS)}; got {precision!r}"
            )
        peak = float(getattr(self, f"{precision}_flop_per_s"))
        if peak == 0:
            raise InvalidInput(f"precision: {self.name} has no {precision} rate in the catalogue")
        return peak

    @property
    def intra_node_bytes_per_s(self) -> float:
        """One direction between two accelerators of a node: the peer link, else PCIe."""
        return self.peer_bytes_per_s or self.pcie_bytes_per_s


@dataclass(frozen=True, slots=True)
class Link:
    """A link between equal ends.

    Attributes:
        latency_s: Time before the first byte moves, per message.
        bandwidth_bytes_per_s: Payload rate of one direction.
    """

    latency_s: float
    bandwidth_bytes_per_s: float

    def __post_init__(self) -> None:
        at_least("Link.latency_s", self.latency_s, 0, "s")
        above("Link.bandwidth_bytes_per_s", self.bandwidth_bytes_per_s, 0, "bytes/s")


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with equal accelerators.

    Attributes:
        name: Name of the node type.
        accelerator: What it holds.
        gpus: How many accelerators.
        cpu_cores: Processor cores.
        memory_bytes: Main memory.
        io_bytes_per_s: Storage bandwidth.
        network_bytes_per_s: All network cards together, one direction.
        rack: Name of the rack the node stands in.
    """

    name: str
    accelerator: Accelerator
    gpus: int
    cpu_cores: int
    memory_bytes: float
    io_bytes_per_s: float
    network_bytes_per_s: float
    rack: str = ""

    def __post_init__(self) -> None:
        at_least("Node.gpus", self.gpus, 0)
        at_least("Node.cpu_cores", self.cpu_cores, 0)
        at_least("Node.memory_bytes", self.memory_bytes, 0, "bytes")
        at_least("Node.io_bytes_per_s", self.io_bytes_per_s, 0, "bytes/s")
        above("Node.network_bytes_per_s", self.network_bytes_per_s, 0, "bytes/s")

    @property
    def intra_link(self) -> Link:
        """The link between two accelerators of the node."""
        return Link(3e-6, self.accelerator.intra_node_bytes_per_s)


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """`count` equal nodes in one rack (the rack is the node's)."""

    count: int
    node: Node

    def __post_init__(self) -> None:
        at_least("NodeGroup.count", self.count, 1)


@dataclass(frozen=True)
class ClusterArrays:
    """The nodes of a cluster as arrays; axis: nodes, in the order of the groups.

    Attributes:
        group: Index of the node's group, int64.
        rack: Index of the node's rack in `racks`, int64.
        gpus, cpu_cores: int64.
        memory_bytes, io_bytes_per_s, network_bytes_per_s: float64.
        half_flop_per_s: Peak of one accelerator of the node, float64.
        racks: Names of the racks.
    """

    group: NDArray[np.int64]
    rack: NDArray[np.int64]
    gpus: NDArray[np.int64]
    cpu_cores: NDArray[np.int64]
    memory_bytes: NDArray[np.float64]
    io_bytes_per_s: NDArray[np.float64]
    network_bytes_per_s: NDArray[np.float64]
    half_flop_per_s: NDArray[np.float64]
    racks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Groups of equal nodes behind one network.

    Attributes:
        name: Name of the cluster.
        groups: Groups of equal nodes.
        network_latency_s: Time before the first byte moves between two nodes.
    """

    name: str
    groups: tuple[NodeGroup, ...]
    network_latency_s: float = 5e-6

    def __post_init__(self) -> None:
        if not self.groups:
            raise InvalidInput("Cluster.groups must name at least one group of nodes")
        at_least("Cluster.network_latency_s", self.network_latency_s, 0, "s")

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return sum(group.count for group in self.groups)

    @property
    def gpus(self) -> int:
        """Number of accelerators."""
        return sum(group.count * group.node.gpus for group in self.groups)

    def arrays(self) -> ClusterArrays:
        """The nodes as arrays, made anew at each call.

        Examples:
            >>> cluster("selene-64").arrays().gpus.sum()
            np.int64(512)
        """
        counts = [group.count for group in self.groups]
        nodes = [group.node for group in self.groups]
        racks = tuple(dict.fromkeys(node.rack for node in nodes))

        def spread(values: list[float], dtype: type) -> NDArray[np.float64]:
            return np.repeat(np.asarray(values, dtype=dtype), counts)

        return ClusterArrays(
            group=np.repeat(np.arange(len(nodes)), counts),
            rack=np.repeat(np.asarray([racks.index(node.rack) for node in nodes]), counts),
            gpus=np.repeat(np.asarray([node.gpus for node in nodes]), counts),
            cpu_cores=np.repeat(np.asarray([node.cpu_cores for node in nodes]), counts),
            memory_bytes=spread([node.memory_bytes for node in nodes], np.float64),
            io_bytes_per_s=spread([node.io_bytes_per_s for node in nodes], np.float64),
            network_bytes_per_s=spread([node.network_bytes_per_s for node in nodes], np.float64),
            half_flop_per_s=spread([n.accelerator.half_flop_per_s for n in nodes], np.float64),
            racks=racks,
        )


@dataclass(frozen=True, eq=False)
class WideAreaNetwork:
    """Delay and bandwidth between named regions, zones or clusters.

    Attributes:
        names: The places, N of them.
        delay_s: (N, N), one way; read-only.
        bandwidth_bytes_per_s: (N, N), one flow, one direction; read-only.
    """

    names: tuple[str, ...]
    delay_s: NDArray[np.float64]
    bandwidth_bytes_per_s: NDArray[np.float64]

    def __post_init__(self) -> None:
        n = len(self.names)
        if len(set(self.names)) != n:
            raise InvalidInput("WideAreaNetwork.names must not repeat")
        field = "WideAreaNetwork.bandwidth_bytes_per_s"
        checked = {
            "delay_s": at_least("WideAreaNetwork.delay_s", self.delay_s, 0, "s"),
            "bandwidth_bytes_per_s": above(field, self.bandwidth_bytes_per_s, 0, "bytes/s"),
        }
        for name, value in checked.items():
            array = value.copy()
            if array.shape != (n, n):
                raise InvalidInput(
                    f"WideAreaNetwork.{name} must be ({n}, {n}), one row per name; "
                    f"got {array.shape}"
                )
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, WideAreaNetwork)
            and self.names == other.names
            and np.array_equal(self.delay_s, other.delay_s)
            and np.array_equal(self.bandwidth_bytes_per_s, other.bandwidth_bytes_per_s)
        )

    def index(self, name: str) -> int:
        """Row of `name`.

        Raises:
            InvalidInput: There is no such place.
        """
        if name not in self.names:
            raise InvalidInput(f"place must be one of {', '.join(self.names)}; got {name!r}")
        return self.names.index(name)

    def link(self, source: str, target: str) -> Link:
        """The link from `source` to `target`."""
        a, b = self.index(source), self.index(target)
        return Link(float(self.delay_s[a, b]), float(self.bandwidth_bytes_per_s[a, b]))

    def select(self, names: tuple[str, ...]) -> WideAreaNetwork:
        """The network between some of the places, in the order of `names`."""
        rows = np.asarray([self.index(name) for name in names])
        return WideAreaNetwork(
            names,
            self.delay_s[np.ix_(rows, rows)],
            self.bandwidth_bytes_per_s[np.ix_(rows, rows)],
        )


@lru_cache(maxsize=1)
def _catalogue() -> Catalogue:
    from dtgym.simulator import hardware_files

    return hardware_files.shipped_catalogue()


def accelerator(name: str) -> Accelerator:
    """An accelerator of the shipped catalogue, by name or alias.

    Raises:
        InvalidInput: The catalogue has no such accelerator; the message lists what it has.
    """
    return _catalogue().accelerator(name)


def node(name: str) -> Node:
    """A node type of the shipped catalogue."""
    return _catalogue().node(name)


def cluster(name: str) -> Cluster:
    """A cluster of the shipped catalogue."""
    return _catalogue().cluster(name)


def link(name: str) -> Link:
    """A link of the shipped catalogue, such as ``100G``."""
    return _catalogue().link(name)


def wide_area_network(name: str) -> WideAreaNetwork:
    """A wide-area network of the shipped catalogue: ``dtfm-world``, ``dtfm-us``, ``gcp-zones``."""
    return _catalogue().network(name)


def catalogue_names(kind: str) -> tuple[str, ...]:
    """Names the shipped catalogue has of a kind.

    Args:
        kind: ``accelerators``, ``links``, ``nodes``, ``clusters`` or ``networks``.
    """
    return _catalogue().names(kind)


def load_cluster(path: Path | str) -> Cluster:
    """Reads a user's own cluster from YAML; see docs/fidelity.md for the fields.

    Raises:
        InvalidInput: One line that names the file, the field, the expectation and the unit.
    """
    from dtgym.simulator import hardware_files

    return hardware_files.read_cluster(Path(path))


def save_cluster(cluster: Cluster, path: Path | str) -> None:
    """Writes a cluster as YAML that `load_cluster` reads back equal."""
    from dtgym.simulator import hardware_files

    Path(path).write_text(hardware_files.cluster_yaml(cluster), encoding="utf-8")
