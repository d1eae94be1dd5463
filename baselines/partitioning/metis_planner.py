"""Metis as a planner over the environment's instances, in two modes.

Metis's own inputs (profiles, hosts, cluster file) are made from the space: a GPU type per cluster,
so that the order of clusters is part of its search, and the wide-area bandwidth where it asks for
the bandwidth between nodes, as far as one number per node can say it. Plans are tried in the order
of Metis's own estimate until one can run; each is priced by the exact evaluator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dtgym.baselines.partitioning import metis
from dtgym.baselines.partitioning.metis_search import MODES, SearchArguments, search
from dtgym.baselines.partitioning.planner import Evaluator, Planner
from dtgym.simulator import partition
from dtgym.simulator.errors import one_of
from dtgym.simulator.partition_space import Candidate, PlanSpace, Stage

MAX_ATTEMPTS = 8_000
"""Balanced plans after which the search ends: on hundreds of accelerators it would take hours."""
TRIED_AT_ONCE = 32
_MIB = 2.0**20
MAX_TYPES = 5
"""Beyond so many clusters, those with the same accelerator count as one GPU type."""


@dataclass
class MetisPlanner(Planner):
    """Metis (Um et al., USENIX ATC 2024), re-implemented from a description of its behaviour.

    Attributes:
        mode: ``well-formed`` (links honoured, well-formed plans only) or ``as-shipped`` (with the
            released planner's defects). A malformed winner runs as its columns say: every group is
            a stage, stages without layers are left out, layers nobody owns go to the last stage.
    """

    name: str = "metis"
    mode: str = "well-formed"

    def __post_init__(self) -> None:
        one_of("mode", self.mode, MODES)

    def search(self, evaluator: Evaluator) -> None:
        """Tries Metis's plans in its own order until one runs."""
        winner = self.winner(evaluator)
        if winner is not None:
            evaluator.time_s([winner])

    def winner(self, evaluator: Evaluator) -> Candidate | None:
        """The first plan in Metis's order that runs; None where it has none."""
        space = evaluator.space
        inputs, cluster_of_node = inputs_of(space)
        arguments = SearchArguments(
            max_tp=int(space.tensor_options.max()),
            max_batch_size=max(key[2] for key in inputs.profiles),
            max_stages=space.rules.max_stages,
        )
        found = search(inputs, arguments, mode=self.mode, max_attempts=MAX_ATTEMPTS)
        evaluator.estimates += len(found.plans)
        batch: list[Candidate] = []
        for plan in found.plans:
            candidate = candidate_of(space, inputs, cluster_of_node, plan)
            if candidate is not None:
                batch.append(candidate)
            if len(batch) == TRIED_AT_ONCE:
                runs = self._first_that_runs(evaluator, batch)
                if runs is not None:
                    return runs
                batch = []
        return self._first_that_runs(evaluator, batch)

    def _first_that_runs(self, evaluator: Evaluator, plans: list[Candidate]) -> Candidate | None:
        """Metis's first plan that fits the memory; only plans tried are counted as priced."""
        space = evaluator.space
        for plan in plans:
            if space.is_buildable(plan):
                evaluator.time_s([plan])
                return plan
        return None


def inputs_of(space: PlanSpace) -> tuple[metis.Inputs, list[int]]:
    """Metis's inputs for a space of one instance, and the cluster of each of its nodes."""
    problem = space.problem
    tables = problem.tables
    count = int(space.arrays.clusters[0])
    layers = int(problem.layers[0])
    names = [f"{tables.names[problem.row[0, c]]}@{c if count <= MAX_TYPES else ''}"
             for c in range(count)]  # fmt: skip
    nodes: list[metis.Node] = []
    cluster_of_node: list[int] = []
    for c in range(count):
        rates = problem.wan_bytes_per_s[0, c, :count]
        wide = rates[rates > 0].min() if (rates > 0).any() else np.inf
        between = min(float(problem.inter_bytes_per_s[0, c]), float(wide))
        for _ in range(int(problem.nodes[0, c])):
            cluster_of_node.append(c)
            nodes.append(
                metis.Node(
                    int(problem.gpus_per_node[0, c]),
                    names[c],
                    between / (_MIB * 1e3),
                    float(problem.intra_bytes_per_s[0, c]) / (_MIB * 1e3),
                    float(problem.memory_bytes[0, c]) / 2**30,
                )
            )
    profiles: dict[metis.ProfileKey, metis.Profile] = {}
    kind = partition.RECOMPUTE.index(space.rules.recompute)
    state_bytes = float(space.arrays.state_bytes[0])
    for c in range(count):
        row = int(problem.row[0, c])
        for t, tp in enumerate(space.tensor_options.tolist()):
            for k in range(space.stage_time_s.shape[2]):
                time_ms = space.stage_time_s[row, t, k, : layers + 1] * 1e3
                if not np.isfinite(time_ms).all() or tp > problem.gpus_per_node[0, c]:
                    continue
                memory = tables.parameters[row, t, : layers + 1] * state_bytes
                memory = memory + tables.activation_bytes[row, kind, t, : layers + 1] * (1 << k)
                profiles[names[c], tp, 1 << k] = metis.Profile(
                    time_ms,
                    # Metis drops plans whose sync time is zero; the smallest is as good.
                    float(time_ms[-1]) + 1e-6,
                    # Its demand is five times the profile, made for profiles of one layer's
                    # weights; ours hold every state already.
                    memory / _MIB / 5.0,
                )
    first = next(iter(profiles))
    update_ms = float(np.nan_to_num(_update_s(space, int(problem.row[0, 0]), layers))) * 1e3
    row = int(problem.row[0, 0])
    inputs = metis.Inputs(
        num_layers=layers,
        global_batch=int(problem.global_batch[0]),
        hidden_size=int(tables.output_elements[row, layers // 2]),
        sequence_length=1,
        vocab_size=int(tables.output_elements[row, layers - 1]),
        nodes=tuple(nodes),
        profiles=profiles,
        parameter_bytes=np.diff(tables.parameters[row, 0, : layers + 1])
        * problem.assumptions.synchronised_bytes,
        optimizer_ms=update_ms,
        batch_generator_ms=0.0,
        search={"first_profile": first},
    )
    return inputs, cluster_of_node


def _update_s(space: PlanSpace, row: int, layers: int) -> float:
    """Optimizer time of the whole model on one accelerator."""
    update = space.problem.tables.update_s[row, 0]
    return float(update[..., layers].max())


def candidate_of(
    space: PlanSpace, inputs: metis.Inputs, cluster_of_node: list[int], plan: metis.Plan
) -> Candidate | None:
    """A plan of Metis as a candidate; None where a group lies in several clusters."""
    ranks = inputs.ranks(plan.node_sequence)
    borders = [*plan.layer_partition[:-1], inputs.num_layers]
    microbatch = inputs.global_batch // plan.batches
    local = partition.WIRES.index(space.rules.local_wire)
    stages: list[Stage] = []
    start = 0
    for (dp, tp), size, low, high in zip(
        plan.strategies, plan.device_groups, borders, borders[1:], strict=False
    ):
        homes = {cluster_of_node[node] for node in ranks[start : start + size]}
        start += size
        if low == high:
            continue
        if len(homes) > 1 or len(stages) >= space.rules.max_stages:
            return None
        stages.append(Stage(homes.pop(), dp * tp, tp, high, local))
    if not stages or microbatch not in space.microbatch[0]:
        return None
    return Candidate(microbatch, tuple(stages))
