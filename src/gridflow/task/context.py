"""What a program may ask about the task it runs in."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gridflow.job import TRAINING_GROUPS
from gridflow.rendezvous.roster import Roster
from gridflow.store import RunFolder
from gridflow.task import command, tf_config
from gridflow.task import identity as names
from gridflow.task import paths as task_paths
from gridflow.task.identity import TaskIdentity

if TYPE_CHECKING:
    from gridflow.feed.feed import Feed
    from gridflow.gpu.grants import Grant


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
    #: The task's part of the host's GPUs; without devices where it claimed none.
    grant: Grant

    def feed(self, name: str = "train", *, timeout_seconds: float = 600) -> Feed:
        """Open one of the feeds through which Spark's rows come; it may be opened before Spark begins to send."""
        from gridflow.feed.feed import open_feed

        attempt = int(os.environ.get(names.ATTEMPT, "0"))
        secret = RunFolder(self.run_dir).secret()
        return open_feed(
            name, os.environ, secret=secret, task=self.task, attempt=attempt, timeout_seconds=timeout_seconds
        )

    def shard(self, paths: Sequence[str] | str) -> list[str]:
        """Return this task's part of some files: every file goes to one of the training tasks.

        `paths` is a list, or one path or pattern on any filesystem.
        """
        from gridflow.tfrecord.files import find

        tasks = [task for task in self.roster.to_dict() if task.partition("/")[0] in TRAINING_GROUPS]
        if self.task not in tasks:
            return []
        return [source.name for source in find(paths)][tasks.index(self.task) :: len(tasks)]

    def absolute_path(self, path: str) -> str:
        """Return the URL of a path on the cluster's own file system, where relative ones start at the user's home."""
        user = os.environ.get(task_paths.USER) or getpass.getuser()
        default_fs = os.environ.get(task_paths.DEFAULT_FS, "file:///")
        return task_paths.absolute_path(path, default_fs=default_fs, user=user, working_folder=os.getcwd())

    @property
    def task(self) -> str:
        """The task's name, such as `worker/0`."""
        return f"{self.group}/{self.index}"

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Context:
        """Read the variables that the task agent has set."""
        from gridflow.gpu.grants import Grant

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
            grant=Grant.read(environ),
        )


def context() -> Context:
    """Return the task that this process belongs to; outside a run that is an error."""
    return Context.read(os.environ)
