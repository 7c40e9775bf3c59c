"""What a task on HTCondor and the platform that submits it have to call alike. Pure."""

from __future__ import annotations

#: How the names of the board's files begin, for all tasks the same; `spool:` where each task has a folder of its own.
BOARD = "GRIDFLOW_BOARD"
#: The exit code with which a program says that it has saved a checkpoint and wants to go on.
CHECKPOINT_EXIT_CODE = 85
#: How Gridflow's own lines in a job event log begin.
REPORT_PREFIX = "gridflow "

#: The file that names what the program makes and is to be brought back.
OUTPUTS = "outputs.json"
#: The file that says how the tasks differ, where they do not work together.
VARIANTS = "variants.json"
#: The folders that go back to the run's own.
FOLDERS = ("logs", "results", "checkpoints", "tensorboard", "outputs")
