"""The partition evaluator against a slow scalar form written from the rules, and its properties."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtgym.simulator import partition, partition_estimates, partition_tables
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.partition import Assumptions, Problem, make_plans
from dtgym.simulator.partition_tables import LayerProfile, profiled_tables
from dtgym.simulator.pipeline_timeline import timeline

LAYERS = 9
TENSOR = (1, 2, 4)
SAMPLES = (1, 2, 4, 8)
ACCELERATORS = ("a", "b", "c")
GLOBAL_BATCH = 48


def random_profile(random) -> LayerProfile:
    sizes = {
        tp: np.stack(
            [
                random.uniform(1e7, 5e7, LAYERS),
                np.full(LAYERS, 2e6),
                random.uniform(1e7, 8e7, LAYERS),
            ],
            axis=1,
        )
        for tp in TENSOR
    }
    times_s = {
        name: {
            (tp, n): random.uniform(1e-4, 4e-3, (LAYERS, 3)) * n for tp in TENSOR for n in SAMPLES
        }
        for name in ACCELERATORS
    }
    return LayerProfile("random", 2.0, sizes, times_s)


def random_problem(random, **assumptions) -> Problem:
    """Two instances of three clusters with unlike networks; the second lacks its last cluster."""
    tables = profiled_tables(random_profile(random), ACCELERATORS)
    pair, square = (2, 3), (2, 3, 3)
    return Problem(
        tables=tables,
        row=np.array([[0, 1, 2], [2, 0, -1]]),
        global_batch=np.array([GLOBAL_BATCH, GLOBAL_BATCH]),
        nodes=np.full(pair, 3),
        gpus_per_node=np.full(pair, 4),
        memory_bytes=random.uniform(6e9, 20e9, pair),
        memory_bytes_per_s=random.uniform(1e11, 1e12, pair),
        intra_bytes_per_s=random.uniform(1e10, 1e11, pair),
        inter_bytes_per_s=random.uniform(1e9, 1e10, pair),
        intra_latency_s=random.uniform(0, 1e-5, pair),
        inter_latency_s=random.uniform(0, 1e-4, pair),
        wan_bytes_per_s=random.uniform(1e8, 1e10, square),
        wan_delay_s=random.uniform(0, 0.02, square),
        gpu_usd_per_hour=random.uniform(1, 4, pair),
        wan_usd_per_byte=random.uniform(0, 1e-10, square),
        network_bytes_per_s=random.uniform(2e9, 4e10, pair),
        assumptions=Assumptions(**assumptions),
    )


def random_plans(random, count, width=4, instances=2):
    stages = random.integers(1, width + 1, count)
    bound = np.zeros((count, width + 1), int)
    cluster = np.zeros((count, width), int)
    for p, used in enumerate(stages):
        inner = np.sort(random.choice(np.arange(1, LAYERS), used - 1, replace=False))
        bound[p, : used + 1] = [0, *inner, LAYERS]
        homes = random.permutation(3)
        cluster[p, :used] = np.sort(random.integers(0, 3, used))
        cluster[p] = homes[cluster[p]]
    extra = np.sort(random.integers(0, 3, (count, width)), axis=1)[:, ::-1]
    return make_plans(
        cluster,
        random.choice([1, 2, 3, 4, 6], (count, width)),
        random.choice([1, 1, 2, 4], (count, width)),
        bound,
        random.choice([1, 2, 4, 6, 12, 24], count),
        instance=random.integers(0, instances, count),
        stages=stages,
        wire=random.integers(0, 4, (count, width - 1)),
        warmup=np.maximum(stages[:, None] - 1 - np.arange(width), 0) + extra,
        recompute=random.choice([0, 2], (count, width)),
        zero=random.integers(0, 4, (count, width)),
    )


def slow_price(problem, plans, p):
    """(time, memory per stage, USD), or the number of the first broken rule, of plan p."""
    given, i = problem.assumptions, plans.instance[p]
    used = int(plans.stages[p])
    wire_bytes = given.wire_bytes_per_element
    cluster, tp, gpus = plans.cluster[p], plans.tp[p], plans.gpus[p]
    bound, batch = plans.bound[p], int(plans.microbatch[p])
    if GLOBAL_BATCH % batch:
        return 2
    m = GLOBAL_BATCH // batch
    nodes, taken = [], {}
    for s in range(used):
        c = cluster[s]
        if problem.row[i, c] < 0:
            return 3
        if c in cluster[:s] and cluster[s - 1] != c:
            return 3
        if gpus[s] % tp[s]:
            return 5
        if batch % (gpus[s] // tp[s]):
            return 6
        if s and min(plans.warmup[p, s], m - 1) > min(plans.warmup[p, s - 1], m - 1):
            return 9
        begin = -(-taken.get(c, 0) // tp[s]) * tp[s]
        taken[c] = begin + gpus[s]
        if taken[c] > 12:
            return 4
        nodes.append(range(begin // 4, (taken[c] - 1) // 4 + 1))
    f, b, after, memory, usd_per_s = [], [], [], [], 0.0
    for s in range(used):
        row = problem.row[i, cluster[s]]
        replicas = gpus[s] // tp[s]
        n = batch // replicas
        if n > max(SAMPLES):
            return 7
        layers = range(bound[s], bound[s + 1])
        k = TENSOR.index(tp[s])

        def per_layer(table, layer, n=n, row=row, k=k):
            values = [table[row, k, j, layer + 1] - table[row, k, j, layer] for j in range(4)]
            return np.interp(n, SAMPLES, values)

        tables = problem.tables
        forward = sum(per_layer(tables.forward_s, layer) for layer in layers)
        backward = sum(per_layer(tables.backward_s, layer) for layer in layers)
        update = sum(per_layer(tables.update_s, layer) for layer in layers)
        kind, level = plans.recompute[p, s], plans.zero[p, s]
        if kind == 2:
            backward += forward
        parameters = tables.parameters[row, k, bound[s + 1]] - tables.parameters[row, k, bound[s]]
        stored = (
            tables.activation_bytes[row, kind, k, bound[s + 1]]
            - tables.activation_bytes[row, kind, k, bound[s]]
        )
        ring = 0.0
        if replicas > 1:
            rate = problem.intra_bytes_per_s[i, cluster[s]]
            latency = problem.intra_latency_s[i, cluster[s]]
            if len(nodes[s]) > 1:
                local = min(4, gpus[s]) // tp[s]
                rate = min(
                    problem.inter_bytes_per_s[i, cluster[s]] * max(1, local),
                    problem.network_bytes_per_s[i, cluster[s]] / tp[s],
                )
                latency = problem.inter_latency_s[i, cluster[s]]
            size = parameters * given.synchronised_bytes / replicas
            ring = sum(latency + size / rate for _ in range(2 * (replicas - 1)))
        after.append(ring * (1.5 if level == 3 else 1) + update / (replicas if level else 1))
        state = [given.weight_bytes, given.gradient_bytes, given.optimizer_bytes]
        state = [x / replicas if level >= 3 - j else x for j, x in enumerate(state)]
        need = given.reserve_bytes + parameters * sum(state)
        need += stored * n * min(plans.warmup[p, s] + 1, m)
        if kind == 2:
            need += tables.largest_activation_bytes[row, k] * n
        sides = (s > 0) + (s < used - 1)
        compute = wire_bytes[partition.WIRES.index(given.compute_wire)]
        need += given.border_buffers * sides * n * 2e6 * compute
        memory.append(need)
        f.append(forward)
        b.append(backward)
        usd_per_s += gpus[s] * problem.gpu_usd_per_hour[i, cluster[s]] / 3600
    there, back, traffic = [], [], 0.0
    for s in range(used - 1):
        c, d = cluster[s], cluster[s + 1]
        size = batch * 2e6 * wire_bytes[plans.wire[p, s]]
        if partition.WIRES[plans.wire[p, s]] != given.compute_wire:
            for side, home in ((s, c), (s + 1, d)):
                own = batch / (gpus[side] // tp[side]) * 2e6 * compute
                f[side] += 2 * own / problem.memory_bytes_per_s[i, home]
                b[side] += 2 * own / problem.memory_bytes_per_s[i, home]
        if c != d:
            there.append(problem.wan_delay_s[i, c, d] + size / problem.wan_bytes_per_s[i, c, d])
            back.append(problem.wan_delay_s[i, d, c] + size / problem.wan_bytes_per_s[i, d, c])
            price = problem.wan_usd_per_byte[i, c, d] + problem.wan_usd_per_byte[i, d, c]
            traffic += m * size * price
            continue
        flows = min(gpus[s] // tp[s], gpus[s + 1] // tp[s + 1])
        together = len({*nodes[s], *nodes[s + 1]}) == 1
        if together:
            rate, latency = problem.intra_bytes_per_s[i, c], problem.intra_latency_s[i, c]
        else:
            crowd = -(-flows // min(len(nodes[s]), len(nodes[s + 1])))
            rate = min(problem.inter_bytes_per_s[i, c], problem.network_bytes_per_s[i, c] / crowd)
            latency = problem.inter_latency_s[i, c]
        there.append(latency + size / flows / rate)
        back.append(there[-1])
    found = timeline(f, b, there, back, m, warmup=plans.warmup[p, :used], overlap=given.overlap)
    ends = [found.busy_end_s[found.stage == s].max() for s in range(used)]
    total = max(end + rest for end, rest in zip(ends, after, strict=True))
    return total, memory, usd_per_s * total + traffic


@given(st.integers(0, 2**32 - 1), st.sampled_from(["overlapped", "sender_blocked", "both_ends"]))
@settings(max_examples=25)
def test_every_plan_is_priced_as_the_slow_form_prices_it(seed, overlap):
    random = np.random.default_rng(seed)
    problem = random_problem(random, overlap=overlap)
    plans = random_plans(random, 40)
    costs = partition.evaluate(problem, plans)
    for p in range(len(plans)):
        expected = slow_price(problem, plans, p)
        if isinstance(expected, int):
            assert costs.stages.reason[p] == expected
            assert costs.time_s[p] == np.inf and not costs.feasible[p]
            continue
        time_s, memory, usd = expected
        used = len(memory)
        assert costs.time_s[p] == pytest.approx(time_s, rel=1e-9)
        assert costs.stages.memory_bytes[p, :used] == pytest.approx(memory, rel=1e-9)
        assert costs.usd[p] == pytest.approx(usd, rel=1e-9)
        capacity = problem.memory_bytes[plans.instance[p], plans.cluster[p, :used]] * 0.94
        assert costs.feasible[p] == (capacity >= memory).all()
        assert costs.stages.missing_bytes[p] == pytest.approx(
            max(0, (memory - capacity).max()), rel=1e-6, abs=1
        )


def some_plans(seed=3, count=600, **assumptions):
    random = np.random.default_rng(seed)
    return random_problem(random, **assumptions), random_plans(random, count)


def test_one_plan_alone_costs_what_it_costs_in_a_batch_in_any_order():
    problem, plans = some_plans()
    batch = partition.evaluate(problem, plans)
    order = np.random.default_rng(1).permutation(len(plans))
    shuffled = partition.evaluate(problem, plans.take(order))
    assert shuffled.time_s.tobytes() == batch.time_s[order].tobytes()
    assert 50 < np.isfinite(batch.time_s).sum() < len(plans)
    for p in range(0, len(plans), 17):
        alone = partition.evaluate(problem, plans.take([p]))
        assert alone.time_s.tobytes() == batch.time_s[p : p + 1].tobytes()
        assert alone.stages.slack_bytes.tobytes() == batch.stages.slack_bytes[p : p + 1].tobytes()


def test_instances_of_a_problem_are_priced_as_alone():
    problem, plans = some_plans()
    whole = partition.evaluate(problem, plans)
    for instance in range(len(problem)):
        mine = plans.instance == instance
        part = replace(plans.take(mine), instance=np.zeros(mine.sum(), int))
        alone = partition.evaluate(problem.take([instance]), part)
        assert alone.time_s.tobytes() == whole.time_s[mine].tobytes()


@pytest.mark.parametrize(
    "name", ["wan_bytes_per_s", "inter_bytes_per_s", "intra_bytes_per_s", "network_bytes_per_s"]
)
def test_a_faster_network_is_never_slower(name):
    problem, plans = some_plans(seed=4)
    before = partition.evaluate(problem, plans).time_s
    after = partition.evaluate(replace(problem, **{name: 2 * getattr(problem, name)}), plans).time_s
    assert (after <= before).all() and (after < before).any()


def test_narrower_wires_pay_on_slow_links_where_conversion_is_free():
    problem, plans = some_plans(seed=5)
    problem = replace(problem, memory_bytes_per_s=np.full((2, 3), np.inf))
    times = [
        partition.evaluate(problem, replace(plans, wire=np.full_like(plans.wire, code))).time_s
        for code in range(len(partition.WIRES))
    ]
    for wide, narrow in pairwise(times):
        assert (narrow <= wide).all() and (narrow < wide).any()


def test_zero_recompute_and_depth_order_memory():
    problem, plans = some_plans(seed=6)

    def memory(**changes):
        codes = {name: np.full_like(plans.zero, code) for name, code in changes.items()}
        return partition.stage_costs(problem, replace(plans, **codes)).memory_bytes

    by_zero = [memory(zero=level, recompute=0) for level in range(4)]
    for more, less in pairwise(by_zero):
        assert (less <= more).all() and (less < more).any()
    deeper = partition.stage_costs(problem, replace(plans, warmup=plans.warmup + 1)).memory_bytes
    assert (deeper >= partition.stage_costs(problem, plans).memory_bytes).all()


def test_recompute_stores_less_and_takes_longer():
    problem = partition_tables.two_cluster_example()
    plain, again = (
        partition.evaluate(
            problem, make_plans([0, 1], 4, 2, [0, 5, 8], 4, recompute=mode, warmup=[3, 0])
        )
        for mode in ("none", "full")
    )
    assert again.stages.memory_bytes[0, 0] < plain.stages.memory_bytes[0, 0]
    assert again.time_s[0] > plain.time_s[0]


def test_the_exact_time_lies_between_its_bound_and_the_sum_of_everything():
    problem, plans = some_plans(seed=7, overlap="sender_blocked")
    costs = partition.evaluate(problem, plans)
    priced = costs.stages.priced
    bound = partition_estimates.lower_bound_s(costs.stages, plans)
    assert (bound[priced] <= costs.time_s[priced] * (1 + 1e-12)).all()
    assert (bound[priced] > 0.3 * costs.time_s[priced]).all()
    for estimate in partition_estimates.ESTIMATORS.values():
        found = estimate(costs.stages, plans)
        assert np.isfinite(found[priced]).all() and np.isinf(found[~priced]).all()


def spanning_problem():
    problem = partition_tables.two_cluster_example()
    return replace(problem, assumptions=Assumptions(spanning=True))


def test_a_stage_across_clusters_waits_for_the_slower_part_and_reduces_in_two_levels():
    problem = spanning_problem()
    together = make_plans([0], [8], [2], [0, 8], 8, spread=[[[4, 4]]])
    costs = partition.evaluate(problem, together).stages
    slow = partition.evaluate(problem, make_plans([1], [4], [2], [0, 8], 4)).stages
    assert costs.forward_s[0, 0] == slow.forward_s[0, 0]
    # Inside: a ring of two replicas over 100 GB/s. Across: both tensor ranks' shards over 10 GB/s.
    gradient = 8 * 50e6 / 2 * 4
    inside = 2 * (3e-6 + gradient / (2 * 100e9))
    across = 2 * (1e-3 + gradient * 2 / (2 * 10e9))
    assert costs.synchronise_s[0, 0] == pytest.approx(inside + across, rel=1e-12)
    assert costs.traffic_usd[0] == pytest.approx(2 * 2 * gradient * 2 / 2 * 2e-11)


def test_borders_between_equally_spread_stages_stay_inside_their_clusters():
    problem = spanning_problem()
    plans = make_plans([0, 0], [4, 4], [1, 1], [0, 4, 8], 8, spread=[[[2, 2], [2, 2]]])
    costs = partition.stage_costs(problem, plans)
    size = 8 * 4e6 * 2 / 2
    assert costs.activation_s[0, 0] == pytest.approx(3e-6 + size / 2 / 100e9)


BAD_PLANS = {
    1: {"bound": [0, 0, 8]},
    2: {"microbatch": 5},
    3: {"cluster": [0, 2]},
    4: {"gpus": [8, 4]},
    5: {"tp": [3, 2]},
    6: {"microbatch": 1},
    7: {"microbatch": 32},
    9: {"warmup": [0, 1]},
    10: {"wire": [4]},
    11: {"spread": [[[2, 2], [2, 2]]]},
    12: {"warmup": [7, 0], "microbatch": 4},
}


@pytest.mark.parametrize("code", BAD_PLANS)
def test_infeasible_is_a_flag_with_its_reason_and_stage(code):
    problem = partition_tables.two_cluster_example()
    if code == 12:
        problem = replace(problem, memory_bytes=np.array([[5e9, 16e9]]))
    usual = {"cluster": [0, 1], "gpus": [4, 4], "tp": [2, 2], "bound": [0, 4, 8], "microbatch": 4}
    bad = {**usual, **BAD_PLANS[code]}
    plans = make_plans(**{**bad, "cluster": [bad["cluster"]]})
    costs = partition.evaluate(problem, plans)
    assert costs.stages.reason[0] == code, costs.why(0)
    assert not costs.feasible[0]
    name = partition.REASONS[code].split(":")[0]
    assert costs.why(0).startswith(name)
    if code == 12:
        assert np.isfinite(costs.time_s[0]) and costs.stages.missing_bytes[0] > 0
        assert "bytes missing" in costs.why(0) and "stage 0" in costs.why(0)
    else:
        assert costs.time_s[0] == np.inf and costs.samples_per_s[0] == 0
        assert partition.stage_costs(problem, plans).forward_s.sum() == 0


def test_a_missing_link_and_a_missing_profile_are_reasons():
    problem = partition_tables.two_cluster_example()
    plans = make_plans([0, 1], 4, 2, [0, 4, 8], 4)
    cut = replace(problem, wan_bytes_per_s=np.zeros((1, 2, 2)))
    assert partition.stage_costs(cut, plans).reason[0] == 8
    profile_only = make_plans([0, 1], 4, 2, [0, 4, 8], 4, recompute="selective")
    assert partition.stage_costs(problem, profile_only).reason[0] == 7


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda p: make_plans([0, 1], [4, 4, 4], 2, [0, 4, 8], 4), "gpus"),
        (lambda p: make_plans([0, 1], 4, 2, [0, 4, 8], 4, wire="fp16"), "wire"),
        (lambda p: make_plans([0, 1], 4.5, 2, [0, 4, 8], 4), "gpus"),
        (lambda p: make_plans([0, 1], 4, 2, [0, 4, 8], 4, stages=3), "stages"),
        (
            lambda p: partition.evaluate(p, make_plans([0, 1], 4, 2, [0, 4, 8], 4, instance=1)),
            "instance",
        ),
        (lambda p: replace(p, memory_bytes=np.array([[1e9, -1.0]])), "memory_bytes"),
        (lambda p: replace(p, wan_delay_s=np.zeros((1, 2))), "wan_delay_s"),
        (lambda p: replace(p, row=np.array([[0, 7]])), "row"),
        (lambda p: Assumptions(overlap="none"), "overlap"),
        (lambda p: Assumptions(reserve_bytes=-1.0), "reserve_bytes"),
        (lambda p: Assumptions(wire_bytes_per_element=(4.0,)), "wire_bytes_per_element"),
    ],
)
def test_bad_input_names_the_field(call, field):
    with pytest.raises(InvalidInput, match=field):
        call(partition_tables.two_cluster_example())


def test_plans_keep_their_arrays_and_take_any_integers():
    plans = make_plans([[0, 1]], np.array([[4, 4]], np.uint8), 2, [0, 4, 8], 4)
    assert plans.gpus.dtype == np.int32
    assert {e.name for e in fields(plans)} >= {"instance", "wire", "warmup", "recompute", "zero"}
    deeper = replace(plans, warmup=plans.warmup + 2)
    assert deeper.with_standard_warmup().warmup.tolist() == [[1, 0]]
