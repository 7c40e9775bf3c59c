"""HTCondor's job event log, as Gridflow's own events. Pure.

Each task's proc has a log. An event is a line with its number, job and time, then more lines, then three dots:

    001 (012.000.000) 2026-11-15 19:30:43 Job executing on host: <10.1.7.3:9618?addrs=…>
    \tSlotName: slot1_1@execute7.example.org
    ...
    008 (012.000.000) 2026-11-15 19:30:45 gridflow {"event": "task", "task": "worker/0", "state": "running"}
    ...

Number 8 is what a job has to say for itself: there the task's agent puts Gridflow's events.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gridflow.platforms.htcondor_holds import Hold
from gridflow.state import Exit, RunState, TaskState
from gridflow.task.htcondor_names import REPORT_PREFIX

Event = dict[str, Any]

SUBMIT, EXECUTE, EVICTED, TERMINATED, SHADOW_EXCEPTION = 0, 1, 4, 5, 7
GENERIC, ABORTED, HELD, RELEASED, NODE_EXECUTE, REMOTE_ERROR, RECONNECT_FAILED = 8, 9, 12, 13, 14, 21, 24
#: After so many failed starts in a row for one reason a task will not start at all.
HOPELESS_STARTS = 3

# 005 (012.000.000) 2026-11-15 19:30:43 Job terminated.
_HEADER = re.compile(r"(\d{3}) \((\d+)\.(\d+)\.\d+\) (\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.\d+)?\S* ?(.*)")
_HOLD_CODE = re.compile(r"Code (-?\d+) Subcode (-?\d+)")
#: What the wrapper's exit codes mean.
WRAPPER_CODES = {
    121: "its scratch folder cannot be used",
    122: "there is no Python 3.11 or newer in the image",
    123: "the part of Gridflow that travels with it cannot be loaded",
}


@dataclass(frozen=True)
class Record:
    """One event of the log."""

    number: int
    cluster: int
    proc: int
    time: float
    headline: str
    lines: tuple[str, ...] = ()

    @property
    def exit(self) -> Exit:
        """How the job ended, of a TERMINATED record."""
        # (1) Normal termination (return value 3)
        # (0) Abnormal termination (signal 11)
        text = " ".join(self.lines)
        code = re.search(r"return value (\d+)", text)
        if code:
            return Exit(code=int(code[1]))
        signal = re.search(r"signal (\d+)", text)
        return Exit.from_returncode(-int(signal[1])) if signal else Exit()

    @property
    def hold(self) -> Hold:
        """Why the job is held, of a HELD record."""
        code = _HOLD_CODE.search(" ".join(self.lines))
        text = " ".join(line for line in self.lines if not _HOLD_CODE.search(line))
        return Hold(int(code[1]) if code else 0, int(code[2]) if code else 0, text)

    @property
    def slot(self) -> str:
        """Where the job runs, of an EXECUTE record."""
        named = [line.partition("SlotName: ")[2] for line in self.lines if "SlotName: " in line]
        address = re.search(r"<([^:>]+)", self.headline)
        return (named or [address[1] if address else ""])[0]

    @property
    def node(self) -> int:
        """Which node a NODE_EXECUTE record is about."""
        # Node 1 executing on host: <10.1.7.3:9618?addrs=…>
        number = re.match(r"Node (\d+)", self.headline)
        return int(number[1]) if number else 0

    @property
    def reason(self) -> str:
        """The first line below the headline that says something."""
        return next((line for line in self.lines if not re.match(r"[(\d]|Code ", line)), "")

    @property
    def said(self) -> Event | None:
        """What a task's agent has put into the log."""
        if self.number != GENERIC or not self.headline.startswith(REPORT_PREFIX):
            return None
        try:
            event = json.loads(self.headline.removeprefix(REPORT_PREFIX))
        except ValueError:
            return None
        return {"time": self.time, **event} if isinstance(event, dict) else None


def parse(text: str) -> Iterator[Record]:
    """Read a job event log; a last event that is not complete is not there yet."""
    block: list[str] = []
    for line in text.splitlines():
        if line != "...":
            block.append(line)
            continue
        header = _HEADER.match(block[0]) if block else None
        if header:
            stamp = datetime.fromisoformat(header[4]).timestamp()
            lines = tuple(stripped for more in block[1:] if (stripped := more.strip()))
            yield Record(int(header[1]), int(header[2]), int(header[3]), stamp, header[5], lines)
        block = []


@dataclass
class _Task:
    """One task's way through the log."""

    task: str
    executions: int = 0
    is_out: bool = False
    has_verdict: bool = False
    #: The life and the attempt whose end the leader has told.
    judged_attempt: list[int] = field(default_factory=list)
    removed: str | None = None
    exit: Exit = field(default_factory=Exit)
    start_errors: list[str] = field(default_factory=list)
    hold: Hold | None = None


class Fold:
    """The logs of all tasks of a run, in the order of time, turned into Gridflow's events."""

    def __init__(
        self, tasks: Sequence[str], conductor: Iterable[Record] | None = None, *, is_parallel: bool = False
    ) -> None:
        #: The log of DAGMan, where that starts the tasks one after the other: it decides when the run has ended.
        self._conductor = None if conductor is None else list(conductor)
        #: Whether all tasks are the nodes of one proc, whose log has what happens to each of them and to all.
        self._is_parallel = is_parallel
        self._tasks = {task: _Task(task) for task in tasks}
        self.events: list[Event] = []
        #: How the run ended, as the leading task has it; it counts when every task has left its slot.
        self.verdict: Event | None = None
        self._judge: _Task | None = None
        self._has_run = False

    def take(self, logs: Mapping[str, Iterable[Record]]) -> Fold:
        """Take in each task's log."""
        records = [(record.time, task, record) for task, log in logs.items() for record in log]
        # Sorting is stable, so what happens to a task stays in its order.
        for _, task, record in sorted(records, key=lambda entry: entry[0]):
            for each in self._concerned(task, record):
                self._take(each, record)
        held = [each for each in self._tasks.values() if each.hold and not each.hold.is_spooling]
        if held and not self.is_complete:
            self._add(self._last_time(), "run", state=RunState.HELD, reason=f"{held[0].task} is held: {held[0].hold}")
        if self.is_complete and self._tasks:
            self.events.append(self.verdict or self._conclusion())
        return self

    def _concerned(self, task: str, record: Record) -> list[_Task]:
        """Return the tasks that a record is about."""
        if not self._is_parallel or record.said is not None:
            return [self._tasks[task]]
        nodes = list(self._tasks.values())
        return [nodes[record.node]] if record.number == NODE_EXECUTE else nodes

    @property
    def is_complete(self) -> bool:
        """Whether every task has left HTCondor's hands."""
        if self._conductor is not None:
            return any(record.number in (TERMINATED, ABORTED) for record in self._conductor)
        return all(each.is_out for each in self._tasks.values())

    @property
    def left(self) -> list[str]:
        """The tasks that HTCondor still has."""
        return [each.task for each in self._tasks.values() if not each.is_out]

    @property
    def waiting(self) -> list[str]:
        """The tasks that wait for a slot."""
        return [each.task for each in self._tasks.values() if not each.is_out and not each.executions and not each.hold]

    @property
    def hopeless(self) -> tuple[str, str] | None:
        """A task that HTCondor starts again and again in vain, and why it fails."""
        for each in self._tasks.values():
            if each.hold and each.hold.is_in_vain:
                return each.task, each.hold.text
            if len(each.start_errors) >= HOPELESS_STARTS and not each.is_out and not each.hold:
                return each.task, each.start_errors[-1]
        return None

    def _take(self, task: _Task, record: Record) -> None:
        said = record.said
        if said is not None:
            self._hear(task, said)
            return
        match record.number:
            case n if n == SUBMIT:
                # Not the first where DAGMan tries a stage again.
                task.is_out, task.has_verdict, task.exit = False, False, Exit()
            case n if n == EXECUTE and self._is_parallel:
                pass  # each node has a record of its own
            case n if n in (EXECUTE, NODE_EXECUTE):
                task.executions += 1
                task.hold = None
                if not self._has_run:
                    self._has_run = True
                    self._add(record.time, "run", state=RunState.RUNNING)
                self._task(record, task, TaskState.STARTING, host=record.slot, restarts=task.executions - 1)
            case n if n in (EVICTED, SHADOW_EXCEPTION, RECONNECT_FAILED):
                self._forget(task)
                why = next((line for line in record.lines if line.startswith("Error from")), "")
                if not why:
                    task.start_errors.clear()
                reason = f"evicted: {why or 'it lost its slot and waits for another'}"
                self._task(record, task, TaskState.PENDING, reason=reason)
            case n if n == REMOTE_ERROR:
                task.start_errors.append(_start_error(record))
            case n if n == HELD:
                task.hold = record.hold
                self._forget(task)
                if not task.hold.is_spooling:
                    self._task(record, task, TaskState.HELD, reason=str(task.hold))
            case n if n == RELEASED:
                task.hold = None
                task.start_errors.clear()
                self._task(record, task, TaskState.PENDING)
            case n if n in (TERMINATED, ABORTED):
                self._end(task, record)

    def _hear(self, task: _Task, said: Event) -> None:
        """Take what an agent has said: of its own task, or as the leader of all."""
        task.start_errors.clear()
        if said.get("event") == "run":
            self.verdict, self._judge = said, task
            return
        if said.get("event") == "task" and said.get("task") in self._tasks:
            subject, state = self._tasks[said["task"]], TaskState(said["state"])
            # Clocks differ, so what the task says may seem later than what the leader says of its end.
            if not state.is_ended and said["attempt"] <= subject.judged_attempt:
                return
            subject.has_verdict = state.is_ended
            if state.is_ended:
                subject.judged_attempt = said["attempt"]
            subject.exit = Exit(said.get("exit_code"), said.get("signal"))
        self.events.append(said)

    def _forget(self, task: _Task) -> None:
        """Take back what was said of an end: the task is to go on, and if it leads, so is the run."""
        task.has_verdict = False
        if self._judge is task:
            self.verdict = self._judge = None

    def _end(self, task: _Task, record: Record) -> None:
        task.is_out, task.hold = True, None
        if record.number == ABORTED:
            task.removed = record.reason or record.headline
            if not task.has_verdict:
                self._task(record, task, TaskState.STOPPED, reason=f"it was removed: {task.removed}")
        elif not task.has_verdict:
            task.exit = record.exit
            state = TaskState.SUCCEEDED if record.exit.is_success else TaskState.FAILED
            how = "" if record.exit.is_success else explain(record.exit)
            self._task(record, task, state, exit_code=record.exit.code, signal=record.exit.signal, reason=how)

    def _conclusion(self) -> Event:
        """Say how the run ended where its leading task did not."""
        time = self._last_time()
        conductor = next((record for record in self._conductor or () if record.number in (TERMINATED, ABORTED)), None)
        if conductor and conductor.number == ABORTED:
            reason = f"it was removed from HTCondor's queue: {conductor.reason or conductor.headline}"
            return {"time": conductor.time, "event": "run", "state": RunState.CANCELLED, "reason": reason}
        for each in self._tasks.values():
            if each.removed is not None:
                reason = f"it was removed from HTCondor's queue: {each.removed}"
                return {"time": time, "event": "run", "state": RunState.CANCELLED, "reason": reason}
        for each in self._tasks.values():
            if each.is_out and not each.exit.is_success:
                reason = f"{each.task} failed: {explain(each.exit)}"
                return {"time": time, "event": "run", "state": RunState.FAILED, "reason": reason, "task": each.task}
        if conductor and not conductor.exit.is_success:
            reason = f"HTCondor's DAGMan ended with {conductor.exit}; its own log, *.dagman.out, says why"
            return {"time": conductor.time, "event": "run", "state": RunState.FAILED, "reason": reason}
        return {"time": time, "event": "run", "state": RunState.SUCCEEDED}

    def _last_time(self) -> float:
        return max((event["time"] for event in self.events), default=0.0)

    def _task(self, record: Record, task: _Task, state: TaskState, **fields: Any) -> None:
        self._add(record.time, "task", task=task.task, state=state, **fields)

    def _add(self, time: float, event: str, **fields: Any) -> None:
        self.events.append({"time": time, "event": event, **fields})


def explain(exit_: Exit) -> str:
    """Say how a task ended, in as plain words as its exit code allows."""
    meaning = WRAPPER_CODES.get(exit_.code or 0)
    return f"exit code {exit_.code}: {meaning}" if meaning else str(exit_)


def _start_error(record: Record) -> str:
    lines: Iterable[str] = (line for line in record.lines if not _HOLD_CODE.search(line))
    return " ".join(lines) or record.headline
