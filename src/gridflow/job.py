"""What to run: a program, its groups of tasks and their resources. A job knows nothing of where it will run.

Job ── Program            a script, a module, a function or a command
    ├─ Group("worker")    identical tasks, each with the same Resources
    ├─ Group("ps") …
    └─ Timeouts
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gridflow.errors import JobError
from gridflow.tables import Table, read_toml

#: The groups a job may have, in the order in which people list them.
GROUPS = ("chief", "worker", "ps", "evaluator", "data", "tensorboard")
#: Groups that do the training; when they have ended, so has the work.
TRAINING_GROUPS = ("chief", "worker")
#: Groups that serve the others and are stopped when the work has ended.
SERVICE_GROUPS = ("ps", "data", "tensorboard")
#: Groups of which TensorFlow knows at most one task.
_SINGLE_GROUPS = ("chief", "evaluator", "tensorboard")
#: Groups that never hold a GPU.
_CPU_GROUPS = ("ps", "data", "tensorboard")

#: More tasks than any cluster has: a slip of the finger must not fill this machine's memory with their names.
MOST_TASKS = 100_000

#: How the names of files end that are a platform's own requests: HTCondor's submit descriptions.
REQUESTS = (".sub", ".submit")

_ADD_WORKERS = "add workers: --workers 1, or a [job.worker] table"


@dataclass(frozen=True)
class Resources:
    """What each task of a group needs."""

    cpus: float | None = None
    memory_mb: int | None = None
    gpus: float = 0
    gpu_memory_mb: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("cpus", self.cpus), ("memory_mb", self.memory_mb), ("gpu_memory_mb", self.gpu_memory_mb)):
            if value is not None and not 0 < value < math.inf:
                raise JobError(f"{name}={value} is not possible", hint="give a positive amount, or leave it out")
        if not 0 <= self.gpus < math.inf:
            raise JobError(f"gpus={self.gpus} is not possible", hint="give 0 or more")
        if self.gpu_memory_mb is not None and not self.gpus:
            raise JobError(f"gpu_memory_mb={self.gpu_memory_mb} without gpus", hint="say how many GPUs: gpus = 1")

    @classmethod
    def from_table(cls, table: Table) -> Resources:
        """Take the resource keys out of a group's table."""
        try:
            return cls(
                cpus=table.number("cpus", None),
                memory_mb=table.memory_mb("memory"),
                gpus=table.number("gpus", 0) or 0,
                gpu_memory_mb=table.integer("gpu_memory_mb", None),
            )
        except JobError as error:
            raise JobError(f"{table.where}: {error.message}", hint=error.hint) from error

    def to_table(self) -> dict[str, Any]:
        """Return what `from_table` reads."""
        table = {"cpus": self.cpus, "memory": self.memory_mb, "gpus": self.gpus, "gpu_memory_mb": self.gpu_memory_mb}
        return {key: value for key, value in table.items() if value}


@dataclass(frozen=True)
class Group:
    """Identical tasks of one kind."""

    name: str
    count: int = 1
    resources: Resources = field(default_factory=Resources)

    def __post_init__(self) -> None:
        if self.name not in GROUPS:
            raise JobError(f"there is no group {self.name!r}", hint=f"valid groups: {', '.join(GROUPS)}")
        if self.count < 1:
            raise JobError(
                f"group {self.name!r} has count={self.count}", hint="ask for at least one task, or leave the group out"
            )
        if self.count > MOST_TASKS:
            raise JobError(f"group {self.name!r} has count={self.count}", hint=f"ask for {MOST_TASKS} tasks at most")
        if self.name in _SINGLE_GROUPS and self.count > 1:
            raise JobError(f"group {self.name!r} has count={self.count}", hint=f"a job has one {self.name} at most")
        if self.name in _CPU_GROUPS and self.resources.gpus:
            raise JobError(
                f"group {self.name!r} asks for gpus={self.resources.gpus:g}",
                hint=f"a {self.name} task never holds a GPU; ask in the worker group",
            )

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the group's tasks: `worker/0`, `worker/1`, …."""
        return tuple(f"{self.name}/{index}" for index in range(self.count))


@dataclass(frozen=True)
class Program:
    """What each task runs: exactly one of a script, a module, a function or a command.

    A `request` is none of these, but what a person has written for a platform, such as an HTCondor submit description.
    """

    kind: str
    target: str
    #: The pickled call, where the program is a function.
    payload: bytes = b""

    def __post_init__(self) -> None:
        kinds = ("script", "module", "function", "command", "request")
        if self.kind not in kinds:
            raise JobError(f"a program cannot be a {self.kind!r}", hint=f"valid kinds: {', '.join(kinds)}")

    @classmethod
    def from_path(cls, path: str) -> Program:
        """Take a path: Python runs `.py` files, a platform knows its own, anything else is executed as it is."""
        if path.endswith(REQUESTS):
            return cls("request", path)
        return cls("script" if path.endswith(".py") else "command", path)

    @classmethod
    def from_table(cls, table: Table) -> Program:
        """Take the program out of a job's table."""
        path, module, function = table.text("program"), table.text("module"), table.text("function")
        given = [name for name, value in (("program", path), ("module", module), ("function", function)) if value]
        if len(given) != 1:
            raise JobError(
                f"the job has {' and '.join(given) if given else 'no program'}",
                hint='give either program = "train.py" or module = "package.train"',
            )
        if path:
            return cls.from_path(path)
        return cls("module", module) if module else cls("function", function)

    def to_table(self) -> dict[str, str]:
        """Return what `from_table` reads; the payload travels in a file of its own."""
        return {"program" if self.is_file else self.kind: self.target}

    @property
    def is_file(self) -> bool:
        """Whether the target is the path of a file."""
        return self.kind in ("script", "command", "request")

    @property
    def stem(self) -> str:
        """A short name for people."""
        return Path(self.target).stem if self.is_file else self.target.rpartition(".")[2]


@dataclass(frozen=True)
class Timeouts:
    """How long things may take; None means for ever."""

    #: The whole run.
    run_seconds: float | None = None
    #: From start until every task has joined.
    start_seconds: float = 300
    #: From the polite request to stop until a task is killed.
    stop_seconds: float = 10
    #: How long the evaluator may go on after training has ended.
    evaluator_seconds: float = 600

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not 0 < value < math.inf:
                raise JobError(f"{name}={value} is not possible", hint="give a positive number of seconds")

    @classmethod
    def from_table(cls, table: Table) -> Timeouts:
        """Take the timeout keys out of a job's table."""
        return cls(
            run_seconds=table.seconds("timeout", None),
            start_seconds=table.seconds("start_timeout", cls.start_seconds) or cls.start_seconds,
            stop_seconds=table.seconds("stop_timeout", cls.stop_seconds) or cls.stop_seconds,
            evaluator_seconds=table.seconds("evaluator_timeout", cls.evaluator_seconds) or cls.evaluator_seconds,
        )

    def to_table(self) -> dict[str, float | None]:
        """Return what `from_table` reads."""
        return {
            "timeout": self.run_seconds,
            "start_timeout": self.start_seconds,
            "stop_timeout": self.stop_seconds,
            "evaluator_timeout": self.evaluator_seconds,
        }


@dataclass(frozen=True)
class Job:
    """A program, its groups and what they need."""

    name: str
    program: Program
    groups: tuple[Group, ...]
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    image: str = ""
    max_restarts: int = 0
    timeouts: Timeouts = field(default_factory=Timeouts)
    #: Groups in which the agent runs TensorFlow's own server instead of the program.
    serve: tuple[str, ...] = ()
    #: Where the program's paths start and its tasks work.
    folder: str = "."
    #: Where checkpoints and TensorBoard's logs go; empty means inside the run's folder.
    checkpoint_dir: str = ""
    log_dir: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", self.name):
            raise JobError(
                f"name = {self.name!r} cannot name a job",
                hint="use 1 to 40 lower-case letters, digits and dashes, with no dash at either end",
            )
        if self.max_restarts < 0:
            raise JobError(f"max_restarts = {self.max_restarts} is not possible", hint="give 0 or more")
        self._check_words()
        names = [group.name for group in self.groups]
        for name in names:
            if names.count(name) > 1:
                raise JobError(f"group {name!r} is given twice", hint="give it once, with the sum of the counts")
        if "ps" in names and "worker" not in names:
            raise JobError("the job has ps tasks but no workers", hint=_ADD_WORKERS)
        if not any(name in TRAINING_GROUPS for name in names):
            raise JobError("the job has neither a chief nor workers", hint=_ADD_WORKERS)
        self._check_serve(names)

    def _check_words(self) -> None:
        """Refuse what Linux cannot give to a process."""
        for name, value in self.env.items():
            if not name or "=" in name or "\0" in name + value:
                raise JobError(
                    f"env.{name} = {value!r} is not possible", hint="a variable has a name without '=', and no NUL"
                )
        for word in self.args:
            if "\0" in word:
                raise JobError(f"args holds {word!r}", hint="no argument of a process holds a NUL")

    def _check_serve(self, names: list[str]) -> None:
        for name in self.serve:
            if name not in ("ps", "worker"):
                raise JobError(f"serve = {name!r} is not possible", hint="only ps and worker tasks can be served")
            if name not in names:
                raise JobError(f"serve = {name!r}, but the job has no {name} group", hint=f"add {name} tasks")
        if "worker" in self.serve and "chief" not in names:
            raise JobError("serve = 'worker', but no chief runs the program", hint="add a chief")

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of all tasks, group by group."""
        return tuple(task for name in GROUPS for group in self.groups if group.name == name for task in group.tasks)

    def group(self, name: str) -> Group | None:
        """Return a group, or None where the job does not have it."""
        return next((group for group in self.groups if group.name == name), None)

    def group_of(self, task: str) -> Group:
        """Return the group of a task such as `worker/0`."""
        group = self.group(task.partition("/")[0])
        if group is None or task not in group.tasks:
            raise JobError(f"the job has no task {task!r}", hint=f"its tasks: {', '.join(self.tasks)}")
        return group

    @property
    def first_task(self) -> str:
        """The task whose result is the run's: the chief, or else the first worker."""
        return self.tasks[0]

    @classmethod
    def from_file(cls, path: str | Path, overrides: Mapping[str, Any] | None = None) -> Job:
        """Read the `[job]` table of a job file; `overrides` (a table of the same shape) win over it."""
        path = Path(path)
        values = read_toml(path).get("job")
        if not isinstance(values, Mapping):
            raise JobError(f"{path} has no [job] table", hint='start it with [job] and program = "train.py"')
        return cls.from_table({"folder": str(path.parent.absolute()), **merge_tables(values, overrides or {})})

    @classmethod
    def from_table(cls, values: Mapping[str, Any], payload: bytes = b"") -> Job:
        """Make a job from a table as in a job file, plus a function's pickled call."""
        table = Table(values, "job")
        program = Program.from_table(table)
        groups = []
        for name in GROUPS:
            group_table = table.table(name)
            if group_table is not None:
                groups.append(Group(name, group_table.integer("count", 1) or 0, Resources.from_table(group_table)))
                group_table.close()
        if not any(group.name in (*TRAINING_GROUPS, "ps") for group in groups):
            groups.insert(0, Group("worker"))
        job = cls(
            name=table.text("name") or _name_from(program.stem),
            program=Program(program.kind, program.target, payload),
            groups=tuple(groups),
            args=table.strings("args"),
            env=table.mapping("env"),
            files=table.strings("files"),
            image=table.text("image"),
            max_restarts=table.integer("max_restarts", None) or 0,
            timeouts=Timeouts.from_table(table),
            serve=table.strings("serve"),
            folder=table.text("folder", "."),
            checkpoint_dir=table.text("checkpoint_dir"),
            log_dir=table.text("log_dir"),
        )
        table.close()
        return job

    def to_table(self) -> dict[str, Any]:
        """Return the table that `from_table` reads back into an equal job (less the payload)."""
        table: dict[str, Any] = {
            "name": self.name,
            **self.program.to_table(),
            **{name: list(getattr(self, name)) for name in ("args", "files", "serve")},
            "env": dict(self.env),
            "max_restarts": self.max_restarts,
            **self.timeouts.to_table(),
            **{name: getattr(self, name) for name in ("image", "folder", "checkpoint_dir", "log_dir")},
        }
        table.update({group.name: {"count": group.count, **group.resources.to_table()} for group in self.groups})
        return {key: value for key, value in table.items() if value not in (None, "", [], {})}

    def check_files(self) -> None:
        """Refuse a job whose program or files are not there."""
        if self.program.is_file:
            path = Path(self.folder, self.program.target)
            if not path.is_file():
                raise JobError(f"program {str(path)!r} does not exist", hint="check its path")
            if self.program.kind == "command" and not os.access(path, os.X_OK):
                raise JobError(f"program {str(path)!r} is not executable", hint="`chmod +x` it; Python runs *.py files")
        if self.program.kind == "function" and not self.program.payload:
            raise JobError(f"function {self.program.target!r} is only a name", hint="call gridflow.launch(function)")
        for name in self.files:
            if not Path(self.folder, name).exists():
                raise JobError(f"files holds {name!r}, which does not exist in {self.folder}", hint="check its path")


def file_stem(task: str) -> str:
    """Return how a task is called in names of files: `worker-0`."""
    return task.replace("/", "-")


def merge_tables(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one table over another: what `above` gives wins, tables within tables are merged."""
    merged = dict(below)
    for key, value in above.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge_tables(merged[key], value)
        elif value is not None:
            merged[key] = value
    # One program only: a program given above replaces the one below, whatever kind it is.
    programs = ("program", "module", "function")
    if any(above.get(key) for key in programs):
        merged = {key: value for key, value in merged.items() if key not in programs or above.get(key)}
    return merged


def _name_from(stem: str) -> str:
    """Turn `Train_MNIST` into `train-mnist`."""
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:40].strip("-") or "job"
