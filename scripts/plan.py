"""The best plan for your own clusters by every planner, with memory by stage and tokens per second.

Exit code 0: at least one planner has a plan. 1: none has. 2: bad input.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dtgym.experiments import cli, planning


@dataclass
class Arguments:
    """The best plan for your own clusters by every planner."""

    cluster: Path
    """YAML file with sites and links, or with one cluster (docs/planners.md has both)."""
    model: str
    """Name of a transformer, such as llama2-13b."""
    global_batch: int
    """Sequences per iteration."""
    planners: list[str] = field(default_factory=lambda: list(planning.DEFAULT_PLANNERS))
    """Planners to ask."""
    max_stages: int = 12
    """Most pipeline stages of a plan."""
    recompute: str = "selective"
    """Activation recompute: none, selective or full."""
    zero: int = 1
    """ZeRO stage, 0 to 3."""
    timeline: Path | None = None
    """Write the best plan's pipeline here as Chrome trace events (opens in Perfetto)."""
    json: bool = False
    """Print one JSON object instead of text."""


def main(arguments: Arguments) -> int:
    """Plans and prints."""
    cli.existing_path("--cluster", arguments.cluster)
    report = planning.plan(
        arguments.cluster,
        model=arguments.model,
        global_batch=arguments.global_batch,
        planners=arguments.planners,
        max_stages=arguments.max_stages,
        recompute=arguments.recompute,
        zero=arguments.zero,
        timeline=arguments.timeline,
    )
    if arguments.json:
        cli.print_json(planning.document(report))
    else:
        print(planning.text(report))
    return cli.EXIT_GOOD if report.rows else cli.EXIT_CHECK_FAILED


if __name__ == "__main__":
    cli.run(Arguments, main)
