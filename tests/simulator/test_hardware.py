"""Hardware: the catalogue, users' own YAML, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtgym.simulator import hardware
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.hardware import Accelerator, Cluster, Node, NodeGroup
from dtgym.simulator.hardware_files import cluster_from_yaml, cluster_yaml
from dtgym.simulator.units import format_quantity, parse

GOOD = """
name: lab
groups:
  - count: 2
    node: {name: box, accelerator: A100-80, gpus: 8, cpu_cores: 64, memory: 1 TB, io: 4 GB/s,
           network: 200 Gbit/s}
"""

amounts = st.floats(1e-3, 1e18)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    groups = []
    for index in range(draw(st.integers(1, 3))):
        device = Accelerator(
            name=f"a{index}",
            half_flop_per_s=draw(amounts),
            memory_bytes=draw(amounts),
            memory_bytes_per_s=draw(amounts),
            fp8_flop_per_s=draw(st.just(0.0) | amounts),
            peer_bytes_per_s=draw(st.just(0.0) | amounts),
            multiprocessors=draw(st.integers(0, 200)),
            in_switch_reduction=draw(st.booleans()),
        )
        box = Node(
            name=f"n{index}",
            accelerator=device,
            gpus=draw(st.integers(0, 16)),
            cpu_cores=draw(st.integers(0, 256)),
            memory_bytes=draw(amounts),
            io_bytes_per_s=draw(amounts),
            network_bytes_per_s=draw(amounts),
            rack=draw(st.sampled_from(["", "r0", "r1"])),
        )
        groups.append(NodeGroup(draw(st.integers(1, 50)), box))
    return Cluster("c", tuple(groups), draw(st.floats(0, 1)))


@given(clusters())
def test_a_cluster_comes_back_equal_from_yaml(cluster: Cluster) -> None:
    assert cluster_from_yaml(cluster_yaml(cluster)) == cluster


@given(clusters())
def test_arrays_have_one_entry_per_node(cluster: Cluster) -> None:
    arrays = cluster.arrays()
    assert arrays.gpus.sum() == cluster.gpus
    assert arrays.gpus.size == arrays.rack.size == arrays.memory_bytes.size == cluster.nodes
    for index, group in enumerate(cluster.groups):
        chosen = arrays.group == index
        assert chosen.sum() == group.count
        assert (arrays.memory_bytes[chosen] == group.node.memory_bytes).all()
        assert {arrays.racks[rack] for rack in arrays.rack[chosen]} == {group.node.rack}


@given(st.floats(0, 1e30), st.sampled_from(["bytes", "bytes/s", "FLOP/s", "s"]))
def test_a_quantity_comes_back_to_the_same_double(amount: float, dimension: str) -> None:
    assert parse("x", format_quantity(amount, dimension), dimension) == amount


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("memory: 1 TB", "memory: 80", ["groups.0.node.memory", "needs a unit", "'80 GB'"]),
        ("memory: 1 TB", "memory: -80 GB", ["groups.0.node.memory", "greater than or equal to 0"]),
        ("memory: 1 TB", "memory: 1 Gbit/s", ["groups.0.node.memory", "in bytes"]),
        ("A100-80", "A999", ["groups.0.node", "accelerator must be one of", "'A999'"]),
        ("gpus: 8", "gpu: 8", ["groups.0.node.gpu"]),
        ("count: 2", "count: 0", ["groups.0.count", "greater than or equal to 1"]),
        ("name: lab", "name: [", ["not valid YAML"]),
        ("200 Gbit/s", "0 Gbit/s", ["network_bytes_per_s", "above 0 bytes/s"]),
    ],
)
def test_bad_yaml_is_refused_in_one_line_that_names_the_field(
    old: str, new: str, words: list[str], tmp_path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(InvalidInput) as caught:
        hardware.load_cluster(path)
    message = str(caught.value)
    assert "\n" not in message
    for word in ["mine.yaml", *words]:
        assert word in message


def test_a_file_that_is_not_there_is_named(tmp_path) -> None:
    with pytest.raises(InvalidInput, match=r"none\.yaml: cannot be read"):
        hardware.load_cluster(tmp_path / "none.yaml")


def test_saving_and_loading(tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    cluster = hardware.cluster("mixed-a100-v100")
    hardware.save_cluster(cluster, path)
    assert hardware.load_cluster(path) == cluster


def test_the_catalogue_is_physical_and_complete() -> None:
    for name in hardware.catalogue_names("accelerators"):
        device = hardware.accelerator(name)
        assert 1e12 < device.half_flop_per_s < 1e16
        assert 1e11 < device.memory_bytes_per_s < 2e13
        assert 8e9 <= device.memory_bytes < 1e12
    for name in hardware.catalogue_names("clusters"):
        assert hardware.cluster(name).gpus > 0
    assert hardware.accelerator("A100") is hardware.accelerator("A100-80")
    with pytest.raises(InvalidInput, match="has no fp8 rate"):
        hardware.accelerator("A100").peak_flop_per_s("fp8")


def test_wide_area_networks_hold_the_published_pairs() -> None:
    world = hardware.wide_area_network("dtfm-world")
    link = world.link("Tokyo", "Oregon")
    assert link.latency_s == pytest.approx(0.096)
    assert link.bandwidth_bytes_per_s == pytest.approx(0.523e9 / 8)
    assert np.array_equal(world.delay_s, world.delay_s.T)
    part = world.select(("Sydney", "London"))
    assert part.link("London", "Sydney") == world.link("Sydney", "London")
    with pytest.raises(ValueError, match="read-only"):
        world.delay_s[0, 0] = 0
    with pytest.raises(InvalidInput, match="place must be one of"):
        world.link("Tokyo", "Atlantis")
