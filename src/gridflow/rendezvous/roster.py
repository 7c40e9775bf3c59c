"""Who is where: the tasks that a run expects, the address that each one gave, and who fell silent.

Pure: no sockets, threads or clock. Time comes in as `now`, in seconds of any clock that does not go back.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from gridflow.errors import RendezvousError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

NAMES_SHOWN = 10


def list_names(names: Sequence[str], count: int | None = None) -> str:
    """Name the first few of `count` names (all of `names` unless told), and say how many more there are."""
    rest = (len(names) if count is None else count) - len(names[:NAMES_SHOWN])
    shown = ", ".join(names[:NAMES_SHOWN])
    return f"{shown} and {rest:,} more" if rest > 0 else shown


@dataclass(frozen=True)
class Address:
    """Where a task or a server listens."""

    host: str
    port: int

    def __post_init__(self) -> None:
        if not self.host or not self.host.isprintable() or any(character in " []/" for character in self.host):
            raise RendezvousError(
                f"{self.host!r} is not a host", hint="give a host name or an IP address, without brackets"
            )
        if not 1 <= self.port <= 65535:
            raise RendezvousError(f"port {self.port} of {self.host} is not between 1 and 65535")

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `host:port` or `[::1]:port`."""
        host, _, port = text.rpartition(":")
        is_bracketed = host.startswith("[") and host.endswith("]")
        # 'fe80::1:80' could end in a port or in the last part of an IPv6 address
        if not (port.isascii() and port.isdigit()) or len(port) > 5 or (":" in host) != is_bracketed:
            raise RendezvousError(f"{text!r} is not an address", hint="write host:port, or [host]:port for IPv6")
        return cls(host[1:-1] if is_bracketed else host, int(port))


class Roster:
    """The tasks of one run and where they are; complete once every task has joined."""

    def __init__(self, tasks: Iterable[str], lease_seconds: float = 30.0) -> None:
        self.tasks = tuple(tasks)
        self.lease_seconds = lease_seconds
        if not lease_seconds > 0:
            raise RendezvousError(f"lease_seconds={lease_seconds} leaves a task no time to be heard")
        self._missing = dict.fromkeys(self.tasks)
        if len(self._missing) != len(self.tasks):
            twice = [task for task, count in Counter(self.tasks).items() if count > 1]
            raise RendezvousError(f"tasks are listed twice: {list_names(twice)}")
        malformed = [task for task in self.tasks if not _is_task_name(task)]
        if malformed:
            raise RendezvousError(f"not a task name: {list_names(malformed)}", hint="a task is named like worker/0")
        self._addresses: dict[str, Address] = {}
        self._last_heard: dict[str, float] = {}
        self._left: set[str] = set()

    @property
    def is_complete(self) -> bool:
        """Whether every task has joined."""
        return not self._missing

    @property
    def missing_count(self) -> int:
        """How many tasks have not joined yet."""
        return len(self._missing)

    def missing(self, limit: int | None = None) -> list[str]:
        """Name the tasks that have not joined yet, in the order of `tasks`, at most `limit` of them."""
        return list(islice(self._missing, limit))

    def join(self, task: str, address: Address, now: float) -> None:
        """Write down where a task is; once the roster is complete the others rely on it and it stays."""
        self.check_known(task)
        known = self._addresses.get(task)
        if self.is_complete and known != address:
            raise RendezvousError(
                f"{task} cannot join from {address}: the roster is complete and has it at {known}",
                hint="another process took this task's name, or a restarted one did not keep its address",
            )
        self._addresses[task] = address
        self._missing.pop(task, None)
        self._left.discard(task)
        self._last_heard[task] = now

    def heard(self, task: str, now: float) -> None:
        """Renew a task's lease: there was a sign of life."""
        self.check_known(task)
        if task not in self._left:
            self._last_heard[task] = now

    def leave(self, task: str) -> None:
        """End a task's lease, because the task has ended; its address stays."""
        self.check_known(task)
        self._left.add(task)
        self._last_heard.pop(task, None)

    def lost(self, now: float) -> list[str]:
        """Name the tasks that were there and have been silent for longer than the lease."""
        return [
            task
            for task in self.tasks
            if (heard := self._last_heard.get(task)) is not None and now - heard > self.lease_seconds
        ]

    def check_known(self, task: str) -> None:
        """Refuse a task that this run does not expect."""
        if task not in self._addresses and task not in self._missing:
            raise RendezvousError(f"{task!r} is not a task of this run", hint=f"its tasks are {list_names(self.tasks)}")

    def __getitem__(self, task: str) -> Address:
        self.check_known(task)
        address = self._addresses.get(task)
        if address is None:
            raise RendezvousError(f"{task} has not joined yet, so its address is not known")
        return address

    def group(self, name: str) -> list[Address]:
        """List the addresses of a group's tasks by index; a group that the run does not have is empty."""
        members = [task for task in self.tasks if task.rpartition("/")[0] == name]
        return [self[task] for task in sorted(members, key=_index)]

    def to_dict(self) -> dict[str, str]:
        """Give the addresses known so far as plain text, in the order of `tasks`."""
        return {task: str(self._addresses[task]) for task in self.tasks if task in self._addresses}

    @classmethod
    def from_dict(cls, addresses: Mapping[str, str]) -> Roster:
        """Make a complete roster of what `to_dict` gave; nobody's lease is running in it."""
        roster = cls(addresses)
        roster._addresses = {task: Address.parse(text) for task, text in addresses.items()}
        roster._missing.clear()
        return roster


def _index(task: str) -> int:
    return int(task.rpartition("/")[2])


def _is_task_name(text: str) -> bool:
    group, _, index = text.partition("/")
    return bool(group) and index.isascii() and index.isdigit() and str(int(index)) == index
