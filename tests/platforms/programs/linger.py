"""Be there until somebody stops it.

    linger.py                    in every task
    linger.py worker/1 …         only in these; the others end at once
    linger.py --stubborn …       and ignore being asked to stop
"""

import os
import signal
import sys
import time

tasks = sys.argv[1:]
if "--stubborn" in tasks:
    tasks.remove("--stubborn")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready")
if not tasks or os.environ["GRIDFLOW_TASK"] in tasks:
    time.sleep(300)
