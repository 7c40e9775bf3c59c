"""The cluster as tests see it: what to reach it by, and what it can be asked."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.hadoop.cluster import DONE, READY

_SCRIPT = Path(__file__).with_name("hadoop-cluster")
_END_SECONDS = 60


@dataclass(frozen=True)
class Hadoop:
    """A cluster that runs; `exports` is what its users have in their environment."""

    exports: dict[str, str]
    process: subprocess.Popen[str]

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment and the cluster's."""
        return os.environ | self.exports

    def url(self, path: str) -> str:
        """Return how Spark and MapReduce call a file."""
        return self.exports["HDFS_URL"] + path

    def applications(self, **query: str) -> list[dict[str, Any]]:
        """Return what the ResourceManager says of applications."""
        parameters = "&".join(f"{name}={value}" for name, value in query.items())
        answer = get(f"{self.exports['RESOURCEMANAGER_URL']}/apps?{parameters}")
        return (answer["apps"] or {}).get("app", [])  # type: ignore[no-any-return]

    def order(self, verb: str, node: int) -> None:
        """Have the cluster `kill` or `start` a node."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{verb} {node}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == f"{DONE}\n", f"the cluster could not {verb} node {node}"


def get(url: str) -> Any:
    """Ask one of Hadoop's web services."""
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@contextmanager
def running(folder: Path, cache: Path, *, nodes: int) -> Iterator[Hadoop]:
    """Have a cluster, from when it is ready until it has ended with all that it started."""
    argv = [str(_SCRIPT), str(folder), "--nodes", str(nodes), "--cache", str(cache)]
    with (folder / "cluster.log").open("w") as log:
        # In a session of its own, since Ctrl-C at the terminal is for pytest; it ends with pytest all the same.
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
    with process:
        try:
            yield Hadoop(_exports(process, folder / "cluster.log"), process)
        finally:
            process.terminate()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def _exports(process: subprocess.Popen[str], log: Path) -> dict[str, str]:
    assert process.stdout is not None
    exports: dict[str, str] = {}
    for line in process.stdout:
        if line == f"{READY}\n":
            return exports
        # export HDFS_URL=hdfs://localhost:12345
        name, _, value = shlex.split(line)[1].partition("=")
        exports[name] = value
    raise AssertionError(f"the cluster did not start:\n{log.read_text()}")
