"""The Metis estimator: golden costs, an independent slow form, and how each term answers change."""

from __future__ import annotations

import copy
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtgym.baselines.partitioning import metis
from dtgym.experiments.validation import validate
from dtgym.simulator.errors import InvalidInput

LAYERS = 6


def synthetic(seed: int = 0, slots: tuple[int, ...] = (4, 4)) -> dict[str, Any]:
    """Two GPU types with random profiles, one node each unless `slots` says otherwise."""
    random = np.random.default_rng(seed)
    profiles = {}
    for gpu_type, slowness in (("A", 1.0), ("B", 2.5)):
        for tp in (1, 2, 4):
            for bs in (1, 2, 4, 8):
                layer_ms = (random.uniform(1, 3, LAYERS) * slowness * bs / tp).tolist()
                profiles[f"DeviceType.{gpu_type}_tp{tp}_bs{bs}.json"] = {
                    "model": {
                        "parameters": {
                            "parameters_per_layer_bytes": (
                                random.integers(1, 9, LAYERS) * 1e8
                            ).tolist()
                        }
                    },
                    "execution_time": {
                        "forward_backward_time_ms": sum(layer_ms) + random.uniform(0.1, 1),
                        "batch_generator_time_ms": random.uniform(0, 1),
                        "optimizer_time_ms": random.uniform(1, 9),
                        "layer_compute_total_ms": layer_ms,
                    },
                }
    hosts = [
        {"host": f"ip{index}", "slots": count, "type": "AB"[index % 2]}
        for index, count in enumerate(slots)
    ]
    bandwidths = {"A": (3.0, 200.0), "B": (1.5, 60.0)}
    return {
        "args": {
            "num_layers": LAYERS,
            "gbs": 32,
            "hidden_size": 512,
            "sequence_length": 128,
            "vocab_size": 1000,
        },
        "hosts": hosts,
        "clusterfile": {
            host["host"]: {
                "instance_type": host["type"],
                "inter_bandwidth": bandwidths[host["type"]][0],
                "intra_bandwidth": bandwidths[host["type"]][1],
                "memory": 40,
            }
            for host in hosts
        },
        "profiles": profiles,
    }


def slow_cost_ms(inputs: dict[str, Any], plan: list[Any], honour: bool) -> float:
    """The description, term by term, in exact fractions where it splits batches."""
    sequence, stages, groups, strategies, batches, borders = plan
    args = inputs["args"]
    order = inputs.get("profile_load_order") or sorted(inputs["profiles"])
    first = inputs["profiles"][order[0]]
    location = []
    for gpu_type in sequence:
        for host in inputs["hosts"]:
            if host["type"] == gpu_type:
                location += [(host["host"], gpu_type)] * host["slots"]

    def profile(gpu_type: str, tp: int, bs: int) -> dict[str, Any] | None:
        found = inputs["profiles"].get(f"DeviceType.{gpu_type}_tp{tp}_bs{bs}.json")
        return None if found is None else found["execution_time"]

    def bandwidth(members: list[tuple[str, str]]) -> float:
        types = {gpu_type for _, gpu_type in members}
        across = honour and len({host for host, _ in members}) > 1
        name = "inter_bandwidth" if across else "intra_bandwidth"
        return min(
            inputs["clusterfile"][host["host"]][name]
            for host in inputs["hosts"]
            if host["type"] in types
        ) * 2**20  # fmt: skip

    sizes = first["model"]["parameters"]["parameters_per_layer_bytes"]
    times, updates, reductions, transfers = [], [], [], []
    start = 0
    members_of = []
    for size in groups:
        members_of.append(location[start : start + size])
        start += size
    for stage in range(stages):
        members, (dp, tp) = members_of[stage], strategies[stage]
        layers = range(borders[stage], borders[stage + 1])
        micro_batch = args["gbs"] // dp // batches
        if len({gpu_type for _, gpu_type in members}) == 1:
            shares = [(members[0][1], micro_batch)]
        else:
            replicas = [members[k * tp][1] for k in range(dp)]
            if any(profile(t, tp, 1) is None for t in replicas):
                return math.nan
            speeds = [
                1 / Fraction(sum(profile(t, tp, 1)["layer_compute_total_ms"])) for t in replicas
            ]
            exact = [args["gbs"] // batches * speed / sum(speeds) for speed in speeds]
            whole = [math.floor(share) for share in exact]
            by_remainder = sorted(range(dp), key=lambda k: (whole[k] - exact[k], k))
            for k in by_remainder[: args["gbs"] // batches - sum(whole)]:
                whole[k] += 1
            shares = list(zip(replicas, whole, strict=True))
        stage_ms = 0.0
        for gpu_type, samples in shares:
            binary = [2**bit for bit in range(12) if samples & 2**bit]
            if len(shares) == 1:
                binary = [samples]
            parts = [profile(gpu_type, tp, part) for part in binary]
            if None in parts:
                return math.nan
            stage_ms = max(
                stage_ms,
                sum(part["layer_compute_total_ms"][layer] for part in parts for layer in layers),
            )
        times.append(stage_ms)
        optimizer = first["execution_time"]["optimizer_time_ms"]
        updates.append(2 * optimizer / tp * len(layers) / args["num_layers"])
        stage_bytes = sum(
            sizes[layer if layer in (0, args["num_layers"] - 1) else 1] for layer in layers
        )
        runs = [members[k : k + tp] for k in range(len(members))]
        slowest = min(bandwidth(run) for run in runs)
        reductions.append(2 * (dp - 1) / dp * stage_bytes / tp / slowest)
        if stage + 1 < stages:
            if borders[stage + 1] == args["num_layers"] - 1:
                width = args["vocab_size"] / tp
            else:
                width = args["hidden_size"]
            elements = micro_batch * args["sequence_length"] * width
            transfers.append(elements / bandwidth(members + members_of[stage + 1]))
    dp, tp = strategies[stages - 1]
    sync = []
    for _, gpu_type in members_of[stages - 1]:
        found = profile(gpu_type, tp, args["gbs"] // dp // batches)
        if found is None:
            return math.nan
        gap = found["forward_backward_time_ms"] - float(
            np.cumsum(found["layer_compute_total_ms"])[-1]
        )
        if gap == 0:
            return math.nan
        sync.append(gap)
    return (
        (batches - 1) * max(times)
        + sum(times)
        + batches * max(sync)
        + max(updates)
        + max(reductions)
        + sum(transfers)
        + batches * first["execution_time"]["batch_generator_time_ms"]
    )


def random_plan(random: np.random.Generator, gpus: int) -> list[Any]:
    """A plan over all GPUs: power-of-two groups, any dp x tp, any borders (empty stages too)."""
    groups: list[int] = []
    while sum(groups) < gpus:
        left = gpus - sum(groups)
        groups.append(int(2 ** random.integers(0, int(math.log2(left)) + 1)))
    strategies = []
    for size in groups:
        tp = int(2 ** random.integers(0, int(math.log2(size)) + 1))
        strategies.append([size // tp, tp])
    inner = np.sort(random.integers(0, LAYERS + 1, len(groups) - 1)).tolist()
    sequence = ["A", "B"] if random.random() < 0.5 else ["B", "A"]
    batches = int(2 ** random.integers(0, 6))
    return [sequence, len(groups), groups, strategies, batches, [0, *inner, LAYERS]]


@pytest.mark.parametrize("honour", [False, True])
@pytest.mark.parametrize("slots", [(4, 4), (2, 6), (4, 4, 4, 4), (3, 5, 5, 3)])
def test_costs_equal_the_slow_form_over_random_plans(slots: tuple[int, ...], honour: bool) -> None:
    random = np.random.default_rng(sum(slots) + honour)
    inputs = synthetic(seed=len(slots), slots=slots)
    plans = [random_plan(random, sum(slots)) for _ in range(300)]
    expected = np.array([slow_cost_ms(inputs, plan, honour) for plan in plans])
    costs = metis.plan_costs_ms(inputs, plans, honour_inter_bandwidth=honour)
    assert (np.isnan(costs) == np.isnan(expected)).all()
    kept = ~np.isnan(expected)
    assert 30 < kept.sum() < len(plans), "the sample must hold dropped and costed plans"
    np.testing.assert_allclose(costs[kept], expected[kept], rtol=1e-12)


def test_golden_files_pass(shared: Path) -> None:
    report = validate("metis", shared / "data" / "partition")
    assert report.passed
    assert set(report.figures["files"]) == {
        "metis_golden_B_asis", "metis_golden_C_asis", "metis_golden_C_fixed"
    }  # fmt: skip


def test_a_changed_golden_cost_fails(shared: Path, tmp_path: Path) -> None:
    golden = json.loads((shared / "data/partition/metis_golden_B_asis.json").read_text())
    golden["plans_sorted_by_cost"][7][-2] *= 1 + 1e-8
    (tmp_path / "metis_golden_X.json").write_text(json.dumps(golden))
    assert not validate("metis", tmp_path).passed


@pytest.mark.parametrize("name", ["metis_golden_B_asis", "metis_golden_C_fixed"])
def test_perturbed_goldens_equal_the_slow_form(shared: Path, name: str) -> None:
    golden = json.loads((shared / f"data/partition/{name}.json").read_text())
    random = np.random.default_rng(5)
    for document in golden["profiles"].values():
        times = document["execution_time"]
        times["layer_compute_total_ms"] = [
            value * random.uniform(0.5, 2) for value in times["layer_compute_total_ms"]
        ]
        times["forward_backward_time_ms"] = sum(times["layer_compute_total_ms"]) + 1
        times["optimizer_time_ms"] *= random.uniform(0.5, 2)
        parameters = document["model"]["parameters"]
        parameters["parameters_per_layer_bytes"] = [
            value * random.uniform(0.5, 2) for value in parameters["parameters_per_layer_bytes"]
        ]
    for row in golden["clusterfile"].values():
        row["inter_bandwidth"] *= random.uniform(0.1, 1)
        row["intra_bandwidth"] *= random.uniform(0.1, 1)
    golden["profile_load_order"] = golden["profile_load_order"][::-1]
    plans = [row[:6] for row in golden["plans_sorted_by_cost"]]
    for honour in (False, True):
        costs = metis.plan_costs_ms(golden, plans, honour_inter_bandwidth=honour)
        expected = [slow_cost_ms(golden, plan, honour) for plan in plans]
        np.testing.assert_allclose(costs, expected, rtol=1e-12)


def test_honouring_the_network_never_lowers_a_cost() -> None:
    inputs = synthetic(slots=(4, 4, 4, 4))
    random = np.random.default_rng(2)
    plans = [random_plan(random, 16) for _ in range(100)]
    blind = metis.plan_costs_ms(inputs, plans, honour_inter_bandwidth=False)
    aware = metis.plan_costs_ms(inputs, plans, honour_inter_bandwidth=True)
    kept = ~np.isnan(blind)
    assert (aware[kept] >= blind[kept]).all()
    assert (aware[kept] > blind[kept]).any()


def test_zero_sync_time_drops_the_plan() -> None:
    inputs = synthetic()
    plan = [["A", "B"], 2, [4, 4], [[4, 1], [4, 1]], 4, [0, 3, LAYERS]]
    assert np.isfinite(metis.plan_costs_ms(inputs, [plan], honour_inter_bandwidth=True)).all()
    times = inputs["profiles"]["DeviceType.B_tp1_bs2.json"]["execution_time"]
    times["forward_backward_time_ms"] = float(np.cumsum(times["layer_compute_total_ms"])[-1])
    assert np.isnan(metis.plan_costs_ms(inputs, [plan], honour_inter_bandwidth=True)).all()


def test_rows_mappings_and_plans_cost_the_same() -> None:
    inputs = synthetic()
    row = [["B", "A"], 2, [4, 4], [[2, 2], [4, 1]], 4, [0, 2, LAYERS], "further column"]
    mapping = dict(zip(metis.PLAN_COLUMNS, row, strict=False))
    plan = metis.read_plan(row, metis.read_inputs(inputs))
    costs = metis.plan_costs_ms(inputs, [row, mapping, plan], honour_inter_bandwidth=True)
    assert len(set(costs.tolist())) == 1
    assert plan.is_well_formed(LAYERS)


def test_unassigned_layers_empty_stages_and_missing_groups_are_malformed() -> None:
    read = metis.read_inputs(synthetic())
    base: list[Any] = [["A", "B"], 2, [4, 4], [[4, 1], [4, 1]], 4, [0, 3, LAYERS]]
    for position, value in ((5, [0, 3, 5]), (5, [0, 0, 6]), (1, 1)):
        row = copy.copy(base)
        row[position] = value
        assert not metis.read_plan(row, read).is_well_formed(LAYERS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("args"), "args"),
        (lambda d: d["args"].update(gbs=0), "gbs"),
        (lambda d: d["hosts"][0].update(host="nowhere"), "hosts[0]"),
        (lambda d: d["clusterfile"]["ip0"].update(inter_bandwidth=0), "inter_bandwidth"),
        (lambda d: d["args"].update(num_layers=7), "num_layers"),
        (lambda d: d["profiles"].update({"x.json": {}}), "x.json"),
        (lambda d: d.update(profile_load_order=["DeviceType.Z_tp1_bs1.json"]), "DeviceType.Z"),
    ],
)
def test_bad_inputs_name_the_field(change: Any, message: str) -> None:
    inputs = synthetic()
    change(inputs)
    with pytest.raises(InvalidInput) as error:
        metis.read_inputs(inputs)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, ["A", "Z"], "Z"),
        (2, [4, 8], "12 GPUs"),
        (3, [[3, 1], [4, 1]], "dp 3"),
        (4, 0, "batches"),
        (5, [0, 4, 2], "layer_partition"),
        (1, 3, "num_stage"),
    ],
)
def test_bad_plans_name_the_column(position: int, value: Any, message: str) -> None:
    row: list[Any] = [["A", "B"], 2, [4, 4], [[4, 1], [4, 1]], 4, [0, 3, LAYERS]]
    row[position] = value
    if position == 2:
        row[3] = [[4, 1], [8, 1]]
    with pytest.raises(InvalidInput) as error:
        metis.plan_costs_ms(synthetic(), [row], honour_inter_bandwidth=True)
    assert message in str(error.value)
