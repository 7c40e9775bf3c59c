"""The contract between Gridflow and a place where tasks run.

    job ─ plan() ─▶ Plan ─ submit() ─▶ the platform ─ status(), logs() ─▶ people
                     │                      ▲
                     └ `gridflow render`    └ cancel()

`plan` is pure and repeatable: it returns the native request as data, and nothing has happened yet. `submit` performs
it. Everything after that goes by the run's folder alone, so that any later process can ask and cancel.
"""

from __future__ import annotations

import importlib
import json
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gridflow.errors import UsageError
from gridflow.job import Job
from gridflow.state import RunStatus
from gridflow.store import RunFolder
from gridflow.tables import Table

#: Where each platform's class is; loaded only when it is asked for.
PLATFORMS = {"local": "gridflow.platforms.local:Local"}

#: Stands in a plan for the folder of the run, which does not exist before `submit`.
RUN_DIR = "{run_dir}"


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

    def __init__(self, options: Mapping[str, Any]) -> None:
        table = Table(options, f"platform.{self.name}")
        self.read_options(table)
        table.close()

    def read_options(self, table: Table) -> None:  # noqa: B027 - a platform without options has nothing to read
        """Take this platform's options out of their table."""

    @abstractmethod
    def plan(self, job: Job) -> Plan:
        """Return the native request for a job. Pure: the same job gives an equal plan."""

    @abstractmethod
    def submit(self, plan: Plan, folder: RunFolder, *, attached: bool) -> None:
        """Perform the plan. An attached run must not outlive the process that submits it."""

    @abstractmethod
    def status(self, folder: RunFolder) -> RunStatus:
        """Return the state of the run and of every task, each with a reason in plain words."""

    @abstractmethod
    def logs(self, folder: RunFolder, task: str, *, follow: bool) -> Iterator[str]:
        """Yield a task's output in pieces; with `follow`, go on until the run has ended."""

    @abstractmethod
    def cancel(self, folder: RunFolder) -> None:
        """Stop the run and return when nothing of it is left. Cancelling an ended run does nothing."""

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


def job_files(job: Job) -> tuple[File, ...]:
    """Return the files in which every platform carries the job to its tasks."""
    files = [File("job.json", json.dumps(job.to_table(), indent=2).encode())]
    if job.program.payload:
        files.append(File("function.pickle", job.program.payload))
    return tuple(files)
