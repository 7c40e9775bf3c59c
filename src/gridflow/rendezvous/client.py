"""A task's side of the rendezvous: connect, join, then stay in touch.

Synchronous and for one thread; between `join` and `close` it fits into a `selectors` loop through `fileno()`.
"""

from __future__ import annotations

import os
import socket
import time
import zlib
from typing import TYPE_CHECKING

from gridflow.errors import DeadlineError, RendezvousError, RunCancelledError
from gridflow.rendezvous.messages import NONCE_BYTES, Channel, Message
from gridflow.rendezvous.roster import Address, Roster, list_names

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0
_SEND_SECONDS = 30.0
_CLOSE_SECONDS = 1.0
_READ_BYTES = 256 * 1024


class Client:
    """A task's connection to the server of its run; `connect` makes one."""

    def __init__(
        self, connection: socket.socket, server: Address, secret: bytes, task: str, clock: Callable[[], float]
    ) -> None:
        self.server = server
        self.task = task
        self.lease_seconds = 0.0
        self._socket = connection
        self._channel = Channel("client", secret, os.urandom(NONCE_BYTES))
        self._clock = clock
        self._inbox: list[Message] = []
        self._waiting: Message | None = None

    @classmethod
    def connect(
        cls,
        server: Address,
        secret: bytes,
        task: str,
        *,
        timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> Client:
        """Reach the server, which may not be up yet, and prove the secret to each other."""
        deadline = clock() + timeout_seconds
        pause = _FIRST_PAUSE_SECONDS
        # many tasks may be turned away at the same moment: their names spread their return
        spread = 1 + zlib.crc32(task.encode()) / 2**32
        while True:
            try:
                return cls._enter(server, secret, task, deadline, clock)
            except OSError as error:
                remaining = deadline - clock()
                if remaining <= 0:
                    raise DeadlineError(
                        f"{task} could not reach the rendezvous server at {server} within {timeout_seconds:g} s: "
                        f"{error}",
                        hint="is the run still there, and can this machine connect to that address?",
                    ) from error
            time.sleep(min(pause * spread, remaining))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    @classmethod
    def _enter(cls, server: Address, secret: bytes, task: str, deadline: float, clock: Callable[[], float]) -> Client:
        connection = socket.create_connection((server.host, server.port), timeout=_until(deadline, clock))
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client = cls(connection, server, secret, task, clock)
            client._shake_hands(deadline)
        except BaseException:
            connection.close()
            raise
        return client

    def _shake_hands(self, deadline: float) -> None:
        self._socket.sendall(self._channel.hello)
        while not self._channel.is_open:
            self._read_some(deadline)
        self._socket.sendall(self._channel.encode({"type": "enter", "task": self.task}))
        while not self._inbox:
            self._read_some(deadline)
        self.lease_seconds = float(self._inbox.pop(0)["lease_seconds"])
        # heartbeats that a vanished machine never acknowledges end the connection within a lease
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self.lease_seconds * 1000))

    def _read_some(self, deadline: float) -> None:
        self._socket.settimeout(_until(deadline, self._clock))
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionAbortedError("it closed the connection")
        self._feed(data)

    def join(self, address: Address, *, timeout_seconds: float) -> Roster:
        """Say where this task is and wait until all tasks of the run have done so.

        Messages of other kinds that arrive meanwhile are kept for `receive`, except that being told to stop ends
        the wait with RunCancelledError.
        """
        deadline = self._clock() + timeout_seconds
        # each heartbeat is answered with who is missing, so ask often enough to know it at the deadline
        interval = min(self.lease_seconds, timeout_seconds) / 4
        next_heartbeat = self._clock() + interval
        self.send({"type": "join", "address": str(address)})
        while True:
            roster = self._take_roster()
            if roster is not None:
                return roster
            now = self._clock()
            if now >= deadline:
                raise self._waited_in_vain(timeout_seconds)
            if now >= next_heartbeat:
                self.heartbeat()
                next_heartbeat = now + interval
            try:
                self._read_some(min(deadline, next_heartbeat))
            except TimeoutError:
                continue
            except OSError as error:
                raise self._gone(error) from error

    def _take_roster(self) -> Roster | None:
        for position, message in enumerate(self._inbox):
            if message["type"] == "stop":
                raise RunCancelledError(f"{self.task} was told to stop while it waited for the other tasks to join")
            if message["type"] == "roster":
                del self._inbox[position]
                return Roster.from_dict(message["tasks"])
        return None

    def _waited_in_vain(self, timeout_seconds: float) -> DeadlineError:
        waited = f"{self.task} waited {timeout_seconds:g} s for all tasks to join at {self.server}"
        if self._waiting is None:
            return DeadlineError(f"{waited} and heard nothing from the server", hint="is the run's supervisor stuck?")
        missing = list_names(self._waiting["missing"], self._waiting["count"])
        return DeadlineError(
            f"{waited}; missing: {missing}", hint="see the logs of the missing tasks, or allow more time to join"
        )

    def send(self, message: Message) -> None:
        """Report something to the run's supervisor."""
        frame = self._channel.encode(message)
        self._socket.settimeout(_SEND_SECONDS)
        try:
            self._socket.sendall(frame)
        except OSError as error:
            raise self._gone(error) from error

    def heartbeat(self) -> None:
        """Give a sign of life, to be repeated several times per `lease_seconds`."""
        self.send({"type": "heartbeat"})

    def fileno(self) -> int:
        """Give the descriptor that becomes readable when there is something to `receive`."""
        return self._socket.fileno()

    def receive(self) -> list[Message]:
        """Take the messages that have arrived, without waiting.

        Call it once after `join` too: what arrived together with the roster makes no descriptor readable.
        """
        self._socket.setblocking(False)
        try:
            while data := self._socket.recv(_READ_BYTES):
                self._feed(data)
        except BlockingIOError:
            pass
        except OSError as error:
            if not self._inbox:
                raise self._gone(error) from error
        else:
            if not self._inbox:
                raise self._gone("it closed the connection")
        messages, self._inbox = self._inbox, []
        return messages

    def _feed(self, data: bytes) -> None:
        try:
            messages = self._channel.feed(data)
        except RendezvousError as error:
            raise type(error)(f"{self.task} cannot trust {self.server}: {error.message}", hint=error.hint) from error
        for message in messages:
            if message["type"] == "refused":
                raise RendezvousError(f"{self.server} refused {self.task}: {message.get('reason')}")
            if message["type"] == "waiting":
                self._waiting = message
            else:
                self._inbox.append(message)

    def _gone(self, reason: OSError | str) -> RendezvousError:
        return RendezvousError(
            f"{self.task} lost the rendezvous server at {self.server}: {reason}", hint="the run has probably ended"
        )

    def close(self) -> None:
        """Close the connection, which tells the server that this task is gone, after all that it reported."""
        deadline = self._clock() + _CLOSE_SECONDS
        try:
            self._socket.shutdown(socket.SHUT_WR)
            # closing with something unread would reset the connection and lose what is still on its way to the server
            self._socket.settimeout(_until(deadline, self._clock))
            while self._socket.recv(_READ_BYTES) and self._clock() < deadline:
                pass
        except OSError:
            # the server is gone or stuck, or this is the second call: nothing more can be done for the last words
            pass
        finally:
            self._socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _until(deadline: float, clock: Callable[[], float]) -> float:
    # a timeout of 0 would make the socket non-blocking
    return max(deadline - clock(), 0.001)
