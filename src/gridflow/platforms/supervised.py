"""Platforms whose runs have a supervisor: a process of its own, or a thread of the process that has the means.

    gridflow run ─▶ supervisor ─▶ agents          status, logs, cancel: by anybody, through the run's folder
        (attached: a pipe)   └─▶ events.jsonl ─▶

The supervisor writes the run's events; everybody else only reads them. If it was killed, whoever asks next finds
that out, ends what is left and says so.
"""

from __future__ import annotations

import signal
import subprocess
import time
from abc import abstractmethod
from typing import Any

from gridflow import processes
from gridflow.errors import PlatformError
from gridflow.platforms.base import Plan, Platform
from gridflow.platforms.companions import Companions
from gridflow.platforms.crew import Crew
from gridflow.state import RunState, RunStatus, replay
from gridflow.store import RunFolder
from gridflow.task import identity

#: How long the supervisor may take to report that it is there.
_START_SECONDS = 30.0
_POLL_SECONDS = 0.05


class SupervisedPlatform(Platform):
    """A platform whose runs are watched over by a supervisor."""

    #: How long the platform may take to let a run in.
    open_seconds = 30.0
    #: On top of a job's stop timeout: after that a supervisor that was asked to stop is killed.
    close_seconds = 15.0

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._companions = Companions()

    @abstractmethod
    def crew(self, folder: RunFolder) -> Crew:
        """Return who starts and ends the agents of a run."""

    def submit(self, plan: Plan, folder: RunFolder, *, attached: bool) -> None:
        """Write the plan's files and start the supervisor, which performs the rest."""
        self.prepare(plan, folder)
        words = ("--attached",) if attached else ()
        process = self._companions.start(folder, "gridflow.platforms.supervisor", *words, attached=attached)
        self.wait_until_open(folder, process)

    def wait_until_open(self, folder: RunFolder, process: subprocess.Popen[bytes] | None) -> None:
        """Wait until the supervisor has begun the run, or say why the platform refused it."""
        started = time.monotonic()
        while True:
            # Asked first: it may have reported, and even ended the run, before it went.
            is_gone = process is not None and process.poll() is not None
            events = {event["event"]: event for event in folder.events()}
            if "refused" in events:
                self._companions.reap(folder, timeout_seconds=self.close_seconds)
                raise PlatformError(events["refused"]["reason"], hint=events["refused"]["hint"])
            if {"supervisor", "run"} <= events.keys():
                return
            allowed_seconds = self.open_seconds if "supervisor" in events else _START_SECONDS
            if is_gone or time.monotonic() - started > allowed_seconds:
                if process is not None:
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

    def cancel(self, folder: RunFolder) -> None:
        """Ask the supervisor to stop the run, and wait until it has; kill it if it does not."""
        deadline = time.monotonic() + folder.job.timeouts.stop_seconds + self.close_seconds
        if not self.status(folder).state.is_ended:
            folder.request_cancel()
        while not self.status(folder).state.is_ended:
            if time.monotonic() > deadline:
                self._end_by_force(folder)
            time.sleep(_POLL_SECONDS)
        self._companions.reap(folder, timeout_seconds=self.close_seconds)

    def _replay(self, folder: RunFolder) -> RunStatus:
        status = replay(folder.run, self.name, folder.job.tasks, folder.events())
        if status.state.is_ended:
            self._companions.reap(folder, timeout_seconds=self.close_seconds)
        return status

    def _end_by_force(self, folder: RunFolder) -> None:
        event = self._supervisor_event(folder)
        if event is None or not self._is_supervised(folder):
            return
        if event["is_thread"]:
            raise PlatformError(
                f"run {folder.run} does not stop",
                hint=f"it is watched over by a thread of process {event['pid']}; end that",
            )
        processes.send_signal(event["pid"], signal.SIGKILL)

    def _supervisor_event(self, folder: RunFolder) -> dict[str, Any] | None:
        """Return what the supervisor wrote first, with its pid; None where it has not yet."""
        return next((event for event in folder.events() if event.get("event") == "supervisor"), None)

    def _is_supervised(self, folder: RunFolder) -> bool:
        event = self._supervisor_event(folder)
        return event is not None and processes.start_time(event["pid"]) == event["start_time"]

    def _is_being_submitted(self, folder: RunFolder, status: RunStatus) -> bool:
        """Say whether the supervisor may still be on its way."""
        has_begun = self._supervisor_event(folder) is not None
        is_young = time.time() - folder.record()["created"] < _START_SECONDS
        return status.state is RunState.PENDING and not has_begun and is_young
