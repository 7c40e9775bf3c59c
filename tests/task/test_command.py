from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gridflow.job import Job
from gridflow.rendezvous.roster import Roster
from gridflow.store import RunFolder
from gridflow.task.command import program_command, program_environment

FOLDER = RunFolder(Path("/runs/train-1"))
RUNNER = [sys.executable, "-P", "-m", "gridflow.task.program"]


def job_of(**values: Any) -> Job:
    groups = {"chief": {}, "worker": {"count": 2}, "ps": {}, "evaluator": {}, "data": {}, "tensorboard": {}}
    return Job.from_table({"program": "train.py", **groups, **values})


def roster_of(job: Job) -> Roster:
    return Roster.from_dict({task: f"h:{index}" for index, task in enumerate(job.tasks, start=1)})


def command_of(job: Job, task: str) -> list[str]:
    command = program_command(job, FOLDER, roster_of(job), task)
    assert command[:4] == RUNNER
    return command[4:]


def environment_of(job: Job, task: str) -> dict[str, str]:
    return program_environment(job, FOLDER, roster_of(job), task)


@pytest.mark.parametrize("task", ["chief/0", "worker/1", "ps/0", "evaluator/0"])
def test_a_task_runs_the_program_with_its_arguments(task: str) -> None:
    job = job_of(args=["--task={job_name}-{task_index}", "--epochs", 3])
    assert command_of(job, task) == ["script", "train.py", f"--task={task.replace('/', '-')}", "--epochs", "3"]


@pytest.mark.parametrize(
    ("program", "command"),
    [
        ({"program": "train.sh"}, ["command", "train.sh", "-x"]),
        ({"program": None, "module": "package.train"}, ["module", "package.train", "-x"]),
        (
            {"program": None, "function": "train"},
            ["function", "/runs/train-1/function.pickle", "/runs/train-1/results/worker-0.pickle"],
        ),
    ],
)
def test_a_program_is_a_script_a_command_a_module_or_a_function(program: dict[str, str], command: list[str]) -> None:
    assert command_of(job_of(args=["-x"], **program), "worker/0") == command


def test_places_are_filled_into_the_arguments() -> None:
    places = ["{run_dir}", "{checkpoint_dir}", "{log_dir}", "{data_service}"]
    assert command_of(job_of(args=places), "worker/0")[2:] == [
        "/runs/train-1",
        "/runs/train-1/checkpoints",
        "/runs/train-1/tensorboard",
        "grpc://h:6",
    ]
    job = job_of(args=places, data=None, checkpoint_dir="/ckpt", log_dir="/logs")
    assert command_of(job, "worker/0")[2:] == ["/runs/train-1", "/ckpt", "/logs", ""]


def test_groups_that_are_served_run_tensorflows_server() -> None:
    job = job_of(serve=["ps", "worker"])
    assert [command_of(job, task) for task in ("ps/0", "worker/1")] == [["server"], ["server"]]
    assert command_of(job, "chief/0") == ["script", "train.py"]


def test_gridflows_own_services_do_not_run_the_program() -> None:
    assert command_of(job_of(), "data/0") == ["data"]
    assert command_of(job_of(log_dir="/logs"), "tensorboard/0") == [
        *("module", "tensorboard.main", "--logdir", "/logs", "--port", "7", "--host", "127.0.0.1")
    ]


def test_a_program_finds_its_cluster_and_its_places_in_the_environment() -> None:
    environment = environment_of(job_of(env={"SEED": "1"}), "worker/0")
    assert environment.keys() == {
        "PYTHONUNBUFFERED",
        "CUDA_VISIBLE_DEVICES",
        "GRIDFLOW_GRANT",
        "SEED",
        "TF_CONFIG",
        "DTENSOR_CLIENT_ID",
        "DTENSOR_NUM_CLIENTS",
        "DTENSOR_JOB_NAME",
        "DTENSOR_JOBS",
        "GRIDFLOW_ROSTER",
        "GRIDFLOW_DATA_SERVICE",
        "GRIDFLOW_CHECKPOINT_DIR",
        "GRIDFLOW_LOG_DIR",
    }
    assert environment["SEED"] == "1"
    assert environment["GRIDFLOW_CHECKPOINT_DIR"] == "/runs/train-1/checkpoints"
    assert environment["GRIDFLOW_LOG_DIR"] == "/runs/train-1/tensorboard"


def test_where_a_job_wants_its_checkpoints_and_logs_is_where_they_go() -> None:
    environment = environment_of(job_of(checkpoint_dir="/ckpt", log_dir="/logs"), "worker/0")
    assert (environment["GRIDFLOW_CHECKPOINT_DIR"], environment["GRIDFLOW_LOG_DIR"]) == ("/ckpt", "/logs")


@pytest.mark.parametrize(("cpus", "threads"), [(0.5, "1"), (1, "1"), (3.6, "4")])
def test_cpus_limit_the_threads_of_tensorflow_unless_the_job_says_otherwise(cpus: float, threads: str) -> None:
    job = job_of(worker={"cpus": cpus}, env={"OMP_NUM_THREADS": "7"})
    environment = environment_of(job, "worker/0")
    assert (environment["TF_NUM_INTRAOP_THREADS"], environment["TF_NUM_INTEROP_THREADS"]) == (threads, threads)
    assert environment["OMP_NUM_THREADS"] == "7"
    assert "TF_NUM_INTRAOP_THREADS" not in environment_of(job, "chief/0")


def visible(job: Job) -> dict[str, str | None]:
    return {task: environment_of(job, task).get("CUDA_VISIBLE_DEVICES") for task in job.tasks}


def test_tasks_that_claim_no_gpu_see_none() -> None:
    job = job_of(worker={"gpus": 1}, evaluator=None)
    assert visible(job) == {
        "chief/0": "-1", "worker/0": None, "ps/0": "-1", "data/0": "-1", "tensorboard/0": "-1",
    }  # fmt: skip


def test_a_job_may_show_gpus_to_its_programs_but_not_to_services() -> None:
    job = job_of(worker=None, env={"CUDA_VISIBLE_DEVICES": "0"}, ps=None)
    assert visible(job) == {"chief/0": "0", "evaluator/0": "0", "data/0": "-1", "tensorboard/0": "-1"}


def test_no_task_has_the_grant_of_whoever_started_the_run() -> None:
    assert {environment_of(job_of(), task)["GRIDFLOW_GRANT"] for task in job_of().tasks} == {""}


def test_a_job_cannot_talk_a_task_out_of_its_cluster() -> None:
    told = environment_of(job_of(env={"TF_CONFIG": "{}", "GRIDFLOW_ROSTER": "{}"}), "worker/0")
    assert told == environment_of(job_of(), "worker/0")
