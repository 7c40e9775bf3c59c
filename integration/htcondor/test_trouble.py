"""What goes wrong on a pool, and what people are told."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.htcondor.pool import Pool
from integration.htcondor.runs import cluster, finish, start, wait_for
from tests.waiting import until

from gridflow import RunState
from gridflow.errors import PlatformError
from gridflow.state import TaskState

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("reached")]


def test_more_memory_than_asked_for_is_held_with_the_figure_to_ask_for() -> None:
    run = start("eat.py", worker={"memory": 300})
    status = wait_for(run, "is held", lambda status: status.state is RunState.HELD)
    assert (
        "it needs more memory than it asked for: Job has gone over cgroup memory limit of 384 megabytes"
        in status.reason
    )
    assert status.reason.endswith('(ask for more: memory = "640 MB")')
    assert status["worker/0"].state is TaskState.HELD
    run.cancel()
    assert run.status().state is RunState.CANCELLED


@pytest.mark.parametrize(("form", "way"), [("container", "bindings"), ("singularity", "tools")])
def test_an_image_that_is_not_there_ends_the_run_instead_of_starting_it_for_ever(form: str) -> None:
    run = start("show.py", image="/images/none.sif", options={"image_form": form, "transfer_image": "false"})
    status = finish(run)
    assert (status.state, status["worker/0"].state) == (RunState.FAILED, TaskState.FAILED)
    assert status.reason.startswith("worker/0 cannot be started, though HTCondor has tried again and again: ")
    assert "could not open image /images/none.sif" in status.reason


def test_an_image_that_is_not_there_is_held_also_where_nobody_asks(reached: Pool) -> None:
    run = start("show.py", image="/images/none.sif", options={"image_form": "singularity"})

    def look() -> bool:
        return reached.tool("condor_q", cluster(run), "-af", "HoldReasonCode", "HoldReasonSubCode") == "3 1007\n"

    until(look, "HTCondor holds it", seconds=120)
    assert "could not open image /images/none.sif" in finish(run).reason


def test_a_file_that_is_not_there_is_refused_when_it_is_sent(tmp_path: Path) -> None:
    (tmp_path / "show.py").touch()
    with pytest.raises(PlatformError, match=r"reading from file .*nothere\.dat: \(errno 2\) No such file or directory"):
        start("show.py", folder=str(tmp_path), options={"inputs": [f"{tmp_path}/nothere.dat"]})


def test_requirements_that_no_machine_meets_are_analysed(reached: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gridflow.platforms.htcondor._PATIENCE_SECONDS", 2.0)
    options = {"requirements": 'OpSysAndVer == "CentOS7"'}
    run = start("show.py", worker={"memory": "900 GB"}, options=options)
    status = wait_for(run, "is analysed", lambda status: bool(status["worker/0"].reason))
    assert status.state is RunState.PENDING
    assert status["worker/0"].reason.startswith("no machine matches: ")
    assert 'OpSysAndVer == "CentOS7"' in status["worker/0"].reason
    assert "Memory >= RequestMemory" in status["worker/0"].reason
    run.cancel()


def test_a_run_that_somebody_removes_from_the_queue_is_cancelled(reached: Pool) -> None:
    run = start("count.py")
    wait_for(run, "runs", lambda status: status.state is RunState.RUNNING)
    reached.tool("condor_rm", "-all")
    status = finish(run)
    assert status.state is RunState.CANCELLED
    assert status.reason.startswith("it was removed from HTCondor's queue")
