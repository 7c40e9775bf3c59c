"""A task on HTCondor: `python -m gridflow.task.htcondor`, started in a slot by the wrapper that travels with it.

    scratch folder (as a run's folder)    job.json, work.tar, gridflow.zip come with the task
    Chirp, where HTCondor allows it       the board, the log while it grows, reports into the job's event log
    leader or follower                    attempt after attempt, until the run's last order

SIGTERM means that the slot is wanted back: the program is asked to end, which is its time to save a checkpoint, and
HTCondor carries what is in the scratch folder's `checkpoints` to wherever the task goes on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from gridflow import processes, shipping
from gridflow.errors import DeadlineError, GridflowError, RendezvousError
from gridflow.job import Job, Program, file_stem
from gridflow.rendezvous.board import POLL_SECONDS, SIGN_SECONDS, Board, Files, FolderFiles, Member, MemoryFiles, Orders
from gridflow.rendezvous.chirp import Chirp
from gridflow.rendezvous.roster import Roster
from gridflow.state import Exit, RunState, TaskState
from gridflow.store import RunFolder
from gridflow.task import htcondor_slot
from gridflow.task import identity as names
from gridflow.task.agent import Agent, say
from gridflow.task.htcondor_files import LogMirror, bring_outputs, keep_result, unpack
from gridflow.task.htcondor_names import BOARD, CHECKPOINT_EXIT_CODE, REPORT_PREFIX, VARIANTS
from gridflow.task.identity import TaskIdentity
from gridflow.task.leader import Leader

_REPORT_CHARACTERS = 2000


class EvictedError(GridflowError):
    """The slot is wanted back."""

    exit_code = CHECKPOINT_EXIT_CODE


class PoolTask:
    """One task, in one of its lives."""

    def __init__(self, environ: Mapping[str, str], chirp: Chirp | None) -> None:
        #: What people call it; one of a sweep is alone, and `worker/0` to itself.
        self._name = self._task = environ[names.TASK]
        self._folder = RunFolder(Path(environ[names.RUN_DIR]))
        # Its results lie beside the program: HTCondor carries them.
        self._job = replace(shipping.shipped(self._folder.job), checkpoint_dir="", log_dir="")
        self._is_variant = (self._folder.path / VARIANTS).exists()
        if self._is_variant:
            variants = json.loads((self._folder.path / VARIANTS).read_text())
            self._job = variant(self._job, variants[int(self._name.partition("/")[2])])
            self._task = self._job.first_task
            # All call themselves worker/0, and each ends what bears its own marks.
            environ = {**environ, names.RUN: f"{environ[names.RUN]}.{file_stem(self._name)}"}
        self._chirp = chirp
        log = self._folder.log_file(self._name)
        self._mirror = LogMirror(chirp, log, f"logs/{log.name}")
        self._start = htcondor_slot.start_count(chirp)
        self._host, self._slot = environ.get(names.HOST) or htcondor_slot.host(), htcondor_slot.slot_name()
        self._environ = {**environ, names.TASK: self._task, names.HOST: self._host, names.RENDEZVOUS: "board"}
        prefix = "board." if self.is_alone else htcondor_slot.board_prefix(environ.get(BOARD, ""), chirp)
        self._board = Board(self._board_files(), prefix)
        self._leader: Leader | None = None
        self._patience_seconds = self._job.timeouts.start_seconds + 2 * SIGN_SECONDS
        self._orders = Orders(self._board, self._look, patience_seconds=self._patience_seconds)
        self._exit = Exit(code=0)
        self._attempt_number = 0

    @property
    def is_alone(self) -> bool:
        """Whether the run has this task alone."""
        return len(self._job.tasks) == 1

    def _board_files(self) -> Files:
        if self._is_variant:
            return MemoryFiles()
        if self.is_alone:
            # It goes with the task to its next slot.
            return FolderFiles(self._folder.results_dir)
        if self._chirp is None:
            raise RendezvousError(
                "the tasks of this run cannot find each other: HTCondor gives this job no Chirp",
                hint="the pool must allow want_io_proxy; or use one task with several GPUs",
            )
        return self._chirp

    def run(self) -> Exit:
        """Take part in the run to its end and return how this task's program ended."""
        self._mirror.begin()
        if self._task == self._job.first_task:
            self._leader = Leader(self._job, self._board, self._report, time.monotonic)
        self._board.write(self._task, {"type": "here", "start": self._start, "host": self._slot})
        while True:
            self._orders.look(at_once=True)
            order = self._orders.launch(self._task, self._attempt_number)
            if order is not None:
                self._attempt_number = order["attempt"]
                self._attempt(order)
            elif self._orders.finish is not None:
                return self._conclude(RunState(self._orders.finish["state"]))
            else:
                self._wait_for_orders()

    def _wait_for_orders(self) -> None:
        """Wait a moment; what the leader itself has to do is done with every look."""
        if self._orders.is_leaderless:
            self._board.write(self._task, {"type": "gone"})
            raise DeadlineError(
                f"{self._task} waited in vain for orders of {self._job.first_task}, of which nothing was heard for "
                f"{self._patience_seconds:g} s",
                hint="has HTCondor a slot for it? start_timeout may be longer",
            )
        time.sleep(POLL_SECONDS / 4 if self._leader else POLL_SECONDS)

    def _look(self) -> None:
        if self._leader is not None:
            self._leader.step()
        self._mirror.push()

    def _conclude(self, state: RunState) -> Exit:
        self._mirror.push()
        return Exit(code=0) if state is RunState.SUCCEEDED else self._exit

    def _attempt(self, order: Mapping[str, Any]) -> None:
        """Run the program once."""
        restart = order["restarts"][self._task] + self._start - 1
        roster = Roster.from_dict(order["roster"]) if "roster" in order else None
        environ = {**self._environ, names.RESTART: str(restart)}
        if roster is not None:
            environ[names.PORT] = str(roster[self._task].port)
        self._report_state(TaskState.STARTING, host=self._slot, restarts=restart)
        identity = TaskIdentity.read(environ)
        agent = PoolAgent(identity, self._job, self._folder)
        member = PoolMember(self, agent, order["attempt"], roster)
        with member:
            try:
                self._exit = agent.take_part(member, environ)
            except EvictedError:
                agent.is_signalled = True
                # It may have come in the middle of a request.
                with suppress(RendezvousError, ValueError):
                    member.send({"type": "ended", "signal": "SIGTERM"})
                raise
            except GridflowError as error:
                say(f"error: {error}")
                self._exit = Exit(code=error.exit_code)
                if not member.has_ended:
                    member.send({"type": "ended", "exit_code": error.exit_code, "reason": str(error)})
        if agent.is_signalled:
            raise EvictedError(f"{self._task} loses its slot")
        if self._exit.code == CHECKPOINT_EXIT_CODE and self.is_alone:
            # HTCondor keeps what was saved, and starts the program again at once.
            raise EvictedError(f"{self._task} has saved a checkpoint")

    def bring_outputs(self) -> None:
        """Put what the program has made where HTCondor takes it from."""
        bring_outputs(self._folder.path, say)
        if self._is_variant:
            keep_result(self._folder, self._name)

    def report_running(self) -> None:
        """Say that the program runs."""
        self._report_state(TaskState.RUNNING)

    def member(self, attempt: int, roster: Roster | None) -> tuple[Board, str, int, Orders, Roster | None]:
        """Return what a member of the board needs."""
        return self._board, self._task, attempt, self._orders, roster

    def _report_state(self, state: TaskState, **fields: Any) -> None:
        attempt = [self._start, self._attempt_number]
        self._report({"event": "task", "task": self._task, "state": state, "attempt": attempt, **fields})

    def _report(self, event: dict[str, Any]) -> None:
        """Put an event into the job's log, where `gridflow status` finds it."""
        if self._chirp is None or (self._is_variant and event["event"] == "run"):
            return
        if event.get("task") == self._task:
            event = {**event, "task": self._name}
        if event.get("reason"):
            event = {**event, "reason": event["reason"][-_REPORT_CHARACTERS:]}
        with suppress(RendezvousError):
            self._chirp.log(REPORT_PREFIX + json.dumps(event))


class PoolMember(Member):
    """A member of the board that tells of running, and that takes no eviction for an end."""

    def __init__(self, owner: PoolTask, agent: Agent, attempt: int, roster: Roster | None) -> None:
        board, task, attempt, orders, roster = owner.member(attempt, roster)
        super().__init__(board, task, attempt, orders, roster=roster)
        self._owner = owner
        self._agent = agent
        self.has_ended = False

    def send(self, message: dict[str, Any]) -> None:
        """Report something to the leader, and a start to people."""
        if message["type"] == "running":
            self._owner.report_running()
        if self._agent.is_signalled and message["type"] == "error":
            return
        if message["type"] == "ended":
            self.has_ended = True
            self._owner.bring_outputs()
            is_checkpoint = self._owner.is_alone and message.get("exit_code") == CHECKPOINT_EXIT_CODE
            if self._owner.is_alone and (is_checkpoint or self._agent.is_signalled):
                return  # there is nobody to tell, and it goes on elsewhere
            message = {**message, "evicted": self._agent.is_signalled}
        super().send(message)


class PoolAgent(Agent):
    """An agent whose GPUs were assigned by HTCondor."""

    @contextmanager
    def _holding_gpus(
        self, _roster: Roster, _client: Any, _stop_signals: Any, environ: Mapping[str, str]
    ) -> Iterator[Any]:
        """Take what was assigned: nobody else has it."""
        resources = self._job.group_of(self._identity.task).resources
        yield htcondor_slot.assigned_gpus(resources, environ) if resources.gpus else None


def variant(job: Job, differs: Mapping[str, Any]) -> Job:
    """Return the job of a task that works alone, as one of several that differ."""
    program = Program.from_path(differs["program"]) if differs["program"] else job.program
    args = tuple(differs["args"]) if differs["program"] else (*job.args, *differs["args"])
    group = replace(job.group_of(job.first_task), count=1)
    return replace(job, program=program, args=args, groups=(group,))


def main() -> int:
    """Run the task that the environment describes, and end as its program did."""
    processes.adopt_orphans()
    signal.signal(signal.SIGTERM, _wanted_back)
    environ = dict(os.environ)
    try:
        folder = Path(environ[names.RUN_DIR])
        work = unpack(folder)
        os.chdir(work)
        environ = htcondor_slot.describe(environ, folder, say)
        chirp = _connect(environ)
        exit_ = PoolTask(environ, chirp).run()
    except GridflowError as error:
        say(str(error) if isinstance(error, EvictedError) else f"error: {error}")
        return error.exit_code
    if exit_.signal:
        with suppress(ValueError, KeyError):
            number = signal.Signals[exit_.signal]
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
    return exit_.code or 0


def _connect(environ: Mapping[str, str]) -> Chirp | None:
    try:
        return Chirp.connect(environ)
    except RendezvousError as error:
        say(f"no live log and no reports: {error}")
        return None


def _wanted_back(_number: int, _frame: FrameType | None) -> None:
    raise EvictedError("the slot is wanted back")


if __name__ == "__main__":
    sys.exit(main())
