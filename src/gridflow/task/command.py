"""What a task executes, and with which variables. Pure, but for the names of files."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from gridflow.gpu.variables import GRANT, NO_DEVICE, VISIBLE
from gridflow.job import SERVICE_GROUPS, Job
from gridflow.rendezvous.roster import Roster
from gridflow.store import RunFolder
from gridflow.task import tf_config

CHECKPOINT_DIR = "GRIDFLOW_CHECKPOINT_DIR"
LOG_DIR = "GRIDFLOW_LOG_DIR"
# -P keeps the working folder off the path, so that a user's `socket.py` does not break the runner; the runner then
# sets the path as Python itself would for the program.
_RUNNER = ("-P", "-m", "gridflow.task.program")


def checkpoint_dir(job: Job, folder: RunFolder) -> str:
    """Return where the job's checkpoints go; the same for every restart."""
    return job.checkpoint_dir or str(folder.checkpoint_dir)


def log_dir(job: Job, folder: RunFolder) -> str:
    """Return where TensorBoard's logs go."""
    return job.log_dir or str(folder.log_dir)


def program_command(job: Job, folder: RunFolder, roster: Roster, task: str) -> list[str]:
    """Return the command line of a task's program, through its runner."""
    return [sys.executable, *_RUNNER, *_program(job, folder, roster, task)]


def _program(job: Job, folder: RunFolder, roster: Roster, task: str) -> list[str]:
    group = task.partition("/")[0]
    if group == "data":
        return ["data"]
    if group == "tensorboard":
        port = str(roster[task].port)
        return ["module", "tensorboard.main", "--logdir", log_dir(job, folder), "--port", port, "--host", "127.0.0.1"]
    if group in job.serve:
        return ["server"]
    if job.program.kind == "function":
        return ["function", str(folder.function_file), str(folder.result_file(task))]
    places = {
        "run_dir": str(folder.path),
        "checkpoint_dir": checkpoint_dir(job, folder),
        "log_dir": log_dir(job, folder),
        "data_service": tf_config.environment(roster, task).get(tf_config.DATA_SERVICE, ""),
    }
    return [job.program.kind, job.program.target, *tf_config.fill_arguments(job.args, roster, task, places)]


def program_environment(job: Job, folder: RunFolder, roster: Roster, task: str) -> dict[str, str]:
    """Return the variables of a task's program, besides those its agent has."""
    return {
        "PYTHONUNBUFFERED": "1",
        **_thread_limits(job, task),
        **_no_gpus(job, task),
        **job.env,
        **_no_gpus_ever(task),
        **tf_config.environment(roster, task),
        CHECKPOINT_DIR: checkpoint_dir(job, folder),
        LOG_DIR: log_dir(job, folder),
    }


def _thread_limits(job: Job, task: str) -> Mapping[str, str]:
    cpus = job.group_of(task).resources.cpus
    if cpus is None:
        return {}
    threads = str(max(1, round(cpus)))
    return {"TF_NUM_INTRAOP_THREADS": threads, "TF_NUM_INTEROP_THREADS": threads, "OMP_NUM_THREADS": threads}


def _no_gpus(job: Job, task: str) -> Mapping[str, str]:
    """Hide all GPUs from a task that claims none: TensorFlow would take all memory of each that it sees."""
    # The variables of a grant are the agent's to add; one that this run was started with is not for its tasks.
    return {GRANT: ""} if job.group_of(task).resources.gpus else {GRANT: "", VISIBLE: NO_DEVICE}


def _no_gpus_ever(task: str) -> Mapping[str, str]:
    """Hide all GPUs from a service, even if the job shows its programs some."""
    return {VISIBLE: NO_DEVICE} if task.partition("/")[0] in SERVICE_GROUPS else {}
