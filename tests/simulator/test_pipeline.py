"""The pipeline recurrence against an independent event-driven simulator, and its properties."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtgym.simulator import pipeline
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.pipeline_timeline import timeline


def event_driven_s(order, forward, backward, activation, gradient, overlap="overlapped"):
    """Runs stages and links as actors on a clock; returns each stage's last end.

    Args:
        order: Per stage, its operations in turn: (kind, virtual stage, micro-batch), kind F, B, W.
        forward, backward: Per virtual stage; backward may be a pair (input part, weight part).
        activation, gradient: Per border between virtual stages.
    """
    last = len(forward) - 1
    inbox = defaultdict(set)
    done = set()
    queues = [deque(operations) for operations in order]
    busy = [False] * len(order)
    finished = [0.0] * len(order)
    links = defaultdict(deque)
    sending = defaultdict(bool)
    events, ticket = [], 0

    def push(time_s, what, *data):
        nonlocal ticket
        ticket += 1
        heapq.heappush(events, (time_s, ticket, what, data))

    def travel(kind, border):
        return (activation if kind == "F" else gradient)[border]

    def ready(kind, v, m):
        if kind == "W":
            return True
        if (kind == "F" and v == 0) or (kind == "B" and v == last):
            return True
        return (kind, m) in inbox[v]

    def try_stage(now, stage):
        if busy[stage] or not queues[stage] or not ready(*queues[stage][0]):
            return
        kind, v, m = queues[stage].popleft()
        busy[stage] = True
        split = isinstance(backward[v], tuple)
        length = forward[v] if kind == "F" else backward[v]
        if kind != "F" and split:
            length = backward[v][0 if kind == "B" else 1]
        border = {"F": v - 1, "B": v}.get(kind, -1)
        if overlap == "both_ends" and 0 <= border < last:
            length += travel(kind, border)
        push(now + length, "worked", stage, kind, v, m)

    def try_link(now, link):
        if sending[link] or not links[link]:
            return
        m = links[link].popleft()
        sending[link] = True
        push(now + travel(*link), "arrived", link, m)

    for stage in range(len(order)):
        try_stage(0.0, stage)
    while events:
        now, _, what, data = heapq.heappop(events)
        if what == "worked":
            stage, kind, v, m = data
            done.add((kind, v, m))
            border = {"F": v, "B": v - 1}.get(kind, -1)
            if 0 <= border < last:
                links[kind, border].append(m)
                try_link(now, (kind, border))
                if overlap != "overlapped":
                    push(now + travel(kind, border), "free", stage)
                    continue
            push(now, "free", stage)
        elif what == "free":
            (stage,) = data
            busy[stage] = False
            finished[stage] = now
            try_stage(now, stage)
        else:
            (kind, border), m = data
            sending[kind, border] = False
            target = border + 1 if kind == "F" else border
            inbox[target].add((kind, m))
            try_link(now, (kind, border))
            try_stage(now, target % len(order))
    assert not any(queues), "the order deadlocks"
    return finished


def order_1f1b(stages, microbatches, depth):
    result = []
    for s in range(stages):
        forwards = [("F", s, m) for m in range(microbatches)]
        backwards = [("B", s, m) for m in range(microbatches)]
        warm = min(depth[s], microbatches)
        mine = forwards[:warm]
        for k in range(microbatches):
            mine += [*forwards[warm + k : warm + k + 1], backwards[k]]
        result.append(mine)
    return result


def order_zero_bubble(stages, microbatches, depth):
    result = []
    for s, plain in enumerate(order_1f1b(stages, microbatches, depth)):
        mine, pending = [], deque()
        for operation in plain:
            mine.append(operation)
            if operation[0] == "B":
                pending.append(("W", s, operation[2]))
                if len(pending) > s:
                    mine.append(pending.popleft())
        result.append(mine + list(pending))
    return result


def order_interleaved(stages, microbatches, chunks):
    result = []
    for s in range(stages):
        forwards, backwards = [], []
        for group in range(0, microbatches, stages):
            members = range(group, group + stages)
            for c in range(chunks):
                forwards += [("F", c * stages + s, m) for m in members]
            for c in reversed(range(chunks)):
                backwards += [("B", c * stages + s, m) for m in members]
        warm = min(2 * (stages - 1 - s) + (chunks - 1) * stages, len(forwards))
        mine = forwards[:warm]
        for k, backward in enumerate(backwards):
            mine += [*forwards[warm + k : warm + k + 1], backward]
        result.append(mine)
    return result


@st.composite
def cases(draw, max_stages=8, max_microbatches=32):
    stages = draw(st.integers(1, max_stages))
    microbatches = draw(st.integers(1, max_microbatches))
    extra = draw(st.lists(st.integers(0, 3), min_size=stages, max_size=stages))
    # Rises towards the first stage by any number of micro-batches, none included.
    depth = [0] * stages
    for s in range(stages - 2, -1, -1):
        depth[s] = depth[s + 1] + extra[s]
    depth = np.array(depth) + draw(st.integers(0, 2))
    seed = draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    # Halves: sums are exact, so equality is exact whatever the order of additions.
    scale = draw(st.sampled_from([1, 4, 16]))
    forward, backward = (random.integers(1, 24, stages) / 2 for _ in range(2))
    activation, gradient = (random.integers(0, 8 * scale, stages - 1) / 2 for _ in range(2))
    return forward, backward, activation, gradient, microbatches, depth


OVERLAPS = st.sampled_from(pipeline.OVERLAP_RULES)


@given(cases(), OVERLAPS)
@settings(max_examples=150)
def test_1f1b_with_any_warmup_equals_the_event_driven_simulator(case, overlap):
    *times, microbatches, depth = case
    order = order_1f1b(len(times[0]), microbatches, depth)
    expected = event_driven_s(order, *times, overlap=overlap)
    batch = [time[None] for time in times]
    found = pipeline.stage_finish_s(*batch, microbatches, warmup=depth, overlap=overlap)
    assert found[0].tolist() == expected
    found_s = pipeline.iteration_time_s(*batch, microbatches, warmup=depth, overlap=overlap)
    assert found_s[0] == max(expected)


@given(cases(), OVERLAPS)
@settings(max_examples=60)
def test_standard_warmup_and_gpipe_equal_the_event_driven_simulator(case, overlap):
    *times, microbatches, _ = case
    stages = len(times[0])
    batch = [time[None] for time in times]
    for schedule, depth in (("1f1b", range(stages - 1, -1, -1)), ("gpipe", [99] * stages)):
        expected = event_driven_s(
            order_1f1b(stages, microbatches, list(depth)), *times, overlap=overlap
        )
        found = pipeline.stage_finish_s(*batch, microbatches, schedule=schedule, overlap=overlap)
        assert found[0].tolist() == expected


@given(cases(max_stages=6, max_microbatches=16), OVERLAPS, st.floats(0, 1))
@settings(max_examples=60)
def test_zero_bubble_equals_the_event_driven_simulator(case, overlap, share):
    *times, microbatches, depth = case
    weight = np.floor(times[1] * share * 2) / 2
    pairs = list(zip((times[1] - weight).tolist(), weight.tolist(), strict=True))
    order = order_zero_bubble(len(times[0]), microbatches, depth)
    expected = event_driven_s(order, times[0], pairs, *times[2:], overlap=overlap)
    found = pipeline.stage_finish_s(
        *[time[None] for time in times],
        microbatches,
        schedule="zero_bubble",
        warmup=depth,
        overlap=overlap,
        weight_s=weight[None],
    )
    assert found[0].tolist() == expected


@given(st.integers(1, 4), st.integers(2, 3), st.integers(1, 4), OVERLAPS, st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_interleaved_equals_the_event_driven_simulator(stages, chunks, groups, overlap, seed):
    random = np.random.default_rng(seed)
    count = stages * chunks
    forward, backward = (random.integers(1, 24, count) / 2 for _ in range(2))
    activation, gradient = (random.integers(0, 16, count - 1) / 2 for _ in range(2))
    order = order_interleaved(stages, groups * stages, chunks)
    expected = event_driven_s(order, forward, backward, activation, gradient, overlap=overlap)
    found = pipeline.stage_finish_s(
        forward.reshape(1, chunks, stages),
        backward.reshape(1, chunks, stages),
        activation[None],
        gradient[None],
        groups * stages,
        schedule="interleaved",
        overlap=overlap,
    )
    assert found[0].tolist() == expected


@given(cases(), OVERLAPS, st.sampled_from(["1f1b", "gpipe", "zero_bubble"]))
@settings(max_examples=40)
def test_the_timeline_of_a_plan_ends_when_the_batch_says(case, overlap, schedule):
    *times, microbatches, depth = case
    warmup = None if schedule == "gpipe" else depth
    found = timeline(*times, microbatches, schedule=schedule, warmup=warmup, overlap=overlap)
    expected = pipeline.stage_finish_s(
        *[time[None] for time in times],
        microbatches,
        schedule=schedule,
        warmup=warmup,
        overlap=overlap,
    )
    busy_until = [found.busy_end_s[found.stage == s].max() for s in range(len(times[0]))]
    assert busy_until == expected[0].tolist()
    for s in range(len(times[0])):
        mine = found.stage == s
        assert (found.start_s[mine][1:] >= found.busy_end_s[mine][:-1]).all()


def test_more_microbatches_than_lanes_of_plans_and_mixed_shapes_equal_single_plans():
    random = np.random.default_rng(5)
    plans, width = 301, 6
    forward, backward = (random.uniform(0.5, 2, (plans, width)) for _ in range(2))
    activation, gradient = (random.uniform(0, 1, (plans, width - 1)) for _ in range(2))
    microbatches = random.choice([1, 3, 8, 17], plans)
    stages = random.integers(1, width + 1, plans)
    extra = np.sort(random.integers(0, 3, (plans, width)), axis=1)[:, ::-1]
    warmup = np.maximum(stages[:, None] - 1 - np.arange(width), 0) + extra
    for overlap in pipeline.OVERLAP_RULES:
        batch = pipeline.stage_finish_s(
            forward, backward, activation, gradient, microbatches,
            warmup=warmup, stages=stages, overlap=overlap,
        )  # fmt: skip
        for plan in range(0, plans, 7):
            used = stages[plan]
            alone = pipeline.stage_finish_s(
                forward[plan : plan + 1, :used],
                backward[plan : plan + 1, :used],
                activation[plan : plan + 1, : used - 1],
                gradient[plan : plan + 1, : used - 1],
                microbatches[plan],
                warmup=warmup[plan, :used],
                overlap=overlap,
            )
            assert alone[0].tobytes() == batch[plan, :used].tobytes()
            assert (batch[plan, used:] == 0).all()


@pytest.mark.parametrize("schedule", pipeline.SCHEDULES)
def test_permuting_the_batch_permutes_the_result(schedule):
    random = np.random.default_rng(6)
    arrays = [random.uniform(0.5, 2, (90, 4)) for _ in range(2)]
    arrays += [random.uniform(0, 1, (90, 3)) for _ in range(2)]
    order = random.permutation(90)
    whole = pipeline.iteration_time_s(*arrays, 8, schedule=schedule)
    permuted = pipeline.iteration_time_s(*[a[order] for a in arrays], 8, schedule=schedule)
    assert permuted.tobytes() == whole[order].tobytes()


@given(st.integers(1, 8), st.integers(1, 32), st.floats(0.01, 10), st.floats(0.01, 10))
@settings(max_examples=40)
def test_uniform_stages_without_transfers_take_the_textbook_time(stages, microbatches, f, b):
    one = np.ones((1, stages))
    none = np.zeros((1, stages - 1))
    expected = (microbatches + stages - 1) * (f + b)
    for schedule in ("1f1b", "gpipe"):
        found = pipeline.iteration_time_s(
            f * one, b * one, none, none, microbatches, schedule=schedule
        )
        assert found[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("stages", "groups", "chunks"), [(4, 2, 2), (4, 3, 4), (8, 4, 2)])
def test_textbook_bubbles_of_interleaved_and_zero_bubble(stages, groups, chunks):
    one, none = np.ones((1, stages)), np.zeros((1, stages - 1))
    m = groups * stages
    interleaved = pipeline.iteration_time_s(
        one, 2 * one, none, none, m, schedule="interleaved", chunks=chunks
    )
    assert interleaved[0] == pytest.approx(3 * m + 3 * (stages - 1) / chunks)
    zero_bubble = pipeline.iteration_time_s(one, 2 * one, none, none, m, schedule="zero_bubble")
    assert zero_bubble[0] == pytest.approx(3 * m + (stages - 1))


def test_in_flight_counts_are_the_textbook_ones():
    assert pipeline.in_flight("1f1b", 5, 3).tolist() == [3, 3, 3, 2, 1]
    assert pipeline.in_flight("1f1b", 3, 9, warmup=[4, 2, 0]).tolist() == [5, 3, 1]
    assert pipeline.in_flight("gpipe", 3, 9).tolist() == [9, 9, 9]
    # S (1 + (S - 1) / (S v)) on the first stage.
    assert pipeline.in_flight("interleaved", 4, 16, chunks=2)[0] == pytest.approx(4 * (1 + 3 / 8))
    assert pipeline.in_flight("zero_bubble", 4, 16).max() == 4


@given(cases(), OVERLAPS, st.integers(0, 10**6))
@settings(max_examples=60)
def test_time_rises_with_every_duration_and_lies_above_its_lower_bound(case, overlap, seed):
    *times, microbatches, depth = case
    batch = [time[None] for time in times]
    base = pipeline.iteration_time_s(*batch, microbatches, warmup=depth, overlap=overlap)
    assert pipeline.lower_bound_s(*batch, microbatches, warmup=depth)[0] <= base[0]
    random = np.random.default_rng(seed)
    longer = [time + random.integers(0, 2, time.shape) / 2 for time in batch]
    assert pipeline.iteration_time_s(*longer, microbatches, warmup=depth, overlap=overlap) >= base
    more = pipeline.iteration_time_s(*batch, microbatches + 1, warmup=depth, overlap=overlap)
    assert more > base


def test_overlap_rules_are_ordered_and_agree_without_transfers():
    random = np.random.default_rng(8)
    work = [random.uniform(0.5, 2, (200, 5)) for _ in range(2)]
    links = [random.uniform(0, 1, (200, 4)) for _ in range(2)]
    by_rule = [
        pipeline.iteration_time_s(*work, *links, 12, overlap=rule)
        for rule in pipeline.OVERLAP_RULES
    ]
    assert (by_rule[0] <= by_rule[1]).all() and (by_rule[1] <= by_rule[2]).all()
    none = [np.zeros_like(link) for link in links]
    bare = [
        pipeline.iteration_time_s(*work, *none, 12, overlap=rule).tobytes()
        for rule in pipeline.OVERLAP_RULES
    ]
    assert bare[0] == bare[1] == bare[2]


@pytest.mark.parametrize(("deeper", "bound"), [(False, 0.002), (True, 0.015)])
def test_the_period_is_the_increment_of_long_runs(deeper, bound):
    random = np.random.default_rng(9)
    for stages in (2, 4, 7):
        work = [random.uniform(0.5, 2, (300, stages)) for _ in range(2)]
        links = [random.uniform(0, 2, (300, stages - 1)) for _ in range(2)]
        warmup = np.arange(stages - 1, -1, -1)
        if deeper:
            warmup = warmup + np.arange(stages - 1, -1, -1) // 2
        period = pipeline.period_s(*work, *links, warmup=warmup)
        short, long = 24 * stages, 48 * stages
        increment = (
            pipeline.iteration_time_s(*work, *links, long, warmup=warmup)
            - pipeline.iteration_time_s(*work, *links, short, warmup=warmup)
        ) / (long - short)
        assert np.abs(period / increment - 1).max() <= bound


def test_a_slow_link_costs_half_its_round_trip_until_the_warmup_is_deeper():
    one = np.ones((1, 4))
    links = np.array([[0.0, 1.0, 0.0]])
    standard = pipeline.iteration_time_s(one, 2 * one, links, links, 64)
    deeper = pipeline.iteration_time_s(one, 2 * one, links, links, 64, warmup=[4, 3, 1, 0])
    assert (standard[0], deeper[0]) == (265, 203)


def test_float32_is_close_to_float64_and_keeps_its_type():
    random = np.random.default_rng(10)
    arrays = [random.uniform(0.5, 2, (100, 8)) for _ in range(2)]
    arrays += [random.uniform(0, 1, (100, 7)) for _ in range(2)]
    exact = pipeline.iteration_time_s(*arrays, 32)
    quick = pipeline.iteration_time_s(*arrays, 32, dtype="float32")
    assert exact.dtype == np.float64 and quick.dtype == np.float32
    assert np.allclose(quick, exact, rtol=2e-6)


def test_an_empty_batch_gives_an_empty_result():
    assert pipeline.iteration_time_s(
        np.zeros((0, 3)), np.zeros((0, 3)), np.zeros((0, 2)), np.zeros((0, 2)), 4
    ).shape == (0,)


GOOD = {
    "forward_s": np.ones((2, 3)),
    "backward_s": np.ones((2, 3)),
    "activation_s": np.ones((2, 2)),
    "gradient_s": np.ones((2, 2)),
    "num_microbatches": 4,
}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"forward_s": np.ones(3)}, "forward_s"),
        ({"forward_s": "fast"}, "forward_s"),
        ({"backward_s": np.ones((2, 4))}, "backward_s"),
        ({"backward_s": np.full((2, 3), -1.0)}, "backward_s"),
        ({"activation_s": np.ones((2, 3))}, "activation_s"),
        ({"gradient_s": np.full((2, 2), np.nan)}, "gradient_s"),
        ({"gradient_s": np.full((2, 2), np.inf)}, "gradient_s"),
        ({"num_microbatches": 0}, "num_microbatches"),
        ({"num_microbatches": 2.5}, "num_microbatches"),
        ({"num_microbatches": [4, 4, 4]}, "num_microbatches"),
        ({"schedule": "2f2b"}, "schedule"),
        ({"overlap": "full"}, "overlap"),
        ({"warmup": [0, 1, 2]}, "warmup"),
        ({"warmup": [2, 1]}, "warmup"),
        ({"warmup": [2, 1, -1]}, "warmup"),
        ({"warmup": [2, 1, 0], "schedule": "gpipe"}, "warmup"),
        ({"schedule": "interleaved", "chunks": 2}, "num_microbatches"),
        ({"schedule": "interleaved", "chunks": 0}, "chunks"),
        ({"schedule": "zero_bubble", "weight_s": np.full((2, 3), 2.0)}, "weight_s"),
        ({"schedule": "zero_bubble", "weight_s": np.full((2, 3), -1.0)}, "weight_s"),
        ({"stages": 4}, "stages"),
        ({"dtype": "float16"}, "dtype"),
    ],
)
def test_bad_input_names_the_field(changes, field):
    with pytest.raises(InvalidInput, match=field) as caught:
        pipeline.iteration_time_s(**{**GOOD, **changes})
    assert "\n" not in str(caught.value)
