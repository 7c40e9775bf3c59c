from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gridflow.errors import PlatformError, UsageError
from gridflow.job import Job
from gridflow.state import RunState, replay
from gridflow.store import RunFolder, create_run, find_run, list_runs, write_whole

JOB = Job.from_table({"program": "train.py", "worker": {"count": 2}, "args": ["--epochs", "3"]})


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return create_run(tmp_path, JOB, "local", {"queue": "gpu"}, now=1_700_000_000.0)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# A new run


def test_a_run_is_named_after_its_job_and_the_time(folder: RunFolder, tmp_path: Path) -> None:
    assert folder.path.parent == tmp_path / "runs"
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(1_700_000_000))
    assert re.fullmatch(rf"train-{stamp}-[0-9a-f]{{4}}", folder.run)
    assert repr(folder) == f"RunFolder({str(folder.path)!r})"


def test_a_run_says_what_it_is(folder: RunFolder) -> None:
    assert folder.record() == {
        "run": folder.run,
        "name": "train",
        "platform": "local",
        "options": {"queue": "gpu"},
        "created": 1_700_000_000.0,
    }
    assert folder.job == JOB
    assert len(folder.secret()) == 32
    assert list(folder.events()) == []


def test_two_runs_never_share_a_folder_or_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["aaaa", "aaaa", "bbbb"])
    real = os.urandom
    monkeypatch.setattr(os, "urandom", lambda size: bytes.fromhex(next(names)) if size == 2 else real(size))
    first, second = (create_run(tmp_path, JOB, "local", {}, now=0) for _ in range(2))
    assert (first.run[-4:], second.run[-4:]) == ("aaaa", "bbbb")
    assert first.secret() != second.secret()


def test_a_run_is_its_owners_alone(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        folder = create_run(tmp_path, JOB, "local", {}, now=0)
    finally:
        os.umask(mask)
    assert mode_of(folder.path) == 0o700
    assert {path.name: mode_of(path) for path in folder.path.iterdir() if path.is_file()} == {
        "secret": 0o600,
        "job.json": 0o600,
        "run.json": 0o600,
    }


def test_the_pickled_call_of_a_function_is_read_back(folder: RunFolder) -> None:
    folder.write("job.json", json.dumps({"function": "train"}))
    folder.write("function.pickle", b"call")
    assert RunFolder(folder.path).job.program.payload == b"call"


def test_every_file_of_a_run_has_its_place(folder: RunFolder) -> None:
    places = {
        folder.job_file: "job.json",
        folder.function_file: "function.pickle",
        folder.secret_file: "secret",
        folder.supervisor_log: "logs/supervisor.log",
        folder.log_file("worker/0"): "logs/worker-0.log",
        folder.result_file("worker/0"): "results/worker-0.pickle",
        folder.metrics_file("worker/0"): "results/worker-0.json",
        folder.checkpoint_dir: "checkpoints",
        folder.log_dir: "tensorboard",
    }
    assert {str(path.relative_to(folder.path)) for path in places} == set(places.values())
    assert all(path.parent.is_dir() for path in places)


def test_a_home_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    home = tmp_path / "file"
    with pytest.raises(PlatformError) as caught:
        create_run(home, JOB, "local", {}, now=0)
    assert str(caught.value) == (
        f"no run can be kept in {home}: [Errno 20] Not a directory: {str(home / 'runs')!r} "
        "(set GRIDFLOW_HOME to a folder that you can write to)"
    )


# Whole files


def test_a_file_is_written_whole_and_replaces_the_last_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"first", b"", b"x" * 100_000):
        write_whole(path, content)
        assert path.read_bytes() == content
        assert mode_of(path) == 0o600
        assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    (path / "occupied").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        write_whole(path, b"new")
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_that_is_killed_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    # The kernel kills with SIGXFSZ at the limit, in the middle of the write.
    program = (
        "import resource, signal, sys; from pathlib import Path; from gridflow.store import write_whole; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL); resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5, 5)); write_whole(Path(sys.argv[1]), b'new content')"
    )
    result = subprocess.run([sys.executable, "-c", program, str(path)], timeout=60, check=False)
    assert result.returncode < 0
    assert path.read_bytes() == b"old"


def test_a_full_device_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    program = (
        "import resource, sys; from pathlib import Path; from gridflow.store import write_whole; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5, 5)); write_whole(Path(sys.argv[1]), b'new content')"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(path)], timeout=60, check=False, capture_output=True, text=True
    )
    assert "OSError: [Errno 27] File too large" in result.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_a_folder_without_its_record_is_not_a_run_yet(folder: RunFolder, tmp_path: Path) -> None:
    (folder.path / "run.json").unlink()
    assert list_runs(tmp_path) == []


@pytest.mark.parametrize("name", ["run.json", "job.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[3]", b"\xff", b"{}"])
def test_a_damaged_run_is_named_with_its_file(folder: RunFolder, name: str, content: bytes) -> None:
    (folder.path / name).write_bytes(content)
    with pytest.raises(UsageError) as caught:
        folder.record() if name == "run.json" else folder.job
    assert str(caught.value).startswith(f"run {folder.run} is damaged: {name} cannot be read: ")
    assert str(caught.value).endswith(f" (remove {folder.path})")


def test_a_damaged_run_does_not_hide_the_others(folder: RunFolder, tmp_path: Path) -> None:
    (folder.path / "run.json").write_text("{")
    other = create_run(tmp_path, JOB, "local", {}, now=5)
    assert [each.run for each in list_runs(tmp_path)] == [folder.run, other.run]
    assert find_run(tmp_path, "last").run == other.run


# Events


def append_history(folder: RunFolder) -> None:
    folder.append_event("run", state=RunState.RUNNING)
    for task in JOB.tasks:
        folder.append_event("task", task=task, state="starting", host="hôte", restarts=0)
        folder.append_event("task", task=task, state="running")
    folder.append_event("task", task="worker/0", state="failed", exit_code=1, reason="ValueError: größe\n12")
    folder.append_event("run", state=RunState.FAILED, reason="worker/0 failed", task="worker/0")


def test_events_are_read_back_in_order_with_their_time(folder: RunFolder) -> None:
    append_history(folder)
    events = list(folder.events())
    assert [event["event"] for event in events] == ["run", "task", "task", "task", "task", "task", "run"]
    assert events[0].keys() == {"time", "event", "state"}
    assert events[5]["reason"] == "ValueError: größe\n12"
    assert all(isinstance(event["time"], float) for event in events)


def test_a_crash_at_any_byte_leaves_the_events_readable_and_open_to_more(folder: RunFolder) -> None:
    append_history(folder)
    path = folder.path / "events.jsonl"
    content = path.read_bytes()
    whole = list(folder.events())
    ends = [index for index, byte in enumerate(content) if byte == ord("\n")]
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        # A line whose newline alone is lost is still whole.
        kept = sum(end <= size for end in ends)
        assert list(folder.events()) == whole[:kept]
        status = replay(folder.run, "local", JOB.tasks, folder.events())
        assert status.state.is_ended == (kept == len(whole))
        folder.append_event("run", state=RunState.CANCELLED)
        *before, last = folder.events()
        assert before == whole[:kept]
        assert last["state"] == RunState.CANCELLED


def test_many_writers_do_not_tear_each_others_events(folder: RunFolder) -> None:
    program = (
        "import sys; from pathlib import Path; from gridflow.store import RunFolder\n"
        "folder = RunFolder(Path(sys.argv[1]))\n"
        "for index in range(200): folder.append_event('count', writer=sys.argv[2], index=index, padding='x' * 500)"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(folder.path), name], stdin=subprocess.DEVNULL)
        for name in ("a", "b")
    ]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    events = list(folder.events())
    for name in ("a", "b"):
        assert [event["index"] for event in events if event["writer"] == name] == list(range(200))


# Finding runs


def test_runs_are_listed_the_oldest_first(tmp_path: Path) -> None:
    runs = [create_run(tmp_path, JOB, "local", {}, now=now).run for now in (30.0, 10.0, 20.0)]
    assert [folder.run for folder in list_runs(tmp_path)] == [runs[1], runs[2], runs[0]]
    assert find_run(tmp_path, "last").run == runs[0]


def test_there_are_no_runs_before_the_first(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "nowhere") == []
    for name in ("last", "x"):
        with pytest.raises(UsageError) as caught:
            find_run(tmp_path / "nowhere", name)
        assert str(caught.value) == (
            f"there is no run {name!r} in {tmp_path / 'nowhere' / 'runs'} (`gridflow list` shows the runs)"
        )


def make_runs(home: Path, *names: str) -> None:
    for created, name in enumerate(names):
        folder = RunFolder(home / "runs" / name)
        folder.path.mkdir(parents=True)
        record = {"run": name, "name": "x", "platform": "local", "options": {}, "created": created}
        folder.write("run.json", json.dumps(record))


def test_a_run_is_found_by_its_id_or_the_beginning_of_it(tmp_path: Path) -> None:
    make_runs(tmp_path, "train-1", "train-10", "digits-1")
    assert find_run(tmp_path, "train-1").run == "train-1"
    assert find_run(tmp_path, "train-10").run == "train-10"
    assert find_run(tmp_path, "d").run == "digits-1"


def test_the_beginning_of_several_ids_is_refused_with_the_latest_of_them(tmp_path: Path) -> None:
    make_runs(tmp_path, *(f"train-{index}" for index in range(7)))
    with pytest.raises(UsageError) as caught:
        find_run(tmp_path, "train")
    assert str(caught.value) == "'train' fits 7 runs (one of: train-2, train-3, train-4, train-5, train-6)"


# A wish to stop


def test_a_run_knows_why_somebody_wants_it_to_stop(folder: RunFolder) -> None:
    assert folder.cancel_reason is None
    folder.request_cancel()
    assert RunFolder(folder.path).cancel_reason == "it was cancelled"
    folder.request_cancel("the process that launched it is gone")
    assert folder.cancel_reason == "the process that launched it is gone"
