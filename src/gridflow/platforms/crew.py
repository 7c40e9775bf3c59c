"""How a supervisor has its agents started and ended: the part of a supervised platform that differs.

    Supervisor ── start, terminate, kill ─▶ Crew ─▶ agents, wherever they run
        ▲                                     │
        └── Watcher: started, ended ──────────┘

The supervisor decides, the crew performs and tells what it sees. Everything here runs in the supervisor's event loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Protocol


class Watcher(Protocol):
    """What a crew tells its supervisor."""

    def agent_started(self, task: str, host: str) -> None:
        """Take word that a task's agent runs on a host."""

    def agent_ended(self, task: str, returncode: int | None, how: str = "") -> None:
        """Take the end of a task's agent; `returncode` is None where its whole host is lost, and `how` says it."""


class Crew(ABC):
    """The agents of one run."""

    #: The name under which the tasks reach the run's servers, and where those listen.
    host = "127.0.0.1"
    bind_host = "127.0.0.1"

    async def open(self, watcher: Watcher) -> None:
        """Get ready; what the platform refuses is raised as a PlatformError."""
        self.watcher = watcher

    async def begin(self) -> None:  # noqa: B027 - where nothing has to be had first
        """Get room for all tasks, whose agents will be started next; nothing is left of an earlier attempt."""

    @abstractmethod
    def start(self, task: str, environment: Mapping[str, str]) -> None:
        """Start a task's agent, now or as soon as there is room for it."""

    @abstractmethod
    def terminate(self, task: str) -> None:
        """Ask a task's agent to end; asked twice, it kills its program."""

    @abstractmethod
    def kill(self, task: str) -> None:
        """End a task's agent by force."""

    def sweep(self, task: str) -> None:  # noqa: B027 - where agents leave nothing
        """End what a task's agent left behind when it could not clean up after itself."""

    def tend(self) -> None:  # noqa: B027
        """Do what has to be done now and then."""

    def why_missing(self, tasks: Collection[str]) -> str:  # noqa: ARG002 - where nothing is known
        """Say why tasks have not been started, where that is known."""
        return ""

    async def close(self) -> None:  # noqa: B027
        """End whatever is left of the run."""
