"""Listen on the task's own port, as a TensorFlow program does, but wait until somebody else had the time to do so.

take_port.py raise       a port that is taken raises, as in TensorFlow
take_port.py exit        … or merely ends the program
"""

import json
import os
import socket
import sys
import time
from pathlib import Path

notes = Path(os.environ["GRIDFLOW_CHECKPOINT_DIR"])
attempt = len(list(notes.glob("port-*")))
host, port = json.loads(os.environ["GRIDFLOW_ROSTER"])[os.environ["GRIDFLOW_TASK"]].split(":")
Path(notes, "unfinished").write_text(port)
Path(notes, "unfinished").rename(notes / f"port-{attempt}")
while not Path(notes, f"go-{attempt}").exists():
    time.sleep(0.01)
with socket.socket() as server:
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((host, int(port)))
        server.listen()
    except OSError:
        if sys.argv[1] == "exit":
            os._exit(9)
        raise
print("listening on", port)  # noqa: T201
