from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.gpu.hosts import TWO_OF_8_GB, Host

from gridflow import gpu
from gridflow.errors import DeadlineError, PlatformError
from gridflow.gpu import ledger as ledger_module
from gridflow.gpu.entries import Process
from gridflow.gpu.ledger import Ledger, ledger_folder
from gridflow.gpu.liveness import identify, is_alive

HERE = Path(__file__).parent
#: How long, and with how many processes, the stress test runs: `GRIDFLOW_STRESS=60,50 scripts/test …`.
SECONDS, PROCESSES = os.environ.get("GRIDFLOW_STRESS", "3,10").split(",")


def run_script(host: Host, name: str, *arguments: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, HERE / name, *arguments],
        env=host.environ,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, object] = json.loads(done.stdout)
    return report


# Being killed


def test_being_killed_at_any_line_leaves_everything_free_and_whole(host: Host) -> None:
    report = run_script(host, "killed_anywhere.py", "23")
    assert isinstance(report["lines"], int)
    assert report["killed"] == -(-report["lines"] // 23)
    assert report["leftovers"], "no child was killed while it had something, so nothing was tested"


def test_many_processes_that_are_killed_at_random_never_break_the_rules(host: Host) -> None:
    host.declare('[[gpu]]\nmemory = "8 GB"\ncount = 4\n')
    report = run_script(host, "stress.py", "--seconds", SECONDS, "--processes", PROCESSES)
    assert (report["violations"], report["failed"], report["left"], report["all_free"]) == ([], 0, 0, True)
    assert report["killed"] == int(PROCESSES) // 4
    for number in ("granted", "observations", "most_waiting"):
        assert report[number], f"{number} is 0, so nothing was tested: {report}"


# Who is alive


def test_a_pid_of_an_earlier_process_is_not_alive() -> None:
    me = identify(os.getpid())
    assert is_alive(me)
    assert not is_alive(Process(me.pid, "1", me.namespace))


def test_a_process_that_has_ended_is_not_alive_even_before_its_parent_takes_note() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = identify(child.pid)
        assert is_alive(process)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(process)
        with pytest.raises(ProcessLookupError, match=f"process {child.pid} is gone"):
            identify(child.pid)
    assert not is_alive(process)


def test_processes_of_another_container_are_left_to_those_in_it() -> None:
    assert is_alive(Process(1 << 22, "1", "pid:[7]"))


# The file


def test_the_ledger_is_where_the_variable_says_or_where_all_can_write() -> None:
    assert ledger_folder({"GRIDFLOW_GPU_LEDGER": "/x"}) == Path("/x")
    assert ledger_folder({}) in (Path("/var/lib/gridflow/gpus"), Path("/tmp/gridflow-gpus"))


def test_all_users_may_read_the_file_and_write_to_the_folder(host: Host) -> None:
    before = os.umask(0o077)
    try:
        with gpu.claim(1):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE(host.ledger.folder.stat().st_mode) == 0o777
    assert stat.S_IMODE(host.ledger.file.stat().st_mode) == 0o644


def test_each_boot_has_a_file_of_its_own(host: Host) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert host.ledger.file.name == f"{boot}.json"


def test_what_changes_nothing_writes_nothing(host: Host) -> None:
    with gpu.claim(1):
        before = host.ledger.file.stat()
        with host.ledger.changing():
            pass
        assert host.ledger.file.stat() == before


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format": 2}', b'{"format": 1, "devices": 3}', b"\xff\xfe"])
def test_a_file_that_is_not_a_ledger_is_never_overwritten(host: Host, content: bytes) -> None:
    ledger = host.ledger
    ledger.folder.mkdir()
    ledger.file.write_bytes(content)
    with pytest.raises(PlatformError) as caught, gpu.claim(1):
        pass
    assert str(caught.value) == (
        f"{ledger.file} is not a ledger of GPUs (remove it when no program of Gridflow uses a GPU)"
    )
    assert ledger.file.read_bytes() == content


def test_a_ledger_that_stays_locked_is_not_waited_for_for_ever(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "_LOCK_SECONDS", 0.1)
    folder = host.ledger.folder
    folder.mkdir()
    other = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DeadlineError) as caught, gpu.claim(1):
            pass
    finally:
        os.close(other)
    assert str(caught.value) == (
        f"the ledger of GPUs in {folder} was locked for 0.1 s "
        f"(see who stopped in the middle of it with `fuser -v {folder}`)"
    )


def test_a_link_in_the_ledgers_place_is_not_followed(host: Host) -> None:
    host.ledger.folder.symlink_to(host.folder)
    with pytest.raises(PlatformError, match=r"the ledger of GPUs in .* cannot be used: .*ledger'"), gpu.claim(1):
        pass
    assert not (host.folder / host.ledger.file.name).exists()


# Many users

AS_TWO_USERS = """
import json, os, sys
from gridflow import gpu
from gridflow.gpu.claims import Claim
from gridflow.gpu.tickets import Ticket
# Other users may not be able to load what is only needed now and then.
import tomllib, gridflow.gpu.declared, gridflow.gpu.holding

def as_user(uid, what):
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        try:
            os._exit(what())
        except BaseException as error:
            print(error, file=sys.stderr)
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def claim_the_other():
    with gpu.claim(1) as grant, Ticket.ask(Claim(wait_seconds=0, cpu_fallback=True)) as late:
        return 10 * grant.devices[0] + len(late.wait().devices)

with gpu.claim(1) as mine:
    print(mine.devices, as_user(1234, claim_the_other), as_user(1235, claim_the_other))
    print(as_user(1234, lambda: os.kill(os.getpid(), 9) if gpu.get_my_device(1).devices else 0))
    print(gpu.get_my_device(1).devices)
"""


@pytest.fixture
def open_host() -> Iterator[Host]:
    """A host whose files all users can reach."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        host = Host(Path(folder))
        host.declare(TWO_OF_8_GB)
        yield host


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become other users")
def test_users_share_one_ledger(open_host: Host) -> None:
    # Each saw what the others held, and what a killed process of one user held goes to another.
    assert open_host.run(AS_TWO_USERS) == "[0] 10 10\n-9\n[1]\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become other users")
def test_a_folder_that_others_may_not_write_to_says_what_to_do(open_host: Host) -> None:
    open_host.ledger.folder.mkdir(mode=0o755)
    code = AS_TWO_USERS.partition("with gpu.claim(1) as mine")[0] + "sys.exit(as_user(1234, claim_the_other) != 99)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=open_host.environ, capture_output=True, text=True, check=True
    )
    folder = open_host.ledger.folder
    assert f"the ledger of GPUs in {folder} cannot be used: [Errno 13] Permission denied" in done.stderr
    assert "(let all users write to that folder (mode 0777, no sticky bit), or set GRIDFLOW_GPU_LEDGER)" in done.stderr


def test_a_ledger_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    shares = Ledger(tmp_path / "nowhere").read()
    assert (shares.devices, shares.holdings, shares.waiting) == ({}, {}, {})
    assert list(tmp_path.iterdir()) == []
