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
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from gridflow import processes
from gridflow.errors import GridflowError, RendezvousError, RunCancelledError, TaskError
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

if TYPE_CHECKING:
    from gridflow.gpu.tickets import Ticket

_HEARTBEATS_PER_LEASE = 6
#: The supervisor's own deadline comes first and names who is missing; this one is for when it cannot.
_EXTRA_JOIN_SECONDS = 60.0
#: A wait that is shorter is nothing to speak of.
_SILENT_SECONDS = 1.0


def say(text: str) -> None:
    """Put a line of Gridflow's own into the task's log."""
    print(f"[gridflow] {text}", flush=True)  # noqa: T201


class Meeting(Protocol):
    """What an agent needs of the place where the run's tasks meet: a `Client`, or something that does the same."""

    @property
    def lease_seconds(self) -> float:
        """How long it may be silent."""

    def join(self, address: Address, *, timeout_seconds: float) -> Roster:
        """Say where this task is, and wait for the others."""

    def send(self, message: dict[str, Any]) -> None:
        """Report something."""

    def heartbeat(self) -> None:
        """Give a sign of life."""

    def receive(self) -> list[dict[str, Any]]:
        """Return what has come: `stop`."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when there is something to `receive`."""


class Agent:
    """One task, from joining to its end."""

    def __init__(self, identity: TaskIdentity, job: Job, folder: RunFolder) -> None:
        self._identity = identity
        self._job = job
        self._folder = folder
        self._error = ""
        self._next_heartbeat = 0.0
        #: Whether somebody other than the run's server wants the task to end: a person, or the platform.
        self.is_signalled = False

    def run(self, environ: Mapping[str, str]) -> None:
        """Take part in the run until the task's program has ended."""
        server = Address.parse(self._identity.rendezvous)
        secret, task = self._folder.secret(), self._identity.task
        with Client.connect(server, secret, task, timeout_seconds=self._start_seconds) as client:
            self.take_part(client, environ)

    @property
    def _start_seconds(self) -> float:
        return self._job.timeouts.start_seconds + _EXTRA_JOIN_SECONDS

    def take_part(self, client: Meeting, environ: Mapping[str, str]) -> Exit:
        """Join, run the program and report its end."""
        try:
            port = ReservedPort(self._identity.port)
        except TaskError as error:
            client.send({"type": "ended", "exit_code": 1, "reason": str(error), "port_taken": True})
            raise
        with port:
            address = Address(self._identity.host, port.number)
            roster = client.join(address, timeout_seconds=self._start_seconds)
            with _SignalSocket() as stop_signals, self._holding_gpus(roster, client, stop_signals, environ) as gpus:
                child = self._start(roster, environ, self._job.timeouts.stop_seconds, gpus)
                try:
                    if gpus is not None:
                        # Should the agent be killed, its program may use them for a moment longer.
                        gpus.include(child.pid)
                    client.send({"type": "running", "pid": child.pid})
                    exit_ = self._watch(child, client, stop_signals)
                    self._report_failure(client, child, exit_)
                finally:
                    # Only this: the agent may be past its server's end, and nothing may outlive it.
                    self._sweep()
            say(f"{self._identity.task} has ended: {exit_}")
            self._report_end(client, exit_, port)
        return exit_

    @contextmanager
    def _holding_gpus(
        self, roster: Roster, client: Meeting, stop_signals: _SignalSocket, environ: Mapping[str, str]
    ) -> Iterator[Ticket | None]:
        """Hold the GPUs that the task needs; None where it needs none."""
        if not self._job.group_of(self._identity.task).resources.gpus:
            yield None
            return
        # Late, since most tasks do without.
        from gridflow.gpu.tickets import Ticket
        from gridflow.task.gpus import claim_of

        with ExitStack() as held:
            try:
                ticket = Ticket.ask(claim_of(self._job, roster, self._identity), environ)
                held.callback(self._release_gpus, ticket)
                self._wait_for_gpus(ticket, client, stop_signals)
            except GridflowError as error:
                with suppress(RendezvousError):
                    client.send({"type": "error", "error": str(error)})
                    client.send({"type": "ended", "exit_code": error.exit_code, "reason": str(error)})
                raise
            yield ticket

    def _wait_for_gpus(self, ticket: Ticket, client: Meeting, stop_signals: _SignalSocket) -> None:
        """Wait for a grant; meanwhile keep the server informed and obey it."""
        if ticket.poll() is not None:
            return
        told, speak_at = "", time.monotonic() + _SILENT_SECONDS
        with selectors.DefaultSelector() as selector:
            for source in (ticket, client, stop_signals):
                selector.register(source, selectors.EVENT_READ)
            while ticket.poll() is None:
                why = f"it waits for {ticket.claim}: {ticket.why_waiting()}"
                if why != told and time.monotonic() >= speak_at:
                    told = why
                    say(f"{self._identity.task} is held: {why}")
                    client.send({"type": "held", "reason": why})
                ready = [key.fileobj for key, _ in selector.select(timeout=1.0)]
                if stop_signals in ready or self._is_told_to_stop(client):
                    raise RunCancelledError(f"{self._identity.task} was told to stop while {why}")

    def _release_gpus(self, ticket: Ticket) -> None:
        try:
            ticket.release()
        except GridflowError as error:
            # How the program ended matters more; what it held comes back when this process is gone.
            say(f"error: {error}")

    def _start(self, roster: Roster, environ: Mapping[str, str], stop_seconds: float, gpus: Ticket | None) -> Child:
        variables = program_environment(self._job, self._folder, roster, self._identity.task)
        if gpus is not None and gpus.grant is not None:
            say(f"{self._identity.task} has {gpus.grant.reason}")
            variables.update(gpus.grant.environment)
        argv = program_command(self._job, self._folder, roster, self._identity.task)
        attempt = f", restart {self._identity.restart}" if self._identity.restart else ""
        say(f"{self._identity.task} is {roster[self._identity.task]}{attempt}; starting {self._job.program.target}")
        return Child(argv, {**environ, **variables}, stop_seconds)

    def _watch(self, child: Child, client: Meeting, stop_signals: _SignalSocket) -> Exit:
        """Wait for the program's end; meanwhile keep the server informed and obey it."""
        connected = True
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
                    self.is_signalled = True
                    child.hurry()
                if child.report_fd in ready:
                    self._forward_reports(child, client if connected else None)
                    if child.is_silent:
                        selector.unregister(child.report_fd)
                if connected:
                    try:
                        if self._is_told_to_stop(client):
                            child.stop()
                    except RendezvousError as error:
                        say(f"the run's server is gone ({error}); stopping")
                        connected = False
                        selector.unregister(client)
                        child.stop()
                child.kill_if_overdue()
                processes.reap_adopted({child.pid})

    def _is_told_to_stop(self, client: Meeting) -> bool:
        """Give the server its signs of life, and see whether it wants the task to end."""
        if time.monotonic() >= self._next_heartbeat:
            client.heartbeat()
            self._next_heartbeat = time.monotonic() + client.lease_seconds / _HEARTBEATS_PER_LEASE
        return any(message["type"] == "stop" for message in client.receive())

    def _forward_reports(self, child: Child, client: Meeting | None) -> None:
        for report in child.reports():
            if report["type"] == "error":
                self._error = report["error"]
                child.expect_end()
            if client is not None:
                client.send(report)

    def _report_failure(self, client: Meeting, child: Child, exit_: Exit) -> None:
        """Tell at once that the program has failed, before its peers do, which fail for lack of it."""
        # A program that somebody else has killed may have been asked to end while it was dying.
        was_stopped = child.is_killed if exit_.signal == "SIGKILL" else child.is_asked_to_end
        if exit_.is_success or was_stopped or self._error:
            return
        with suppress(RendezvousError):
            client.send({"type": "error", "error": str(exit_), "signal": exit_.signal})

    def _report_end(self, client: Meeting, exit_: Exit, port: ReservedPort) -> None:
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
