"""What all tests share: the hypothesis profile and the folder of shared research data."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "dtgym",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("dtgym")

REPOSITORY = Path(__file__).resolve().parent.parent

# The toy environment and toy methods of tests/support, importable here and in spawned workers.
SUPPORT = Path(__file__).resolve().parent / "support"
sys.path.insert(0, str(SUPPORT))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def support() -> Path:
    """The folder of test helpers; put it on PYTHONPATH of a child process that needs them."""
    return SUPPORT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with research data beside the checkout; skips where it is absent."""
    folder = Path(os.environ.get("DTGYM_SHARED", REPOSITORY.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip("the shared research data (../shared/data, or DTGYM_SHARED) is not here")
    return folder
