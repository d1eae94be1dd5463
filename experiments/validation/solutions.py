"""Replays solution records and compares what they claim: ``validate.py solutions --data FOLDER``.

Every record is replayed through ``gymnasium.make`` with its own arguments, seed and actions. The
claimed objectives must agree to a relative `TOLERANCE`: on the machine that made the record they
agree bit for bit, elsewhere another compiler may round an intermediate differently. How many agree
exactly is reported. A record that is found several times (in a run folder and in a table) is
replayed once.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

from dtgym.experiments import episodes, solutions
from dtgym.experiments.files import json_text
from dtgym.experiments.solutions import Solution
from dtgym.experiments.validation import Report
from dtgym.simulator.errors import InvalidInput

TOLERANCE = 1e-9
"""Relative (below magnitude one: absolute) difference allowed between claim and replay."""


def validate(data: Path | None) -> Report:
    """Replays every record below `data`.

    Args:
        data: A file of records or a folder; None is the folder ``results``.

    Raises:
        InvalidInput: No record is found, or one is malformed or names an unknown environment.
    """
    folder = Path("results") if data is None else data
    if not folder.exists():
        raise InvalidInput(f"--data: no such file or folder: {folder}")
    places: dict[str, tuple[str, Solution]] = {}
    for path in solutions.find(folder):
        for place, solution in solutions.read(path):
            places.setdefault(solution.line, (place, solution))
    if not places:
        raise InvalidInput(f"{folder}: the files hold no solution record")
    failures: list[str] = []
    exact = 0
    # Records of one instance share an environment: making one is slower than an episode.
    ordered = sorted(places.values(), key=lambda item: _env_key(item[1]))
    for _, group in itertools.groupby(ordered, key=lambda item: _env_key(item[1])):
        records = list(group)
        first = records[0][1]
        env = episodes.make(first.env_id, first.env_kwargs)
        for place, solution in records:
            problem, is_exact = check(env, solution)
            exact += is_exact
            if problem:
                failures.append(f"{place}: {solution.name}: {problem}")
        env.close()
    figures: dict[str, Any] = {
        "records": len(places),
        "exact": exact,
        "failed": len(failures),
        "tolerance": TOLERANCE,
        "failures": failures,
    }
    lines = [f"{len(places)} records replayed, {exact} agree exactly, {len(failures)} fail"]
    return Report(not failures, figures, lines + failures)


def check(env: Any, solution: Solution) -> tuple[str, bool]:
    """Replays one record in `env`.

    Returns:
        What is wrong (empty if nothing is), and whether every claim agrees bit for bit.
    """
    found = episodes.replay(env, solution.seed, solution.actions)
    if found.problem:
        return found.problem, False
    claims = (solution.objective, *solution.vector_objective)
    truths = (found.objective, *found.vector_objective)
    if len(claims) != len(truths):
        claimed, true = len(claims) - 1, len(truths) - 1
        return f"claims {claimed} vector components, the environment has {true}", False
    names = ["objective", *(f"vector_objective.{i}" for i in range(len(truths) - 1))]
    for name, claim, truth in zip(names, claims, truths, strict=True):
        if not math.isclose(claim, truth, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            return f"claims {name} {claim!r}, the replay gives {truth!r}", False
    return "", claims == truths


def _env_key(solution: Solution) -> str:
    return json_text([solution.env_id, solution.env_kwargs], indent=None)
