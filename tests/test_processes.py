from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from gridflow import processes
from gridflow.errors import TaskError

#: Prints what it is asked for and then waits to be killed.
WAIT = "import signal; print('ready', flush=True); signal.pause()"

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python programs that print `ready` when they are; they are killed after the test."""
    with ExitStack() as stack:

        def start(source: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", source, *arguments],
                    env={**os.environ, **variables},
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            return process

        yield start


@pytest.fixture
def mark(tmp_path: Path) -> str:
    """A variable that no other process has."""
    return f"GRIDFLOW_RUN={tmp_path}"


def run(source: str) -> str:
    """Run a Python program to its end and return what it prints."""
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def pid_printed_by(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def wait_until_gone(pid: int) -> None:
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=30)
    assert not psutil.pid_exists(pid)


# When a process started


def test_a_process_is_told_from_a_later_one_by_its_start(start: Start) -> None:
    own = processes.start_time(os.getpid())
    assert own is not None
    assert own == processes.start_time(os.getpid())
    child = processes.start_time(start(WAIT).pid)
    assert child is not None
    assert int(child) > int(own)


def test_a_process_that_is_gone_has_no_start(start: Start) -> None:
    process = start(WAIT)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{process.pid}/stat").exists()
    assert processes.start_time(process.pid) is None, "it is a zombie"
    process.wait()
    assert processes.start_time(process.pid) is None


@pytest.mark.parametrize("name", [b") Z 1 (x", b"a b\nc", b"\xff\xfe", b""])
def test_the_name_of_a_process_does_not_hide_its_start(start: Start, name: bytes) -> None:
    plain = start(WAIT)
    named = start(f"open('/proc/self/comm', 'wb').write({name!r}); {WAIT}")
    assert int(processes.start_time(named.pid) or 0) >= int(processes.start_time(plain.pid) or 0) > 0


# Finding and killing by mark


def test_a_process_is_found_if_it_holds_every_mark(start: Start, mark: str) -> None:
    name, _, value = mark.partition("=")
    both = start(WAIT, **{name: value, "GRIDFLOW_TASK": "worker/0"})
    one = start(WAIT, **{name: value, "GRIDFLOW_TASK": "worker/1"})
    start(WAIT, **{name: f"{value}0"})
    start(WAIT, **{f"OLD_{name}": value})
    assert sorted(processes.find([mark])) == sorted([both.pid, one.pid])
    assert processes.find([mark, "GRIDFLOW_TASK=worker/0"]) == [both.pid]
    assert processes.find([mark, "GRIDFLOW_TASK=worker"]) == []


def test_a_process_does_not_find_itself(tmp_path: Path) -> None:
    program = (
        "import os; from gridflow import processes; print(processes.find(['MARK=1']), processes.kill_marked('MARK=1'))"
    )
    environment = {**os.environ, "MARK": "1"}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.stdout == "[] []\n"


def test_a_zombie_is_not_found(start: Start, mark: str) -> None:
    name, _, value = mark.partition("=")
    process = start(WAIT, **{name: value})
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert processes.find([mark]) == []


#: Starts a grandchild that leaves session, process group, parent and working folder behind, as daemons do.
DAEMON = """
import os, signal, sys
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.chdir("/")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(write, b"%d" % os.getpid())
        signal.pause()
    os._exit(0)
os.wait()
print("ready", os.read(read, 99).decode(), sep="\\n", flush=True)
signal.pause()
"""


def test_what_belongs_to_a_run_is_killed_wherever_it_has_moved(start: Start, mark: str) -> None:
    name, _, value = mark.partition("=")
    parent = start(DAEMON, **{name: value})
    daemon = pid_printed_by(parent)
    stopped = start(WAIT, **{name: value})
    stopped.send_signal(signal.SIGSTOP)
    stranger = start(WAIT)
    assert os.getsid(daemon) != os.getsid(parent.pid)
    assert processes.kill_marked(mark) == sorted([parent.pid, daemon, stopped.pid])
    assert [parent.wait(30), stopped.wait(30)] == [-signal.SIGKILL, -signal.SIGKILL]
    wait_until_gone(daemon)
    assert stranger.poll() is None


def test_killing_goes_on_until_a_family_that_multiplies_is_gone(start: Start, mark: str) -> None:
    name, _, value = mark.partition("=")
    multiply = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("ready", flush=True)
for _ in range(500):
    if os.fork() == 0:
        signal.pause()
    time.sleep(0.002)
signal.pause()
"""
    parent = start(multiply, **{name: value})
    assert parent.pid in processes.kill_marked(mark)
    assert processes.find([mark]) == []
    assert parent.wait(30) == -signal.SIGKILL


def test_there_may_be_nothing_to_kill(mark: str) -> None:
    assert processes.kill_marked(mark) == []


def test_a_process_that_is_gone_is_signalled_in_vain(start: Start) -> None:
    process = start(WAIT)
    processes.send_signal(process.pid, signal.SIGTERM)
    assert process.wait(30) == -signal.SIGTERM
    processes.send_signal(process.pid, signal.SIGTERM)


# Parents

_CHILD = f"""
import os, sys
from gridflow import processes
processes.die_with_parent(int(sys.argv[1]), *map(int, sys.argv[2:]))
{WAIT}
"""

#: Starts a child that dies with it, and prints its pid.
PARENT = f"""
import os, signal, subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", {_CHILD!r}, str(os.getpid()), *sys.argv[1:]], stdout=subprocess.PIPE, start_new_session=True
)
child.stdout.readline()
print("ready", child.pid, sep="\\n", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("arguments", [(), (str(int(signal.SIGTERM)),)], ids=["by force", "politely"])
def test_a_process_dies_with_its_parent(start: Start, arguments: tuple[str, ...]) -> None:
    parent = start(PARENT, *arguments)
    child = pid_printed_by(parent)
    assert psutil.pid_exists(child)
    parent.kill()
    parent.wait(30)
    wait_until_gone(child)


def test_a_process_whose_parent_has_gone_already_says_so() -> None:
    output = run(
        "from gridflow import processes\n"
        "try: processes.die_with_parent(1234567)\n"
        "except processes.TaskError as error: print(error)"
    )
    assert output == "the parent process 1234567 is gone (nothing to do: the run was stopped)\n"


#: A shell starts a background process, says which, and goes.
_ORPHAN = """
import os, signal, subprocess, sys, time
from pathlib import Path
from gridflow import processes

def orphan(*command):
    script = '"$@" >/dev/null 2>&1 & echo $!'
    return int(subprocess.run(["sh", "-c", script, "sh", *command], capture_output=True, check=True).stdout)

def state_of(pid):
    path = Path(f"/proc/{pid}/stat")
    return path.read_text().rpartition(")")[2].split()[:2] if path.exists() else None

def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)

processes.adopt_orphans()
own = subprocess.Popen(["sleep", "987"])
"""


def test_orphans_are_adopted_and_buried_and_own_children_left_to_their_owner() -> None:
    output = run(
        _ORPHAN
        + """
pid = orphan("sleep", "987")
print("adopted", state_of(pid)[1] == str(os.getpid()))
os.kill(pid, signal.SIGKILL)
wait_for(lambda: state_of(pid)[0] == "Z")
processes.reap_adopted({own.pid})
print("buried", state_of(pid) is None)
own.kill()
wait_for(lambda: state_of(own.pid)[0] == "Z")
processes.reap_adopted({own.pid})
print("own", own.wait())
processes.reap_adopted(())
"""
    )
    assert output == "adopted True\nburied True\nown -9\n"


def test_an_orphan_without_environment_is_killed_as_a_child_and_own_children_are_spared() -> None:
    output = run(
        _ORPHAN
        + """
pids = [orphan("env", "-i", "sleep", "987"), orphan("sh", "-c", "trap '' TERM; sleep 988 & wait")]
wait_for(lambda: subprocess.run(["pgrep", "-P", str(pids[1])], stdout=subprocess.DEVNULL).returncode == 0)
killed = processes.kill_children({own.pid})
print("killed", set(pids) <= set(killed), len(killed))
print("gone", [state_of(pid) for pid in pids])
print("own", own.poll())
own.kill()
own.wait()
print("again", processes.kill_children())
"""
    )
    assert output == "killed True 3\ngone [None, None]\nown None\nagain []\n"


def test_a_process_that_does_not_die_is_named(monkeypatch: pytest.MonkeyPatch, start: Start, mark: str) -> None:
    name, _, value = mark.partition("=")
    process = start(WAIT, **{name: value})
    # No process of a test can withstand SIGKILL.
    monkeypatch.setattr(processes, "send_signal", lambda *_: None)
    clock = itertools.count(step=6)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with pytest.raises(TaskError) as caught:
        processes.kill_marked(mark)
    monkeypatch.undo()
    assert str(caught.value) == (
        f"processes [{process.pid}] do not die (they wait for a device; see `ps -o pid,stat,wchan`)"
    )
