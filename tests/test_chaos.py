"""Whatever process of a run is killed, and whenever: the run recovers or says what happened, and nothing is left.

Each round starts `gridflow run` and kills -9 the launcher, the supervisor, an agent or a program at a random moment of
its life. What is random comes from one seed, which a round that fails shows, so that it can be repeated. For more
rounds than usual there is another variable:

    GRIDFLOW_CHAOS_SEED=1234 pytest "tests/test_chaos.py::test_a_sum_is_right_or_its_failure_named[7]"
    GRIDFLOW_CHAOS_ROUNDS=300 pytest tests/test_chaos.py -k sum
"""

from __future__ import annotations

import json
import logging
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

from gridflow import processes

SEED = os.environ.get("GRIDFLOW_CHAOS_SEED") or str(secrets.randbelow(10**6))
ROUNDS = int(os.environ.get("GRIDFLOW_CHAOS_ROUNDS", "27"))
PROGRAMS = Path(__file__).parent / "chaos_programs"

#: The deadline of every run, and how much later everything must be over.
RUN_SECONDS = 200
END_SECONDS = 30
POLL_SECONDS = 0.01
#: How often to try, each time with half the delay, where the victim was gone before its moment came.
ATTEMPTS = 5

KINDS = ("launcher", "supervisor", "agent", "program")
TASKS = ("worker/0", "worker/1", "ps/0")
#: The modules that the processes of a run execute.
MODULES = {
    "gridflow.task.program": "program",
    "gridflow.task": "agent",
    "gridflow.platforms.supervisor": "supervisor",
    "gridflow": "launcher",
}
#: The launcher's exit code and what it says when the supervisor was killed, sooner or later than it reported.
SUPERVISOR_LOST = {1: "the run's supervisor process was killed", 3: "the run's supervisor did not start"}
#: About the length of an epoch of the training program.
EPOCH_SECONDS = 0.5
#: What the lock-step program adds up to: in 12 rounds each of two workers adds a power of two of its own.
SUM = 2**24 - 1

T = TypeVar("T")

# Pytest shows warnings with a test that fails.
_log = logging.getLogger(__name__)


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
        victim = self._watch(lambda: next(filter(kill.concerns, self.members()), None), f"{kill}: it never appeared")
        if victim is None:
            _log.warning("too late to %s", kill)
            return
        time.sleep(kill.moment * life_seconds)
        # A process that has ended but was not waited for would take the signal too.
        if not _lives(victim.process):
            _log.warning("too late to %s", kill)
            return
        with suppress(psutil.NoSuchProcess):
            victim.process.kill()
            self.killed.append(victim)
            _log.warning("killed %s", victim)

    def read(self, task: str, text: str) -> None:
        """Wait until a task has written something, or the run has ended."""
        path = f"runs/*/logs/{task.replace('/', '-')}.log"
        said = f"{task} never said {text!r}"
        self._watch(lambda: any(text in log.read_text(errors="replace") for log in self.home.glob(path)), said)

    def _watch(self, look: Callable[[], T], what: str) -> T:
        """Look until there is something to see, or the run has ended."""
        deadline = time.monotonic() + RUN_SECONDS
        while not (found := look()) and self.launcher.poll() is None:
            assert time.monotonic() < deadline, f"{what} within {RUN_SECONDS} s"
            time.sleep(POLL_SECONDS)
        return found

    def finish(self) -> None:
        """Wait for the launcher's end, and for the end of everything it has started."""
        self.output, self.errors = self.launcher.communicate(timeout=RUN_SECONDS + END_SECONDS)
        deadline = time.monotonic() + END_SECONDS
        while self.members() or any(map(_lives, self.seen)):
            assert time.monotonic() < deadline, f"processes are left {END_SECONDS} s after the launcher's end"
            time.sleep(POLL_SECONDS)

    @property
    def has_begun(self) -> bool:
        """Whether the run has come so far that something was started."""
        return any(self.home.glob("runs/*/events.jsonl"))

    @property
    def path(self) -> Path:
        """The run's folder."""
        (record,) = self.home.glob("runs/*/run.json")
        return record.parent

    def status(self) -> dict[str, Any]:
        """Ask another process how the run ended."""
        command = [sys.executable, "-m", "gridflow", "status", self.path.name, "--json"]
        environment = {**os.environ, "GRIDFLOW_HOME": str(self.home)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=END_SECONDS, check=True)
        status: dict[str, Any] = json.loads(done.stdout)
        return status

    def tell(self) -> None:
        """Log all there is to know, for whoever looks into a failure."""
        _log.warning("exit code %s\n%s\n%s", self.launcher.returncode, self.output, self.errors)
        for path in sorted(self.home.glob("runs/*/events.jsonl")) + sorted(self.home.glob("runs/*/logs/*")):
            _log.warning("%s:\n%s", path.name, path.read_text(errors="replace"))


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
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
            processes.kill_marked(f"GRIDFLOW_HOME={home}")


# Adding numbers in lock step: plain Python that feels a dead peer


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
            other = Kill("launcher" if first.kind == "supervisor" else "supervisor", "", 0, 0)
            return cls((first, other) if draw.random() < 0.25 else (first,), max_restarts=2)
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
    _log.warning("GRIDFLOW_CHAOS_SEED=%s, round %d: %s", SEED, number, plan)
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
    assert json.loads((run.path / "sum.json").read_text()) == {"rounds": 12, "sum": SUM}
    # Nothing that was checkpointed is done again.
    journal = [int(line) for line in (run.path / "journal").read_text().splitlines()]
    assert journal == sorted(set(journal))


def check_cancelled(run: Chaos) -> None:
    """A run ends with its launcher, unless it had ended before or its supervisor was killed too."""
    assert run.launcher.returncode == -9
    if not run.has_begun:
        return
    status = run.status()
    if status["state"] == "succeeded":
        check_sum(run)
        return
    endings = {("cancelled", "the process that launched it is gone")}
    if any(member.kind == "supervisor" for member in run.killed):
        endings |= {("failed", reason) for reason in SUPERVISOR_LOST.values()}
    assert (status["state"], status["reason"]) in endings


def check_supervisor_lost(run: Chaos) -> None:
    """The launcher reports that it lost the supervisor, unless the run had ended before."""
    if run.launcher.returncode == 0:
        check_sum(run)
        return
    reason = SUPERVISOR_LOST[run.launcher.returncode]
    assert reason in run.errors
    status = run.status()
    assert (status["state"], status["reason"]) == ("failed", reason)


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


# Training with Keras on TensorFlow


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """What the model has learned when nobody disturbs it."""
    with chaos(tmp_path_factory.mktemp("undisturbed"), "fit.py") as run:
        run.finish()
        assert run.launcher.returncode == 0
        return learned(run)


@pytest.mark.parametrize("kind", ["program", "agent"])
def test_fit_learns_the_same_weights_after_a_restart(kind: str, weights: list[np.ndarray], tmp_path: Path) -> None:
    draw = random.Random(f"{SEED}/{kind}")
    kill, epoch = Kill(kind, draw.choice(TASKS[:2]), 0, draw.uniform(0, 1)), draw.randint(2, 7)
    _log.warning("GRIDFLOW_CHAOS_SEED=%s: %s after epoch %d has begun", SEED, kill, epoch)
    with chaos(tmp_path / "home", "fit.py", "--max-restarts=1") as run:
        run.read("worker/0", f"Epoch {epoch}/8")
        run.strike(kill, EPOCH_SECONDS)
        run.finish()
        assert run.launcher.returncode == 0
        status = run.status()
        assert {task["task"]: task["restarts"] for task in status["tasks"]} == {"worker/0": 1, "worker/1": 1}
        assert f"restart 1 of 1: {kill.task} failed: " in run.output
        log = (run.path / "logs" / "worker-0.log").read_text()
        # It went on from a backup instead of beginning again.
        assert log.count("Epoch 1/8") == 1
        for trained, expected in zip(learned(run), weights, strict=True):
            np.testing.assert_allclose(trained, expected, atol=1e-5)


def test_fit_ends_with_its_launcher(tmp_path: Path) -> None:
    draw = random.Random(f"{SEED}/launcher")
    kill, epoch = Kill("launcher", "", 0, draw.uniform(0, 1)), draw.randint(1, 7)
    _log.warning("GRIDFLOW_CHAOS_SEED=%s: %s after epoch %d has begun", SEED, kill, epoch)
    with chaos(tmp_path / "home", "fit.py") as run:
        run.read("worker/0", f"Epoch {epoch}/8")
        run.strike(kill, EPOCH_SECONDS)
        run.finish()
        check_cancelled(run)


def learned(run: Chaos) -> list[np.ndarray]:
    with np.load(run.path / "weights.npz") as arrays:
        return [arrays[name] for name in arrays]
