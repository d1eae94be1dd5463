"""Single operations: matrix products, attention, collectives, state bytes, calibration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtgym.simulator import calibration, collectives, compute, hardware, memory
from dtgym.simulator.calibration import CONSTANTS
from dtgym.simulator.errors import InvalidInput

A100 = hardware.accelerator("A100")
SELENE = hardware.cluster("selene-64")
sizes = st.integers(1, 1 << 17)


@given(sizes, sizes, sizes)
def test_a_product_takes_at_least_its_flops_and_its_traffic(m: int, n: int, k: int) -> None:
    time = float(compute.matmul_time_s(m, n, k, A100))
    assert time >= 2 * m * n * k / A100.half_flop_per_s
    assert time >= 2 * (m * k + k * n + m * n) / A100.memory_bytes_per_s
    assert compute.matmul_time_s(2 * m, n, k, A100) > time
    assert compute.matmul_time_s(m, n, 2 * k, A100) > time


def test_products_of_the_search_reach_the_measured_order() -> None:
    """Sustained rates lie under the best shapes found by search (ml-engineering), not far."""
    for name, shape, tflops in (
        ("A100", (1024, 10240, 5120), 271.2),
        ("H100", (2048, 2048, 13312), 794.5),
    ):
        m, n, k = shape
        rate = 2 * m * n * k / float(compute.matmul_time_s(m, n, k, hardware.accelerator(name)))
        assert 0.7 < rate / (tflops * 1e12) < 1.0


def test_eight_bits_are_faster_where_the_device_has_them() -> None:
    h100 = hardware.accelerator("H100")
    half, eight = (
        compute.matmul_time_s(8192, 8192, 8192, h100, precision=p) for p in ("half", "fp8")
    )
    assert 1.5 < half / eight < 2.5
    with pytest.raises(InvalidInput, match="has no fp8 rate"):
        compute.matmul_time_s(1, 1, 1, A100, precision="fp8")
    with pytest.raises(InvalidInput, match="m must be above 0"):
        compute.matmul_time_s(0, 1, 1, A100)


@given(st.integers(1, 64), st.sampled_from([512, 2048, 8192]), st.sampled_from([64, 96, 128, 256]))
def test_attention_is_quadratic_and_backward_is_dearer(heads: int, tokens: int, dim: int) -> None:
    for kernel in ("unfused", "flash1", "flash2", "fused"):
        forward, backward = compute.attention_time_s(heads, tokens, dim, A100, kernel=kernel)
        twice, _ = compute.attention_time_s(heads, 2 * tokens, dim, A100, kernel=kernel)
        assert forward < backward
        assert 2 <= twice / forward < 4.001
    aligned, _ = compute.attention_time_s(heads, tokens, 104, A100, kernel="unfused")
    odd, _ = compute.attention_time_s(heads, tokens, 108, A100, kernel="unfused")
    assert odd > aligned * 1.05


ranks = st.integers(1, 512)
message = st.floats(0, 1e11)
CALLS = (
    collectives.all_gather_time_s,
    collectives.all_reduce_time_s,
    collectives.all_to_all_time_s,
)


@given(message, ranks, st.floats(1.01, 10))
def test_collectives_rise_with_bytes_and_fall_with_bandwidth(
    size: float, n: int, factor: float
) -> None:
    [group] = SELENE.groups
    device = replace(A100, peer_bytes_per_s=A100.peer_bytes_per_s * factor)
    network = group.node.network_bytes_per_s * factor
    better = replace(
        SELENE,
        groups=(
            replace(
                group, node=replace(group.node, accelerator=device, network_bytes_per_s=network)
            ),
        ),
    )
    for call in CALLS:
        time = call(size, n, SELENE)
        assert call(size * factor, n, SELENE) >= time
        assert call(size, n, better) <= time
        assert call(size, 1, SELENE) == 0


@given(message, ranks)
def test_no_collective_beats_what_its_links_can_carry(size: float, n: int) -> None:
    """A rank receives (n - 1) / n of a gather; a node, what the other nodes hold, on all cards."""
    node = SELENE.groups[0].node
    time = float(collectives.all_gather_time_s(size, n, SELENE))
    assert time >= min(n - 1, 7) / min(n, 8) * size / A100.peer_bytes_per_s
    nodes = -(-n // 8)
    assert time >= size * (nodes - 1) / nodes / node.network_bytes_per_s
    both = float(collectives.all_reduce_time_s(size, n, SELENE))
    assert both <= 2 * time * (1 + 1e-12)
    assert both >= 2 * size * (nodes - 1) / nodes / node.network_bytes_per_s


def test_all_reduce_of_eight_is_near_the_published_curve() -> None:
    """A100, 8 GPUs (vTrain): training exchanges run below the benchmark, within a factor 1.6."""
    published = {25.2e6: 265e-6, 101e6: 828e-6, 805e6: 6187e-6}
    for size, measured in published.items():
        time = float(collectives.all_reduce_time_s(size, 8, SELENE))
        assert 1 <= time / measured < 1.6


def test_switches_that_add_are_used_for_large_groups_only() -> None:
    nvls = hardware.cluster("dgx-h100-32")
    plain = replace(
        nvls,
        groups=tuple(
            replace(
                g,
                node=replace(
                    g.node, accelerator=replace(g.node.accelerator, in_switch_reduction=False)
                ),
            )
            for g in nvls.groups
        ),
    )
    for n, faster in ((2, False), (4, False), (8, True)):
        times = [float(collectives.all_reduce_time_s(1e9, n, c)) for c in (nvls, plain)]
        assert (times[0] < times[1]) is faster
    gathers = [float(collectives.all_gather_time_s(1e9, 8, c)) for c in (nvls, plain)]
    assert gathers[0] == gathers[1]


def test_messages_between_nodes_are_slower() -> None:
    inside = collectives.point_to_point_time_s(1e8, SELENE, same_node=True)
    between = collectives.point_to_point_time_s(1e8, SELENE, same_node=False)
    assert inside < between
    with pytest.raises(InvalidInput, match="size_bytes must be at least 0 bytes"):
        collectives.point_to_point_time_s(-1, SELENE, same_node=True)
    with pytest.raises(InvalidInput, match="ranks must be at least 1"):
        collectives.all_reduce_time_s(1.0, 0, SELENE)


@given(st.integers(1, 4096))
def test_state_bytes_are_those_of_the_zero_paper(d: int) -> None:
    got = memory.state_bytes_per_parameter([0, 1, 2, 3], d)
    assert np.allclose(got, [16, 4 + 12 / d, 2 + 14 / d, 16 / d])


def test_shipped_constants_lie_in_their_bounds_and_come_back_from_yaml() -> None:
    shipped = calibration.shipped()
    text = calibration.calibration_yaml(shipped)
    assert calibration.calibration_from_yaml(text) == shipped
    assert shipped.provenance["rows"] > 200
    assert "train" in shipped.provenance["fitted_on"]
    assert set(shipped.values) == set(CONSTANTS)
    for name, constant in CONSTANTS.items():
        if not constant.fitted:
            assert shipped.values[name] == constant.prior


def test_bad_constants_are_refused() -> None:
    values = dict(calibration.shipped().values)
    with pytest.raises(InvalidInput, match=r"matmul_ampere must lie in 0.6\.\.0.87"):
        calibration.Calibration(values | {"matmul_ampere": 2.0}, {})
    with pytest.raises(InvalidInput, match="unknown constant 'luck'"):
        calibration.Calibration(values | {"luck": 1.0}, {})
    del values["softmax"]
    with pytest.raises(InvalidInput, match="constant 'softmax' is missing"):
        calibration.Calibration(values, {})
    with pytest.raises(InvalidInput, match="two fields provenance and constants"):
        calibration.calibration_from_yaml("a: 1")
