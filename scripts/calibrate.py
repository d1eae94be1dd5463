"""Measures this machine (or a torchrun group) and writes a hardware YAML for the cost simulator.

Run alone for one device, or as `torchrun --nproc-per-node N scripts/calibrate.py --out FILE` to
measure the links among N processes as well.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dtgym.experiments import cli
from dtgym.experiments.calibrate import as_cluster, measure
from dtgym.simulator import hardware
from dtgym.simulator.errors import above


@dataclass
class Arguments:
    """Measures this machine (or a torchrun group) and writes a hardware YAML."""

    out: Path
    """YAML file to write; `scripts/plan.py --cluster` reads it."""
    budget_s: float = 1.0
    """Seconds spent on each measurement."""


def main(arguments: Arguments) -> int:
    """Measures, and writes the file from the first process."""
    above("--budget-s", arguments.budget_s, 0, "s")
    measured = measure(arguments.budget_s)
    if int(os.environ.get("RANK", "0")) == 0:
        hardware.save_cluster(as_cluster(measured), arguments.out)
        print(f"{measured.device}: {measured.flop_per_s / 1e9:.0f} GFLOP/s in matrix products")
        print(f"memory {measured.memory_bytes_per_s / 1e9:.1f} GB/s")
        if measured.ranks > 1:
            rate = measured.bandwidth_bytes_per_s / 1e9
            start = measured.latency_s * 1e6
            print(f"all-reduce of {measured.ranks}: {start:.0f} us + bytes at {rate:.2f} GB/s")
        print(f"wrote {arguments.out}")
    return cli.EXIT_GOOD


if __name__ == "__main__":
    cli.run(Arguments, main)
