"""What holds for every registered environment, whatever its family."""

from __future__ import annotations

import importlib
import json
import pickle
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest

import dtgym.envs
from dtgym.envs import registration
from dtgym.envs.checks import CHECKS, check_env
from dtgym.envs.native import NativeVectorEnv
from dtgym.envs.sb3 import make

SPECS = registration.specs()
IDS = [spec.id for spec in SPECS]
# One fresh process a family: each costs seconds of imports.
SPAWNED = {spec.entry_point: spec.id for spec in reversed(SPECS)}.values()
HEAVY = ("torch", "matplotlib", "pandas", "scipy", "stable_baselines3", "tensorboard", "numba")


@pytest.mark.parametrize("env_id", IDS)
def test_keeps_its_promises(env_id):
    skip = () if env_id in SPAWNED else ("spawn",)
    assert check_env(env_id, num_envs=2, steps=24, skip=skip) == [
        c for c in CHECKS if c not in skip
    ]


@pytest.mark.parametrize("env_id", IDS)
def test_three_ways_to_make_it_agree(env_id):
    plain = gym.make(env_id)
    by_module = gym.make(f"dtgym.envs:{env_id}")
    vector = gym.make_vec(env_id, num_envs=3, vectorization_mode="vector_entry_point")
    assert isinstance(vector.unwrapped, NativeVectorEnv)
    assert plain.observation_space == by_module.observation_space
    assert vector.single_observation_space == plain.observation_space
    assert vector.single_action_space == plain.action_space
    for env in (plain, by_module):
        observation, _ = env.reset(seed=5)
        assert observation in env.observation_space
    batch, _ = vector.reset(seed=[5, 6, 7])
    first = {key: value[0] for key, value in batch.items()} if isinstance(batch, dict) else batch[0]
    assert pickle.dumps(first) == pickle.dumps(observation)


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_its_arguments_are_plain_data(spec):
    assert json.loads(json.dumps(spec.kwargs)) == spec.kwargs
    assert spec.description
    entry = gym.spec(spec.id)
    assert isinstance(entry.entry_point, str) and isinstance(entry.vector_entry_point, str)


@pytest.mark.parametrize("env_id", SPAWNED)
def test_works_under_stable_baselines3(env_id):
    env = make(env_id, num_envs=2, seed=1)
    env.reset()
    random = np.random.default_rng(0)
    for _ in range(30):
        masks = np.stack(env.env_method("action_masks"))
        actions = np.array([random.choice(np.flatnonzero(mask)) for mask in masks])
        _, rewards, dones, infos = env.step(actions)
        assert np.isfinite(rewards).all()
        assert all("episode" in infos[i] for i in np.flatnonzero(dones))


@pytest.mark.parametrize("env_id", SPAWNED)
def test_shows_itself_without_a_display(env_id):
    picture = gym.make(env_id, render_mode="rgb_array")
    picture.reset(seed=0)
    frame = picture.render()
    assert frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3
    assert frame.min() < frame.max()
    text = gym.make(env_id, render_mode="ansi")
    text.reset(seed=0)
    assert text.render().strip()


@pytest.mark.parametrize("env_id", SPAWNED)
def test_its_view_holds_the_instance_only_for_an_oracle(env_id):
    env = gym.make(env_id)
    env.reset(seed=0)
    view = env.unwrapped.view()
    assert view.instance is None and view.action_mask.any()
    assert view.observation in env.observation_space
    assert env.unwrapped.view(oracle=True).instance is not None


def test_registering_again_changes_nothing():
    before = dict(gym.registry)
    registration.register_all()
    importlib.reload(dtgym.envs)
    assert dict(gym.registry) == before


def test_every_family_has_an_id_and_a_toy():
    for family in registration.FAMILIES:
        ids = {spec.id for spec in SPECS if f".{family}." in spec.entry_point}
        assert ids and any("Toy" in env_id for env_id in ids), family


def test_ids_are_unique_and_versioned():
    assert len(set(IDS)) == len(IDS)
    assert all(env_id.startswith("dtgym/") and env_id[-3:-1] == "-v" for env_id in IDS)


def test_import_is_light():
    code = (
        "import sys, time; import gymnasium; start = time.perf_counter(); import dtgym.envs; "
        "duration = time.perf_counter() - start; "
        f"print([m for m in {HEAVY} if m in sys.modules], duration < 0.5)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/"
    ).stdout
    assert printed.strip() == "[] True"
