"""End one task in a given way, while the others linger.

fail.py worker/1 exit 3
fail.py worker/1 signal SIGSEGV
fail.py worker/1 raise "no such table"
fail.py worker/1 stop "no such table"
"""

import os
import signal
import sys
import time

task, way, detail = sys.argv[1:4]
if os.environ["GRIDFLOW_TASK"] != task:
    time.sleep(300)
print("the last words of", task)  # noqa: T201
if way == "exit":
    os._exit(int(detail))
if way == "signal":
    os.kill(os.getpid(), signal.Signals[detail])
    time.sleep(300)
if way == "raise":
    raise ValueError(detail)
sys.exit(detail)
