"""Our own CSV: the columns of a `JobTable` under their own names, exact in both directions."""

from __future__ import annotations

import csv
import gzip
import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.jobs import COLUMNS, REQUIRED, JobTable
from dtgym.simulator.trace_formats.reading import Columns, ids_of

MAGIC = "# dtgym jobs v1"
_KIND = {column.name: column.kind for column in COLUMNS}
_UNIT = {column.name: column.unit for column in COLUMNS}
_MINIMUM = {column.name: column.minimum for column in COLUMNS}


def read_native(path: Path, text: str) -> JobTable:
    """Reads our CSV: an optional first comment line, a header of column names, one job a line.

    Submissions keep their values: the table's own origin is part of it.
    """
    first = text.split("\n", 1)[0]
    settings: dict[str, str] = {}
    if first.startswith("#"):
        for part in first.removeprefix(MAGIC).split(";"):
            key, _, value = part.strip().partition("=")
            settings[key] = value
    table = Columns.parse(path, text, skip=1 if first.startswith("#") else 0)
    table.require(REQUIRED)
    for name in table.values:
        if name != "job_id" and name not in _KIND:
            raise InvalidInput(
                f"{path}: row 0 (line {int(table.line[0]) - 1}), column {name}: is unknown; known "
                f"are job_id, {', '.join(_KIND)}"
            )
    columns: dict[str, Any] = {}
    for name in table.values:
        if name == "job_id":
            continue
        if _KIND[name] == "text":
            columns[name] = table.text(name)
        else:
            columns[name] = table.number(name, _UNIT[name], minimum=_MINIMUM[name])
    ids = ids_of(table.text("job_id")) if "job_id" in table.values else None
    epoch = settings.get("epoch_unix_s", "")
    return JobTable.from_columns(
        job_id=ids,
        line=table.line,
        source=str(path),
        synthetic=tuple(name for name in settings.get("synthetic", "").split(",") if name),
        epoch_unix_s=float(epoch) if epoch else None,
        **columns,
    )


def write_native(jobs: JobTable, path: Path) -> None:
    """Writes our CSV, gzip-compressed if the name ends in .gz; equal tables give equal bytes."""
    columns: dict[str, list[Any]] = {"job_id": jobs.job_id.tolist()}
    columns |= {name: value.tolist() for name, value in jobs.columns().items()}
    texts = [
        [repr(value) if isinstance(value, float) else value for value in column]
        for column in columns.values()
    ]
    out = io.StringIO(newline="")
    epoch = "" if jobs.epoch_unix_s is None else repr(float(jobs.epoch_unix_s))
    out.write(f"{MAGIC}; synthetic={','.join(sorted(jobs.synthetic))}; epoch_unix_s={epoch}\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*texts, strict=True))
    raw = out.getvalue().encode("utf-8")
    if path.suffix == ".gz":
        raw = gzip.compress(raw, mtime=0)
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def same(one: JobTable, other: JobTable) -> bool:
    """Whether two tables hold the same ids and columns, exactly."""
    a, b = one.columns(), other.columns()
    return (
        a.keys() == b.keys()
        and one.synthetic == other.synthetic
        and one.epoch_unix_s == other.epoch_unix_s
        and np.array_equal(one.job_id, other.job_id)
        and all(np.array_equal(a[name], b[name]) for name in a)
    )
