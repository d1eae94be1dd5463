"""Solution records: what a method did on one episode, as data that anyone can replay.

A run leaves ``solutions.jsonl``: one JSON object a line, one line an episode. A table folder holds
the records of all its runs in ``solutions.jsonl.gz``. ``scripts/validate.py solutions`` replays
them (see `dtgym.experiments.validation.solutions`).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from dtgym.experiments.files import json_text, write_atomic
from dtgym.simulator.documents import Document, validated
from dtgym.simulator.errors import InvalidInput

FILE_NAME = "solutions.jsonl"
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Solution(Document):
    """One episode of one method.

    Attributes:
        format: Version of this record's layout.
        env_id: Environment id, as for ``gymnasium.make``.
        env_kwargs: Keyword arguments of ``gymnasium.make``, the method's overrides included.
        suite: Name and version of the suite, such as ``communication v1``.
        instance: Name of the instance in its suite.
        seed: Reset seed of the episode.
        method: Name of the method.
        method_seed: Seed of the run: of training, tuning, or the method's own dice.
        actions: One action a step, from reset to the end of the episode.
        objective: Claimed sum of rewards, undiscounted.
        vector_objective: Claimed sum of ``info["vector_reward"]``, component by component.
        versions: Versions of Python and the libraries the claim was computed with.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    env_id: str
    env_kwargs: dict[str, Any]
    suite: str
    instance: str
    seed: Annotated[int, Field(ge=0)]
    method: str
    method_seed: Annotated[int, Field(ge=0)]
    actions: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    objective: Finite
    vector_objective: list[Finite]
    versions: dict[str, str]

    @property
    def line(self) -> str:
        """The record as one line of JSON with sorted keys."""
        return json_text(self.model_dump(), indent=None)

    @property
    def name(self) -> str:
        """How messages name the record."""
        return f"{self.method} (method seed {self.method_seed}) on {self.instance} seed {self.seed}"


def write(path: Path, solutions: Iterable[Solution]) -> None:
    """Writes records atomically, one a line; a ``.gz`` path is compressed with a fixed time."""
    text = "".join(f"{solution.line}\n" for solution in solutions)
    is_packed = path.suffix == ".gz"
    write_atomic(path, gzip.compress(text.encode(), mtime=0) if is_packed else text)


def read(path: Path) -> Iterator[tuple[str, Solution]]:
    """Reads the records of one file.

    Yields:
        Where the record stands (``file:line``) and the record.

    Raises:
        InvalidInput: The file cannot be read, or a line is malformed or has a wrong field.
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read: {error}") from error
    for number, line in enumerate(text.splitlines(), start=1):
        place = f"{path}:{number}"
        try:
            document = json.loads(line)
        except json.JSONDecodeError as error:
            raise InvalidInput(f"{place}: not valid JSON: {error}") from error
        yield place, validated(Solution, document, source=place)


def find(data: Path) -> list[Path]:
    """Files with solution records: `data` itself, or all below the folder `data`.

    Raises:
        InvalidInput: There is none.
    """
    if data.is_file():
        return [data]
    found = sorted([*data.rglob("*.jsonl"), *data.rglob("*.jsonl.gz")])
    if not found:
        raise InvalidInput(f"{data}: no solution records (*.jsonl, *.jsonl.gz) in this folder")
    return found
