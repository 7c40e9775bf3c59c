"""Where runs are kept: one folder each, under `$GRIDFLOW_HOME/runs`.

    <run>/run.json         what it is: run, name, platform, options, created
          job.json         the job, as in a job file
          function.pickle  the pickled call, where the program is a function
          work.tar         the program and its files, where a platform has to carry them
          secret           the run's secret, readable by its owner only
          events.jsonl     what happened, one JSON object per line, only ever appended to
          cancel           there once somebody wants the run to stop, with the reason
          logs/worker-0.log
          results/worker-0.pickle, or worker-0.json in a sweep
          checkpoints/, tensorboard/

A crash at any moment leaves all of it readable: whole files are written aside and renamed, events are appended with
one write each, and a torn last line is skipped.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from gridflow.errors import PlatformError, UsageError
from gridflow.job import Job, file_stem

#: The file with a job's program and files, packed.
ARCHIVE = "work.tar"


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @property
    def run(self) -> str:
        """The run's id."""
        return self.path.name

    @property
    def job_file(self) -> Path:
        """The job as a table, in JSON."""
        return self.path / "job.json"

    @property
    def function_file(self) -> Path:
        """The pickled call of a function program."""
        return self.path / "function.pickle"

    @property
    def archive_file(self) -> Path:
        """The program and its files, packed, where a platform has to carry them."""
        return self.path / ARCHIVE

    @property
    def secret_file(self) -> Path:
        """The run's secret."""
        return self.path / "secret"

    @property
    def supervisor_log(self) -> Path:
        """What the process that watches over the run has to say; empty unless it has a bug."""
        return self.path / "logs" / "supervisor.log"

    def log_file(self, task: str) -> Path:
        """Return the file with a task's output."""
        return self.path / "logs" / f"{file_stem(task)}.log"

    def result_file(self, task: str) -> Path:
        """Return the file with what a function returned or raised in a task."""
        return self.results_dir / f"{file_stem(task)}.pickle"

    def metrics_file(self, task: str) -> Path:
        """Return the file with the numbers that a task of a sweep gave as its result, in JSON."""
        return self.results_dir / f"{file_stem(task)}.json"

    @property
    def results_dir(self) -> Path:
        """Where the tasks' results go."""
        return self.path / "results"

    @property
    def checkpoint_dir(self) -> Path:
        """Where checkpoints go if the job does not say otherwise."""
        return self.path / "checkpoints"

    @property
    def log_dir(self) -> Path:
        """Where TensorBoard's logs go if the job does not say otherwise."""
        return self.path / "tensorboard"

    def record(self) -> dict[str, Any]:
        """Return what `run.json` says: run, name, platform, options, created."""
        record = self._read_table("run.json")
        missing = {"run", "name", "platform", "options", "created"} - record.keys()
        if missing:
            raise self._damaged("run.json", f"it lacks {', '.join(sorted(missing))}")
        return record

    @cached_property
    def job(self) -> Job:
        """The job, read back."""
        payload = self.function_file.read_bytes() if self.function_file.exists() else b""
        table = self._read_table(self.job_file.name)
        try:
            return Job.from_table(table, payload)
        except UsageError as error:
            raise self._damaged(self.job_file.name, error) from error

    def _read_table(self, name: str) -> dict[str, Any]:
        try:
            return dict(json.loads((self.path / name).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise self._damaged(name, error) from error

    def _damaged(self, name: str, error: Exception | str) -> UsageError:
        return UsageError(f"run {self.run} is damaged: {name} cannot be read: {error}", hint=f"remove {self.path}")

    def secret(self) -> bytes:
        """Read the run's secret."""
        return self.secret_file.read_bytes()

    def write(self, name: str, content: bytes | str) -> None:
        """Write a whole file or nothing, readable by its owner only."""
        write_whole(self.path / name, content.encode() if isinstance(content, str) else content)

    def request_cancel(self, reason: str = "it was cancelled") -> None:
        """Ask whoever watches over the run to stop it, and let everybody know why it does."""
        self.write("cancel", reason)

    @property
    def cancel_reason(self) -> str | None:
        """Why somebody wants the run to stop; None where nobody does."""
        try:
            return (self.path / "cancel").read_text()
        except FileNotFoundError:
            return None

    def append_event(self, event: str, **fields: Any) -> None:
        """Append one event, with the time."""
        line = (json.dumps({"time": time.time(), "event": event, **fields}) + "\n").encode()
        with self._events_file.open("ab+", buffering=0) as file:
            # A line that a crash left torn must not take this one with it.
            if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                line = b"\n" + line
            file.write(line)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events so far; a line that a crash left torn is skipped."""
        try:
            lines = self._events_file.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return
        for line in lines:
            try:
                yield json.loads(line)
            except ValueError:
                continue

    @property
    def _events_file(self) -> Path:
        return self.path / "events.jsonl"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file aside and rename it, so that a reader sees all of it or none."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def create_run(home: Path, job: Job, platform: str, options: Mapping[str, Any], now: float) -> RunFolder:
    """Make the folder of a new run."""
    try:
        return _create_run(home, job, platform, options, now)
    except OSError as error:
        raise PlatformError(
            f"no run can be kept in {home}: {error}", hint="set GRIDFLOW_HOME to a folder that you can write to"
        ) from error


def _create_run(home: Path, job: Job, platform: str, options: Mapping[str, Any], now: float) -> RunFolder:
    (home / "runs").mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    while True:
        folder = RunFolder(home / "runs" / f"{job.name}-{stamp}-{os.urandom(2).hex()}")
        try:
            folder.path.mkdir(mode=0o700)
            break
        except FileExistsError:
            continue
    for path in (folder.supervisor_log.parent, folder.results_dir, folder.checkpoint_dir, folder.log_dir):
        path.mkdir()
    folder.write("secret", os.urandom(32))
    folder.write("job.json", json.dumps(job.to_table(), indent=2))
    record = {"run": folder.run, "name": job.name, "platform": platform, "options": dict(options), "created": now}
    # Last, since a folder without it is not a run yet.
    folder.write("run.json", json.dumps(record, indent=2))
    return folder


def list_runs(home: Path) -> list[RunFolder]:
    """Return all runs, the oldest first."""
    folders = [RunFolder(path.parent) for path in (home / "runs").glob("*/run.json")]
    return sorted(folders, key=_created)


def _created(folder: RunFolder) -> float:
    try:
        return float(folder.record()["created"])
    except UsageError:
        return 0.0  # damaged, which is said when somebody asks for it


def find_run(home: Path, run: str) -> RunFolder:
    """Find a run by its id, the beginning of its id, or `last`."""
    folders = list_runs(home)
    if run == "last" and folders:
        return folders[-1]
    matches = [folder for folder in folders if folder.run == run] or [
        folder for folder in folders if folder.run.startswith(run)
    ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(f"{run!r} fits {len(matches)} runs", hint=f"one of: {', '.join(f.run for f in matches[-5:])}")
    raise UsageError(f"there is no run {run!r} in {home / 'runs'}", hint="`gridflow list` shows the runs")
