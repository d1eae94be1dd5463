"""Tables of jobs: what arrives when, what it asks for and how long it runs.

A `JobTable` is a frozen set of equally long arrays, one per column of `COLUMNS`. The four required
columns are enough for every exclusive-GPU scheduler; the optional ones describe CPU, memory, I/O
and network demand, and are None where a trace does not know them. Columns that a synthesiser
filled are listed in `synthetic`, so that no table or figure takes them for measured data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtgym.simulator.errors import InvalidInput

if TYPE_CHECKING:
    from dtgym.simulator.hardware import Cluster

#: Latest time a table may hold, in seconds (about 300,000 years): far below the int64 range in ms.
LATEST_S = 1e13


@dataclass(frozen=True, slots=True)
class Column:
    """Description of one column of a job table.

    Attributes:
        name: Field name of `JobTable`; the unit is part of it.
        kind: `float`, `int` or `text`.
        unit: Unit, empty for a pure number or text.
        minimum: Smallest legal value of a number.
        meaning: One line for documentation.
    """

    name: str
    kind: str
    unit: str
    minimum: float
    meaning: str


COLUMNS: tuple[Column, ...] = (
    Column("submit_s", "float", "s", -LATEST_S, "time of submission"),
    Column("duration_s", "float", "s", 0, "exclusive run time at the requested allocation"),
    Column("num_gpus", "int", "", 0, "GPUs of the gang, all at once"),
    Column("user", "text", "", 0, "who submitted"),
    Column("vc", "text", "", 0, "virtual cluster, queue or organisation"),
    Column("model", "text", "", 0, "model class, lower case, such as resnet50"),
    Column("gpu_type", "text", "", 0, "GPU types the job insists on, a|b is either; empty is any"),
    Column("gpu_fraction", "float", "", 0, "share of each GPU that is asked for, at most 1"),
    Column("cpu_cores", "float", "cores", 0, "CPU cores, whole job"),
    Column("memory_bytes", "float", "bytes", 0, "host memory, whole job"),
    Column("io_bytes_per_s", "float", "bytes/s", 0, "storage read rate, whole job"),
    Column("network_bytes_per_s", "float", "bytes/s", 0, "network rate, whole job"),
    Column("min_gpus", "int", "", 0, "smallest gang the job can run on"),
    Column("max_gpus", "int", "", 0, "largest gang the job can use"),
    Column("iterations", "float", "", 0, "training iterations of the whole job"),
    Column("io_stage_s", "float", "s", 0, "storage stage of one iteration, as requested"),
    Column("cpu_stage_s", "float", "s", 0, "CPU stage of one iteration, as requested"),
    Column("gpu_stage_s", "float", "s", 0, "GPU stage of one iteration, as requested"),
    Column("network_stage_s", "float", "s", 0, "network stage of one iteration, as requested"),
    Column("weight", "float", "", 0, "importance in weighted objectives"),
    Column("estimate_s", "float", "s", 0, "the user's estimate of the duration"),
)
_BY_NAME = {column.name: column for column in COLUMNS}
REQUIRED = ("submit_s", "duration_s", "num_gpus")


@dataclass(frozen=True, slots=True)
class CapacityReport:
    """What a cluster of a given size means for a table.

    Attributes:
        total_gpus: GPUs of the cluster.
        offered_load: Asked GPU time / (GPUs x time from first to last submission); above 1 the
            queue cannot drain while jobs keep coming. NaN where all jobs come at once.
        impossible: Row numbers (0-based) of jobs that can never run, ascending.
        reasons: One line per impossible job, naming row and column.
        warnings: What a user should be told, one line each; empty if all is well.
    """

    total_gpus: int
    offered_load: float
    impossible: NDArray[np.int64]
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobTable:
    """Jobs as columns; build it with `from_columns`, which validates.

    All arrays have shape (jobs,) and are read-only. Units and meanings are in `COLUMNS`. Optional
    columns are None where nothing is known.

    Attributes:
        job_id: Unique ids, int64 or text. Ties in schedules go to the smaller id.
        submit_s: Submission, seconds from the table's own origin.
        duration_s: Exclusive run time at the requested allocation, seconds.
        num_gpus: Gang size.
        line: Line number of each job in its file, for messages; the 1-based row without a file.
        epoch_unix_s: Unix time of `submit_s` = 0 where the trace has a wall clock, else None.
        notes: What a user should know of how the table came about, one line each.
        synthetic: Names of columns filled by a synthesiser or generator.
        source: Where the table comes from: a file name or a generator's name and seed.
    """

    job_id: NDArray[Any]
    submit_s: NDArray[np.float64]
    duration_s: NDArray[np.float64]
    num_gpus: NDArray[np.int64]
    line: NDArray[np.int64]
    user: NDArray[np.str_] | None = None
    vc: NDArray[np.str_] | None = None
    model: NDArray[np.str_] | None = None
    gpu_type: NDArray[np.str_] | None = None
    gpu_fraction: NDArray[np.float64] | None = None
    cpu_cores: NDArray[np.float64] | None = None
    memory_bytes: NDArray[np.float64] | None = None
    io_bytes_per_s: NDArray[np.float64] | None = None
    network_bytes_per_s: NDArray[np.float64] | None = None
    min_gpus: NDArray[np.int64] | None = None
    max_gpus: NDArray[np.int64] | None = None
    iterations: NDArray[np.float64] | None = None
    io_stage_s: NDArray[np.float64] | None = None
    cpu_stage_s: NDArray[np.float64] | None = None
    gpu_stage_s: NDArray[np.float64] | None = None
    network_stage_s: NDArray[np.float64] | None = None
    weight: NDArray[np.float64] | None = None
    estimate_s: NDArray[np.float64] | None = None
    synthetic: frozenset[str] = frozenset()
    source: str = "jobs"
    epoch_unix_s: float | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def from_columns(
        cls,
        *,
        job_id: ArrayLike | None = None,
        submit_s: ArrayLike,
        duration_s: ArrayLike,
        num_gpus: ArrayLike,
        synthetic: Sequence[str] | frozenset[str] = (),
        source: str = "jobs",
        line: ArrayLike | None = None,
        epoch_unix_s: float | None = None,
        notes: Sequence[str] = (),
        **optional: ArrayLike | None,
    ) -> JobTable:
        """Builds a table after checking every column.

        Args:
            job_id: Unique ids, whole numbers or text; None numbers the rows from 0.
            submit_s: Submissions, seconds.
            duration_s: Run times, seconds.
            num_gpus: Gang sizes, whole numbers; 0 is a job without GPUs.
            synthetic: Names of the columns that are not measured.
            source: Name used in messages, such as the file's.
            line: Line number of each row in its file; None counts rows from 1.
            epoch_unix_s: Unix time of `submit_s` = 0, if known.
            notes: Lines for the user.
            **optional: Any other column of `COLUMNS`; None leaves it out.

        Raises:
            InvalidInput: An unknown, empty or unequally long column, a value that is not a finite
                number or lies below the column's minimum, or a duplicate id; the message names
                source, row and column.

        Examples:
            >>> jobs = JobTable.from_columns(submit_s=[0, 5], duration_s=[60, 90], num_gpus=[1, 8])
            >>> len(jobs), jobs.submit_ms.tolist(), jobs.gpu_seconds.tolist()
            (2, [0, 5000], [60.0, 720.0])
            >>> JobTable.from_columns(submit_s=[0], duration_s=[-1], num_gpus=[1])
            Traceback (most recent call last):
            dtgym.simulator.errors.InvalidInput: jobs: row 1, column duration_s: ...
        """
        given: dict[str, ArrayLike | None] = {
            "submit_s": submit_s,
            "duration_s": duration_s,
            "num_gpus": num_gpus,
            **optional,
        }
        for name in given:
            if name not in _BY_NAME:
                raise InvalidInput(
                    f"{source}: unknown column {name}; known are job_id, {', '.join(_BY_NAME)}"
                )
        count = _length(source, "submit_s", submit_s)
        if count == 0:
            raise InvalidInput(f"{source}: holds no jobs")
        lines = np.arange(1, count + 1) if line is None else np.array(line, dtype=np.int64)
        columns: dict[str, Any] = {}
        for name, value in given.items():
            if value is None:
                continue
            if _length(source, name, value) != count:
                raise InvalidInput(
                    f"{source}: column {name} has {_length(source, name, value)} rows, "
                    f"submit_s has {count}"
                )
            columns[name] = _checked(source, _BY_NAME[name], value, lines)
        ids = _ids(source, np.arange(count) if job_id is None else job_id, count, lines)
        table = cls(
            job_id=ids,
            line=_frozen(lines),
            synthetic=frozenset(synthetic),
            source=source,
            epoch_unix_s=epoch_unix_s,
            notes=tuple(notes),
            **columns,
        )
        table._check_together()
        return table

    def __len__(self) -> int:
        return len(self.submit_s)

    @property
    def submit_ms(self) -> NDArray[np.int64]:
        """Submissions in whole milliseconds, rounded half to even: (jobs,) int64."""
        return milliseconds(self.submit_s)

    @property
    def duration_ms(self) -> NDArray[np.int64]:
        """Run times in whole milliseconds, rounded half to even: (jobs,) int64."""
        return milliseconds(self.duration_s)

    @property
    def gpu_seconds(self) -> NDArray[np.float64]:
        """Asked GPU time, run time x GPUs x share of each: (jobs,) float64, GPU-seconds."""
        asked = self.duration_s * self.num_gpus
        return asked if self.gpu_fraction is None else asked * self.gpu_fraction

    @property
    def id_rank(self) -> NDArray[np.int64]:
        """Rank of each job's id among the ids, 0 is the smallest: the last tie-break, (jobs,)."""
        rank = np.empty(len(self), dtype=np.int64)
        rank[np.argsort(self.job_id, kind="stable")] = np.arange(len(self))
        return rank

    @property
    def submit_order(self) -> NDArray[np.int64]:
        """Rows sorted by submission in milliseconds, then id: (jobs,) int64."""
        return np.lexsort((self.id_rank, self.submit_ms)).astype(np.int64)

    def column(self, name: str, default: float | str) -> NDArray[Any]:
        """Returns a column, or an array of `default` where the table does not have it."""
        value = getattr(self, _known(name))
        if value is not None:
            return value
        kind = _BY_NAME[name].kind
        dtype = {"int": np.dtype(np.int64), "float": np.dtype(np.float64)}.get(kind)
        return np.full(len(self), default, dtype=dtype)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Returns the columns that the table has, by name, in the order of `COLUMNS`."""
        present = {name: getattr(self, name) for name in _BY_NAME}
        return {name: value for name, value in present.items() if value is not None}

    def with_columns(
        self, values: Mapping[str, ArrayLike], *, synthetic: bool, source: str | None = None
    ) -> JobTable:
        """Returns a table with columns added or replaced, marked synthetic or not."""
        marks = set(self.synthetic)
        marks = marks | set(values) if synthetic else marks - set(values)
        given: dict[str, Any] = {**self.columns(), **values}
        return JobTable.from_columns(
            job_id=self.job_id,
            line=self.line,
            synthetic=frozenset(marks),
            source=self.source if source is None else source,
            epoch_unix_s=self.epoch_unix_s,
            notes=self.notes,
            **given,
        )

    def select(self, rows: ArrayLike) -> JobTable:
        """Returns the jobs of a boolean mask or of an index array, in that order.

        Raises:
            InvalidInput: No job is left.
        """
        index = np.asarray(rows)
        picked = {
            item.name: _frozen(value[index])
            for item in fields(self)
            if isinstance(value := getattr(self, item.name), np.ndarray)
        }
        if len(picked["submit_s"]) == 0:
            raise InvalidInput(f"{self.source}: no job is left after the selection")
        return replace(self, **picked)

    def window(self, start_s: float, end_s: float) -> JobTable:
        """Returns the jobs submitted in [start_s, end_s), with times counted from `start_s`."""
        kept = self.select((self.submit_s >= start_s) & (self.submit_s < end_s))
        epoch = None if self.epoch_unix_s is None else self.epoch_unix_s + start_s
        return replace(kept, submit_s=_frozen(kept.submit_s - start_s), epoch_unix_s=epoch)

    def at_load(self, offered_load: float, total_gpus: int) -> JobTable:
        """Returns the table with submissions stretched about the first to an offered load.

        Raises:
            InvalidInput: A load that is not above 0, or all jobs come at once.
        """
        if not offered_load > 0:
            raise InvalidInput(f"offered_load must be above 0, got {offered_load}")
        now = self.against(total_gpus).offered_load
        if not np.isfinite(now) or now == 0:
            raise InvalidInput(f"{self.source}: all jobs come at once, so no load can be set")
        first = self.submit_s.min()
        stretched = first + (self.submit_s - first) * (now / offered_load)
        return replace(self, submit_s=_frozen(stretched))

    def against(self, cluster: Cluster | int) -> CapacityReport:
        """Compares the table with a cluster.

        Args:
            cluster: A cluster, or just its number of GPUs.

        Examples:
            >>> jobs = JobTable.from_columns(submit_s=[0, 10], duration_s=[5, 5], num_gpus=[1, 9])
            >>> report = jobs.against(8)
            >>> report.offered_load, report.impossible.tolist(), report.reasons[0]
            (0.625, [1], 'jobs: row 2, column num_gpus: asks for 9 GPUs, the cluster has 8')
        """
        total_gpus = cluster if isinstance(cluster, int) else cluster.gpus
        limit = np.full(len(self), total_gpus)
        least = self.num_gpus if self.min_gpus is None else self.min_gpus
        why: dict[int, str] = {}
        if not isinstance(cluster, int):
            if self.gpu_type is not None:
                limit = _typed_limit(self.gpu_type, cluster)
            for name in ("cpu_cores", "memory_bytes"):
                column = getattr(self, name)
                have = sum(group.count * getattr(group.node, name) for group in cluster.groups)
                if column is None:
                    continue
                for row in np.flatnonzero(column > have).tolist():
                    why[row] = (
                        f"{self.source}: {_place(row, self.line)}, column {name}: asks for "
                        f"{column[row]:g} {_BY_NAME[name].unit}, the cluster has {have:g}"
                    )
        for row in np.flatnonzero(least > limit):
            why[int(row)] = self._too_big(int(row), int(least[row]), int(limit[row]))
        impossible = np.array(sorted(why), dtype=np.int64)
        reasons = tuple(why[row] for row in impossible)
        span_s = float(self.submit_s.max() - self.submit_s.min())
        asked = float(self.gpu_seconds.sum())
        load = asked / (total_gpus * span_s) if span_s > 0 and total_gpus else float("nan")
        warnings: list[str] = []
        if load > 1:
            warnings.append(
                f"{self.source}: offered load is {load:.3g} of {total_gpus} GPUs: above 1 the "
                "queue grows for as long as jobs arrive"
            )
        if len(impossible):
            warnings.append(
                f"{self.source}: {len(impossible)} of {len(self)} jobs can never run, "
                f"first {reasons[0].removeprefix(self.source + ': ')}"
            )
        return CapacityReport(total_gpus, load, impossible, reasons, tuple(warnings))

    def _too_big(self, row: int, asked: int, limit: int) -> str:
        kind = "" if self.gpu_type is None else str(self.gpu_type[row])
        return (
            f"{self.source}: {_place(row, self.line)}, column num_gpus: asks for {asked} "
            f"{kind + ' ' if kind else ''}GPUs, the cluster has {limit}"
        )

    def _check_together(self) -> None:
        def refuse(bad: NDArray[np.bool_], column: str, why: str) -> None:
            if bad.any():
                row = int(np.argmax(bad))
                raise InvalidInput(
                    f"{self.source}: {_place(row, self.line)}, column {column}: {why}, "
                    f"got {getattr(self, column)[row]}"
                )

        if self.gpu_fraction is not None:
            refuse(self.gpu_fraction > 1, "gpu_fraction", "must be at most 1")
        if self.min_gpus is not None:
            refuse(self.min_gpus > self.num_gpus, "min_gpus", "must be at most num_gpus")
        if self.max_gpus is not None:
            refuse(self.max_gpus < self.num_gpus, "max_gpus", "must be at least num_gpus")


def milliseconds(seconds: ArrayLike) -> NDArray[np.int64]:
    """Turns seconds into whole milliseconds, rounded half to even.

    Examples:
        >>> milliseconds([0.0004, 1.25, 3.0]).tolist()
        [0, 1250, 3000]
    """
    return np.rint(np.asarray(seconds, dtype=np.float64) * 1000.0).astype(np.int64)


def _place(row: int, lines: NDArray[np.int64]) -> str:
    """Names a row, and its line of the file where that differs."""
    line = int(lines[row])
    return f"row {row + 1}" if line == row + 1 else f"row {row + 1} (line {line})"


def _typed_limit(gpu_type: NDArray[np.str_], cluster: Cluster) -> NDArray[np.int64]:
    """GPUs of the types that each job accepts: (jobs,)."""
    have: dict[str, int] = {}
    for group in cluster.groups:
        kind = group.node.accelerator.name
        have[kind] = have.get(kind, 0) + group.count * group.node.gpus
    kinds, which = np.unique(gpu_type, return_inverse=True)
    limit = [
        sum(have.get(one, 0) for one in str(kind).split("|")) if kind else cluster.gpus
        for kind in kinds
    ]
    return np.array(limit, dtype=np.int64)[which]


def _known(name: str) -> str:
    if name not in _BY_NAME:
        raise InvalidInput(f"unknown column {name}; known are {', '.join(_BY_NAME)}")
    return name


def _length(source: str, name: str, value: ArrayLike | None) -> int:
    shape = np.shape(value)  # type: ignore[arg-type]
    if len(shape) != 1:
        raise InvalidInput(f"{source}: column {name} must be one row of values, got shape {shape}")
    return shape[0]


def _checked(source: str, column: Column, value: ArrayLike, lines: NDArray[np.int64]) -> Any:
    if column.kind == "text":
        return _frozen(np.asarray(value).astype(np.str_))
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        numbers = _numbers_one_by_one(source, column, np.asarray(value).tolist(), lines)
    unit = f" {column.unit}" if column.unit else ""
    bad = ~np.isfinite(numbers)
    expectation = "must be a finite number" + (f" (in {column.unit})" if column.unit else "")
    if not bad.any():
        top = LATEST_S if column.unit == "s" else float(2**53)
        bad = (numbers < column.minimum) | (numbers > top)
        expectation = f"must lie in [{column.minimum:g}, {top:g}]{unit}"
    if not bad.any() and column.kind == "int":
        bad = numbers != np.rint(numbers)
        expectation = "must be a whole number"
    if bad.any():
        row = int(np.argmax(bad))
        raise InvalidInput(
            f"{source}: {_place(row, lines)}, column {column.name}: {expectation}, "
            f"got {numbers[row]:g}"
        )
    return _frozen(numbers.astype(np.int64) if column.kind == "int" else numbers.copy())


def _numbers_one_by_one(
    source: str, column: Column, values: list[Any], lines: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Converts slowly, to find the row that is not a number."""
    numbers = np.empty(len(values))
    for row, value in enumerate(values):
        try:
            numbers[row] = float(value)
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"{source}: {_place(row, lines)}, column {column.name}: must be a number"
                f"{' (in ' + column.unit + ')' if column.unit else ''}, got {value!r}"
            ) from error
    return numbers


def _ids(source: str, value: ArrayLike, count: int, lines: NDArray[np.int64]) -> NDArray[Any]:
    if _length(source, "job_id", value) != count:
        raise InvalidInput(f"{source}: column job_id must have as many rows as submit_s, {count}")
    ids = np.asarray(value)
    if ids.dtype.kind == "f":
        if not (np.isfinite(ids).all() and (ids == np.rint(ids)).all()):
            raise InvalidInput(f"{source}: column job_id: must be whole numbers or text")
        ids = ids.astype(np.int64)
    ids = ids.astype(np.int64) if ids.dtype.kind in "iu" else ids.astype(np.str_)
    order = np.argsort(ids, kind="stable")
    again = np.flatnonzero(ids[order][1:] == ids[order][:-1])
    if len(again):
        first = again[np.argmin(order[again + 1])]  # the repeat that comes first in the file
        row, earlier = int(order[first + 1]), int(order[first])
        raise InvalidInput(
            f"{source}: {_place(row, lines)}, column job_id: duplicate id {ids[row]}, "
            f"first seen in {_place(earlier, lines)}"
        )
    return _frozen(ids)


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
