"""The process that watches over one run on this machine. All decisions are the gang's; this performs them.

agents' exits and messages, signals, the launcher's pipe, the clock ─▶ inbox ─▶ Gang ─▶ Launch, Stop, Finish
                                                                        └▶ events.jsonl
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gridflow import processes
from gridflow.errors import GridflowError
from gridflow.gang import Finish, Gang, Instruction, Launch, Stop
from gridflow.platforms.local import Local
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
    """One agent process, and what is known of it."""

    def __init__(self, task: str, process: subprocess.Popen[bytes]) -> None:
        self.task = task
        self.process = process
        self.exit_fd = os.pidfd_open(process.pid)
        self.last_word: dict[str, Any] | None = None
        self.error = ""
        self.stop_reason = ""
        self.hurry_at: float | None = None
        self.kill_at: float | None = None


class Supervisor:
    """One run, from its first task to its last."""

    def __init__(self, folder: RunFolder, loop: asyncio.AbstractEventLoop) -> None:
        self._folder = folder
        self._loop = loop
        self._job = folder.job
        self._secret = folder.secret()
        self._gang = Gang(self._job)
        self._commands = {command.task: command for command in Local({}).plan(self._job).commands}
        self._inbox: asyncio.Queue[Callable[[], list[Instruction]]] = asyncio.Queue()
        self._agents: dict[str, _Agent] = {}
        self._server: Server | None = None
        self._server_address: Address | None = None
        self._roster = Roster(self._job.tasks)
        self._finish: Finish | None = None
        self._last_tick = time.monotonic()

    async def run(self, *, attached: bool) -> None:
        """Run all tasks until the gang has finished."""
        self._folder.append_event("supervisor", pid=os.getpid(), start_time=processes.start_time(os.getpid()))
        self._folder.append_event("run", state=RunState.RUNNING)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._post, self._cancelled, "it was cancelled")
        if attached:
            self._watch_launcher()
        try:
            await self._perform(self._gang.start(time.monotonic()))
            while self._finish is None:
                try:
                    take = await asyncio.wait_for(self._inbox.get(), _TICK_SECONDS)
                except TimeoutError:
                    take = self._tick
                await self._perform(take())
        finally:
            if self._server:
                await self._server.stop()
            processes.kill_marked(f"{identity.RUN}={self._folder.run}")
            processes.kill_children()
        finish = self._finish
        self._folder.append_event("run", state=finish.state, reason=finish.reason, task=finish.task)

    def _post(self, take: Callable[..., list[Instruction]], *arguments: Any) -> None:
        self._inbox.put_nowait(partial(take, *arguments))

    def _watch_launcher(self) -> None:
        """Stop when the launcher's pipe closes: then it is gone, however it went."""

        def launcher_gone() -> None:
            self._loop.remove_reader(0)
            self._post(self._cancelled, "the process that launched it is gone")

        self._loop.add_reader(0, launcher_gone)

    # What is seen

    def _cancelled(self, reason: str) -> list[Instruction]:
        return self._gang.cancel(reason, time.monotonic())

    def _heard(self, roster: Roster, task: str, message: dict[str, Any]) -> list[Instruction]:
        """Take a message of an agent; whether it is gone is seen by its process, not by its connection."""
        agent, now = self._agents.get(task), time.monotonic()
        if agent is None or roster is not self._roster:  # of an earlier attempt
            return []
        match message["type"]:
            case "join":
                self._gang.joined(task)
            case "running":
                self._task_event(task, TaskState.RUNNING)
                if task.startswith("tensorboard/"):
                    self._folder.append_event("tensorboard", url=f"http://127.0.0.1:{self._roster[task].port}/")
            case "error":
                agent.error = message["error"]
                return self._gang.failing(task, agent.error, now, was_killed=message.get("signal") == "SIGKILL")
            case "ended":
                agent.last_word = message
                exit_ = Exit(message.get("exit_code"), message.get("signal"))
                if not exit_.is_success and not message.get("port_taken"):
                    return self._gang.failing(task, str(exit_), now)
        return []

    def _agent_ended(self, agent: _Agent, waited: float = 0.0) -> list[Instruction]:
        """Take the end of an agent's process, and so of its task."""
        returncode = agent.process.wait()
        if returncode >= 0 and agent.last_word is None and waited < _LAST_WORD_SECONDS:
            # It said how the program ended before it went, but that is still on its way through the server.
            self._loop.call_later(0.02, self._post, self._agent_ended, agent, waited + 0.02)
            return []
        os.close(agent.exit_fd)
        del self._agents[agent.task]
        self._roster.leave(agent.task)
        if returncode != 0:
            # It could not clean up after itself.
            marks = f"{identity.RUN}={self._folder.run}", f"{identity.TASK}={agent.task}"
            processes.kill_marked(*marks)
            processes.kill_children(self._agent_pids())
        word = agent.last_word or {}
        exit_ = Exit(word.get("exit_code"), word.get("signal")) if word else Exit.from_returncode(returncode)
        how = self._how(agent, exit_)
        instructions = self._gang.ended(
            agent.task, exit_, time.monotonic(), how=how, port_taken=bool(word.get("port_taken"))
        )
        state = self._gang.states[agent.task]
        if not state.is_ended:  # it comes back alone
            state = TaskState.FAILED
        reasons = {TaskState.SUCCEEDED: "", TaskState.STOPPED: agent.stop_reason}
        reason = reasons.get(state, how)
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
                self._kill(self._agents[task])
        for agent in self._agents.values():
            if agent.hurry_at is not None and now >= agent.hurry_at:
                agent.hurry_at = None
                # Asked twice, an agent kills its program.
                processes.send_signal(agent.process.pid, signal.SIGTERM)
            if agent.kill_at is not None and now >= agent.kill_at:
                self._kill(agent)
        processes.reap_adopted(self._agent_pids())
        return self._gang.tick(now)

    def _agent_pids(self) -> set[int]:
        return {agent.process.pid for agent in self._agents.values()}

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
        if launch.reason and not launch.keep_address:
            self._folder.append_event("restart", restart=self._gang.restarts, reason=launch.reason)
        for task in launch.tasks:
            self._start_agent(task, ports.get(task))

    async def _renew_server(self) -> None:
        """Open a fresh roster: nobody of an earlier attempt is on it."""
        if self._server:
            await self._server.stop()
        self._roster = Roster(self._job.tasks)
        self._server = Server(self._roster, self._secret, partial(self._post, self._heard, self._roster))
        self._server_address = await self._server.start()

    def _start_agent(self, task: str, port: int | None) -> None:
        command = self._commands[task]
        environment = {
            **os.environ,
            **command.environment,
            identity.RUN: self._folder.run,
            identity.RUN_DIR: str(self._folder.path),
            identity.RENDEZVOUS: str(self._server_address),
            identity.RESTART: str(self._gang.restarts_of(task)),
            identity.PORT: str(port or ""),
            identity.PARENT_PID: str(os.getpid()),
        }
        self._task_event(task, TaskState.STARTING, host=socket.gethostname(), restarts=self._gang.restarts_of(task))
        with self._folder.log_file(task).open("ab") as log:
            process = subprocess.Popen(
                command.argv,
                env=environment,
                cwd=self._job.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        agent = self._agents[task] = _Agent(task, process)

        def ended() -> None:
            self._loop.remove_reader(agent.exit_fd)
            self._post(self._agent_ended, agent)

        self._loop.add_reader(agent.exit_fd, ended)

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
                processes.send_signal(agent.process.pid, signal.SIGTERM)

    def _kill(self, agent: _Agent) -> None:
        processes.send_signal(agent.process.pid, signal.SIGKILL)

    def _task_event(self, task: str, state: TaskState, **fields: Any) -> None:
        self._folder.append_event("task", task=task, state=state, **fields)


async def _main(folder: RunFolder, *, attached: bool) -> None:
    await Supervisor(folder, asyncio.get_running_loop()).run(attached=attached)


def main(argv: Sequence[str]) -> int:
    """Watch over the run in the folder that is named."""
    folder = RunFolder(Path(argv[0]))
    processes.adopt_orphans()
    try:
        asyncio.run(_main(folder, attached="--attached" in argv))
    except (GridflowError, OSError) as error:
        folder.append_event("run", state=RunState.FAILED, reason=f"the run's supervisor failed: {error}")
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
