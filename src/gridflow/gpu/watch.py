"""Waking up when something happens: a folder's files are replaced, or processes end."""

from __future__ import annotations

import ctypes
import os
import selectors
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from gridflow.gpu.entries import Process
from gridflow.gpu.liveness import is_alive

LOOK_SECONDS = 1.0
_IN_MOVED_TO = 0x80


class Watch:
    """Something to wait for; a selector can wait for it too.

    Where the system has no more inotify instances to give (128 for each user), or the folder is not there yet, changes
    of its files are not heard of. So nobody should wait for longer than LOOK_SECONDS before looking again.
    """

    def __init__(self, folder: Path) -> None:
        self._selector = selectors.EpollSelector()
        self._changes = _inotify(folder)
        if self._changes is not None:
            self._selector.register(self._changes, selectors.EVENT_READ)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._processes: dict[Process, int] = {}

    def follow(self, processes: Collection[Process]) -> bool:
        """Wake up when one of these processes ends, and no other; return whether one has ended already."""
        has_ended = False
        for process in self._processes.keys() - set(processes):
            self._forget(process)
        for process in set(processes) - self._processes.keys():
            with suppress(ProcessLookupError):
                self._processes[process] = os.pidfd_open(process.pid)
                self._selector.register(self._processes[process], selectors.EVENT_READ)
            if not is_alive(process):
                has_ended = True
        return has_ended

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when something has happened."""
        return self._selector.fileno()

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until something has happened; return whether a process has ended."""
        ready = {key.fd for key, _ in self._selector.select(max(0.0, timeout_seconds))}
        if self._changes in ready:
            with suppress(BlockingIOError):
                os.read(self._changes, 1 << 16)
        ended = [process for process, descriptor in self._processes.items() if descriptor in ready]
        for process in ended:
            self._forget(process)
        return bool(ended)

    def wake(self) -> None:
        """Have whoever waits go on, from another thread."""
        os.eventfd_write(self._wake, 1)

    def _forget(self, process: Process) -> None:
        descriptor = self._processes.pop(process)
        self._selector.unregister(descriptor)
        os.close(descriptor)

    def close(self) -> None:
        """Wait for nothing any more."""
        self.follow(())
        self._selector.close()
        os.close(self._wake)
        if self._changes is not None:
            os.close(self._changes)
            self._changes = None

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _inotify(folder: Path) -> int | None:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        return None
    if libc.inotify_add_watch(descriptor, os.fsencode(folder), _IN_MOVED_TO) < 0:
        os.close(descriptor)
        return None
    return descriptor
