"""How the nodes of a cluster tell each other where they are: a server in the driver, and a client in each node.

    client ── REG, QUERY, QINFO, STOP ──▶ server

Both sides prove that they know the server's secret before anything is read (`gridflow.rendezvous.messages`); it travels
with the server's address. What nodes say of themselves is pickled inside such a message.
"""

from __future__ import annotations

import base64
import logging
import os
import pickle
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from gridflow.compat.tensorflowonspark import util
from gridflow.errors import DeadlineError, RendezvousError, SettingsError, TaskFailedError
from gridflow.rendezvous.links import Link, LinkServer
from gridflow.rendezvous.messages import Message
from gridflow.rendezvous.roster import Address

logger = logging.getLogger(__name__)

#: The name under which nodes reach the server, and the port or range of ports, `9997-9999`, on which it listens.
TFOS_SERVER_HOST = "TFOS_SERVER_HOST"
TFOS_SERVER_PORT = "TFOS_SERVER_PORT"
MAX_RETRIES = 3
_SILENCE_SECONDS = 7 * 24 * 3600.0
_ANSWER_SECONDS = 60.0
_WAIT_SECONDS = 1.0
#: The number of the start that a node belongs to; see `Reservations.add`.
ATTEMPT = "attempt"


class ServerAddress(tuple[str, int]):
    """A server's host and port, with the secret that its clients must know; `repr` does not show it."""

    secret: bytes

    def __new__(cls, host: str, port: int, secret: bytes) -> ServerAddress:  # noqa: D102 - the class says it
        made = super().__new__(cls, (host, port))
        made.secret = secret
        return made

    def __getnewargs__(self) -> tuple[str, int, bytes]:
        return (*self, self.secret)


class Reservations:
    """What the nodes have said of themselves, until all have; safe for threads."""

    def __init__(self, required: int) -> None:
        self.required = required
        self.lock = threading.Condition(threading.RLock())
        self.reservations: list[Any] = []

    def add(self, meta: Any) -> None:
        """Take what a node says. Nodes that were all started again say it anew, and what they said before is void."""
        with self.lock:
            attempt = _attempt(meta)
            if attempt is not None:
                self.reservations = [each for each in self.reservations if _attempt(each) in (None, attempt)]
            self.reservations.append(meta)
            self.lock.notify_all()

    def done(self) -> bool:
        """Tell whether all nodes are there."""
        with self.lock:
            return len(self.reservations) >= self.required

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until all nodes are there; False where they are not in time."""
        with self.lock:
            return self.lock.wait_for(self.done, timeout_seconds)

    def get(self) -> list[Any]:
        """Return what was said so far."""
        with self.lock:
            return list(self.reservations)

    def remaining(self) -> int:
        """Return how many nodes are missing."""
        with self.lock:
            return self.required - len(self.reservations)


def _attempt(meta: Any) -> int | None:
    return meta.get(ATTEMPT) if isinstance(meta, Mapping) else None


class MessageSocket:
    """Sends and receives Python objects on a link whose other side has proved the secret."""

    def receive(self, sock: Link, timeout_seconds: float = _ANSWER_SECONDS) -> Any:
        """Wait for an object."""
        message = sock.receive(timeout_seconds)
        if message is None:
            raise RendezvousError(f"nothing came in {timeout_seconds:g} s")
        return pickle.loads(base64.b64decode(message["content"]))  # noqa: S301 - its proof was right

    def send(self, sock: Link, msg: Any) -> None:
        """Send an object."""
        content: Message = {"type": "object", "content": base64.b64encode(pickle.dumps(msg)).decode()}
        sock.send(content)


class Server(MessageSocket):
    """The driver's side; it serves each node in a thread."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise AssertionError(f"a cluster of {count} nodes is not possible: it has at least one")
        self.reservations = Reservations(count)
        self.done = False
        self._secret = secrets.token_bytes(32)
        self._links = LinkServer(self._secret, self._serve)

    def start(self, host: str | None = None) -> ServerAddress:
        """Listen, and return where; `host` is the name under which nodes find this one, unless a variable says it."""
        listener = self.start_listening_socket()
        port = listener.getsockname()[1]
        self._links.listen_with(listener)
        return ServerAddress(os.environ.get(TFOS_SERVER_HOST) or host or self.get_server_ip(), port, self._secret)

    def await_reservations(self, sc: Any, status: Mapping[str, Any] | None = None, timeout: float = 600) -> list[Any]:  # noqa: ARG002 - its name
        """Wait for all nodes, and return what they said; an `error` in `status` ends the wait."""
        deadline = time.monotonic() + timeout
        while not self.reservations.wait(_WAIT_SECONDS):
            if status and "error" in status:
                raise TaskFailedError(f"a node failed before all were there: {status['error']}")
            if time.monotonic() > deadline:
                missing = f"{self.reservations.remaining()} of {self.reservations.required} nodes"
                raise DeadlineError(f"timed out waiting for reservations to complete: {missing} did not come")
        return self.reservations.get()

    def get_server_ip(self) -> str:
        """Return the name under which nodes reach this host."""
        return os.environ.get(TFOS_SERVER_HOST) or util.get_ip_address()

    def get_server_ports(self) -> list[int]:
        """Return the ports to try; 0 means any."""
        given = os.environ.get(TFOS_SERVER_PORT, "0")
        try:
            first, _, last = given.partition("-")
            return list(range(int(first), int(last or first) + 1))
        except ValueError:
            raise SettingsError(
                f"{TFOS_SERVER_PORT}={given!r} is no port", hint="give one, 9999, or a range, 9997-9999"
            ) from None

    def start_listening_socket(self) -> socket.socket:
        """Listen on the first port that can be had."""
        ports = self.get_server_ports()
        for port in ports:
            try:
                return socket.create_server(("", port), backlog=1024)
            except OSError as error:
                logger.warning("port %d cannot be had: %s", port, error)
        raise RendezvousError(
            f"none of the ports {ports} can be had", hint=f"give others in {TFOS_SERVER_PORT}, or leave it out"
        )

    def stop(self) -> None:
        """End all connections."""
        self.done = True
        self._links.stop()

    def _serve(self, link: Link) -> None:
        while True:
            self.send(link, self._answer(self.receive(link, _SILENCE_SECONDS)))

    def _answer(self, message: Mapping[str, Any]) -> Any:
        match message["type"]:
            case "REG":
                self.reservations.add(message["data"])
                return "OK"
            case "QUERY":
                # A little patience here spares the client its own.
                return self.reservations.wait(_WAIT_SECONDS)
            case "QINFO":
                return self.reservations.get()
            case "STOP":
                self.done = True
                return "OK"
        return "ERR"


class Client(MessageSocket):
    """A node's side."""

    def __init__(self, server_addr: tuple[str, int]) -> None:
        if not isinstance(server_addr, ServerAddress):
            raise RendezvousError(
                f"the secret of the server at {server_addr} is not known", hint="give what Server.start() returned"
            )
        self.server_addr = server_addr
        self.sock = self._connect()

    def _connect(self) -> Link:
        return Link.connect(Address(*self.server_addr), self.server_addr.secret)

    def _request(self, kind: str, data: Any = None) -> Any:
        for retry in range(MAX_RETRIES):
            try:
                self.send(self.sock, {"type": kind, "data": data})
                return self.receive(self.sock)
            except RendezvousError:
                if retry + 1 == MAX_RETRIES:
                    raise
                self.sock.close()
                self.sock = self._connect()
        return None

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()

    def register(self, reservation: Any) -> Any:
        """Say something of this node."""
        return self._request("REG", reservation)

    def get_reservations(self) -> Any:
        """Return what the nodes have said so far."""
        return self._request("QINFO")

    def await_reservations(self) -> Any:
        """Wait until all nodes are there, and return what they have said."""
        while not self._request("QUERY"):
            pass
        return self.get_reservations()

    def request_stop(self) -> Any:
        """Tell the server that no more rows are wanted."""
        return self._request("STOP")
