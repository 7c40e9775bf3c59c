from __future__ import annotations

from pathlib import Path

import pytest

import gridflow
from gridflow.errors import TaskError
from gridflow.gpu import Grant
from gridflow.job import Job
from gridflow.rendezvous.roster import Address, Roster
from gridflow.store import RunFolder
from gridflow.task.command import program_environment
from gridflow.task.context import Context

IDENTITY = {
    "GRIDFLOW_RUN": "train-1",
    "GRIDFLOW_TASK": "worker/1",
    "GRIDFLOW_RUN_DIR": "/runs/train-1",
    "GRIDFLOW_RENDEZVOUS": "10.0.0.1:4000",
    "GRIDFLOW_HOST": "10.0.0.2",
    "GRIDFLOW_RESTART": "2",
}


def environ_of(**values: object) -> dict[str, str]:
    job = Job.from_table({"program": "train.py", "worker": {"count": 2}, **values})
    roster = Roster.from_dict({task: f"h:{index}" for index, task in enumerate(job.tasks, start=1)})
    return {**IDENTITY, **program_environment(job, RunFolder(Path("/runs/train-1")), roster, "worker/1")}


def test_a_program_learns_about_its_task_and_the_others() -> None:
    context = Context.read(environ_of(data={}))
    assert (context.run, context.task, context.group, context.index) == ("train-1", "worker/1", "worker", 1)
    assert context.restart == 2
    assert context.run_dir == Path("/runs/train-1")
    assert context.checkpoint_dir == "/runs/train-1/checkpoints"
    assert context.log_dir == "/runs/train-1/tensorboard"
    assert context.roster["worker/0"] == Address("h", 1)
    assert context.data_service == "grpc://h:3"


def test_a_job_without_data_service_has_none() -> None:
    assert Context.read(environ_of()).data_service is None


def test_a_task_that_claimed_no_gpu_has_a_grant_of_the_cpu() -> None:
    grant = Context.read(environ_of()).grant
    assert (grant.devices, grant.memory, grant.reason) == ([], [], "no GPU was claimed")


def test_a_program_learns_which_gpus_its_task_was_granted() -> None:
    grant = Grant([1], [2048.0], ["GPU-1"], [1536], reason="GPU 1 (T4), 2048 of 8192 MB")
    assert Context.read({**environ_of(worker={"gpus": 1, "count": 2}), **grant.environment}).grant == grant


def test_the_context_is_read_from_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environ_of().items():
        monkeypatch.setenv(name, value)
    assert gridflow.context().task == "worker/1"


def test_outside_a_run_there_is_no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in IDENTITY:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(TaskError) as caught:
        gridflow.context()
    assert str(caught.value) == (
        "GRIDFLOW_RUN, GRIDFLOW_TASK, GRIDFLOW_RUN_DIR, GRIDFLOW_RENDEZVOUS, GRIDFLOW_HOST not set "
        "(start the program with `gridflow run`)"
    )
