"""Note each attempt in the checkpoint directory, and fail in `worker/1` until there were as many as are asked for.

resume.py 3
"""

import os
import sys
import time
from pathlib import Path

task, attempt = os.environ["GRIDFLOW_TASK"], int(os.environ["GRIDFLOW_RESTART"])
with Path(os.environ["GRIDFLOW_CHECKPOINT_DIR"], task.replace("/", "-")).open("a") as file:
    file.write(f"{attempt}\n")
if attempt < int(sys.argv[1]) - 1:
    if task == "worker/1":
        sys.exit(f"attempt {attempt} is lost")
    time.sleep(300)
