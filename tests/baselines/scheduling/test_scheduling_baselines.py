"""Schedulers: Python and compiled forms agree, all finish everything, programs are right."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import dtgym.envs  # noqa: F401
from dtgym.baselines.scheduling import COMPILED, METHODS
from dtgym.baselines.scheduling.gavel import solve_finish_time, solve_max_min
from dtgym.baselines.scheduling.history import estimate_durations_s
from dtgym.baselines.scheduling.pollux import repair
from dtgym.simulator import cluster, hardware, job_synthesis
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.job_speed import SpeedModel
from dtgym.simulator.jobs import JobTable
from dtgym.simulator.outcome import Outcome
from dtgym.simulator.scheduling import Decision, Start

OPTIONS = {
    "gittins": {"samples_gpu_s": (2.0, 5.0, 9.0, 40.0)},
    "las": {"thresholds_gpu_s": (3.0, 17.0)},
    "pollux-like": {"population": 8, "generations": 3},
    "dsfro-style": {"population": 8, "generations": 3},
}
SAME = ("fifo", "fifo-skip", "sjf-oracle", "qssf", "srtf", "srsf", "las", "gittins")


def make(name):
    return METHODS[name](**OPTIONS.get(name, {}))


@st.composite
def tables(draw, most=14):
    count = draw(st.integers(1, most))
    unit = draw(st.sampled_from([1.0, 0.125]))
    whole = st.integers(0, 20)
    return JobTable.from_columns(
        job_id=draw(st.permutations(range(count))),
        submit_s=[unit * draw(whole) for _ in range(count)],
        duration_s=[unit * draw(st.integers(0, 12)) for _ in range(count)],
        num_gpus=[draw(st.sampled_from([0, 1, 1, 2, 4, 6])) for _ in range(count)],
    )


@settings(max_examples=30)
@given(jobs=tables(), name=st.sampled_from(SAME), nodes=st.sampled_from([1, 3]))
def test_a_python_scheduler_equals_the_compiled_one(jobs, name, nodes):
    """Through the slow path, to the millisecond, on a pool of 6 GPUs."""
    machines = cluster.homogeneous(nodes, 6 // nodes)
    options = {
        "las_thresholds_gpu_s": (3.0, 17.0),
        "gittins_samples_gpu_s": (2.0, 5.0, 9.0, 40.0),
        "estimate_s": jobs.duration_s,
    }
    compiled = cluster.simulate(jobs, machines, **COMPILED[name], **options)
    python = cluster.simulate(jobs, machines, make(name), estimate_s=jobs.duration_s)
    for column in ("start_s", "finish_s", "queueing_s", "preemptions"):
        assert np.array_equal(getattr(python, column), getattr(compiled, column)), column
    assert python.decisions > 0 and len(python.decision_s) == python.decisions


@settings(max_examples=12)
@given(jobs=tables(), rule=st.sampled_from(["best_fit", "worst_fit", "first_fit", "spread"]))
def test_placement_rules_agree_on_both_paths(jobs, rule):
    assume((jobs.num_gpus > 0).any())
    jobs = jobs.select(jobs.num_gpus > 0)
    machines = cluster.homogeneous(3, 2)
    compiled = cluster.simulate(jobs, machines, placement=rule, head_of_line="skip")
    python = cluster.simulate(jobs, machines, make("best-fit"), placement=rule)
    assert np.array_equal(python.finish_s, compiled.finish_s)
    assert np.array_equal(python.stretches.place_node, compiled.stretches.place_node)
    assert np.array_equal(python.stretches.place_gpus, compiled.stretches.place_gpus)


def mixed_cluster():
    """2 x 4 V100, 2 x 4 P100 and 1 x 4 T4, in three racks."""
    groups = []
    for rack, (kind, count) in enumerate((("V100-32", 2), ("P100-16", 2), ("T4", 1))):
        group = cluster.homogeneous(count, 4, accelerator=kind).groups[0]
        node = group.node
        groups.append(
            hardware.NodeGroup(
                count,
                hardware.Node(
                    node.name, node.accelerator, 4, 16, 3e11, 3e8, 1e10, rack=f"rack{rack}"
                ),
            )
        )
    return hardware.Cluster("mixed", tuple(groups))


def mixed_jobs(seed, count=24):
    random = np.random.default_rng(seed)
    gpus = random.choice([1, 1, 1, 2, 4, 8], size=count)
    jobs = JobTable.from_columns(
        submit_s=np.sort(random.integers(0, 400, size=count)),
        duration_s=random.integers(1, 600, size=count),
        num_gpus=gpus,
        min_gpus=np.minimum(gpus, 1),
        max_gpus=np.minimum(2 * gpus, 8),
        gpu_type=random.choice(["", "", "", "V100-32", "P100-16|T4"], size=count),
        user=random.choice(["ann", "bob", "eve"], size=count),
    )
    # A gang of 8 fits on no single type T4, but on P100 and V100; keep types where they can run.
    fits = ~((jobs.num_gpus == 8) & (jobs.gpu_type == "P100-16|T4"))
    return job_synthesis.fill(jobs.select(fits), seed=seed)


SPEED = SpeedModel(
    gpu_speed={"P100-16": 0.5, "T4": 0.25}, cross_node_network_scale=1.5, cross_rack_network_scale=2
)


def check_laws(outcome: Outcome, jobs: JobTable) -> None:
    """Everything finishes; nothing is oversold at any time; waiting plus holding is the JCT."""
    assert np.isfinite(outcome.finish_s).all()
    stretches = outcome.stretches
    assert (stretches.held >= 0).all() and ((stretches.busy >= 0) & (stretches.busy <= 1)).all()
    for now in np.unique(stretches.start_s):
        live = (stretches.start_s <= now) & (now < stretches.end_s)
        assert (stretches.held[live].sum(axis=0) <= outcome.capacity * (1 + 1e-12)).all()
    held_s = np.zeros(len(jobs))
    np.add.at(held_s, stretches.job, stretches.end_s - stretches.start_s)
    assert np.allclose(outcome.queueing_s + held_s, outcome.jct_s, atol=1e-6)
    assert (outcome.start_s >= jobs.submit_s - 1e-9).all()


@pytest.mark.parametrize("name", [n for n in METHODS if n not in ("sjf-strict",)])
def test_every_method_finishes_all_jobs_on_a_mixed_cluster(name):
    jobs = mixed_jobs(3, count=16)
    outcome = cluster.simulate(jobs, mixed_cluster(), make(name), placement="best_fit", speed=SPEED)
    check_laws(outcome, jobs)
    assert outcome.policy == name


FREQUENT = {
    **OPTIONS,
    "pollux-like": {"population": 6, "generations": 2, "interval_s": 0.7},
    "gittins": {"samples_gpu_s": (2.0, 5.0, 9.0, 40.0), "resolution_s": 0.1},
    "las": {"thresholds_gpu_s": (1.3, 17.0), "resolution_s": 0.1},
    "themis-like": {"lease_s": 0.7},
    **{name: {"round_s": 0.7} for name in METHODS if name.startswith("gavel")},
}
"""Options with many decisions between events, at instants that float64 seconds do not hit."""


@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=6)
@given(data=st.data())
def test_every_method_runs_to_the_end_on_any_table(name, data):
    """Estimates, nodes, costs of preemption, and times in whole milliseconds of a late clock."""
    count = data.draw(st.integers(1, 9))
    milli = st.integers(0, 9999)
    begin_s = data.draw(st.sampled_from([0.0, 1.1, 1234567.891]))
    jobs = JobTable.from_columns(
        submit_s=[begin_s + data.draw(milli) / 1000 for _ in range(count)],
        duration_s=[data.draw(milli) / 1000 for _ in range(count)],
        num_gpus=[data.draw(st.sampled_from([0, 1, 1, 2, 3, 5])) for _ in range(count)],
        estimate_s=[data.draw(milli) / 1000 for _ in range(count)],
    )
    outcome = cluster.simulate(
        jobs,
        cluster.homogeneous(2, 3),
        METHODS[name](**FREQUENT.get(name, {})),
        placement=data.draw(st.sampled_from(["consolidate", "best_fit", "spread"])),
        preemption_cost_s=data.draw(st.sampled_from([0.0, 0.3])),
    )
    check_laws(outcome, jobs)


def test_pollux_starts_gangs_as_wide_as_the_cluster():
    jobs = JobTable.from_columns(submit_s=[0, 0], duration_s=[90, 90], num_gpus=[64, 64])
    method = METHODS["pollux-like"](population=4, generations=1)
    outcome = cluster.simulate(jobs, cluster.homogeneous(8, 8), method, placement="consolidate")
    assert sorted(outcome.finish_s) == [90, 180]


@pytest.mark.parametrize("name", COMPILED)
def test_every_compiled_scheduler_finishes_all_jobs_on_a_mixed_cluster(name):
    options = {"placement": "best_fit", **COMPILED[name]}
    for seed in range(3):
        jobs = mixed_jobs(seed)
        outcome = cluster.simulate(
            jobs,
            mixed_cluster(),
            speed=SPEED,
            preemption_cost_s=5.0,
            estimate_s=jobs.duration_s,
            **options,
        )
        check_laws(outcome, jobs)


@pytest.mark.parametrize("share", [False, True])
def test_sharing_the_network_slows_where_it_is_oversubscribed(share):
    """Two gangs of 4 that span the same two nodes, each asking for 80 % of the network card."""
    jobs = JobTable.from_columns(
        submit_s=[0, 0], duration_s=[100, 100], num_gpus=[4, 4], network_bytes_per_s=[16e9] * 2,
        gpu_stage_s=[1, 1], network_stage_s=[1, 1], cpu_stage_s=[0, 0], io_stage_s=[0, 0],
    )  # fmt: skip
    machines = cluster.homogeneous(2, 4, network_bytes_per_s=10e9)
    outcome = cluster.simulate(
        jobs, machines, placement="spread", speed=SpeedModel(share_network=share)
    )
    # Reserved: one after the other. Shared: each exchange takes 1.6 times as long.
    wanted = [130.0, 130.0] if share else [100.0, 200.0]
    assert outcome.finish_s.tolist() == wanted


def test_lucid_shares_light_jobs_and_leaves_heavy_ones_alone():
    def finish(gpu_s):
        jobs = JobTable.from_columns(
            submit_s=[0, 0], duration_s=[100, 100], num_gpus=[1, 1],
            cpu_stage_s=[1 - gpu_s] * 2, gpu_stage_s=[gpu_s] * 2,
        )  # fmt: skip
        one = cluster.homogeneous(1, 1, cpu_cores_per_gpu=8)
        return cluster.simulate(jobs, one, "lucid", speed=SpeedModel()).finish_s.tolist()

    assert finish(0.5) == [100.0, 100.0]
    assert finish(1.0) == [100.0, 200.0]


def test_muri_interleaves_complementary_jobs_only():
    def finish(first, second):
        jobs = JobTable.from_columns(
            submit_s=[0, 0], duration_s=[100, 100], num_gpus=[1, 1],
            cpu_stage_s=[first, second], gpu_stage_s=[1 - first, 1 - second],
        )  # fmt: skip
        one = cluster.homogeneous(1, 1, cpu_cores_per_gpu=8)
        return cluster.simulate(jobs, one, "muri", speed=SpeedModel()).finish_s.tolist()

    assert finish(0.5, 0.5) == [100.0, 100.0]
    assert finish(0.0, 0.0) == [100.0, 200.0]


def test_synergy_gives_cpu_to_those_who_gain():
    jobs = JobTable.from_columns(
        submit_s=[0, 0], duration_s=[100, 100], num_gpus=[1, 1], cpu_cores=[3, 3],
        cpu_stage_s=[1.0, 0.0], gpu_stage_s=[0.0, 1.0], model=["loader", "thinker"],
    )  # fmt: skip
    outcome = cluster.simulate(
        jobs, cluster.homogeneous(1, 2, cpu_cores_per_gpu=4), "synergy", speed=SpeedModel()
    )
    assert outcome.finish_s.tolist() == [50.0, 100.0]
    assert outcome.stretches.held[:, 1].tolist() == [6.0, 1.5]


def test_elastic_starts_change_speed_and_hold_what_they_take():
    class Doubles:
        name = "doubles"

        def decide(self, state):
            return Decision(start=[Start(int(job), [0], [4]) for job in state.waiting.job])

    jobs = JobTable.from_columns(
        submit_s=[0], duration_s=[100], num_gpus=[2], max_gpus=[4], gpu_stage_s=[3.0],
        network_stage_s=[1.0],
    )  # fmt: skip
    outcome = cluster.simulate(
        jobs, cluster.homogeneous(1, 4), Doubles(), placement="best_fit", speed=SpeedModel()
    )
    assert outcome.finish_s.tolist() == [62.5]
    assert outcome.stretches.held[0, 0] == 4


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (Decision(start=[Start(0, [0], [9])]), "job 0: 9 GPUs, but the job takes 1 to 1"),
        (Decision(start=[Start(7)]), "job 7 does not wait"),
        (Decision(preempt=[0]), "job 0 does not run"),
        (Decision(start=[Start(0, [3], [1])]), "on nodes 0 to 0"),
        (Decision(start=[Start(0, host=1)]), "the host must run"),
        (Decision(start=[Start(0, cpu=0)]), "Start.cpu must be above 0"),
        (Decision(), "leaves 2 jobs waiting for ever"),
        (Decision(wake_s=-5), "wake_s must lie after now"),
    ],
)
def test_impossible_decisions_are_named(decision, message):
    class Says:
        name = "says"

        def decide(self, state):
            return decision

    jobs = JobTable.from_columns(submit_s=[0, 0], duration_s=[5, 5], num_gpus=[1, 1])
    with pytest.raises(InvalidInput, match=message):
        cluster.simulate(jobs, cluster.homogeneous(1, 8), Says(), placement="best_fit")


def test_only_oracles_see_what_remains():
    class Peeks:
        name = "peeks"

        def decide(self, state):
            return Decision(start=[Start(0)] if state.remaining_s(0) > 0 else [])

    jobs = JobTable.from_columns(submit_s=[0], duration_s=[5], num_gpus=[1])
    with pytest.raises(PermissionError, match="oracle"):
        cluster.simulate(jobs, cluster.homogeneous(1, 8), Peeks())


def sized(elements, size):
    return st.lists(elements, min_size=size, max_size=size)


speeds = st.lists(sized(st.sampled_from([0.0, 0.5, 1.0, 3.0]), 2), min_size=1, max_size=6)


@settings(max_examples=30)
@given(speed=speeds, data=st.data())
def test_the_max_min_program_is_feasible_and_no_random_share_beats_it(speed, data):
    speed = np.array(speed)
    speed[:, 0] = np.maximum(speed[:, 0], 0.25)
    gang = np.array(data.draw(sized(st.sampled_from([1, 2, 4]), len(speed))))
    capacity = np.array([4.0, 2.0])
    shares = solve_max_min(speed, gang, capacity)
    assert (shares.sum(axis=1) <= 1 + 1e-9).all() and (shares >= 0).all()
    assert ((shares * gang[:, None]).sum(axis=0) <= capacity + 1e-9).all()
    best = (speed * shares).sum(axis=1).min()
    random = np.random.default_rng(0)
    for _ in range(50):
        other = random.dirichlet(np.ones(3), size=len(speed))[:, :2]
        other /= max(1.0, ((other * gang[:, None]).sum(axis=0) / capacity).max())
        assert (speed * other).sum(axis=1).min() <= best + 1e-9


@settings(max_examples=60)
@given(data=st.data(), jobs=st.integers(1, 8), gpus=st.integers(1, 12))
def test_one_type_of_gpu_is_filled_as_the_program_fills_it(data, jobs, gpus):
    speed = np.array(data.draw(sized(st.floats(0.01, 50), jobs)))
    gang = np.array(data.draw(sized(st.sampled_from([1, 2, 4]), jobs)))
    shares = solve_max_min(speed[:, None], gang, np.array([float(gpus)]))[:, 0]
    # A second type without any GPU takes the way through the program.
    program = solve_max_min(
        np.column_stack((speed, np.zeros(jobs))), gang, np.array([float(gpus), 0.0])
    )
    assert np.isclose((speed * shares).min(), (speed * program[:, 0]).min(), rtol=1e-6)
    used = (shares * gang).sum()
    assert used <= gpus * (1 + 1e-9)
    assert np.allclose(shares, 1) or np.isclose(used, gpus)


def test_finish_time_fairness_by_hand():
    """Two equal jobs on one GPU, each with half a cluster as its fair share: rho = 1."""
    one = np.ones((2, 1))
    shares = solve_finish_time(
        one, np.array([1, 1]), np.array([1.0]), np.array([10.0, 10.0]), np.zeros(2),
        np.array([20.0, 20.0]),
    )  # fmt: skip
    assert np.allclose(shares, 0.5, atol=1e-3)


@settings(max_examples=60)
@given(data=st.data(), jobs=st.integers(1, 6), nodes=st.integers(1, 4))
def test_repaired_genomes_are_legal(data, jobs, nodes):
    genome = np.array(data.draw(sized(sized(st.integers(0, 9), nodes), jobs)))
    capacity = np.array(data.draw(sized(st.integers(0, 8), nodes)))
    least = np.array(data.draw(sized(st.integers(1, 3), jobs)))
    most = least + data.draw(st.integers(0, 4))
    order = np.array(data.draw(st.permutations(range(jobs))))
    legal = repair(genome, capacity, least, most, order)
    assert (legal >= 0).all() and (legal <= genome).all()
    assert (legal.sum(axis=0) <= capacity).all()
    total = legal.sum(axis=1)
    assert ((total == 0) | ((total >= least) & (total <= most))).all()
    spans = (legal > 0).sum(axis=1) > 1
    assert ((legal > 0)[spans].sum(axis=0) <= 1).all()


@pytest.mark.parametrize("name", [n for n in METHODS if n != "pollux-like"])
def test_every_method_plays_an_episode_of_the_environment(name):
    env = gym.make(
        "dtgym/ClusterScheduling-v0", jobs_per_episode=16, stream_jobs=256, cluster="small",
        multi_resource=True, decisions=("slot", "placement", "levels"),
    )  # fmt: skip
    method = make(name)
    env.reset(seed=0)
    base = env.unwrapped
    method.reset(base.view(oracle=method.oracle))
    for _ in range(5000):
        view = base.view()
        action = method.act(view)
        assert view.action_mask[action]
        *_, terminated, truncated, _info = env.step(action)
        if terminated or truncated:
            break
    assert terminated


@settings(max_examples=25)
@given(jobs=tables(), cut=st.integers(0, 20))
def test_estimates_know_nothing_of_the_future(jobs, cut):
    """Changing what has not finished at a time changes no estimate made until then."""
    before = estimate_durations_s(jobs)
    longer = np.where(
        jobs.submit_s + jobs.duration_s > cut, jobs.duration_s + 1000, jobs.duration_s
    )
    after = estimate_durations_s(jobs.with_columns({"duration_s": longer}, synthetic=False))
    known = jobs.submit_s <= cut
    assert np.array_equal(before[known], after[known])
    assert (before > 0).all()


def random_fleet(random):
    """A few nodes with uneven resources and two GPU types in two racks."""
    groups = []
    for index in range(int(random.integers(1, 5))):
        kind = hardware.accelerator(str(random.choice(["V100-32", "T4"])))
        groups.append(
            hardware.NodeGroup(
                1,
                hardware.Node(
                    f"n{index}", kind, int(random.integers(1, 9)), int(random.integers(4, 33)),
                    float(random.integers(20, 400)) * 1e9, 5e8, 2e10, rack=f"r{index % 2}",
                ),
            )
        )  # fmt: skip
    return hardware.Cluster("fleet", tuple(groups))


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    name=st.sampled_from(sorted(COMPILED)),
    rule=st.sampled_from(
        ["consolidate", "best_fit", "worst_fit", "random_fit", "spread", "pooled"]
    ),
    share=st.booleans(),
    interval=st.sampled_from([0.0, 0.0, 60.0]),
)
def test_compiled_schedulers_keep_the_laws_on_random_fleets(seed, name, rule, share, interval):
    """Everything that can run does, no node or job is oversold, the same seed is the same bytes."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 20))
    jobs = job_synthesis.fill(
        JobTable.from_columns(
            submit_s=random.integers(0, 200, size=count),
            duration_s=random.integers(0, 300, size=count),
            num_gpus=random.choice([0, 1, 1, 2, 4, 8], size=count),
            cpu_cores=random.integers(0, 20, size=count),
            gpu_fraction=random.choice([0.25, 1, 1], size=count),
            user=random.choice(["ann", "bob"], size=count),
        ),
        seed=seed,
    )
    fleet = random_fleet(random)
    speed = SpeedModel(overlap=0.3, gpu_speed={"T4": 0.3}, share_network=share)
    options = {"placement": rule, **COMPILED[name], "estimate_s": jobs.duration_s * 1.1}

    def play():
        return cluster.simulate(
            jobs, fleet, speed=speed, preemption_cost_s=2.0, decision_interval_s=interval,
            impossible="reject", seed=seed % 97, **options,
        )  # fmt: skip

    outcome = play()
    ran = ~np.isnan(outcome.finish_s)
    assert ran.sum() + len(outcome.rejected) == count
    stretches = outcome.stretches
    limit = outcome.capacity.copy()
    if share:
        limit[4] = np.inf
    for now in np.unique(stretches.start_s):
        live = (stretches.start_s <= now) & (now < stretches.end_s)
        assert (stretches.held[live].sum(axis=0) <= limit * (1 + 1e-9)).all()
    held_s = np.zeros(count)
    np.add.at(held_s, stretches.job, stretches.end_s - stretches.start_s)
    assert np.allclose((outcome.queueing_s + held_s)[ran], outcome.jct_s[ran], atol=1e-6)
    again = play()
    assert outcome.finish_s.tobytes() == again.finish_s.tobytes()
