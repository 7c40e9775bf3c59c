"""The options that describe a job, shared by `run`, `submit` and `render`. Flags win over the job file."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from gridflow.errors import JobError, SettingsError
from gridflow.job import Job
from gridflow.launcher import group_tables
from gridflow.platforms.base import PLATFORMS
from gridflow.settings import Settings


@dataclass(frozen=True)
class Request:
    """What the command line asks for: a job, and where."""

    job: Job
    on: str
    options: dict[str, Any]


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="PROGRAM [-- ARGUMENTS…]"),
    click.option("-m", "module", metavar="MODULE", help="Run a module instead of a program file."),
    click.option("--on", default="local", metavar="PLATFORM", help="Where to run.", show_default=True),
    click.option("--workers", type=int, metavar="N", help="Number of workers (1 if nothing is said)."),
    click.option("--ps", type=int, metavar="N", help="Number of parameter servers."),
    click.option("--chief", is_flag=True, help="Add a chief."),
    click.option("--evaluator", is_flag=True, help="Add an evaluator beside training."),
    click.option("--data", type=int, metavar="N", help="Number of tf.data service tasks."),
    click.option("--tensorboard", is_flag=True, help="Start TensorBoard with the run."),
    click.option("--serve", metavar="GROUPS", help="Run TensorFlow's own server in these groups: ps,worker."),
    click.option("--name", help="The job's name."),
    click.option("--env", multiple=True, metavar="NAME=VALUE", help="Set a variable in every task (repeatable)."),
    click.option("--file", "files", multiple=True, help="A file the program needs (repeatable)."),
    click.option("--image", help="Container image, on platforms that use one."),
    click.option("--cpus", type=float, help="CPUs of each training task."),
    click.option("--memory", help='Memory of each training task, such as "4 GB".'),
    click.option("--gpus", type=float, help="GPUs of each training task."),
    click.option("--gpu-memory-mb", type=int, help="Memory on those GPUs."),
    click.option("--max-restarts", type=int, metavar="N", help="Restart after a failure this many times."),
    click.option("--timeout", help='Deadline of the whole run, such as "2h".'),
    click.option("--start-timeout", help="Deadline for all tasks to join."),
    click.option("--stop-timeout", help="Time between asking a task to stop and killing it."),
    click.option("--evaluator-timeout", help="How long the evaluator may go on after training."),
    click.option("--checkpoint-dir", help="Where checkpoints go (default: the run's folder)."),
    click.option("--log-dir", help="Where TensorBoard's logs go (default: the run's folder)."),
    click.option("--master", metavar="URL", help="Where Spark is, with --on spark: spark://…, yarn, local-cluster[…]."),
    click.option(
        "--sweep", multiple=True, metavar="NAME=VALUES", help="A task per combination: lr=0.1,0.01 seed=1..9."
    ),
    click.option("-o", "--option", "options", multiple=True, metavar="NAME=VALUE", help="An option of the platform."),
)


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a verb, which gets them as one `request`."""
    own_names = inspect.signature(function).parameters.keys() - {"request"}

    @functools.wraps(function)
    def with_request(**given: Any) -> Any:
        own = {name: given.pop(name) for name in own_names}
        return function(request=_request(**given), **own)

    for option in reversed(_OPTIONS):
        with_request = option(with_request)
    return with_request


def _request(
    *,
    words: Sequence[str],
    module: str | None,
    on: str,
    master: str | None,
    sweep: Sequence[str],
    options: Sequence[str],
    **given: Any,
) -> Request:
    program, arguments = (None, words) if module or not words else (words[0], words[1:])
    if program is None and module is None:
        raise JobError("no program is given", hint="for example: gridflow run train.py --workers 2")
    overrides = _table(given) | {"module": module}
    if arguments:
        overrides["args"] = list(arguments)
    settings = Settings()
    if program and program.endswith(".toml"):
        job = Job.from_file(program, overrides)
        settings = Settings.from_file(Path(program), tuple(PLATFORMS))
    else:
        job = Job.from_table({**overrides, "program": program, "folder": os.getcwd()})
    flags = {"master": master, "sweep": list(sweep) or None}
    return Request(job, on, settings.options(on, **{**flags, **_pairs(options, "--option")}))


def _table(given: dict[str, Any]) -> dict[str, Any]:
    """Turn the flags into a table as in a job file."""
    names = ("workers", "ps", "chief", "evaluator", "data", "tensorboard")
    counts = {name: given.pop(name) for name in names}
    per_task = {name: given.pop(name) for name in ("cpus", "memory", "gpus", "gpu_memory_mb")}
    table = {
        **group_tables(**counts, per_training_task=per_task),
        "env": _pairs(given.pop("env"), "--env") or None,
        "files": list(given.pop("files")) or None,
        "serve": _split(given.pop("serve")),
        **given,
    }
    return {key: value for key, value in table.items() if value is not None}


def _split(value: str | None) -> list[str] | None:
    return None if value is None else [part for part in value.split(",") if part]


def _pairs(values: Sequence[str], flag: str) -> dict[str, str]:
    """Split `NAME=VALUE` flags."""
    for value in values:
        if "=" not in value or value.startswith("="):
            raise SettingsError(f"{flag} {value!r} is not NAME=VALUE", hint=f"for example {flag} SEED=1")
    return dict(value.split("=", 1) for value in values)
