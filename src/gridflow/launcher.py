"""A job's whole life: described, checked, planned, recorded, submitted."""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gridflow import settings
from gridflow.errors import JobError, PlatformError
from gridflow.job import Job, merge_tables
from gridflow.platforms.base import PLATFORMS, Platform, load_platform
from gridflow.run import Run
from gridflow.state import RunState
from gridflow.store import create_run


def launch(
    program: str | os.PathLike[str] | Job | Callable[..., Any],
    *,
    workers: int | None = None,
    ps: int | None = None,
    chief: bool = False,
    evaluator: bool = False,
    data: int | None = None,
    tensorboard: bool = False,
    on: str = "local",
    gpus: float | None = None,
    gpu_memory_mb: int | None = None,
    args: Sequence[Any] | Mapping[str, Any] = (),
    max_restarts: int | None = None,
    detach: bool = False,
    job: Mapping[str, Any] | None = None,
    **platform_options: Any,
) -> Run:
    """Run a program (a path, a Job, or a function) on a platform and return at once.

    A function is called in every chief, worker and evaluator with `args`, positional or by name; `Run.result()`
    returns what it returned in the first task. `job` holds further keys of a job file's `[job]` table. The run ends
    with this process unless `detach` is set.
    """
    described = describe(
        program,
        workers=workers,
        ps=ps,
        chief=chief,
        evaluator=evaluator,
        data=data,
        tensorboard=tensorboard,
        gpus=gpus,
        gpu_memory_mb=gpu_memory_mb,
        args=args,
        max_restarts=max_restarts,
        job=job,
    )
    return submit(described, on, _options(program, on, platform_options), attached=not detach)


def describe(
    program: str | os.PathLike[str] | Job | Callable[..., Any],
    *,
    workers: int | None = None,
    ps: int | None = None,
    chief: bool = False,
    evaluator: bool = False,
    data: int | None = None,
    tensorboard: bool = False,
    gpus: float | None = None,
    gpu_memory_mb: int | None = None,
    args: Sequence[Any] | Mapping[str, Any] = (),
    max_restarts: int | None = None,
    job: Mapping[str, Any] | None = None,
) -> Job:
    """Return the job that the keywords of `launch` describe."""
    per_task = {"gpus": gpus, "gpu_memory_mb": gpu_memory_mb}
    groups = group_tables(workers, ps, chief, evaluator, data, tensorboard, per_task)
    return _describe(program, args, merge_tables(job or {}, {"max_restarts": max_restarts, **groups}))


def submit(job: Job, on: str, options: Mapping[str, Any], *, attached: bool) -> Run:
    """Submit a job to the platform of a name."""
    return submit_to(load_platform(on, options), job, attached=attached)


def submit_to(platform: Platform, job: Job, *, attached: bool) -> Run:
    """Submit a job to a platform and keep a record of the run."""
    job.check_files()
    platform.check_program(job)
    plan = platform.plan(job)
    folder = create_run(settings.home(os.environ), job, platform.name, platform.recorded_options, now=time.time())
    try:
        platform.submit(plan, folder, attached=attached)
    except OSError as error:
        folder.append_event("run", state=RunState.FAILED, reason=f"it could not be submitted: {error}")
        raise PlatformError(f"run {folder.run} could not be submitted: {error}") from error
    return Run(folder, platform)


def group_tables(
    workers: int | None,
    ps: int | None,
    chief: bool,
    evaluator: bool,
    data: int | None,
    tensorboard: bool,
    per_training_task: Mapping[str, Any],
) -> dict[str, Any]:
    """Turn counts, as flags and keywords give them, into the group tables of a job file."""
    counts = {
        "chief": 1 if chief else None,
        "worker": workers,
        "ps": ps,
        "evaluator": 1 if evaluator else None,
        "data": data,
        "tensorboard": 1 if tensorboard else None,
    }
    tables: dict[str, Any] = {name: {"count": count} for name, count in counts.items() if count is not None}
    wanted = {key: value for key, value in per_training_task.items() if value is not None}
    if wanted and not tables.keys() & {"chief", "worker"}:
        tables["worker"] = {}
    for name in tables.keys() & {"chief", "worker"}:
        tables[name] |= wanted
    return tables


def _options(program: object, on: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the platform's options: those given, on top of those of a job file."""
    if not isinstance(program, (str, os.PathLike)) or not os.fspath(program).endswith(".toml"):
        return given
    return settings.Settings.from_file(Path(program), tuple(PLATFORMS)).options(on, **given)


def _describe(program: str | os.PathLike[str] | Job | Callable[..., Any], args: Any, table: dict[str, Any]) -> Job:
    if isinstance(program, Job):
        beside = [*table, *(["args"] if args else [])]
        if beside:
            raise JobError(f"{', '.join(beside)} beside a Job", hint="put it into the Job")
        return program
    if isinstance(args, str):
        raise JobError(f"args = {args!r} is one string", hint="give a list: one entry per argument")
    if callable(program):
        positional, named = ((), dict(args)) if isinstance(args, Mapping) else (tuple(args), {})
        name = getattr(program, "__qualname__", type(program).__qualname__).replace("<lambda>", "function")
        call = _pickle_call(program, positional, named)
        return Job.from_table({"folder": os.getcwd(), **table, "function": name}, call)
    if isinstance(args, Mapping):
        raise JobError(f"args = {args!r} for a program", hint="give a list of strings; names are for functions")
    if args:
        table["args"] = list(map(str, args))
    path = os.fspath(program)
    if path.endswith(".toml"):
        return Job.from_file(Path(path), table)
    return Job.from_table({"folder": os.getcwd(), **table, "program": path})


def _pickle_call(function: Callable[..., Any], positional: tuple[Any, ...], named: dict[str, Any]) -> bytes:
    """Pickle a call together with the path on which its modules are found."""
    import cloudpickle

    try:
        call = cloudpickle.dumps((function, positional, named))
    except Exception as error:
        raise JobError(
            f"{function!r} or its arguments cannot be pickled: {error}",
            hint="open files, locks and sessions inside the function",
        ) from error
    return pickle.dumps({"path": [os.path.abspath(entry) for entry in sys.path], "call": call})
