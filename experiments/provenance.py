"""Where a result came from: library versions, git revision, machine."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LIBRARIES = (
    "dtgym",
    "bayesian-optimization",
    "gymnasium",
    "numba",
    "numpy",
    "sb3-contrib",
    "scipy",
    "stable-baselines3",
    "torch",
)
"""Distributions whose version may change a result."""


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of every library that may change a result."""
    found = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = "not installed"
    return found


@cache
def git_revision() -> str:
    """The commit of the checkout this code lies in, with ``+changes`` for a changed tree.

    Returns ``unknown`` for an installed package without a checkout, or where git is missing.
    """
    # resolve(): in a strict editable install this file is a link into the checkout.
    root = Path(__file__).resolve().parent.parent
    if not (root / "pyproject.toml").is_file():
        return "unknown"

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        # Tables are written into the checkout; that alone does not make it another revision.
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine() -> dict[str, str | int]:
    """What ran it: system, processor, number of usable cores."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else _cores(),
    }


def _cores() -> int:
    return os.cpu_count() or 1


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
