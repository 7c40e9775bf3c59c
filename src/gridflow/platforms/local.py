"""The machine that you are on: every task is a process here, watched over by one supervisor process per run.

gridflow run ─▶ supervisor ─▶ agent worker/0 ─▶ program
    (attached: a pipe)     ├▶ agent worker/1 ─▶ program
                           └▶ agent ps/0     ─▶ program
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder

from gridflow import processes
from gridflow.errors import JobError
from gridflow.job import Job
from gridflow.platforms.base import Command, Finding, Plan, job_files
from gridflow.platforms.crew import Crew, Watcher
from gridflow.platforms.supervised import SupervisedPlatform
from gridflow.store import RunFolder
from gridflow.task import identity


class Local(SupervisedPlatform):
    """Tasks are processes of this machine."""

    name = "local"
    description = "processes on this machine"

    def plan(self, job: Job) -> Plan:
        """Return one agent per task."""
        agent = (sys.executable, "-P", "-m", "gridflow.task")
        notes = []
        if any(group.resources.memory_mb for group in job.groups):
            notes.append("memory is not limited on this machine")
        if job.image:
            notes.append(f"image {job.image} is not used on this machine: tasks run in this environment")
        return Plan(
            files=job_files(job),
            commands=tuple(
                Command(agent, {identity.TASK: task, identity.HOST: "127.0.0.1"}, task) for task in job.tasks
            ),
            notes=tuple(notes),
        )

    def check_program(self, job: Job) -> None:
        """Look for a module where Python would, without importing anything."""
        if job.program.kind != "module":
            return
        own = [path for path in job.env.get("PYTHONPATH", "").split(os.pathsep) if path]
        paths: list[str] | None = [job.folder, *own, *sys.path]
        name = ""
        for part in job.program.target.split("."):
            name = f"{name}.{part}" if name else part
            spec = PathFinder.find_spec(name, paths) if paths is not None else None
            if spec is None:
                raise JobError(
                    f"there is no module {name!r}",
                    hint=f"it is looked for in {job.folder}, on PYTHONPATH and among the installed packages",
                )
            paths = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)

    def crew(self, folder: RunFolder) -> Crew:
        """Return the processes of a run."""
        commands = self.plan(folder.job).commands
        return _Processes(folder, {command.task: command for command in commands})

    def check(self) -> list[Finding]:
        """Look for Linux's process descriptors and a TensorFlow."""
        from importlib.util import find_spec

        has_tensorflow = find_spec("tensorflow") is not None
        return [
            Finding(
                "Linux", hasattr(os, "pidfd_open") and sys.platform == "linux", "process descriptors (5.3 or newer)"
            ),
            Finding("tensorflow", has_tensorflow, "installed" if has_tensorflow else "pip install tensorflow"),
        ]


class _Processes(Crew):
    """One agent process per task, each in a session of its own."""

    def __init__(self, folder: RunFolder, commands: Mapping[str, Command]) -> None:
        self._folder = folder
        self._commands = commands
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    async def open(self, watcher: Watcher) -> None:
        """Become the parent of whatever the agents lose."""
        await super().open(watcher)
        processes.adopt_orphans()

    def start(self, task: str, environment: Mapping[str, str]) -> None:
        """Start an agent; the kernel tells when it ends."""
        command = self._commands[task]
        with self._folder.log_file(task).open("ab") as log:
            process = subprocess.Popen(
                command.argv,
                env={**os.environ, **command.environment, **environment, identity.PARENT_PID: str(os.getpid())},
                cwd=self._folder.job.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._running[task] = process
        exit_fd = os.pidfd_open(process.pid)
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(exit_fd)
            os.close(exit_fd)
            del self._running[task]
            self.watcher.agent_ended(task, process.wait())

        loop.add_reader(exit_fd, ended)
        self.watcher.agent_started(task, socket.gethostname())

    def terminate(self, task: str) -> None:
        """Send SIGTERM."""
        self._signal(task, signal.SIGTERM)

    def kill(self, task: str) -> None:
        """Send SIGKILL."""
        self._signal(task, signal.SIGKILL)

    def _signal(self, task: str, number: int) -> None:
        if task in self._running:
            processes.send_signal(self._running[task].pid, number)

    def sweep(self, task: str) -> None:
        """Kill what carries the task's marks, and whatever came to this process when its parent died."""
        processes.kill_marked(f"{identity.RUN}={self._folder.run}", f"{identity.TASK}={task}")
        processes.kill_children(self._pids())

    def tend(self) -> None:
        """Bury adopted processes."""
        processes.reap_adopted(self._pids())

    async def close(self) -> None:
        """Kill all that is left of the run."""
        processes.kill_marked(f"{identity.RUN}={self._folder.run}")
        processes.kill_children()

    def _pids(self) -> set[int]:
        return {process.pid for process in self._running.values()}
