"""Tasks that find each other through files: each writes into its own, the leader's orders are in one more.

    worker-0.jsonl    {"type": "here", …} {"type": "join", "attempt": 1, "address": "10.1.7.3:41007"} …
    worker-1.jsonl    …
    orders.jsonl      {"type": "launch", "attempt": 1, …} {"type": "roster", …} {"type": "go", …} {"type": "stop", …}

Where the files are is another's matter: over HTCondor's Chirp, in the submit directory, so that no port is open and
HTCondor says who may write; or in a folder. A file is only ever appended to, a line at a time, and a line without its
end is not there yet. All that is sent goes by attempts: what an earlier one has left is not heard.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from gridflow.errors import DeadlineError, RendezvousError, RunCancelledError
from gridflow.job import file_stem
from gridflow.rendezvous.reachability import Listening, unreachable
from gridflow.rendezvous.roster import Address, Roster, list_names

Message = dict[str, Any]

ORDERS = "orders"
#: How long a task may wait between two looks at the board.
POLL_SECONDS = 1.0
#: How often the leader gives a sign of life.
SIGN_SECONDS = 120.0


class Files(Protocol):
    """A place for small files that all tasks of a run can reach."""

    def read(self, path: str) -> bytes | None:
        """Return a file; None where there is none."""

    def append(self, path: str, content: bytes) -> None:
        """Add to the end of a file, which is made where there is none."""


class FolderFiles:
    """Files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, path: str) -> bytes | None:
        """Return a file; None where there is none."""
        try:
            return (self._folder / path).read_bytes()
        except FileNotFoundError:
            return None

    def append(self, path: str, content: bytes) -> None:
        """Add to the end of a file, which is made where there is none."""
        with (self._folder / path).open("ab", buffering=0) as file:
            file.write(content)


class MemoryFiles:
    """Files of a run that has one task, which needs to tell nobody."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}

    def read(self, path: str) -> bytes | None:
        """Return a file; None where there is none."""
        return self._contents.get(path)

    def append(self, path: str, content: bytes) -> None:
        """Add to the end of a file, which is made where there is none."""
        self._contents[path] = self._contents.get(path, b"") + content


class Board:
    """The files of one run, as one task reads them: each message once."""

    def __init__(self, files: Files, prefix: str = "") -> None:
        self._files = files
        self._prefix = prefix
        self._read_bytes: dict[str, int] = {}

    def write(self, name: str, message: Message) -> None:
        """Add a message to a task's file, or to the orders."""
        self._files.append(self._path(name), json.dumps(message).encode() + b"\n")

    def read(self, name: str) -> list[Message]:
        """Return what was added since the last look."""
        content = self._files.read(self._path(name)) or b""
        start = self._read_bytes.get(name, 0)
        complete = content[start : content.rfind(b"\n") + 1]
        self._read_bytes[name] = start + len(complete)
        return [json.loads(line) for line in complete.splitlines()]

    def _path(self, name: str) -> str:
        return f"{self._prefix}{file_stem(name)}.jsonl"


class Member:
    """A task's side of the board for one attempt; to the agent it is what a client of the run's server is."""

    #: Who falls silent is seen by HTCondor.
    lease_seconds = 60.0

    def __init__(
        self,
        board: Board,
        task: str,
        attempt: int,
        orders: Orders,
        *,
        roster: Roster | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.task = task
        self.attempt = attempt
        self._board = board
        self._orders = orders
        self._roster = roster
        self._clock = clock
        # Nothing ever arrives here: the agent looks often enough by itself.
        self._silent_end, self._other_end = os.pipe()

    def __enter__(self) -> Member:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._silent_end)
        os.close(self._other_end)

    def fileno(self) -> int:
        """Return a descriptor for the agent's selector."""
        return self._silent_end

    def heartbeat(self) -> None:
        """Give no sign of life: it would only cost the submit machine."""

    def send(self, message: Message) -> None:
        """Report something to the leader."""
        self._board.write(self.task, {**message, "attempt": self.attempt})

    def receive(self) -> list[Message]:
        """Return `stop` if this attempt is to end."""
        return [{"type": "stop"}] if self._orders.is_over(self.task, self.attempt) else []

    def join(self, address: Address, *, timeout_seconds: float) -> Roster:
        """Say where this task is, wait for all others, and see that they can be reached."""
        deadline = self._clock() + timeout_seconds
        with Listening(address.port, self.task) as listening:
            self.send({"type": "join", "address": str(address)})
            if self._roster is not None:
                # It comes back alone, to where the others know it to be.
                return self._roster
            roster: Roster = self._wait("every task has joined", self._known_roster, deadline, listening)
            problems = unreachable(roster, self.task, deadline - self._clock(), answering=listening)
            if problems:
                error = RendezvousError(
                    problems,
                    hint="this pool does not let tasks connect to each other: use one task with several GPUs",
                )
                self.send({"type": "error", "error": str(error)})
                raise error
            self.send({"type": "reached"})
            self._wait("every task has reached the others", self._may_go, deadline, listening)
        return roster

    def _wait(self, what: str, look: Callable[[], Any], deadline: float, listening: Listening) -> Any:
        while True:
            found = look()
            if found:
                return found
            if self.receive():
                raise RunCancelledError(f"{self.task} was told to stop while it waited until {what}")
            left = deadline - self._clock()
            if left <= 0:
                missing = list_names(self._orders.missing)
                raise DeadlineError(f"{self.task} waited in vain until {what}; missing: {missing}")
            listening.answer(min(POLL_SECONDS / 4, left))

    def _known_roster(self) -> Roster | None:
        self._orders.look()
        addresses = self._orders.rosters.get(self.attempt)
        return Roster.from_dict(addresses) if addresses else None

    def _may_go(self) -> bool:
        self._orders.look()
        return self.attempt in self._orders.gone


class Orders:
    """What the leader has said so far, as one task hears it."""

    def __init__(
        self,
        board: Board,
        before_looking: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        patience_seconds: float = 2 * SIGN_SECONDS,
    ) -> None:
        """Take the leader to be gone when nothing was heard of it for `patience_seconds`."""
        self._board = board
        self._patience_seconds = patience_seconds
        self._heard = clock()
        self._before_looking = before_looking
        self._clock = clock
        self._next_look = 0.0
        self._launches: list[Message] = []
        self._stopped: set[tuple[str, int]] = set()
        self.rosters: dict[int, dict[str, str]] = {}
        self.gone: set[int] = set()
        self.missing: list[str] = []
        #: The last order, once the run has ended.
        self.finish: Message | None = None

    def look(self, *, at_once: bool = False) -> None:
        """Take in what is new, but not more often than the submit machine likes."""
        if self._clock() < self._next_look and not at_once:
            return
        self._next_look = self._clock() + POLL_SECONDS / 2
        # The leader, and what it has to do, is in one of the tasks that ask.
        self._before_looking()
        orders = self._board.read(ORDERS)
        if orders:
            self._heard = self._clock()
        for order in orders:
            match order["type"]:
                case "launch":
                    self._launches.append(order)
                    # The platform may have started anew what had ended.
                    self.finish = None
                case "roster":
                    self.rosters[order["attempt"]] = order["tasks"]
                case "go":
                    self.gone.add(order["attempt"])
                case "waiting":
                    self.missing = order["missing"]
                case "stop":
                    self._stopped.update((task, order["attempts"][task]) for task in order["attempts"])
                case "finish":
                    self.finish = order

    def launch(self, task: str, after: int) -> Message | None:
        """Return the newest order to start a task, if it is newer than the attempt that is named."""
        newest = [order for order in self._launches if task in order["tasks"] and order["attempt"] > after]
        return newest[-1] if newest else None

    @property
    def is_leaderless(self) -> bool:
        """Whether nobody is there any more who could give orders."""
        return self._clock() - self._heard > self._patience_seconds

    def is_over(self, task: str, attempt: int) -> bool:
        """Say whether a task's attempt is to end."""
        self.look()
        is_stopped = (task, attempt) in self._stopped or self.is_leaderless
        return is_stopped or bool(self.launch(task, attempt)) or self.finish is not None
