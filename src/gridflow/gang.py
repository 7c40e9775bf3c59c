"""What happens to a run's tasks: events in, instructions out. Pure: no processes, no sockets, no clock.

A gang is all tasks of one run. Whoever runs the tasks (the local supervisor, the Spark driver) tells it what it sees
and performs what it answers:

    start, joined, failing, ended, evicted, cancel, tick   ─▶  Gang  ─▶   Launch, Stop, Finish

The rules:
- The deciding tasks are `chief` and `worker`. Where a chief drives parameter servers it decides alone: its workers
  are servers that never end by themselves.
- When the deciding tasks have succeeded the work is done: the evaluator may finish, then the services are stopped.
- A deciding task that fails ends the attempt: all are stopped, then all start again, up to `max_restarts` times.
- Any other task stands outside the synchronous step and starts again alone, as many times. `tensorboard` never fails
  a run. Until it has joined, though, all wait for it: then its failure ends the attempt like that of a deciding task.
- A port that somebody else took costs nobody a restart: ports are drawn anew.
- Nor does a task that lost its place, as a batch system may want it back: all start again, however often.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from gridflow.job import Job
from gridflow.state import Exit, RunState, TaskState

#: How often ports are drawn anew before a taken port counts as a failure.
MAX_PORT_RETRIES = 5


@dataclass(frozen=True)
class Launch:
    """Start these tasks."""

    tasks: tuple[str, ...]
    #: A single task that comes back keeps its address: the others know it already.
    keep_address: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Stop:
    """Stop these tasks: politely first, by force after a grace."""

    tasks: tuple[str, ...]
    reason: str
    #: Whether they get the job's `stop_seconds`. Peers of a failed task do not: they wait for it in vain, have nothing
    #: consistent to save, and TensorFlow's collectives catch SIGTERM.
    is_patient: bool = True


@dataclass(frozen=True)
class Finish:
    """The run has ended and no task is left."""

    state: RunState
    reason: str = ""
    task: str | None = None


Instruction = Launch | Stop | Finish


@dataclass(frozen=True)
class _Ending:
    """Why the present attempt winds down, and what follows when its last task is gone."""

    state: RunState
    reason: str
    task: str | None = None
    port_taken: bool = False
    was_killed: bool = False
    was_evicted: bool = False


class Gang:
    """The state machine of one run's tasks."""

    def __init__(
        self, job: Job, why_missing: Callable[[Collection[str]], str] = lambda _: "", *, restarts: int = 0
    ) -> None:
        """`why_missing` says, where that is known, why tasks have not joined; `restarts` is to count on from."""
        self.job = job
        self._why_missing = why_missing
        self.restarts = restarts
        self.states: dict[str, TaskState] = dict.fromkeys(job.tasks, TaskState.PENDING)
        self._lone_restarts: dict[str, int] = dict.fromkeys(job.tasks, 0)
        self._port_retries = 0
        self._ending: _Ending | None = None
        self._awaited: dict[str, float] = {}
        self._joined: set[str] = set()
        self._stopping: set[str] = set()
        self._run_started = 0.0
        self._work_done: float | None = None

    def start(self, now: float, *, run_seconds: float = 0.0) -> list[Instruction]:
        """Begin the run, or go on with one that has lasted for `run_seconds`."""
        self._run_started = now - run_seconds
        return [self._launch_all(now, reason="")]

    def restarts_of(self, task: str) -> int:
        """Return how often a task was started again, with the others or alone."""
        return self.restarts + self._lone_restarts[task]

    def joined(self, task: str) -> None:
        """Note that a task has reported for work."""
        self._awaited.pop(task, None)
        self._joined.add(task)
        self.states[task] = TaskState.RUNNING

    def failing(self, task: str, how: str, now: float, *, was_killed: bool = False) -> list[Instruction]:
        """Take the first word that a task is failing, and how; its end is reported by `ended`.

        A program that raised is still tearing down while its peers already fail for lack of it, so the order in which
        processes end does not tell who was first. This does. A program that somebody killed did not fail for lack of
        a peer, so it was first even if a peer's failure is heard of before.
        """
        if task not in self._deciding_tasks():
            return []
        ending = _Ending(RunState.FAILED, f"{task} failed: {how}", task, was_killed=was_killed)
        if not self._ending:
            return self._wind_down(ending, now, spare=task)
        blames_a_peer = self._ending.state is RunState.FAILED and self._ending.task in self._deciding_tasks()
        if was_killed and blames_a_peer and not self._ending.was_killed:
            self._ending = ending
        return []

    def ended(
        self, task: str, exit_: Exit, now: float, *, how: str = "", port_taken: bool = False, is_host_lost: bool = False
    ) -> list[Instruction]:
        """Take the end of a task's process; `how` says it in words where more is known than its exit.

        A task whose host is lost cannot come back to its address.
        """
        if is_host_lost and task in self._joined and task in self._tasks_of("tensorboard"):
            # Nobody needs its address, and for one task alone there is no other host.
            self._lone_restarts[task] = self.job.max_restarts
        elif is_host_lost:
            self._joined.discard(task)
        was_stopped = task in self._stopping
        self._stopping.discard(task)
        self._awaited.pop(task, None)
        is_culprit = self._ending is not None and self._ending.task == task
        if self._ending and is_culprit and port_taken:
            self._ending = replace(self._ending, port_taken=True)
        if was_stopped and not is_culprit:
            self.states[task] = TaskState.STOPPED
        elif exit_.is_success:
            self.states[task] = TaskState.SUCCEEDED
        else:
            self.states[task] = TaskState.FAILED
            if not self._ending:
                return self._failed(task, f"{task} failed: {how or exit_}", now, port_taken)
        return self._proceed(now)

    def outcome(self, task: str, how: str, stop_reason: str) -> tuple[TaskState, str]:
        """Return, for people, what became of a task whose process has ended, and why."""
        state = self.states[task]
        if not state.is_ended:  # it comes back, alone or with the others
            state = TaskState.STOPPED if stop_reason else TaskState.FAILED
        reasons = {TaskState.SUCCEEDED: "", TaskState.STOPPED: stop_reason}
        return state, reasons.get(state, how)

    def evicted(self, task: str, how: str, now: float) -> list[Instruction]:
        """Take it that a task's process is gone because its place was wanted back.

        Its peers fail for lack of it, and that may be heard of before.
        """
        self._stopping.discard(task)
        self._awaited.pop(task, None)
        self.states[task] = TaskState.STOPPED
        is_needed = self._work_done is None or task in self._tasks_of("evaluator")
        ending = _Ending(RunState.FAILED, f"{task} failed: {how}", task, was_evicted=True)
        if self._ending is None and is_needed:
            return self._wind_down(ending, now)
        if self._ending is not None and self._ending.state is RunState.FAILED:
            self._ending = ending
        return self._proceed(now)

    def cancel(self, reason: str, now: float) -> list[Instruction]:
        """Stop everything on somebody's request."""
        return self._wind_down(_Ending(RunState.CANCELLED, reason), now)

    def tick(self, now: float) -> list[Instruction]:
        """Look at the deadlines."""
        timeouts = self.job.timeouts
        if self._ending:
            return []
        if self._is_overdue(now):
            reason = f"the deadline of {timeouts.run_seconds:g} s passed while {_listed(self._live())} still ran"
            return self._wind_down(_Ending(RunState.TIMED_OUT, reason), now)
        missing = [task for task, since in self._awaited.items() if now - since >= timeouts.start_seconds]
        if missing:
            why = self._why_missing(missing)
            reason = f"{_listed(missing)} never joined within {timeouts.start_seconds:g} s{why and f': {why}'}"
            return self._wind_down(_Ending(RunState.TIMED_OUT, reason, missing[0]), now)
        return self._proceed(now)

    # How a task's failure is taken

    def _failed(self, task: str, reason: str, now: float, port_taken: bool) -> list[Instruction]:
        group = task.partition("/")[0]
        if self._work_done is not None and group != "evaluator":
            return self._proceed(now)
        may_return_alone = not self._ends_attempt(task) and not port_taken
        if may_return_alone and self._lone_restarts[task] < self.job.max_restarts:
            self._lone_restarts[task] += 1
            self._awaited[task] = now
            self.states[task] = TaskState.PENDING
            return [Launch((task,), keep_address=True, reason=reason)]
        if group == "tensorboard" and not self._ends_attempt(task):
            return self._proceed(now)
        return self._wind_down(_Ending(RunState.FAILED, reason, task, port_taken), now)

    def _ends_attempt(self, task: str | None) -> bool:
        """Say whether nobody can go on without a task."""
        return task in self._deciding_tasks() or task not in self._joined

    def _wind_down(self, ending: _Ending, now: float, spare: str | None = None) -> list[Instruction]:
        """Stop all that lives; `spare` is ending by itself and should say so with its own exit code."""
        self._ending = ending
        others = (task for task in self._live() if task != spare)
        return self._stop(others, ending.reason, ending.state is not RunState.FAILED) or self._proceed(now)

    def _stop(self, tasks: Iterable[str], reason: str, is_patient: bool = True) -> list[Instruction]:
        fresh = tuple(task for task in tasks if task not in self._stopping)
        self._stopping.update(fresh)
        for task in fresh:
            self._awaited.pop(task, None)
        return [Stop(fresh, reason, is_patient)] if fresh else []

    # How a run goes on

    def _proceed(self, now: float) -> list[Instruction]:
        """Decide what comes next, now that something has ended or time has passed."""
        live = self._live()
        if self._ending:
            return [] if live else self._conclude(self._ending, now)
        if any(not self.states[task].is_ended for task in self._deciding_tasks()):
            return []
        if not live:
            return [Finish(RunState.SUCCEEDED)]
        if self._work_done is None:
            self._work_done = now
        evaluators = [task for task in live if task in self._tasks_of("evaluator")]
        if evaluators and now - self._work_done < self.job.timeouts.evaluator_seconds:
            return []
        return self._stop(live, "training has ended")

    def _conclude(self, ending: _Ending, now: float) -> list[Instruction]:
        """Start again or finish, now that no task is left."""
        has_failed = ending.state is RunState.FAILED
        draws_ports = has_failed and ending.port_taken and self._port_retries < MAX_PORT_RETRIES
        restarts = has_failed and self._ends_attempt(ending.task) and self.restarts < self.job.max_restarts
        if not draws_ports and not restarts and not ending.was_evicted:
            return [Finish(ending.state, ending.reason, ending.task)]
        if self._is_overdue(now):
            reason = f"the deadline of {self.job.timeouts.run_seconds:g} s passed after {ending.reason}"
            return [Finish(RunState.TIMED_OUT, reason, ending.task)]
        if draws_ports:
            self._port_retries += 1
        elif not ending.was_evicted:
            self.restarts += 1
        return [self._launch_all(now, ending.reason)]

    def _is_overdue(self, now: float) -> bool:
        run_seconds = self.job.timeouts.run_seconds
        return run_seconds is not None and now - self._run_started >= run_seconds

    def _launch_all(self, now: float, reason: str) -> Launch:
        self._ending = None
        self._awaited = dict.fromkeys(self.job.tasks, now)
        self._joined.clear()
        self._stopping.clear()
        self._work_done = None
        self.states = dict.fromkeys(self.job.tasks, TaskState.PENDING)
        return Launch(self.job.tasks, reason=reason)

    def _live(self) -> list[str]:
        return [task for task, state in self.states.items() if not state.is_ended]

    def _tasks_of(self, name: str) -> tuple[str, ...]:
        group = self.job.group(name)
        return group.tasks if group else ()

    def _deciding_tasks(self) -> tuple[str, ...]:
        chief = self._tasks_of("chief")
        chief_decides_alone = chief and ("worker" in self.job.serve or self.job.group("ps"))
        return chief if chief_decides_alone else chief + self._tasks_of("worker")


def _listed(tasks: list[str], most: int = 5) -> str:
    """Name tasks for people: `worker/0, worker/1 and 3 more`."""
    named = ", ".join(tasks[:most])
    return f"{named} and {len(tasks) - most} more" if len(tasks) > most else named
