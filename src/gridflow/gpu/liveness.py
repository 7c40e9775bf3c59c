"""Which processes are still there, told from later ones with the same pid."""

from __future__ import annotations

import functools
import os

from gridflow import processes
from gridflow.gpu.entries import Process


def identify(pid: int) -> Process:
    """Return a process of this host as the ledger knows it; one that is gone is a ProcessLookupError."""
    started = processes.start_time(pid)
    if started is None:
        raise ProcessLookupError(f"process {pid} is gone")
    return Process(pid, started, _namespace())


def is_alive(process: Process) -> bool:
    """Say whether a process is there, or at least may be."""
    if process.namespace != _namespace():
        return True  # only those in its own container can tell
    started = processes.start_time(process.pid)
    if started is not None:
        return started == process.started
    # Where /proc hides the processes of other users (hidepid), the kernel still tells them from none.
    try:
        os.kill(process.pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
    return False  # a zombie


@functools.cache
def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid")  # 'pid:[4026531836]'
