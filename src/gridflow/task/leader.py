"""The task that decides for all: where no process outside watches over a run, its first task does so on the side.

    the board: here, join, reached, error, ended, gone   ─▶  Leader ─▶ Gang
    the board: launch, roster, go, stop, finish, alive   ◀─         ◀─ Launch, Stop, Finish
    the platform's log: how tasks and the run ended, for whoever asks

It has no thread and no process of its own: `step` is called whenever the task that it is in looks at the board. When
that task is evicted and comes back, it starts all tasks again; restarts and the run's deadline count on from what its
earlier life has written. Every task has `start_timeout` to join, in each attempt anew: also one that waits for a slot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from gridflow.gang import Finish, Gang, Instruction, Launch, Stop
from gridflow.job import Job
from gridflow.rendezvous.board import ORDERS, SIGN_SECONDS, Board, Message
from gridflow.rendezvous.roster import list_names
from gridflow.state import Exit, TaskState

#: Takes an event, as `gridflow.state` knows it.
Report = Callable[[dict[str, Any]], None]

EVICTED = "it was evicted"
#: On top of a job's stop timeout: how long a task that was told to stop may be silent.
_EXTRA_STOP_SECONDS = 60.0


class Leader:
    """The gang of a run, over a board."""

    def __init__(
        self,
        job: Job,
        board: Board,
        report: Report,
        clock: Callable[[], float],
        time_of_day: Callable[[], float] = time.time,
    ) -> None:
        """`clock` is that of this machine, `time_of_day` the same on the one where the task may come back."""
        self._job = job
        self._board = board
        self._report = report
        self._clock = clock
        # What is there is of an earlier life of this task; its attempts and restarts count on.
        launches = [order for order in board.read(ORDERS) if order["type"] == "launch"]
        self._last_attempt = max((order["attempt"] for order in launches), default=0)
        self._began = min((order["began"] for order in launches), default=time_of_day())
        restarts = max((order["gang_restarts"] for order in launches), default=0)
        self._gang = Gang(job, self._why_missing, restarts=restarts)
        self._attempts: dict[str, int] = {}
        #: In which of its lives each task is, and which of them are in a slot.
        self._starts: dict[str, int] = {}
        self._in_slot: set[str] = set()
        self._next_sign = clock() + SIGN_SECONDS
        self._hear_earlier()
        self._addresses: dict[str, str] = {}
        self._reached: set[str] = set()
        self._errors: dict[str, str] = {}
        self._stop_reasons: dict[str, str] = {}
        #: When a task that was told to stop is taken to be gone.
        self._given_up_at: dict[str, float] = {}
        self._missing: list[str] = []
        self.finish: Finish | None = None
        self._perform(self._gang.start(clock(), run_seconds=max(0.0, time_of_day() - self._began)))

    def _hear_earlier(self) -> None:
        """Note in which of their lives the other tasks are that have already written."""
        for task in self._job.tasks:
            for message in self._board.read(task):
                if task != self._job.first_task and message["type"] == "here":
                    self._starts[task] = message["start"]
                    self._in_slot.add(task)
                elif message["type"] == "gone" or message.get("evicted"):
                    self._in_slot.discard(task)

    def _why_missing(self, tasks: Collection[str]) -> str:
        waiting = [task for task in tasks if task not in self._in_slot]
        return f"HTCondor has no slot for {list_names(waiting)}; start_timeout may be longer" if waiting else ""

    def step(self) -> None:
        """Take in what tasks have written, look at the clock, and give orders."""
        if self.finish is not None:
            return
        for task in self._job.tasks:
            for message in self._board.read(task):
                if self.finish is None:
                    self._perform(self._heard(task, message))
        for task in [task for task, deadline in self._given_up_at.items() if self._clock() >= deadline]:
            self._perform(self._never_ended(task))
        if self.finish is None:
            self._perform(self._gang.tick(self._clock()))
        missing = [task for task in self._job.tasks if task not in self._addresses]
        if missing != self._missing and not self.finish:
            self._missing = missing
            self._board.write(ORDERS, {"type": "waiting", "missing": missing})
        if self._clock() >= self._next_sign and not self.finish:
            self._next_sign = self._clock() + SIGN_SECONDS
            self._board.write(ORDERS, {"type": "alive"})

    def _heard(self, task: str, message: Message) -> list[Instruction]:
        match message["type"]:
            case "here":
                return self._is_here(task, message["start"])
            case "gone":
                self._in_slot.discard(task)
        if message.get("attempt") != self._attempts.get(task):
            return []
        match message["type"]:
            case "join":
                self._gang.joined(task)
                self._addresses[task] = message["address"]
                self._tell_roster()
            case "reached":
                self._reached.add(task)
                if len(self._reached) == len(self._job.tasks):
                    self._board.write(ORDERS, {"type": "go", "attempt": self._attempts[task]})
            case "error":
                self._errors[task] = message["error"]
                was_killed = message.get("signal") == "SIGKILL"
                return self._gang.failing(task, message["error"], self._clock(), was_killed=was_killed)
            case "ended":
                return self._ended(task, message)
        return []

    def _is_here(self, task: str, start: int) -> list[Instruction]:
        """Note in which of its lives a task is; a new one means that the one before was cut off."""
        before, self._starts[task] = self._starts.get(task), start
        instructions = [] if before is None or self._gang.states[task].is_ended else self._lost(task)
        self._in_slot.add(task)
        return instructions

    def _lost(self, task: str) -> list[Instruction]:
        """Take it that a task has lost its place; that costs the gang an attempt, but none of its restarts."""
        self._attempts[task] = -1
        self._in_slot.discard(task)
        self._given_up_at.pop(task, None)
        return self._gang.evicted(task, EVICTED, self._clock())

    def _tell_roster(self) -> None:
        if len(self._addresses) == len(self._job.tasks):
            attempt = max(self._attempts.values())
            self._board.write(ORDERS, {"type": "roster", "attempt": attempt, "tasks": self._addresses})

    def _ended(self, task: str, message: Message) -> list[Instruction]:
        self._given_up_at.pop(task, None)
        if message.get("evicted"):
            return self._lost(task)
        now = self._clock()
        exit_ = Exit(message.get("exit_code"), message.get("signal"))
        how = str(message.get("reason") or self._errors.get(task) or exit_)
        port_taken = bool(message.get("port_taken"))
        instructions: list[Instruction] = []
        if not exit_.is_success and not port_taken:
            instructions += self._gang.failing(task, how, now)
        instructions += self._gang.ended(task, exit_, now, how=how, port_taken=port_taken)
        state, reason = self._gang.outcome(task, how, self._stop_reasons.get(task, ""))
        self._report_task(task, state, exit_code=exit_.code, signal=exit_.signal, reason=reason)
        return instructions

    def _perform(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Launch():
                    self._launch(instruction)
                case Stop():
                    self._stop(instruction)
                case Finish():
                    self.finish = instruction
                    verdict = {"state": instruction.state, "reason": instruction.reason, "task": instruction.task}
                    self._report({"event": "run", **verdict})
                    self._board.write(ORDERS, {"type": "finish", **verdict})

    def _launch(self, launch: Launch) -> None:
        self._last_attempt += 1
        attempt = self._last_attempt
        order: Message = {"type": "launch", "attempt": attempt, "tasks": list(launch.tasks)}
        order["restarts"] = {task: self._gang.restarts_of(task) for task in launch.tasks}
        order |= {"gang_restarts": self._gang.restarts, "began": self._began}
        if launch.keep_address:
            order["roster"] = self._addresses
        else:
            self._addresses, self._reached = {}, set()
            if launch.reason:
                self._report({"event": "restart", "restart": self._gang.restarts, "reason": launch.reason})
        for task in launch.tasks:
            self._attempts[task] = attempt
            self._errors.pop(task, None)
            self._stop_reasons.pop(task, None)
        self._board.write(ORDERS, order)

    def _stop(self, stop: Stop) -> None:
        self._stop_reasons.update(dict.fromkeys(stop.tasks, stop.reason))
        attempts = {task: self._attempts[task] for task in stop.tasks}
        self._board.write(ORDERS, {"type": "stop", "attempts": attempts, "reason": stop.reason})
        for task in stop.tasks:
            # One that has no place cannot say that it has ended.
            patience = self._job.timeouts.stop_seconds + _EXTRA_STOP_SECONDS if task in self._in_slot else 0
            self._given_up_at[task] = self._clock() + patience

    def _never_ended(self, task: str) -> list[Instruction]:
        """Take it that a task is gone which was told to stop and does not say that it has."""
        del self._given_up_at[task]
        self._report_task(task, TaskState.STOPPED, reason=self._stop_reasons[task])
        return self._gang.ended(task, Exit(signal="SIGTERM"), self._clock())

    def _report_task(self, task: str, state: TaskState, **fields: Any) -> None:
        attempt = [self._starts.get(task, 0), self._attempts[task]]
        self._report({"event": "task", "task": task, "state": state, "attempt": attempt, **fields})
