"""Who a task is: the variables that a platform gives to `python -m gridflow.task`, and to the program after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gridflow.errors import TaskError

RUN = "GRIDFLOW_RUN"
TASK = "GRIDFLOW_TASK"
RUN_DIR = "GRIDFLOW_RUN_DIR"
RESTART = "GRIDFLOW_RESTART"
#: How often all tasks were started before, where that is more than the restarts: ports may be drawn anew.
ATTEMPT = "GRIDFLOW_ATTEMPT"
#: Where the tasks meet: `host:port` of the run's server.
RENDEZVOUS = "GRIDFLOW_RENDEZVOUS"
#: The name under which the other tasks reach this one.
HOST = "GRIDFLOW_HOST"
#: The port to take; without it any free one is taken.
PORT = "GRIDFLOW_PORT"
#: The process that an agent, or a program, must not outlive; without it an agent goes by who its parent is.
PARENT_PID = "GRIDFLOW_PARENT_PID"
#: The GPUs, by index or UUID, that the platform has chosen for the task; without it the task's host chooses.
DEVICES = "GRIDFLOW_DEVICES"
#: The file descriptor on which a program's runner reports.
REPORT_FD = "GRIDFLOW_REPORT_FD"


@dataclass(frozen=True)
class TaskIdentity:
    """What a task's environment says about it."""

    run: str
    task: str
    run_dir: Path
    rendezvous: str
    host: str
    port: int | None
    restart: int
    devices: tuple[str, ...] = ()

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> TaskIdentity:
        """Read the variables that the platform has set."""
        missing = [name for name in (RUN, TASK, RUN_DIR, RENDEZVOUS, HOST) if not environ.get(name)]
        if missing:
            raise TaskError(f"{', '.join(missing)} not set", hint="start the program with `gridflow run`")
        return cls(
            run=environ[RUN],
            task=environ[TASK],
            run_dir=Path(environ[RUN_DIR]),
            rendezvous=environ[RENDEZVOUS],
            host=environ[HOST],
            port=int(environ[PORT]) if environ.get(PORT) else None,
            restart=int(environ.get(RESTART, "0")),
            devices=tuple(filter(None, environ.get(DEVICES, "").split(","))),
        )
