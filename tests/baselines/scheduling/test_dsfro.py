"""DSFRO-style scheduling: legal plans, the true front on small cases, honest forecasts."""

from __future__ import annotations

import itertools

import gymnasium as gym
import numpy as np
import pytest

import dtgym.envs  # noqa: F401
from dtgym.baselines.method import Budget
from dtgym.baselines.scheduling import METHODS
from dtgym.baselines.scheduling.base import WHOLE
from dtgym.baselines.scheduling.dsfro import HORIZON_S, DsfroStyle
from dtgym.baselines.scheduling.dsfro_plans import Candidates, knee, objectives, place, shares
from dtgym.baselines.scheduling.load_forecast import (
    BIN_S,
    HORIZON,
    Ewma,
    Loads,
    Lstm,
    Persistence,
    bin_loads,
    one_step_errors,
)
from dtgym.experiments.suites import Instance, Suite
from dtgym.simulator import cluster, job_synthesis
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.job_speed import SpeedModel
from dtgym.simulator.jobs import JobTable

SMALL = {"population": 12, "generations": 4}


def synthetic_jobs(seed, count=24):
    random = np.random.default_rng(seed)
    return job_synthesis.fill(
        JobTable.from_columns(
            submit_s=np.sort(random.integers(0, 3000, size=count)),
            duration_s=random.integers(1, 2000, size=count),
            num_gpus=random.choice([0, 1, 1, 2, 4, 6], size=count),
        ),
        seed=seed,
    )


def play(jobs, **options):
    return cluster.simulate(
        jobs,
        cluster.homogeneous(3, 4),
        METHODS["dsfro-style"](**{**SMALL, **options}),
        placement="best_fit",
        speed=SpeedModel(cross_node_network_scale=2.0),
        preemption_cost_s=5.0,
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("movable", [False, True])
def test_all_jobs_finish_and_no_resource_is_oversold(seed, movable):
    jobs = synthetic_jobs(seed)
    outcome = play(jobs, movable=movable)
    assert np.isfinite(outcome.finish_s).all()
    assert movable or (outcome.preemptions == 0).all()
    stretches = outcome.stretches
    for now in np.unique(stretches.start_s):
        live = (stretches.start_s <= now) & (now < stretches.end_s)
        assert (stretches.held[live].sum(axis=0) <= outcome.capacity * (1 + 1e-12)).all()


def test_the_same_seed_gives_the_same_bytes():
    jobs = synthetic_jobs(5)
    first, second = play(jobs, seed=3), play(jobs, seed=3)
    assert first.finish_s.tobytes() == second.finish_s.tobytes()
    assert first.stretches.place_node.tobytes() == second.stretches.place_node.tobytes()


def candidates(units, remaining_s, capacity, *, demand=None, present=None, cross=2.0):
    """Jobs on an idle cluster of one rack; `demand` of one part, a GPU by default."""
    count, nodes = len(units), len(capacity)
    total = np.zeros((nodes, 5), dtype=np.int64)
    total[:, 0] = np.array(capacity) * 1000
    total[:, 1:] = 10_000
    wanted = np.tile([1000, 0, 0, 0, 0], (count, 1)) if demand is None else np.array(demand)
    where = np.zeros((count, nodes), dtype=np.int64) if present is None else np.array(present)
    return Candidates(
        units=np.array(units), demand=wanted, allowed=np.ones((count, nodes), dtype=bool),
        stage_s=np.tile([0.0, 0.0, 0.5, 0.5], (count, 1)), overlap=np.zeros(count),
        cpu_shape=np.tile([0.0, 1.0, 0.0], (count, 1)), gpu_speed=np.ones((count, nodes)),
        cross=np.full((count, 2), cross), traffic=np.zeros(count, dtype=np.int64),
        age_s=np.zeros(count), remaining_s=np.array(remaining_s, dtype=float), present=where,
        present_levels=np.ones((count, 3)), capacity=total, free=total.copy(),
        rack=np.zeros(nodes, dtype=np.int64), network_load=np.zeros(nodes, dtype=np.int64),
        other_units=np.zeros((0, 2), dtype=np.int64), other_end_s=np.zeros(0),
    )  # fmt: skip


def score(jobs, genomes, coming=(0.0,)):
    genomes = genomes.copy()
    return objectives(
        jobs, genomes, place(jobs, genomes), horizon_s=HORIZON_S, coming=np.array(coming),
        headroom_weight=0.5, restart_s=30.0,
    )  # fmt: skip


def test_objectives_by_hand():
    """Two nodes of 2 GPUs; a gang of 3 must span and takes 1.5 times as long, the other waits."""
    jobs = candidates([3, 2], [100, 200], [2, 2])
    genomes = np.array([[[0, WHOLE, WHOLE, WHOLE], [-1, WHOLE, WHOLE, WHOLE]]])
    ours = score(jobs, genomes)[0]
    # (150 / 100 + (150 + 200) / 200) / 2; 3 of 4 GPUs busy for 0.5 of 1.5 s; 1.5 - 1.
    assert ours == pytest.approx([1.625, -0.25, 0.5])
    # Four GPUs come, and all are free again within the hour: no penalty; then for 3 of 4 there is.
    assert score(jobs, genomes, [4.0])[0] == pytest.approx(ours)
    slow = candidates([3, 2], [1e4, 200], [2, 2])
    assert score(slow, genomes, [4.0])[0, 1] == pytest.approx(-0.25 + 0.5 * 0.75)


@pytest.mark.parametrize("seed", range(4))
def test_the_search_finds_the_true_front_and_its_knee(seed):
    """Every genome of 3 GPU-only jobs on 2 nodes is enumerated."""
    random = np.random.default_rng(seed)
    jobs = candidates(random.integers(1, 4, 3), random.integers(50, 5000, 3), [2, 3])
    every = np.full((27, 3, 4), WHOLE)
    every[..., 0] = list(itertools.product((-1, 0, 1), repeat=3))
    values = np.unique(score(jobs, every, [2.0]).round(9), axis=0)
    worse = (values[:, None] >= values[None]).all(axis=2) & (values[:, None] > values).any(axis=2)
    front = values[~worse.any(axis=1)]
    method = DsfroStyle(population=40, generations=10, seed=seed)
    genomes, found = method.front(jobs, np.arange(3), np.array([2.0]))
    assert np.allclose(np.unique(found.round(9), axis=0), front)
    scaled = (front - front.min(axis=0)) / np.where(
        np.ptp(front, axis=0) > 0, np.ptp(front, axis=0), 1
    )
    assert np.allclose(scaled[knee(found)].sum(), scaled.sum(axis=1).min())
    assert np.allclose(score(jobs, genomes, [2.0]), found)
    assert method.evaluations == 400


def test_the_knee_of_one_gpu_goes_to_the_shorter_job():
    """Starting either job keeps the GPU as busy; the shorter one first completes sooner."""
    jobs = candidates([1, 1], [100, 1000], [1])
    method = DsfroStyle(population=10, generations=5)
    assert method.search(jobs, np.arange(2), np.zeros(1))[:, 0].tolist() == [0, -1]


@pytest.mark.parametrize("seed", range(20))
def test_placing_keeps_capacities_and_gangs_and_repairs_once(seed):
    random = np.random.default_rng(seed)
    demand = np.column_stack((np.full(6, 1000), random.integers(0, 5000, (6, 4))))
    present = np.zeros((6, 3), dtype=np.int64)
    present[2, 1] = 1
    units = random.integers(1, 5, 6)
    units[2] = 1
    jobs = candidates(units, np.arange(1, 7), [4, 2, 3], demand=demand, present=present)
    low, high = jobs.bounds
    genomes = random.integers(low, high + 1, size=(30, *low.shape))
    placed = place(jobs, genomes)
    parts = placed.sum(axis=2)
    assert ((parts == 0) | (parts == jobs.units)).all()
    assert ((parts > 0) == (genomes[..., 0] >= 0)).all()
    given = np.broadcast_to(demand, (30, 6, 5)).astype(float).copy()
    given[..., [1, 3, 4]] *= shares(jobs, genomes)
    used = np.einsum("gjn,gjr->gnr", placed, np.floor(given))
    assert (used <= jobs.free).all()
    again = genomes.copy()
    assert np.array_equal(place(jobs, again), placed) and np.array_equal(again, genomes)
    stays = genomes[:, 2, 0] == 3
    assert stays.any() and (placed[stays, 2] == present[2]).all()


def test_bins_add_up():
    jobs = synthetic_jobs(1)
    loads = bin_loads(jobs)
    totals = [len(jobs), jobs.num_gpus.sum(), jobs.column("cpu_cores", 0.0).sum()]
    assert np.allclose(loads.values.sum(axis=0), totals)


def daily_jobs(days=12):
    """A few jobs in the night bins and many in alternate bins of the day, the same every day."""
    hour = (np.arange(days * 144) % 144) / 6
    number = np.where((hour > 8) & (hour < 20), 4 + 8 * (np.arange(len(hour)) % 3 == 0), 1)
    submit_s = np.repeat(np.arange(len(hour)) * BIN_S, number)
    return JobTable.from_columns(
        submit_s=submit_s, duration_s=np.ones(len(submit_s)), num_gpus=np.ones(len(submit_s), int)
    )


def test_the_lstm_learns_a_daily_pattern_better_than_the_simple_forecasts():
    jobs = daily_jobs()
    loads = bin_loads(jobs)
    lstm = Lstm(hidden=32, learning_rate=5e-3, epochs=12)
    lstm.fit(jobs, seed=0)
    first = int(0.8 * len(loads.values))
    ours = one_step_errors(lstm, loads, first).mean()
    for simple in (Persistence(), Ewma(), Ewma(of_logs=False)):
        assert ours < 0.5 * one_step_errors(simple, loads, first).mean()
    forecast = lstm.predict(loads)
    assert forecast.median.shape == forecast.upper.shape == (HORIZON, 2)
    assert (forecast.upper >= forecast.median).all() and (forecast.median >= 0).all()


def test_fitting_looks_at_training_and_validation_only():
    random = np.random.default_rng(0)
    values = random.poisson(3, size=(200, 2)).astype(float)
    history = Loads(values[:60])

    def fitted(seen):
        lstm = Lstm(hidden=8, epochs=2)
        lstm.fit_loads(Loads(seen), seed=1)
        return lstm

    changed = values.copy()
    changed[160:] *= 50
    before, after = fitted(values), fitted(changed)
    assert before.predict(history).upper.tobytes() == after.predict(history).upper.tobytes()
    changed[140:] *= 50
    later = fitted(changed)
    assert later.mean.tobytes() == before.mean.tobytes()
    assert later.scale.tobytes() == before.scale.tobytes()
    assert later.validation_loss != before.validation_loss


def test_simple_forecasts_by_hand():
    loads = Loads(np.array([[0.0], [4.0], [2.0]]))
    assert Persistence().predict(loads).median[:, 0].tolist() == [2.0] * HORIZON
    assert Ewma(0.5, of_logs=False).predict(loads).median[0, 0] == 2.0
    # Half of log 3 and a quarter of log 5.
    assert Ewma(0.5).predict(loads).median[0, 0] == pytest.approx(3**0.5 * 5**0.25 - 1)
    assert Ewma().predict(Loads(np.zeros((0, 2)))).upper.tolist() == [[0.0, 0.0]] * HORIZON


def test_prepare_trains_the_lstm_and_the_environment_uses_it():
    arguments = {"stream_jobs": 1024, "jobs_per_episode": 512, "cluster": "small", "split": "train"}
    suite = Suite(
        "tiny", 1, "dtgym/ClusterScheduling-v0", (Instance("one", arguments, 0, 2),), ()
    )  # fmt: skip
    methods = [METHODS["dsfro-style"](**SMALL, forecast="lstm") for _ in range(2)]
    env = gym.make(suite.env_id, **{**arguments, "jobs_per_episode": 12})
    returns = []
    for method in methods:
        method.prepare(suite, seed=4, budget=Budget())
        env.reset(seed=9)
        base = env.unwrapped
        method.reset(base.view())
        total, ended = 0.0, False
        while not ended:
            _, reward, terminated, truncated, _ = env.step(method.act(base.view()))
            total, ended = total + reward, terminated or truncated
        returns.append(total)
        assert terminated
    assert returns[0] == returns[1]


def test_bad_options_are_named():
    with pytest.raises(InvalidInput, match="forecast must be one of"):
        DsfroStyle(forecast="oracle")
    with pytest.raises(InvalidInput, match="call prepare first"):
        play(synthetic_jobs(0), forecast="lstm")
    with pytest.raises(InvalidInput, match="at least 60 bins"):
        Lstm().fit(synthetic_jobs(0), seed=0)
