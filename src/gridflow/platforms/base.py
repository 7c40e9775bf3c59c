"""The contract between Gridflow and a place where tasks run.

    job ─ plan() ─▶ Plan ─ submit() ─▶ the platform ─ status(), logs() ─▶ people
                     │                      ▲
                     └ `gridflow render`    └ cancel()

`plan` is pure and repeatable: it returns the native request as data, and nothing has happened yet. `submit` performs
it. Everything after that goes by the run's folder alone, so that any later process can ask and cancel.
"""

from __future__ import annotations

import codecs
import importlib
import json
import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from gridflow.errors import JobError, UsageError
from gridflow.job import Job
from gridflow.state import RunStatus
from gridflow.store import RunFolder
from gridflow.tables import Table

#: Where each platform's class is; loaded only when it is asked for.
PLATFORMS = {
    "local": "gridflow.platforms.local:Local",
    "spark": "gridflow.platforms.spark:Spark",
    "htcondor": "gridflow.platforms.htcondor:HTCondor",
}

#: Stands in a plan for the folder of the run, which does not exist before `submit`.
RUN_DIR = "{run_dir}"
#: How much of a log is read at once.
LOG_PIECE_BYTES = 1 << 16


@dataclass(frozen=True)
class File:
    """A file that `submit` writes into the run's folder."""

    name: str
    content: bytes

    def to_dict(self) -> dict[str, Any]:
        """Return the file for people and scripts; bytes that are no text are only counted."""
        try:
            return {"name": self.name, "content": self.content.decode()}
        except UnicodeDecodeError:
            return {"name": self.name, "bytes": len(self.content)}


@dataclass(frozen=True)
class Command:
    """A command that `submit` starts, on behalf of a task where one is named."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    task: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the command for people and scripts."""
        return {"task": self.task, "argv": list(self.argv), "environment": dict(self.environment)}


@dataclass(frozen=True)
class Plan:
    """A platform's native request, as data."""

    files: tuple[File, ...] = ()
    commands: tuple[Command, ...] = ()
    #: What the platform will not do though the job asks for it.
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the plan for scripts."""
        return {
            "files": [file.to_dict() for file in self.files],
            "commands": [command.to_dict() for command in self.commands],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        parts = [f"# note: {note}" for note in self.notes]
        for file in self.files:
            shown = file.to_dict()
            parts.append(f"# file {file.name}\n{shown.get('content', f'({len(file.content)} bytes)')}")
        for command in self.commands:
            variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in command.environment.items())
            comment = f"# task {command.task}\n" if command.task else ""
            parts.append(comment + " ".join(filter(None, (variables, shlex.join(command.argv)))))
        return "\n\n".join(parts)


@dataclass(frozen=True)
class Finding:
    """One thing that `gridflow doctor` looked at."""

    what: str
    is_good: bool
    detail: str
    #: Whether the platform cannot be used without it.
    is_required: bool = True


class Platform(ABC):
    """A place where tasks run."""

    name: ClassVar[str]
    #: One sentence for `gridflow doctor` and the documentation.
    description: ClassVar[str]
    #: How long whoever follows a log waits between two looks.
    poll_seconds: ClassVar[float] = 0.2

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._given_options = dict(options)
        table = Table(options, f"platform.{self.name}")
        self.read_options(table)
        table.close()

    @property
    def recorded_options(self) -> dict[str, Any]:
        """The options under which a later process finds the same platform."""
        return self._given_options

    def read_options(self, table: Table) -> None:  # noqa: B027 - a platform without options has nothing to read
        """Take this platform's options out of their table."""

    @abstractmethod
    def plan(self, job: Job) -> Plan:
        """Return the native request for a job. Pure: the same job gives an equal plan."""

    def check_program(self, job: Job) -> None:  # noqa: B027 - where only the tasks can tell
        """Refuse a job whose program is not where its tasks would look for it."""

    def prepare(self, plan: Plan, folder: RunFolder) -> None:
        """Write what the tasks need into the run's folder."""
        for file in plan.files:
            folder.write(file.name, file.content)

    @abstractmethod
    def submit(self, plan: Plan, folder: RunFolder, *, attached: bool) -> None:
        """Perform the plan. An attached run must not outlive the process that submits it."""

    @abstractmethod
    def status(self, folder: RunFolder) -> RunStatus:
        """Return the state of the run and of every task, each with a reason in plain words."""

    def log_file(self, folder: RunFolder, task: str) -> Path:
        """Return the file of this machine that a task's output is in, or comes into."""
        return folder.log_file(task)

    def read_log(self, folder: RunFolder, task: str, position: int) -> tuple[bytes, int]:
        """Return a piece of a task's output from a position on, empty where no more is there, and where it ends."""
        try:
            with self.log_file(folder, task).open("rb") as file:
                file.seek(position)
                return file.read(LOG_PIECE_BYTES), file.tell()
        except FileNotFoundError:
            return b"", position

    def log_note(self, folder: RunFolder, task: str) -> str:  # noqa: ARG002 - for platforms with something to say
        """Return what whoever reads a task's output has to know of it, once; mostly there is nothing."""
        return ""

    def logs(self, folder: RunFolder, task: str, *, follow: bool) -> Iterator[str]:
        """Yield a task's output in pieces; with `follow`, go on until the run has ended."""
        folder.job.group_of(task)
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        position = 0
        while True:
            # Asked first, so that nothing written before the end is missed.
            is_last = not follow or self.status(folder).state.is_ended
            content, position = self.read_log(folder, task, position)
            while content:
                yield decoder.decode(content)
                content, position = self.read_log(folder, task, position)
            if note := self.log_note(folder, task):
                yield note
            if is_last:
                yield decoder.decode(b"", final=True)
                return
            time.sleep(self.poll_seconds)

    @abstractmethod
    def cancel(self, folder: RunFolder) -> None:
        """Stop the run and return when nothing of it is left. Cancelling an ended run does nothing."""

    def templates(self) -> tuple[File, ...]:
        """Return the templates that a user may copy and tailor."""
        return ()

    @abstractmethod
    def check(self) -> list[Finding]:
        """Look at what the platform needs on this machine."""


def load_platform(name: str, options: Mapping[str, Any] | None = None) -> Platform:
    """Load a platform by its name."""
    if name not in PLATFORMS:
        raise UsageError(f"there is no platform {name!r}", hint=f"valid platforms: {', '.join(PLATFORMS)}")
    module, _, attribute = PLATFORMS[name].partition(":")
    platform: Platform = getattr(importlib.import_module(module), attribute)(options or {})
    return platform


def job_record(job: Job) -> File:
    """Return the file in which every run keeps its job."""
    return File("job.json", json.dumps(job.to_table(), indent=2).encode())


def job_files(job: Job) -> tuple[File, ...]:
    """Return the files in which every platform carries the job to its tasks."""
    if job.program.kind == "request":
        raise JobError(f"{job.program.target} is no program, but a request to a platform", hint="use --on htcondor")
    files = [job_record(job)]
    if job.program.payload:
        files.append(File("function.pickle", job.program.payload))
    return tuple(files)
