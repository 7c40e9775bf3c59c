"""The files of a task in a slot: what comes with it, what goes back, and its log while it grows."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from gridflow import shipping
from gridflow.errors import RendezvousError
from gridflow.rendezvous.chirp import Chirp
from gridflow.store import RunFolder
from gridflow.task.htcondor_names import FOLDERS, OUTPUTS

#: Where what the job brought along is unpacked.
WORK = "work"
#: How many lines may follow a program's result.
_RESULT_LINES = 50
_PUSH_SECONDS = 1.0
_PUSH_BYTES = 1 << 18


def unpack(folder: Path) -> Path:
    """Unpack what came along, unless an earlier life of the task has; return the folder to work in."""
    work = folder / WORK
    make_folders(folder)
    work.mkdir(exist_ok=True)
    archive = RunFolder(folder).archive_file
    if archive.exists():
        shipping.unpack(archive, work)
    return work


def make_folders(folder: Path) -> None:
    """Have the folders that go back: HTCondor holds a job that lacks one."""
    for name in FOLDERS:
        (folder / name).mkdir(exist_ok=True)


def bring_outputs(folder: Path, say: Callable[[str], None]) -> None:
    """Copy what the program was to make into the folder that goes back; what is not there is only spoken of."""
    # Keras's BackupAndRestore removes the folder that it was given, once training has ended.
    make_folders(folder)
    names = json.loads((folder / OUTPUTS).read_text()) if (folder / OUTPUTS).exists() else []
    for name in names:
        source, target = folder / WORK / name, folder / "outputs" / name
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
        else:
            say(f"the program made no {name!r}, which was to be brought back")


def keep_result(folder: RunFolder, task: str) -> None:
    """Keep what a program gives as its result: the last line of its output that is a JSON object."""
    log = folder.log_file(task)
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    for line in reversed(lines[-_RESULT_LINES:]):
        if line.startswith("{"):
            try:
                result = json.loads(line)
            except ValueError:
                continue
            folder.metrics_file(task).write_text(json.dumps(result))
            return


class LogMirror:
    """The task's log, copied to the submit machine as it grows, at a pace that does not disturb it."""

    def __init__(self, chirp: Chirp | None, local: Path, remote: str) -> None:
        self._chirp = chirp
        self._local = local
        self._remote = remote
        self._sent = 0
        self._next_push = 0.0

    def begin(self) -> None:
        """Take up what an earlier life of the task has said, and make the places that a later look expects."""
        if self._chirp is None:
            return
        with self._giving_up():
            for name in FOLDERS:
                self._chirp.make_folder(name)
            before = self._chirp.read(self._remote) or b""
            own = self._local.read_bytes()
            if before and not own.startswith(before):
                with self._local.open("r+b") as file:
                    file.write(before + own)
                self._sent = len(before)
            elif before:
                self._sent = len(before)
            self.push(at_once=True)

    def push(self, *, at_once: bool = False) -> None:
        """Send what is new."""
        if self._chirp is None or (time.monotonic() < self._next_push and not at_once):
            return
        self._next_push = time.monotonic() + _PUSH_SECONDS
        with self._giving_up(), self._local.open("rb") as file:
            file.seek(self._sent)
            content = file.read(_PUSH_BYTES)
            if content:
                self._chirp.append(self._remote, content)
                self._sent += len(content)

    def _giving_up(self) -> _GivingUp:
        return _GivingUp(self)

    def stop(self) -> None:
        """Send nothing more."""
        self._chirp = None


class _GivingUp:
    """Does without the mirror when it fails: the whole log goes back at the end anyway."""

    def __init__(self, mirror: LogMirror) -> None:
        self._mirror = mirror

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, RendezvousError):
            self._mirror.stop()
            return True
        return False
