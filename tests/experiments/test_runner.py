from __future__ import annotations

import json
from pathlib import Path

import pytest
from toy_runs import SUITE, compared_bytes, small_ppo, spec

from dtgym.experiments import runner, solutions, suites
from dtgym.experiments.tensorboard import read_progress
from dtgym.simulator.errors import InvalidInput


def result_of(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def test_a_run_leaves_its_folder_where_design_says(tmp_path: Path) -> None:
    one = spec("Repeat", tmp_path, seed=3)
    folder = runner.run(one)
    env, method, config, seed = folder.relative_to(tmp_path).parts
    assert (env, method, seed) == ("toy-Repeat-v0", "repeat", "seed3")
    assert len(config) == 8
    names = {path.name.partition(".out.")[0] for path in folder.iterdir()}
    assert names == {
        "config.json", "events", "progress.csv", "provenance.json", "result.json",
        "solutions.jsonl", "timing.json",
    }  # fmt: skip
    assert json.loads((folder / "config.json").read_text()) == {**one.config, "seed": 3}


def test_known_optimum_counts_and_vector_reward(tmp_path: Path) -> None:
    episodes = result_of(runner.run(spec("Repeat", tmp_path, episodes=3)))["episodes"]
    assert len(episodes) == 6
    for episode in episodes:
        horizon = int(episode["instance"].removeprefix("horizon-"))
        assert episode["objective"] == horizon == episode["steps"] == episode["evaluations"]
        assert episode["vector_objective"] == [horizon, -horizon]


def test_an_oracle_sees_the_instance_once_and_its_search_is_counted(tmp_path: Path) -> None:
    result = result_of(runner.run(spec("Oracle", tmp_path)))
    assert result["oracle"]
    for episode in result["episodes"]:
        assert episode["objective"] == episode["steps"]
        assert episode["evaluations"] == episode["steps"] + 1


def test_a_methods_overrides_reach_environment_and_record(tmp_path: Path) -> None:
    folder = runner.run(spec("Bonus", tmp_path))
    assert result_of(folder)["episodes"][0]["objective"] == 1.5 * 6
    _, record = next(solutions.read(folder / "solutions.jsonl"))
    assert record.env_kwargs == {"num_actions": 4, "horizon": 6, "bonus": 0.5}


def test_equal_run_seeds_meet_equal_episodes_and_different_ones_none(tmp_path: Path) -> None:
    def episodes(method: str, seed: int) -> list[tuple[str, int]]:
        run = runner.run(spec(method, tmp_path, seed=seed, episodes=2))
        return [(e["instance"], e["seed"]) for e in result_of(run)["episodes"]]

    assert episodes("Repeat", 1) == episodes("Oracle", 1)
    assert not set(episodes("Repeat", 0)) & set(episodes("Repeat", 1))
    suite = suites.load(SUITE)
    trained = {seed for instance in suite.train for seed in instance.seeds}
    assert not trained & {seed for _, seed in episodes("Repeat", 0)}


def test_preparation_is_counted_and_logged_at_its_evaluations(tmp_path: Path) -> None:
    folder = runner.run(spec("Tuned", tmp_path, options={"rounds": 4}))
    assert result_of(folder)["preparation_evaluations"] == 40
    progress = read_progress(folder / "progress.csv")
    assert progress["search/best_objective"] == [(10, 0.0), (20, 1.0), (30, 2.0), (40, 3.0)]
    # After the search the validation episodes (two of 6, two of 8 steps) extend the same axis.
    assert [step for step, _ in progress["eval/mean_reward"]] == [46, 52, 60, 68]
    assert all(step == value for step, value in progress["search/evaluations"])


def test_equal_seeds_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        runner.run(spec("Tuned", tmp_path / name, seed=1))
        runner.run(small_ppo(tmp_path / name, budget=512))
    assert compared_bytes(tmp_path / "one") == compared_bytes(tmp_path / "two")


def test_resume_keeps_a_finished_run_and_a_plain_call_begins_again(tmp_path: Path) -> None:
    one = spec("Constant", tmp_path)
    folder = runner.run(one)
    before = (folder / "timing.json").read_bytes()
    runner.run(one, resume=True)
    assert (folder / "timing.json").read_bytes() == before
    (folder / "stray").touch()
    runner.run(one)
    assert not (folder / "stray").exists()
    assert (folder / "timing.json").read_bytes() != before


def test_the_report_grows_to_one(tmp_path: Path) -> None:
    parts: list[float] = []
    runner.run(small_ppo(tmp_path, budget=1024, episodes=2), report=parts.append)
    assert parts == sorted(parts)
    assert parts[0] == 0 and parts[-1] == 1
    assert 0.9 in parts, "prepared, nothing tested yet"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"method": "Forbidden"},
            "method forbidden chose action . at step 0, which",
        ),
        ({"method": "nothing"}, "--method must be one of ppo, .* got 'nothing'"),
        ({"method": "Repeat", "options": {"speed": 1}}, "method toy_environment:Repeat: .*speed"),
        ({"method": "Missing"}, "--method toy_environment:Missing: .*no attribute"),
        ({"method": "Repeat", "episodes": 41}, "holds 40 seeds, run seed 0 with 41 episodes"),
        ({"method": "Repeat", "label": "My Run"}, "label of method .* must match"),
        ({"method": "Repeat", "env_id": "CartPole-v1"}, "--env: suite toy is one of"),
        ({"method": "Repeat", "suite": "", "env_id": "No/Such-v0"}, "No/Such-v0"),
        ({"method": "ppo"}, "method ppo must be trained: give a budget"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        runner.run(spec(changes.pop("method"), tmp_path, **changes))
