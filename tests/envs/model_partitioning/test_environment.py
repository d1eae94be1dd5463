"""Model partitioning: known optimum, replay of plans, promises of masks, rewards and timelines."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import dtgym.envs  # noqa: F401  registers the environments' ids
from dtgym.baselines.partitioning import METHODS, enumeration, exhaustive
from dtgym.envs.model_partitioning.dynamics import ConstructionDynamics
from dtgym.envs.model_partitioning.env import ModelPartitioningEnv
from dtgym.envs.model_partitioning.types import Parameters, pool_of_parameters
from dtgym.experiments import episodes
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.partition_timeline import plan_timeline

TOY = "dtgym/ModelPartitioning-Toy-v0"
DEFAULT = "dtgym/ModelPartitioning-v0"
IMPROVE = "dtgym/ModelPartitioning-Improve-v0"


def play_at_random(env: gym.Env, seed: int) -> tuple[float, dict]:
    env.reset(seed=seed)
    random = np.random.default_rng(seed)
    total, ended, info = 0.0, False, {}
    while not ended:
        action = random.choice(np.flatnonzero(env.unwrapped.action_masks()))
        _, reward, terminated, truncated, info = env.step(action)
        total += reward
        ended = terminated or truncated
    return total, info


def test_toy_optimum_is_known_and_reached() -> None:
    """Every plan of the toy by brute force, deeper warm-up included by hand."""
    env = gym.make(TOY).unwrapped
    env.reset(seed=0)
    space = env.view().state.space
    shapes = enumeration.shapes(
        space.problem,
        groups=[enumeration.power_of_two_groups(2, 2)] * 2,
        max_stages=2,
        microbatches=space.microbatch[0].tolist(),
        recompute=space.rules.recompute,
        zero=space.rules.zero,
    )
    optimum = exhaustive.enumerate_all(space.problem, shapes)
    planner = METHODS["hgtrainer"]()
    episode = episodes.play(planner, gym.make(TOY), seed=0)
    best_s = planner.planned.time_s
    assert best_s <= optimum.time_s * (1 + 1e-12)
    # Only a deeper warm-up, which the enumeration does not try, may be faster.
    plain = planner.planned.plan
    if best_s < optimum.time_s * (1 - 1e-12):
        assert any(stage.extra for stage in plain.stages)
    reference_s = env.view().state.reference_time_s
    assert episode.objective == pytest.approx(np.log(reference_s / best_s), rel=1e-12)
    assert {stage.cluster for stage in plain.stages} == {0, 1}, "joining the two pairs pays"


@pytest.mark.parametrize(
    "name", ["megatron-manual", "proportional", "metis", "sailor", "hgtrainer"]
)
def test_plans_replay_to_their_price(name: str) -> None:
    env = gym.make(DEFAULT)
    planner = METHODS[name](**({"max_evaluations": 300} if name == "hgtrainer" else {}))
    for seed in range(3):
        episode = episodes.play(planner, env, seed=seed)
        reference_s = env.unwrapped.view().state.reference_time_s
        assert episode.objective == pytest.approx(
            np.log(reference_s / planner.planned.time_s), rel=1e-9
        )
        replayed = episodes.replay(env, seed, episode.actions)
        assert not replayed.problem
        assert replayed.objective == episode.objective


def test_a_random_agent_always_finishes() -> None:
    """A plan that the evaluator refuses would raise in `reward.evaluated`."""
    dynamics = ConstructionDynamics(
        256, Parameters(family="medium", model=("llama2-70b", "gpt3-13b"), instances=12)
    )
    dynamics.begin(np.arange(256), np.arange(256, dtype=np.uint64) << np.uint64(56))
    random = np.random.default_rng(0)
    over = np.zeros(256, dtype=bool)
    for _ in range(1 + 6 * dynamics.space.rules.max_stages):
        masks = dynamics.action_masks()
        assert masks.any(axis=1).all()
        actions = (random.random(masks.shape) * masks).argmax(axis=1)
        transition = dynamics.advance(actions, np.ones(256, dtype=bool))
        over = transition.terminated
        if over.any():
            done = np.flatnonzero(over)
            assert (transition.infos["iteration_time_s"][done] > 0).all()
            keys = np.arange(len(done), dtype=np.uint64) << np.uint64(50)
            dynamics.begin(done, keys)
    assert len(set(dynamics.builds.instance.tolist())) > 1


def test_unsolvable_draws_are_rejected_and_counted() -> None:
    mixed = Parameters(
        family="medium", model=("llama2-70b", "gpt3-175b"), instances=6, max_stages=4
    )
    pool = pool_of_parameters(mixed)
    assert pool.rejected > 0
    assert pool.space.solvable.all()
    with pytest.raises(InvalidInput, match="have no feasible plan"):
        pool_of_parameters(Parameters(family="small", model="gpt3-175b", instances=4))


def test_an_agent_that_ignores_masks_is_cut_off() -> None:
    env = ModelPartitioningEnv(family="toy", instances=1)
    env.reset(seed=0)
    forbidden = int(np.flatnonzero(~env.action_masks())[0])
    for _step in range(1, 1000):
        observation, reward, terminated, truncated, info = env.step(forbidden)
        if truncated:
            break
    assert truncated and not terminated and reward == 0.0
    assert info["invalid_actions"] == _step
    assert observation in env.observation_space


def test_improvement_telescopes_to_the_speed_up() -> None:
    env = gym.make(IMPROVE)
    for seed in range(3):
        total, info = play_at_random(env, seed)
        state = env.unwrapped.view().state
        assert total == pytest.approx(
            np.log(state.reference_time_s / info["iteration_time_s"]), abs=1e-9
        )
        assert np.isfinite(state.space.time_s([state.plan])).all()


def test_improvement_masks_allow_exactly_feasible_moves() -> None:
    env = gym.make(IMPROVE).unwrapped
    env.reset(seed=4)
    for action in np.flatnonzero(env.action_masks())[:-1]:
        env.reset(seed=4)
        _, reward, terminated, _, info = env.step(int(action))
        assert np.isfinite(reward) and not terminated
        assert info["invalid_actions"] == 0
    env.reset(seed=4)
    assert env.step(env.action_space.n - 1)[2], "the last move stops"


def test_planners_refuse_to_improve() -> None:
    env = gym.make(IMPROVE)
    with pytest.raises(InvalidInput, match="builds plans"):
        episodes.play(METHODS["proportional"](), env, seed=0)


@pytest.mark.parametrize("overlap", ["overlapped", "sender_blocked", "both_ends"])
def test_the_timeline_ends_when_the_iteration_does(overlap: str) -> None:
    pool = pool_of_parameters(
        Parameters(family="bandwidth", model="gpt3-6.7b", instances=4, overlap=overlap)
    )
    for i in range(4):
        space = pool.space.take(i)
        planner = METHODS["hgtrainer"](max_evaluations=300)
        plan = planner.plan(space)
        timeline = plan_timeline(space.problem, space.plans([plan.plan]))
        latest = max(span.end_s for span in timeline.spans)
        slack = 0.0
        if overlap == "both_ends":
            # The copy at the receiving end belongs to the stage, not to a bar of its own.
            slack = max(span.end_s - span.start_s for span in timeline.spans)
        assert latest <= plan.time_s * (1 + 1e-12)
        assert latest + slack >= plan.time_s * (1 - 1e-12)
        work = [span for span in timeline.spans if span.kind == "forward"]
        microbatches = space.problem.global_batch[0] // plan.plan.microbatch
        assert len(work) == microbatches * len(plan.plan.stages)
        assert {"traceEvents", "displayTimeUnit"} == set(timeline.chrome_trace())


def test_vector_reward_has_every_objective() -> None:
    env = gym.make(DEFAULT)
    total, info = play_at_random(env, seed=7)
    throughput, accelerators, memory, precision = info["vector_reward"]
    assert total == throughput
    assert -1 <= accelerators < 0
    assert 0 <= memory < 1
    assert -0.75 <= precision <= 0


def test_an_instance_can_be_fixed_and_a_bandwidth_too() -> None:
    fixed = gym.make("dtgym/ModelPartitioning-Bandwidth-v0", instance=2).unwrapped
    fixed.reset(seed=0)
    assert fixed.view().state.setting.name == "bandwidth-2"
    slow = gym.make("dtgym/ModelPartitioning-Small-v0", wan_gbit_per_s=0.5).unwrapped
    slow.reset(seed=0)
    setting = slow.view().state.setting
    assert setting.wan_bytes_per_s.max() == pytest.approx(0.5e9 / 8)


def test_drift_walks_and_other_families_do_not() -> None:
    drift = pool_of_parameters(Parameters(family="drift", instances=12)).settings
    rates = np.array([setting.wan_bytes_per_s.max() for setting in drift])
    assert len(set(rates.tolist())) > 6
    steps = np.abs(np.diff(np.log(rates)))
    assert steps.max() < 2.5
    again = pool_of_parameters(Parameters(family="drift", instances=12, pool_seed=5)).settings
    assert rates.tolist() == [setting.wan_bytes_per_s.max() for setting in again]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"family": "huge"}, "family must be one of"),
        ({"model": "gpt5"}, "model must be one of"),
        ({"instances": 0}, "instances must be a whole number"),
        ({"instance": 64}, "instance must be below"),
        ({"wan_gbit_per_s": -1.0}, "wan_gbit_per_s must be above 0"),
        ({"wires": ["int2"]}, "int2"),
        ({"sites": "sites.yaml"}, "sites needs one model"),
        ({"colour": 1}, "unknown argument colour"),
    ],
)
def test_bad_arguments_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ModelPartitioningEnv(**arguments)
