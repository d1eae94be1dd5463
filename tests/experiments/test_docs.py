"""The example of docs/adding_a_method.md does what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dtgym.experiments import runner
from dtgym.experiments.runner import RunSpec
from dtgym.experiments.validation import validate

SUITE = """
name: small
version: 1
env_id: dtgym/CommunicationTuning-v0
description: One instance.
train:
  - {name: one, env_kwargs: {horizon: 5}, seeds: {first: 0, count: 10}}
test:
  - {name: one, env_kwargs: {horizon: 5}, seeds: {first: 10, count: 10}}
"""


def test_the_method_of_the_page_runs(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (repository / "docs" / "adding_a_method.md").read_text()
    [code, *_] = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "my_tuners.py").write_text(code)
    (tmp_path / "small.yaml").write_text(SUITE)
    monkeypatch.syspath_prepend(str(tmp_path))
    one = RunSpec(str(tmp_path / "small.yaml"), "my_tuners:Cautious", 0, tmp_path, episodes=3)
    folder = runner.run(one)
    assert folder.relative_to(tmp_path).parts[1] == "cautious"
    assert len(json.loads((folder / "result.json").read_text())["episodes"]) == 3
    assert validate("solutions", tmp_path).passed
