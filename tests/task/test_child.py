from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gridflow.state import Exit
from gridflow.task.child import Child

SECONDS = 60.0
#: Lets a program report as a runner does.
PRELUDE = """
import json, os, signal
descriptor = int(os.environ["GRIDFLOW_REPORT_FD"])

def report(**fields):
    os.write(descriptor, json.dumps(fields).encode() + b"\\n")
"""

Start = Callable[..., Child]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python programs; what the test has not reaped is killed and reaped after it."""
    children: list[Child] = []

    def start(source: str, *, stop_seconds: float = SECONDS) -> Child:
        children.append(Child([sys.executable, "-c", f"{PRELUDE}\n{source}"], dict(os.environ), stop_seconds))
        return children[-1]

    yield start
    for child in children:
        if psutil.pid_exists(child.pid) and psutil.Process(child.pid).ppid() == os.getpid():
            os.killpg(child.pid, signal.SIGKILL)
            child.reap()


def is_readable(descriptor: int, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])


def wait_for_reports(child: Child) -> list[dict[str, Any]]:
    assert is_readable(child.report_fd, SECONDS)
    return child.reports()


def end_of(child: Child) -> Exit:
    assert is_readable(child.exit_fd, SECONDS)
    return child.reap()


@pytest.mark.parametrize(
    ("source", "exit_"),
    [
        ("", Exit(code=0)),
        ("raise SystemExit(3)", Exit(code=3)),
        ("os.kill(os.getpid(), signal.SIGSEGV)", Exit(signal="SIGSEGV")),
    ],
)
def test_how_a_program_ended_is_told(start: Start, source: str, exit_: Exit) -> None:
    assert end_of(start(source)) == exit_


def test_a_program_that_goes_on_has_not_ended(start: Start) -> None:
    child = start("signal.pause()")
    assert not is_readable(child.exit_fd, 0)
    child.kill_if_overdue()
    assert not is_readable(child.exit_fd, 0.1)


def test_reports_are_told_once_and_only_when_they_are_whole(start: Start) -> None:
    child = start(
        """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.write(descriptor, b'{"n": 1}\\n{"n": 2}\\n{"n":')
signal.sigwait([signal.SIGUSR1])
os.write(descriptor, b' 3}\\n')
signal.pause()
"""
    )
    assert wait_for_reports(child) == [{"n": 1}, {"n": 2}]
    assert child.reports() == []
    assert not child.is_silent
    os.kill(child.pid, signal.SIGUSR1)
    assert wait_for_reports(child) == [{"n": 3}]


def test_reports_that_came_with_the_end_are_still_there(start: Start) -> None:
    child = start("report(n=1)")
    assert is_readable(child.exit_fd, SECONDS)
    assert child.reports() == [{"n": 1}]
    child.reap()


def test_a_program_that_closes_its_end_is_silent_from_then_on(start: Start) -> None:
    child = start("report(n=1); signal.pause()")
    assert wait_for_reports(child) == [{"n": 1}]
    assert not child.is_silent
    child = start("os.close(descriptor); signal.pause()")
    assert wait_for_reports(child) == []
    assert child.is_silent


def test_a_program_has_its_own_session_and_no_input(start: Start) -> None:
    child = start("import sys; answer = sys.stdin.read(); raise SystemExit(7 if answer == '' else 8)")
    assert end_of(child) == Exit(code=7)
    child = start("signal.pause()")
    assert os.getsid(child.pid) == child.pid != os.getsid(0)


def test_a_program_is_asked_to_end(start: Start) -> None:
    child = start("signal.pause()")
    assert not child.is_asked_to_end
    child.stop()
    assert child.is_asked_to_end
    child.kill_if_overdue()
    assert end_of(child) == Exit(signal="SIGTERM")


def test_what_a_program_has_started_in_its_group_is_asked_too(start: Start) -> None:
    child = start("pid = os.fork()\nif pid: report(child=pid)\nsignal.pause()")
    [report] = wait_for_reports(child)
    grandchild = psutil.Process(report["child"])
    child.stop()
    assert end_of(child) == Exit(signal="SIGTERM")
    assert psutil.wait_procs([grandchild], timeout=SECONDS)[1] == []


#: Counts how often it is asked to end, and ends by the third time.
STUBBORN = """
asked = []
def handle(*_):
    asked.append(1)
    report(asked=len(asked))
    if len(asked) > 2:
        os._exit(5)
signal.signal(signal.SIGTERM, handle)
report(up=True)
while True:
    signal.pause()
"""


def test_a_program_is_asked_once_and_may_end_in_its_own_way(start: Start) -> None:
    child = start(STUBBORN)
    assert wait_for_reports(child) == [{"up": True}]
    child.stop()
    assert wait_for_reports(child) == [{"asked": 1}]
    child.stop()
    assert not is_readable(child.report_fd, 0.1)
    for asked in (2, 3):
        os.kill(child.pid, signal.SIGTERM)
        assert wait_for_reports(child) == [{"asked": asked}]
    assert end_of(child) == Exit(code=5)


DEAF = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child == 0:
    signal.pause()
report(child=child)
while True:
    signal.pause()
"""


def test_a_program_that_does_not_obey_is_killed_with_its_group_when_its_time_is_up(start: Start) -> None:
    child = start(DEAF, stop_seconds=0)
    [report] = wait_for_reports(child)
    grandchild = psutil.Process(report["child"])
    child.kill_if_overdue()
    assert not is_readable(child.exit_fd, 0.1), "nobody has asked it to stop"
    child.stop()
    child.kill_if_overdue()
    assert end_of(child) == Exit(signal="SIGKILL")
    assert psutil.wait_procs([grandchild], timeout=SECONDS)[1] == []


def test_a_program_that_does_not_obey_has_its_time(start: Start) -> None:
    child = start(DEAF)
    wait_for_reports(child)
    child.stop()
    child.kill_if_overdue()
    assert not is_readable(child.exit_fd, 0.1)


def test_a_program_that_should_be_ending_is_killed_when_its_time_is_up(start: Start) -> None:
    child = start("signal.pause()", stop_seconds=0)
    child.expect_end()
    assert not child.is_asked_to_end
    child.kill_if_overdue()
    assert end_of(child) == Exit(signal="SIGKILL")


def test_a_program_that_should_be_ending_can_still_be_asked_to(start: Start) -> None:
    child = start(STUBBORN)
    wait_for_reports(child)
    child.expect_end()
    child.stop()
    assert wait_for_reports(child) == [{"asked": 1}]


def test_a_program_that_cannot_be_started_leaves_nothing_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        Child([str(tmp_path / "missing")], {}, SECONDS)
    assert os.listdir("/proc/self/fd") == before


def test_a_reaped_program_leaves_nothing_open(start: Start) -> None:
    before = os.listdir("/proc/self/fd")
    end_of(start(""))
    assert os.listdir("/proc/self/fd") == before
