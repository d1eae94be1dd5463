"""What happens in an episode: equal to the engine, conserving, and with honest masks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtgym.envs.cluster_scheduling import layout
from dtgym.envs.cluster_scheduling.env import ClusterSchedulingEnv, ClusterSchedulingVectorEnv
from dtgym.envs.cluster_scheduling.generator import TOY_OPTIMUM_S
from dtgym.simulator import cluster, job_speed

WHOLE_QUEUE = {"decisions": ["slot"], "placements": ["best_fit"], "oracle": True}


def oldest_or_wait(env, mask):
    """Strict FIFO: the head of the line starts or time passes."""
    return 0 if mask[0] else len(mask) - 1


def first_that_fits(env, mask):
    return int(np.argmax(mask))


def shortest_that_fits(env, mask):
    waiting = env.view().state.waiting
    if not mask[:-1].any():
        return len(mask) - 1
    keys = np.where(waiting.startable, waiting.estimate_s, np.inf)
    return int(np.argmin(keys))


def at_random(seed):
    random = np.random.default_rng(seed)
    return lambda env, mask: int(random.choice(np.flatnonzero(mask)))


@pytest.mark.parametrize("name", ["homogeneous", "g2"])
@pytest.mark.parametrize(
    ("choose", "policy", "head_of_line"),
    [
        (oldest_or_wait, "fifo", "block"),
        (first_that_fits, "fifo", "skip"),
        (shortest_that_fits, "sjf", "skip"),
    ],
)
def test_equals_the_engine_job_for_job(episode, name, choose, policy, head_of_line):
    env = ClusterSchedulingEnv(
        cluster=name, jobs_per_episode=160, queue_slots=160, offered_load=1.1, **WHOLE_QUEUE
    )
    for seed in range(3):
        played = episode(env, choose, seed)
        outcome = cluster.simulate(
            played.jobs,
            env.dynamics.given.cluster,
            policy,
            placement="consolidate",
            head_of_line=head_of_line,
        )
        start_s, finish_s = played.schedule
        assert np.array_equal(start_s, outcome.start_s)
        assert np.array_equal(finish_s, outcome.finish_s)


def test_fifo_equals_the_engine_also_when_the_queue_is_longer_than_its_window(episode):
    env = ClusterSchedulingEnv(jobs_per_episode=200, queue_slots=4, offered_load=2, **WHOLE_QUEUE)
    played = episode(env, oldest_or_wait, 0)
    outcome = cluster.simulate(
        played.jobs, env.dynamics.given.cluster, "fifo", placement="consolidate"
    )
    assert np.array_equal(played.schedule[1], outcome.finish_s)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"cluster": "heterogeneous", "placements": ["worst_fit", "same_rack", "type:P100-16"]},
        {
            "multi_resource": True,
            "decisions": ["slot", "placement", "levels"],
            "placements": ["best_fit", "same_rack", "spread"],
        },
    ],
)
def test_the_return_is_minus_total_jct_exactly_and_nothing_is_lost(episode, arguments):
    env = ClusterSchedulingEnv(jobs_per_episode=60, **arguments)
    capacity = env.dynamics.given.nodes[:, :5]

    def conserved(env):
        dynamics = env.dynamics
        row = dynamics.table[0]
        free = dynamics._block(0, layout.B_FREE, len(capacity), 5)
        running = dynamics.state(0).running.job
        held = np.zeros_like(capacity)
        for job in running:
            stream = dynamics.given.stream[row[layout.WINDOW] + job]
            levels = dynamics._jobs(0)[job, layout.JOB_LEVELS]
            cpu, io, network = (
                layout.LEVELS[levels // 100 % 10],
                layout.LEVELS[levels // 10 % 10],
                layout.LEVELS[levels % 10],
            )
            demand = stream[layout.DEMAND : layout.DEMAND + 4] * (cpu, 4, io, network)
            gpus = dynamics.grids[0, job].astype(np.int64)
            assert gpus.sum() == stream[layout.GPUS]
            held += np.column_stack([gpus, gpus[:, None] * demand])
        assert np.array_equal(free + held, capacity)
        assert (free >= 0).all()
        assert np.array_equal(held.sum(axis=0), row[layout.HELD : layout.HELD + 5])

    for seed in range(2):
        played = episode(env, at_random(seed), seed, conserved)
        _, finish_s = played.schedule
        jct_ms = np.rint(finish_s * 1000).astype(np.int64) - played.jobs.submit_ms
        assert played.job_ms == jct_ms.sum()
        scale = env.dynamics.given.mean_duration_s
        assert played.reward == pytest.approx(-jct_ms.sum() / 1000 / scale, rel=1e-12)
        row = env.dynamics.table[0]
        assert (row[layout.BUSY : layout.BUSY + 5] == 0).all()
        assert row[layout.WATTS] == row[layout.WEIGHT] == 0


def test_a_jobs_run_time_is_its_duration_over_the_speed_of_the_cost_model(episode):
    """Computed anew from the job's columns for every job of an episode."""
    env = ClusterSchedulingEnv(
        jobs_per_episode=60,
        multi_resource=True,
        overlap=0.3,
        decisions=["slot", "placement", "levels"],
        placements=["best_fit", "spread"],
    )
    played = episode(env, at_random(3), 3)
    jobs, (start_s, finish_s) = played.jobs, played.schedule
    placed, words = env.dynamics.grids[0], env.dynamics._jobs(0)
    racks = env.dynamics.given.nodes[:, layout.RACK]
    curves = job_speed.cpu_curves()
    factors = set()
    for job in range(len(jobs)):
        used = np.flatnonzero(placed[job])
        locality = 0 if len(used) == 1 else 1 if len(np.unique(racks[used])) == 1 else 2
        factor = (1.0, 5.0, 8.0)[locality]
        if jobs.num_gpus[job] > 4:  # no node holds it: profiled over several
            factor = (1.0, 1.0, 1.6)[locality]
        factors.add(factor)
        packed = words[job, layout.JOB_LEVELS]
        cpu, io, network = ((0.5, 0.75, 1, 1.5, 2)[packed // ten % 10] for ten in (100, 10, 1))
        curve = curves.get(str(jobs.model[job]))
        shape = (curve.squared, curve.linear, curve.constant) if curve else (0.0, 1.0, 0.0)
        cores = jobs.cpu_cores[job] / jobs.num_gpus[job]
        stages = [
            getattr(jobs, name)[job]
            for name in ("io_stage_s", "cpu_stage_s", "gpu_stage_s", "network_stage_s")
        ]
        speed = job_speed.relative_speed(
            [stages],
            overlap=0.3,
            cpu_shape=shape,
            cores_asked=cores,
            cores_given=cores * cpu,
            io_share=io,
            network_share=network / factor,
        )[0]
        expected_ms = np.ceil(jobs.duration_ms[job] / speed)
        assert (finish_s[job] - start_s[job]) * 1000 == pytest.approx(expected_ms, abs=1.01)
    assert len(factors) > 1


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    slots=st.integers(1, 12),
    jobs=st.integers(1, 30),
    name=st.sampled_from(["small", "heterogeneous", "g2"]),
    multi=st.booleans(),
    rules=st.sets(st.sampled_from(["best_fit", "worst_fit", "same_rack", "spread"]), min_size=1),
)
def test_random_legal_play_always_ends_in_a_legal_schedule(seed, slots, jobs, name, multi, rules):
    env = ClusterSchedulingVectorEnv(
        4,
        cluster=name,
        queue_slots=slots,
        jobs_per_episode=jobs,
        multi_resource=multi,
        placements=sorted(rules),
        decisions=["slot", "placement", "levels"] if multi else ["slot", "placement"],
        stream_jobs=512,
        offered_load=1.5,
    )
    random = np.random.default_rng(seed)
    _, info = env.reset(seed=seed)
    ended = 0
    for _ in range(8 * jobs * 6):
        mask = info["action_mask"]
        assert mask.any(axis=1).all()
        actions = (mask * random.random(mask.shape)).argmax(axis=1)
        _, _, terminated, _, info = env.step(actions)
        ended += terminated.sum()
        assert (info["invalid_actions"] == 0).all()
    assert ended >= 4


def test_a_forbidden_action_changes_nothing_and_is_counted(episode):
    env = ClusterSchedulingEnv()
    _, info = env.reset(seed=0)
    before = env.dynamics.table.copy()
    forbidden = int(np.flatnonzero(~info["action_mask"])[0])
    _, reward, ended, _, info = env.step(forbidden)
    assert (reward, ended, info["invalid_actions"]) == (0.0, False, 1)
    after = env.dynamics.table.copy()
    for word in (layout.STEP_JOB, layout.STEP_TIME):
        before[:, word] = after[:, word] = 0
    assert np.array_equal(before, after)


def test_waiting_is_legal_unless_no_event_is_ahead():
    env = ClusterSchedulingEnv(
        cluster="toy", workload="toy", stream_jobs=4, jobs_per_episode=4, **WHOLE_QUEUE
    )
    _, info = env.reset(seed=0)
    assert not info["action_mask"][-1]  # all four have come, nothing runs
    _, _, _, _, info = env.step(3)
    assert info["now_s"] == 10  # nothing could be started until then
    assert not info["action_mask"][-1]


def test_the_toy_has_its_optimum_and_no_order_beats_it(episode):
    import itertools

    env = ClusterSchedulingEnv(
        cluster="toy", workload="toy", stream_jobs=4, jobs_per_episode=4, **WHOLE_QUEUE
    )
    totals = []
    for order in itertools.permutations(range(4)):
        env.reset(seed=0)
        total = 0
        for job in order:
            slot = int(np.flatnonzero(env.view().state.waiting.job == job)[0])
            total += env.step(slot)[4]["job_ms"]
        totals.append(total / 1000)
    assert min(totals) == TOY_OPTIMUM_S == totals[-1]
    assert totals[0] == 1740


def test_the_horizon_ends_the_episode():
    env = ClusterSchedulingEnv(horizon_s=600.0, offered_load=3)
    _, info = env.reset(seed=1)
    ended, total_ms = False, 0
    while not ended:
        _, _, ended, truncated, info = env.step(first_that_fits(env, info["action_mask"]))
        total_ms += info["job_ms"]
    assert info["now_s"] == 600.0 and not truncated
    jobs, (_, finish_s) = env.dynamics.instance(0), env.dynamics.schedule(0)
    inside = np.minimum(np.nan_to_num(finish_s, nan=np.inf), 600) - np.minimum(jobs.submit_s, 600)
    assert total_ms / 1000 == pytest.approx(inside.sum(), abs=1e-6)
