"""The host's ledger: one file that all processes and all users of a host share.

    <folder>/                      locked while somebody changes the ledger
             <boot id>.json        what `Shares.to_dict` returns; replaced as a whole
             <boot id>.json.new    the next one, while it is written

Whoever changes something takes the lock, reads the file, takes out the claims of processes that are gone, makes the
change, serves everybody whose turn it is, and puts the new file in the old one's place. The kernel frees the lock of
a process that is killed, and a file is there as a whole or not at all, so being killed at any moment harms nobody:
what such a process had is taken back by the next one that looks. A file of an earlier boot is never read.

The folder is $GRIDFLOW_GPU_LEDGER, or else /var/lib/gridflow/gpus where the administrator has made that, or else
/tmp/gridflow-gpus, which is made writable for everybody: all users of a host have to agree, so all must be able to
write. They can then disturb each other's claims, as they can each other's GPUs; they cannot do more, since nothing in
the file is executed, no link is followed, and no process is signalled because of what somebody else wrote.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gridflow.errors import DeadlineError, JobError, PlatformError
from gridflow.gpu.liveness import is_alive
from gridflow.gpu.shares import Shares
from gridflow.gpu.variables import LEDGER

_SITE_FOLDER = Path("/var/lib/gridflow/gpus")
_SHARED_FOLDER = Path("/tmp/gridflow-gpus")  # noqa: S108 - see above
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LOCK_SECONDS = 30.0
_FORMAT = 1


def ledger_folder(environ: Mapping[str, str]) -> Path:
    """Return where the host's ledger is."""
    if environ.get(LEDGER):
        return Path(environ[LEDGER])
    return _SITE_FOLDER if _SITE_FOLDER.is_dir() else _SHARED_FOLDER


class Ledger:
    """The claims on the GPUs of this host."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder
        #: The same for all processes of the host, until it boots again.
        self.clock = clock
        self._name = f"{_BOOT_ID.read_text().strip()}.json"

    @property
    def file(self) -> Path:
        """The file that holds it."""
        return self.folder / self._name

    def read(self) -> Shares:
        """Return the ledger as it is, without what processes that are gone have left in it."""
        shares = self._shares(self._read_text())
        shares.bury(is_alive)
        return shares

    def read_table(self) -> dict[str, Any]:
        """Return what the file holds, as `Shares.to_dict` wrote it, dead claims and all: the quickest look."""
        return self._table(self._read_text())

    @contextmanager
    def changing(self) -> Iterator[Shares]:
        """Lock the ledger, give it to be changed, serve whoever can be served, and keep the result."""
        with self._locked() as folder:
            before = self._read_text()
            shares = self._shares(before)
            shares.bury(is_alive)
            yield shares
            shares.advance(self.clock())
            after = _text(shares)
            if after != before:
                self._replace(folder, after)

    def _read_text(self) -> str:
        try:
            return self.file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return _text(Shares())
        except ValueError as error:
            raise self._damaged() from error
        except OSError as error:
            raise self._unusable(error) from error

    def _table(self, text: str) -> dict[str, Any]:
        try:
            table: dict[str, Any] = json.loads(text)
            if table["format"] == _FORMAT:
                return table
        except (ValueError, TypeError, LookupError) as error:
            raise self._damaged() from error
        raise self._damaged()

    def _shares(self, text: str) -> Shares:
        try:
            return Shares.from_dict(self._table(text))
        except (TypeError, LookupError, AttributeError, JobError) as error:
            raise self._damaged() from error

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the lock, and give a descriptor of the folder."""
        folder = self._open_folder()
        try:
            self._lock(folder)
            yield folder
        finally:
            os.close(folder)

    def _open_folder(self) -> int:
        try:
            # Those above belong to whoever makes them; only the folder itself is everybody's.
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                self.folder.mkdir()
                self.folder.chmod(0o777)
            # A link could lead into somebody's own folders.
            return os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            raise self._unusable(error) from error

    def _lock(self, folder: int) -> None:
        deadline = time.monotonic() + _LOCK_SECONDS
        pause = 0.0005
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DeadlineError(
                        f"the ledger of GPUs in {self.folder} was locked for {_LOCK_SECONDS:g} s",
                        hint=f"see who stopped in the middle of it with `fuser -v {self.folder}`",
                    ) from None
            # It is held for a millisecond or two at a time.
            time.sleep(pause)
            pause = min(2 * pause, 0.01)

    def _replace(self, folder: int, text: str) -> None:
        new = f"{self._name}.new"
        try:
            # Somebody may have been killed while writing it.
            with suppress(FileNotFoundError):
                os.unlink(new, dir_fd=folder)
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=folder)
            with open(descriptor, "w", encoding="utf-8") as file:
                os.fchmod(descriptor, 0o644)  # whatever the umask is
                file.write(text)
            os.replace(new, self._name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> PlatformError:
        return PlatformError(
            f"the ledger of GPUs in {self.folder} cannot be used: {error}",
            hint=f"let all users write to that folder (mode 0777, no sticky bit), or set {LEDGER}",
        )

    def _damaged(self) -> PlatformError:
        return PlatformError(
            f"{self.file} is not a ledger of GPUs", hint="remove it when no program of Gridflow uses a GPU"
        )


def _text(shares: Shares) -> str:
    return json.dumps({"format": _FORMAT, **shares.to_dict()}, separators=(",", ":"))
