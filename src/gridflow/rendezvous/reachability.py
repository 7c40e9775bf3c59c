"""Whether tasks can connect to each other, seen before TensorFlow waits for it in vain.

Each task listens where its program will, answers whoever connects with its name, and connects to all others.
"""

from __future__ import annotations

import select
import socket
import time
from types import TracebackType

from gridflow.rendezvous.roster import Roster, list_names

_TRY_SECONDS = 5.0
_LONGEST_SECONDS = 15.0
_NAME_BYTES = 256


class Listening:
    """A task's port, on which it says its name to whoever connects."""

    def __init__(self, port: int, task: str) -> None:
        self._task = task
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("", port))
        self._socket.listen(128)
        self._socket.setblocking(False)

    def __enter__(self) -> Listening:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def answer(self, seconds: float) -> None:
        """Answer those who connect within this time."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([self._socket], [], [], left)[0]:
                return
            try:
                connection, _ = self._socket.accept()
            except OSError:
                continue
            with connection:
                connection.settimeout(_TRY_SECONDS)
                try:
                    connection.sendall(self._task.encode())
                except OSError:
                    continue


def unreachable(roster: Roster, task: str, seconds: float, answering: Listening) -> str:
    """Connect to every other task; return what is wrong, or nothing."""
    deadline = time.monotonic() + min(seconds, _LONGEST_SECONDS)
    left = {other: "" for other in roster.tasks if other != task}
    while left:
        for other in tuple(left):
            problem = _try(roster, other, answering)
            if problem:
                left[other] = problem
            else:
                del left[other]
        if left and time.monotonic() >= deadline:
            name, problem = next(iter(left.items()))
            return f"{task} at {roster[task]} cannot reach {list_names(tuple(left))} (at {roster[name]}: {problem})"
        answering.answer(0.1)
    return ""


def _try(roster: Roster, other: str, answering: Listening) -> str:
    """Connect to a task; return what is wrong, or nothing."""
    address = roster[other]
    try:
        with socket.create_connection((address.host, address.port), timeout=_TRY_SECONDS) as connection:
            # Two tasks that connect to each other must not wait for each other.
            deadline = time.monotonic() + _TRY_SECONDS
            while not select.select([connection], [], [], 0)[0]:
                if time.monotonic() > deadline:
                    return "it does not answer"
                answering.answer(0.05)
            name = connection.recv(_NAME_BYTES).decode(errors="replace")
    except OSError as error:
        return str(error)
    return "" if name == other else f"{name!r} answers there"
