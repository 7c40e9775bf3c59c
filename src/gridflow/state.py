"""States of tasks and runs, and how one follows from the others. Pure: no files, no clock.

    task:  pending ─▶ starting ─▶ running ─▶ succeeded | failed | stopped
              ▲  ╲ held              │
              └──────────────────────┘   (evicted or restarted: back to pending, `restarts` counts up)

    run:   pending ─▶ running ─▶ succeeded | failed | cancelled | timed_out

What happened is a sequence of events, each a flat JSON object with `time` and `event`; `replay` folds them into a
`RunStatus`. The same events come from every platform, so the same status does.
"""

from __future__ import annotations

import signal as signals
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any


class TaskState(StrEnum):
    """Where a task stands."""

    PENDING = "pending"
    HELD = "held"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    #: Ended because Gridflow or a person stopped it: a service after training, a peer of a failed task.
    STOPPED = "stopped"

    @property
    def is_ended(self) -> bool:
        """Whether the task's process is gone for good."""
        return self in (TaskState.SUCCEEDED, TaskState.FAILED, TaskState.STOPPED)


class RunState(StrEnum):
    """Where a run stands."""

    PENDING = "pending"
    HELD = "held"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"

    @property
    def is_ended(self) -> bool:
        """Whether nothing of the run will happen any more."""
        return self.exit_code is not None

    @property
    def exit_code(self) -> int | None:
        """The exit code of `gridflow run`; None while the run goes on."""
        return {"succeeded": 0, "failed": 1, "timed_out": 4, "cancelled": 130}.get(self.value)


@dataclass(frozen=True)
class Exit:
    """How a process ended: with an exit code, or by a signal."""

    code: int | None = None
    signal: str | None = None

    @classmethod
    def from_returncode(cls, returncode: int) -> Exit:
        """Take what `subprocess` reports: -9 means killed by signal 9."""
        if returncode >= 0:
            return cls(code=returncode)
        try:
            return cls(signal=signals.Signals(-returncode).name)
        except ValueError:
            return cls(signal=f"signal {-returncode}")

    @property
    def is_success(self) -> bool:
        """Whether it ended by itself, with exit code 0."""
        return self.code == 0

    def __str__(self) -> str:
        if self.signal == "SIGKILL":
            return "killed by SIGKILL (by a person, or by the system when memory ran out)"
        return f"killed by {self.signal}" if self.signal else f"exit code {self.code}"


@dataclass(frozen=True)
class TaskStatus:
    """One task as people and scripts see it."""

    task: str
    state: TaskState = TaskState.PENDING
    exit_code: int | None = None
    signal: str | None = None
    host: str | None = None
    restarts: int = 0
    reason: str = ""
    started: float | None = None
    ended: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON object."""
        return {key: value for key, value in asdict(self).items() if key not in ("started", "ended")}


@dataclass(frozen=True)
class RunStatus:
    """One run as people and scripts see it."""

    run: str
    platform: str
    state: RunState
    tasks: tuple[TaskStatus, ...]
    reason: str = ""
    restarts: int = 0
    #: The task that failed first, where one did.
    failed_task: str | None = None
    tensorboard_url: str | None = None
    started: float | None = None
    ended: float | None = None

    def __getitem__(self, task: str) -> TaskStatus:
        return {status.task: status for status in self.tasks}[task]

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON object."""
        return {**asdict(self), "tasks": [task.to_dict() for task in self.tasks]}


def replay(run: str, platform: str, tasks: Sequence[str], events: Iterable[Mapping[str, Any]]) -> RunStatus:
    """Fold a run's events into its status."""
    status = RunStatus(run, platform, RunState.PENDING, ())
    task_statuses = {task: TaskStatus(task) for task in tasks}
    for event in events:
        match event.get("event"):
            case "task" if event["task"] in task_statuses:
                task_statuses[event["task"]] = _replay_task(task_statuses[event["task"]], event)
            case "restart":
                status = replace(status, restarts=event["restart"], reason=event["reason"], tensorboard_url=None)
            case "tensorboard":
                status = replace(status, tensorboard_url=event["url"])
            # The first end counts: a run cannot end twice.
            case "run" if not status.state.is_ended:
                status = _replay_run(status, event)
    if status.state.is_ended:
        # Whoever was to report the end of these was killed.
        for task, last in task_statuses.items():
            if not last.state.is_ended:
                task_statuses[task] = replace(last, state=TaskState.STOPPED, reason=status.reason, ended=status.ended)
    return replace(status, tasks=tuple(task_statuses.values()))


def _replay_run(status: RunStatus, event: Mapping[str, Any]) -> RunStatus:
    state = RunState(event["state"])
    if not state.is_ended:
        started = event["time"] if status.started is None and state is RunState.RUNNING else status.started
        return replace(status, state=state, reason=event.get("reason", status.reason), started=started)
    return replace(
        status,
        state=state,
        reason=event.get("reason", ""),
        failed_task=event.get("task"),
        ended=event["time"],
        tensorboard_url=None,
    )


def _replay_task(status: TaskStatus, event: Mapping[str, Any]) -> TaskStatus:
    state = TaskState(event["state"])
    if state is TaskState.STARTING:
        # A new attempt forgets how the last one ended.
        return TaskStatus(
            status.task, state, host=event.get("host"), restarts=event.get("restarts", 0), started=event["time"]
        )
    return replace(
        status,
        state=state,
        exit_code=event.get("exit_code"),
        signal=event.get("signal"),
        reason=event.get("reason", ""),
        ended=event["time"] if state.is_ended else None,
    )
