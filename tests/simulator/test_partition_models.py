"""Analytic tables and settings: the same physics as the training cost model, and sane files."""

from __future__ import annotations

import numpy as np
import pytest

from dtgym.simulator import hardware, training, workload
from dtgym.simulator import plans as training_plans
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.hardware import Cluster, Node, NodeGroup
from dtgym.simulator.partition_models import analytic_tables
from dtgym.simulator.partition_settings import Setting, Site, load_sites, problem_of

A100 = hardware.accelerator("A100-80")
H20 = hardware.accelerator("H20-96")
MODEL = workload.transformer("gpt3-2.7b")


@pytest.fixture(scope="module")
def tables():
    return analytic_tables([MODEL], [A100, H20], samples=(1, 2, 4))


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_one_micro_batch_costs_what_the_training_model_says(tables, tp: int) -> None:
    """A single stage and micro-batch: the step without bubble, synchronisation and optimizer."""
    node = Node("box", A100, 8, 1, 1e12, 1e9, 1e11)
    problem = training_plans.Problem(
        MODEL, Cluster("one", (NodeGroup(1, node),)), global_batch=2, gpus=tp
    )
    plan = training_plans.Plans.of(tensor=tp, microbatch=2, sequence_parallel=int(tp > 1))
    cost = training.step(problem, plan)
    expected_s = float(cost.breakdown.compute_s[0] + cost.breakdown.tensor_s[0])
    t = int(np.flatnonzero(tables.tensor_parallel == tp)[0])
    total_s = float((tables.forward_s + tables.backward_s)[0, t, 1, -1])
    assert total_s == pytest.approx(expected_s, rel=1e-3)


def test_parameters_of_all_layers_are_the_models(tables) -> None:
    total = tables.parameters[:, :, -1] * tables.tensor_parallel
    # Embedding and head each hold the vocabulary once: a pipeline cannot tie them.
    expected = MODEL.parameters + MODEL.vocab * MODEL.hidden
    np.testing.assert_allclose(total, expected, rtol=0.01)


def test_tables_are_monotone(tables) -> None:
    for values in (tables.forward_s, tables.backward_s, tables.parameters):
        assert (np.diff(values, axis=-1) >= 0).all()
    assert (np.diff(tables.forward_s, axis=2)[..., 1:] > 0).all(), "more samples take longer"
    assert (tables.activation_bytes[:, 2, :, 1:-1] < tables.activation_bytes[:, 0, :, 1:-1])[
        ..., 1:
    ].all(), "full recompute stores less"


def test_degrees_that_do_not_divide_heads_have_no_price() -> None:
    odd = workload.Transformer("odd", 4, 576, 9, 1000, 128)
    tables = analytic_tables([odd], [A100], samples=(1,))
    finite = np.isfinite(tables.forward_s[0, :, 0, -1])
    assert dict(zip(tables.tensor_parallel.tolist(), finite.tolist(), strict=True)) == {
        1: True, 2: False, 4: False, 8: False
    }  # fmt: skip


def test_settings_are_padded_without_touching_each_other() -> None:
    site = [Site(name, gpu, 1, 8, 25e9) for name, gpu in (("a", A100), ("b", H20))]
    alone = Setting("one", (site[0],), np.zeros((1, 1)), np.zeros((1, 1)), "gpt3-2.7b", 32)
    link = np.array([[0.0, 1e9], [1e9, 0.0]])
    both = Setting("two", tuple(site), link, link * 1e-11, "gpt3-6.7b", 64)
    problem = problem_of([alone, both])
    assert problem.row[0].tolist() == [0, -1]
    assert problem.layers.tolist() == [MODEL.layers + 2, 34]
    assert problem.gpus.tolist() == [[8, 0], [8, 8]]
    assert problem_of([alone]).row.shape == (1, 1)


def test_regions_of_the_catalogue_join_sites(tmp_path) -> None:
    file = tmp_path / "world.yaml"
    file.write_text(
        "name: world\nwide_area_network: dtfm-world\nsites:\n"
        + "".join(
            f"  - {{name: {n}, region: {r}, accelerator: A100-80, nodes: 1, gpus_per_node: 8, "
            "network: 100 Gbit/s}\n"
            for n, r in (("x", "Tokyo"), ("y", "London"))
        )
    )
    setting = load_sites(file, model="llama2-7b", global_batch=64)
    link = hardware.wide_area_network("dtfm-world").link("Tokyo", "London")
    assert setting.wan_bytes_per_s[0, 1] == link.bandwidth_bytes_per_s
    assert setting.wan_delay_s[0, 1] == link.latency_s
    assert setting.wan_bytes_per_s[0, 0] == 0


def test_bad_settings_are_named() -> None:
    site = Site("a", A100, 1, 8, 25e9)
    zero = np.zeros((1, 1))
    with pytest.raises(InvalidInput, match="must differ"):
        Setting("x", (site, site), np.zeros((2, 2)), np.zeros((2, 2)), "llama2-7b", 8)
    with pytest.raises(InvalidInput, match="global batch"):
        Setting("x", (site,), zero, zero, "llama2-7b", 0)
    with pytest.raises(InvalidInput, match="site a: nodes"):
        Site("a", A100, 0, 8, 25e9)
    with pytest.raises(InvalidInput, match="at least 4 blocks"):
        analytic_tables([workload.Transformer("tiny", 2, 64, 2, 100, 16)], [A100])
