"""Known answers, closed forms, bounds, effects one by one, and bad input."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtgym.simulator import communication, communication_bounds, communication_workloads
from dtgym.simulator.communication import LayerTimes, Network, iteration_time_s
from dtgym.simulator.communication_mechanisms import MECHANISMS, buckets, merged_gradients
from dtgym.simulator.communication_timeline import timeline
from dtgym.simulator.errors import InvalidInput

CONTRIVED = LayerTimes([1, 1, 1], [1, 1, 1], [1.5, 3, 1.5])
UNIT_LINK = Network(0, 1, 0, 1)


@st.composite
def models(draw):
    count = draw(st.integers(1, 10))
    number = st.floats(0.0, 4.0)
    times = st.lists(number, min_size=count, max_size=count)
    sizes = st.lists(st.one_of(st.just(0.0), st.floats(0.01, 8.0)), min_size=count, max_size=count)
    return LayerTimes(draw(times), draw(times), draw(sizes))


def test_contrived_example_of_the_release():
    whole = iteration_time_s(CONTRIVED, UNIT_LINK, np.inf, np.inf, order="fifo")
    pieces = iteration_time_s(CONTRIVED, UNIT_LINK, 0.5, [0.5, 1.0, np.inf])
    assert whole.tolist() == [13.0]
    assert pieces.tolist() == [14.0, 9.0, 10.5]


@given(models(), st.floats(0, 1), st.floats(0.01, 3), st.booleans())
def test_fifo_whole_tensors_equals_its_closed_form(model, overhead, per_byte, barrier):
    got = iteration_time_s(
        model,
        Network(overhead, per_byte),
        np.inf,
        np.inf,
        architecture="allreduce",
        order="fifo",
        barrier=barrier,
    )
    want = communication_bounds.fifo_whole_tensors_s(model, overhead, per_byte, barrier=barrier)
    assert got[0] == pytest.approx(want, rel=1e-12)


@given(models(), st.floats(0.01, 3), st.floats(0.05, 4), st.floats(0.05, 8), st.data())
def test_nothing_beats_the_preemptive_bound(model, per_byte, partition, credit, data):
    order = data.draw(st.sampled_from(["priority", "fifo"]))
    rule = data.draw(st.sampled_from(["positive", "fit"]))
    bound = communication_bounds.preemptive_bound_s(model, per_byte)
    for architecture in ("allreduce", "ps"):
        got = iteration_time_s(
            model,
            Network(0, per_byte, 0, per_byte),
            partition,
            credit,
            architecture=architecture,
            order=order,
            credit_rule=rule,
        )
        assert got[0] >= bound * (1 - 1e-12)


@given(models(), st.floats(0.01, 3))
def test_fine_pieces_reach_the_preemptive_bound(model, per_byte):
    fine = max(float(model.gradient_bytes.max()), 0.01) / 2000
    got = iteration_time_s(model, Network(0, per_byte), fine, fine, architecture="allreduce")
    bound = communication_bounds.preemptive_bound_s(model, per_byte)
    assert got[0] <= bound + 2 * (model.layers + 1) * fine * per_byte + 1e-12


@given(models(), st.floats(0.01, 3))
def test_scheduling_gains_at_most_two_and_three(model, per_byte):
    for architecture, factor in (("allreduce", 2.0), ("ps", 3.0)):
        low, high = communication_bounds.simple_bounds_s(model, per_byte, architecture=architecture)
        fifo = iteration_time_s(
            model,
            Network(0, per_byte, 0, per_byte),
            np.inf,
            np.inf,
            architecture=architecture,
            order="fifo",
        )[0]
        assert low * (1 - 1e-12) <= fifo <= high * (1 + 1e-12)
        assert fifo <= factor * low * (1 + 1e-12)


def test_long_run_moves_one_piece_per_period():
    """Ten thousand equal pieces: the slope of time over pieces is the closed form's period."""
    for credit in (1.0, 3.0, 64.0):
        costs = {
            "upload_overhead_s": 0.2,
            "upload_s_per_byte": 1.0,
            "download_s_per_byte": 0.7,
            "completion_delay_s": 5.0,
        }
        period = communication_bounds.period_s(1.0, credit, **costs)
        times = [
            iteration_time_s(LayerTimes([0], [0], [n]), Network(**costs), 1.0, credit)[0]
            for n in (9600, 19200)
        ]
        assert (times[1] - times[0]) / 9600 == pytest.approx(float(period), rel=1e-9)


def test_tiny_pieces_fill_the_ring_without_overflow():
    """More pieces in flight than layers by far, with and without a window that binds."""
    model = LayerTimes([1.0, 1.0], [1.0, 1.0], [1e6, 1e6])
    link = Network(0.0, 1e-6, 0.0, 1e-6, 0.5)
    wide, unlimited = iteration_time_s(model, link, 5.0, [1.9e6, np.inf])
    slow = communication.iteration_time_s(model, link, 5.0, 20.0)[0]
    assert unlimited == pytest.approx(wide, rel=1e-5)
    # Four pieces of 5 us per trip of 0.5 s: 100,000 trips.
    assert slow == pytest.approx(100_000 * 0.50001, rel=1e-3)


@pytest.mark.parametrize("order", ["priority", "fifo"])
def test_a_window_that_never_binds_is_no_window(order):
    """The closed form for unlimited credit against the loop over pieces (a timeline records it)."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        count = int(rng.integers(1, 9))
        backward = rng.exponential(1, count) * (rng.random(count) > 0.3)
        model = LayerTimes(rng.exponential(1, count), backward, rng.exponential(5, count))
        net = Network(
            *rng.exponential(0.3, 5),
            host_overhead_s=rng.exponential(0.1),
            aggregation_s_per_byte=rng.exponential(0.1),
            local_reduce_s_per_byte=rng.exponential(0.1),
            local_broadcast_overhead_s=rng.exponential(0.1),
        )
        fast = iteration_time_s(model, net, 0.7, np.inf, order=order)[0]
        assert timeline(model, net, 0.7, np.inf, order=order).iteration_time_s == pytest.approx(
            fast, rel=1e-12
        )


# Effects, each alone: what it does where it bites, and that it is off by default.

ONE = LayerTimes([0.0], [0.0], [8.0])


def one_layer(partition: float, credit: float, **effects: float) -> float:
    return float(iteration_time_s(ONE, Network(0, 1, 0, 1, **effects), partition, credit)[0])


def test_aggregation_delays_each_reply():
    # Whole: up 8, down 8. Aggregation sits between and is paid once by a whole tensor.
    assert one_layer(np.inf, np.inf) == 16.0
    assert one_layer(
        np.inf, np.inf, aggregation_overhead_s=1.0, aggregation_s_per_byte=0.5
    ) == pytest.approx(16.0 + 1.0 + 4.0)
    # Pieces aggregate side by side: only the last one's is seen.
    assert one_layer(1.0, np.inf, aggregation_overhead_s=1.0) == pytest.approx(9.0 + 1.0)


def test_congestion_bites_beyond_the_bandwidth_delay_product_only():
    congested = {"congestion": 0.5, "bandwidth_delay_bytes": 4.0}
    assert one_layer(1.0, 4.0, **congested) == one_layer(1.0, 4.0)
    # A whole tensor of twice the product: factor 1.5 in both directions.
    assert one_layer(np.inf, 1.0, **congested) == pytest.approx(1.5 * 16.0)
    # The factor ends at 4.
    assert one_layer(np.inf, 1.0, congestion=100.0, bandwidth_delay_bytes=4.0) == 4 * 16.0
    # More credit is worse here, although it is never worse without congestion.
    assert one_layer(1.0, 8.0, **congested) > one_layer(1.0, 4.0, **congested)


def test_flow_cap_makes_a_link_need_several_pieces():
    # One flow reaches half the link's rate, two fill it.
    capped = {"flow_s_per_byte": 2.0, "max_flows": 4.0}
    assert one_layer(8.0, 1.0, **capped) == pytest.approx(2 * 16.0)
    assert one_layer(1.0, 2.0, **capped) < 2 * one_layer(1.0, 2.0)
    single = {"flow_s_per_byte": 2.0, "max_flows": 1.0}
    assert one_layer(1.0, np.inf, **single) == pytest.approx(2 * one_layer(1.0, np.inf))


def test_the_slowest_worker_delays_every_gradient():
    late = Network(0, 1, 0, 1, worker_delay_s=0.75)
    assert iteration_time_s(CONTRIVED, late, 0.5, 1.0)[0] == 9.75
    slow = Network(0, 0, 0, 0, worker_slowdown=1.5)
    assert iteration_time_s(CONTRIVED, slow, 0.5, 1.0)[0] == pytest.approx(1.5 * 6.0)


def test_host_thread_is_serial():
    # Eight pieces, one second of host each: the last leaves the host at 8, then up 1, down 1.
    assert one_layer(1.0, np.inf, host_overhead_s=2.0) == pytest.approx(16.0 + 2.0)
    assert one_layer(np.inf, np.inf, host_overhead_s=2.0) == pytest.approx(2.0 + 16.0)


def test_hierarchical_phases_run_in_tandem():
    net = Network.hierarchical_allreduce(
        1e9, machines=2, local_bandwidth_bytes_per_s=1.75e9, gpus_per_machine=8
    )
    model = LayerTimes([0], [0], [1e9])
    # 0.5 s in the machine, 1 s between machines, 0.5 s in the machine.
    whole = iteration_time_s(model, net, np.inf, np.inf, architecture="allreduce")[0]
    pieces = iteration_time_s(model, net, 1e8, np.inf, architecture="allreduce")[0]
    assert whole == pytest.approx(2.0)
    assert pieces == pytest.approx(0.05 + 1.0 + 0.05)


def test_noise_is_reproducible_and_has_the_stated_spread():
    draws = [
        communication.measured_time_s(np.full(20_000, 0.5), 0.1, np.random.default_rng(3))
        for _ in range(2)
    ]
    assert (draws[0] == draws[1]).all()
    logarithm = np.log(draws[0] / 0.5)
    assert abs(logarithm.mean()) < 0.003 and abs(logarithm.std() - 0.1) < 0.003


def test_exponential_skew_is_the_largest_of_its_workers():
    skew = communication.exponential_skew_s(5e-3, 8, np.random.default_rng(0), size=20_000)
    # Mean of the largest of n exponentials: the n-th harmonic number.
    assert skew.mean() == pytest.approx(5e-3 * sum(1 / i for i in range(1, 9)), rel=0.02)


# Networks, workloads, mechanisms.


@given(st.floats(1e7, 1e11), st.integers(1, 64), st.integers(1, 64), st.floats(0.2, 5))
def test_parameter_server_takes_the_slower_end(bandwidth, workers, servers, ratio):
    net = Network.parameter_server(
        bandwidth, workers, servers, server_bandwidth_bytes_per_s=bandwidth * ratio
    )
    seconds = float(net.upload_s_per_byte)
    assert seconds >= 1 / bandwidth * (1 - 1e-12)
    assert seconds >= workers / (servers * bandwidth * ratio) * (1 - 1e-12)
    assert float(net.download_s_per_byte) == seconds


def test_colocated_servers_move_as_much_as_a_ring():
    ps = Network.parameter_server(1e9, 8, 8, colocated=True)
    ring = Network.ring_allreduce(1e9, 8)
    assert float(ps.upload_s_per_byte) == float(ring.upload_s_per_byte)


@pytest.mark.parametrize("name", communication_workloads.NAMES)
def test_workload_totals_and_granularities(name):
    workload = communication_workloads.describe(name)
    by_layer = communication_workloads.load(name)
    by_tensor = communication_workloads.load(name, granularity="tensor")
    assert by_layer.gradient_bytes.sum() == 4 * workload.parameters
    assert by_tensor.gradient_bytes.sum() == 4 * workload.parameters
    assert np.count_nonzero(by_tensor.gradient_bytes) == workload.tensors
    for field in ("forward_s", "backward_s"):
        assert getattr(by_layer, field).sum() == pytest.approx(getattr(by_tensor, field).sum())
    # Without overheads and whole, a layer's tensors travel as fast together as apart.
    net = Network.ring_allreduce(1e9, 4)
    together, apart = (
        iteration_time_s(model, net, np.inf, np.inf, architecture="allreduce", order="fifo")[0]
        for model in (by_layer, by_tensor)
    )
    assert together == pytest.approx(apart, rel=1e-9)


PARAMETERS = {
    "alexnet": (61_100_840, 16),
    "vgg16": (138_357_544, 32),
    "vgg19": (143_667_240, 38),
    "resnet50": (25_557_032, 161),
    "bert_base": (110_106_428, 206),
    "bert_large": (336_226_108, 398),
    "gpt2_small": (124_439_808, 148),
    "gpt2_medium": (354_823_168, 292),
    "transformer_base": (63_084_544, 185),
}


def test_parameters_equal_the_library_definitions():
    found = {
        name: (w.parameters, w.tensors)
        for name in communication_workloads.NAMES
        for w in [communication_workloads.describe(name)]
    }
    assert found == PARAMETERS


def test_workload_times_come_from_the_profile_or_from_flop():
    load = communication_workloads.load
    assert load("vgg16", batch_size=128).forward_s.sum() == pytest.approx(0.2339, abs=1e-4)
    assert load("vgg16", batch_size=128).backward_s.sum() == pytest.approx(0.4386, abs=1e-4)
    # 2 x multiply-adds of VGG16 at 224 x 224 are 30.9 GFLOP.
    assert load("vgg16", batch_size=1, accelerator_flop_per_s=1e12).forward_s.sum() == (
        pytest.approx(0.0309, rel=0.01)
    )
    # The tied output weight: ready last, needed first.
    gpt2 = load("gpt2_small")
    assert gpt2.gradient_bytes[-1] == 0 and gpt2.forward_s[-1] > 0
    assert gpt2.gradient_bytes[0] == gpt2.gradient_bytes.max()


def test_buckets_keep_bytes_and_close_in_backward_order():
    model = communication_workloads.load("resnet50", granularity="tensor")
    merged = buckets(model)
    sizes = merged.gradient_bytes[merged.gradient_bytes > 0]
    assert merged.gradient_bytes.sum() == model.gradient_bytes.sum()
    assert sizes[-1] >= 2**20 and (sizes[1:-1] >= 25 * 2**20).all()
    assert (merged.forward_s == model.forward_s).all()


def test_merging_gradients_pays_where_messages_are_dear():
    model = communication_workloads.load("resnet50")
    for overhead in (1e-5, 1e-3):
        net = Network(overhead, 1e-9)
        merged = merged_gradients(model, overhead_s=overhead, s_per_byte=1e-9)
        assert merged.gradient_bytes.sum() == pytest.approx(model.gradient_bytes.sum())
        plain, fused = (
            iteration_time_s(
                m, net, np.inf, np.inf, architecture="allreduce", order="fifo", barrier=True
            )[0]
            for m in (model, merged)
        )
        assert fused <= plain * (1 + 1e-9)


def test_mechanisms_rank_as_published_on_a_slow_network():
    """VGG16 on 10 Gbit/s: slicing beats order alone, order beats FIFO, a barrier costs."""
    model = communication_workloads.load("vgg16", granularity="tensor")
    net = Network.parameter_server(1.25e9, 4, 4, message_overhead_s=30e-6, completion_delay_s=2e-4)
    times = {
        name: float(mechanism.iteration_time_s(model, net, architecture="ps")[0])
        for name, mechanism in MECHANISMS.items()
    }
    assert times["bytescheduler"] < times["tictac"] < times["fifo"] <= times["fifo_barrier"]
    assert times["p3"] < times["fifo"]


# Timeline.


def test_timeline_conserves_bytes_and_never_overlaps_on_a_channel():
    model = communication_workloads.load("resnet50")
    net = Network.parameter_server(1e9, 4, 4, message_overhead_s=1e-4, completion_delay_s=1e-3)
    pieces = timeline(model, net, 1e6, 4e6)
    assert pieces.piece_bytes.sum() == pytest.approx(model.gradient_bytes.sum())
    assert (pieces.upload_start_s[1:] >= pieces.upload_end_s[:-1] - 1e-12).all()
    assert (pieces.download_start_s[1:] >= pieces.download_end_s[:-1] - 1e-12).all()
    assert (pieces.handed_s >= pieces.ready_s).all()
    assert (pieces.download_start_s >= pieces.upload_end_s - 1e-12).all()
    assert pieces.iteration_time_s == pytest.approx(pieces.forward_end_s[-1])
    assert pieces.iteration_time_s == pytest.approx(iteration_time_s(model, net, 1e6, 4e6)[0])
    in_flight = [
        pieces.piece_bytes[(pieces.handed_s <= t) & (pieces.complete_s > t)].sum()
        for t in pieces.handed_s
    ]
    assert max(in_flight) <= 4e6 + 1e6
    events = json.loads(json.dumps(pieces.chrome_trace()))["traceEvents"]
    assert sum(e.get("cat") == "upload" for e in events) == len(pieces.layer)


# Bad input: one clear line that names the field.


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: LayerTimes([1, 2], [1], [1]), "one entry per layer"),
        (lambda: LayerTimes([], [], []), "at least one layer"),
        (lambda: LayerTimes([[1]], [[1]], [[1]]), "LayerTimes.forward_s"),
        (lambda: LayerTimes([np.nan], [1], [1]), "LayerTimes.forward_s must be finite"),
        (lambda: LayerTimes([1], [-1], [1]), "LayerTimes.backward_s must be at least 0"),
        (lambda: Network(-1, 0), "Network.upload_overhead_s must be at least 0 s"),
        (lambda: Network(0, np.inf), "Network.upload_s_per_byte must be finite"),
        (lambda: Network([0, 1], [0, 1, 2]), "broadcast"),
        (lambda: Network(0, 0, congestion=1), "bandwidth_delay_bytes"),
        (lambda: Network(0, 0, worker_slowdown=0.5), "worker_slowdown must be at least 1"),
        (lambda: Network.parameter_server(100, 4, 4), "bytes/s"),
        (lambda: Network.parameter_server(-1e9, 4, 4), "above 0 bytes/s"),
        (lambda: Network.parameter_server(1e9, 0, 4), "workers must be at least 1"),
        (lambda: Network.parameter_server(1e9, 4, 2, colocated=True), "colocated"),
        (lambda: Network.ring_allreduce(8e13, 4), "bytes/s"),
        (lambda: Network.ring_allreduce(25, 4), "1 Gbit/s is 1.25e8 bytes/s"),
        (lambda: iteration_time_s(CONTRIVED, UNIT_LINK, 0, 1), "partition_bytes must be above 0"),
        (lambda: iteration_time_s(CONTRIVED, UNIT_LINK, 1, np.nan), "credit_bytes"),
        (lambda: iteration_time_s(CONTRIVED, UNIT_LINK, [1, 2], [1, 2, 3]), "broadcast"),
        (lambda: iteration_time_s(CONTRIVED, UNIT_LINK, [[1]], 1), "one batch axis"),
        (lambda: iteration_time_s(CONTRIVED, UNIT_LINK, 1, 1, order="lifo"), "order"),
        (lambda: iteration_time_s(CONTRIVED, UNIT_LINK, 1, 1, architecture="x"), "ps, allreduce"),
        (lambda: iteration_time_s("vgg16", UNIT_LINK, 1, 1), "layers must be LayerTimes"),
        (lambda: iteration_time_s(CONTRIVED, UNIT_LINK, 1e-9, 1.0), "too many pieces"),
        (lambda: timeline(CONTRIVED, UNIT_LINK, 1e-7, 1.0), "at most 2000000"),
        (lambda: communication_workloads.load("vgg17"), "alexnet, vgg16"),
        (lambda: communication_workloads.load("vgg16", batch_size=0), "batch_size"),
        (lambda: communication_workloads.load("vgg19", accelerator_flop_per_s=15), "FLOP/s"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_clear_line(call, says):
    with pytest.raises(InvalidInput) as error:
        call()
    assert says in str(error.value) and "\n" not in str(error.value)
