"""Every operation and message of one plan's iteration: for pictures and as Chrome trace events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dtgym.simulator import partition
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.partition_types import Plans, Problem

MAX_SPANS = 500_000
"""Spans beyond which a timeline is refused: nobody can look at more."""


@dataclass(frozen=True, slots=True)
class Span:
    """One bar of the chart.

    Attributes:
        kind: forward, backward, activation, gradient, synchronise or update.
        place: Stage, or the border behind that stage for a message.
        microbatch: Number of the micro-batch; -1 for what happens once.
        start_s: Start.
        end_s: End.
    """

    kind: str
    place: int
    microbatch: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class PlanTimeline:
    """One iteration of one plan.

    Attributes:
        iteration_time_s: Its length.
        stages: Stages of the plan.
        cluster: Cluster of each stage.
        spans: Every operation and message.
    """

    iteration_time_s: float
    stages: int
    cluster: tuple[int, ...]
    spans: tuple[Span, ...]

    def tracks(self) -> list[str]:
        """Names of the rows of a chart: stages, and the links between clusters after them."""
        links = [f"link {s}-{s + 1}" for s in self.crossings()]
        return [f"stage {s} (cluster {c})" for s, c in enumerate(self.cluster)] + links

    def crossings(self) -> list[int]:
        """Borders that cross clusters, named by the stage before them."""
        return [s for s in range(self.stages - 1) if self.cluster[s] != self.cluster[s + 1]]

    def chrome_trace(self, names: tuple[str, ...] = ()) -> dict[str, Any]:
        """Chrome trace events (a JSON object), which Perfetto and chrome://tracing open.

        Args:
            names: Names of the clusters; numbers stand where there are none.
        """
        events: list[dict[str, Any]] = []
        for stage, cluster in enumerate(self.cluster):
            place = names[cluster] if cluster < len(names) else f"cluster {cluster}"
            events.append(_name(2 * stage, f"stage {stage} ({place})"))
        for stage in range(self.stages - 1):
            events.append(_name(2 * stage + 1, f"border {stage}-{stage + 1}"))
        for span in self.spans:
            is_message = span.kind in ("activation", "gradient")
            number = "" if span.microbatch < 0 else f" {span.microbatch}"
            events.append(
                {
                    "name": f"{span.kind}{number}",
                    "cat": span.kind,
                    "ph": "X",
                    "pid": 0,
                    "tid": 2 * span.place + is_message,
                    "ts": span.start_s * 1e6,
                    "dur": (span.end_s - span.start_s) * 1e6,
                }
            )
        return {"traceEvents": events, "displayTimeUnit": "ms"}


def _name(thread: int, name: str) -> dict[str, Any]:
    return {"name": "thread_name", "ph": "M", "pid": 0, "tid": thread, "args": {"name": name}}


def plan_timeline(problem: Problem, plans: Plans) -> PlanTimeline:
    """Runs the recurrence of one feasible plan and keeps every start and end.

    Args:
        problem: Instances.
        plans: A batch of exactly one plan.

    Returns:
        Its spans; the last end equals the evaluator's iteration time.

    Raises:
        InvalidInput: Not one plan, an infeasible plan, or too many operations to look at.
    """
    if len(plans) != 1:
        raise InvalidInput(f"a timeline is of one plan, got {len(plans)}")
    costs = partition.evaluate(problem, plans)
    if not costs.feasible[0]:
        raise InvalidInput(f"the plan has no timeline: {costs.why(0)}")
    stage = costs.stages
    count, stages = int(stage.microbatches[0]), int(plans.stages[0])
    if 4 * count * stages > MAX_SPANS:
        raise InvalidInput(f"{4 * count * stages} operations are too many to draw")
    forward, backward = stage.forward_s[0], stage.backward_s[0]
    activation, gradient = stage.activation_s[0], stage.gradient_s[0]
    warmup = np.minimum(plans.warmup[0], count - 1)
    blocks_sender = problem.assumptions.overlap != "overlapped"
    blocks_receiver = problem.assumptions.overlap == "both_ends"
    spans: list[Span] = []
    free = [0.0] * stages
    link = {"activation": [0.0] * stages, "gradient": [0.0] * stages}
    arrives: dict[tuple[str, int, int], float] = {}

    def work(kind: str, s: int, m: int, duration: float, entering: float) -> None:
        start = max(free[s], arrives.get((kind, s, m), 0.0))
        free[s] = start + duration
        spans.append(Span(kind, s, m, start, free[s]))
        if blocks_receiver:
            free[s] += entering

    def send(kind: str, border: int, m: int, source: int, target: int, duration: float) -> None:
        start = max(free[source], link[kind][border])
        link[kind][border] = start + duration
        spans.append(Span(kind, border, m, start, start + duration))
        arrives["forward" if kind == "activation" else "backward", target, m] = start + duration
        if blocks_sender:
            free[source] += duration

    for step in range(-int(warmup[0]), count):
        for s in range(stages):
            m = step + int(warmup[s])
            if 0 <= m < count:
                work("forward", s, m, forward[s], activation[s - 1] if s else 0.0)
                if s < stages - 1:
                    send("activation", s, m, s, s + 1, activation[s])
        for s in range(stages - 1, -1, -1) if step >= 0 else ():
            work("backward", s, step, backward[s], gradient[s] if s < stages - 1 else 0.0)
            if s:
                send("gradient", s - 1, step, s, s - 1, gradient[s - 1])
    begins = [max(free)] * stages if problem.assumptions.synchronisation == "barrier" else free
    for s in range(stages):
        between = begins[s] + stage.synchronise_s[0, s]
        spans.append(Span("synchronise", s, -1, begins[s], between))
        spans.append(Span("update", s, -1, between, between + stage.update_s[0, s]))
    cluster = tuple(int(c) for c in plans.cluster[0, :stages])
    return PlanTimeline(float(costs.time_s[0]), stages, cluster, tuple(spans))
