"""Linux processes: dying with a parent, adopting orphans, finding and ending what belongs to a run.

Every process of a run carries `GRIDFLOW_RUN` and `GRIDFLOW_TASK` in its environment, and so do its descendants,
whatever session or parent they move to. That makes them findable. One that has emptied its environment is found by
its parent: whoever adopts orphans becomes that when all between them have ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path

from gridflow.errors import TaskError

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def die_with_parent(parent: int, signal_number: int = signal.SIGKILL) -> None:
    """Have the kernel signal this process when `parent` is gone."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)
    # It may have gone before the kernel was asked.
    if os.getppid() != parent:
        raise TaskError(f"the parent process {parent} is gone", hint="nothing to do: the run was stopped")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that none escapes."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def reap_adopted(own_children: Collection[int]) -> None:
    """Bury adopted descendants that have died, so that no zombies gather; one's own are left to their owners."""
    try:
        while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if dead.si_pid in own_children:
                return
            os.waitpid(dead.si_pid, 0)
    except ChildProcessError:
        return


def start_time(pid: int) -> str | None:
    """Return when a process started, in clock ticks since boot; None where it is gone or a zombie.

    A pid alone may be somebody else's by now; a pid with its start time is not.
    """
    state, *fields = _stat(pid)
    return None if state in "ZX" else fields[18]


def parent(pid: int) -> int:
    """Return a process's parent; 0 where it is gone."""
    return int(_stat(pid)[1])


def _stat(pid: int | str) -> list[str]:
    """Return what the kernel says of a process, from its state on: `['S', '1', …]`, parent second."""
    try:
        # '1234 (python3 (x)) S 1 ... ': the name may hold spaces and brackets, so split after the last one.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ["X", "0"]


def find(marks: Iterable[str]) -> list[int]:
    """Return the processes whose environment holds every mark, such as `GRIDFLOW_RUN=x`, but for this one."""
    wanted = [mark.encode() for mark in marks]
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
        except OSError:
            continue  # gone, or another user's
        # A zombie's environment is empty, so it never matches.
        if all(mark in environment for mark in wanted):
            found.append(int(entry))
    return found


def kill_marked(*marks: str) -> list[int]:
    """Kill every process whose environment holds all marks, until none is left; return what was killed."""
    return _kill_all(lambda: find(marks))


def kill_children(own_children: Collection[int] = ()) -> list[int]:
    """Kill every child but one's own, and all that they leave behind in turn; return what was killed."""

    def others() -> list[int]:
        reap_adopted(own_children)
        alive = [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _is_living_child(entry)]
        return [pid for pid in alive if pid not in own_children]

    return _kill_all(others)


def _is_living_child(pid: str) -> bool:
    state, parent_, *_ = _stat(pid)
    return state not in "ZX" and int(parent_) == os.getpid()


def _kill_all(find_left: Callable[[], list[int]], within_seconds: float = 10) -> list[int]:
    killed: set[int] = set()
    deadline = time.monotonic() + within_seconds
    while found := find_left():
        for pid in found:
            send_signal(pid, signal.SIGKILL)
        killed.update(found)
        if time.monotonic() > deadline:
            raise TaskError(f"processes {found} do not die", hint="they wait for a device; see `ps -o pid,stat,wchan`")
        time.sleep(0.02)  # the kernel tells no stranger when a process is gone
    return sorted(killed)


def send_signal(pid: int, signal_number: int) -> None:
    """Signal a process, or do nothing where it is gone already."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal_number)
