"""The kernel against an independent simulator: a heap of events, queues and servers."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from typing import Any

import numpy as np
import pytest

from dtgym.simulator import communication, communication_reference
from dtgym.simulator.communication import LayerTables, LayerTimes, Network

ORDERS = ("priority", "fifo")
ARCHITECTURES = ("ps", "allreduce")
RULES = ("positive", "fit")
RETURNS = ("completion", "upload")


class Station:
    """A server with its own queue; when a piece leaves, `leave(time, piece)` is called."""

    def __init__(self, world: World, service: str, gap: str | None) -> None:
        self.world, self.service, self.gap = world, service, gap
        self.queue: deque[dict[str, Any]] = deque()
        self.busy = False
        self.last_reply = 0.0

    def arrive(self, now: float, piece: dict[str, Any]) -> None:
        self.queue.append(piece)
        if not self.busy:
            self.begin(now)

    def begin(self, now: float) -> None:
        self.busy = True
        piece = self.queue.popleft()
        self.world.at(now + piece[self.service], self.end, piece)

    def end(self, now: float, piece: dict[str, Any]) -> None:
        self.busy = False
        if self.queue:
            self.begin(now)
        if self.service == "upload":
            self.world.uploaded(piece)
        following = self.world.after(self)
        if following is None:
            self.world.at(now + piece["delay"], self.world.complete, piece)
        elif self.gap:
            # The server aggregates side by side but replies in the order of the pushes.
            self.last_reply = max(self.last_reply, now + piece[self.gap])
            self.world.at(self.last_reply, following.arrive, piece)
        else:
            following.arrive(now, piece)


class World:
    """One iteration: gradients become ready, pieces are handed down, cross stations, complete."""

    def __init__(self, layers: LayerTimes, net: dict[str, float], p: float, c: float, how: Any):
        self.layers, self.net, self.p, self.credit, self.how = layers, net, p, c, how
        self.heap: list[Any] = []
        self.number = itertools.count()
        self.waiting: dict[int, int] = {}
        self.arrival: list[int] = []
        self.flying: dict[int, float] = {}
        self.done = np.zeros(layers.layers)
        names = [("host", None), ("reduce", None), ("upload", "aggregation")]
        if how["architecture"] == "ps":
            names.append(("download", None))
        names.append(("broadcast", None))
        if how["architecture"] != "ps":
            names[2] = ("upload", None)
        self.stations = [Station(self, *name) for name in names]

    def at(self, when: float, call: Any, argument: Any) -> None:
        heapq.heappush(self.heap, (when, next(self.number), call, argument))

    def after(self, station: Station) -> Station | None:
        i = self.stations.index(station) + 1
        return self.stations[i] if i < len(self.stations) else None

    def uploaded(self, piece: dict[str, Any]) -> None:
        if self.how["credit_return"] == "upload":
            del self.flying[piece["id"]]

    def complete(self, now: float, piece: dict[str, Any]) -> None:
        self.done[piece["layer"]] = max(self.done[piece["layer"]], now)
        self.flying.pop(piece["id"], None)

    def ready(self, now: float, layer: int) -> None:
        self.done[layer] = max(self.done[layer], now)
        size = self.layers.gradient_bytes[layer]
        if size > 0:
            self.waiting[layer] = max(1, int(np.ceil(size / self.p)))
            self.arrival.append(layer)

    def hand_down(self, now: float) -> None:
        net = self.net
        while self.waiting:
            if self.how["order"] == "priority":
                layer = min(self.waiting)
            else:
                layer = next(i for i in self.arrival if i in self.waiting)
            size = self.layers.gradient_bytes[layer]
            size /= max(1, int(np.ceil(size / self.p)))
            used = sum(self.flying.values())
            if self.how["credit_rule"] == "positive":
                if used >= self.credit:
                    return
            elif self.flying and used + size > self.credit:
                return
            self.waiting[layer] -= 1
            if not self.waiting[layer]:
                del self.waiting[layer]
            factor = 1.0
            if net["congestion"] and used + size > net["bandwidth_delay_bytes"]:
                ratio = (used + size) / net["bandwidth_delay_bytes"]
                factor = min(4.0, 1 + net["congestion"] * (ratio - 1))
            flow = net["flow_s_per_byte"] / min(len(self.flying) + 1, net["max_flows"])
            piece = {
                "id": next(self.number),
                "layer": layer,
                "host": net["host_overhead_s"],
                "delay": net["completion_delay_s"],
            }
            for stage, name, load in (
                ("reduce", "local_reduce", False),
                ("upload", "upload", True),
                ("aggregation", "aggregation", False),
                ("download", "download", True),
                ("broadcast", "local_broadcast", False),
            ):
                per_byte = net[f"{name}_s_per_byte"]
                if load:
                    per_byte = max(per_byte, flow) * factor
                piece[stage] = net[f"{name}_overhead_s"] + size * per_byte
            self.flying[piece["id"]] = size
            self.stations[0].arrive(now, piece)

    def run(self) -> float:
        slow, clock = self.net["worker_slowdown"], self.net["worker_delay_s"]
        for layer in reversed(range(self.layers.layers)):
            clock += slow * self.layers.backward_s[layer]
            self.at(clock, self.ready, layer)
        end_of_backward = clock
        while self.heap:
            now = self.heap[0][0]
            while self.heap and self.heap[0][0] == now:
                _, _, call, argument = heapq.heappop(self.heap)
                call(now, argument)
            self.hand_down(now)
        clock = max(end_of_backward, self.done.max() if self.how["barrier"] else 0.0)
        for layer in range(self.layers.layers):
            clock = max(clock, self.done[layer]) + slow * self.layers.forward_s[layer]
        return clock


def simulate(layers: LayerTimes, network: Network, p: float, c: float, **how: Any) -> float:
    how = {
        "architecture": "ps",
        "order": "priority",
        "barrier": False,
        "credit_rule": "positive",
        "credit_return": "completion",
    } | how
    names = communication.NETWORK_FIELDS
    net = dict(zip(names, network.matrix(1)[0].tolist(), strict=True))
    return World(layers, net, p, c, how).run()


def random_layers(rng: np.random.Generator) -> LayerTimes:
    count = int(rng.integers(1, 13))
    sizes = rng.lognormal(0, 1.5, count) * (rng.random(count) > 0.1)
    times = rng.exponential(1.0, (2, count)) * (rng.random((2, count)) > 0.15)
    return LayerTimes(times[0], times[1], sizes)


def random_network(rng: np.random.Generator, effects: float) -> Network:
    scale = 10.0 ** rng.uniform(-1.5, 0.7)
    costs = rng.exponential(1.0, 4) * [0.1, scale, 0.1, scale] * (rng.random(4) > 0.15)

    def effect(mean: float) -> float:
        return float(rng.exponential(mean)) if rng.random() < effects else 0.0

    return Network(
        *costs,
        completion_delay_s=rng.exponential(0.3) * (rng.random() > 0.3),
        aggregation_overhead_s=effect(0.1),
        aggregation_s_per_byte=effect(scale),
        congestion=effect(0.5),
        bandwidth_delay_bytes=rng.uniform(0.1, 3),
        flow_s_per_byte=effect(3 * scale),
        max_flows=float(rng.integers(1, 6)),
        worker_delay_s=effect(1.0),
        worker_slowdown=1.0 + effect(0.5),
        host_overhead_s=effect(0.1),
        local_reduce_overhead_s=effect(0.1),
        local_reduce_s_per_byte=effect(scale),
        local_broadcast_overhead_s=effect(0.1),
        local_broadcast_s_per_byte=effect(scale),
    )


def random_knobs(rng: np.random.Generator, layers: LayerTimes) -> tuple[float, float]:
    largest = max(float(layers.gradient_bytes.max()), 0.1)
    partition = np.inf if rng.random() < 0.1 else largest / 10 ** rng.uniform(-0.3, 1.7)
    base = largest if np.isinf(partition) else partition
    credit = np.inf if rng.random() < 0.15 else base * 10 ** rng.uniform(-1, 1.3)
    return float(partition), float(credit)


def random_mechanism(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "architecture": str(rng.choice(ARCHITECTURES)),
        "order": str(rng.choice(ORDERS)),
        "barrier": bool(rng.random() < 0.25),
        "credit_rule": str(rng.choice(RULES)),
    }


def check(rng: np.random.Generator, cases: int, effects: float, credit_return: bool) -> None:
    for _ in range(cases):
        layers, network = random_layers(rng), random_network(rng, effects)
        partition, credit = random_knobs(rng, layers)
        how = random_mechanism(rng)
        if credit_return:
            how["credit_return"] = str(rng.choice(RETURNS))
        got = communication.iteration_time_s(layers, network, partition, credit, **how)[0]
        want = simulate(layers, network, partition, credit, **how)
        assert got == pytest.approx(want, rel=1e-9), (layers, network, partition, credit, how)


@pytest.mark.parametrize("chunk", range(20))
def test_plain_model_equals_the_event_simulator(chunk):
    """10,000 cases over architectures, orders, barrier and credit rules."""
    check(np.random.default_rng([2, chunk]), 500, effects=0.0, credit_return=False)


@pytest.mark.parametrize("chunk", range(4))
def test_model_with_effects_equals_the_event_simulator(chunk):
    check(np.random.default_rng([3, chunk]), 500, effects=0.4, credit_return=True)


def test_ties_are_broken_as_in_the_event_simulator():
    """Small whole numbers: pieces finish exactly when gradients become ready."""
    rng = np.random.default_rng(4)
    for _ in range(2000):
        count = int(rng.integers(1, 7))
        layers = LayerTimes(
            rng.integers(0, 3, count), rng.integers(0, 3, count), rng.integers(0, 5, count) * 2.0
        )
        network = Network(*rng.integers(0, 2, 4).tolist(), int(rng.integers(0, 3)))
        partition = float(rng.choice([1, 2, 4, np.inf]))
        credit = float(rng.choice([1, 2, 3, 4, 8, np.inf]))
        how = random_mechanism(rng)
        got = communication.iteration_time_s(layers, network, partition, credit, **how)[0]
        assert got == simulate(layers, network, partition, credit, **how), (layers, network, how)


def test_long_runs_of_small_pieces_are_not_approximated():
    """The kernel jumps whole periods; the event simulator visits each of some thousand pieces."""
    rng = np.random.default_rng(5)
    for _ in range(40):
        layers = LayerTimes(rng.exponential(1, 3), rng.exponential(1, 3), rng.uniform(20, 200, 3))
        network = random_network(rng, 0.3)
        partition, credit = rng.uniform(0.1, 0.5), rng.uniform(0.05, 8)
        how = random_mechanism(rng)
        got = communication.iteration_time_s(layers, network, partition, credit, **how)[0]
        want = simulate(layers, network, partition, credit, **how)
        assert got == pytest.approx(want, rel=1e-9), (layers, network, partition, credit, how)


def test_plain_python_reference_equals_the_kernel():
    rng = np.random.default_rng(6)
    for _ in range(600):
        layers, network = random_layers(rng), random_network(rng, 0.3)
        partition, credit = random_knobs(rng, layers)
        how = random_mechanism(rng) | {"credit_return": str(rng.choice(RETURNS))}
        got = communication.iteration_time_s(layers, network, partition, credit, **how)[0]
        want = communication_reference.iteration_time_s(layers, network, partition, credit, **how)
        assert got == pytest.approx(want, rel=1e-9), (layers, network, partition, credit, how)


def test_a_batch_equals_its_parts_bit_for_bit_in_any_order():
    """Own model, network, knobs and mechanism per configuration; also over threads."""
    rng = np.random.default_rng(7)
    models = [random_layers(rng) for _ in range(7)]
    tables = LayerTables.stack(models)
    networks = [random_network(rng, 0.3) for _ in range(1500)]
    matrix = np.concatenate([network.matrix(1) for network in networks])
    index = rng.integers(0, 7, 1500)
    knobs = np.array([random_knobs(rng, models[i]) for i in index])
    hows = [random_mechanism(rng) for _ in range(1500)]
    flags = np.array([communication.mechanism_flags(**how) for how in hows])

    def batch(rows: Any, **options: Any) -> Any:
        return communication.batch_iteration_time_s(
            tables, index[rows], matrix[rows], *knobs[rows].T, flags=flags[rows], **options
        )

    everything = np.arange(1500)
    together = batch(everything, threads=1)
    mixed = rng.permutation(1500)
    assert (batch(mixed, threads=1) == together[mixed]).all()
    assert (batch(everything, threads=3) == together).all()
    for i in range(0, 1500, 15):
        alone = communication.iteration_time_s(
            models[index[i]], networks[i], *knobs[i].tolist(), **hows[i]
        )
        assert alone[0] == together[i]
