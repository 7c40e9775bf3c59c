"""Processes of Gridflow's own beside a run: its supervisor, or what removes it once its launcher is gone."""

from __future__ import annotations

import subprocess
import sys

from gridflow.store import RunFolder


class Companions:
    """The processes that this one has started beside runs, one each.

    They are kept so that they are reaped, and so that the pipe of an attached run stays open as long as this process
    lives: its end tells that the launcher is gone, however it went.
    """

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, folder: RunFolder, module: str, *words: str, attached: bool) -> subprocess.Popen[bytes]:
        """Start a module with a run's folder as its first argument, in a session of its own."""
        with folder.supervisor_log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(folder.path), *words],
                stdin=subprocess.PIPE if attached else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes[folder.run] = process
        return process

    def reap(self, folder: RunFolder, *, timeout_seconds: float) -> None:
        """Let go of the process beside a run that has ended, and see it end."""
        process = self._processes.pop(folder.run, None)
        if process is not None:
            if process.stdin:
                process.stdin.close()
            process.wait(timeout=timeout_seconds)
