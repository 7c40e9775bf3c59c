"""Nodes beside the driver: parameter servers that take no executor.

driver ── the pickled node, on standard input ──▶ python -m gridflow.compat.tensorflowonspark.services
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from gridflow import processes
from gridflow.compat.tensorflowonspark import TFSparkNode, util
from gridflow.gpu.variables import VISIBLE
from gridflow.launcher import describe

_END_SECONDS = 10.0


@dataclass(frozen=True)
class _ServiceNode:
    """A node that is a process of its own; called there."""

    fn: TFSparkNode.MapFunction
    tf_args: Any
    cluster_meta: dict[str, Any]
    executor_id: int

    def __call__(self) -> None:
        os.environ[VISIBLE] = ""
        port, keeper = TFSparkNode.keep_port()
        host = self.cluster_meta["server_addr"][0] or util.get_ip_address()
        place = TFSparkNode.Place(host, port, keeper)
        ctx = TFSparkNode.join_cluster(
            self.cluster_meta, self.executor_id, place, None, tensorboard=False, log_dir=None
        )
        if keeper is not None and self.cluster_meta["release_port"]:
            ctx.release_port()
        TFSparkNode.call(self.fn, self.tf_args, ctx)


class Service:
    """A node beside the driver, as the driver sees it."""

    def __init__(self, fn: TFSparkNode.MapFunction, tf_args: Any, cluster_meta: dict[str, Any], number: int) -> None:
        call = describe(_ServiceNode(fn, tf_args, cluster_meta, number)).program.payload
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(os.getpid())], stdin=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdin is not None  # noqa: S101 - it was asked for
        with self._process.stdin as pipe:
            pipe.write(call)

    @property
    def exit_code(self) -> int | None:
        """How the process ended; None while it runs."""
        return self._process.poll()

    def end(self) -> None:
        """End the process: politely first, then by force."""
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main() -> None:
    """Be the node that standard input describes, for as long as the driver lives."""
    processes.die_with_parent(int(sys.argv[1]))
    call = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - written by this user's own driver
    sys.path[:] = [*call["path"], *(entry for entry in sys.path if entry not in call["path"])]
    node, _, _ = pickle.loads(call["call"])  # noqa: S301
    node()


if __name__ == "__main__":
    main()
