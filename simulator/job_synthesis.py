"""Fills the columns that a trace does not have, from published profiles, named and seeded.

Traces know times and GPUs; schedulers of several resources also need a model class, CPU, memory,
storage and network. `fill` adds what is missing and marks each added column synthetic. Columns that
the trace has are never touched.

The synthesiser ``muri-synergy`` draws a model class for every job (uniformly over Muri's eight, as
Muri's authors did) and takes

* stage times per iteration from Muri's profiling, by class and gang (nearest profiled gang);
* CPU, memory and storage as Synergy's GPU-proportional share: 3 cores, 62.5 GB, 62.5 MB/s per GPU;
* network as an eighth of a 100 Gbit/s card per GPU, for gangs of at least two.

Sources: Rivendile/Muri traces (Apache-2.0), whose resource 0 is the host side [inferred]; of it
`IO_SHARE` is taken as storage and the rest as CPU [assumed]. msr-fiddle/blox Synergy tables (MIT).
"""

from __future__ import annotations

import csv
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator.errors import at_least, one_of
from dtgym.simulator.jobs import JobTable

SYNTHESISERS = ("muri-synergy",)
CPU_CORES_PER_GPU = 3.0
MEMORY_BYTES_PER_GPU = 62.5e9
IO_BYTES_PER_S_PER_GPU = 62.5e6
NETWORK_BYTES_PER_S_PER_GPU = 12.5e9 / 8
IO_SHARE = 0.2

#: Classes of other traces, and the profiled class that stands in for them [assumed].
STAND_INS = {
    "resnet50": "resnet18",
    "resnet152": "resnet18",
    "inception3": "resnet18",
    "inception4": "resnet18",
    "googlenet": "resnet18",
    "alexnet": "shufflenet_v2_x1_0",
    "mobilenet": "shufflenet_v2_x1_0",
    "shufflenet": "shufflenet_v2_x1_0",
    "vgg11": "vgg16",
    "transformer": "bert",
    "gnmt": "bert",
    "lm": "gpt2",
    "lstm": "gpt2",
    "recommendation": "bert",
    "cyclegan": "vgg16",
    "a3c": "a2c",
    "deepspeech": "resnet18",
}


@lru_cache(maxsize=1)
def muri_stage_times_s() -> dict[tuple[str, int], tuple[float, float, float, float]]:
    """Published (iteration, host, GPU, network) seconds by (class, GPUs).

    Examples:
        >>> muri_stage_times_s()["bert", 16]
        (0.244, 0.0005, 0.166, 0.086)
    """
    file = files("dtgym.simulator") / "catalog/scheduling/muri_stage_times.csv"
    lines = [line for line in file.read_text("utf-8").splitlines() if not line.startswith("#")]
    return {
        (row["model"], int(row["gpus"])): tuple(
            round(float(row[name]) / 1000, 9)
            for name in ("iteration_ms", "host_ms", "gpu_ms", "network_ms")
        )  # type: ignore[misc]
        for row in csv.DictReader(lines)
    }


def classes() -> tuple[str, ...]:
    """The profiled model classes, sorted."""
    return tuple(sorted({model for model, _ in muri_stage_times_s()}))


def fill(jobs: JobTable, *, seed: int, synthesiser: str = "muri-synergy") -> JobTable:
    """Returns the table with model, resources and stage times, added columns marked synthetic.

    Args:
        jobs: Any table.
        seed: Of the draw of model classes.
        synthesiser: One of `SYNTHESISERS`.

    Raises:
        InvalidInput: An unknown synthesiser or a negative seed.

    Examples:
        >>> jobs = JobTable.from_columns(
        ...     submit_s=[0, 1], duration_s=[60, 60], num_gpus=[1, 16], cpu_cores=[2, 8])
        >>> full = fill(jobs, seed=0)
        >>> full.cpu_cores.tolist(), "cpu_cores" in full.synthetic, "model" in full.synthetic
        ([2.0, 8.0], False, True)
    """
    one_of("synthesiser", synthesiser, SYNTHESISERS)
    at_least("seed", seed, 0)
    added: dict[str, NDArray[Any]] = {}
    names = np.array(classes())
    if jobs.model is None:
        random = np.random.Generator(np.random.PCG64(seed))
        added["model"] = names[random.integers(len(names), size=len(jobs))]
    gpus = jobs.num_gpus.astype(np.float64)
    per_gpu = {
        "cpu_cores": CPU_CORES_PER_GPU * gpus,
        "memory_bytes": MEMORY_BYTES_PER_GPU * gpus,
        "io_bytes_per_s": IO_BYTES_PER_S_PER_GPU * gpus,
        "network_bytes_per_s": NETWORK_BYTES_PER_S_PER_GPU * gpus * (gpus > 1),
    }
    added |= {name: value for name, value in per_gpu.items() if getattr(jobs, name) is None}
    model = added.get("model", jobs.model)
    assert model is not None
    stages = stage_times_s(model, jobs.num_gpus)
    has_some = any(
        getattr(jobs, name) is not None
        for name in ("cpu_stage_s", "gpu_stage_s", "network_stage_s")
    )
    if not has_some:
        added |= dict(zip(STAGES, stages.T, strict=True))
    elif jobs.io_stage_s is None and jobs.cpu_stage_s is not None:
        # The trace has the host side in one column, as Muri's does: split it the same way.
        added["io_stage_s"] = IO_SHARE * jobs.cpu_stage_s
        added["cpu_stage_s"] = (1 - IO_SHARE) * jobs.cpu_stage_s
    return jobs.with_columns(added, synthetic=True) if added else jobs


STAGES = ("io_stage_s", "cpu_stage_s", "gpu_stage_s", "network_stage_s")


def stage_times_s(model: NDArray[np.str_], gpus: NDArray[np.int64]) -> NDArray[np.float64]:
    """Stage times of one iteration by class and gang, in the order of `STAGES`.

    Args:
        model: Class of each job, (jobs,); an unknown one is drawn to Muri's bert, whose time lies
            nearly all on the GPU, so that nothing is invented about its other stages.
        gpus: Gang of each job, (jobs,).

    Returns:
        Seconds, (jobs, 4).
    """
    table = muri_stage_times_s()
    known = set(classes())
    pairs, which = np.unique(
        np.stack([np.unique(model, return_inverse=True)[1], gpus], axis=1),
        axis=0,
        return_inverse=True,
    )
    names = np.unique(model)
    rows = np.empty((len(pairs), 4))
    for row, (kind, gang) in enumerate(pairs):
        name = str(names[kind])
        name = name if name in known else STAND_INS.get(name, "bert")
        sizes = sorted(size for other, size in table if other == name)
        nearest = min(sizes, key=lambda size, gang=gang: (abs(np.log2(size / max(gang, 1))), size))
        _, host, gpu, network = table[name, nearest]
        rows[row] = IO_SHARE * host, (1 - IO_SHARE) * host, gpu, network
    return rows[which.ravel()]
