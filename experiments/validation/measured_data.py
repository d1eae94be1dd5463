"""Reads published throughput measurements (the format of measured.csv) as training problems."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator import hardware, software
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.hardware import Cluster, Node, NodeGroup
from dtgym.simulator.plans import Plans, Problem
from dtgym.simulator.software import Software
from dtgym.simulator.workload import Transformer

USABLE = ("yes", "assumed")

COLUMNS = (
    "source", "framework", "gpu", "gpu_mem_gb", "n_gpus", "gpus_per_node", "intra_gbytes_s",
    "inter_gbit_s_node", "model", "arch", "layers", "hidden", "heads", "kv_heads", "ffn",
    "gated_mlp", "vocab", "seq", "gbs", "mbs", "tp", "pp", "dp", "cp", "ep", "vpp", "zero",
    "seq_parallel", "recompute", "precision", "attention", "pp_partition", "iter_time_s",
    "usable", "usable_note", "year", "split", "split_group",
)  # fmt: skip
"""Columns that must be there."""

_ACCELERATORS = {
    ("V100", "32"): "V100-32",
    ("V100", "16"): "V100-16",
    ("A100", "40"): "A100-40",
    ("A100", "80"): "A100-80",
    ("A100", ""): "A100-80",
    ("H100", "80"): "H100-SXM-80",
    ("H100", "96"): "H100-HBM2e-96",
    ("H200", "141"): "H200-SXM-141",
    ("B200", "180"): "B200-180",
    ("B200", "192"): "B200-180",
    ("GB200", "186"): "GB200-186",
    ("GB200", "192"): "GB200-186",
}
_PRECISIONS = {
    "bf16": "half",
    "fp16": "half",
    "fp8": "fp8",
    "fp8-rowwise": "fp8",
    "mxfp8": "fp8",
    "nvfp4": "fp4",
}
# What the sources say of their software: the release decides the attention kernel and overlaps.
_FRAMEWORKS = {
    "NeMo": "megatron-core",
    "Megatron-Bridge": "megatron-core",
    "Megatron-Core": "megatron-core",
    "llm-foundry": "fsdp-2023",
    "torchtitan": "torchtitan",
    "DeepSpeed ZeRO-3": "deepspeed-zero3-2021",
    "Megatron-LM": "megatron-lm-2021",
    "Megatron-DeepSpeed": "megatron-deepspeed-2021",
    "vTrain ground truth (Megatron-DeepSpeed)": "megatron-lm-2022",
}
_MAY_BE_ZERO = ("zero", "seq_parallel", "year")
_RECOMPUTE = {"full": "full", "selective": "selective", "selective-op": "operators"}


@dataclass(frozen=True)
class Measurements:
    """Usable rows of a file.

    Attributes:
        rows: The rows as read.
        problems: One per row.
        plans: One per row.
        time_s: (rows,) measured step time.
        memory_gb: (rows,) measured memory; NaN where the source gives none.
    """

    rows: list[dict[str, str]]
    problems: list[Problem]
    plans: Plans
    time_s: NDArray[np.float64]
    memory_gb: NDArray[np.float64]

    def column(self, name: str) -> NDArray[np.str_]:
        """A column as text, (rows,)."""
        return np.array([row[name] for row in self.rows])


def read(path: Path) -> Measurements:
    """Reads the usable rows of a file, or of both shipped kinds of file in a folder.

    Raises:
        InvalidInput: No such file, a missing column, no usable row, or a row that cannot be run;
            names file, line and field.
    """
    if path.is_dir():
        files = [path / name for name in ("measured.csv", "measured_single_node.csv")]
        files = [file for file in files if file.exists()]
        if not files:
            raise InvalidInput(f"--data: {path} holds no measured.csv")
    else:
        files = [path]
    rows: list[dict[str, str]] = []
    problems: list[Problem] = []
    plans: list[dict[str, object]] = []
    memory: list[float] = []
    for file in files:
        for line, row in _usable_rows(file):
            try:
                problem, plan = problem_of(row)
                time = _number(row, "iter_time_s", 0.0)
                memory.append(_number(row, "mem_gb", np.nan) if "mem_gb" in row else np.nan)
            except InvalidInput as error:
                raise InvalidInput(f"{file.name}, line {line}: {error}") from error
            if not time > 0:
                raise InvalidInput(
                    f"{file.name}, line {line}: iter_time_s must be above 0 s, got {time:g}"
                )
            rows.append(row)
            problems.append(problem)
            plans.append(plan)
    if not rows:
        raise InvalidInput(f"--data: {path} has no usable row (column usable: yes or assumed)")
    return Measurements(
        rows=rows,
        problems=problems,
        plans=_stack(plans),
        time_s=np.array([float(row["iter_time_s"]) for row in rows]),
        memory_gb=np.array(memory),
    )


def _usable_rows(file: Path) -> list[tuple[int, dict[str, str]]]:
    try:
        with file.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise InvalidInput(f"{file.name}: column {missing[0]} is missing")
            return [(n, row) for n, row in enumerate(reader, start=2) if row["usable"] in USABLE]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{file}: cannot be read: {error}") from error


def problem_of(row: dict[str, str]) -> tuple[Problem, dict[str, object]]:
    """The problem of a row, and its plan as arguments of `Plans.of`."""
    if row["arch"] != "dense":
        raise InvalidInput(f"arch must be dense, got {row['arch']!r}")
    layers, stages = _whole(row, "layers"), _whole(row, "pp")
    model = _model(row)
    gpus = _whole(row, "n_gpus")
    cluster = _cluster(
        row["gpu"],
        row["gpu_mem_gb"],
        _whole(row, "gpus_per_node"),
        gpus,
        _number(row, "intra_gbytes_s", 0.0),
        _number(row, "inter_gbit_s_node", 400.0),
    )
    precision = _PRECISIONS.get(row["precision"])
    if precision is None:
        raise InvalidInput(
            f"precision must be one of {', '.join(_PRECISIONS)}; got {row['precision']!r}"
        )
    problem = Problem(model, cluster, _whole(row, "gbs"), gpus, precision, _software(row))
    unknown = row["vpp"] == "unknown"
    chunks = _least_chunks(layers, stages) if unknown else _whole(row, "vpp")
    if problem.global_batch // (_whole(row, "dp") * _whole(row, "mbs")) % stages:
        chunks = 1  # no interleaved schedule exists for such a number of micro-batches
    plan: dict[str, object] = {
        "tensor": _whole(row, "tp"),
        "pipeline": stages,
        "data": _whole(row, "dp"),
        "microbatch": _whole(row, "mbs"),
        "context": _whole(row, "cp"),
        "expert": _whole(row, "ep"),
        "chunks": chunks,
        "zero": _whole(row, "zero"),
        "sequence_parallel": _whole(row, "seq_parallel"),
        "recompute": _RECOMPUTE.get(row["recompute"], "none"),
        "stage_layers": _split(row["pp_partition"], layers, stages, chunks),
    }
    return problem, plan


def _model(row: dict[str, str]) -> Transformer:
    untied = any(family in row["model"].lower() for family in ("llama", "nemotron"))
    return Transformer(
        name=row["model"],
        layers=_whole(row, "layers"),
        hidden=_whole(row, "hidden"),
        heads=_whole(row, "heads"),
        vocab=_whole(row, "vocab"),
        sequence=_whole(row, "seq"),
        kv_heads=_whole(row, "kv_heads"),
        ffn=_whole(row, "ffn"),
        gated=row["gated_mlp"] == "1",
        tied=not untied,
        bias=not untied,
        qkv_bias=not untied,
    )


@lru_cache(maxsize=1024)
def _cluster(
    gpu: str, memory_gb: str, per_node: int, gpus: int, peer_gb_s: float, network_gbit_s: float
) -> Cluster:
    name = _ACCELERATORS.get((gpu, memory_gb), gpu)
    device = hardware.accelerator(name)
    if peer_gb_s:
        device = replace(device, peer_bytes_per_s=peer_gb_s * 1e9)
    node = Node(
        name=f"{per_node} x {name}",
        accelerator=device,
        gpus=per_node,
        cpu_cores=0,
        memory_bytes=0.0,
        io_bytes_per_s=0.0,
        network_bytes_per_s=network_gbit_s * 1e9 / 8,
    )
    return Cluster(node.name, (NodeGroup(-(-gpus // per_node), node),))


def _software(row: dict[str, str]) -> Software:
    name = _FRAMEWORKS.get(row["framework"])
    if name is None:
        # A framework without a name here is taken by what the row says of it.
        sharded = _whole(row, "zero") >= 2
        flash = "fsdp-2023" if sharded else "megatron-core"
        name = flash if row["attention"].startswith("flash") else "megatron-lm-2021"
    if name == "megatron-lm-2021" and _whole(row, "year") >= 2022:
        # Since 2022 input gradients are summed behind the products of weight gradients.
        name = "megatron-lm-2022"
    known = software.framework(name)
    # Gradients accumulate in 32 bits where weights are bf16 or fp8, unless fully sharded.
    wide = row["precision"] != "fp16" and _whole(row, "zero") < 2
    return replace(
        known,
        gradient_bytes=4.0 if wide else 2.0,
        blocking_launches="LAUNCH_BLOCKING" in row["usable_note"],
    )


def _least_chunks(layers: int, stages: int) -> int:
    """Where the source interleaves without saying how deep: the least that divides a stage."""
    per_stage = layers // stages
    return next((n for n in range(2, per_stage + 1) if stages > 1 and per_stage % n == 0), 1)


def _split(partition: str, layers: int, stages: int, chunks: int) -> list[float]:
    """Blocks on each stage by the source's rule."""
    counted = layers % (stages * chunks) != 0 and (layers + 2) % stages == 0
    if stages > 1 and (partition.startswith("embedding and head") or counted):
        even = (layers + 2) / stages
        return [even - 1] + [even] * (stages - 2) + [even - 1]
    if partition.startswith("ceil"):
        most = -(-layers // stages)
        return [float(most)] * (stages - 1) + [float(layers - most * (stages - 1))]
    return [layers / stages] * stages


def _stack(plans: Sequence[dict[str, object]]) -> Plans:
    width = max(len(plan["stage_layers"]) for plan in plans)  # pyright: ignore
    layers = np.zeros((len(plans), width))
    for index, plan in enumerate(plans):
        split = plan["stage_layers"]
        layers[index, : len(split)] = split  # pyright: ignore
    names = [name for name in plans[0] if name != "stage_layers"]
    columns = {name: np.array([plan[name] for plan in plans]) for name in names}
    return Plans.of(**columns, stage_layers=layers)


def _number(row: dict[str, str], name: str, default: float) -> float:
    text = row[name]
    if text == "":
        return default
    try:
        return float(text)
    except ValueError:
        raise InvalidInput(f"{name} must be a number, got {text!r}") from None


def _whole(row: dict[str, str], name: str) -> int:
    value = _number(row, name, 0.0)
    if value != int(value):
        raise InvalidInput(f"{name} must be whole, got {row[name]!r}")
    if value < (0 if name in _MAY_BE_ZERO else 1):
        raise InvalidInput(f"{name} must be at least 1, got {row[name]!r}")
    return int(value)
