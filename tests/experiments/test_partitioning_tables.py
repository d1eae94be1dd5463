"""What the tables of planners hold, where a reader would stumble over it."""

from __future__ import annotations

import pytest

from dtgym.experiments.partitioning import precision


def test_one_cluster_alone_does_not_depend_on_the_link_and_narrow_links_never_lose() -> None:
    slow, fast = precision(["gpt3-6.7b"], [1.0, 10.0])
    assert slow.single_cluster_s == pytest.approx(fast.single_cluster_s, rel=1e-12)
    for row in (slow, fast):
        assert row.gain == pytest.approx(row.bf16_s / row.int4_s)
        # A heuristic search may miss a little of what a larger space offers, never much.
        assert row.int4_s <= 1.01 * min(row.bf16_s, row.single_cluster_s)
