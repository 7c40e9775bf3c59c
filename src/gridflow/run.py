"""One submission of a job: what people hold on to while it runs, and afterwards."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gridflow.errors import DeadlineError, GridflowError, RunCancelledError, TaskFailedError
from gridflow.job import Job
from gridflow.platforms.base import Platform, load_platform
from gridflow.state import RunState, RunStatus
from gridflow.store import RunFolder, find_run

_POLL_SECONDS = 0.1
_TAIL_LINES = 20
_TAIL_CHARACTERS = 20_000


class Run:
    """A run; as a context manager it is cancelled at the end of the block if it still goes on."""

    def __init__(self, folder: RunFolder, platform: Platform) -> None:
        self._folder = folder
        self._platform = platform

    @classmethod
    def find(cls, home: Path, run: str) -> Run:
        """Take up a run again, by its id or the beginning of it."""
        folder = find_run(home, run)
        record = folder.record()
        return cls(folder, load_platform(record["platform"], record["options"]))

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    @property
    def id(self) -> str:
        """The run's id."""
        return self._folder.run

    @property
    def platform(self) -> str:
        """The name of the platform that it is on."""
        return self._platform.name

    @property
    def folder(self) -> Path:
        """Where the run's files are."""
        return self._folder.path

    @property
    def job(self) -> Job:
        """What is being run."""
        return self._folder.job

    @property
    def tensorboard_url(self) -> str | None:
        """Where the run's TensorBoard is; None where it has none, or not yet."""
        return self.status().tensorboard_url

    def status(self) -> RunStatus:
        """Return the state of the run and of all its tasks."""
        return self._platform.status(self._folder)

    def wait(self, timeout_seconds: float | None = None) -> RunStatus:
        """Wait for the end of the run and return its final status, whatever it is."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not (status := self.status()).state.is_ended:
            if deadline is not None and time.monotonic() >= deadline:
                raise DeadlineError(
                    f"run {self.id} is still {status.state} after {timeout_seconds:g} s",
                    hint="wait longer, or cancel it",
                )
            time.sleep(_POLL_SECONDS)
        return status

    def result(self, timeout_seconds: float | None = None) -> Any:
        """Wait for success and return what the function returned in the first task (chief, else worker/0).

        A run that failed raises: what the function raised, with the task's traceback as its cause, or else a
        TaskFailedError that names the first failed task.
        """
        status = self.wait(timeout_seconds)
        if status.state is not RunState.SUCCEEDED:
            error = self.failure(status)
            original = self._outcome(status.failed_task).get("error") if status.failed_task else None
            if isinstance(original, Exception):
                raise original from error
            raise error
        outcome = self._outcome(self.job.first_task)
        if "unpicklable" in outcome:
            raise TaskFailedError(
                f"{self.job.first_task} returned something that cannot be pickled: {outcome['unpicklable']}",
                hint="return plain data: numbers, lists, arrays",
            )
        return outcome.get("result")

    def failure(self, status: RunStatus) -> GridflowError:
        """Return the error that says why the run did not succeed."""
        kinds = {RunState.TIMED_OUT: DeadlineError, RunState.CANCELLED: RunCancelledError}
        kind: type[GridflowError] = kinds.get(status.state, TaskFailedError)
        return kind(f"run {self.id} {status.state.value.replace('_', ' ')}: {status.reason}{self._evidence(status)}")

    def _evidence(self, status: RunStatus) -> str:
        if status.failed_task is None:
            return ""
        traceback = self._outcome(status.failed_task).get("traceback")
        if traceback:
            return f"\n--- what {status.failed_task} raised:\n{traceback.rstrip()}"
        tail = self.tail(status.failed_task, _TAIL_LINES)
        return f"\n--- the end of {self.log_file(status.failed_task)}:\n{tail}" if tail else ""

    def tail(self, task: str, lines: int) -> str:
        """Return the last lines of a task's output."""
        text = ""
        for piece in self.logs(task):
            text = (text + piece)[-_TAIL_CHARACTERS:]
        return "\n".join(text.rstrip().splitlines()[-lines:])

    def log_file(self, task: str) -> Path:
        """Return where a task's output is kept."""
        return self._platform.log_file(self._folder, task)

    def read_log(self, task: str, position: int) -> tuple[bytes, int]:
        """Return a piece of a task's output from a position on, empty where no more is there, and where it ends."""
        return self._platform.read_log(self._folder, task, position)

    def logs(self, task: str, *, follow: bool = False) -> Iterator[str]:
        """Yield a task's output in pieces; with `follow`, until the run has ended."""
        return self._platform.logs(self._folder, task, follow=follow)

    def cancel(self) -> None:
        """Stop the run and return when nothing of it is left; an ended run stays as it is."""
        self._platform.cancel(self._folder)

    def _outcome(self, task: str) -> dict[str, Any]:
        path = self._folder.result_file(task)
        if not path.exists():
            return {}
        try:
            outcome: dict[str, Any] = pickle.loads(path.read_bytes())  # noqa: S301 - from this user's own run folder
        except Exception as error:  # noqa: BLE001 - a user's object may raise anything when unpickled
            return {"unpicklable": str(error)}
        return outcome
