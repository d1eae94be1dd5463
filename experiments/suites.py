"""Suites: named, versioned, plain-data lists of training instances and unseen test instances.

A suite is a YAML file (see ``experiments/suites/``). Each entry names keyword arguments of one
environment and a range of seeds; a ``grid`` stands for every combination of its lists, each with
a range of its own, one after the other (equal seeds draw equal networks in several environments:
episodes of two instances would not be independent). Training and test seeds never overlap, so a
test episode is one that no method has prepared on.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from dtgym.experiments.files import json_text
from dtgym.simulator.documents import Document, read_yaml, validated
from dtgym.simulator.errors import InvalidInput

VALIDATION_SHARE = 0.1
"""Share of every training range, at its end, that is kept for validation while preparing."""


@dataclass(frozen=True)
class Instance:
    """One problem of a suite: an environment with its arguments and a range of seeds.

    Attributes:
        name: Unique within its half of the suite, such as ``vgg16-ps-mixed``.
        env_kwargs: Keyword arguments of ``gymnasium.make``, plain data.
        first_seed: First reset seed of the range.
        num_seeds: Number of reset seeds in the range.
    """

    name: str
    env_kwargs: dict[str, Any]
    first_seed: int
    num_seeds: int

    @property
    def seeds(self) -> range:
        """The reset seeds of this instance."""
        return range(self.first_seed, self.first_seed + self.num_seeds)

    @property
    def preparation_seeds(self) -> range:
        """The seeds a method may train, fit or tune on: all but the validation share."""
        return self.seeds[: len(self.seeds) - len(self.validation_seeds)]

    @property
    def validation_seeds(self) -> range:
        """The last tenth of the range (at least one seed if there are two or more)."""
        held_out = max(int(self.num_seeds * VALIDATION_SHARE), int(self.num_seeds > 1))
        return self.seeds[self.num_seeds - held_out :]


@dataclass(frozen=True)
class Suite:
    """Training instances and unseen test instances of one environment.

    Attributes:
        name: Name of the suite and of its file.
        version: Raised whenever an instance changes, since results are only comparable within one.
        env_id: Environment id, as for ``gymnasium.make``.
        train: Instances that methods may prepare on.
        test: Instances that results are reported on.
    """

    name: str
    version: int
    env_id: str
    train: tuple[Instance, ...]
    test: tuple[Instance, ...]

    def for_preparation(self) -> Suite:
        """The same suite without its test instances: all that `Method.prepare` gets to see."""
        return Suite(self.name, self.version, self.env_id, self.train, ())

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits over every instance: tells suites of one name apart."""
        content = [[vars(instance) for instance in half] for half in (self.train, self.test)]
        return hashlib.sha256(json_text([self.env_id, content]).encode()).hexdigest()[:8]


def load(name: str) -> Suite:
    """Loads a shipped suite by name, or a YAML file by path.

    Raises:
        InvalidInput: Unknown name, unreadable or malformed file, wrong field, overlapping seeds.

    Examples:
        >>> load("communication").env_id
        'dtgym/CommunicationTuning-v0'
    """
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise InvalidInput(f"--suite: no such file: {name}")
        return parse(path.read_text(encoding="utf-8"), source=name)
    resource = files("dtgym.experiments") / "suites" / f"{name}.yaml"
    if not resource.is_file():
        raise InvalidInput(
            f"--suite must be one of {', '.join(names())} or a path to a .yaml file; got {name!r}"
        )
    return parse(resource.read_text(encoding="utf-8"), source=f"{name}.yaml")


def of_environment(env_id: str) -> Suite:
    """The suite of an environment as it is registered: one instance, a million seeds a half."""
    train = Instance("default", {}, 0, 1_000_000)
    test = Instance("default", {}, 1_000_000, 1_000_000)
    return Suite("default", 0, env_id, (train,), (test,))


def names() -> list[str]:
    """Names of the shipped suites."""
    folder = files("dtgym.experiments") / "suites"
    return sorted(Path(f.name).stem for f in folder.iterdir() if f.name.endswith(".yaml"))


def parse(text: str, *, source: str) -> Suite:
    """Builds a suite from YAML text; `source` names the file in messages.

    Raises:
        InvalidInput: Malformed YAML, an unknown or wrong field, overlapping seeds.
    """
    document = validated(_SuiteFile, read_yaml(text, source=source), source=source)
    suite = Suite(
        name=document.name,
        version=document.version,
        env_id=document.env_id,
        train=_expand(document.train, f"{source}: train"),
        test=_expand(document.test, f"{source}: test"),
    )
    for train, test in itertools.product(suite.train, suite.test):
        if train.first_seed < test.seeds.stop and test.first_seed < train.seeds.stop:
            raise InvalidInput(
                f"{source}: seeds of train instance {train.name} "
                f"[{train.first_seed}, {train.seeds.stop}) overlap those of test instance "
                f"{test.name} [{test.first_seed}, {test.seeds.stop})"
            )
    return suite


class _Seeds(Document):
    first: Annotated[int, Field(ge=0)]
    count: Annotated[int, Field(ge=1)]


class _Entry(Document):
    seeds: _Seeds
    name: str | None = None
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)


class _SuiteFile(Document):
    name: str
    version: Annotated[int, Field(ge=0)]
    env_id: str
    description: str
    train: Annotated[list[_Entry], Field(min_length=1)]
    test: Annotated[list[_Entry], Field(min_length=1)]


def _expand(entries: list[_Entry], source: str) -> tuple[Instance, ...]:
    instances: list[Instance] = []
    for number, entry in enumerate(entries):
        if entry.name is None and not entry.grid:
            raise InvalidInput(f"{source}.{number}: an entry without a grid needs a name")
        for place, values in enumerate(itertools.product(*entry.grid.values())):
            parts = [entry.name] if entry.name else []
            name = "-".join(parts + [str(value) for value in values])
            kwargs = {**entry.env_kwargs, **dict(zip(entry.grid, values, strict=True))}
            first = entry.seeds.first + place * entry.seeds.count
            instances.append(Instance(name, kwargs, first, entry.seeds.count))
    seen: set[str] = set()
    for instance in instances:
        if instance.name in seen:
            raise InvalidInput(f"{source}: two instances are named {instance.name}")
        seen.add(instance.name)
    return tuple(instances)
