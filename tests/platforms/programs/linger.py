"""Be there until somebody stops it, or until a file `enough` is in the checkpoint directory.

linger.py                    in every task
linger.py worker/1 …         only in these; the others end at once
linger.py --stubborn …       and ignore being asked to stop
"""

import os
import signal
import sys
import time
from pathlib import Path

tasks = sys.argv[1:]
if "--stubborn" in tasks:
    tasks.remove("--stubborn")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready")  # noqa: T201
enough = Path(os.environ["GRIDFLOW_CHECKPOINT_DIR"], "enough")
while (not tasks or os.environ["GRIDFLOW_TASK"] in tasks) and not enough.exists():
    time.sleep(0.05)
