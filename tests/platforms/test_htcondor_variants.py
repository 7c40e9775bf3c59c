from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridflow.errors import JobError, SettingsError
from gridflow.job import Job
from gridflow.platforms.base import load_platform
from gridflow.platforms.htcondor_submit import workflow
from gridflow.platforms.htcondor_variants import combinations, expand, table
from gridflow.state import RunState, RunStatus, TaskState, TaskStatus


def job(**more: Any) -> Job:
    return Job.from_table({"program": "train.py", "folder": "/work", **more})


def test_every_combination_is_a_task_with_its_values_as_arguments() -> None:
    variants = combinations(["lr=0.1,0.01", "seed=1..3"])
    assert [variant.args for variant in variants] == [
        ("--lr=0.1", "--seed=1"), ("--lr=0.1", "--seed=2"), ("--lr=0.1", "--seed=3"),
        ("--lr=0.01", "--seed=1"), ("--lr=0.01", "--seed=2"), ("--lr=0.01", "--seed=3"),
    ]  # fmt: skip
    assert expand(job(), variants).tasks == tuple(f"worker/{index}" for index in range(6))


@given(st.integers(-50, 50), st.integers(-50, 50))
def test_a_range_includes_both_its_ends(first: int, last: int) -> None:
    values = [variant.values["x"] for variant in combinations([f"x={first}..{last}"])]
    assert (values[0], values[-1], len(values)) == (str(first), str(last), abs(last - first) + 1)


@pytest.mark.parametrize("text", ["lr", "lr=", "=1", "l r=1", "lr=,"])
def test_a_sweep_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SettingsError) as error:
        combinations([text])
    assert str(error.value) == f"sweep {text!r} is not NAME=VALUES (for example lr=0.1,0.01 or seed=1..10)"


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(SettingsError, match="a name of the sweep is given twice"):
        combinations(["a=1", "a=2"])


def test_a_sweep_without_an_end_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"the sweep has 10100 combinations \(at most 10000 go in one run\)"):
        combinations(["a=0..100", "b=1..100"])


def test_tasks_of_a_sweep_work_alone() -> None:
    with pytest.raises(JobError, match="the job has 2 tasks, but those of a sweep or workflow are alone"):
        expand(job(worker={"count": 2}), combinations(["a=1"]))


def test_the_table_has_a_row_for_each_combination() -> None:
    variants = combinations(["lr=0.1,1"])
    ended = (TaskStatus("worker/0", TaskState.SUCCEEDED, 0), TaskStatus("worker/1", TaskState.FAILED, None, "SIGSEGV"))
    status = RunStatus("run", "htcondor", RunState.FAILED, ended)
    assert table(status, variants, {"worker/0": {"loss": 0.5, "lr": 7}}) == (
        "task,state,exit_code,lr,loss\nworker/0,succeeded,0,0.1,0.5\nworker/1,failed,,1,\n"
    )


# Workflows

STAGES = {
    "then": [{"program": "evaluate.py", "args": ["--best"], "retries": 2}, {"program": "export.py"}],
    "retries": 1,
}


def test_a_workflow_is_a_chain_of_stages_each_with_its_row() -> None:
    plan = load_platform("htcondor", STAGES).plan(job(worker={"memory": "1 GB"}))
    files = {file.name: file.content.decode() for file in plan.files if file.name != "gridflow.zip"}
    row = 'cpus="1" memory_mb="1024" gpus="0"'
    assert files["workflow.dag"] == (
        "# train: a workflow of HTCondor's DAGMan, made by Gridflow\n"
        f'JOB train job.sub\nVARS train task="worker/0" file_stem="worker-0" {row}\nRETRY train 1\n'
        f'JOB evaluate job.sub\nVARS evaluate task="worker/1" file_stem="worker-1" {row}\nRETRY evaluate 2\n'
        f'JOB export job.sub\nVARS export task="worker/2" file_stem="worker-2" {row}\n'
        "PARENT train CHILD evaluate\nPARENT evaluate CHILD export\n"
    )
    assert files["job.sub"].endswith("queue 1\n")
    assert (
        "transfer_input_files = gridflow.zip, job.json, outputs.json, work.tar, variants.json, results, "
        in files["job.sub"]
    )
    assert plan.commands[0].argv == ("condor_submit_dag", "{run_dir}/workflow.dag")


def test_stages_come_along_with_the_program() -> None:
    variants = load_platform("htcondor", STAGES)._options.variants(job())  # type: ignore[attr-defined]
    assert expand(job(), variants).files == ("evaluate.py", "export.py")
    assert workflow(expand(job(), variants), variants).count("JOB ") == 3


def test_a_workflow_cannot_be_spooled() -> None:
    with pytest.raises(SettingsError, match=r"platform\.htcondor\.then is not possible with sweep, plain or spool"):
        load_platform("htcondor", {**STAGES, "spool": True})
