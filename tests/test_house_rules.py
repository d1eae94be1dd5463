"""Holds the house to its rules: floors, packages, light imports, no machine's traces."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
FLOORS = {"simulator": 1, "envs": 2, "baselines": 2, "agents": 3, "experiments": 4, "scripts": 5}
LIBRARIES_OF_THE_SIMULATOR = {
    "numpy",
    "numba",
    "llvmlite",
    "scipy",
    "pydantic",
    "pydantic_core",
    "yaml",
}


def python_files(*folders: str) -> list[Path]:
    return [file for folder in folders for file in sorted((REPOSITORY / folder).rglob("*.py"))]


def imported_modules(file: Path) -> list[str]:
    """Absolute names of all that a file imports, anywhere in it."""
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import; write dtgym.… in full"
            module = node.module or ""
            names += (
                [f"dtgym.{alias.name}" for alias in node.names] if module == "dtgym" else [module]
            )
    return names


def test_a_floor_imports_only_floors_below_it() -> None:
    offences: list[str] = []
    for room, floor in FLOORS.items():
        for file in python_files(room):
            for name in imported_modules(file):
                parts = name.split(".")
                if parts[0] in FLOORS:
                    offences.append(f"{file}: imports {name} without dtgym.")
                if parts[0] != "dtgym" or len(parts) < 2 or parts[1] == room:
                    continue
                if FLOORS[parts[1]] >= floor:
                    offences.append(f"{file}: {room} must not import {name}")
    assert not offences, "\n".join(offences)


def test_the_simulator_needs_no_gymnasium_torch_or_pandas() -> None:
    offences = [
        f"{file}: imports {name}"
        for file in python_files("simulator")
        for name in imported_modules(file)
        if name.split(".")[0]
        not in LIBRARIES_OF_THE_SIMULATOR | {"dtgym"} | sys.stdlib_module_names
    ]
    assert not offences, "\n".join(offences)


def test_every_floor_is_listed_and_nothing_else_is() -> None:
    listed = set(
        tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    )
    on_disk = {
        "dtgym." + ".".join(file.parent.relative_to(REPOSITORY).parts)
        for room in FLOORS
        if room != "scripts"
        for file in (REPOSITORY / room).rglob("__init__.py")
    }
    assert listed == on_disk


def test_a_wheel_holds_the_package_and_only_the_package(tmp_path: Path) -> None:
    # From a copy: setuptools would otherwise mix in what an earlier build left in ./build.
    source = tmp_path / "source"
    for room in FLOORS:
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / room, source / room, ignore=skip)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q"]
    command += ["-w", str(tmp_path), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    foreign = [name for name in names if not re.match(r"dtgym(-[^/]*\.dist-info)?/", name)]
    assert not foreign
    expected = {
        "dtgym/" + file.relative_to(REPOSITORY).as_posix()
        for room in FLOORS
        if room != "scripts"
        for pattern in ("*.py", "*.yaml", "*.csv", "*.json", "py.typed")
        for file in (REPOSITORY / room).rglob(pattern)
    }
    assert expected <= names, sorted(expected - names)


@pytest.mark.parametrize("package", ["dtgym.simulator", "dtgym.envs"])
def test_environments_import_light(package: str) -> None:
    heavy = ["torch", "matplotlib", "pandas", "scipy.stats", "stable_baselines3", "tensorboard"]
    code = f"import sys, {package}; print([m for m in {heavy} if m in sys.modules])"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/"
    ).stdout
    assert printed.strip() == "[]"


def tracked_text_files() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout: no list of tracked files")
    names = [name for name in listing.stdout.split("\0") if name]
    return [
        REPOSITORY / name
        for name in names
        if not name.endswith((".png", ".zip", ".gz", ".npz")) and "tfevents" not in name
    ]


def test_no_file_names_a_machine_path_or_a_registry() -> None:
    # Spelt in two parts so that this file does not offend itself.
    patterns = [r"/" + r"(?:home|root|Users|work)/\w", r"https?://" + r"\S*/simple\b"]
    pattern = re.compile("|".join(patterns))
    offences: list[str] = []
    for file in tracked_text_files():
        if not file.exists():
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            if pattern.search(line):
                offences.append(f"{file.relative_to(REPOSITORY)}:{number}: {line.strip()[:100]}")
    assert not offences, "\n".join(offences)
