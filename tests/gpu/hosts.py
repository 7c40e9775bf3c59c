"""Hosts with GPUs that are declared: what tests of claims need instead of real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.waiting import until

from gridflow.gpu.inventory import Device
from gridflow.gpu.ledger import Ledger
from gridflow.gpu.variables import DECLARED, GRANT, LEDGER, VISIBLE

TWO_OF_8_GB = '[[gpu]]\nname = "T4"\nmemory = "8 GB"\ncapability = 7.5\ncount = 2\n'


@dataclass(frozen=True)
class Host:
    """A declared inventory with a ledger of its own."""

    folder: Path

    @property
    def variables(self) -> dict[str, str]:
        return {DECLARED: str(self.folder / "gpus.toml"), LEDGER: str(self.folder / "ledger")}

    @property
    def environ(self) -> dict[str, str]:
        return {**{name: value for name, value in os.environ.items() if name != VISIBLE}, **self.variables}

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.folder / "ledger")

    def declare(self, text: str) -> None:
        (self.folder / "gpus.toml").write_text(text)

    @contextmanager
    def running(self, code: str, *arguments: str, variables: Mapping[str, str] | None = None) -> Iterator[Program]:
        """Run a Python program on this host; it is killed at the end of the block if it still runs."""
        with subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env={**self.environ, **(variables or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield Program(process)
            finally:
                process.kill()

    def run(self, code: str, *arguments: str, variables: Mapping[str, str] | None = None) -> str:
        """Run a Python program on this host to its end, and return what it printed."""
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env={**self.environ, **(variables or {})},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@dataclass(frozen=True)
class Program:
    """A running program that prints what it has, and goes on when it is told to."""

    process: subprocess.Popen[str]

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


def declared_host(folder: Path, patch: pytest.MonkeyPatch) -> Host:
    """Make a host with two GPUs of 8 GB, for this process too."""
    host = Host(folder)
    host.declare(TWO_OF_8_GB)
    for name, value in host.variables.items():
        patch.setenv(name, value)
    for name in (VISIBLE, GRANT):
        patch.delenv(name, raising=False)
    return host


#: Holds what the keywords ask for until a line comes.
HOLD = """
import sys
from gridflow import gpu
with gpu.claim(**eval(sys.argv[1])) as grant:
    print(grant.devices, flush=True)
    sys.stdin.readline()
print("released", flush=True)
"""


def until_waiting(ledger: Ledger, count: int) -> None:
    """Wait until this many claims are in the queue."""
    until(lambda: len(ledger.read().waiting) == count, f"{count} claims wait")


def devices_of(*memories_mb: int, capability: float | None = 7.5, overhead_mb: int = 0) -> list[Device]:
    return [
        Device(index, memory_mb, f"GPU-{index}", "T4", capability, overhead_mb)
        for index, memory_mb in enumerate(memories_mb)
    ]
