"""Who watches over one run. All decisions are the gang's, all means the crew's; this brings them together.

agents' ends and messages, signals, the launcher's pipe, requests to cancel, the clock
    ─▶ inbox ─▶ Gang ─▶ Launch, Stop, Finish ─▶ Crew
        └▶ events.jsonl

It is a process of its own, or, where the means belong to a process (a Spark session), a thread of that one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from gridflow import processes
from gridflow.errors import GridflowError, PlatformError
from gridflow.gang import Finish, Gang, Instruction, Launch, Stop
from gridflow.platforms.base import load_platform
from gridflow.platforms.crew import Crew
from gridflow.platforms.supervised import SupervisedPlatform
from gridflow.rendezvous.roster import Address, Roster
from gridflow.rendezvous.server import Server
from gridflow.state import Exit, RunState, TaskState
from gridflow.store import RunFolder
from gridflow.task import identity

_TICK_SECONDS = 0.25
#: The grace of a task that is stopped because a peer failed.
_IMPATIENT_STOP_SECONDS = 2.0
#: On top of a task's grace: after that an agent that does not end is killed.
_EXTRA_STOP_SECONDS = 5.0
#: How long an agent's last message may come after its end.
_LAST_WORD_SECONDS = 2.0


class _Agent:
    """What is known of one task's agent."""

    def __init__(self, task: str) -> None:
        self.task = task
        self.last_word: dict[str, Any] | None = None
        self.error = ""
        self.stop_reason = ""
        self.hurry_at: float | None = None
        self.kill_at: float | None = None


class Supervisor:
    """One run, from its first task to its last."""

    def __init__(self, folder: RunFolder, crew: Crew, *, environment: dict[str, str] | None = None) -> None:
        self._folder = folder
        self._crew = crew
        #: Variables of every task, besides those that say who it is.
        self._environment = environment or {}
        self._job = folder.job
        self._secret = folder.secret()
        self._gang = Gang(self._job, crew.why_missing)
        self._inbox: asyncio.Queue[Callable[[], list[Instruction]]] = asyncio.Queue()
        self._agents: dict[str, _Agent] = {}
        self._server: Server | None = None
        self._server_address: Address | None = None
        self._roster = Roster(self._job.tasks)
        self._finish: Finish | None = None
        self._is_cancelled = False
        self._last_tick = time.monotonic()

    async def run(self, *, attached: bool = False, is_thread: bool = False) -> None:
        """Run all tasks until the gang has finished."""
        self._loop = asyncio.get_running_loop()
        pid = os.getpid()
        self._folder.append_event("supervisor", pid=pid, start_time=processes.start_time(pid), is_thread=is_thread)
        try:
            await self._crew.open(self)
        except PlatformError as error:
            self._folder.append_event("refused", reason=error.message, hint=error.hint)
            self._folder.append_event("run", state=RunState.FAILED, reason=error.message)
            return
        self._folder.append_event("run", state=RunState.RUNNING)
        if not is_thread:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self._post, self._cancelled, "it was cancelled")
        if attached:
            self._watch_launcher()
        finish = await self._run_to_end()
        self._folder.append_event("run", state=finish.state, reason=finish.reason, task=finish.task)

    async def _run_to_end(self) -> Finish:
        try:
            await self._perform(self._gang.start(time.monotonic()))
            while self._finish is None:
                try:
                    take = await asyncio.wait_for(self._inbox.get(), _TICK_SECONDS)
                except TimeoutError:
                    take = self._tick
                await self._perform(take())
            return self._finish
        finally:
            if self._server:
                await self._server.stop()
            await self._crew.close()

    def _post(self, take: Callable[..., list[Instruction]], *arguments: Any) -> None:
        self._inbox.put_nowait(partial(take, *arguments))

    def _watch_launcher(self) -> None:
        """Stop when the launcher's pipe closes: then it is gone, however it went."""

        def launcher_gone() -> None:
            self._loop.remove_reader(0)
            self._post(self._cancelled, "the process that launched it is gone")

        self._loop.add_reader(0, launcher_gone)

    # What is seen

    def agent_started(self, task: str, host: str) -> None:
        """Note where a task's agent runs."""
        self._task_event(task, TaskState.STARTING, host=host, restarts=self._gang.restarts_of(task))

    def agent_ended(self, task: str, returncode: int | None, how: str = "") -> None:
        """Take the end of a task's agent, and so of its task."""
        if task in self._agents:
            self._post(self._ended, self._agents[task], returncode, how)

    def _cancelled(self, reason: str) -> list[Instruction]:
        self._is_cancelled = True
        return self._gang.cancel(reason, time.monotonic())

    def _heard(self, roster: Roster, task: str, message: dict[str, Any]) -> list[Instruction]:
        """Take a message of an agent; whether it is gone is seen by the crew, not by its connection."""
        agent, now = self._agents.get(task), time.monotonic()
        if agent is None or roster is not self._roster:  # of an earlier attempt
            return []
        match message["type"]:
            case "join":
                self._gang.joined(task)
            case "held":
                self._task_event(task, TaskState.HELD, reason=message["reason"])
            case "running":
                self._task_event(task, TaskState.RUNNING)
                if task.startswith("tensorboard/"):
                    self._folder.append_event("tensorboard", url=f"http://{self._roster[task]}/")
            case "error":
                agent.error = message["error"]
                return self._gang.failing(task, agent.error, now, was_killed=message.get("signal") == "SIGKILL")
            case "ended":
                agent.last_word = message
                exit_ = Exit(message.get("exit_code"), message.get("signal"))
                if not exit_.is_success and not message.get("port_taken"):
                    return self._gang.failing(task, str(exit_), now)
        return []

    def _ended(self, agent: _Agent, returncode: int | None, how: str, waited: float = 0.0) -> list[Instruction]:
        is_clean = returncode is not None and returncode >= 0
        if is_clean and agent.last_word is None and waited < _LAST_WORD_SECONDS:
            # It said how the program ended before it went, but that is still on its way through the server.
            self._loop.call_later(0.02, self._post, self._ended, agent, returncode, how, waited + 0.02)
            return []
        if self._agents.get(agent.task) is not agent:
            return []
        del self._agents[agent.task]
        self._roster.leave(agent.task)
        if returncode != 0:
            # It could not clean up after itself.
            self._crew.sweep(agent.task)
        word = agent.last_word or {}
        if returncode is None:
            # Even if the program ended well: its output and its result may be lost with its host.
            exit_ = Exit()
        else:
            exit_ = Exit(word.get("exit_code"), word.get("signal")) if word else Exit.from_returncode(returncode)
            how = self._how(agent, exit_)
        instructions = self._gang.ended(
            agent.task,
            exit_,
            time.monotonic(),
            how=how,
            port_taken=bool(word.get("port_taken")),
            is_host_lost=returncode is None,
        )
        state, reason = self._gang.outcome(agent.task, how, agent.stop_reason)
        self._task_event(agent.task, state, exit_code=exit_.code, signal=exit_.signal, reason=reason)
        return instructions

    def _how(self, agent: _Agent, exit_: Exit) -> str:
        """Say how a task ended, in as much detail as is known."""
        if agent.last_word is None:
            return agent.error or f"its agent is gone: {exit_}"
        return str(agent.last_word.get("reason") or agent.error or exit_)

    def _tick(self) -> list[Instruction]:
        now = time.monotonic()
        if now - self._last_tick > self._roster.lease_seconds / 2:
            # This machine slept, so nobody could be heard.
            for task in self._agents:
                self._roster.heard(task, now)
        self._last_tick = now
        for task in self._roster.lost(now):
            if task in self._agents and self._agents[task].kill_at is None:
                self._agents[task].error = f"nothing was heard of its agent for {self._roster.lease_seconds:g} s"
                self._crew.kill(task)
        for agent in self._agents.values():
            if agent.hurry_at is not None and now >= agent.hurry_at:
                agent.hurry_at = None
                # Asked twice, an agent kills its program.
                self._crew.terminate(agent.task)
            if agent.kill_at is not None and now >= agent.kill_at:
                self._crew.kill(agent.task)
        self._crew.tend()
        cancel_reason = self._folder.cancel_reason
        if cancel_reason is not None and not self._is_cancelled:
            return self._cancelled(cancel_reason)
        return self._gang.tick(now)

    # What is done

    async def _perform(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Launch():
                    await self._launch(instruction)
                case Stop():
                    self._stop(instruction)
                case Finish():
                    self._finish = instruction

    async def _launch(self, launch: Launch) -> None:
        ports: dict[str, int] = {}
        if launch.keep_address:
            ports = {task: self._roster[task].port for task in launch.tasks}
        else:
            await self._renew_server()
            if launch.reason:
                self._folder.append_event("restart", restart=self._gang.restarts, reason=launch.reason)
            await self._crew.begin()
        for task in launch.tasks:
            self._agents[task] = _Agent(task)
            self._crew.start(task, self._variables(task, ports.get(task)))

    async def _renew_server(self) -> None:
        """Open a fresh roster: nobody of an earlier attempt is on it."""
        if self._server:
            await self._server.stop()
        self._roster = Roster(self._job.tasks)
        self._server = Server(self._roster, self._secret, partial(self._post, self._heard, self._roster))
        listening = await self._server.start(self._crew.bind_host)
        self._server_address = Address(self._crew.host, listening.port)

    def _variables(self, task: str, port: int | None) -> dict[str, str]:
        return {
            **self._environment,
            identity.RUN: self._folder.run,
            identity.RUN_DIR: str(self._folder.path),
            identity.TASK: task,
            identity.RENDEZVOUS: str(self._server_address),
            identity.RESTART: str(self._gang.restarts_of(task)),
            identity.PORT: str(port or ""),
        }

    def _stop(self, stop: Stop) -> None:
        for task in stop.tasks:
            agent = self._agents.get(task)
            if agent is not None:
                grace = self._job.timeouts.stop_seconds
                if not stop.is_patient:
                    grace = min(grace, _IMPATIENT_STOP_SECONDS)
                agent.stop_reason = stop.reason
                agent.hurry_at = time.monotonic() + grace
                agent.kill_at = agent.hurry_at + _EXTRA_STOP_SECONDS
                self._crew.terminate(task)

    def _task_event(self, task: str, state: TaskState, **fields: Any) -> None:
        self._folder.append_event("task", task=task, state=state, **fields)


def main(argv: Sequence[str]) -> int:
    """Watch over the run in the folder that is named."""
    folder = RunFolder(Path(argv[0]))
    try:
        record = folder.record()
        platform = cast(SupervisedPlatform, load_platform(record["platform"], record["options"]))
        asyncio.run(Supervisor(folder, platform.crew(folder)).run(attached="--attached" in argv))
    except (GridflowError, OSError) as error:
        folder.append_event("run", state=RunState.FAILED, reason=f"the run's supervisor failed: {error}")
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
