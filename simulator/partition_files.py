"""Reads settings of model partitioning from YAML: sites and links, or a plain cluster file."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field

from dtgym.simulator import hardware, hardware_files, workload
from dtgym.simulator.documents import Document, read_yaml
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.hardware import Accelerator, WideAreaNetwork
from dtgym.simulator.partition_settings import Setting, Site
from dtgym.simulator.units import parse


def _quantity(dimension: str, value: object) -> float:
    return parse("it", value, dimension)


Rate = Annotated[float, BeforeValidator(partial(_quantity, "bytes/s")), Field(gt=0)]
Seconds = Annotated[float, BeforeValidator(partial(_quantity, "s")), Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class SiteDocument(Document):
    """A site: equal nodes in one place; `region` is its name in the wide-area network."""

    name: str
    accelerator: str
    nodes: Count
    gpus_per_node: Count
    network: Rate
    region: str | None = None
    usd_per_gpu_hour: Annotated[float, Field(ge=0)] = 0.0


class LinkDocument(Document):
    """One pair of sites, both directions unless the file also names the way back."""

    source: str
    target: str
    delay: Seconds
    bandwidth: Rate


class SitesDocument(Document):
    """Sites, and either own links or the name of a wide-area network of the catalogue."""

    name: str
    sites: Annotated[list[SiteDocument], Field(min_length=1)]
    links: list[LinkDocument] = Field(default_factory=list)
    wide_area_network: str | None = None
    accelerators: list[dict[str, Any]] = Field(default_factory=list)


def read(path: Path, *, model: str, global_batch: int) -> Setting:
    """Reads a setting; see `partition_settings.load_sites`."""
    workload.transformer(model)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read: {error}") from error
    content = read_yaml(text, source=str(path))
    if isinstance(content, dict) and "groups" in content and "sites" not in content:
        return _of_cluster(hardware_files.cluster_from_yaml(text, str(path)), model, global_batch)
    document = hardware_files.validate_document(SitesDocument, content, str(path))
    try:
        return _of_sites(document, model, global_batch)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error


def _of_sites(document: SitesDocument, model: str, global_batch: int) -> Setting:
    own = {}
    for item in document.accelerators:
        built = hardware_files.validate_document(
            hardware_files.AcceleratorDocument, item, "accelerators"
        ).build()
        own[built.name] = built
    sites = tuple(
        Site(
            site.name,
            _accelerator(site, own),
            site.nodes,
            site.gpus_per_node,
            site.network,
            site.usd_per_gpu_hour,
        )
        for site in document.sites
    )
    names = [site.name for site in document.sites]
    bandwidth, delay = np.zeros((len(sites),) * 2), np.zeros((len(sites),) * 2)
    if document.wide_area_network is not None:
        _fill(document, hardware.wide_area_network(document.wide_area_network), bandwidth, delay)
    back: list[tuple[int, int]] = []
    for number, link in enumerate(document.links):
        for end in (link.source, link.target):
            if end not in names:
                raise InvalidInput(
                    f"links.{number}: site must be one of {', '.join(names)}; got {end!r}"
                )
        a, b = names.index(link.source), names.index(link.target)
        if a == b:
            raise InvalidInput(f"links.{number}: source and target must differ, got {link.source}")
        bandwidth[a, b], delay[a, b] = link.bandwidth, link.delay
        back.append((a, b))
    for a, b in back:
        if (b, a) not in back:
            bandwidth[b, a], delay[b, a] = bandwidth[a, b], delay[a, b]
    return Setting(document.name, sites, bandwidth, delay, model, global_batch)


def _accelerator(site: SiteDocument, own: dict[str, Accelerator]) -> Accelerator:
    try:
        return (
            own[site.accelerator]
            if site.accelerator in own
            else hardware.accelerator(site.accelerator)
        )
    except InvalidInput as error:
        raise InvalidInput(f"site {site.name}: {error}") from error


def _fill(
    document: SitesDocument, network: WideAreaNetwork, bandwidth: np.ndarray, delay: np.ndarray
) -> None:
    for a, source in enumerate(document.sites):
        for b, target in enumerate(document.sites):
            if a == b:
                continue
            try:
                link = network.link(source.region or source.name, target.region or target.name)
            except InvalidInput as error:
                raise InvalidInput(f"site {source.name}, region: {error}") from error
            bandwidth[a, b], delay[a, b] = link.bandwidth_bytes_per_s, link.latency_s


def _of_cluster(cluster: hardware.Cluster, model: str, global_batch: int) -> Setting:
    """Groups of nodes as sites on one network: a link is as fast as the slower node's cards."""
    sites = tuple(
        Site(
            f"{cluster.name}-{number}" if len(cluster.groups) > 1 else cluster.name,
            group.node.accelerator,
            group.count,
            group.node.gpus,
            group.node.network_bytes_per_s,
        )
        for number, group in enumerate(cluster.groups)
    )
    rate = np.array([site.network_bytes_per_s for site in sites])
    bandwidth = np.minimum(rate[:, None], rate[None, :])
    np.fill_diagonal(bandwidth, 0.0)
    delay = np.full_like(bandwidth, cluster.network_latency_s)
    return Setting(cluster.name, sites, bandwidth, delay, model, global_batch)
