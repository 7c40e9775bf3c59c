"""The process that stands behind each task: joins, tells the program who is where, runs it, reports its end.

One thread and one selector watch four things: the program's end, what its runner reports, the run's server, signals.
Whatever happens, the program and all its descendants are gone before the agent is.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from types import FrameType

from gridflow import processes
from gridflow.errors import GridflowError, RendezvousError, TaskError
from gridflow.job import Job
from gridflow.rendezvous.client import Client
from gridflow.rendezvous.roster import Address, Roster
from gridflow.state import Exit
from gridflow.store import RunFolder
from gridflow.task import identity as names
from gridflow.task.child import Child
from gridflow.task.command import program_command, program_environment
from gridflow.task.identity import TaskIdentity
from gridflow.task.ports import ReservedPort

_HEARTBEATS_PER_LEASE = 6
#: The supervisor's own deadline comes first and names who is missing; this one is for when it cannot.
_EXTRA_JOIN_SECONDS = 60.0


def say(text: str) -> None:
    """Put a line of Gridflow's own into the task's log."""
    print(f"[gridflow] {text}", flush=True)  # noqa: T201


class Agent:
    """One task, from joining to its end."""

    def __init__(self, identity: TaskIdentity, job: Job, folder: RunFolder) -> None:
        self._identity = identity
        self._job = job
        self._folder = folder
        self._error = ""

    def run(self, environ: Mapping[str, str]) -> None:
        """Take part in the run until the task's program has ended."""
        task, stop_seconds = self._identity.task, self._job.timeouts.stop_seconds
        start_seconds = self._job.timeouts.start_seconds + _EXTRA_JOIN_SECONDS
        server = Address.parse(self._identity.rendezvous)
        with Client.connect(server, self._folder.secret(), task, timeout_seconds=start_seconds) as client:
            try:
                port = ReservedPort(self._identity.port)
            except TaskError as error:
                client.send({"type": "ended", "exit_code": 1, "reason": str(error), "port_taken": True})
                raise
            with port:
                roster = client.join(Address(self._identity.host, port.number), timeout_seconds=start_seconds)
                with _SignalSocket() as stop_signals:
                    child = self._start(roster, environ, stop_seconds)
                    try:
                        client.send({"type": "running", "pid": child.pid})
                        exit_ = self._watch(child, client, stop_signals)
                        self._report_failure(client, child, exit_)
                    finally:
                        # Only this: the agent may be past its server's end, and nothing may outlive it.
                        self._sweep()
                say(f"{task} has ended: {exit_}")
                self._report_end(client, exit_, port)

    def _start(self, roster: Roster, environ: Mapping[str, str], stop_seconds: float) -> Child:
        variables = program_environment(self._job, self._folder, roster, self._identity.task)
        argv = program_command(self._job, self._folder, roster, self._identity.task)
        attempt = f", restart {self._identity.restart}" if self._identity.restart else ""
        say(f"{self._identity.task} is {roster[self._identity.task]}{attempt}; starting {self._job.program.target}")
        return Child(argv, {**environ, **variables}, stop_seconds)

    def _watch(self, child: Child, client: Client, stop_signals: _SignalSocket) -> Exit:
        """Wait for the program's end; meanwhile keep the server informed and obey it."""
        connected, next_heartbeat = True, 0.0
        with selectors.DefaultSelector() as selector:
            for source in (child.exit_fd, child.report_fd, client, stop_signals):
                selector.register(source, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select(timeout=1.0)]
                if child.exit_fd in ready:
                    # Its last words may have come with its end.
                    self._forward_reports(child, client if connected else None)
                    return child.reap()
                if stop_signals in ready:
                    stop_signals.clear()
                    child.hurry()
                if child.report_fd in ready:
                    self._forward_reports(child, client if connected else None)
                    if child.is_silent:
                        selector.unregister(child.report_fd)
                if connected:
                    try:
                        if time.monotonic() >= next_heartbeat:
                            client.heartbeat()
                            next_heartbeat = time.monotonic() + client.lease_seconds / _HEARTBEATS_PER_LEASE
                        for message in client.receive():
                            if message["type"] == "stop":
                                child.stop()
                    except RendezvousError as error:
                        say(f"the run's server is gone ({error}); stopping")
                        connected = False
                        selector.unregister(client)
                        child.stop()
                child.kill_if_overdue()
                processes.reap_adopted({child.pid})

    def _forward_reports(self, child: Child, client: Client | None) -> None:
        for report in child.reports():
            if report["type"] == "error":
                self._error = report["error"]
                child.expect_end()
            if client is not None:
                client.send(report)

    def _report_failure(self, client: Client, child: Child, exit_: Exit) -> None:
        """Tell at once that the program has failed, before its peers do, which fail for lack of it."""
        # A program that somebody else has killed may have been asked to end while it was dying.
        was_stopped = child.is_killed if exit_.signal == "SIGKILL" else child.is_asked_to_end
        if exit_.is_success or was_stopped or self._error:
            return
        with suppress(RendezvousError):
            client.send({"type": "error", "error": str(exit_), "signal": exit_.signal})

    def _report_end(self, client: Client, exit_: Exit, port: ReservedPort) -> None:
        port_taken = not exit_.is_success and port.was_taken(self._error)
        with suppress(RendezvousError):  # nobody may be left to tell
            client.send({"type": "ended", "exit_code": exit_.code, "signal": exit_.signal, "port_taken": port_taken})

    def _sweep(self) -> None:
        marks = f"{names.RUN}={self._identity.run}", f"{names.TASK}={self._identity.task}"
        killed = processes.kill_marked(*marks) + processes.kill_children()
        if killed:
            say(f"killed {len(killed)} processes that {self._identity.task} left behind")


class _SignalSocket:
    """SIGTERM and SIGINT as something a selector can wait for."""

    def __enter__(self) -> _SignalSocket:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        signal.set_wakeup_fd(self._write.fileno())
        self._handlers = {number: signal.signal(number, _ignore) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        self._read.close()
        self._write.close()

    def fileno(self) -> int:
        return self._read.fileno()

    def clear(self) -> None:
        self._read.recv(4096)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Leave the signal to the wake-up socket."""


def main() -> int:
    """Run the agent of the task that the environment describes."""
    try:
        processes.die_with_parent(int(os.environ.get(names.PARENT_PID) or os.getppid()), signal.SIGTERM)
        processes.adopt_orphans()
        identity = TaskIdentity.read(os.environ)
        folder = RunFolder(identity.run_dir)
        Agent(identity, folder.job, folder).run(os.environ)
    except GridflowError as error:
        say(f"error: {error}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
