"""Fail in `worker/1`, slowly; at once its peers fail for lack of it and are gone earlier.

blame.py raise | exit
"""

import atexit
import os
import sys
import time
from pathlib import Path

failed = Path(os.environ["GRIDFLOW_CHECKPOINT_DIR"], "failed")
if os.environ["GRIDFLOW_TASK"] == "worker/1":
    atexit.register(time.sleep, 3)
    failed.touch()
    if sys.argv[1] == "raise":
        raise ValueError("the first to fail")
    sys.exit(3)
while not failed.exists():
    time.sleep(0.01)
time.sleep(1)
os._exit(7)
