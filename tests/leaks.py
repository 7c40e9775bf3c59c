"""A pytest plugin that fails a test which leaves a process, a thread or a socket behind.

    before the test       note what is there; put a mark into the environment
    after its fixtures    look again, for up to `leak_grace_seconds`: what is new and still there has leaked
    then                  kill leaked processes; fail the test with the name of each thing it left

Children inherit the mark, so a process is found even after its parent has died and it belongs to init. The same look
around the whole session finds what module and session fixtures leave; it fails the session's last test.
"""

from __future__ import annotations

import gc
import hashlib
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

#: Every process that a test starts finds the test's mark here, beside those of the sessions around it: '71-5f…:40-9c…'.
MARKS = "GRIDFLOW_TEST"

#: Ports to which a fixture of the whole session keeps connections, which any test may find opened or renewed.
session_ports: set[int] = set()

_POLL_SECONDS = 0.02
_KILL_SECONDS = 5.0
#: Python keeps this process until the interpreter ends.
_RESOURCE_TRACKER = "multiprocessing.resource_tracker"
#: These packages keep threads until the interpreter ends.
_LONG_LIVED_THREADS = ("tensorflow.", "keras.", "tensorboard.")
#: 'Thread-3', 'Thread-3 (run)', 'Dummy-1': nobody gave this thread a name.
_UNNAMED_THREAD = re.compile(r"(Thread|Dummy)-\d+.*")


@dataclass(frozen=True)
class Leak:
    """Something that outlived its test; a socket is known by its name in /proc, 'socket:[81723]'."""

    thing: psutil.Process | threading.Thread | str
    description: str


@dataclass(frozen=True)
class Snapshot:
    """What there is at one moment; a child stands for all its descendants."""

    children: frozenset[psutil.Process]
    threads: frozenset[threading.Thread]
    sockets: frozenset[str]

    @classmethod
    def take(cls) -> Snapshot:
        return cls(
            children=frozenset(psutil.Process().children()),
            threads=frozenset(threading.enumerate()),
            sockets=frozenset(_open_sockets()),
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("leak_grace_seconds", "How long things may take to end after their test.", default="3")


@pytest.fixture(scope="session", autouse=True)
def _leaks_of_tests(request: pytest.FixtureRequest) -> Iterator[set[object]]:
    """What a test has failed for, which the session then is not asked for again."""
    reported: set[object] = set()
    with _watched("", request.config, reported):
        yield reported


@pytest.fixture(autouse=True)
def _no_leak(request: pytest.FixtureRequest, _leaks_of_tests: set[object]) -> Iterator[None]:
    with _watched(request.node.nodeid, request.config, _leaks_of_tests):
        yield


@contextmanager
def _watched(name: str, config: pytest.Config, reported: set[object]) -> Iterator[None]:
    """Fail if what runs inside leaves something behind that was not reported before."""
    # The pid tells sessions apart that run the same test at the same time.
    mark = f"{os.getpid()}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    before = Snapshot.take()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARKS, mark, prepend=":")
        yield

    def unreported() -> list[Leak]:
        return [leak for leak in _leaks(before, mark) if leak.thing not in reported]

    leaks = _still_there(unreported, seconds=float(config.getini("leak_grace_seconds")))
    if leaks:
        reported.update(leak.thing for leak in leaks)
        _kill([leak.thing for leak in leaks if isinstance(leak.thing, psutil.Process)])
        things = "\n  ".join(leak.description for leak in leaks)
        pytest.fail(f"{name or 'the session'} left behind:\n  {things}", pytrace=False)


def _still_there(look: Callable[[], list[Leak]], *, seconds: float) -> list[Leak]:
    deadline = time.monotonic() + seconds
    leaks = look()
    if leaks:
        # What only a reference cycle keeps open is closed here, and warned of in this test rather than in a later one.
        gc.collect()
    while leaks and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        leaks = look()
    return leaks


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=_KILL_SECONDS)


def _leaks(before: Snapshot, mark: str) -> list[Leak]:
    processes = _descendants(psutil.Process().children(), before.children) | _marked_processes(mark)
    described = [Leak(process, _describe_process(process)) for process in sorted(processes, key=lambda each: each.pid)]
    return [
        *(leak for leak in described if leak.description and _RESOURCE_TRACKER not in leak.description),
        *(
            Leak(thread, f"thread {thread.name!r}")
            for thread in threading.enumerate()
            if thread not in before.threads and _must_end(thread)
        ),
        *(
            Leak(name, f"socket {_describe_socket(descriptor)}")
            for name, descriptor in _open_sockets().items()
            if name not in before.sockets and _peer_port(descriptor) not in session_ports
        ),
    ]


def _descendants(children: Iterable[psutil.Process], ignored: frozenset[psutil.Process]) -> set[psutil.Process]:
    found = set()
    for child in children:
        if child not in ignored:
            found.add(child)
            with suppress(psutil.Error):
                found.update(child.children(recursive=True))
    return found


def _marked_processes(mark: str) -> set[psutil.Process]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        # Processes of other users, and those that end meanwhile, cannot be read.
        with suppress(OSError, psutil.Error):
            if mark.encode() in _marks(path.read_bytes()):
                found.add(psutil.Process(int(path.parent.name)))
    return found


def _marks(environ: bytes) -> list[bytes]:
    name = f"{MARKS}=".encode()
    return next((entry[len(name) :].split(b":") for entry in environ.split(b"\0") if entry.startswith(name)), [])


def _describe_process(process: psutil.Process) -> str:
    """Return what to call a process, or nothing if it has ended."""
    try:
        return f"process {process.pid}: {' '.join(process.cmdline())}"
    except psutil.ZombieProcess:
        return f"process {process.pid}: has ended, but nobody waited for it"
    except psutil.Error:
        return ""


def _must_end(thread: threading.Thread) -> bool:
    owner = getattr(thread, "_target", None) if type(thread) is threading.Thread else type(thread)
    if str(getattr(owner, "__module__", "")).startswith(_LONG_LIVED_THREADS):
        return False
    return not thread.daemon or not _UNNAMED_THREAD.fullmatch(thread.name)


def _open_sockets() -> dict[str, int]:
    sockets = {}
    for path in Path("/proc/self/fd").iterdir():
        # The descriptor that reads this folder is gone by now.
        with suppress(OSError):
            target = str(path.readlink())
            if target.startswith("socket:"):
                sockets[target] = int(path.name)
    return sockets


def _peer_port(descriptor: int) -> int | None:
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as same:
        if same.family == socket.AF_INET:
            return int(same.getpeername()[1])
    return None


def _describe_socket(descriptor: int) -> str:
    """Return a socket's addresses, which may fail to be told at any point since others may close it meanwhile."""
    text = str(descriptor)
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as same:
        text = f"{descriptor}: {same.getsockname()}"
        text += f" connected to {same.getpeername()}"
    return text
