"""Engines: carry out many runs, in local worker processes or on a Ray cluster.

Either way a run that fails does not take others with it: its error is reported at the end and the
rest is finished. Results travel through the file system (run folders are written atomically), so
that an engine can be killed at any moment and the sweep resumed.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from dtgym.experiments import runner
from dtgym.experiments.runner import RunSpec
from dtgym.simulator.errors import InvalidInput

ENGINES = ("local", "ray")

ONE_THREAD = {
    name: "1"
    for name in (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMBA_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
    )
}
"""One thread for BLAS, torch and numba in a worker: runs are the unit of parallelism, and sums then
do not depend on the number of cores."""


@dataclass(frozen=True)
class Failure:
    """A run that did not finish.

    Attributes:
        spec: The run.
        message: What went wrong, in one line.
        is_bad_input: Whether a user can mend it (an `InvalidInput`).
        details: The traceback, empty for bad input.
    """

    spec: RunSpec
    message: str
    is_bad_input: bool = False
    details: str = ""


def carry_out(
    specs: Sequence[RunSpec],
    *,
    engine: str = "local",
    workers: int = 1,
    resume: bool = False,
    address: str | None = None,
) -> list[Failure]:
    """Carries out runs and returns those that failed.

    Args:
        specs: The runs; a long one first leaves no worker idle at the end.
        engine: ``local`` (spawned processes) or ``ray``.
        workers: Local worker processes; Ray decides by itself.
        resume: Keep finished runs and go on from checkpoints.
        address: Address of a Ray cluster; None starts one on this machine.

    Raises:
        InvalidInput: Unknown engine, fewer than one worker, or Ray asked for but not installed.
    """
    if engine not in ENGINES:
        raise InvalidInput(f"--engine must be one of {', '.join(ENGINES)}; got {engine!r}")
    if workers < 1:
        raise InvalidInput(f"--workers must be at least 1, got {workers}")
    if engine == "ray":
        return _RayEngine(address).carry_out(specs, resume)
    if address is not None:
        raise InvalidInput("--address belongs to --engine ray")
    with _progress(specs) as told:
        return _LocalEngine(min(workers, len(specs))).carry_out(specs, resume, told)


def attempt(
    spec: RunSpec, resume: bool, report: Callable[[float], None] | None = None
) -> Failure | None:
    """Carries out one run; an error becomes a `Failure`."""
    try:
        runner.run(spec, resume=resume, report=report)
    except InvalidInput as error:
        return Failure(spec, str(error), is_bad_input=True)
    except Exception as error:  # the others must go on; the failure is reported with its traceback
        return Failure(spec, f"{type(error).__name__}: {error}", details=traceback.format_exc())
    return None


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    spec: RunSpec | None = None


class _LocalEngine:
    """Spawned workers that take one run after another.

    The standard pools lose every waiting run when one worker dies (out of memory, say); here only
    the run that the worker had is lost, and a new worker takes the dead one's place.
    """

    def __init__(self, workers: int) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._num_workers = workers
        self._workers: list[_Worker] = []

    def carry_out(
        self, specs: Sequence[RunSpec], resume: bool, told: Callable[[RunSpec, float], None]
    ) -> list[Failure]:
        waiting = list(reversed(specs))
        failures: list[Failure] = []
        try:
            for _ in range(self._num_workers):
                self._give(self._start(), waiting, resume)
            while busy := [worker for worker in self._workers if worker.spec is not None]:
                for pipe in wait([worker.pipe for worker in busy]):
                    worker = next(worker for worker in busy if worker.pipe is pipe)
                    spec = worker.spec
                    assert spec is not None
                    try:
                        message = worker.pipe.recv()
                    except EOFError:
                        failures.append(self._died(worker, spec))
                        told(spec, 1.0)
                        if waiting:
                            self._give(self._start(), waiting, resume)
                        continue
                    if isinstance(message, float):
                        told(spec, message)
                        continue
                    if message is not None:
                        failures.append(message)
                    told(spec, 1.0)
                    self._give(worker, waiting, resume)
        finally:
            self._stop()
        return failures

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs,), daemon=True)
        # A spawned child reads these before it imports NumPy; setting them inside is too late.
        with environment(ONE_THREAD):
            process.start()
        theirs.close()
        worker = _Worker(process, ours)
        self._workers.append(worker)
        return worker

    def _give(self, worker: _Worker, waiting: list[RunSpec], resume: bool) -> None:
        worker.spec = waiting.pop() if waiting else None
        if worker.spec is not None:
            worker.pipe.send((worker.spec, resume))

    def _died(self, worker: _Worker, spec: RunSpec) -> Failure:
        worker.process.join()
        worker.pipe.close()
        self._workers.remove(worker)
        code = worker.process.exitcode
        return Failure(spec, f"the worker process died with exit code {code}")

    def _stop(self) -> None:
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()


def _work(pipe: Connection) -> None:
    """A worker's life: take a run, carry it out, report; end with the parent."""
    # Ctrl-C reaches the whole group; the parent alone decides and then ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        spec, resume = pipe.recv()
        pipe.send(attempt(spec, resume, report=lambda part: pipe.send(float(part))))


def _end_with_parent() -> None:
    """Ends this process when its parent dies: two sweeps must not write one run folder."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


class _RayEngine:
    """Runs as Ray tasks, one core each; the run folders must lie on a file system all share."""

    def __init__(self, address: str | None) -> None:
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise InvalidInput(
                "--engine ray needs Ray, which is not installed: pip install 'dtgym[cluster]'"
            ) from error
        self._address = address

    def carry_out(self, specs: Sequence[RunSpec], resume: bool) -> list[Failure]:
        ray = self._ray
        ray.init(address=self._address, runtime_env={"env_vars": ONE_THREAD}, log_to_driver=False)
        try:
            task = ray.remote(num_cpus=1, max_retries=0)(attempt)
            pending = {task.remote(_with_absolute_paths(spec), resume): spec for spec in specs}
            failures: list[Failure] = []
            with _progress(specs) as told:
                while pending:
                    (finished,), _ = ray.wait(list(pending), num_returns=1)
                    spec = pending.pop(finished)
                    try:
                        failure = ray.get(finished)
                    except ray.exceptions.RayError as error:
                        failure = Failure(spec, f"{type(error).__name__}: {error}")
                    if failure is not None:
                        failures.append(failure)
                    told(spec, 1.0)
        finally:
            ray.shutdown()
        return failures


def _with_absolute_paths(spec: RunSpec) -> RunSpec:
    """The same run for a worker with another working directory; its configuration is the same."""
    is_file = spec.suite.endswith((".yaml", ".yml"))
    suite = str(Path(spec.suite).resolve()) if is_file else spec.suite
    return replace(spec, runs=spec.runs.resolve(), suite=suite)


@contextmanager
def environment(variables: dict[str, str]) -> Generator[None]:
    """Sets environment variables for a while, for processes that begin in it."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


@contextmanager
def _progress(specs: Sequence[RunSpec]) -> Generator[Callable[[RunSpec, float], None]]:
    """A bar for all runs and one for each that is under way; silent when not on a terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        overall = progress.add_task(f"{len(specs)} runs", total=float(len(specs)))
        tasks: dict[int, TaskID] = {}
        parts: dict[int, float] = {}

        def told(spec: RunSpec, part: float) -> None:
            key = id(spec)
            parts[key] = part
            progress.update(overall, completed=sum(parts.values()))
            if key not in tasks:
                tasks[key] = progress.add_task(f"  {spec.name} seed {spec.seed}", total=1.0)
            progress.update(tasks[key], completed=part, visible=part < 1.0)

        yield told
