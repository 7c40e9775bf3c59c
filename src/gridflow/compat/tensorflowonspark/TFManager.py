"""Queues and values that several processes of a host, or of a cluster, share: a server process behind a key."""

from __future__ import annotations

import queue
from collections.abc import Iterable
from multiprocessing.managers import BaseManager
from typing import Any


class TFManager(BaseManager):
    """The server of queues and values, or a link to it."""


#: What the server process holds.
qdict: dict[str, queue.Queue[Any]] = {}
kdict: dict[str, Any] = {}


def _fill(names: Iterable[str]) -> None:
    """Make the queues, inside the server process."""
    kdict.clear()
    qdict.clear()
    qdict.update({name: queue.Queue() for name in names})


def _get_queue(qname: str) -> queue.Queue[Any] | None:
    return qdict.get(qname)


def _get(key: str) -> Any:
    return kdict[key]


def _set(key: str, value: Any) -> None:
    kdict[key] = value


def start(authkey: bytes, queues: Iterable[str], mode: str = "local") -> TFManager:
    """Start a server with some queues; one whose mode is `remote` can be reached from other hosts."""
    for name, function in (("get_queue", _get_queue), ("get", _get), ("set", _set)):
        TFManager.register(name, callable=function)
    manager = TFManager(address=("", 0) if mode == "remote" else None, authkey=authkey)
    manager.start(initializer=_fill, initargs=(list(queues),))
    return manager


def connect(address: str | tuple[str, int], authkey: bytes) -> TFManager:
    """Return a link to a server that runs; without its key that is refused."""
    for name in ("get_queue", "get", "set"):
        TFManager.register(name)
    manager = TFManager(address=address, authkey=authkey)
    manager.connect()
    return manager
