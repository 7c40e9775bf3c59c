"""Runs on the pool, as tests start and watch them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from gridflow import Job, Run, RunState
from gridflow.launcher import submit
from gridflow.state import RunStatus

#: TensorFlow is slow to start in a slot: tests that train go to the schedd in one way each, in turn.
OVER_BINDINGS = pytest.mark.parametrize("way", ["bindings"])
OVER_TOOLS = pytest.mark.parametrize("way", ["tools"])
PROGRAMS = Path(__file__).parent / "programs"
RUN_SECONDS = 300.0


def start(program: str, *args: str, options: dict[str, Any] | None = None, **table: Any) -> Run:
    """Start a program of this folder, from outside the pool."""
    folder = table.pop("folder", str(PROGRAMS))
    job = Job.from_table({"program": program, "args": args, "folder": folder, **table})
    return submit(job, "htcondor", {"spool": True, **(options or {})}, attached=False)


def finish(run: Run) -> RunStatus:
    """Wait for the end of a run."""
    return run.wait(RUN_SECONDS)


def wait_for(run: Run, what: str, look: Callable[[RunStatus], bool]) -> RunStatus:
    """Wait until a run's status is as it is looked for."""
    until(lambda: look(run.status()), f"{run.id} {what}", seconds=RUN_SECONDS)
    return run.status()


def wait_for_output(run: Run, text: str, task: str = "worker/0") -> None:
    """Wait until a task has said something."""
    until(lambda: text in "".join(run.logs(task)), f"{task} of {run.id} says {text!r}", seconds=RUN_SECONDS)


def cluster(run: Run) -> str:
    """Return the number that HTCondor gave to a run."""
    import json

    events = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    return str(next(event["cluster"] for event in events if event["event"] == "submitted"))


def output(run: Run, task: str = "worker/0") -> str:
    """Return a task's output."""
    return "".join(run.logs(task))


def succeeded(run: Run) -> str:
    """Wait for a run's success and return its first task's output."""
    status = finish(run)
    assert status.state is RunState.SUCCEEDED, f"{status.reason}\n{output(run)}"
    return output(run)
