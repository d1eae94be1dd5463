"""Stable-Baselines3 algorithms as methods: they train in `prepare` and act greedily afterwards."""

from __future__ import annotations

import hashlib
import inspect
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import LinearSchedule, safe_mean, set_random_seed
from torch import nn

from dtgym.agents import POLICY, checkpoints, settings
from dtgym.agents.concatenated import training_env
from dtgym.agents.slot_policy import SlotPolicy
from dtgym.baselines.method import BaseMethod, Budget, View
from dtgym.simulator.errors import InvalidInput

CLASSES: dict[str, type[BaseAlgorithm]] = {
    "ppo": PPO,
    "maskable_ppo": MaskablePPO,
    "dqn": DQN,
    "a2c": A2C,
}
ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}


class SB3Method(BaseMethod):
    """An SB3 algorithm that trains on a suite's training instances and then acts greedily.

    Training is on the CPU with one thread and bit-identical for equal seeds; an interrupted one
    goes on from its last checkpoint to the same result. The budget is spent in whole rollouts, the
    last of which may overshoot it by less than one rollout, as is usual in Stable-Baselines3. While
    acting, the best action among the legal ones is taken, whether or not the algorithm was trained
    with masks.
    """

    def __init__(
        self,
        algorithm: str,
        env_id: str,
        *,
        hyperparameters: Mapping[str, Any] | None = None,
        checkpoint: str | None = None,
    ) -> None:
        """Makes an untrained agent, or loads a trained one.

        Args:
            algorithm: ``ppo``, ``maskable_ppo``, ``dqn`` or ``a2c``.
            env_id: Environment whose block of hyper-parameters is used.
            hyperparameters: What differs from them, see `dtgym.agents.settings.Settings`.
            checkpoint: Path of a ``policy.zip``; the agent then does not train in `prepare`.

        Raises:
            InvalidInput: Unknown hyper-parameter, or a checkpoint that cannot be loaded.
        """
        super().__init__(name=algorithm)
        self.settings = settings.load(algorithm, env_id, hyperparameters or {})
        self.hyperparameters: dict[str, Any] = self.settings.model_dump()
        self._class = CLASSES[algorithm]
        self._check_arguments()
        self._model: BaseAlgorithm | None = None
        self._source = "the trained agent"
        self._is_trained = checkpoint is not None
        if checkpoint is not None:
            self._model = self._load(Path(checkpoint))
            self._source = f"checkpoint {checkpoint}"
            digest = hashlib.sha256(Path(checkpoint).read_bytes()).hexdigest()
            self.hyperparameters = {"checkpoint_sha256": digest}

    def prepare(self, suite: Any, *, seed: int, budget: Budget) -> None:
        """Trains for ``budget.evaluations`` environment steps, or goes on with that.

        Raises:
            InvalidInput: No budget, and no checkpoint to act from either.
        """
        if self._is_trained:
            return
        if budget.evaluations is None:
            raise InvalidInput(
                f"method {self.name} must be trained: give a budget of environment steps "
                "(--total-steps, or budget in a table), or a trained --checkpoint"
            )
        # One thread: sums of floats are then made in one order, so that runs are bit-identical.
        torch.set_num_threads(1)
        folder = budget.folder / "checkpoints" if budget.folder else None
        interrupted = checkpoints.latest(folder) if folder else None
        if interrupted is None:
            self._model = self._new_model(suite, seed)
        else:
            self._model = checkpoints.restore(interrupted)
            budget.restore(self._model.num_timesteps)
        model = self._model
        callback = _Training(self, budget, folder)
        if model.num_timesteps < budget.evaluations:
            model.learn(
                budget.evaluations - model.num_timesteps,
                callback=callback,
                log_interval=None,  # type: ignore[arg-type]  # SB3 takes None, its hint does not
                reset_num_timesteps=False,
            )
            callback.finish(model)
        if budget.folder is not None:
            model.save(budget.folder / POLICY)

    def reset(self, view: View) -> None:
        """A new episode.

        Raises:
            InvalidInput: The agent was trained for other observations or actions.
        """
        super().reset(view)
        model = self.model
        actions = int(model.action_space.n)  # type: ignore[attr-defined]
        if len(view.action_mask) != actions:
            raise InvalidInput(
                f"{self._source} knows {actions} actions, the environment has "
                f"{len(view.action_mask)}"
            )
        if not model.observation_space.contains(view.observation):
            raise InvalidInput(
                f"{self._source} was trained on observations {model.observation_space}, "
                "the environment's are others"
            )

    def act(self, view: View) -> int:
        """The legal action that the policy (or the action-value function) prefers most."""
        preferences = self._preferences(view.observation)
        return int(np.where(view.action_mask, preferences, -np.inf).argmax())

    def _preferences(self, observation: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
        policy: Any = self.model.policy
        policy.set_training_mode(False)
        batch, _ = policy.obs_to_tensor(observation)
        with torch.no_grad():
            if isinstance(self._model, DQN):
                values = policy.q_net(batch)
            else:
                values = policy.get_distribution(batch).distribution.logits
        return values[0].numpy()

    @property
    def model(self) -> BaseAlgorithm:
        """The Stable-Baselines3 algorithm.

        Raises:
            InvalidInput: It was neither trained nor loaded yet.
        """
        if self._model is None:
            raise InvalidInput(f"method {self.name} acts only after it was prepared")
        return self._model

    def _new_model(self, suite: Any, seed: int) -> BaseAlgorithm:
        chosen = self.settings
        set_random_seed(seed)
        env = training_env(suite, chosen.num_envs, seed=seed, reward_scale=chosen.reward_scale)
        arguments = dict(chosen.algorithm)
        if chosen.num_minibatches is not None:
            rollout = chosen.num_envs * int(arguments["n_steps"])
            if rollout % chosen.num_minibatches:
                raise InvalidInput(
                    f"num_envs x n_steps = {rollout} must be a multiple of num_minibatches = "
                    f"{chosen.num_minibatches}"
                )
            arguments["batch_size"] = rollout // chosen.num_minibatches
        rate: Any = chosen.learning_rate
        if chosen.learning_rate_decay == "linear":
            rate = LinearSchedule(chosen.learning_rate, 0.0, 1.0)
        is_dict = isinstance(env.observation_space, spaces.Dict)
        policy: Any = "MultiInputPolicy" if is_dict else "MlpPolicy"
        if chosen.network_kind == "slots":
            policy = SlotPolicy
        model = self._class(
            policy=policy,
            env=env,
            learning_rate=rate,
            policy_kwargs={
                "net_arch": list(chosen.network),
                "activation_fn": ACTIVATIONS[chosen.activation],
            },
            # The default window of 100 episodes would hold the last instances of the batch only.
            stats_window_size=max(100, chosen.num_envs),
            device="cpu",
            **arguments,
        )
        model.action_space.seed(seed)
        model.set_logger(Logger(folder=None, output_formats=[]))
        return model

    def _load(self, path: Path) -> BaseAlgorithm:
        if not path.is_file():
            raise InvalidInput(f"--checkpoint: no such file: {path}")
        try:
            return self._class.load(path, device="cpu")
        except (zipfile.BadZipFile, ValueError, KeyError, RuntimeError, AttributeError) as error:
            raise InvalidInput(
                f"--checkpoint {path} is no saved {self.name} agent: {type(error).__name__}"
            ) from error

    def _check_arguments(self) -> None:
        known = set(inspect.signature(self._class.__init__).parameters)
        known -= {"self", "policy", "env", "learning_rate", "batch_size"} - (
            {"batch_size"} if self._class is DQN else set()
        )
        if self.settings.network_kind == "slots" and self._class is not MaskablePPO:
            raise InvalidInput(
                f"hyperparameters/{self.name}.yaml: network_kind slots is for maskable_ppo only"
            )
        for name in self.settings.algorithm:
            if name not in known:
                raise InvalidInput(
                    f"hyperparameters/{self.name}.yaml: algorithm.{name} is no argument of "
                    f"{self._class.__name__} that can be set here"
                )


class _Training(BaseCallback):
    """Counts, logs, validates and checkpoints between rollouts, each at its own even spacing."""

    def __init__(self, method: SB3Method, budget: Budget, folder: Path | None) -> None:
        super().__init__()
        self._method = method
        self._budget = budget
        self._folder = folder
        chosen = method.settings
        total = budget.evaluations or 1
        done = budget.spent_evaluations
        self._logs = _Spacing(total, chosen.logs, done)
        self._validations = _Spacing(total, chosen.validations, done)
        self._checkpoints = _Spacing(total, chosen.checkpoints, done)
        self._last_validation = done if done else -1

    def _on_training_start(self) -> None:
        if self.num_timesteps == 0:
            self._validate()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        # Here the update after the last rollout is done: the one moment that has no loose ends.
        self._count(self.model)
        if self._logs.is_due(self.num_timesteps):
            self._log(self.model)
        if self._validations.is_due(self.num_timesteps):
            self._validate()
        if self._folder is not None and self._checkpoints.is_due(self.num_timesteps):
            checkpoints.save(self.model, self._folder)

    def finish(self, model: BaseAlgorithm) -> None:
        """The last moment, after the last update."""
        self._count(model)
        self._log(model)
        if self._last_validation != model.num_timesteps:
            self._validate()
        if self._folder is not None:
            checkpoints.save(model, self._folder)

    def _count(self, model: BaseAlgorithm) -> None:
        self._budget.spend(model.num_timesteps - self._budget.spent_evaluations)

    def _log(self, model: BaseAlgorithm) -> None:
        metrics = {
            name: float(value)
            for name, value in model.logger.name_to_value.items()
            if name.startswith("train/")
        }
        model.logger.dump()
        if model.ep_info_buffer:
            for tag, key in (("rollout/ep_rew_mean", "r"), ("rollout/ep_len_mean", "l")):
                metrics[tag] = float(safe_mean([episode[key] for episode in model.ep_info_buffer]))
        self._budget.record(metrics)

    def _validate(self) -> None:
        self._last_validation = self.num_timesteps
        self._budget.validate(self._method)


class _Spacing:
    """Even spacing of `times` moments over `total` steps, from `done` on."""

    def __init__(self, total: int, times: int, done: int) -> None:
        self._total = total
        self._times = times
        self._moment = self._moment_at(done)

    def is_due(self, steps: int) -> bool:
        before, self._moment = self._moment, self._moment_at(steps)
        return self._moment > before

    def _moment_at(self, steps: int) -> int:
        return steps * self._times // self._total
