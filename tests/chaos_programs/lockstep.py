"""Adds numbers in lock step: a worker that dies is felt by the other, and a lost or repeated round shows in the sum.

    ps/0  tells what each worker adds in each round; it can die and come back
    worker/0 ◀── each round: what I add ──▶ worker/1

Worker 0 keeps the sum in the checkpoint directory, a journal of the rounds it has done in the run's folder and, when
all are done, the sum there too. Each worker starts a process of its own and forgets about it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

ROUNDS = 12
ROUND_SECONDS = 0.05
#: How long a peer may be away before its absence is an error.
PATIENCE_SECONDS = 20.0
#: A service that takes its time to stop, so that a run's end has a length.
STOP_SECONDS = 0.3

T = TypeVar("T")


def part(worker: int, round_: int) -> int:
    """Return what a worker adds in a round; no two are alike, so every lost or repeated one changes the sum."""
    return 1 << (2 * round_ + worker)


def main() -> None:
    """Be what TF_CONFIG says."""
    config = json.loads(os.environ["TF_CONFIG"])
    kind, index = config["task"]["type"], config["task"]["index"]
    if kind == "ps":
        serve(address_of(config["cluster"]["ps"][index]))
    else:
        work(index, *(address_of(config["cluster"][group][0]) for group in ("worker", "ps")))


def address_of(text: str) -> tuple[str, int]:
    """Split `host:port`."""
    host, _, port = text.rpartition(":")
    return host, int(port)


def serve(own: tuple[str, int]) -> None:
    """Answer `worker round` with what that worker adds in that round, until told to stop."""

    def stop(*_: object) -> None:
        time.sleep(STOP_SECONDS)
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    with socket.create_server(own) as server:
        while True:
            connection, _ = server.accept()
            # A worker may be gone before it has asked or heard.
            with suppress(OSError), connection, connection.makefile("rwb", buffering=0) as worker:
                index, round_ = map(int, read_line(worker).split())
                worker.write(f"{part(index, round_)}\n".encode())


def work(index: int, first_worker: tuple[str, int], ps: tuple[str, int]) -> None:
    """Go on where the checkpoint ends, exchange all rounds with the other worker, keep the sum."""
    folder, state = Path(os.environ["GRIDFLOW_RUN_DIR"]), Path(os.environ["GRIDFLOW_CHECKPOINT_DIR"], "sum.json")
    done: dict[str, int] = json.loads(state.read_text()) if state.exists() else {"rounds": 0, "sum": 0}
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    with meet(index, first_worker) as connection, connection.makefile("rwb", buffering=0) as peer:
        for round_ in range(done["rounds"], ROUNDS):
            mine = eventually(lambda round_=round_: ask(ps, index, round_))  # type: ignore[misc]
            peer.write(f"{round_} {mine}\n".encode())
            peer_round, theirs = map(int, read_line(peer).split())
            if peer_round != round_:
                raise RuntimeError(f"worker {index} is in round {round_}, the other one in {peer_round}")
            done["rounds"], done["sum"] = round_ + 1, done["sum"] + mine + theirs
            if index == 0:
                write(state, done)
                with (folder / "journal").open("a") as journal:
                    journal.write(f"{round_}\n")
            time.sleep(ROUND_SECONDS)
    if index == 0:
        write(folder / "sum.json", done)


def meet(index: int, first_worker: tuple[str, int]) -> socket.socket:
    """Connect the two workers: the first one listens."""
    if index != 0:
        return eventually(lambda: socket.create_connection(first_worker, PATIENCE_SECONDS))
    with socket.create_server(first_worker) as server:
        server.settimeout(PATIENCE_SECONDS)
        peer, _ = server.accept()
    peer.settimeout(PATIENCE_SECONDS)
    return peer


def ask(ps: tuple[str, int], index: int, round_: int) -> int:
    """Ask the parameter server for this worker's part of a round."""
    with socket.create_connection(ps, PATIENCE_SECONDS) as connection, connection.makefile("rwb", buffering=0) as file:
        file.write(f"{index} {round_}\n".encode())
        return int(read_line(file))


def read_line(file: socket.SocketIO) -> str:
    """Read one line; the other side's end is an error."""
    line = file.readline()
    if not line.endswith(b"\n"):
        raise ConnectionError("the other side is gone")
    return line.decode()


def eventually(attempt: Callable[[], T]) -> T:
    """Repeat what fails while the other side is not up."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return attempt()
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def write(path: Path, content: object) -> None:
    """Write a whole file or nothing."""
    aside = path.with_suffix(".aside")
    aside.write_text(json.dumps(content))
    aside.replace(path)


if __name__ == "__main__":
    main()
