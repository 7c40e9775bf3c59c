"""A server in a thread of its own, and a peer that speaks to it byte by byte."""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gridflow.rendezvous.messages import NONCE_BYTES, Channel, Message
from gridflow.rendezvous.roster import Address
from gridflow.rendezvous.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gridflow.rendezvous.roster import Roster

SECRET = b"the secret of this run"
DEADLINE_SECONDS = 30.0


class Host:
    """Runs a server in the event loop of a thread; leaving it checks that the server left nothing in the loop."""

    def __init__(
        self,
        roster: Roster,
        secret: bytes = SECRET,
        on_event: Callable[[str, Message], None] | None = None,
        **options: Any,
    ) -> None:
        self.roster = roster
        self.events: queue.Queue[tuple[str, Message]] = queue.Queue()
        self.left_behind: set[asyncio.Task[Any]] = set()
        self.server = Server(roster, secret, on_event or self._keep, **options)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="rendezvous server")

    def _keep(self, task: str, message: Message) -> None:
        self.events.put((task, message))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.address = await self.server.start()
        self._started.set()
        await self._stop.wait()
        await self.server.stop()
        self.left_behind = asyncio.all_tasks() - {asyncio.current_task()}

    def __enter__(self) -> Host:
        self._thread.start()
        assert self._started.wait(DEADLINE_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        assert not self.left_behind

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(DEADLINE_SECONDS)
            assert not self._thread.is_alive()

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function in the server's event loop, some time soon."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def tell(self, task: str, message: Message) -> None:
        self.call(self.server.tell, task, message)

    def next_event(self) -> tuple[str, Message]:
        return self.events.get(timeout=DEADLINE_SECONDS)

    def wait_for_joins(self, count: int) -> None:
        for _ in range(count):
            assert self.next_event()[1]["type"] == "join"


class Wire:
    """A peer that is under the test's control down to its bytes."""

    def __init__(self, server: Address, secret: bytes = SECRET, receive_buffer_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(DEADLINE_SECONDS)
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        try:
            self.socket.connect((server.host, server.port))
        except OSError:
            self.socket.close()
            raise
        self.channel = Channel("client", secret, os.urandom(NONCE_BYTES))
        self.sent = b""
        self.inbox: list[Message] = []

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send_bytes(self, data: bytes) -> None:
        self.sent += data
        self.socket.sendall(data)

    def send(self, message: Message) -> None:
        self.send_bytes(self.channel.encode(message))

    def open(self) -> None:
        """Exchange hellos."""
        self.send_bytes(self.channel.hello)
        while not self.channel.is_open:
            self._read()

    def enter(self, task: str) -> None:
        self.open()
        self.send({"type": "enter", "task": task})
        assert self.next()["type"] == "welcome"

    def join(self, task: str, address: str) -> None:
        self.enter(task)
        self.send({"type": "join", "address": address})

    def next(self) -> Message:
        while not self.inbox:
            self._read()
        return self.inbox.pop(0)

    def _read(self) -> None:
        data = self.socket.recv(65536)
        assert data, "the server closed the connection"
        self.inbox += self.channel.feed(data)

    def is_closed(self) -> bool:
        """Whether all that the server sent has been read and was its last."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(65536):
                pass
        except BlockingIOError:
            return False
        except ConnectionError:
            pass
        return True

    def read_to_end(self) -> bytes:
        """Read until the server closes; a server that does not fails the test by timeout."""
        data = b""
        try:
            while piece := self.socket.recv(65536):
                data += piece
        except ConnectionError:
            pass
        return data


@contextmanager
def fake_server(answer: Callable[[socket.socket], None]) -> Iterator[Address]:
    """Listen, and let `answer` deal with each connection in turn."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(DEADLINE_SECONDS)
                    answer(connection)

        thread = threading.Thread(target=serve, name="fake server")
        thread.start()
        try:
            yield Address(*listener.getsockname())
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(DEADLINE_SECONDS)
            assert not thread.is_alive()


_SERVE = """
import asyncio, logging, resource, sys
from gridflow.rendezvous.roster import Roster
from gridflow.rendezvous.server import Limits, Server

async def serve(secret, descriptors, tasks):
    def report(task, message):
        print(task, message["type"], flush=True)

    server = Server(Roster(tasks), secret, report, limits=Limits(accept_pause_seconds=0.05))
    print(await server.start(), flush=True)
    if descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    await asyncio.Event().wait()

logging.basicConfig(format="log %(message)s", stream=sys.stdout)
asyncio.run(serve(sys.stdin.readline().strip().encode(), int(sys.argv[1]), sys.argv[2:]))
"""


class ServerProcess:
    """A server in a process of its own, which prints its address, its events and its log."""

    def __init__(self, tasks: Sequence[str], *, descriptors: int = 0) -> None:
        command = [sys.executable, "-c", _SERVE, str(descriptors), *tasks]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.output = self.process.stdout
        with self.process.stdin as stdin:
            stdin.write(f"{SECRET.decode()}\n")
        self.address = Address.parse(self.output.readline().strip())

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.output.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_SECONDS)
