"""Gridflow runs TensorFlow programs on shared clusters.

    >>> import gridflow
    >>> run = gridflow.launch("train.py", workers=2)    # doctest: +SKIP
    >>> run.wait().state                                # doctest: +SKIP
    <RunState.SUCCEEDED: 'succeeded'>

Importing it loads neither TensorFlow nor Spark.
"""

from gridflow.errors import GridflowError
from gridflow.job import Group, Job, Program, Resources, Timeouts
from gridflow.launch import launch
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
