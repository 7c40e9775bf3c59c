"""What a person sees of a run while it goes on: a live table on a terminal, plain lines elsewhere.

Both print the first task's output as it comes and say when a task's state changes.
"""

from __future__ import annotations

import re
import sys
import time
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import click

from gridflow.platforms.base import LOG_PIECE_BYTES
from gridflow.run import Run
from gridflow.state import RunState, RunStatus, TaskState, TaskStatus

_POLL_SECONDS = 0.1
_TAIL_BYTES = 4096
# Colours, cursor movements, titles, resets: '\x1b[1m', '\x1b[?25l', '\x1b]0;title\x07', '\x1bc'
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])")
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


def clean_line(text: str) -> str:
    """Return a line of output as a terminal would leave it: after the last carriage return, without escapes."""
    line = _ESCAPES.sub("", text).rstrip("\r\n").rpartition("\r")[2]
    return _CONTROLS.sub("", line)


def last_line(run: Run, task: str) -> str:
    """Return the last line that a task has written, but for blank ones."""
    try:
        with run.log_file(task).open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return next((text for line in reversed(lines) if (text := clean_line(line).strip())), "")


def elapsed(task: TaskStatus, now: float) -> str:
    """Return how long a task has run, such as `1:05`."""
    if task.started is None:
        return ""
    seconds = int((task.ended or now) - task.started)
    hours, rest = divmod(seconds, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def describe(run: Run, status: RunStatus) -> str:
    """Describe a run and its tasks in plain lines."""
    now = time.time()
    lines = [f"{status.run}  {status.state}" + (f"  {status.reason}" if status.reason else "")]
    if status.tensorboard_url:
        lines.append(f"TensorBoard: {status.tensorboard_url}")
    for task in status.tasks:
        detail = task.reason or last_line(run, task.task)
        restarts = f"restarts {task.restarts}" if task.restarts else ""
        lines.append(f"  {task.task:<14} {task.state:<10} {elapsed(task, now):>7}  {restarts}  {detail}".rstrip())
    lines.append(f"files: {run.folder}")
    return "\n".join(lines)


class View(ABC):
    """Follows one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._first_task = run.job.first_task
        self._position = 0
        self._unfinished = b""
        self._shown: dict[str, tuple[TaskState, str]] = {}
        self._url: str | None = None
        self._restarts = 0
        self._reason = ""

    def __enter__(self) -> View:
        return self

    def __exit__(self, *exception: Any) -> None:  # noqa: B027 - lines need no care
        """Leave the terminal as it was, where something is drawn on it."""

    @abstractmethod
    def say(self, text: str) -> None:
        """Show a line."""

    @abstractmethod
    def update(self, status: RunStatus) -> None:
        """Show the present status."""

    def follow(self) -> RunStatus:
        """Show the run until it has ended."""
        self.say(f"run {self._run.id}: {', '.join(self._run.job.tasks)}")
        while True:
            status = self._run.status()
            self._say_changes(status)
            is_behind = self._say_output()
            self.update(status)
            if is_behind:
                continue
            if status.state.is_ended:
                self._say_end(status)
                return status
            time.sleep(_POLL_SECONDS)

    def _say_changes(self, status: RunStatus) -> None:
        if status.restarts > self._restarts:
            self._restarts = status.restarts
            self.say(f"restart {status.restarts} of {self._run.job.max_restarts}: {status.reason}")
        elif status.reason not in ("", self._reason) and status.state is RunState.RUNNING:
            # Other ports are drawn, or a task was evicted: that counts as no restart.
            self.say(f"starting again: {status.reason}")
        self._reason = status.reason
        for task in status.tasks:
            # One that waits may come to know why.
            if self._shown.get(task.task, (TaskState.PENDING, "")) != (task.state, task.reason):
                self._shown[task.task] = (task.state, task.reason)
                self.say(f"{task.task} {task.state}" + (f" ({task.reason})" if task.reason else ""))
        if status.tensorboard_url and status.tensorboard_url != self._url:
            self._url = status.tensorboard_url
            self.say(f"TensorBoard: {self._url}")

    def _say_output(self) -> bool:
        """Show what the first task has written since the last time, or a part of it; return whether more is there."""
        content, self._position = self._run.read_log(self._first_task, self._position)
        *lines, unfinished = (self._unfinished + content).split(b"\n")
        # Of a line without an end, such as a progress bar that draws over itself, only the last part matters.
        self._unfinished = unfinished[-LOG_PIECE_BYTES:]
        for line in lines:
            if text := clean_line(line.decode(errors="replace")):
                self.say(f"{self._first_task} | {text}")
        return len(content) == LOG_PIECE_BYTES

    def _say_end(self, status: RunStatus) -> None:
        self.say(f"{status.state} after {(status.ended or 0) - (status.started or 0):.1f} s; files: {self._run.folder}")


class QuietView(View):
    """Shows nothing, but for a task that waits until somebody does something."""

    def _say_changes(self, status: RunStatus) -> None:
        for task in status.tasks:
            if task.state is TaskState.HELD and self._shown.get(task.task) != (task.state, task.reason):
                self._shown[task.task] = (task.state, task.reason)
                click.echo(f"gridflow: {task.task} is held: {task.reason}", err=True)

    def _say_output(self) -> bool:
        return False

    def say(self, text: str) -> None:
        """Show nothing."""

    def update(self, status: RunStatus) -> None:
        """Show nothing."""


class PlainView(View):
    """Prints lines, for pipes and files."""

    def say(self, text: str) -> None:
        """Print a line."""
        click.echo(text)

    def update(self, status: RunStatus) -> None:
        """Print nothing: every change has had its line."""


class LiveView(View):
    """Keeps a table of tasks below the output, on a terminal."""

    _COLOURS: ClassVar = {
        "running": "cyan",
        "succeeded": "green",
        "failed": "red",
        "stopped": "dim",
        "starting": "yellow",
    }

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        # Slow to import, and of no use to a pipe.
        from rich.console import Console
        from rich.live import Live

        self._console = Console()
        self._live = Live(console=self._console, refresh_per_second=8, transient=False)

    def __enter__(self) -> View:
        self._live.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Print a line above the table."""
        self._console.print(text, markup=False, highlight=False, emoji=False)

    def update(self, status: RunStatus) -> None:
        """Draw the table anew."""
        from rich.table import Table
        from rich.text import Text

        now = time.time()
        table = Table(box=None, pad_edge=False, expand=True)
        for title in ("task", "state", "time", "restarts"):
            table.add_column(title, no_wrap=True)
        table.add_column("last line", no_wrap=True, ratio=1)
        for task in status.tasks:
            state = Text(task.state.value, style=self._COLOURS.get(task.state, ""))
            detail = Text(task.reason or last_line(self._run, task.task))
            table.add_row(task.task, state, elapsed(task, now), str(task.restarts or ""), detail)
        self._live.update(table)


def open_view(run: Run, *, quiet: bool) -> View:
    """Choose how to show a run here."""
    if quiet:
        return QuietView(run)
    return LiveView(run) if sys.stdout.isatty() else PlainView(run)
