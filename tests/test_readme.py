"""The README's examples run, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
PAGES = sorted(
    [REPOSITORY / "README.md", *REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")]
)


@pytest.mark.parametrize("example", EXAMPLES, ids=[code.split("\n")[0] for code in EXAMPLES])
def test_an_example_of_the_readme_runs(example: str) -> None:
    # One rollout shows as much as the whole training.
    shortened, longer = re.subn(r"total_timesteps=[\d_]+", "total_timesteps=1", example)
    assert longer or "learn(" not in example
    exec(compile(shortened, "README.md", "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_a_link_to_a_file_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    broken = [
        target
        for target in targets
        if not re.match(r"[a-z]+:", target) and not (page.parent / target).exists()
    ]
    assert not broken


def test_there_are_two_commands() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    for command in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{command}:", makefile, flags=re.MULTILINE), command
