"""The generator: reproducible, close to its trace, and a fit finds its own constants again."""

from __future__ import annotations

import numpy as np
import pytest

from dtgym.simulator import job_generator, traces
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.trace_formats import native


@pytest.mark.parametrize("name", job_generator.PROFILES)
def test_shipped_profiles_are_whole_and_reproducible(name):
    shipped = job_generator.profile(name)
    assert shipped.gpu_probability.sum() == pytest.approx(1, abs=1e-4)
    assert shipped.hour_factor.mean() == pytest.approx(1, abs=1e-4)
    assert shipped.weekday_factor.shape == (7,)
    assert np.allclose(shipped.weight.sum(axis=1), 1, atol=1e-4)
    one, again = (job_generator.generate(name, jobs=500, seed=3) for _ in range(2))
    assert native.same(one, again)
    assert not native.same(one, job_generator.generate(name, jobs=500, seed=4))
    assert one.synthetic == {"submit_s", "duration_s", "num_gpus"}
    assert (np.diff(one.submit_s) >= 0).all()


def test_more_jobs_begin_with_the_same_arrivals():
    few = job_generator.generate("philly", jobs=100, seed=5)
    many = job_generator.generate("philly", jobs=1000, seed=5)
    assert np.array_equal(few.submit_s, many.submit_s[:100])


def test_load_and_largest_gang_are_kept():
    table = job_generator.generate(
        "philly", jobs=2000, seed=0, offered_load=1.1, total_gpus=64, largest_gpus=16
    )
    assert table.against(64).offered_load == pytest.approx(1.1)
    assert table.num_gpus.max() <= 16
    with pytest.raises(InvalidInput, match="largest_gpus must be at least 1"):
        job_generator.generate("philly", jobs=5, seed=0, largest_gpus=0)
    with pytest.raises(InvalidInput, match="offered_load needs total_gpus"):
        job_generator.generate("philly", jobs=5, seed=0, offered_load=1)


def test_two_moment_profiles_have_the_published_median():
    table = job_generator.generate("helios", jobs=40_000, seed=0)
    assert np.median(table.duration_s) == pytest.approx(206, rel=0.05)
    assert table.num_gpus.mean() == pytest.approx(3.716, rel=0.1)


def test_arrivals_are_bursty_and_follow_the_day():
    table = job_generator.generate("philly", jobs=60_000, seed=2)
    rows = {row.name: row.real for row in job_generator.compare(table, table)}
    assert rows["variance / mean of jobs per 10 min"] > 10
    shipped = job_generator.profile("philly")
    hour = (table.submit_s // 3600 % 24).astype(int)
    share = np.bincount(hour, minlength=24) / len(table) * 24
    assert np.corrcoef(share, shipped.hour_factor)[0, 1] > 0.5


def test_fit_recovers_a_known_process():
    """Draws from a profile, fits anew: rates, sizes and quantiles come back."""
    known = job_generator.profile("philly")
    table = job_generator.generate(known, jobs=60_000, seed=7)
    found = job_generator.fit(table, "again")
    rate = len(table) / (table.submit_s.max() - table.submit_s.min())
    assert found.jobs_per_s == pytest.approx(rate, rel=0.1)
    assert found.log_rate_variance == pytest.approx(known.log_rate_variance, rel=0.5)
    assert np.isin(found.gpus, known.gpus).all()
    again = job_generator.generate(found, jobs=60_000, seed=8)
    for q in (10, 25, 50, 75, 90):
        assert np.percentile(again.duration_s, q) == pytest.approx(
            np.percentile(table.duration_s, q), rel=0.1
        )


def test_fit_refuses_tables_it_cannot_learn_a_day_from():
    table = job_generator.generate("philly", jobs=50, seed=0)
    with pytest.raises(InvalidInput, match="a fit needs 14"):
        job_generator.fit(table, "short")


def test_statistics_match_the_real_table(shared):
    """The comparison of docs/traces.md, with the tolerance that is claimed there."""
    real = traces.read(shared / "data/traces/philly_82k.csv.gz")
    assert real.epoch_unix_s is not None
    start = float(np.datetime64("2017-10-03", "s").astype(int)) - real.epoch_unix_s
    real = real.window(start, 1e12)
    drawn = job_generator.generate("philly", jobs=len(real), seed=0)
    rows = {row.name: row for row in job_generator.compare(real, drawn)}
    # Within one gang size, so that the tilt of the sizes does not enter.
    for gpus, tolerance in ((1, 0.15), (8, 0.6)):
        one, other = (table.duration_s[table.num_gpus == gpus] for table in (real, drawn))
        for q in (10, 25, 50, 75, 90):
            assert np.percentile(other, q) == pytest.approx(np.percentile(one, q), rel=tolerance)
    assert abs(rows["jobs per hour"].relative) < 0.3
    assert 0.3 < rows["variance / mean of jobs per 10 min"].generated / 59.1 < 3
    # The table lacks large jobs; the profile is tilted to the published mean instead.
    assert rows["mean GPUs"].generated == pytest.approx(1.928, rel=0.06)
