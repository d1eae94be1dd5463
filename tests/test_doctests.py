"""Runs every docstring example of the installed package, under its real module name."""

from __future__ import annotations

import doctest
import importlib
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def module_names() -> list[str]:
    """Every module of every listed package."""
    packages = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"][
        "packages"
    ]
    names: list[str] = []
    for package in packages:
        folder = REPOSITORY.joinpath(*package.split(".")[1:])
        for file in sorted(folder.glob("*.py")):
            names.append(package if file.stem == "__init__" else f"{package}.{file.stem}")
    return names


@pytest.mark.parametrize("name", module_names())
def test_examples_in_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL | doctest.ELLIPSIS
    failed, _ = doctest.testmod(module, optionflags=flags)
    assert failed == 0
