"""Every check passes on a sound environment and fails, with its name, on one that is broken."""

from __future__ import annotations

import importlib
import os
import sys
import textwrap

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from dtgym.envs.checks import CHECKS, CheckFailed, check_env
from dtgym.envs.native import NativeEnv, NativeVectorEnv
from dtgym.simulator.errors import InvalidInput

WITHOUT_A_MODULE = ("spawn",)


def check(factory, name, **options):
    skip = tuple(other for other in CHECKS if other != name)
    return check_env(factory, skip=skip, **options)


@pytest.mark.parametrize("dictionary", [False, True])
def test_a_sound_environment_passes(counter_env, counter_vector_env, dictionary):
    made = check_env(
        lambda: counter_env(dictionary=dictionary),
        vector_factory=lambda n: counter_vector_env(n, dictionary=dictionary),
        skip=WITHOUT_A_MODULE,
    )
    assert made == [name for name in CHECKS if name != "spawn"]


def scalar(dynamics_class):
    return lambda: NativeEnv(dynamics_class(1))


def test_gymnasium_finds_an_observation_outside_of_its_space(counter_dynamics):
    class Broken(counter_dynamics):
        def observe(self, which):
            return super().observe(which) + np.float32(1000)

    with pytest.raises(CheckFailed, match=r"^gymnasium: "):
        check(scalar(Broken), "gymnasium")


def test_a_warning_of_gymnasium_counts(counter_dynamics):
    class Broken(counter_dynamics):
        def __init__(self, num_envs):
            super().__init__(num_envs)
            self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    with pytest.raises(CheckFailed, match=r"gymnasium: warns: .*infinity"):
        check(scalar(Broken), "gymnasium")


def test_sb3_finds_an_unsuitable_reward(counter_env):
    class Broken(gym.Wrapper):
        @property
        def unwrapped(self):
            return self

        def step(self, action):
            observation, reward, *rest = self.env.step(action)
            return observation, [reward], *rest

    with pytest.raises(CheckFailed, match=r"^sb3: .*reward"):
        check(lambda: Broken(counter_env()), "sb3")


@pytest.mark.parametrize("what", ["reward", "figure", "observation"])
def test_finite_finds_what_is_not(counter_dynamics, what):
    class Broken(counter_dynamics):
        def advance(self, actions, legal):
            transition = super().advance(actions, legal)
            if what == "reward":
                transition.reward[:] = np.nan
            if what == "figure":
                transition.infos["vector_reward"][:] = np.inf
            return transition

        def observe(self, which):
            observation = super().observe(which)
            return np.full_like(observation, np.nan) if what == "observation" else observation

    with pytest.raises(CheckFailed, match=r"^finite: "):
        check(scalar(Broken), "finite")


def test_finite_asks_for_the_vector_reward(counter_dynamics):
    class Broken(counter_dynamics):
        def advance(self, actions, legal):
            transition = super().advance(actions, legal)
            transition.infos.clear()
            return transition

    with pytest.raises(CheckFailed, match="finite: info lacks vector_reward"):
        check(scalar(Broken), "finite")


def test_masks_finds_an_environment_without_legal_actions(counter_dynamics):
    class Broken(counter_dynamics):
        def action_masks(self):
            return np.zeros((self.num_envs, 3), dtype=np.bool_)

    with pytest.raises(CheckFailed, match="masks: no action is legal"):
        check(scalar(Broken), "masks")


def test_masks_finds_a_missing_method(counter_env):
    class Broken(gym.Env):
        observation_space = spaces.Box(-1, 1, (1,), np.float32)
        action_space = spaces.Discrete(3)

    with pytest.raises(CheckFailed, match="masks: the environment has no method"):
        check(Broken, "masks")


class Mutable(gym.Wrapper):
    """Changes what the wrapped environment says, and passes for the environment itself."""

    @property
    def unwrapped(self):
        return self

    def action_masks(self):
        return self.env.action_masks()


def test_masks_finds_an_info_that_differs(counter_env):
    class Broken(Mutable):
        def action_masks(self):
            return ~self.env.action_masks() | [True, False, False]

    with pytest.raises(CheckFailed, match=r"masks: info\['action_mask'\]"):
        check(lambda: Broken(counter_env()), "masks")


def test_masks_finds_an_observation_that_differs(counter_dynamics):
    class Broken(counter_dynamics):
        def observe(self, which):
            observation = super().observe(which)
            return {**observation, "action_mask": np.zeros_like(observation["action_mask"])}

    with pytest.raises(CheckFailed, match="masks: the observation's action_mask"):
        check(lambda: NativeEnv(Broken(1, dictionary=True)), "masks")


def test_masks_finds_an_allowed_action_that_raises(counter_env):
    class Broken(Mutable):
        def step(self, action):
            if action == 1:
                raise ValueError("not today")
            return self.env.step(action)

    with pytest.raises(CheckFailed, match="masks: action 1 after 0 steps is allowed but raises"):
        check(lambda: Broken(counter_env()), "masks", steps=0)


@pytest.mark.parametrize(("offset", "message"), [(1, "allowed but counted"), (-1, "neither")])
def test_masks_finds_a_wrong_count(counter_env, offset, message):
    class Broken(Mutable):
        def step(self, action):
            legal = self.env.action_masks()[action]
            *result, info = self.env.step(action)
            if legal == (offset == 1):
                info["invalid_actions"] += offset
            return *result, info

    with pytest.raises(CheckFailed, match=f"masks: .*{message}"):
        check(lambda: Broken(counter_env()), "masks", steps=0)


def test_batch_finds_dynamics_that_depend_on_the_size(counter_dynamics):
    class Broken(counter_dynamics):
        def advance(self, actions, legal):
            transition = super().advance(actions, legal)
            transition.reward[:] += self.num_envs
            return transition

    with pytest.raises(CheckFailed, match="batch: reward of environment 0 at step 0 differs"):
        check(scalar(Broken), "batch", vector_factory=lambda n: NativeVectorEnv(Broken(n)))


@pytest.mark.parametrize("key", ["autoreset_mode", "final_obs", "figures"])
def test_batch_finds_a_vector_environment_that_breaks_the_contract(
    counter_env, counter_vector_env, key
):
    def make(num_envs):
        env = counter_vector_env(num_envs)
        original = env.step

        def step(actions):
            *result, infos = original(actions)
            infos.pop("final_obs", None)
            return *result, infos

        if key == "autoreset_mode":
            env.metadata = {}
        elif key == "final_obs":
            env.step = step
        else:
            env.dynamics.infos = dict
        return env

    with pytest.raises(CheckFailed, match=f"batch: .*{key}"):
        check(counter_env, "batch", vector_factory=make)


def test_seeds_finds_foreign_randomness(counter_dynamics):
    class Broken(counter_dynamics):
        def begin(self, which, episode_keys):
            super().begin(which, episode_keys)
            self.noise[which] = os.urandom(1)[0]

    with pytest.raises(CheckFailed, match=r"^seeds: "):
        check(scalar(Broken), "seeds")


def test_pickle_finds_what_cannot_be_pickled_and_what_comes_back_changed(counter_env):
    class Unpicklable(Mutable):
        def __init__(self, env):
            super().__init__(env)
            self.function = lambda: None

    with pytest.raises(CheckFailed, match="pickle: the environment cannot be pickled"):
        check(lambda: Unpicklable(counter_env()), "pickle")

    with pytest.raises(CheckFailed, match="pickle: step 0 of the copy differs"):
        check(lambda: ForgetsWhenPickled(counter_env()), "pickle")


class ForgetsWhenPickled(Mutable):
    def __getstate__(self):
        state = self.__dict__.copy()
        other = NativeEnv(type(self.env.dynamics)(1))
        other.reset(seed=99)
        return {**state, "env": other}


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """A module of a user, with an environment of its own, that a fresh process can import."""
    (tmp_path / "user_environment.py").write_text(
        textwrap.dedent(
            """
            import os
            import gymnasium as gym
            import numpy as np

            class Env(gym.Env):
                observation_space = gym.spaces.Box(0, 1e9, (1,), np.float32)
                action_space = gym.spaces.Discrete(2)

                def __init__(self, offset=0, by_process=False):
                    self.offset = os.getpid() if by_process else offset

                def reset(self, *, seed=None, options=None):
                    super().reset(seed=seed)
                    return np.float32([self.offset]), {"action_mask": self.action_masks()}

                def step(self, action):
                    info = {"action_mask": self.action_masks(), "vector_reward": np.zeros(1)}
                    return np.float32([self.offset]), 0.0, False, False, info

                def action_masks(self):
                    return np.ones(2, dtype=bool)

            def by_process():
                return Env(by_process=True)

            gym.register("user/Env-v0", "user_environment:Env")
            """
        )
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "user_environment:user/Env-v0"
    sys.modules.pop("user_environment", None)
    gym.registry.pop("user/Env-v0", None)


def test_a_users_own_id_passes(user_module):
    assert check_env(user_module, kwargs={"offset": 3}) == list(CHECKS)


def test_spec_finds_arguments_that_are_not_plain_data(user_module):
    with pytest.raises(CheckFailed, match=r"^spec: "):
        check(user_module, "spec", kwargs={"offset": np.float32(1)})


def test_spawn_finds_an_id_that_a_fresh_process_does_not_know(user_module):
    importlib.import_module("user_environment")
    with pytest.raises(CheckFailed, match=r"spawn: a fresh process cannot play it: .*user"):
        check("user/Env-v0", "spawn")


def test_spawn_finds_an_episode_that_depends_on_the_process(user_module):
    user_environment = importlib.import_module("user_environment")

    check(user_environment.Env, "spawn")
    with pytest.raises(CheckFailed, match="spawn: a fresh process lives another episode"):
        check(user_environment.by_process, "spawn")
    with pytest.raises(CheckFailed, match="spawn: the factory cannot be pickled"):
        check(lambda: user_environment.Env(), "spawn")


def test_refuses_to_skip_what_is_no_check(counter_env):
    with pytest.raises(InvalidInput, match="skip must name checks"):
        check_env(counter_env, skip=("no-such-check",))
