"""What a step does, held against the simulator called anew and against known optima."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtgym.envs.communication_tuning.dynamics import TuningDynamics
from dtgym.envs.communication_tuning.env import (
    CommunicationTuningEnv,
    CommunicationTuningVectorEnv,
)
from dtgym.envs.communication_tuning.generator import FACTORS, SCENARIOS
from dtgym.envs.communication_tuning.types import FEATURES, MEASUREMENTS
from dtgym.simulator import communication_workloads
from dtgym.simulator.communication import Network, iteration_time_s
from dtgym.simulator.communication_mechanisms import MECHANISMS
from dtgym.simulator.errors import InvalidInput

CREDITS = 9
SMALL = {"partition_grid_bytes": [2e6, 4e6, 8e6], "credit_grid_bytes": [8e6, 16e6, 32e6]}


def make(seed: int = 0, **arguments) -> CommunicationTuningEnv:
    env = CommunicationTuningEnv(**arguments)
    env.reset(seed=seed)
    return env


def network_of(env: CommunicationTuningEnv, step: int) -> Network:
    """The network of a step by the simulator's own constructors, from the drift's factors."""
    named = dict(zip(FACTORS, env.dynamics.factors[0, step], strict=True))
    bandwidth = named.pop("bandwidth_bytes_per_s")
    overhead = named.pop("message_overhead_s")
    named["bandwidth_delay_bytes"] = max(4e6, bandwidth * named["completion_delay_s"])
    workers = env.dynamics.parameters.workers
    if env.dynamics.parameters.architecture == "ps":
        return Network.parameter_server(
            bandwidth, workers, workers, message_overhead_s=overhead, **named
        )
    return Network.ring_allreduce(bandwidth, workers, launch_overhead_s=overhead, **named)


def true_time_s(env, step, partition_bytes, credit_bytes) -> float:
    parameters = env.dynamics.parameters
    layers = communication_workloads.load(
        parameters.model, batch_size=parameters.batch_size, granularity="tensor"
    )
    return iteration_time_s(
        layers,
        network_of(env, step),
        partition_bytes,
        credit_bytes,
        architecture=parameters.architecture,
    ).item()


@pytest.mark.parametrize(
    ("action", "seconds"), [(0, 14.0), (1, 9.0), (2, 10.5), (3, 15.0), (5, 13.0)]
)
def test_toy_gives_the_contrived_examples_times_exactly(action, seconds):
    env = gym.make("dtgym/CommunicationTuning-Toy-v0")
    env.reset(seed=0)
    _, reward, _, _, info = env.step(action)
    assert info["iteration_time_s"] == seconds
    assert reward == pytest.approx(np.log(13 / seconds), abs=1e-15)


def test_toy_gives_thirteen_for_whole_tensors_in_fifo_order():
    env = gym.make("dtgym/CommunicationTuning-Toy-v0", mechanism="fifo")
    env.reset(seed=0)
    for action in range(4):
        assert env.step(action)[4]["iteration_time_s"] == 13.0


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**63),
    architecture=st.sampled_from(["allreduce", "ps"]),
    model=st.sampled_from(["vgg16", "resnet50", "alexnet"]),
    scenario=st.sampled_from([name for name in SCENARIOS if name != "toy"]),
    iterations=st.sampled_from([1, 4, 7, 10, 25]),
    workers=st.integers(2, 64),
    actions=st.lists(st.integers(0, 80), min_size=1, max_size=12),
)
def test_a_step_is_what_the_rules_in_words_say(
    seed, architecture, model, scenario, iterations, workers, actions
):
    """Keeps its own books and calls the simulator anew for every part of every step."""
    env = make(
        seed,
        model=model,
        architecture=architecture,
        scenario=scenario,
        iterations_per_step=iterations,
        workers=workers,
        horizon=3 * len(actions),
    )
    in_force = chosen = 4e6
    waits = 0
    # Each action is held for three steps, so that a time may be known from the step before.
    for step, action in enumerate(np.repeat(actions, 3), start=1):
        _, reward, _, _, info = env.step(int(action))
        before = chosen
        chosen = env.dynamics.partition_grid[action // CREDITS]
        credit = env.dynamics.credit_grid[action % CREDITS]
        lost_s = 0.0
        if architecture == "ps":
            in_force = chosen
            lost_s = 30.0 if chosen != before else 0.0
        else:
            waits = 10 if chosen != before else waits
            waits = 0 if chosen == in_force else waits
        old = min(waits, iterations)
        waits -= old
        duration_s = lost_s
        if old:
            duration_s += old * true_time_s(env, step, in_force, credit)
        if waits == 0:
            in_force = chosen
        if old < iterations:
            duration_s += (iterations - old) * true_time_s(env, step, in_force, credit)
        default_s = true_time_s(env, step, 4e6, 16e6)
        assert info["step_time_s"] == pytest.approx(duration_s, rel=1e-12)
        assert info["default_iteration_time_s"] == pytest.approx(default_s, rel=1e-12)
        assert reward == pytest.approx(-np.log(duration_s / (iterations * default_s)), abs=1e-11)
        assert info["effective_partition_bytes"] == in_force
        assert (info["partition_bytes"], info["credit_bytes"]) == (chosen, credit)


@pytest.mark.parametrize("iterations", [1, 4, 10, 25])
def test_allreduce_applies_a_new_partition_ten_iterations_later(iterations):
    env = make(5, scenario="steady", iterations_per_step=iterations, horizon=30, **SMALL, workers=4)
    old, new = (true_time_s(env, 0, size, 16e6) for size in (4e6, 8e6))
    assert abs(old - new) > 1e-6 * old
    mixed = 0.0
    for step in range(12):
        waits = min(max(10 - step * iterations, 0), iterations)
        mixed = (waits * old + (iterations - waits) * new) / iterations
        info = env.step(7)[4]
        assert info["iteration_time_s"] == pytest.approx(mixed, rel=1e-12)
        assert info["effective_partition_bytes"] == (8e6 if (step + 1) * iterations >= 10 else 4e6)
        assert info["vector_reward"][1] == 0
    assert mixed == pytest.approx(new, rel=1e-12)


def test_allreduce_forgets_a_change_that_is_taken_back_in_time():
    env = make(5, scenario="steady", iterations_per_step=4, horizon=9, **SMALL)
    old = true_time_s(env, 0, 4e6, 16e6)
    played = [env.step(action) for action in (7, 4, 4, 4, 4)]
    assert [step[4]["iteration_time_s"] for step in played] == pytest.approx([old] * 5, rel=1e-12)
    pending = [feature.name for feature in FEATURES].index("pending")
    assert [float(step[0][pending]) for step in played] == pytest.approx([0.6, 0, 0, 0, 0])


def test_parameter_server_pays_a_restart_for_partition_and_nothing_for_credit():
    env = make(2, architecture="ps", scenario="steady", restart_s=7.0, **SMALL)
    for action, lost_s in ((3, 0.0), (5, 0.0), (8, 7.0), (7, 0.0), (7, 0.0), (1, 7.0)):
        _, reward, _, _, info = env.step(action)
        time_s = info["iteration_time_s"]
        assert info["step_time_s"] == pytest.approx(10 * time_s + lost_s)
        assert reward == pytest.approx(
            -np.log(info["step_time_s"] / (10 * info["default_iteration_time_s"]))
        )
        speed, reconfiguration, footprint = info["vector_reward"]
        assert speed + reconfiguration == reward
        assert (reconfiguration < 0) == (lost_s > 0)
        assert -1 <= footprint < 0


def test_the_default_configuration_earns_nothing():
    for architecture in ("allreduce", "ps"):
        env = make(1, architecture=architecture, horizon=10)
        default = env.view().state.default_action
        assert sum(abs(env.step(default)[1]) for _ in range(10)) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("mechanism", sorted(MECHANISMS))
def test_a_baseline_mechanism_runs_whatever_the_action(mechanism):
    env = make(4, mechanism=mechanism, scenario="bandwidth-markov", horizon=6)
    layers = communication_workloads.load("vgg16", batch_size=32, granularity="tensor")
    in_force = 4e6
    for step, action in enumerate((0, 80, 30, 30, 41, 5), start=1):
        info = env.step(action)[4]
        expected = MECHANISMS[mechanism].iteration_time_s(
            layers,
            network_of(env, step),
            in_force,
            info["credit_bytes"],
            architecture="allreduce",
        )
        assert info["iteration_time_s"] == pytest.approx(expected.item(), rel=1e-12)
        in_force = info["partition_bytes"]


def test_delta_moves_and_never_leaves_the_grid():
    env = make(0, action_mode="delta", scenario="steady", horizon=60, **SMALL)
    p = c = 1
    random = np.random.default_rng(0)
    forbidden = 0
    for _ in range(60):
        mask = env.action_masks()
        expected = [0 <= p + dp < 3 and 0 <= c + dc < 3 for dp in (-1, 0, 1) for dc in (-1, 0, 1)]
        assert mask.tolist() == expected
        assert mask[4]
        action = int(random.integers(9))
        info = env.step(action)[4]
        if mask[action]:
            p, c = p + action // 3 - 1, c + action % 3 - 1
        else:
            forbidden += 1
        assert info["partition_bytes"] == SMALL["partition_grid_bytes"][p]
        assert info["credit_bytes"] == SMALL["credit_grid_bytes"][c]
        assert info["invalid_actions"] == forbidden
    assert forbidden > 5


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_the_drift_does_not_know_the_actions(scenario):
    one, other = make(8, scenario=scenario), make(8, scenario=scenario)
    random = np.random.default_rng(0)
    for _ in range(20):
        a, b = one.step(int(random.integers(81))), other.step(40)
        assert a[4]["default_iteration_time_s"] == b[4]["default_iteration_time_s"]
    assert np.array_equal(one.dynamics.factors, other.dynamics.factors)


def test_the_observation_is_a_function_of_the_past():
    """Two futures that part after step 12 look the same until step 13 has been lived."""
    env, twin = make(6, horizon=40), make(6, horizon=40)
    # Another value for every factor: one that is 0 would hide a look into the future.
    twin.dynamics.factors[0, 13:] = 1.5 * env.dynamics.factors[0, 13:] + 1e-3
    twin.dynamics.changed[0, 13] = True
    twin.dynamics.noise[0, 13:] *= -1
    random = np.random.default_rng(2)
    for step in range(1, 21):
        action = int(random.integers(81))
        one, other = env.step(action), twin.step(action)
        assert np.array_equal(one[0], other[0]) == (step < 13)
        states = [vars_of(e.view().state) for e in (env, twin)]
        assert (states[0] == states[1]) == (step < 13)


def vars_of(state) -> dict:
    return {
        name: getattr(state, name)
        for name in type(state).__slots__
        if isinstance(getattr(state, name), float | int | str)
    }


def test_the_public_state_holds_no_truth():
    """All that it says of time is noisy or known beforehand: no figure equals a true one."""
    env = make(6, measurement_noise=0.2)
    env.step(10)
    state = env.view().state
    truth = set(env.dynamics.factors.ravel()) | set(env.dynamics.history.ravel()[::4])
    measured = [getattr(state, name) for name in type(state).__slots__ if name.startswith("last_")]
    assert len(measured) == len(MEASUREMENTS)
    assert not truth & {figure for figure in measured if figure != 0}


def test_without_noise_the_measured_time_is_the_true_one():
    env = make(1, measurement_noise=0.0)
    for action in (0, 17, 80):
        info = env.step(action)[4]
        assert info["measured_iteration_time_s"] == info["iteration_time_s"]
        assert env.view().state.last_iteration_time_s == info["iteration_time_s"]


def test_noise_is_that_of_a_mean_over_the_steps_iterations():
    dynamics = CommunicationTuningVectorEnv(
        400, measurement_noise=0.1, iterations_per_step=4, scenario="steady", horizon=20
    )
    dynamics.reset(seed=0)
    deviations = []
    for _ in range(20):
        infos = dynamics.step(np.full(400, 40))[4]
        final = infos.get("final_info", infos)
        deviations.append(np.log(final["measured_iteration_time_s"] / final["iteration_time_s"]))
    assert np.std(deviations) == pytest.approx(0.05, rel=0.03)
    assert np.mean(deviations) == pytest.approx(0, abs=0.002)


def test_averages_are_those_of_the_measurements():
    env = make(9, horizon=15)
    state = env.view().state
    measured = [state.last_iteration_time_s]
    average = measured[0]
    for step in range(15):
        observation, _, terminated, truncated, info = env.step(step * 5)
        measured.append(info["measured_iteration_time_s"])
        average = 0.7 * average + 0.3 * measured[-1]
        state = env.view().state
        assert state.mean_iteration_time_s == pytest.approx(np.mean(measured))
        assert state.mean_throughput_samples_per_s == pytest.approx(8 * 32 / np.mean(measured))
        named = dict(zip([f.name for f in FEATURES], observation, strict=True))
        compute_s = float((state.layers.forward_s + state.layers.backward_s).sum())
        assert named["log_time"] == pytest.approx(np.log(measured[-1] / compute_s), abs=1e-6)
        assert named["log_time_average"] == pytest.approx(np.log(average / compute_s), abs=1e-6)
        assert named["time_left"] == pytest.approx((15 - state.step) / 15)
        assert (terminated, truncated) == (step == 14, False)
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)


def test_measured_throughput_tells_congestion():
    """With a window far beyond the bandwidth-delay product, pieces move slower in proportion."""
    env = make(0, scenario="steady", measurement_noise=0.0)
    calm = env.step(8)[0]
    env.dynamics.factors[0, 2:, FACTORS.index("congestion")] = 0.3
    env.dynamics.changed[0, 2] = True
    congested = env.step(8)[0]
    throughput = [f.name for f in FEATURES].index("log_throughput")
    assert calm[throughput] - congested[throughput] > 0.3
    time = [f.name for f in FEATURES].index("log_time")
    assert congested[time] > calm[time]


def test_models_are_drawn_by_episode():
    env = CommunicationTuningVectorEnv(200, model=["alexnet", "resnet50"], horizon=1)
    env.reset(seed=0)
    drawn = {env.view(i).state.model for i in range(200)}
    share = np.mean(env.dynamics.model)
    assert drawn == {"alexnet", "resnet50"} and 0.4 < share < 0.6
    before = env.dynamics.model.copy()
    env.step(np.zeros(200, int))
    assert not np.array_equal(before, env.dynamics.model)
    for i in range(5):
        state = env.view(i).state
        assert (
            state.layers.gradient_bytes.sum()
            == env.dynamics.profiles.total_bytes[env.dynamics.model[i]]
        )


def test_every_model_and_scenario_stays_within_the_observation_space():
    for scenario in SCENARIOS:
        env = CommunicationTuningVectorEnv(
            18, model="random", scenario=scenario, architecture="ps", horizon=8
        )
        env.reset(seed=1)
        random = np.random.default_rng(0)
        for _ in range(16):
            observations, reward, *_ = env.step(random.integers(81, size=18))
            assert env.observation_space.contains(observations)
            assert np.isfinite(reward).all() and (np.abs(reward) < 8).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "vgg"}, "model must be one of"),
        ({"model": ["vgg16", "lenet"]}, "model must be one of"),
        ({"model": []}, "at least one workload"),
        ({"architecture": "ring"}, "architecture must be one of"),
        ({"scenario": "storm"}, "scenario must be one of"),
        ({"mechanism": "horovod"}, "mechanism must be one of"),
        ({"action_mode": "continuous"}, "action_mode must be one of"),
        ({"horizon": 0}, "horizon must be a whole number"),
        ({"horizon": 2.5}, "horizon must be a whole number"),
        ({"iterations_per_step": True}, "iterations_per_step must be a whole number"),
        ({"batch_size": -1}, "batch_size must be a whole number"),
        ({"workers": 1}, "workers must be at least 2"),
        ({"partition_grid_bytes": [4e6, 2e6]}, "partition_grid_bytes must hold ascending"),
        ({"partition_grid_bytes": []}, "partition_grid_bytes"),
        ({"credit_grid_bytes": [0, 1e6]}, "credit_grid_bytes must be above 0 bytes"),
        ({"credit_grid_bytes": [float("nan")]}, "credit_grid_bytes must be finite"),
        ({"restart_s": -1}, "restart_s must be at least 0 s"),
        ({"measurement_noise": float("inf")}, "measurement_noise must be finite"),
        ({"measurement_noise": 5}, "measurement_noise must be at most 1"),
        ({"scenario": "trace"}, "trace_file"),
        ({"trace_file": "trace.csv"}, "trace_file"),
        ({"modle": "vgg16"}, "unknown argument modle"),
    ],
)
def test_refuses_bad_arguments_in_one_line(arguments, message):
    for environment in (CommunicationTuningEnv, CommunicationTuningVectorEnv):
        with pytest.raises(InvalidInput, match=message) as error:
            environment(**arguments)
        assert "\n" not in str(error.value)


def test_refuses_an_empty_batch_and_an_action_outside_of_the_grid():
    with pytest.raises(InvalidInput, match="num_envs"):
        CommunicationTuningVectorEnv(0)
    env = make()
    for action in (-1, 81, 1.5):
        with pytest.raises(InvalidInput, match="action"):
            env.step(action)


def test_dynamics_of_different_sizes_agree_bit_for_bit():
    """Sizes around the kernel's slices and beyond a vector register."""
    from dtgym.envs.communication_tuning.types import Parameters
    from dtgym.envs.seeding import episode_keys, stream_keys

    keys = episode_keys(stream_keys(range(131)), 0)
    actions = np.random.default_rng(0).integers(81, size=(6, 131))
    whole = TuningDynamics(131, Parameters(model="random"))
    whole.begin(np.arange(131), keys)
    legal = np.ones(131, bool)
    runs = [(whole.advance(step, legal), whole.observe(np.arange(131))) for step in actions]
    for i in (0, 1, 64, 130):
        alone = TuningDynamics(1, Parameters(model="random"))
        alone.begin(np.array([0]), keys[i : i + 1])
        for step, (transition, observations) in zip(actions, runs, strict=True):
            own = alone.advance(step[i : i + 1], legal[:1])
            assert own.reward.tobytes() == transition.reward[i : i + 1].tobytes()
            assert alone.observe(np.array([0]))[0].tobytes() == observations[i].tobytes()
