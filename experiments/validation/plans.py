"""Holds the partition evaluator against measured heterogeneous plans.

The plans ran under DeepSpeed with blocking sends in fp32, on GH200 nodes of four and on a mixed
cluster of Titan RTX, RTX 2080 and RTX 3090 nodes with one Gbit Ethernet card each. Stage times come
from the measured layer profiles, link rates from the measured single-flow fits of the same source;
nothing is fitted to the plans. Two statements of the source's own simulator are not taken over,
because measurements contradict them:

- a border's message travels as one flow over one network card, not at the rate of all cards of a
  node (the time of four-stage plans on GH200 falls short by 15 % otherwise);
- the gradient rings of a node's tensor-parallel ranks share the node's network card (the measured
  synchronisation of the mixed cluster is 21.6 s and 22.6 s where one ring alone would need 3 s).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.experiments.validation import Report
from dtgym.simulator import partition, partition_tables, pipeline
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.partition import Assumptions, PlanCosts, Problem, make_plans

Floats = NDArray[np.float64]

OVERLAP = "sender_blocked"
"""The rule that the verdict uses: sends block, as the framework's do."""

TARGETS = {
    ("clariden", "OPT-350"): 0.089,
    ("clariden", "GPT-Neo-2.7"): 0.101,
    ("mit", "OPT-350"): 0.100,
}
"""Mean error of the source's own simulator by group, the most that passes."""

ZONE = "us-central1-a"
FLOAT_BYTES = 4.0
GPU_MEMORY_BYTES = 96e9

FAULTY = {
    "measured time equals its all-reduce field": "measured time equals its all-reduce field",
    "same measured values as mit/N6 D2: copy": "copy of another record's measured values",
}
"""Notes of records that are left out, with the reason."""


@dataclass(frozen=True)
class LinkFits:
    """Measured bandwidth by message size: quadratic fits of GB/s in log2 of the size in MB.

    Attributes:
        between: By sending and receiving accelerator: fit and largest rate in bytes/s.
    """

    between: Mapping[tuple[str, str], tuple[float, float, float, float]]

    def bytes_per_s(self, source: str, target: str, message_bytes: float) -> float:
        """Rate of one flow between two nodes."""
        pair = (source, target) if (source, target) in self.between else (target, source)
        if pair not in self.between:
            raise InvalidInput(f"no measured bandwidth between {source} and {target}")
        square, linear, constant, most = self.between[pair]
        size = np.log2(message_bytes / 1e6)
        return float(min((square * size * size + linear * size + constant) * 1e9, most))


def validate(data: Path | None) -> Report:
    """Predicts every usable plan.

    Args:
        data: Folder with ``measured_plans_sailor.json``, ``layer_profiles_sailor.json`` and
            ``gcp_zone_bandwidth_sailor.csv``.

    Raises:
        InvalidInput: No folder, or files that cannot be read.
    """
    if data is None or not data.is_dir():
        raise InvalidInput("--data: name the folder with measured_plans_sailor.json")
    path = data / "measured_plans_sailor.json"
    try:
        records = json.loads(path.read_text(encoding="utf-8"))["rows"]
        fits = _read_fits(data / "gcp_zone_bandwidth_sailor.csv")
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"{path}: not a file of measured plans: {error!r}") from error
    profiles = partition_tables.read_profiles(data / "layer_profiles_sailor.json")
    left_out = {r["file"]: reason for r in records if (reason := _fault(r)) is not None}
    kept = [record for record in records if record["file"] not in left_out]
    predicted: dict[str, Floats] = {}
    memory = np.zeros(len(kept))
    for rule in pipeline.OVERLAP_RULES:
        costs = [_predict(record, profiles, fits, rule) for record in kept]
        predicted[rule] = np.array([cost.time_s[0] for cost in costs])
        memory = np.array([cost.stages.memory_bytes[0].max() for cost in costs])
    return _report(kept, left_out, predicted, memory)


def _fault(record: Mapping[str, Any]) -> str | None:
    for note, reason in FAULTY.items():
        if record["note"].startswith(note):
            return reason
    return None


def _read_fits(path: Path) -> LinkFits:
    between: dict[tuple[str, str], tuple[float, float, float, float]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            single = row["src_gpus_per_node"] == row["dst_gpus_per_node"] == "1"
            if single and row["src_zone"] == row["dst_zone"] == ZONE:
                between[row["src_gpu"], row["dst_gpu"]] = (
                    float(row["fit_c2"]),
                    float(row["fit_c1"]),
                    float(row["fit_c0"]),
                    float(row["max_bytes_per_s"]),
                )
    return LinkFits(between)


def _predict(
    record: Mapping[str, Any],
    profiles: Mapping[str, partition_tables.LayerProfile],
    fits: LinkFits,
    overlap: str,
) -> PlanCosts:
    """One record as a problem of one instance: a cluster per accelerator type."""
    profile = profiles[record["model"]]
    stages: Sequence[Sequence[str]] = record["gpus"]
    types = sorted({name for stage in stages for name in stage})
    tp, replicas = record["tp"], record["dp"]
    bound = [0, *(last + 1 for _, last in record["layers_per_stage"])]
    bound[-1] = profile.layers
    largest = max(np.diff(bound).tolist())
    gradient_bytes = float(profile.sizes[tp][:, 0].mean()) * largest * FLOAT_BYTES
    message_bytes = float(profile.sizes[1][0, 1]) * record["mbs"] * FLOAT_BYTES
    count = len(types)
    # One card per node on the mixed cluster, one per accelerator on GH200.
    cards = tp if record["cluster"] == "clariden" else 1
    flow = np.array([[fits.bytes_per_s(a, b, message_bytes) for b in types] for a in types])
    ring = np.array([[fits.bytes_per_s(a, b, gradient_bytes) for b in types] for a in types])
    spread = np.zeros((1, len(stages), count), dtype=np.int64)
    for s, stage in enumerate(stages):
        for name in stage:
            spread[0, s, types.index(name)] += tp
    home = [types.index(stage[0]) for stage in stages]
    one = np.ones((1, count))
    problem = Problem(
        tables=partition_tables.profiled_tables(profile, types),
        row=np.arange(count)[None],
        global_batch=np.array([record["gbs"]]),
        nodes=np.full((1, count), sum(len(stage) for stage in stages)),
        gpus_per_node=np.full((1, count), tp),
        memory_bytes=GPU_MEMORY_BYTES * one,
        memory_bytes_per_s=np.inf * one,
        intra_bytes_per_s=np.inf * one,
        inter_bytes_per_s=np.minimum(np.diag(flow), np.diag(ring))[None],
        intra_latency_s=0 * one,
        inter_latency_s=0 * one,
        wan_bytes_per_s=flow[None],
        wan_delay_s=np.zeros((1, count, count)),
        gpu_usd_per_hour=0 * one,
        wan_usd_per_byte=np.zeros((1, count, count)),
        network_bytes_per_s=cards * np.diag(flow)[None],
        assumptions=Assumptions(
            overlap=overlap,
            border_flows="replicas",
            wan_pipes="replica",
            compute_wire="fp32",
            wire_bytes_per_element=(FLOAT_BYTES, 2.0, 1.0, 0.5),
            weight_bytes=4.0,
            gradient_bytes=4.0,
            optimizer_bytes=16.0,
            synchronised_bytes=FLOAT_BYTES,
            reserve_bytes=5.06e9,
            border_buffers=0,
            spanning=True,
        ),
    )
    plans = make_plans(
        home,
        tp * replicas,
        tp,
        bound,
        record["mbs"] * replicas,
        wire="fp32",
        spread=spread if count > 1 else None,
    )
    costs = partition.evaluate(problem, plans)
    if not costs.stages.priced[0]:
        raise InvalidInput(f"{record['file']}: {costs.why(0)}")
    return costs


def _report(
    kept: list[dict[str, Any]],
    left_out: Mapping[str, str],
    predicted: Mapping[str, Floats],
    memory: Floats,
) -> Report:
    measured = np.array([record["measured_s"] for record in kept])
    measured_bytes = np.array([record["measured_max_mem_bytes"] for record in kept])
    groups: dict[str, Any] = {}
    lines: list[str] = []
    passed = True
    for (cluster, model), target in TARGETS.items():
        member = np.array([r["cluster"] == cluster and r["model"] == model for r in kept])
        if not member.any():
            continue
        sailor = np.array([r["sailor_sim_s"] for r in kept])[member] / measured[member] - 1
        row: dict[str, Any] = {"n": int(member.sum()), "target_mape": target}
        row["sailor_mape"] = float(np.abs(sailor).mean())
        row["memory_mape"] = float(np.abs(memory[member] / measured_bytes[member] - 1).mean())
        for rule, time_s in predicted.items():
            error = time_s[member] / measured[member] - 1
            row[rule] = {
                "mape": float(np.abs(error).mean()),
                "median": float(np.median(np.abs(error))),
                "max": float(np.abs(error).max()),
                "bias": float(error.mean()),
            }
        groups[f"{cluster}/{model}"] = row
        passed &= row[OVERLAP]["mape"] <= target
        lines.append(
            f"{cluster}/{model}: {row['n']} plans, mean error "
            + ", ".join(f"{rule} {row[rule]['mape']:.1%}" for rule in predicted)
            + f"; Sailor {row['sailor_mape']:.1%}; memory {row['memory_mape']:.1%}"
        )
    error = predicted[OVERLAP] / measured - 1
    lines.append(f"verdict by the rule {OVERLAP}, targets are the source's own errors")
    lines += [f"left out: {file}: {reason}" for file, reason in left_out.items()]
    plans = [
        {
            "file": record["file"],
            "measured_s": record["measured_s"],
            "predicted_s": predicted[OVERLAP][i],
            "relative_error": error[i],
            "predicted_memory_bytes": memory[i],
        }
        for i, record in enumerate(kept)
    ]
    return Report(
        passed=passed,
        figures={
            "n": len(kept),
            "overlap": OVERLAP,
            "mape": float(np.abs(error).mean()),
            "groups": groups,
            "left_out": dict(left_out),
            "plans": plans,
        },
        lines=lines,
    )
