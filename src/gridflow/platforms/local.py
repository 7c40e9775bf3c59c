"""The machine that you are on: every task is a process here, watched over by one supervisor process per run.

    gridflow run ─▶ supervisor ─▶ agent worker/0 ─▶ program
        (attached: a pipe)     ├▶ agent worker/1 ─▶ program
                               └▶ agent ps/0     ─▶ program

The supervisor writes the run's events; everybody else only reads them. If it was killed, whoever asks next finds
that out, ends what is left and says so.
"""

from __future__ import annotations

import codecs
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from gridflow import processes
from gridflow.errors import PlatformError
from gridflow.job import Job
from gridflow.platforms.base import Command, Finding, Plan, Platform, job_files
from gridflow.state import RunState, RunStatus, replay
from gridflow.store import RunFolder
from gridflow.task import identity

#: How long the supervisor may take to report that it is there.
_START_SECONDS = 30.0
#: On top of a job's stop timeout: after that a supervisor that was asked to stop is killed.
_EXTRA_STOP_SECONDS = 15.0
_POLL_SECONDS = 0.05
_LOG_PIECE_BYTES = 1 << 16


class Local(Platform):
    """Tasks are processes of this machine."""

    name = "local"
    description = "processes on this machine"

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        # Kept so that they are reaped, and so that an attached run's pipe stays open as long as this process lives.
        self._supervisors: dict[str, subprocess.Popen[bytes]] = {}

    def plan(self, job: Job) -> Plan:
        """Return one agent per task."""
        agent = (sys.executable, "-P", "-m", "gridflow.task")
        notes = []
        if any(group.resources.memory_mb for group in job.groups):
            notes.append("memory is not limited on this machine")
        if job.image:
            notes.append(f"image {job.image} is not used on this machine: tasks run in this environment")
        return Plan(
            files=job_files(job),
            commands=tuple(
                Command(agent, {identity.TASK: task, identity.HOST: "127.0.0.1"}, task) for task in job.tasks
            ),
            notes=tuple(notes),
        )

    def submit(self, plan: Plan, folder: RunFolder, *, attached: bool) -> None:
        """Write the plan's files and start the supervisor, which starts the plan's commands."""
        for file in plan.files:
            folder.write(file.name, file.content)
        command = [sys.executable, "-P", "-m", "gridflow.platforms.local_supervisor", str(folder.path)]
        with folder.supervisor_log.open("wb") as log:
            process = subprocess.Popen(
                [*command, *(["--attached"] if attached else [])],
                stdin=subprocess.PIPE if attached else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._supervisors[folder.run] = process
        deadline = time.monotonic() + _START_SECONDS
        while True:
            # Asked first: it may have reported, and even ended the run, before it went.
            is_gone = process.poll() is not None
            if self._supervisor_event(folder) is not None:
                return
            if is_gone or time.monotonic() > deadline:
                process.kill()
                folder.append_event("run", state=RunState.FAILED, reason="the run's supervisor did not start")
                said = folder.supervisor_log.read_text(errors="replace").strip()
                raise PlatformError(f"the run's supervisor did not start: {said[-2000:] or 'it said nothing'}")
            time.sleep(_POLL_SECONDS / 5)

    def status(self, folder: RunFolder) -> RunStatus:
        """Replay the supervisor's events; where it was killed, end what is left and say so."""
        status = self._replay(folder)
        if status.state.is_ended or self._is_supervised(folder):
            return status
        # It may have ended the run, and then itself, between the two looks.
        status = self._replay(folder)
        if status.state.is_ended or self._is_being_submitted(folder, status):
            return status
        processes.kill_marked(f"{identity.RUN}={folder.run}")
        folder.append_event("run", state=RunState.FAILED, reason="the run's supervisor process was killed")
        return self._replay(folder)

    def logs(self, folder: RunFolder, task: str, *, follow: bool) -> Iterator[str]:
        """Read the task's log file."""
        folder.job.group_of(task)
        path = folder.log_file(task)
        position = 0
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        while True:
            # Asked first, so that nothing written before the end is missed.
            is_last = not follow or self.status(folder).state.is_ended
            if path.exists():
                with path.open("rb") as file:
                    file.seek(position)
                    while content := file.read(_LOG_PIECE_BYTES):
                        yield decoder.decode(content)
                    position = file.tell()
            if is_last:
                yield decoder.decode(b"", final=True)
                return
            time.sleep(_POLL_SECONDS * 4)

    def cancel(self, folder: RunFolder) -> None:
        """Ask the supervisor to stop the run; where it does not, end everything by force."""
        deadline = time.monotonic() + folder.job.timeouts.stop_seconds + _EXTRA_STOP_SECONDS
        asked = False
        while not self.status(folder).state.is_ended:
            pid = self._supervisor_pid(folder)
            if pid is not None and not asked:
                processes.send_signal(pid, signal.SIGTERM)
                asked = True
            elif pid is not None and time.monotonic() > deadline:
                processes.send_signal(pid, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)
        self._reap(folder)

    def check(self) -> list[Finding]:
        """Look for Linux's process descriptors and a TensorFlow."""
        from importlib.util import find_spec

        has_tensorflow = find_spec("tensorflow") is not None
        return [
            Finding(
                "Linux", hasattr(os, "pidfd_open") and sys.platform == "linux", "process descriptors (5.3 or newer)"
            ),
            Finding("tensorflow", has_tensorflow, "installed" if has_tensorflow else "pip install tensorflow"),
        ]

    def _replay(self, folder: RunFolder) -> RunStatus:
        status = replay(folder.run, self.name, folder.job.tasks, folder.events())
        if status.state.is_ended:
            self._reap(folder)
        return status

    def _reap(self, folder: RunFolder) -> None:
        process = self._supervisors.pop(folder.run, None)
        if process is not None:
            if process.stdin:
                process.stdin.close()
            process.wait(timeout=_EXTRA_STOP_SECONDS)

    def _supervisor_pid(self, folder: RunFolder) -> int | None:
        """Return the supervisor's pid if it lives."""
        event = self._supervisor_event(folder) or {}
        pid: int | None = event.get("pid")
        return pid if pid is not None and processes.start_time(pid) == event["start_time"] else None

    def _supervisor_event(self, folder: RunFolder) -> dict[str, Any] | None:
        """Return what the supervisor wrote first, with its pid; None where it has not yet."""
        return next((event for event in folder.events() if event.get("event") == "supervisor"), None)

    def _is_supervised(self, folder: RunFolder) -> bool:
        return self._supervisor_pid(folder) is not None

    def _is_being_submitted(self, folder: RunFolder, status: RunStatus) -> bool:
        """Say whether the supervisor may still be on its way."""
        return status.state is RunState.PENDING and time.time() - folder.record()["created"] < _START_SECONDS
