"""Reads and writes hardware as YAML: the shipped catalogue and users' own clusters.

Every quantity in a file carries its unit (``80 GB``); a field that is missing, unknown, negative or
without unit is refused in one line that names file and field.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from dtgym.simulator.documents import read_yaml
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.hardware import (
    Accelerator,
    Cluster,
    Link,
    Node,
    NodeGroup,
    WideAreaNetwork,
)
from dtgym.simulator.units import format_quantity, parse


def _quantity(dimension: str, value: object) -> float:
    return parse("it", value, dimension)


Bytes = Annotated[float, BeforeValidator(partial(_quantity, "bytes")), Field(ge=0)]
Rate = Annotated[float, BeforeValidator(partial(_quantity, "bytes/s")), Field(ge=0)]
Flops = Annotated[float, BeforeValidator(partial(_quantity, "FLOP/s")), Field(ge=0)]
Seconds = Annotated[float, BeforeValidator(partial(_quantity, "s")), Field(ge=0)]
Count = Annotated[int, Field(ge=0, strict=True)]
Positive = Annotated[int, Field(ge=1, strict=True)]
_Document = TypeVar("_Document", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AcceleratorDocument(_Strict):
    """An accelerator in YAML; `source` says for each number where it comes from."""

    name: str
    aliases: tuple[str, ...] = ()
    half: Flops
    memory: Bytes
    memory_bandwidth: Rate
    fp32: Flops = 0.0
    fp8: Flops = 0.0
    fp4: Flops = 0.0
    peer: Rate = 0.0
    pcie: Rate = 16e9
    multiprocessors: Count = 0
    in_switch_reduction: bool = False
    power_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    architecture: Literal["volta", "ampere", "hopper", "blackwell", "other"] = "other"
    matmul_ceiling: Annotated[float, Field(ge=0, le=1)] = 0.0
    source: dict[str, str] | str = ""

    def build(self) -> Accelerator:
        """The immutable accelerator."""
        return Accelerator(
            name=self.name,
            half_flop_per_s=self.half,
            memory_bytes=self.memory,
            memory_bytes_per_s=self.memory_bandwidth,
            fp32_flop_per_s=self.fp32,
            fp8_flop_per_s=self.fp8,
            fp4_flop_per_s=self.fp4,
            peer_bytes_per_s=self.peer,
            pcie_bytes_per_s=self.pcie,
            multiprocessors=self.multiprocessors,
            in_switch_reduction=self.in_switch_reduction,
            power_fraction=self.power_fraction,
            architecture=self.architecture,
            matmul_ceiling=self.matmul_ceiling,
        )


class LinkDocument(_Strict):
    """A link in YAML."""

    name: str
    latency: Seconds
    bandwidth: Rate
    source: str = ""


class NodeDocument(_Strict):
    """A node type in YAML; the accelerator is a name of the file's or the shipped catalogue."""

    name: str
    accelerator: str
    gpus: Count
    cpu_cores: Count
    memory: Bytes
    io: Rate
    network: Rate
    rack: str = ""
    source: str = ""


class GroupDocument(_Strict):
    """Some equal nodes of a cluster in YAML."""

    count: Positive
    node: NodeDocument | str
    rack: str | None = None


class ClusterDocument(_Strict):
    """A cluster in YAML, with own accelerators if it has any."""

    name: str
    network_latency: Seconds = 5e-6
    accelerators: tuple[AcceleratorDocument, ...] = ()
    groups: Annotated[tuple[GroupDocument, ...], Field(min_length=1)]
    source: str = ""


class NetworkLinkDocument(_Strict):
    """One pair of places in YAML, both directions unless the file also names the way back."""

    source: str
    target: str
    delay: Seconds
    bandwidth: Rate


class NetworkDocument(_Strict):
    """A wide-area network in YAML; `within` is the link inside a place."""

    name: str
    places: Annotated[tuple[str, ...], Field(min_length=1)]
    within: tuple[Seconds, Rate] | None = None
    links: tuple[NetworkLinkDocument, ...]
    source: str = ""

    def build(self) -> WideAreaNetwork:
        """The immutable network."""
        index = {place: i for i, place in enumerate(self.places)}
        n = len(self.places)
        delay, bandwidth = np.full((n, n), np.nan), np.full((n, n), np.nan)
        if self.within is not None:
            np.fill_diagonal(delay, self.within[0])
            np.fill_diagonal(bandwidth, self.within[1])
        for back in (True, False):
            for pair in self.links:
                a, b = index[pair.source], index[pair.target]
                a, b = (b, a) if back else (a, b)
                delay[a, b], bandwidth[a, b] = pair.delay, pair.bandwidth
        if np.isnan(delay).any():
            a, b = np.argwhere(np.isnan(delay))[0]
            raise InvalidInput(f"{self.name}: no link from {self.places[a]} to {self.places[b]}")
        return WideAreaNetwork(self.places, delay, bandwidth)


class CatalogueDocument(_Strict):
    """The shipped catalogue, one list per kind."""

    accelerators: tuple[AcceleratorDocument, ...]
    links: tuple[LinkDocument, ...]
    nodes: tuple[NodeDocument, ...]
    clusters: tuple[ClusterDocument, ...]
    networks: tuple[NetworkDocument, ...]


@dataclass(frozen=True)
class Catalogue:
    """Named hardware."""

    accelerators: dict[str, Accelerator]
    aliases: dict[str, str]
    links: dict[str, Link]
    nodes: dict[str, Node]
    clusters: dict[str, Cluster]
    networks: dict[str, WideAreaNetwork]

    def accelerator(self, name: str) -> Accelerator:
        """By name or alias."""
        return _look_up("accelerator", self.accelerators, self.aliases.get(name, name))

    def link(self, name: str) -> Link:
        """By name."""
        return _look_up("link", self.links, name)

    def node(self, name: str) -> Node:
        """By name."""
        return _look_up("node", self.nodes, name)

    def cluster(self, name: str) -> Cluster:
        """By name."""
        return _look_up("cluster", self.clusters, name)

    def network(self, name: str) -> WideAreaNetwork:
        """By name."""
        return _look_up("network", self.networks, name)

    def names(self, kind: str) -> tuple[str, ...]:
        """Names of a kind."""
        kinds = ("accelerators", "links", "nodes", "clusters", "networks")
        if kind not in kinds:
            raise InvalidInput(f"kind must be one of {', '.join(kinds)}; got {kind!r}")
        return tuple(getattr(self, kind))


_Named = TypeVar("_Named")


def _look_up(kind: str, table: dict[str, _Named], name: str) -> _Named:
    if name not in table:
        raise InvalidInput(f"{kind} must be one of {', '.join(table)}; got {name!r}")
    return table[name]


def shipped_catalogue() -> Catalogue:
    """Reads the catalogue that comes with the package."""
    folder = files("dtgym.simulator") / "catalog"
    parts = {
        kind: read_yaml(
            (folder / f"{kind}.yaml").read_text(encoding="utf-8"), source=f"catalog/{kind}.yaml"
        )
        for kind in CatalogueDocument.model_fields
    }
    document = validate_document(CatalogueDocument, parts, "catalog")
    accelerators = {item.name: item.build() for item in document.accelerators}
    aliases = {alias: item.name for item in document.accelerators for alias in item.aliases}
    nodes = {item.name: _build_node(item, accelerators) for item in document.nodes}
    return Catalogue(
        accelerators=accelerators,
        aliases=aliases,
        links={item.name: Link(item.latency, item.bandwidth) for item in document.links},
        nodes=nodes,
        clusters={c.name: _build_cluster(c, accelerators, nodes) for c in document.clusters},
        networks={item.name: item.build() for item in document.networks},
    )


def read_cluster(path: Path) -> Cluster:
    """Reads a cluster file; see `dtgym.simulator.hardware.load_cluster`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read: {error}") from error
    return cluster_from_yaml(text, str(path))


def cluster_from_yaml(text: str, file: str = "<text>") -> Cluster:
    """Builds a cluster from YAML text; `file` names it in messages.

    Examples:
        >>> text = '''
        ... name: lab
        ... groups:
        ...   - count: 2
        ...     node: {name: box, accelerator: A100-80, gpus: 8, cpu_cores: 64, memory: 1 TB,
        ...            io: 4 GB/s, network: 200 Gbit/s}
        ... '''
        >>> cluster_from_yaml(text).gpus
        16
    """
    from dtgym.simulator import hardware

    document = validate_document(ClusterDocument, read_yaml(text, source=file), file)
    accelerators = {item.name: item.build() for item in document.accelerators}
    nodes: dict[str, Node] = {}
    for index, group in enumerate(document.groups):
        wanted = group.node if isinstance(group.node, str) else group.node.accelerator
        field = f"{file}: groups.{index}.node"
        try:
            if isinstance(group.node, str):
                nodes[wanted] = hardware.node(wanted)
            elif wanted not in accelerators:
                accelerators[wanted] = hardware.accelerator(wanted)
        except InvalidInput as error:
            raise InvalidInput(f"{field}: {error}") from error
    try:
        return _build_cluster(document, accelerators, nodes)
    except InvalidInput as error:
        raise InvalidInput(f"{file}: {error}") from error


def _build_node(document: NodeDocument, accelerators: dict[str, Accelerator]) -> Node:
    return Node(
        name=document.name,
        accelerator=_look_up("accelerator", accelerators, document.accelerator),
        gpus=document.gpus,
        cpu_cores=document.cpu_cores,
        memory_bytes=document.memory,
        io_bytes_per_s=document.io,
        network_bytes_per_s=document.network,
        rack=document.rack,
    )


def _build_cluster(
    document: ClusterDocument, accelerators: dict[str, Accelerator], nodes: dict[str, Node]
) -> Cluster:
    groups: list[NodeGroup] = []
    for group in document.groups:
        if isinstance(group.node, str):
            built = _look_up("node", nodes, group.node)
        else:
            built = _build_node(group.node, accelerators)
        rack = built.rack if group.rack is None else group.rack
        groups.append(NodeGroup(group.count, replace(built, rack=rack)))
    return Cluster(document.name, tuple(groups), document.network_latency)


def cluster_yaml(cluster: Cluster) -> str:
    """Writes a cluster as YAML that stands alone: it names its accelerators in full."""
    accelerators = {group.node.accelerator.name: group.node.accelerator for group in cluster.groups}
    document = {
        "name": cluster.name,
        "network_latency": format_quantity(cluster.network_latency_s, "s"),
        "accelerators": [_accelerator_yaml(item) for item in accelerators.values()],
        "groups": [
            {"count": group.count, "node": _node_yaml(group.node)} for group in cluster.groups
        ],
    }
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def _accelerator_yaml(item: Accelerator) -> dict[str, Any]:
    return {
        "name": item.name,
        "half": format_quantity(item.half_flop_per_s, "FLOP/s"),
        "fp32": format_quantity(item.fp32_flop_per_s, "FLOP/s"),
        "fp8": format_quantity(item.fp8_flop_per_s, "FLOP/s"),
        "fp4": format_quantity(item.fp4_flop_per_s, "FLOP/s"),
        "memory": format_quantity(item.memory_bytes, "bytes"),
        "memory_bandwidth": format_quantity(item.memory_bytes_per_s, "bytes/s"),
        "peer": format_quantity(item.peer_bytes_per_s, "bytes/s"),
        "pcie": format_quantity(item.pcie_bytes_per_s, "bytes/s"),
        "multiprocessors": item.multiprocessors,
        "in_switch_reduction": item.in_switch_reduction,
        "power_fraction": item.power_fraction,
        "architecture": item.architecture,
        "matmul_ceiling": item.matmul_ceiling,
    }


def _node_yaml(item: Node) -> dict[str, Any]:
    return {
        "name": item.name,
        "accelerator": item.accelerator.name,
        "gpus": item.gpus,
        "cpu_cores": item.cpu_cores,
        "memory": format_quantity(item.memory_bytes, "bytes"),
        "io": format_quantity(item.io_bytes_per_s, "bytes/s"),
        "network": format_quantity(item.network_bytes_per_s, "bytes/s"),
        "rack": item.rack,
    }


def validate_document(model: type[_Document], content: object, file: str) -> _Document:
    """Holds parsed YAML against a pydantic model.

    Raises:
        InvalidInput: The first thing that does not fit: file, field, expectation.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        # pydantic names the branch of a union in the path; a user knows no such names.
        parts = [str(part) for part in first["loc"] if str(part) not in ("NodeDocument", "str")]
        place = ".".join(parts) or "document"
        message = first["msg"].removeprefix("Value error, ").removeprefix("it ")
        message = message.replace("Input should be", "must be")
        raise InvalidInput(f"{file}: {place}: {message}") from error
