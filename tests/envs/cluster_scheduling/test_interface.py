"""Arguments, instances, what is shown and what is not, objectives, pictures."""

from __future__ import annotations

import itertools
import json
import warnings

import numpy as np
import pytest

from dtgym.envs.cluster_scheduling import generator, types
from dtgym.envs.cluster_scheduling.env import ClusterSchedulingEnv, ClusterSchedulingVectorEnv
from dtgym.envs.cluster_scheduling.types import OBJECTIVES, Parameters
from dtgym.simulator import traces
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.jobs import JobTable


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"colour": 1}, "unknown argument colour"),
        ({"cluster": "moon"}, "cluster must be one of homogeneous"),
        ({"workload": "nothing.csv"}, "workload must be one of toy, philly"),
        ({"jobs_per_episode": 0}, "jobs_per_episode must be at least 1"),
        ({"jobs_per_episode": 10**6}, "jobs_per_episode must be at most 16384"),
        ({"overlap": 2}, "overlap must be at most 1"),
        ({"decisions": ["placement"]}, "decisions must be"),
        ({"decisions": ["slot", "levels"]}, "needs multi_resource"),
        ({"placements": []}, "placements must be distinct"),
        ({"placements": ["type:H100"]}, "names a type that is none of V100-32"),
        ({"placements": ["tidy"]}, "placements must be one of best_fit"),
        ({"reward": "fame"}, "reward must be one of jct"),
        ({"split": "half"}, "split must be one of all"),
        ({"active_power_w": 10}, "active_power_w must be above 60 W"),
        ({"virtual_cluster": "x"}, "philly has no virtual clusters"),
    ],
)
def test_refuses_bad_arguments_in_one_line(arguments, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        ClusterSchedulingEnv(**arguments)
    assert "\n" not in str(caught.value)


def test_feature_names_match_the_shapes():
    env = ClusterSchedulingEnv()
    for key, names in (
        ("queue", types.QUEUE_FEATURES),
        ("nodes", types.NODE_FEATURES),
        ("running", types.RUNNING_FEATURES),
        ("cluster", types.CLUSTER_FEATURES),
    ):
        assert env.observation_space[key].shape[-1] == len(names)


def test_estimates_are_off_by_the_stated_error_and_the_oracle_is_exact():
    shown: dict[bool, list[np.ndarray]] = {False: [], True: []}
    for oracle in (False, True):
        env = ClusterSchedulingEnv(oracle=oracle, estimate_sigma=0.5, jobs_per_episode=200)
        for seed in range(20):
            env.reset(seed=seed)
            true_s = env.view(oracle=True).instance.duration_s
            estimate_s = env.dynamics._jobs(0)[:, 2] / 1000
            long = true_s > 10
            shown[oracle].append(np.log(estimate_s[long] / true_s[long]))
    errors = np.concatenate(shown[False])
    assert abs(np.median(errors)) < 0.02
    assert errors.std() == pytest.approx(0.5, abs=0.02)
    assert np.abs(np.concatenate(shown[True])).max() < 1e-3


def test_the_public_view_holds_no_true_durations():
    env = ClusterSchedulingEnv()
    env.reset(seed=0)
    view = env.view()
    assert view.instance is None
    true_s = env.view(oracle=True).instance.duration_s
    shown = view.state.waiting
    assert not np.isin(shown.estimate_s, true_s).any()


def test_a_trace_file_is_replayed_window_by_window(tmp_path, episode):
    jobs = JobTable.from_columns(
        job_id=np.arange(40) + 100,
        submit_s=np.arange(40) * 7.0,
        duration_s=np.arange(40) + 30.0,
        num_gpus=np.where(np.arange(40) == 5, 99, 1 + np.arange(40) % 4),
        vc=np.where(np.arange(40) % 2, "a", "b"),
    )
    file = tmp_path / "trace.csv"
    traces.write(jobs, file)
    arguments = {"workload": str(file), "cluster": "small", "offered_load": 0.0, "longest_s": 0.0}
    with pytest.warns(traces.TraceWarning, match="left out 1 of 40 jobs that can never run"):
        env = ClusterSchedulingEnv(jobs_per_episode=10, **arguments)
    env.reset(seed=3)
    window = env.view(oracle=True).instance
    kept = jobs.select(jobs.num_gpus < 99)
    first = int(np.flatnonzero(kept.job_id == window.job_id[0])[0])
    expected = kept.select(np.arange(first, first + 10))
    assert np.array_equal(window.job_id, expected.job_id)
    assert np.array_equal(window.duration_s, expected.duration_s)
    assert np.allclose(window.submit_s, expected.submit_s - expected.submit_s[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", traces.TraceWarning)
        only_a = ClusterSchedulingEnv(jobs_per_episode=5, virtual_cluster="a", **arguments)
    assert set(only_a.dynamics.given.jobs.vc.tolist()) == {"a"}


def test_jobs_that_insist_on_a_missing_gpu_type_are_left_out(tmp_path):
    jobs = JobTable.from_columns(
        submit_s=np.arange(8.0),
        duration_s=np.full(8, 60.0),
        num_gpus=np.ones(8),
        gpu_type=["", "H100-SXM-80", "V100-32", "H100-SXM-80|V100-32"] * 2,
    )
    file = tmp_path / "typed.csv"
    traces.write(jobs, file)
    for name, kept in (("small", [0, 2, 3, 4, 6, 7]), ("heterogeneous", [0, 2, 3, 4, 6, 7])):
        with pytest.warns(traces.TraceWarning, match="left out 2 of 8 jobs"):
            env = ClusterSchedulingEnv(
                cluster=name, workload=str(file), jobs_per_episode=6, offered_load=0.0
            )
        assert env.dynamics.given.jobs.job_id.tolist() == kept


def test_a_typed_job_only_starts_on_its_type(tmp_path, episode):
    jobs = JobTable.from_columns(
        submit_s=np.zeros(40),
        duration_s=np.full(40, 60.0),
        num_gpus=np.ones(40),
        gpu_type=["T4", "V100-32|P100-16"] * 20,
    )
    file = tmp_path / "typed.csv"
    traces.write(jobs, file)
    env = ClusterSchedulingEnv(
        cluster="heterogeneous",
        workload=str(file),
        jobs_per_episode=40,
        offered_load=0.0,
        placements=["worst_fit", "spread"],
    )
    random = np.random.default_rng(0)
    episode(env, lambda env, mask: int(random.choice(np.flatnonzero(mask))), 0)
    kinds = np.array(env.dynamics.given.kinds)[env.dynamics.given.nodes[:, 5]]
    for job in range(40):
        used = set(kinds[env.dynamics.grids[0, job] > 0])
        assert used <= ({"T4"} if job % 2 == 0 else {"V100-32", "P100-16"})


def test_train_and_test_windows_do_not_overlap():
    train, test = (
        generator.build(Parameters(split=split, stream_jobs=1000)) for split in ("train", "test")
    )
    assert train.first_window + train.windows - 1 + 256 <= test.first_window


def test_objectives_are_what_they_say(episode):
    env = ClusterSchedulingEnv(
        jobs_per_episode=40, multi_resource=True, offered_load=2.0, discount_per_s=0.0
    )
    random = np.random.default_rng(0)
    played = episode(env, lambda env, mask: int(random.choice(np.flatnonzero(mask))), 0)
    jobs, (start_s, finish_s) = played.jobs, played.schedule
    total = dict(zip(OBJECTIVES, played.vector, strict=True))
    jct_s = finish_s - np.round(jobs.submit_s, 3)
    slowdown = np.maximum(1, jct_s / np.maximum(jobs.duration_s, 10))
    assert total["slowdown"] == pytest.approx(-slowdown.mean(), rel=1e-6)
    assert total["weighted_jct"] == pytest.approx(total["jct"], rel=1e-9)
    # Integrate the share of idle memory (what is held is used) while jobs wait.
    edges = np.unique(np.concatenate([jobs.submit_s, start_s, finish_s]).round(3))
    middles = (edges[1:] + edges[:-1]) / 2
    waits = ((jobs.submit_s[:, None] < middles) & (middles < start_s[:, None])).any(axis=0)
    runs = (start_s[:, None] < middles) & (middles < finish_s[:, None])
    memory = np.floor(jobs.memory_bytes / jobs.num_gpus / 2**20) * jobs.num_gpus
    capacity = env.dynamics.given.nodes[:, 2].sum() / 4
    idle = 1 - (runs * memory[:, None]).sum(axis=0) / capacity
    expected = -(idle * waits * np.diff(edges)).sum() / env.dynamics.given.mean_duration_s
    assert total["memory_utilisation"] == pytest.approx(expected, rel=1e-6, abs=1e-9)
    # Energy lies between all idle and all busy.
    parameters, makespan_s = env.dynamics.parameters, finish_s.max()
    gpus = env.dynamics.given.nodes[:, 0].sum()
    joules = -total["energy"] * env.dynamics.given.mean_duration_s * env.dynamics.cluster_w
    assert gpus * parameters.idle_power_w * makespan_s < joules
    assert joules < gpus * parameters.active_power_w * makespan_s


def test_discounted_reward_is_the_discounted_integral():
    """One toy batch in order of slots: the number of jobs is a known step function."""
    beta = 0.003
    env = ClusterSchedulingEnv(
        cluster="toy",
        workload="toy",
        stream_jobs=4,
        jobs_per_episode=4,
        decisions=["slot"],
        placements=["best_fit"],
        discount_per_s=beta,
    )
    env.reset(seed=0)
    value, factor = 0.0, 1.0
    for _ in range(4):
        _, reward, ended, _, info = env.step(0)
        value += factor * reward
        factor *= info["discount"]
    assert ended and factor == pytest.approx(np.exp(-beta * 460))
    edges = np.array([0, 400, 430, 450, 460.0])
    pieces = -np.diff(np.exp(-beta * edges)) / beta * np.array([4, 3, 2, 1])
    assert value == pytest.approx(-pieces.sum() / env.dynamics.given.mean_duration_s)


def test_rewards_are_of_order_one():
    env = ClusterSchedulingVectorEnv(64)
    random = np.random.default_rng(0)
    _, info = env.reset(seed=0)
    rewards = []
    for _ in range(300):
        mask = info["action_mask"]
        _, reward, _, _, info = env.step((mask * random.random(mask.shape)).argmax(axis=1))
        rewards.append(reward)
    assert 0.05 < -np.mean(rewards) < 5


def test_pictures_text_and_timeline(episode):
    env = ClusterSchedulingEnv(jobs_per_episode=20, render_mode="rgb_array")
    played = episode(env, lambda env, mask: int(np.argmax(mask)), 0)
    image = env.render()
    assert image.dtype == np.uint8 and image.shape[2] == 3 and image.std() > 10
    assert "20 of 20 jobs done" in env.dynamics.render(0, "ansi")
    bars = [event for event in env.timeline()["traceEvents"] if event["ph"] == "X"]
    json.dumps(bars)
    # GPU time in the bars is GPU time run, and no GPU is in two bars at once.
    start_s, finish_s = played.schedule
    gpu_s = ((finish_s - start_s) * played.jobs.num_gpus).sum()
    assert sum(bar["dur"] for bar in bars) / 1e6 == pytest.approx(gpu_s)
    for key in {(bar["pid"], bar["tid"]) for bar in bars}:
        mine = sorted((b["ts"], b["ts"] + b["dur"]) for b in bars if (b["pid"], b["tid"]) == key)
        assert all(a[1] <= b[0] + 1e-3 for a, b in itertools.pairwise(mine))
