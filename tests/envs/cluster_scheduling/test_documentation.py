"""The pages say what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dtgym.envs.cluster_scheduling import SPECS, types
from dtgym.envs.cluster_scheduling.types import OBJECTIVES, PLACEMENTS
from dtgym.simulator import traces
from dtgym.simulator.jobs import COLUMNS


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "envs" / "cluster_scheduling.md").read_text()


def test_the_example_of_the_page_plays_an_episode(page):
    code = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)[0]
    scope: dict[str, object] = {}
    exec(code, scope)
    assert scope["ended"] and scope["info"]["finished"] == 256  # type: ignore[index]


def test_every_id_placement_and_objective_is_on_the_page(page):
    for spec in SPECS:
        assert f"`{spec.id.removeprefix('dtgym/')}`" in page
    for name in (*PLACEMENTS, OBJECTIVES[0], OBJECTIVES[2], OBJECTIVES[8], OBJECTIVES[9]):
        assert f"`{name}`" in page
    assert f"(32, {len(types.QUEUE_FEATURES)})" in page
    assert f"(16, {len(types.NODE_FEATURES)})" in page
    assert f"(16, {len(types.RUNNING_FEATURES)})" in page
    assert f"({len(types.CLUSTER_FEATURES)},)" in page


def test_every_format_and_column_is_on_the_page(repository):
    page = (repository / "docs" / "traces.md").read_text()
    for name in traces.FORMATS:
        assert f"| `{name}` |" in page
    for column in COLUMNS:
        assert f"`{column.name}`" in page
