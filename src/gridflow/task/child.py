"""A program as a supervised child: its own session, watched through a pidfd, ended for certain."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from gridflow.state import Exit
from gridflow.task.identity import PARENT_PID, REPORT_FD


class Child:
    """A running program."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], stop_seconds: float) -> None:
        self._stop_seconds = stop_seconds
        self._kill_at: float | None = None
        #: Whether the program was asked to end; if not, it ended by itself or by somebody else's hand.
        self.is_asked_to_end = False
        #: Whether its time was up, so that it was killed here.
        self.is_killed = False
        self.report_fd, report_end = os.pipe()
        os.set_blocking(self.report_fd, False)
        self._unread = b""
        #: Whether no more reports can come: another program has taken the runner's place.
        self.is_silent = False
        try:
            self._process = subprocess.Popen(
                argv,
                env={**environment, REPORT_FD: str(report_end), PARENT_PID: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                pass_fds=(report_end,),
                start_new_session=True,
            )
        except OSError:
            os.close(self.report_fd)
            raise
        finally:
            os.close(report_end)
        self.exit_fd = os.pidfd_open(self._process.pid)

    @property
    def pid(self) -> int:
        """The program's process id."""
        return self._process.pid

    def reports(self) -> list[dict[str, Any]]:
        """Return what the program's runner has reported since the last call."""
        try:
            content = os.read(self.report_fd, 1 << 20)
        except BlockingIOError:
            return []
        self.is_silent = not content
        self._unread += content
        *lines, self._unread = self._unread.split(b"\n")
        return [json.loads(line) for line in lines]

    def stop(self) -> None:
        """Ask the program to end, once; it has `stop_seconds`, or what is left of them if its end was expected."""
        if not self.is_asked_to_end:
            self.is_asked_to_end = True
            self.expect_end()
            # To the whole group: a shell script would otherwise die and leave its program unasked.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)

    def hurry(self) -> None:
        """Ask the program to end; where it was asked before, kill it."""
        if self.is_asked_to_end:
            self._kill_at = time.monotonic()
        self.stop()

    def expect_end(self) -> None:
        """Give the program `stop_seconds` to end by itself."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._stop_seconds

    def kill_if_overdue(self) -> None:
        """Kill the program's whole process group if its time is up."""
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self.is_killed = True
            os.killpg(self._process.pid, signal.SIGKILL)

    def reap(self) -> Exit:
        """Return how the program ended. To be called when `exit_fd` is readable."""
        returncode = self._process.wait()
        os.close(self.exit_fd)
        os.close(self.report_fd)
        return Exit.from_returncode(returncode)
