"""Gridflow runs TensorFlow programs on shared clusters.

    >>> import gridflow
    >>> run = gridflow.launch("train.py", workers=2)    # doctest: +SKIP
    >>> run.wait().state                                # doctest: +SKIP
    <RunState.SUCCEEDED: 'succeeded'>

Importing it loads neither TensorFlow nor Spark, and each name only when it is used: every process of a run imports
this package, and starts the sooner for each module that it does without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridflow import late

if TYPE_CHECKING:
    from gridflow.errors import GridflowError
    from gridflow.job import Group, Job, Program, Resources, Timeouts
    from gridflow.launcher import launch
    from gridflow.run import Run
    from gridflow.state import RunState, RunStatus, TaskState, TaskStatus
    from gridflow.task.context import Context, context

__all__ = [
    "Context",
    "GridflowError",
    "Group",
    "Job",
    "Program",
    "Resources",
    "Run",
    "RunState",
    "RunStatus",
    "TaskState",
    "TaskStatus",
    "Timeouts",
    "context",
    "launch",
]

__getattr__ = late.names_of(
    __name__,
    {
        "errors": ["GridflowError"],
        "job": ["Group", "Job", "Program", "Resources", "Timeouts"],
        "launcher": ["launch"],
        "run": ["Run"],
        "state": ["RunState", "RunStatus", "TaskState", "TaskStatus"],
        "task.context": ["Context", "context"],
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
