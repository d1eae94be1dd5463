from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toy_runs import small_ppo, spec

from dtgym.experiments import runner, tensorboard
from dtgym.experiments.tensorboard import COMMON_TAGS, RunLog, read_progress


def events(folder: Path) -> EventAccumulator:
    # Without size_guidance the reader drops points silently beyond 10,000 a tag.
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    specs = [spec("Tuned", root), spec("Constant", root), small_ppo(root)]
    return {one.name: runner.run(one) for one in specs}


def test_agent_search_and_heuristic_write_the_same_tags(runs: dict[str, Path]) -> None:
    for name, folder in runs.items():
        tags = set(events(folder).Tags()["scalars"])
        assert set(COMMON_TAGS) | {"test/mean_reward"} <= tags, name


def test_the_x_axis_is_simulator_evaluations_for_all(runs: dict[str, Path]) -> None:
    for name, folder in runs.items():
        points = events(folder).Scalars("search/evaluations")
        assert points, name
        assert all(point.step == point.value for point in points), name
    # The agent's axis ends at its training budget, the search's at what it spent and validated.
    assert events(runs["ppo"]).Scalars("search/evaluations")[-1].step == 2048
    assert events(runs["tuned"]).Scalars("search/evaluations")[-1].step == 50 + 2 * (6 + 8)


def test_progress_holds_what_tensorboard_shows_but_no_wall_times(runs: dict[str, Path]) -> None:
    for folder in runs.values():
        accumulator = events(folder)
        progress = read_progress(folder / "progress.csv")
        assert not [tag for tag in progress if tag.startswith("time/")]
        for tag, points in progress.items():
            shown = accumulator.Scalars(tag)
            assert [point.step for point in shown] == [step for step, _ in points]
            assert [p.value for p in shown] == pytest.approx([v for _, v in points], rel=1e-6)


def test_the_agent_learns_and_its_best_never_falls(runs: dict[str, Path]) -> None:
    progress = read_progress(runs["ppo"] / "progress.csv")
    curve = [value for _, value in progress["eval/mean_reward"]]
    assert curve[-1] == 7.0, "the mean optimum of horizons 6 and 8"
    assert curve[0] < 5
    best = [value for _, value in progress["search/best_objective"]]
    assert best == sorted(best)


def test_hyperparameters_are_written_once_with_the_full_flat_configuration(
    runs: dict[str, Path],
) -> None:
    for folder in runs.values():
        accumulator = events(folder)
        tags = accumulator.PluginTagToContent("hparams")
        assert list(tags) == ["_hparams_/session_start_info"]
        content = tags["_hparams_/session_start_info"]
        for key in (b"budget_evaluations", b"suite_digest", b"seed"):
            assert key in content
    ppo = events(runs["ppo"]).PluginTagToContent("hparams")["_hparams_/session_start_info"]
    assert b"hyperparameters.algorithm.gamma" in ppo


def test_the_layout_is_written_once(tmp_path: Path) -> None:
    tensorboard.write_layout(tmp_path)
    tensorboard.write_layout(tmp_path)
    [file] = (tmp_path / "layout").iterdir()
    tensors = events(file.parent).Tensors("custom_scalars__config__")
    assert len(tensors) == 1
    layout = tensors[0].tensor_proto.string_val[0]
    for tag in COMMON_TAGS:
        assert tag.encode() in layout


def test_a_resumed_log_drops_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        for step in (10, 20, 30):
            log.record(step, {"eval/mean_reward": step / 100})
    with (tmp_path / "progress.csv").open("a") as stream:
        stream.write("40,eval/mean_rew")  # cut by a kill
    with RunLog(tmp_path) as log:
        log.restore(20)
        assert log.latest == {"eval/mean_reward": 0.2}
        log.record(25, {"eval/mean_reward": 0.25})
    steps = [step for step, _ in read_progress(tmp_path / "progress.csv")["eval/mean_reward"]]
    assert steps == [10, 20, 25]
    assert [p.step for p in events(tmp_path).Scalars("eval/mean_reward")] == [10, 20, 25]


def test_a_log_that_begins_again_keeps_nothing(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        with RunLog(tmp_path) as log:
            log.record(5, {"eval/mean_reward": value})
    assert read_progress(tmp_path / "progress.csv") == {"eval/mean_reward": [(5, 2.0)]}
    assert [p.value for p in events(tmp_path).Scalars("eval/mean_reward")] == [2.0]
