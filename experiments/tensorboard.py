"""One log for every method: TensorBoard for eyes, ``progress.csv`` for tables.

Agents and searches report the same tags at the same x: the number of simulator evaluations
(environment steps and simulated candidates) spent so far. So a genetic algorithm and a PPO lie in
one chart.

==========================  =======================================================================
tag                         meaning
==========================  =======================================================================
``rollout/ep_rew_mean``     mean return of the last episodes lived while preparing or validating
``eval/mean_reward``        mean return on the validation episodes of the training instances
``search/best_objective``   best value yet of the method's own search, else of ``eval/mean_reward``
``search/evaluations``      simulator evaluations spent
``time/fps``                evaluations per second of wall time (TensorBoard only)
``test/mean_reward``        mean return on the unseen test episodes, once, at the end
==========================  =======================================================================

Agents add SB3's ``train/*``. `progress.csv` is in long form (evaluations, tag, value) and holds no
wall times, so that it has the same bytes every time.
"""

# Message classes are made when the protobuf modules are imported; no checker can see them.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import csv
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.custom_scalar import layout_pb2, metadata
from tensorboard.plugins.hparams import summary_v2 as hparams
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from dtgym.experiments.files import csv_text, flatten, write_atomic

COMMON_TAGS = (
    "rollout/ep_rew_mean",
    "eval/mean_reward",
    "search/best_objective",
    "search/evaluations",
    "time/fps",
)
"""Tags that every method writes."""

WALL_TIME_PREFIX = "time/"
COLUMNS = ("evaluations", "tag", "value")
FLUSH_EVERY_S = 5


class RunLog:
    r"""The log of one run: an event file and ``progress.csv`` in its folder.

    Attributes:
        latest: Latest value of every tag.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with RunLog(Path(folder)) as log:
        ...         log.record(64, {"eval/mean_reward": 0.25, "time/fps": 1000.0})
        ...     (Path(folder) / "progress.csv").read_text()
        'evaluations,tag,value\n64,eval/mean_reward,0.25\n'
    """

    def __init__(self, folder: Path) -> None:
        """Names the folder; files are opened by `restore`, or by the first record."""
        self.latest: dict[str, float] = {}
        self._folder = folder
        self._progress: TextIO | None = None
        self._events: EventFileWriter | None = None

    def restore(self, evaluations: int) -> None:
        """Opens the log of a run that goes on at `evaluations`.

        What an interrupted run logged beyond them is dropped; with 0 that is everything.
        """
        path = self._folder / "progress.csv"
        rows = [row for row in _rows(path) if int(row[0]) <= evaluations] if evaluations else []
        self.latest = {tag: float(value) for _, tag, value in rows}
        write_atomic(path, csv_text(COLUMNS, [dict(zip(COLUMNS, r, strict=True)) for r in rows]))
        self._progress = path.open("a", encoding="utf-8")
        if not evaluations:
            for stale in self._folder.glob("events.*"):
                stale.unlink()
        self._events = EventFileWriter(str(self._folder), flush_secs=FLUSH_EVERY_S)
        if evaluations:
            # TensorBoard then hides what the interrupted run wrote at later steps.
            start = SessionLog(status=SessionLog.START)
            self._events.add_event(
                Event(wall_time=time.time(), step=evaluations + 1, session_log=start)
            )

    def record(self, evaluations: int, metrics: Mapping[str, float]) -> None:
        """Logs `metrics` at `evaluations` simulator evaluations."""
        progress, events = self._open()
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()]
        events.add_event(
            Event(wall_time=time.time(), step=evaluations, summary=Summary(value=values))
        )
        for tag, value in metrics.items():
            self.latest[tag] = float(value)
            if not tag.startswith(WALL_TIME_PREFIX):
                progress.write(f"{evaluations},{tag},{float(value)!r}\n")
        # A run killed now keeps this row: a checkpoint made later relies on it.
        progress.flush()

    def hyperparameters(self, config: Mapping[str, Any], run_name: str) -> None:
        """Writes the full flat configuration for the HParams tab; once a run."""
        plain = {
            key: value if isinstance(value, bool | int | float | str) else str(value)
            for key, value in flatten(config).items()
        }
        message = hparams.hparams_pb(plain, trial_id=run_name)
        # The plug-in has its own class for the same message.
        summary = Summary.FromString(message.SerializeToString())
        self._open()[1].add_event(Event(wall_time=time.time(), step=0, summary=summary))

    def close(self) -> None:
        """Flushes and closes both files."""
        progress, events = self._open()
        progress.close()
        events.close()

    def _open(self) -> tuple[TextIO, EventFileWriter]:
        if self._progress is None or self._events is None:
            self.restore(0)
        assert self._progress is not None and self._events is not None
        return self._progress, self._events

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_layout(root: Path) -> None:
    """Writes the custom-scalars layout once into ``root/layout``: one chart a tag."""
    folder = root / "layout"
    if any(folder.glob("events.*")):
        return
    charts = [
        layout_pb2.Chart(title=tag, multiline=layout_pb2.MultilineChartContent(tag=[f"^{tag}$"]))
        for tag in COMMON_TAGS
    ]
    layout = layout_pb2.Layout(
        category=[layout_pb2.Category(title="all methods, by simulator evaluations", chart=charts)]
    )
    # The plug-in's own helper needs TensorFlow; its message is a string tensor.
    value = Summary.Value(
        tag=metadata.CONFIG_SUMMARY_TAG,
        metadata=metadata.create_summary_metadata(),
        tensor=TensorProto(
            dtype="DT_STRING",
            string_val=[layout.SerializeToString()],
            tensor_shape=TensorShapeProto(),
        ),
    )
    writer = EventFileWriter(str(folder))
    writer.add_event(Event(wall_time=time.time(), step=0, summary=Summary(value=[value])))
    writer.close()


def read_progress(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Reads ``progress.csv``: for each tag its points (evaluations, value) in order."""
    series: dict[str, list[tuple[int, float]]] = {}
    for evaluations, tag, value in _rows(path):
        series.setdefault(tag, []).append((int(evaluations), float(value)))
    return series


def _rows(path: Path) -> list[list[str]]:
    """Complete rows of a progress file, without its header; a line cut by a kill is left out."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    return list(csv.reader(whole.splitlines()))[1:]
