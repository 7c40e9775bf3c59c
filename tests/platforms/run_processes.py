"""The processes of a run on this machine, as anybody can see them."""

from __future__ import annotations

import psutil
from tests.waiting import until

from gridflow import Run, processes
from gridflow.store import RunFolder


def supervisor(run: Run) -> psutil.Process:
    """Return the process that watches over a run."""
    (pid,) = (event["pid"] for event in RunFolder(run.folder).events() if event["event"] == "supervisor")
    return psutil.Process(pid)


def agent(run: Run, task: str) -> psutil.Process:
    """Return the agent of a task, as soon as it is there."""
    return until(lambda: _with_ending(run, task, ["-m", "gridflow.task"]), f"{task} has an agent")


def program(run: Run, task: str) -> psutil.Process:
    """Return the process of a task's program, as soon as it is there."""
    return until(lambda: _find(run, task, "gridflow.task.program"), f"{task} has a program")


def until_none_is_left(run: Run) -> None:
    """Wait until no process of a run is left, daemons of its programs included; nobody is asked to see to it."""
    until(lambda: not _left(run), f"no process of {run.id} is left", seconds=30)


def _left(run: Run) -> list[int]:
    return processes.find([f"GRIDFLOW_RUN={run.id}"]) + _with_argument(run.id) + _with_argument(str(run.folder))


def _with_argument(argument: str) -> list[int]:
    """Find processes by an argument: the supervisor has the run's folder, and a daemon its id."""
    return [process.pid for process in psutil.process_iter(["cmdline"]) if argument in (process.info["cmdline"] or ())]


def _with_ending(run: Run, task: str, ending: list[str]) -> psutil.Process | None:
    return next((process for process in _processes(run, task) if _command(process)[-len(ending) :] == ending), None)


def _find(run: Run, task: str, argument: str) -> psutil.Process | None:
    return next((process for process in _processes(run, task) if argument in _command(process)), None)


def _processes(run: Run, task: str) -> list[psutil.Process]:
    found = []
    for pid in processes.find([f"GRIDFLOW_RUN={run.id}", f"GRIDFLOW_TASK={task}"]):
        try:
            found.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    return found


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []
