"""How quickly one rendezvous server takes in 1,000 and 10,000 tasks, and what memory that needs.

The server runs in a process of its own; all tasks are simulated by this one. A task has joined when it holds the
roster of all tasks, proved to come from the server. The roster grows with the number of tasks, so its bytes grow with
the square: they are part of what is measured.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import selectors
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridflow.rendezvous.messages import NONCE_BYTES, Channel, unpack
from gridflow.rendezvous.roster import Address, Roster
from gridflow.rendezvous.server import Server
from report import Measurement, make_parser, print_report

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SIZES = (1_000, 10_000)
SILENCE_SECONDS = 20.0
#: Tasks that are between connecting and being welcome at the same time; a run's tasks do not all start at one moment.
ENTERING = 128
READ_BYTES = 256 * 1024


@dataclass(frozen=True)
class Result:
    """What it took until all tasks had the roster."""

    tasks: int
    seconds: float
    server_cpu_seconds: float
    server_peak_mb: float


class SimulatedTask:
    """One task: enters, joins, and waits for the roster."""

    def __init__(self, name: str, address: str, server: Address, secret: bytes) -> None:
        self.name = name
        self.has_entered = False
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.connect_ex((server.host, server.port))
        self._address = address
        self._channel = Channel("client", secret, os.urandom(NONCE_BYTES))

    def advance(self) -> bytes | None:
        """Take what has arrived and answer it; give the roster once it is there, still packed."""
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise ConnectionAbortedError(f"the server closed the connection of {self.name}")
        was_open = self._channel.is_open
        payloads = self._channel.feed_payloads(data)
        if not was_open and self._channel.is_open:
            self.socket.sendall(self._channel.hello + self._channel.encode({"type": "enter", "task": self.name}))
        if payloads and not self.has_entered:
            self.has_entered = True
            self.socket.sendall(self._channel.encode({"type": "join", "address": self._address}))
            return None
        return payloads[0] if payloads else None


def join_all(members: dict[str, str], server: Address, secret: bytes) -> bytes:
    """Let all tasks join and give the one roster that they all got.

    It stays packed: real tasks unpack theirs at the same time, each on its own processor, these would do it in turn.
    """
    newcomers = iter(members.items())
    entering = joined = 0
    first_roster: bytes | None = None
    with ExitStack() as sockets, selectors.DefaultSelector() as selector:
        while joined < len(members):
            for name, address in islice(newcomers, ENTERING - entering):
                newcomer = SimulatedTask(name, address, server, secret)
                sockets.enter_context(newcomer.socket)
                selector.register(newcomer.socket, selectors.EVENT_READ, newcomer)
                entering += 1
            ready = selector.select(SILENCE_SECONDS)
            if not ready:
                raise TimeoutError(f"nothing happened for {SILENCE_SECONDS:g} s with {joined} of {len(members)} joined")
            for key, _ in ready:
                had_entered = key.data.has_entered
                roster = key.data.advance()
                entering -= key.data.has_entered - had_entered
                if roster is not None:
                    joined += 1
                    first_roster = first_roster or roster
                    assert roster == first_roster
    assert first_roster is not None
    return first_roster


def serve(names: list[str], secret: bytes, pipe: Connection) -> None:
    """Run the server until the pipe is written to; answer with what it took."""
    asyncio.run(_serve(names, secret, pipe))


async def _serve(names: list[str], secret: bytes, pipe: Connection) -> None:
    server = Server(Roster(names), secret, lambda *_: None)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(pipe.fileno(), stop.set)
    pipe.send(str(await server.start()))
    started = time.process_time()
    await stop.wait()
    pipe.send((time.process_time() - started, _peak_mb()))
    asyncio.get_running_loop().remove_reader(pipe.fileno())
    await server.stop()


def _peak_mb() -> float:
    # 'VmHWM:\t   24312 kB'
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM:")).split()[1]) / 1024


def measure(count: int) -> Result:
    """Let `count` tasks join a new server."""
    members = {
        f"worker/{index}": f"10.0.{index >> 8}.{index & 255}:{32768 + 7919 * index % 28232}" for index in range(count)
    }
    secret = os.urandom(32)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(list(members), secret, theirs))
    process.start()
    try:
        address = Address.parse(_receive(ours))
        started = time.perf_counter()
        roster = join_all(members, address, secret)
        seconds = time.perf_counter() - started
        ours.send("stop")
        cpu_seconds, peak_mb = _receive(ours)
        process.join(SILENCE_SECONDS)
    finally:
        process.kill()
        process.join()
    assert unpack(roster) == {"type": "roster", "tasks": members}
    return Result(count, seconds, cpu_seconds, peak_mb)


def _receive(pipe: Connection) -> Any:
    if not pipe.poll(SILENCE_SECONDS):
        raise TimeoutError(f"the server's process said nothing for {SILENCE_SECONDS:g} s")
    return pipe.recv()


def allow_many_descriptors() -> None:
    """Raise the soft limit of descriptors, which processes started from here inherit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def report(small: Result, large: Result) -> list[Measurement]:
    """Describe both sizes, and how the time of one join grows from the small one to the large one."""
    measurements = []
    for result in (small, large):
        name = f"{result.tasks:,} tasks"
        measurements += [
            Measurement(f"{name}: until all have the roster", result.seconds, "s"),
            Measurement(f"{name}: rate", result.tasks / result.seconds, "joins/s"),
            Measurement(f"{name}: server's processor time", result.server_cpu_seconds, "s"),
            Measurement(f"{name}: server's peak memory", result.server_peak_mb, "MB"),
        ]
    for what, small_seconds, large_seconds in (
        ("time", small.seconds, large.seconds),
        ("server's processor time", small.server_cpu_seconds, large.server_cpu_seconds),
    ):
        per_join = large_seconds / large.tasks
        growth = per_join / (small_seconds / small.tasks)
        name = f"{large.tasks:,} tasks: {what} per join"
        measurements.append(Measurement(name, per_join * 1e6, "us", f"{small.tasks:,} tasks", growth))
    return measurements


def main() -> None:
    """Measure and print; several rounds take the best of each size, for the machine may have other work."""
    arguments = make_parser(__doc__).parse_args()
    allow_many_descriptors()
    rounds = [[measure(count) for count in SIZES] for _ in range(1 if arguments.quick else 3)]
    small, large = (min(results, key=lambda result: result.seconds) for results in zip(*rounds, strict=True))
    print_report(report(small, large), as_json=arguments.json)


if __name__ == "__main__":
    main()
