"""Slots of HTCondor on this machine: a scratch folder each, and HTCondor's starter beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.rendezvous.starter import Starter, starting
from tests.waiting import until

from gridflow import shipping
from gridflow.job import Job
from gridflow.task.htcondor_names import FOLDERS

_END_SECONDS = 120.0


class Slot:
    """A task in its slot."""

    def __init__(self, scratch: Path, task: str, starter: Starter, process: subprocess.Popen[bytes]) -> None:
        self.scratch = scratch
        self.starter = starter
        self._process = process
        self._log = scratch / "logs" / f"{task.replace('/', '-')}.log"

    @property
    def output(self) -> str:
        """What the task has said."""
        return self._log.read_text()

    @property
    def reports(self) -> list[dict[str, Any]]:
        """What it has put into the job's event log."""
        return [json.loads(line.removeprefix("gridflow ")) for line in self.starter.said]

    def wait_for(self, text: str) -> None:
        """Wait until the task has said something."""
        until(lambda: text in self.output, f"the task says {text!r}")

    def vacate(self) -> None:
        """Want the slot back."""
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> int:
        """Wait for the task's end and return how it ended: what HTCondor sees."""
        return self._process.wait(_END_SECONDS)


@contextmanager
def started(
    folder: Path, job: Job, task: str = "worker/0", *, variants: Sequence[Any] = (), start: int = 1, **variables: str
) -> Iterator[Slot]:
    """Have a task of a job in a slot; `folder` is the submit directory of all its tasks."""
    scratch = folder.with_name(f"{folder.name}-{task.replace('/', '-')}")
    for name in ("", *FOLDERS):
        (scratch / name).mkdir(exist_ok=True)
    (scratch / "job.json").write_text(json.dumps(job.to_table()))
    (scratch / "work.tar").write_bytes(shipping.pack(job))
    if variants:
        (scratch / "variants.json").write_text(json.dumps(variants))
    with starting(folder, {"NumJobStarts": str(start)}) as starter:
        environ = {
            **os.environ,
            **starter.configure(scratch),
            "GRIDFLOW_RUN": "run-1",
            "GRIDFLOW_TASK": task,
            "GRIDFLOW_RUN_DIR": str(scratch),
            "GRIDFLOW_BOARD": "board.",
            "GRIDFLOW_HOST": "127.0.0.1",
            **variables,
        }
        with (scratch / "logs" / f"{task.replace('/', '-')}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "gridflow.task.htcondor"], env=environ, stdout=log, stderr=log, cwd=scratch
            )
        with process:
            try:
                yield Slot(scratch, task, starter, process)
            finally:
                process.kill()
