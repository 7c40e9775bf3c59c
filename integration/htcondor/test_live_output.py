"""The output of runs that have no agent, while they run: a plain job's, and a hand-written submit file's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.htcondor.pool import Pool
from integration.htcondor.runs import OVER_BINDINGS, finish, output, wait_for
from tests.waiting import until

from gridflow import Job, Run, RunState
from gridflow.launcher import submit

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("reached")]

#: It goes on when the test says so, through a folder that the slots see.
PROGRAM = """\
#!/bin/sh
echo größer
while [ ! -e {signal} ]; do sleep 0.2; done
echo the end
"""
SUBMIT = "executable = wait.sh\noutput = wait.out\nlog = wait.log\nqueue\n"
WHOLE = "größer\nthe end\n"


@pytest.fixture
def signal(pool: Pool) -> Iterator[Path]:
    path = pool.folder / "share" / "go-on"
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def folder(tmp_path: Path, signal: Path) -> Path:
    (tmp_path / "wait.sh").write_text(PROGRAM.format(signal=f"/share/{signal.name}"))
    (tmp_path / "wait.sh").chmod(0o755)
    (tmp_path / "wait.sub").write_text(SUBMIT)
    return tmp_path


def begin(folder: Path, program: str, *, plain: bool) -> Run:
    job = Job.from_table({"program": program, "folder": str(folder)})
    return submit(job, "htcondor", {"spool": True, "plain": plain}, attached=False)


@pytest.mark.parametrize("program", ["wait.sh", "wait.sub"])
def test_output_is_seen_while_the_task_runs(
    pool: Pool, folder: Path, program: str, signal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{pool.tools}")
    run = begin(folder, program, plain=program == "wait.sh")
    # One who comes while no slot is found waits for no tool.
    assert output(run) == ""
    pieces = run.logs("worker/0", follow=True)
    assert next(pieces) == "größer\n"
    assert run.status().state is RunState.RUNNING
    signal.touch()
    assert "".join(pieces) == "the end\n"
    assert finish(run).state is RunState.SUCCEEDED
    assert output(run) == WHOLE


@OVER_BINDINGS
def test_without_the_tool_it_is_said_that_the_output_comes_after_the_end(folder: Path, signal: Path) -> None:
    run = begin(folder, "wait.sh", plain=True)
    wait_for(run, "runs", lambda status: status.state is RunState.RUNNING)
    said = until(lambda: output(run), "something is said of its output")
    assert said == (
        "[gridflow] the output cannot be seen while worker/0 runs, only after its end: "
        "condor_tail is not here (work on a machine with HTCondor's tools)\n"
    )
    signal.touch()
    finish(run)
    assert output(run) == WHOLE
