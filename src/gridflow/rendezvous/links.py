"""A connection between two processes of a run that carries data: messages, each with any number of bytes after it.

    Link.connect ── messages.Channel ══ TCP or a Unix socket ══ messages.Channel ── LinkServer ──► serve(link)

Both sides prove the run's secret before anything else, as at the rendezvous. What follows a message is sent as it is:
a proof for every byte would cost more than all else that is done with them. Everything here blocks, with deadlines;
one thread may send while another receives, and the server gives each of its links one. No byte is read before it is
asked for, so that a link can be waited for with a selector.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TypeAlias

from gridflow.errors import RendezvousError
from gridflow.rendezvous.messages import NONCE_BYTES, Channel, Message, Side
from gridflow.rendezvous.roster import Address

_logger = logging.getLogger(__name__)

#: Where a link leads: a TCP address, or the name of a Unix socket on this host. No file stands for it, so that none is
#: left by a process that was killed.
Place: TypeAlias = Address | str
Bytes: TypeAlias = bytes | bytearray | memoryview

_HELLO_SECONDS = 10.0
#: How long the other side may pause in the middle of a message, or leave what it is sent unread.
_STALL_SECONDS = 120.0
_UNREACHABLE_MILLISECONDS = 60_000
_BUFFERS_PER_SEND = 64
_SOCKET_BUFFER_BYTES = 1 << 20
_MAX_STRANGERS = 256
_JOIN_SECONDS = 10.0
#: What accepting a connection may raise while the listener is well: no descriptor left, the peer gone already.
_PASSING_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ECONNABORTED)
_PAUSE_SECONDS = 0.2


def _unix_address(name: str) -> str:
    """Return Linux's address of a socket that has a name and no file."""
    return f"\0{name}"


class Link:
    """One side of a connection whose other side knows the secret."""

    def __init__(self, connection: socket.socket, secret: bytes, side: Side) -> None:
        self._socket = connection
        self._channel = Channel(side, secret, os.urandom(NONCE_BYTES))
        if connection.family == socket.AF_UNIX:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREACHABLE_MILLISECONDS)

    @classmethod
    def connect(cls, place: Place, secret: bytes, *, timeout_seconds: float = _HELLO_SECONDS) -> Link:
        """Reach a LinkServer, and prove the secret to each other."""
        connection = None
        try:
            if isinstance(place, str):
                connection = socket.socket(socket.AF_UNIX)
                connection.settimeout(timeout_seconds)
                connection.connect(_unix_address(place))
            else:
                connection = socket.create_connection((place.host, place.port), timeout=timeout_seconds)
            link = cls(connection, secret, "client")
            link._shake_hands(timeout_seconds)
            link.send({"type": "enter"})
            link._expect("welcome", timeout_seconds)
        except (OSError, RendezvousError) as error:
            if connection is not None:
                connection.close()
            raise RendezvousError(
                f"cannot connect to {place}: {error}", hint="is the run still there, and can this machine reach it?"
            ) from error
        return link

    @classmethod
    def accept(cls, connection: socket.socket, secret: bytes) -> Link:
        """Take a connection in, once the other side has proved the secret."""
        link = cls(connection, secret, "server")
        link._shake_hands(_HELLO_SECONDS)
        link._expect("enter", _HELLO_SECONDS)
        link.send({"type": "welcome"})
        return link

    def _shake_hands(self, timeout_seconds: float) -> None:
        self._socket.settimeout(timeout_seconds)
        self._socket.sendall(self._channel.hello)
        while not self._channel.is_open:
            self._read_wanted()

    def _expect(self, kind: str, timeout_seconds: float) -> None:
        message = self.receive(timeout_seconds)
        if message is None or message["type"] != kind:
            raise RendezvousError(f"the other side should have said {kind!r}, and said {message and message['type']!r}")
        self._socket.settimeout(_STALL_SECONDS)

    def send(self, message: Message, *bulk: Bytes) -> None:
        """Send a message, and after it the bytes of any number of buffers, whose count the receiver must know."""
        self._send_all([self._channel.encode(message), *bulk])

    def receive(self, timeout_seconds: float) -> Message | None:
        """Wait for the next message; None where none has begun to arrive in time."""
        waiter = select.poll()
        waiter.register(self._socket, select.POLLIN)
        if not waiter.poll(timeout_seconds * 1000):
            return None
        with _losing():
            while not (messages := self._read_wanted()):
                pass
        return messages[0]

    def receive_bulk(self, buffer: bytearray | memoryview) -> None:
        """Fill a buffer with the bytes that follow the last message."""
        view = memoryview(buffer).cast("B")
        with _losing():
            while view:
                count = self._socket.recv_into(view)
                if not count:
                    raise ConnectionAbortedError("the other side closed it")
                view = view[count:]

    def fileno(self) -> int:
        """Give the descriptor that is readable when a message has begun to arrive."""
        return self._socket.fileno()

    @property
    def own_host(self) -> str:
        """The name of this side's end: an address under which the other side's network finds this host."""
        return "127.0.0.1" if self._socket.family == socket.AF_UNIX else str(self._socket.getsockname()[0])

    def abort(self) -> None:
        """Wake whoever waits for this link, in any thread, with an error."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_wanted(self) -> list[Message]:
        data = self._socket.recv(self._channel.wanted_bytes)
        if not data:
            raise ConnectionAbortedError("the other side closed it")
        return self._channel.feed(data)

    def _send_all(self, parts: list[Bytes]) -> None:
        views = deque(memoryview(part).cast("B") for part in parts if len(part))
        with _losing():
            while views:
                sent = self._socket.sendmsg(list(islice(views, _BUFFERS_PER_SEND)))
                while views and sent >= len(views[0]):
                    sent -= len(views.popleft())
                if sent:
                    views[0] = views[0][sent:]


@contextmanager
def _losing() -> Iterator[None]:
    """Turn what a socket raises in the middle of something into the loss of the connection."""
    try:
        yield
    except TimeoutError as error:
        raise RendezvousError(f"the other side did nothing for {_STALL_SECONDS:g} s") from error
    except OSError as error:
        raise RendezvousError(f"the connection was lost: {error}") from error


class LinkServer:
    """Listens at one or more places and calls `serve(link)` in a thread for each link; closed when that returns."""

    def __init__(self, secret: bytes, serve: Callable[[Link], None]) -> None:
        self._secret = secret
        self._serve = serve
        self._listeners: list[socket.socket] = []
        self._lock = threading.Lock()
        self._links: dict[threading.Thread, socket.socket] = {}
        self._strangers = threading.Semaphore(_MAX_STRANGERS)
        self._threads: list[threading.Thread] = []

    def listen(self, host: str, port: int = 0) -> Address:
        """Listen on TCP; port 0 takes a free one."""
        try:
            listener = socket.create_server((host, port), backlog=1024)
        except OSError as error:
            raise RendezvousError(f"cannot listen on {host!r}, port {port}: {error.strerror}") from error
        self._start(listener)
        return Address(*listener.getsockname()[:2])

    def listen_on(self, name: str) -> None:
        """Listen on a Unix socket."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(_unix_address(name))
            listener.listen(1024)
        except OSError as error:
            listener.close()
            raise RendezvousError(f"cannot listen on the Unix socket {name!r}: {error}") from error
        self._start(listener)

    def listen_with(self, listener: socket.socket) -> None:
        """Listen with a socket that does so already; it is closed with the others."""
        self._start(listener)

    def stop(self) -> None:
        """Close everything and wait for the threads that serve."""
        for listener in self._listeners:
            with suppress(OSError):
                # Wakes the thread that accepts.
                listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)
        for listener in self._listeners:
            listener.close()
        with self._lock:
            links = dict(self._links)
        for connection in links.values():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in links:
            if thread is not threading.current_thread():
                thread.join(_JOIN_SECONDS)

    def __enter__(self) -> LinkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self, listener: socket.socket) -> None:
        self._listeners.append(listener)
        thread = threading.Thread(target=self._accept, args=(listener,), name="gridflow-accept", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:
                if error.errno not in _PASSING_ERRORS:
                    return
                time.sleep(_PAUSE_SECONDS)
                continue
            if not self._strangers.acquire(blocking=False):
                connection.close()
                continue
            thread = threading.Thread(target=self._greet, args=(connection,), name="gridflow-link", daemon=True)
            with self._lock:
                self._links[thread] = connection
            thread.start()

    def _greet(self, connection: socket.socket) -> None:
        try:
            with connection:
                try:
                    link = Link.accept(connection, self._secret)
                finally:
                    self._strangers.release()
                self._serve(link)
        except (RendezvousError, OSError) as error:
            _logger.info("a link ended: %s", error)
        except Exception:
            # The root of a thread: nobody else would hear of it.
            _logger.exception("a link was not served")
        finally:
            with self._lock:
                del self._links[threading.current_thread()]
