"""Runs as the platform sees them, with tools that answer as a schedd's do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gridflow.job import Job
from gridflow.platforms.base import load_platform
from gridflow.state import RunState, RunStatus
from gridflow.store import RunFolder, create_run

OPTIONS = {"access": "tools", "spool": True}
PLAIN = {"access": "tools", "plain": True}
REMOVED = {"ClusterId": 12, "ProcId": 0, "RemoveReason": "via condor_rm (by user alice)"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run that was submitted, and that the schedd remembers as removed."""
    write_tool(tmp_path, "condor_q", "")
    write_tool(tmp_path, "condor_history", json.dumps([REMOVED]))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    folder = create_run(tmp_path, Job.from_table({"program": "train.py"}), "htcondor", OPTIONS, now=1_700_000_000.0)
    folder.append_event("submitted", cluster=12, spool=True, places={})
    return folder


def write_tool(folder: Path, name: str, said: str) -> None:
    """Have a tool that says this, whatever it is asked."""
    (folder / name).write_text(f"#!/bin/sh\nprintf %s '{said}'\n")
    (folder / name).chmod(0o755)


def status(folder: RunFolder) -> RunStatus:
    return load_platform("htcondor", OPTIONS).status(folder)


def test_a_run_that_left_the_queue_was_removed_for_the_reason_that_htcondor_knows(folder: RunFolder) -> None:
    seen = status(folder)
    assert seen.state is RunState.CANCELLED
    assert seen.reason == "it was removed from HTCondor's queue: via condor_rm (by user alice)"
    assert status(folder) == seen


def test_a_run_that_was_cancelled_has_that_reason_also_for_others_who_see_it_first(folder: RunFolder) -> None:
    folder.request_cancel("the process that launched it is gone")
    seen = status(folder)
    assert (seen.state, seen.reason) == (RunState.CANCELLED, "the process that launched it is gone")


# The output of a task that has no agent, before its end


@pytest.fixture
def plain(tmp_path: Path, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run whose task runs, and whose output HTCondor will put beside the tools."""
    monkeypatch.setattr("gridflow.platforms.htcondor._ASK_SECONDS", 0.0)
    write_tool(tmp_path, "condor_q", json.dumps([{"ProcId": 0, "JobStatus": 2}]))
    plain = create_run(tmp_path, folder.job, "htcondor", PLAIN, now=1_700_000_001.0)
    places = [str(tmp_path / name) for name in ("wait.log", "wait.out", "wait.err")]
    plain.append_event("submitted", cluster=12, spool=False, places={"worker/0": places})
    return plain


def test_what_a_running_task_has_written_is_seen_piece_by_piece(tmp_path: Path, plain: RunFolder) -> None:
    platform = load_platform("htcondor", PLAIN)
    write_tool(tmp_path, "condor_tail", "one ")
    content, position = platform.read_log(plain, "worker/0", 0)
    assert (content, position) == (b"one ", 4)
    write_tool(tmp_path, "condor_tail", "one two")
    assert platform.read_log(plain, "worker/0", position) == (b"two", 7)
    assert platform.read_log(plain, "worker/0", 7) == (b"", 7)


def test_a_task_that_was_evicted_writes_from_the_beginning(tmp_path: Path, plain: RunFolder) -> None:
    platform = load_platform("htcondor", PLAIN)
    write_tool(tmp_path, "condor_tail", "first life")
    assert platform.read_log(plain, "worker/0", 0) == (b"first life", 10)
    write_tool(tmp_path, "condor_tail", "second")
    assert platform.read_log(plain, "worker/0", 10) == (b"second", 6)


def test_a_task_that_does_not_run_is_not_asked_and_its_output_is_where_htcondor_puts_it(
    tmp_path: Path, plain: RunFolder
) -> None:
    platform = load_platform("htcondor", PLAIN)
    write_tool(tmp_path, "condor_tail", "begun")
    platform.read_log(plain, "worker/0", 0)
    write_tool(tmp_path, "condor_q", json.dumps([{"ProcId": 0, "JobStatus": 4}]))
    write_tool(tmp_path, "condor_tail", "never asked")
    assert platform.read_log(plain, "worker/0", 5) == (b"", 5)
    (tmp_path / "wait.out").write_text("begun and ended")
    assert platform.read_log(plain, "worker/0", 5) == (b" and ended", 15)


def test_it_is_said_once_why_output_cannot_be_seen(plain: RunFolder) -> None:
    platform = load_platform("htcondor", PLAIN)
    said = "".join(platform.logs(plain, "worker/0", follow=False))
    assert said == (
        "[gridflow] the output cannot be seen while worker/0 runs, only after its end: "
        "condor_tail is not here (work on a machine with HTCondor's tools)\n"
    )
    assert "".join(platform.logs(plain, "worker/0", follow=False)) == ""


def test_a_tool_that_waits_for_ever_is_not_waited_for(
    tmp_path: Path, plain: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gridflow.platforms.htcondor_access._PEEK_SECONDS", 0.2)
    (tmp_path / "condor_tail").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "condor_tail").chmod(0o755)
    assert "".join(load_platform("htcondor", PLAIN).logs(plain, "worker/0", follow=False)) == ""
