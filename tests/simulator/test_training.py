"""The training cost model: an independent reference, properties, and what is refused."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtgym.simulator import calibration, hardware, memory, training, workload
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.hardware import Accelerator, Cluster, Node, NodeGroup
from dtgym.simulator.plans import RECOMPUTE, Plans, Problem
from dtgym.simulator.software import Software, framework, framework_names
from dtgym.simulator.workload import Transformer

GPT = Transformer("gpt", 24, 2048, 16, 50304, 2048)


def cluster(name: str = "A100-80", nodes: int = 8, gpus: int = 8, network: float = 100e9, **change):
    device = replace(hardware.accelerator(name), **change)
    node = Node("n", device, gpus, 64, 1e12, 1e9, network)
    return Cluster("c", (NodeGroup(nodes, node),))


def degrees(gpus: int, most_tensor: int = 8) -> list[tuple[int, int, int, int]]:
    powers = [2**i for i in range(12)]
    return [
        (t, p, d, gpus // (t * p * d))
        for t in powers
        for p in powers
        for d in powers
        if t <= most_tensor and p <= 8 and t * p * d <= gpus and gpus // (t * p * d) <= 4
    ]


@st.composite
def cases(draw: st.DrawFn, gpus: int = 64) -> tuple[Problem, Plans]:
    software = framework(draw(st.sampled_from(framework_names())))
    name = draw(st.sampled_from(["V100-32", "A100-80", "H100-SXM-80", "B200-180", "MI300X"]))
    problem = Problem(
        draw(st.sampled_from([GPT, workload.transformer("llama3-8b")])),
        cluster(name, gpus // 8),
        global_batch=512,
        software=software,
    )
    count = draw(st.integers(1, 12))
    picked = [draw(st.sampled_from(degrees(gpus))) for _ in range(count)]
    tensor, pipeline, data, context = (np.array(column) for column in zip(*picked, strict=True))
    microbatch = np.array(
        [draw(st.sampled_from([m for m in (1, 2, 4) if 512 % (d * m) == 0])) for d in data]
    )
    batches = 512 // (data * microbatch)
    chunks = np.where((pipeline > 1) & (batches % pipeline == 0), draw(st.sampled_from([1, 2])), 1)
    plans = Plans.of(
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        context=context,
        microbatch=microbatch,
        chunks=chunks,
        zero=np.array([draw(st.integers(0, 3)) for _ in range(count)]),
        sequence_parallel=np.array([draw(st.integers(0, 1)) for _ in range(count)]),
        recompute=np.array([draw(st.integers(0, 3)) for _ in range(count)]),
    )
    return problem, plans


def changed(problem: Problem, network: float = 1.0, **factors: float) -> Problem:
    """The problem with rates of the hardware multiplied."""
    [group] = problem.cluster.groups
    rates = {name: getattr(problem.accelerator, name) * f for name, f in factors.items()}
    device = replace(problem.accelerator, **rates)
    node = replace(
        group.node,
        accelerator=device,
        network_bytes_per_s=group.node.network_bytes_per_s * network,
    )
    return replace(problem, cluster=Cluster("c", (NodeGroup(group.count, node),)))


def reference_s(model: Transformer, device: Accelerator, microbatch: int, ranks: int, batch: int):
    """One pipeline stage on dense hardware, data parallel, 2021 software: counted by hand."""
    k = calibration.shipped().values
    e = k["matmul_ampere"] * device.half_flop_per_s
    memory_rate = device.memory_bytes_per_s
    tokens, h, f = microbatch * model.sequence, model.hidden, model.ffn

    def product(m, n, inner, weight=1.0):
        loss = (1 + k["matmul_half_mn"] / m) * (1 + k["matmul_half_mn"] / n)
        time = 2 * m * n * inner / e * loss * (1 + k["matmul_half_k"] / inner)
        return weight * max(time, 2 * (m * inner + inner * n + m * n) / memory_rate)

    matrices = [(h, 3 * h), (h, h), (h, f), (f, h)]  # inputs, outputs
    forward = sum(product(tokens, out, inp) for inp, out in matrices)
    backward = sum(product(tokens, inp, out) for inp, out in matrices)
    backward += sum(product(out, inp, tokens, 1.06) for inp, out in matrices)
    s, d = model.sequence, model.head_dim
    scores = microbatch * model.heads * s * s
    one = 2 * scores * d / e
    mn, kk = k["matmul_half_mn"], k["matmul_half_k"]
    products = one * (1 + mn / s) ** 2 * (1 + kk / d) + one * (1 + mn / s) * (1 + mn / d) * (
        1 + kk / s
    )
    traffic = scores * k["softmax"] / memory_rate
    forward += products + 13 * traffic
    backward += 2 * products + 15 * traffic
    moved = tokens * (22 * h + 4 * 3 * h + 4 * h + 4 * f) * k["elementwise"] / memory_rate
    weights = 4 * h * h + 3 * h + h + 2 * h * f + f + h
    forward += moved
    backward += 1.8 * moved + 2 * 2 * weights / memory_rate
    host = 36 * k["launch_s"]
    forward = (forward**3 + host**3) ** (1 / 3)
    backward = (backward**3 + (2 * host) ** 3) ** (1 / 3)
    v = model.vocab
    pass_over = k["elementwise"] / memory_rate
    head = product(tokens, v, h) + product(tokens, h, v) + product(v, h, tokens)
    head += 24 * tokens * v * pass_over + 2 * 2 * v * h / memory_rate + 18 * tokens * h * pass_over
    held = model.layers * weights + v * h
    size = 2 * held
    group, nodes = min(8, ranks), ceil(ranks / 8)
    peer = device.peer_bytes_per_s * k["peer_efficiency"]
    network = 100e9 / 8 * k["network_efficiency"]
    start = k["network_start_s"] + 5e-6
    gather = size * (group - 1) / group / peer + (ranks - nodes) * k["peer_hop_s"]
    gather += size / group * (nodes - 1) / nodes / network
    ring = 2 * gather + (start * (1 + 0.1 * (nodes - 1)) if nodes > 1 else 0)
    tree = 2 * (size * (group - 1) / group / peer + size / group * (nodes - 1) / nodes / network)
    tree += 2 * (group - 1) * k["peer_hop_s"] + start * (1 + 0.1 * np.log2(nodes))
    sync = 0 if ranks == 1 else min(ring, tree) if nodes > 1 else ring
    update = held * k["optimizer_bytes"] / memory_rate + k["iteration_s"]
    steps = batch // (ranks * microbatch)
    return steps * (model.layers * (forward + backward) + head) + sync + update


@pytest.mark.parametrize("ranks", [1, 4, 8, 64])
@pytest.mark.parametrize("microbatch", [1, 4])
def test_equals_the_plain_reference(ranks: int, microbatch: int) -> None:
    problem = Problem(
        GPT, cluster(), global_batch=512, gpus=ranks, software=framework("megatron-lm-2021")
    )
    cost = training.step(problem, Plans.of(data=ranks, microbatch=microbatch, zero=0))
    expected = reference_s(GPT, problem.accelerator, microbatch, ranks, 512)
    assert cost.time_s[0] == pytest.approx(expected, rel=1e-12)


@given(cases())
def test_the_breakdown_sums_to_the_time_and_memory_to_its_parts(case) -> None:
    cost = training.step(*case)
    assert np.allclose(cost.breakdown.total_s(), cost.time_s, rtol=1e-12)
    for item in fields(cost.breakdown):
        assert (getattr(cost.breakdown, item.name) >= 0).all(), item.name
    assert np.allclose(cost.memory_parts.sum(axis=2), cost.memory_bytes, rtol=1e-12)
    assert (cost.memory_parts >= 0).all()
    each = np.arange(case[1].count)
    most = cost.memory_bytes[each, cost.tight_stage]
    assert (most == cost.memory_bytes.max(axis=1)).all()
    lacking = np.maximum(most - case[0].accelerator.memory_bytes, 0)
    assert np.array_equal(cost.missing_bytes, lacking)
    assert np.array_equal(cost.feasible, lacking == 0)


@given(cases(), st.randoms())
def test_permuting_a_batch_permutes_the_result_bit_for_bit(case, random) -> None:
    problem, plans = case
    order = list(range(plans.count))
    random.shuffle(order)
    whole, part = training.step(problem, plans), training.step(problem, plans.take(order))
    assert np.array_equal(whole.time_s[order], part.time_s)
    assert np.array_equal(whole.memory_bytes.max(axis=1)[order], part.memory_bytes.max(axis=1))


@given(cases())
def test_a_batch_of_one_equals_the_batch_bit_for_bit(case) -> None:
    problem, plans = case
    whole = training.step(problem, plans)
    for index in range(plans.count):
        one = training.step(problem, plans.take(slice(index, index + 1)))
        assert one.time_s[0] == whole.time_s[index]
        assert one.memory_bytes.max() == whole.memory_bytes[index].max()
    many = training.step([problem] * plans.count, plans)
    assert np.array_equal(many.time_s, whole.time_s)


@given(cases(), st.floats(1.01, 4))
def test_time_falls_with_every_rate_of_the_hardware(case, factor: float) -> None:
    problem, plans = case
    before = training.step(problem, plans).time_s
    better = [
        changed(problem, network=factor),
        changed(problem, half_flop_per_s=factor),
        changed(problem, memory_bytes_per_s=factor),
        changed(problem, peer_bytes_per_s=factor),
    ]
    for faster in better:
        assert (training.step(faster, plans).time_s <= before * (1 + 1e-12)).all()
    everything = changed(
        problem,
        network=factor,
        half_flop_per_s=factor,
        memory_bytes_per_s=factor,
        peer_bytes_per_s=factor,
    )
    assert (training.step(everything, plans).time_s < before).all()


@given(cases())
def test_time_and_memory_rise_with_layers(case) -> None:
    problem, plans = case
    deeper = replace(problem, model=replace(problem.model, layers=problem.model.layers + 8))
    before, after = training.step(problem, plans), training.step(deeper, plans)
    assert (after.time_s > before.time_s).all()
    assert (after.memory_bytes.max(axis=1) > before.memory_bytes.max(axis=1)).all()


@given(cases())
def test_zero_stages_never_hold_more_state(case) -> None:
    problem, plans = case
    states = []
    for zero in range(4):
        changed_plans = replace(plans, zero=np.full(plans.count, zero))
        states.append(training.step(problem, changed_plans).memory_parts[:, :, :3].sum(axis=2))
    for more, less in pairwise(states):
        assert (less <= more).all()


@given(cases())
def test_more_recomputation_never_keeps_more_activations(case) -> None:
    problem, plans = case
    kept = {}
    for index, name in enumerate(RECOMPUTE):
        of = replace(plans, recompute=np.full(plans.count, index))
        kept[name] = training.step(problem, of).memory_parts[:, :, 3]
    slack = 1 + 1e-12
    assert (kept["selective"] <= kept["none"] * slack).all()
    assert (kept["operators"] <= kept["selective"] * slack).all()
    assert (kept["full"] <= kept["none"] * slack).all()


@given(cases())
def test_more_recomputation_never_saves_time(case) -> None:
    problem, plans = case
    time = [
        training.step(problem, replace(plans, recompute=np.full(plans.count, index))).time_s
        for index in range(len(RECOMPUTE))
    ]
    for more in time[1:]:
        assert (more >= time[0]).all()


@given(st.integers(1, 16), st.sampled_from([1, 2, 4, 8]), st.booleans())
def test_activations_follow_korthikanti(sequences: int, tensor: int, sequence_parallel) -> None:
    s, h, a = GPT.sequence, GPT.hidden, GPT.heads
    sbh = s * sequences * h
    shared = tensor if sequence_parallel else 1
    none = sbh * (10 / shared + 24 / tensor + 5 * a * s / (h * tensor))
    options = {
        "tensor": tensor,
        "sequence_parallel": sequence_parallel,
        "scores_in_memory": True,
        "dropout": True,
    }
    got = memory.activation_bytes_per_layer(GPT, sequences, **options)
    assert got == pytest.approx(none, rel=1e-12)
    selective = memory.activation_bytes_per_layer(GPT, sequences, recompute="selective", **options)
    assert selective == pytest.approx(sbh * (10 / shared + 24 / tensor), rel=1e-12)
    full = memory.activation_bytes_per_layer(GPT, sequences, recompute="full", **options)
    assert full == pytest.approx(2 * sbh / shared, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "gpus", "pipeline", "microbatch", "chunks", "published_gib"),
    [
        ("megatron-22b", 8, 1, 4, 1, (59.25, 9.56)),
        ("gpt3-175b", 64, 8, 1, 3, (66.84, 12.35)),
        ("megatron-530b", 280, 35, 1, 3, (114.02, 23.08)),
        ("megatron-1t", 512, 64, 1, 1, (131.25, 26.56)),
    ],
)
def test_activations_of_the_first_stage_as_published(
    name: str, gpus: int, pipeline: int, microbatch: int, chunks: int, published_gib
) -> None:
    """Korthikanti et al., figure 1; published without the embedding's dropout mask."""
    problem = Problem(
        workload.transformer(name),
        cluster(nodes=gpus // 8),
        global_batch=microbatch * pipeline * 2,
        software=framework("megatron-lm-2022"),
    )
    shape = {
        "tensor": 8,
        "pipeline": pipeline,
        "microbatch": microbatch,
        "chunks": chunks,
        "zero": 0,
    }
    none = training.step(problem, Plans.of(**shape))
    selective = training.step(
        problem, Plans.of(**shape, recompute="selective", sequence_parallel=1)
    )
    pending = pipeline
    if chunks > 1:
        pending = (2 * (pipeline - 1) + (chunks - 1) * pipeline + 1) / chunks
    got = []
    for cost, split in ((none, 1), (selective, 8)):
        size = cost.memory_parts[0, 0, 3]
        # The figure leaves out what embedding and head keep.
        hidden = microbatch * 2048 * problem.model.hidden / split
        size -= pending * hidden
        if pipeline == 1:
            size -= 12 * microbatch * 2048 * 51200 / 8 + 2 * hidden
        got.append(size / 2**30)
    assert got == pytest.approx(published_gib, rel=2e-3)


@given(cases())
@settings(max_examples=20)
def test_the_closed_form_is_close_and_exact_without_a_pipeline(case) -> None:
    problem, plans = case
    exact = training.step(problem, plans).time_s
    closed = training.step(problem, plans, fidelity="closed_form").time_s
    alone = plans.pipeline == 1
    assert np.allclose(closed[alone], exact[alone], rtol=1e-12)
    assert np.allclose(closed, exact, rtol=0.35)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_screening_equals_the_closed_form_of_a_step(seed: int) -> None:
    generator = np.random.default_rng(seed)
    problem = Problem(GPT, cluster(), global_batch=256, software=framework("megatron-lm-2021"))
    few = Plans.of(tensor=[1, 2, 8, 4], pipeline=[8, 4, 8, 1], data=[8, 8, 1, 16], microbatch=2)
    index = generator.integers(0, 4, 50)
    splits = np.zeros((50, 8))
    for row, plan in enumerate(index):
        stages = few.pipeline[plan]
        cuts = np.sort(generator.choice(np.arange(1, 24), stages - 1, replace=False))
        splits[row, :stages] = np.diff(np.concatenate([[0], cuts, [24]]))
    chosen = few.take(index)
    expected = training.step(
        problem, replace(chosen, stage_layers=splits), fidelity="closed_form"
    ).breakdown
    got = training.screen(problem, few, index, splits)
    total = expected.total_s()
    # The screen takes the largest synchronisation of an even split, a step that of its own.
    assert np.allclose(got, total, rtol=0.05)
    assert np.corrcoef(got, total)[0, 1] > 0.999


def test_splits_that_lose_blocks_are_refused_by_the_screen() -> None:
    problem = Problem(GPT, cluster(), global_batch=256)
    few = Plans.of(pipeline=8, data=8)
    with pytest.raises(InvalidInput, match="stage_layers must sum to 24"):
        training.screen(problem, few, [0], [[3, 3, 3, 3, 3, 3, 3, 2]])
    with pytest.raises(InvalidInput, match=r"configuration must lie in 0\.\.0"):
        training.screen(problem, few, [1], [[3] * 8])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": 4}, "tensor x pipeline x data x context must be 64"),
        ({"tensor": 32, "data": 2}, r"tensor must divide heads \(16\), got 32"),
        ({"microbatch": 3}, r"data x microbatch must divide global_batch \(256\), got 64 x 3"),
        ({"pipeline": 32, "data": 2}, r"pipeline must be at most 24 \(layers\), got 32"),
        ({"chunks": 2}, "chunks above 1 need pipeline above 1"),
        ({"expert": 2}, r"expert must divide experts \(1\)"),
        ({"zero": 4}, r"zero must be in 0\.\.3, got 4"),
        ({"tensor": 0}, "tensor must be at least 1, got 0"),
        ({"tensor": 1.5}, "tensor must be whole, got 1.5"),
        ({"recompute": "some"}, "recompute must be one of none, selective, full, operators"),
        ({"stage_layers": [[23.0]]}, r"stage_layers must sum to 24 \(layers\), got 23"),
        ({"stage_layers": [[-1.0]]}, "stage_layers must be at least 0 blocks"),
        ({"data": [64, 64], "microbatch": [1, 1, 1]}, "fields must have one length"),
    ],
)
def test_plans_that_cannot_run_are_refused_in_one_line(change: dict, words: str) -> None:
    problem = Problem(GPT, cluster(), global_batch=256)
    with pytest.raises(InvalidInput, match=words) as caught:
        training.step(problem, Plans.of(**({"data": 64} | change)))
    assert "\n" not in str(caught.value)


def test_the_offending_plan_is_named() -> None:
    problem = Problem(GPT, cluster(), global_batch=256)
    with pytest.raises(InvalidInput, match="plan 1: tensor x pipeline"):
        training.step(problem, Plans.of(data=[64, 32]))
    with pytest.raises(InvalidInput, match="plan 1: tensor x pipeline"):
        training.step([problem, replace(problem, gpus=32)], Plans.of(data=[64, 64]))
    with pytest.raises(InvalidInput, match="one per plan"):
        training.step([problem], Plans.of(data=[64, 64]))


def test_problems_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidInput, match="has no fp8 rate"):
        Problem(GPT, cluster(), 256, precision="fp8")
    with pytest.raises(InvalidInput, match=r"Problem.gpus must lie in 1\.\.64"):
        Problem(GPT, cluster(), 256, gpus=65)
    with pytest.raises(InvalidInput, match="one kind of accelerator"):
        Problem(GPT, hardware.cluster("mixed-a100-v100"), 256)
    with pytest.raises(InvalidInput, match=r"Problem.global_batch must be at least 1"):
        Problem(GPT, cluster(), 0)
    with pytest.raises(InvalidInput, match=r"Software.attention must be one of"):
        Software(attention="magic")


def test_infeasible_is_a_flag_with_stage_and_missing_bytes() -> None:
    problem = Problem(workload.transformer("gpt3-175b"), cluster("A100-40"), global_batch=64)
    cost = training.step(problem, Plans.of(tensor=8, data=8, zero=0))
    assert not cost.feasible[0]
    assert cost.tight_stage[0] == 0
    assert cost.missing_bytes[0] == pytest.approx(cost.memory_bytes[0, 0] - 40e9)
    assert cost.time_s[0] > 0


def test_experts_cost_what_tokens_visit_and_hold_all() -> None:
    dense = Transformer("dense", 8, 2048, 16, 32000, 2048, ffn=4096)
    sparse = replace(dense, name="sparse", experts=8, experts_per_token=1)
    plan = Plans.of(data=8, microbatch=4, zero=0)
    problem = Problem(dense, cluster(nodes=1), global_batch=256)
    one = training.step(problem, plan)
    eight = training.step(replace(problem, model=sparse), plan)
    spread = training.step(
        replace(problem, model=sparse), replace(plan, expert=np.array([8], dtype=np.int64))
    )
    assert eight.breakdown.compute_s[0] < 1.5 * one.breakdown.compute_s[0]
    assert eight.memory_parts[0, 0, 0] > 3 * one.memory_parts[0, 0, 0]
    assert spread.memory_parts[0, 0, 0] < eight.memory_parts[0, 0, 0] / 3
    assert spread.breakdown.tensor_s[0] > eight.breakdown.tensor_s[0]


@pytest.mark.parametrize("name", hardware.catalogue_names("accelerators"))
def test_every_accelerator_of_the_catalogue_can_train(name: str) -> None:
    problem = Problem(GPT, cluster(name, nodes=1), global_batch=64)
    cost = training.step(problem, Plans.of(data=8))
    rate = GPT.training_flops(64) / 8 / cost.time_s[0]
    assert 0.1 < rate / problem.accelerator.half_flop_per_s < 0.95
