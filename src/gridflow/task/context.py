"""What a program may ask about the task it runs in."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gridflow.rendezvous.roster import Roster
from gridflow.task import command, tf_config
from gridflow.task.identity import TaskIdentity


@dataclass(frozen=True)
class Context:
    """The task that this process belongs to."""

    run: str
    group: str
    index: int
    restart: int
    run_dir: Path
    #: The same directory for every restart.
    checkpoint_dir: str
    #: Where TensorBoard looks.
    log_dir: str
    roster: Roster
    #: The address of the tf.data service, where the job has one.
    data_service: str | None

    @property
    def task(self) -> str:
        """The task's name, such as `worker/0`."""
        return f"{self.group}/{self.index}"

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Context:
        """Read the variables that the task agent has set."""
        identity = TaskIdentity.read(environ)
        group, index = tf_config.split_task(identity.task)
        return cls(
            run=identity.run,
            group=group,
            index=index,
            restart=identity.restart,
            run_dir=identity.run_dir,
            checkpoint_dir=environ[command.CHECKPOINT_DIR],
            log_dir=environ[command.LOG_DIR],
            roster=Roster.from_dict(json.loads(environ[tf_config.ROSTER])),
            data_service=environ.get(tf_config.DATA_SERVICE),
        )


def context() -> Context:
    """Return the task that this process belongs to; outside a run that is an error."""
    return Context.read(os.environ)
