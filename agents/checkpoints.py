"""Checkpoints from which training goes on exactly: the next update is the one that would have been.

A checkpoint is a folder ``checkpoints/<steps>/`` with two files: ``policy.zip``, which
Stable-Baselines3 loads (for evaluation, or elsewhere), and ``state.pkl``: the whole algorithm with
optimiser, buffers and the environments in mid-episode, and the random generators. The folder
appears by one rename. `state.pkl` is a pickle: load only your own.
"""

from __future__ import annotations

import os
import pickle
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm

from dtgym.agents import POLICY

_STATE = "state.pkl"


def save(model: BaseAlgorithm, folder: Path) -> Path:
    """Writes a checkpoint of `model` below `folder` and removes older ones; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"{model.num_timesteps:012d}"
    temporary = Path(tempfile.mkdtemp(dir=folder, prefix=".writing-"))
    model.save(temporary / POLICY)
    state = {
        "model": model,
        "python": random.getstate(),
        # SB3 draws from NumPy's and torch's global generators: they are part of the state.
        "numpy": np.random.get_state(),  # noqa: NPY002
        "torch": torch.get_rng_state(),
    }
    (temporary / _STATE).write_bytes(cloudpickle.dumps(state))
    for file in (temporary / POLICY, temporary / _STATE):
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
    if final.exists():
        shutil.rmtree(final)
    temporary.rename(final)
    for old in folder.iterdir():
        if old != final:
            shutil.rmtree(old)
    return final


def latest(folder: Path) -> Path | None:
    """The checkpoint with the most steps below `folder`; None if there is none."""
    found = sorted(path for path in folder.glob("*") if path.name.isdigit())
    return found[-1] if found else None


def restore(checkpoint: Path) -> BaseAlgorithm:
    """The algorithm as it was, with the global random generators set as they were."""
    state: dict[str, Any] = pickle.loads((checkpoint / _STATE).read_bytes())
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    return state["model"]
