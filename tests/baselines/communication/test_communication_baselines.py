"""Every baseline plays; searches follow the schedule of the release; oracles are bounds."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from dtgym.baselines.communication import METHODS
from dtgym.baselines.communication.search import (
    ByteSchedulerSearch,
    RandomSearch,
    Tuning,
    cell,
    default_bytes,
)
from dtgym.baselines.method import Budget
from dtgym.experiments import episodes
from dtgym.experiments.suites import Instance, Suite
from dtgym.simulator.errors import InvalidInput

ENV = "dtgym/CommunicationTuning-v0"
MB = 1e6


def grid_state(architecture="allreduce", iterations_per_step=10, action_mode="grid"):
    return SimpleNamespace(
        model="vgg16",
        architecture=architecture,
        action_mode=action_mode,
        iterations_per_step=iterations_per_step,
        partition_grid_bytes=MB * 2.0 ** np.arange(9),
        credit_grid_bytes=MB * 2.0 ** np.arange(9),
        default_action=2 * 9 + 4,
        last_iteration_time_s=1.0,
    )


def play(name, seeds=range(3), **env_kwargs):
    method = METHODS[name]()
    kwargs = {"model": "vgg16", "horizon": 30, **env_kwargs, **getattr(method, "env_overrides", {})}
    suite = Suite("one", 1, ENV, (Instance("train", kwargs, 0, 20),), ())
    budget = Budget()
    method.prepare(suite, seed=0, budget=budget)
    env = episodes.make(ENV, kwargs)
    return [episodes.play(method, env, 1000 + seed) for seed in seeds], budget, method


@pytest.mark.parametrize("name", METHODS)
def test_every_method_plays_legal_episodes_twice_alike(name):
    first, second = play(name)[0], play(name)[0]
    assert [e.actions for e in first] == [e.actions for e in second]
    assert [e.objective for e in first] == [e.objective for e in second]


@pytest.mark.parametrize("architecture", ["allreduce", "ps"])
def test_oracles_bound_every_method_that_tunes_the_same_mechanism(architecture):
    def returns(name):
        return np.array([e.objective for e in play(name, architecture=architecture)[0]])

    best, static = returns("oracle-dynamic"), returns("best-static")
    assert (best >= static - 1e-9).all()
    for name in ("default", "random-search", "bytescheduler-bo", "bytescheduler-bo-online"):
        assert (best >= returns(name) - 1e-9).all()
    for name in ("random-search", "bytescheduler-bo"):
        assert (static >= returns(name) - 1e-9).all()
    assert (returns("default") == 0).all()


def test_mechanisms_run_as_published_whatever_the_configuration():
    for name, mechanism in (("fifo", "fifo"), ("p3", "p3"), ("ddp-buckets", "ddp_buckets")):
        assert METHODS[name]().env_overrides == {"mechanism": mechanism}
    # Slow network, VGG16: unscheduled communication loses to the default.
    assert all(e.objective < 0 for e in play("fifo", scenario="incast")[0])


def drive(tuning, state, time_of):
    """Feeds a tuning with the times that cells take; returns the cells of all steps."""
    actions = [tuning.act(state)]
    while not tuning.finished:
        state.last_iteration_time_s = time_of(actions[-1])
        actions.append(tuning.act(state))
    return actions


def test_schedule_is_the_releases():
    """Default, ten random, four suggested: fifteen trials of twelve steps of ten iterations."""
    state = grid_state()
    tuning = Tuning(ByteSchedulerSearch(state, np.random.default_rng(0)))
    actions = drive(tuning, state, lambda action: 1.0 + action / 100)
    assert len(actions) == 15 * 12 + 1
    assert actions[:12] == [state.default_action] * 12
    trials = [actions[i] for i in range(0, 180, 12)]
    assert actions[:-1] == [action for action in trials for _ in range(12)]
    assert tuning.spent_iterations == 15 * 120
    # The best of the fourteen points stays; the default's own trial does not count.
    assert actions[-1] == tuning.best_action == min(trials[1:])
    assert tuning.act(state) == tuning.best_action


def test_first_step_of_a_trial_is_not_measured():
    """A new partition takes effect ten iterations after it was set."""
    state = grid_state()
    seen = []

    class Spy(RandomSearch):
        def tell(self, time_s):
            seen.append(time_s)

    tuning = Tuning(Spy(state, np.random.default_rng(0)))
    steps = {"count": 0}

    def time_of(_action):
        steps["count"] += 1
        return 99.0 if steps["count"] % 12 == 1 else 2.0

    drive(tuning, state, time_of)
    assert seen == [2.0] * 14


@pytest.mark.parametrize(("architecture", "credits"), [("ps", (4, 64)), ("allreduce", (16, 256))])
def test_search_stays_in_the_releases_ranges(architecture, credits):
    state = grid_state(architecture)
    search = ByteSchedulerSearch(state, np.random.default_rng(1))
    for trial in range(14):
        partition, credit = search.propose()
        assert credits[0] * MB <= credit <= credits[1] * MB
        if architecture == "ps":
            assert partition == default_bytes(state)[0] == 4 * MB
        else:
            assert 8 * MB <= partition <= 128 * MB
        search.tell(1.0 + trial / 10)


def test_suggestions_use_what_was_measured():
    """With one clear optimum, the four suggestions come nearer than random points do."""
    state = grid_state("ps")
    distances = {"random": [], "suggested": []}
    for seed in range(6):
        search = ByteSchedulerSearch(state, np.random.default_rng(seed))
        for trial in range(14):
            _, credit = search.propose()
            distance = abs(credit - 40 * MB) / MB
            distances["random" if trial < 10 else "suggested"].append(distance)
            search.tell(1.0 + distance)
    assert np.mean(distances["suggested"]) < 0.5 * np.mean(distances["random"])


def test_tuned_once_is_counted_and_kept():
    runs, budget, method = play("bytescheduler-bo", scenario="steady")
    assert budget.spent_evaluations == 15 * 12
    assert all(set(run.actions) == {method.tuned["vgg16", "allreduce"]} for run in runs)


def test_tuning_beforehand_covers_every_model_of_the_training_instances():
    kwargs = {"model": ["vgg16", "alexnet"], "horizon": 5}
    suite = Suite("two", 1, ENV, (Instance("train", kwargs, 0, 20),), ())
    method, budget = METHODS["random-search"](iterations_per_trial=20), Budget()
    method.prepare(suite, seed=3, budget=budget)
    assert set(method.tuned) == {("vgg16", "allreduce"), ("alexnet", "allreduce")}
    assert budget.spent_evaluations == 2 * 15 * 2


def test_a_budget_is_kept():
    suite = Suite("one", 1, ENV, (Instance("train", {"horizon": 5}, 0, 20),), ())
    method, budget = METHODS["random-search"](), Budget(evaluations=40)
    method.prepare(suite, seed=0, budget=budget)
    assert budget.spent_evaluations == 40


def test_online_search_pays_for_its_trials_inside_the_episode():
    run = play("random-search-online", horizon=190, seeds=[0])[0][0]
    assert len(run.actions) == 190
    assert len(set(run.actions[180:])) == 1
    assert run.actions[180] in run.actions[12:180]


def test_an_unknown_job_and_delta_moves_get_one_clear_line():
    method = METHODS["bytescheduler-bo"]()
    env = episodes.make(ENV, {"model": "vgg16"})
    with pytest.raises(InvalidInput, match="no training instance holds vgg16/allreduce"):
        episodes.play(method, env, 0)
    for name in ("oracle-dynamic", "random-search-online"):
        with pytest.raises(InvalidInput, match="action_mode='grid'"):
            episodes.play(METHODS[name](), episodes.make(ENV, {"action_mode": "delta"}), 0)
    with pytest.raises(InvalidInput, match="iterations_per_trial"):
        METHODS["bytescheduler-bo"](iterations_per_trial=0)
    run = episodes.play(METHODS["default"](), episodes.make(ENV, {"action_mode": "delta"}), 0)
    assert set(run.actions) == {4} and run.objective == 0


def test_cells_are_nearest_in_ratio():
    state = grid_state()
    assert cell(state, 4.1 * MB, 15 * MB) == state.default_action
    assert cell(state, 1e3, 1e12) == 8


def test_listing_methods_loads_no_search_library():
    code = (
        "import sys, dtgym.baselines.communication as c; c.METHODS['fifo']();"
        "assert not {'bayes_opt', 'sklearn', 'torch'} & set(sys.modules), 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
