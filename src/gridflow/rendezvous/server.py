"""The run's side of the rendezvous: one asyncio server for all tasks, in the process that supervises the run.

    accept ──► stranger ── enter ──► known ── join ──► joined ──► gone
                  │ wrong secret, garbage, too late     │ replaced when its task joins on a new connection
                  ▼                                     ▼
               closed                                closed

Sockets are read and written through the loop's readers and writers rather than through streams: a connection then
costs no asyncio task, and all connections send the one roster payload in place instead of a copy each.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import deque
from dataclasses import dataclass, fields
from itertools import islice
from typing import TYPE_CHECKING

from gridflow.errors import RendezvousError
from gridflow.rendezvous.messages import MAX_MESSAGE_BYTES, NONCE_BYTES, Channel, Message, Payload, check_secret, pack
from gridflow.rendezvous.roster import NAMES_SHOWN, Address, Roster

if TYPE_CHECKING:
    from collections.abc import Callable

_logger = logging.getLogger(__name__)

_LISTEN_BACKLOG = 4096
_ACCEPTS_PER_TURN = 64
_ROSTERS_PER_TURN = 64
_READ_BYTES = 64 * 1024
_BUFFERS_PER_SEND = 16


@dataclass(frozen=True)
class Limits:
    """What strangers, slow readers and large messages may cost the server."""

    hello_seconds: float = 10.0  # for a stranger to prove the secret
    strangers: int = 256  # connections that have not proved it yet
    grace_seconds: float = 1.0  # until a stranger may be turned out in favour of a newer one
    message_bytes: int = MAX_MESSAGE_BYTES  # of one message from a task
    unsent_messages: int = 1000  # waiting for one task to read them
    send_seconds: float = 30.0  # for a task to read what is waiting for it
    stop_seconds: float = 2.0  # for all tasks to read what is waiting for them when the server stops
    accept_pause_seconds: float = 0.5  # when the process has no descriptor left

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise RendezvousError(f"limit {field.name}={value} is not above 0")


class Server:
    """Collects the addresses of all tasks, hands out the roster, and passes on what tasks report.

    `on_event(task, message)` is called in the event loop for `{"type": "join", "address": ...}`, for each report that
    a task sends, and for `{"type": "gone"}` when the connection of a joined task ends. Heartbeats only renew leases
    in the roster. While the server stops there are no events.
    """

    def __init__(
        self,
        roster: Roster,
        secret: bytes,
        on_event: Callable[[str, Message], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        limits: Limits | None = None,
    ) -> None:
        check_secret(secret)
        self._roster = roster
        self._secret = secret
        self._on_event = on_event
        self._clock = clock
        self._limits = limits or Limits()
        self._listener: socket.socket | None = None
        self._accept_timer: asyncio.TimerHandle | None = None
        self._connections: set[_Connection] = set()
        self._strangers: dict[_Connection, float] = {}
        self._joined: dict[str, _Connection] = {}
        self._welcome = pack({"type": "welcome", "lease_seconds": roster.lease_seconds})
        self._roster_payload: Payload | None = None
        self._has_warned = False
        self._is_stopping = False
        self._is_empty = asyncio.Event()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> Address:
        """Listen on one address; port 0 takes a free one."""
        self._loop = asyncio.get_running_loop()
        try:
            family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = socket.socket(family, kind, protocol)
            try:
                listener.setblocking(False)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(where)
                listener.listen(_LISTEN_BACKLOG)
            except OSError:
                listener.close()
                raise
        except OSError as error:
            raise RendezvousError(f"cannot listen on {host!r}, port {port}: {error.strerror}") from error
        self._listener = listener
        self._loop.add_reader(listener, self._accept, listener)
        return Address(*listener.getsockname()[:2])

    async def stop(self) -> None:
        """Close everything, after what was told has been sent or `stop_seconds` have passed."""
        self._is_stopping = True
        if self._accept_timer is not None:
            self._accept_timer.cancel()
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for connection in list(self._connections):
            connection.close_when_sent()
        if not self._connections:
            return
        self._is_empty.clear()
        try:
            async with asyncio.timeout(self._limits.stop_seconds):
                await self._is_empty.wait()
        except TimeoutError:
            for connection in list(self._connections):
                connection.close()

    def tell(self, task: str, message: Message) -> None:
        """Queue a message for a joined task; nothing happens if it is gone."""
        connection = self._joined.get(task)
        if connection is not None:
            connection.send(pack(message))

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                accepted, where = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                # a level-triggered listener would fire again at once, without end
                _logger.warning("cannot accept connections: %s; pausing", error)
                self._loop.remove_reader(listener)
                pause = self._limits.accept_pause_seconds
                self._accept_timer = self._loop.call_later(
                    pause, self._loop.add_reader, listener, self._accept, listener
                )
                return
            self._admit(accepted, f"{where[0]}:{where[1]}")

    def _admit(self, accepted: socket.socket, peer: str) -> None:
        now = self._loop.time()
        if len(self._strangers) >= self._limits.strangers:
            oldest, since = next(iter(self._strangers.items()))
            if now - since < self._limits.grace_seconds:
                accepted.close()
                return
            oldest.close()
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        channel = Channel("server", self._secret, os.urandom(NONCE_BYTES), max_message_bytes=self._limits.message_bytes)
        connection = _Connection(self, self._loop, accepted, channel, self._limits, peer)
        self._connections.add(connection)
        self._strangers[connection] = now

    def _on_message(self, connection: _Connection, message: Message) -> None:
        """Act on a message whose sender has proved the secret."""
        try:
            event = self._react(connection, message)
        except RendezvousError as error:
            self._on_error(connection, error)
            return
        if event is not None and connection.task is not None:
            self._report(connection.task, event)

    def _on_error(self, connection: _Connection, error: RendezvousError) -> None:
        """Part with a connection that broke the rules."""
        if connection.task is None and self._has_warned:
            _logger.debug("refused %s: %s", connection.name, error)
        elif connection.task is None:
            self._has_warned = True
            _logger.warning("refused %s: %s; further strangers are logged as debug messages", connection.name, error)
        else:
            _logger.warning("refused %s: %s", connection.name, error)
        connection.refuse(str(error))

    def _on_close(self, connection: _Connection) -> None:
        """Forget a connection, and report its task as gone unless a newer connection has taken over."""
        self._connections.discard(connection)
        self._strangers.pop(connection, None)
        if not self._connections:
            self._is_empty.set()
        task = connection.task
        if task is not None and self._joined.get(task) is connection:
            del self._joined[task]
            if not self._is_stopping:
                self._report(task, {"type": "gone"})

    def _report(self, task: str, event: Message) -> None:
        try:
            self._on_event(task, event)
        except Exception:
            # this is a root: the loop called us, and the messages that follow must not be lost
            _logger.exception("the event %r of %s was not handled", event["type"], task)

    def _react(self, connection: _Connection, message: Message) -> Message | None:
        if connection.task is None:
            self._enter(connection, message)
            return None
        self._roster.heard(connection.task, self._clock())
        if message["type"] == "join":
            return self._join(connection, connection.task, message)
        if message["type"] != "heartbeat":
            return message
        if not self._roster.is_complete and not connection.has_unsent:
            missing = self._roster.missing(NAMES_SHOWN)
            connection.send(pack({"type": "waiting", "missing": missing, "count": self._roster.missing_count}))
        return None

    def _enter(self, connection: _Connection, message: Message) -> None:
        task = message.get("task")
        if message["type"] != "enter" or not isinstance(task, str):
            raise RendezvousError(f"a connection began with {message['type']!r} instead of naming its task")
        self._roster.check_known(task)
        del self._strangers[connection]
        connection.welcome(task, self._welcome)

    def _join(self, connection: _Connection, task: str, message: Message) -> Message:
        was_complete = self._roster.is_complete
        address = Address.parse(str(message.get("address")))
        self._roster.join(task, address, self._clock())
        older = self._joined.get(task)
        self._joined[task] = connection
        if older is not None and older is not connection:
            older.refuse(f"{task} joined again on another connection")
        if self._roster.is_complete:
            if self._roster_payload is None:
                self._roster_payload = pack({"type": "roster", "tasks": self._roster.to_dict()})
            receivers = [connection] if was_complete else list(self._joined.values())
            self._send_rosters(self._roster_payload, deque(receivers))
        return {"type": "join", "address": str(address)}

    def _send_rosters(self, payload: Payload, receivers: deque[_Connection]) -> None:
        for _ in range(min(_ROSTERS_PER_TURN, len(receivers))):
            receivers.popleft().send(payload)
        if receivers:
            self._loop.call_soon(self._send_rosters, payload, receivers)


class _Connection:
    """One accepted socket: bytes in, messages out to the server, and a queue of what the peer has yet to read."""

    def __init__(
        self,
        server: Server,
        loop: asyncio.AbstractEventLoop,
        accepted: socket.socket,
        channel: Channel,
        limits: Limits,
        peer: str,
    ) -> None:
        self.task: str | None = None
        self._server = server
        self._loop = loop
        self._socket = accepted
        # asyncio formats whatever it does not know yet as text, which for a socket takes two system calls
        self._descriptor = accepted.fileno()
        self._channel = channel
        self._limits = limits
        self._peer = peer
        self._outbox: deque[bytes | memoryview] = deque()
        self._is_mute = False
        self._is_closing = False
        self._is_closed = False
        self._stall_timer: asyncio.TimerHandle | None = None
        self._hello_timer = loop.call_later(limits.hello_seconds, self._give_up, "did not prove the secret")
        loop.add_reader(self._descriptor, self._on_readable)
        self._write(channel.hello)

    @property
    def name(self) -> str:
        """Say who this is, for the log."""
        return f"a stranger at {self._peer}" if self.task is None else f"{self.task} at {self._peer}"

    @property
    def has_unsent(self) -> bool:
        """Whether the peer has yet to read something."""
        return bool(self._outbox)

    def welcome(self, task: str, payload: Payload) -> None:
        """Let a stranger in as a task."""
        self._hello_timer.cancel()
        self.task = task
        self.send(payload)

    def send(self, payload: Payload) -> None:
        """Send a message as soon as the peer reads; a peer that lets too many of them pile up is dropped."""
        if self._is_closing or self._is_mute:
            return
        if len(self._outbox) >= 2 * self._limits.unsent_messages:
            # not at once: whoever sends may not expect the event that follows
            self._loop.call_soon(self._give_up, f"left {self._limits.unsent_messages:,} messages unread")
            return
        self._write(self._channel.head(payload), payload.data)

    def refuse(self, reason: str) -> None:
        """Tell the peer why it has to go, if it can still be told, and close."""
        if self._channel.is_open:
            self.send(pack({"type": "refused", "reason": reason}))
        self.close_when_sent()

    def close_when_sent(self) -> None:
        """Close once the peer has read what is queued, or is too slow in doing so."""
        if self._is_closing:
            return
        self._is_closing = True
        self._loop.remove_reader(self._descriptor)
        if not self._outbox:
            self.close()

    def close(self) -> None:
        """Close at once; what is queued is lost."""
        if self._is_closed:
            return
        self._is_closing = self._is_closed = True
        self._hello_timer.cancel()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)
        self._socket.close()
        self._outbox.clear()
        self._server._on_close(self)

    def _give_up(self, reason: str) -> None:
        if not self._is_closed:
            level = logging.DEBUG if self.task is None else logging.WARNING
            _logger.log(level, "closed the connection of %s: it %s", self.name, reason)
            self.close()

    def _on_readable(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        try:
            messages = self._channel.feed(data)
        except RendezvousError as error:
            self._server._on_error(self, error)
            return
        for message in messages:
            if self._is_closing:
                return
            self._server._on_message(self, message)

    def _write(self, *parts: bytes) -> None:
        is_waiting = bool(self._outbox)
        self._outbox.extend(parts)
        if is_waiting:
            return
        self._send_queued()
        if self._outbox:
            self._loop.add_writer(self._descriptor, self._on_writable)
            reason = f"did not read what it was sent within {self._limits.send_seconds:g} s"
            self._stall_timer = self._loop.call_later(self._limits.send_seconds, self._give_up, reason)

    def _on_writable(self) -> None:
        self._send_queued()
        if self._outbox:
            return
        self._loop.remove_writer(self._descriptor)
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        if self._is_closing:
            self.close()

    def _send_queued(self) -> None:
        while self._outbox:
            try:
                sent = self._socket.sendmsg(list(islice(self._outbox, _BUFFERS_PER_SEND)))
            except BlockingIOError:
                return
            except OSError:
                # the peer has left, but maybe not without a last word: the reader takes that, then finds the end
                self._is_mute = True
                self._outbox.clear()
                return
            while sent:
                head = self._outbox[0]
                if sent < len(head):
                    self._outbox[0] = memoryview(head)[sent:]
                    break
                sent -= len(head)
                self._outbox.popleft()
