"""Whatever process of a run is killed, and whenever: the run recovers or says what happened, and nothing is left.

Each round starts `gridflow run` and kills -9 the launcher, the supervisor, an agent or a program at a random moment of
its life. What is random comes from one seed. To repeat a round that failed, take both from its output:

    GRIDFLOW_CHAOS_SEED=1234 pytest tests/test_chaos.py -k "sum and 7"
"""

from __future__ import annotations

import json
import os
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import pytest

SEED = os.environ.get("GRIDFLOW_CHAOS_SEED") or str(secrets.randbelow(10**6))
ROUNDS = int(os.environ.get("GRIDFLOW_CHAOS_ROUNDS", "27"))
PROGRAMS = Path(__file__).parent / "chaos_programs"

#: The deadline of every run, and how much later everything must be over.
RUN_SECONDS = 60
END_SECONDS = 30
POLL_SECONDS = 0.01
#: How often to try, each time with half the delay, where the victim was gone before its moment came.
ATTEMPTS = 5

KINDS = ("launcher", "supervisor", "agent", "program")
TASKS = ("worker/0", "worker/1", "ps/0")
#: What the processes of a run execute; the program's runner first, since the agent's name is a part of its own.
MODULES = {
    "gridflow.task.program": "program",
    "gridflow.task": "agent",
    "gridflow.platforms.local_supervisor": "supervisor",
    "gridflow": "launcher",
}
#: What the lock-step program adds up to: in 12 rounds each of two workers adds a power of two of its own.
SUM = 2**24 - 1

T = TypeVar("T")


@dataclass(frozen=True)
class Member:
    """A process of a run."""

    process: psutil.Process
    kind: str
    task: str
    restart: int

    def __str__(self) -> str:
        return f"{self.kind} {self.task} of attempt {self.restart}, pid {self.process.pid}"


@dataclass(frozen=True)
class Kill:
    """Which process to kill, and when: at this fraction of the life that its kind has in an undisturbed run."""

    kind: str
    task: str
    restart: int
    moment: float

    def __str__(self) -> str:
        task = f" {self.task} of attempt {self.restart}" if self.kind in ("agent", "program") else ""
        return f"kill the {self.kind}{task} at {self.moment:.2f} of its life"

    def concerns(self, member: Member) -> bool:
        if self.kind in ("launcher", "supervisor"):
            return member.kind == self.kind
        return (member.kind, member.task, member.restart) == (self.kind, self.task, self.restart)


@dataclass
class Chaos:
    """One `gridflow run`, its processes, and what became of it."""

    launcher: subprocess.Popen[str]
    home: Path
    killed: list[Member] = field(default_factory=list)
    seen: set[psutil.Process] = field(default_factory=set)
    output: str = ""
    errors: str = ""

    def members(self) -> list[Member]:
        """List the processes that carry this run's home in their environment."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                environment = process.environ()
                if environment.get("GRIDFLOW_HOME") == str(self.home):
                    kind = next((MODULES[word] for word in process.cmdline() if word in MODULES), "other")
                    task, restart = environment.get("GRIDFLOW_TASK", ""), environment.get("GRIDFLOW_RESTART", "0")
                    found.append(Member(process, kind, task, int(restart)))
        self.seen.update(member.process for member in found)
        with suppress(psutil.Error):
            self.seen.update(psutil.Process(self.launcher.pid).children(recursive=True))
        return found

    def strike(self, kill: Kill, life_seconds: float) -> None:
        """Wait for the victim and its moment, then kill it; the run may have ended before."""
        victim = _until(
            lambda: next(filter(kill.concerns, self.members()), None) or (self.launcher.poll() is not None),
            f"{kill}: it never appeared",
        )
        if not isinstance(victim, Member):
            print(f"too late to {kill}")
            return
        time.sleep(kill.moment * life_seconds)
        # A process that has ended but was not waited for would take the signal too.
        if not _lives(victim.process):
            print(f"too late to {kill}")
            return
        with suppress(psutil.NoSuchProcess):
            victim.process.kill()
            self.killed.append(victim)
            print(f"killed {victim}")

    def finish(self) -> None:
        """Wait for the launcher's end, and for the end of everything it has started."""
        self.output, self.errors = self.launcher.communicate(timeout=RUN_SECONDS + END_SECONDS)
        _until(lambda: not self.members() and not any(map(_lives, self.seen)), "its processes did not end", END_SECONDS)

    @property
    def folder(self) -> Path | None:
        """The run's folder, or None where the run did not come so far."""
        return next((path.parent for path in self.home.glob("runs/*/run.json")), None)

    def status(self) -> dict[str, Any]:
        """Ask another process how the run ended."""
        assert self.folder is not None
        command = [sys.executable, "-m", "gridflow", "status", self.folder.name, "--json"]
        environment = {**os.environ, "GRIDFLOW_HOME": str(self.home)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=END_SECONDS, check=True)
        status: dict[str, Any] = json.loads(done.stdout)
        return status

    def tell(self) -> None:
        """Print all there is to know, for whoever looks into a failure."""
        print(f"exit code {self.launcher.returncode}\n{self.output}\n{self.errors}")
        for path in sorted(self.home.glob("runs/*/events.jsonl")) + sorted(self.home.glob("runs/*/logs/*")):
            print(f"--- {path.name}\n{path.read_text(errors='replace')}")


def _until(look: Callable[[], T], what: str, seconds: float = RUN_SECONDS) -> T:
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what} within {seconds} s"
        time.sleep(POLL_SECONDS)
    return found


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def chaos(home: Path, program: str, *options: str) -> Iterator[Chaos]:
    """Start a run; whatever happens, nothing of it is left afterwards."""
    command = [sys.executable, "-m", "gridflow", "run", str(PROGRAMS / program), "--workers", "2", "--stop-timeout=3s"]
    launcher = subprocess.Popen(
        [*command, f"--timeout={RUN_SECONDS}s", *options],
        env={**os.environ, "GRIDFLOW_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    run = Chaos(launcher, home)
    with launcher:
        try:
            yield run
        finally:
            run.tell()
            while members := run.members():
                for member in members:
                    with suppress(psutil.NoSuchProcess):
                        member.process.kill()
            launcher.kill()


# Plain Python that feels a dead peer


@dataclass(frozen=True)
class Plan:
    """One round: what to kill, and how often the job may start again."""

    kills: tuple[Kill, ...]
    max_restarts: int

    @classmethod
    def draw(cls, number: int) -> Plan:
        """Draw a round; every kind of process has its turn as the first victim."""
        draw = random.Random(f"{SEED}/{number}")
        first = Kill(KINDS[number % len(KINDS)], draw.choice(TASKS), 0, draw.uniform(0, 1))
        if first.kind in ("launcher", "supervisor"):
            return cls((first,), max_restarts=2)
        if draw.random() < 0.25:
            return cls((first,), max_restarts=0)
        # A second blow hits the run while it restarts, or soon afterwards.
        second = Kill(draw.choice(KINDS), draw.choice(TASKS), 1, draw.uniform(0, 0.5))
        return cls((first, second) if draw.random() < 0.5 else (first,), max_restarts=2)


@pytest.fixture(scope="module")
def life_seconds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """How long each kind of process lives when nobody disturbs it."""
    births: dict[str, float] = {}
    deaths: dict[str, float] = {}
    with chaos(tmp_path_factory.mktemp("undisturbed"), "lockstep.py", "--ps=1") as run:
        while run.launcher.poll() is None:
            now = time.monotonic()
            for member in run.members():
                births.setdefault(member.kind, now)
                deaths[member.kind] = now
            time.sleep(POLL_SECONDS)
        run.finish()
        check_sum(run)
    return {kind: deaths[kind] - births[kind] for kind in KINDS}


@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_sum_is_right_or_its_failure_named(number: int, life_seconds: dict[str, float], tmp_path: Path) -> None:
    plan = Plan.draw(number)
    print(f"GRIDFLOW_CHAOS_SEED={SEED}, round {number}, max_restarts {plan.max_restarts}")
    for attempt in range(ATTEMPTS):
        with chaos(tmp_path / str(attempt), "lockstep.py", "--ps=1", f"--max-restarts={plan.max_restarts}") as run:
            for kill in plan.kills:
                run.strike(kill, life_seconds[kill.kind] / 2**attempt)
            run.finish()
            check_outcome(run, plan.max_restarts)
        if run.killed:
            return
    pytest.fail(f"the victim was gone {ATTEMPTS} times before its moment came")


def check_outcome(run: Chaos, max_restarts: int) -> None:
    """The run has ended as it must after what was killed."""
    kinds = {member.kind for member in run.killed}
    if "launcher" in kinds:
        check_cancelled(run)
    elif "supervisor" in kinds:
        check_supervisor_lost(run)
    elif len(run.killed) > max_restarts:
        check_failure_named(run)
    else:
        assert run.launcher.returncode == 0
        check_sum(run)


def check_sum(run: Chaos) -> None:
    """The run has succeeded, with the right result and by way of its checkpoints."""
    assert run.status()["state"] == "succeeded"
    assert run.folder is not None
    result = json.loads((run.folder / "sum.json").read_text())
    assert (result["rounds"], result["sum"]) == (12, SUM)
    restarts = [attempt["restart"] for attempt in result["attempts"]]
    assert restarts == sorted(set(restarts))
    starts = [attempt["from"] for attempt in result["attempts"]]
    assert starts == sorted(starts)


def check_cancelled(run: Chaos) -> None:
    """A run ends with its launcher, unless it had ended before."""
    assert run.launcher.returncode == -9
    if run.folder is None:
        return  # it was killed before it had made a run
    status = run.status()
    if status["state"] == "succeeded":
        check_sum(run)
    else:
        assert (status["state"], status["reason"]) == ("cancelled", "the process that launched it is gone")


def check_supervisor_lost(run: Chaos) -> None:
    """The launcher reports that it lost the supervisor, unless the run had ended before."""
    assert run.folder is not None
    if run.launcher.returncode == 0:
        check_sum(run)
    else:
        assert run.launcher.returncode == 1
        assert "failed: the run's supervisor process was killed" in run.errors
        status = run.status()
        assert (status["state"], status["reason"]) == ("failed", "the run's supervisor process was killed")


def check_failure_named(run: Chaos) -> None:
    """The failure names the task and the signal, unless the task had done its work before."""
    if run.launcher.returncode == 0:
        check_sum(run)
        return
    assert run.launcher.returncode == 1
    task = run.killed[-1].task
    assert f"failed: {task} failed: " in run.errors
    assert "killed by SIGKILL" in run.errors
    status = run.status()
    assert (status["state"], status["failed_task"]) == ("failed", task)
    assert {each["task"]: each["signal"] for each in status["tasks"]}[task] == "SIGKILL"
