"""HTCondor's Chirp: from inside a job, files of the submit directory, the job's event log and its attributes.

The starter of each job listens on its own machine and passes requests to the job's shadow, which performs them as the
job's owner. `$_CONDOR_CHIRP_CONFIG` names a file with the way there:

    127.0.0.1 41235 8e2f…            host, port, cookie

A request is a line; so is the answer, a number, with as many bytes after it as it says where it answers with data:

    cookie 8e2f…                ->   0
    getfile notes               ->   12, then 12 bytes         -3: no such file
    putfile notes 448 12        ->   12; then 12 bytes         ->   12
    ulog some\\ text             ->   0
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from gridflow.errors import RendezvousError

CONFIG = "_CONDOR_CHIRP_CONFIG"
#: The longest line that HTCondor takes.
LINE_BYTES = 5000

_TIMEOUT_SECONDS = 60.0
_OWNER_ONLY = 0o700
_DOES_NOT_EXIST = -3
_ERRORS = {
    -1: "not authenticated",
    -2: "not allowed",
    _DOES_NOT_EXIST: "no such file",
    -4: "it exists already",
    -5: "it is too big",
    -6: "no space is left",
    -8: "HTCondor refuses such a request (the job needs want_io_proxy = true)",
    -10: "it is in use",
    -17: "the submit machine cannot be reached",
}


class ChirpError(RendezvousError):
    """HTCondor did not do what a job asked it for."""

    def __init__(self, request: str, code: int) -> None:
        super().__init__(f"chirp {request}: {_ERRORS.get(code, f'error {code}')}")
        self.code = code


class Chirp:
    """A connection from a job to its shadow."""

    def __init__(self, host: str, port: int, cookie: str, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_seconds)
        except OSError as error:
            raise RendezvousError(f"HTCondor's starter at {host}:{port} cannot be reached: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")
        try:
            self._ask("cookie", cookie)
        except BaseException:
            self.close()
            raise

    @classmethod
    def connect(cls, environ: Mapping[str, str]) -> Chirp:
        """Connect to the starter of the job that this process belongs to."""
        path = Path(environ.get(CONFIG) or ".chirp.config")
        try:
            host, port, cookie = path.read_text().split()
        except (OSError, ValueError) as error:
            raise RendezvousError(
                f"{path}, which says how to reach HTCondor, cannot be read: {error}",
                hint="tasks find each other with want_io_proxy = true, inside an HTCondor job",
            ) from error
        return cls(host, int(port), cookie)

    def read(self, path: str) -> bytes | None:
        """Return a file of the submit machine; None where there is none."""
        try:
            length = self._ask("getfile", path)
        except ChirpError as error:
            if error.code == _DOES_NOT_EXIST:
                return None
            raise
        return self._take(length)

    def write(self, path: str, content: bytes) -> None:
        """Write a whole file."""
        if not content:
            # HTCondor never answers to the end of an empty file.
            self._ask("close", str(self._open(path, "wct")))
            return
        self._ask("putfile", path, str(_OWNER_ONLY), str(len(content)))
        self._send(content)
        self._result("putfile")

    def append(self, path: str, content: bytes) -> None:
        """Add to the end of a file, which is made where there is none."""
        descriptor = self._open(path, "wac")
        try:
            self._send(f"write {descriptor} {len(content)}\n".encode() + content)
            self._result("write")
        finally:
            self._ask("close", str(descriptor))

    def make_folder(self, path: str) -> None:
        """Make a folder, unless it is there."""
        try:
            self._ask("mkdir", path, str(_OWNER_ONLY))
        except ChirpError as error:
            if error.code != -4:
                raise

    def log(self, text: str) -> None:
        """Put a line into the job's event log."""
        self._ask("ulog", text)

    def attribute(self, name: str) -> str:
        """Return an attribute of the job, as HTCondor writes it: a string is in quotes."""
        return self._take(self._ask("get_job_attr", name)).decode()

    def close(self) -> None:
        """Close the connection."""
        self._answers.close()
        self._socket.close()

    def __enter__(self) -> Chirp:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, path: str, flags: str) -> int:
        descriptor = self._ask("open", path, flags, str(_OWNER_ONLY))
        # The answer has a second line, with what stat() says.
        self._answers.readline()
        return descriptor

    def _ask(self, request: str, *words: str) -> int:
        line = f"{request} {' '.join(map(_quote, words))}\n".encode()
        if len(line) > LINE_BYTES:
            raise RendezvousError(f"chirp {request}: {len(line)} bytes are more than HTCondor takes in a line")
        self._send(line)
        return self._result(request)

    def _send(self, content: bytes) -> None:
        try:
            self._socket.sendall(content)
        except OSError as error:
            raise RendezvousError(f"HTCondor's starter is gone: {error}") from error

    def _result(self, request: str) -> int:
        try:
            line = self._answers.readline()
        except OSError as error:
            raise RendezvousError(f"chirp {request}: no answer from HTCondor's starter: {error}") from error
        if not line.endswith(b"\n"):
            raise RendezvousError(f"chirp {request}: HTCondor's starter closed the connection")
        number = int(line)
        if number < 0:
            raise ChirpError(request, number)
        return number

    def _take(self, length: int) -> bytes:
        content = self._answers.read(length)
        if len(content) != length:
            raise RendezvousError("HTCondor's starter closed the connection in the middle of a file")
        return content


def _quote(word: str) -> str:
    return re.sub(r"([\\ \n\t\r])", r"\\\1", word)
