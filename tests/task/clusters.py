"""Runs test programs as the tasks of a TensorFlow cluster on this machine, and compares what they wrote."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"
DEADLINE_SECONDS = 420.0


@dataclass(frozen=True)
class Worker:
    """One ended process of a cluster; `result` is what it wrote to the path it got as its first argument."""

    exit_code: int
    output: str
    result: Any


def run_cluster(
    folder: Path, program: str, *arguments: str, cluster: Mapping[str, int], environ: Mapping[str, str] | None = None
) -> dict[str, Worker]:
    """Run a program as every task of a cluster, until all have ended or one has failed, and leave none behind.

    Parameter servers and their workers only serve the chief: the cluster has ended when it has.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tasks = [(group, index) for group, count in cluster.items() for index in range(count)]
    ports = free_ports(len(tasks))
    addresses = {group: [f"127.0.0.1:{ports.pop()}" for _ in range(count)] for group, count in cluster.items()}
    deadline = time.monotonic() + DEADLINE_SECONDS
    processes: dict[str, subprocess.Popen[bytes]] = {}
    with ExitStack() as stack:
        for group, index in tasks:
            name = f"{group}-{index}"
            config = {"cluster": addresses, "task": {"type": group, "index": index}}
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            processes[name] = subprocess.Popen(
                [sys.executable, str(PROGRAMS / program), str(folder / f"{name}.json"), *arguments],
                env={
                    **os.environ,
                    **({"TF_CONFIG": json.dumps(config)} if len(tasks) > 1 else {}),
                    "CUDA_VISIBLE_DEVICES": "",
                    "TF_CPP_MIN_LOG_LEVEL": "2",
                    **(environ or {}),
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            stack.callback(end, processes[name])
        awaited = [process for name, process in processes.items() if "ps" not in cluster or name == "chief-0"]
        while any(process.poll() is None for process in awaited):
            if any(process.returncode for process in processes.values()):
                break
            if time.monotonic() > deadline:
                logs = "\n".join(f"{name}: {read(folder / f'{name}.log')[-2000:]}" for name in processes)
                pytest.fail(f"{program} on {cluster} has not ended after {DEADLINE_SECONDS:.0f} s\n{logs}")
            time.sleep(0.05)
    return {
        name: Worker(process.returncode, read(folder / f"{name}.log"), json.loads(read(folder / f"{name}.json") or "0"))
        for name, process in processes.items()
    }


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=20)


def read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def differences(expected: Any, found: Any, path: str = "") -> Iterator[str]:
    """Name every value that differs; a number may do so by 1e-5, relative to numbers above one."""
    if isinstance(expected, dict):
        assert expected.keys() == found.keys(), path
        for key in expected:
            yield from differences(expected[key], found[key], f"{path}/{key}")
    elif isinstance(expected, list):
        assert len(expected) == len(found), path
        for index, pair in enumerate(zip(expected, found, strict=True)):
            yield from differences(*pair, f"{path}/{index}")
    elif found != (expected if isinstance(expected, str) else pytest.approx(expected, rel=1e-5, abs=1e-5)):
        yield f"{path}: {found} is not {expected}"
