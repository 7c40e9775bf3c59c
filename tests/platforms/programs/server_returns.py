"""Lose `ps/0` once; the worker goes on and ends when the server is back at the address that it knows."""

import os
import sys
import time
from pathlib import Path

notes = Path(os.environ["GRIDFLOW_CHECKPOINT_DIR"])
attempt = os.environ["GRIDFLOW_RESTART"]
if os.environ["GRIDFLOW_TASK"] == "ps/0":
    Path(notes, f"roster-{attempt}").write_text(os.environ["GRIDFLOW_ROSTER"])
    Path(notes, f"up-{attempt}").touch()
    while not Path(notes, "worker").exists():
        time.sleep(0.01)
    if attempt == "0":
        sys.exit(5)
    time.sleep(300)
Path(notes, "worker").touch()
deadline = time.monotonic() + 60
while not Path(notes, "up-1").exists():
    if time.monotonic() > deadline:
        sys.exit("the server did not return")
    time.sleep(0.01)
