"""Runs that were recorded but never ran, for the verbs that only read."""

from __future__ import annotations

import os
from typing import Any

from tests.contract import PLACES

from gridflow import settings
from gridflow.store import RunFolder, create_run


def record_run(*, state: str = "succeeded", created: float = 1_800_000_000.0, **table: Any) -> RunFolder:
    """Write down a run of one worker that has ended."""
    home = settings.home(os.environ)
    folder = create_run(home, PLACES["local"].job("hello.py", **table), "local", {}, now=created)
    folder.append_event("run", state="running")
    folder.append_event("task", task="worker/0", state="starting", host="here")
    folder.append_event("task", task="worker/0", state="succeeded", exit_code=0)
    folder.append_event("run", state=state)
    folder.log_file("worker/0").write_text("first line\nlast line\n")
    return folder
