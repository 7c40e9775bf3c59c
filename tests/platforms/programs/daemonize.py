"""Leave a daemon behind: in a session of its own, with no parent, and with an empty environment if that is asked for.

daemonize.py [--empty] [--linger]
"""

import os
import sys
import time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        command = [sys.executable, "-c", "import time; time.sleep(300)", "a daemon of", os.environ["GRIDFLOW_RUN"]]
        os.execve(command[0], command, {} if "--empty" in sys.argv else os.environ)
    os._exit(0)
os.wait()
print("ready")  # noqa: T201
if "--linger" in sys.argv:
    time.sleep(300)
