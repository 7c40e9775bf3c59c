"""HTCondor's starter as a job sees it: Chirp over a folder, with the answers of a real one."""

from __future__ import annotations

import re
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path

from gridflow.rendezvous.chirp import CONFIG

COOKIE = "8e2f"
NOT_AUTHENTICATED, DOES_NOT_EXIST, EXISTS, REFUSED = -1, -3, -4, -8


class Starter(socketserver.ThreadingTCPServer):
    """Answers the requests of jobs; `folder` is their submit directory."""

    def __init__(self, folder: Path, attributes: Mapping[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.folder = folder
        self.attributes = attributes
        #: Whether the job has want_io_proxy.
        self.allows_files = True
        #: What jobs have put into their event logs.
        self.said: list[str] = []

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    def configure(self, scratch: Path) -> dict[str, str]:
        """Write what tells a job the way here, into its scratch folder; return the variable that names it."""
        path = scratch / ".chirp.config"
        path.write_text(f"127.0.0.1 {self.port} {COOKIE}\n")
        return {CONFIG: str(path)}


@contextmanager
def starting(folder: Path, attributes: Mapping[str, str] | None = None) -> Iterator[Starter]:
    """Have a starter for as long as the block lasts."""
    folder.mkdir(exist_ok=True)
    with Starter(folder, attributes or {}) as starter:
        thread = threading.Thread(target=starter.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield starter
        finally:
            starter.shutdown()
            thread.join()


class _Connection(socketserver.StreamRequestHandler):
    server: Starter

    def handle(self) -> None:
        is_known = False
        self._files: dict[str, FileIO] = {}
        with ExitStack() as self._stack:
            for line in self.rfile:
                # A word ends at a blank that has no backslash before it.
                words = re.findall(r"(?:\\.|[^ \\])+", line.decode().rstrip("\n"))
                request, *rest = (re.sub(r"\\(.)", r"\1", word) for word in words)
                is_known = is_known or (request == "cookie" and rest == [COOKIE])
                self.wfile.write(self._result(request, rest) if is_known else b"%d\n" % NOT_AUTHENTICATED)

    def _result(self, request: str, words: list[str]) -> bytes:
        try:
            return self._perform(request, words)
        except FileNotFoundError:
            return b"%d\n" % DOES_NOT_EXIST
        except FileExistsError:
            return b"%d\n" % EXISTS

    def _perform(self, request: str, words: list[str]) -> bytes:
        path = self.server.folder / words[0]
        match request:
            case "ulog":
                self.server.said.append(words[0])
            case "get_job_attr":
                return _counted(self.server.attributes.get(words[0], "UNDEFINED").encode())
            case _ if request != "cookie" and not self.server.allows_files:
                return b"%d\n" % REFUSED
            case "getfile":
                return _counted(path.read_bytes())
            case "putfile":
                self.wfile.write(f"{words[2]}\n".encode())
                path.write_bytes(self.rfile.read(int(words[2])))
                return f"{words[2]}\n".encode()
            case "mkdir":
                path.mkdir()
            case "open":
                file = self._stack.enter_context(FileIO(path, "a" if "a" in words[1] else "w"))
                self._files[str(file.fileno())] = file
                # A second line says what stat() does.
                return b"%d\n2049 131 33216 1 1000 1000\n" % file.fileno()
            case "write":
                return b"%d\n" % self._files[words[0]].write(self.rfile.read(int(words[1])))
            case "close":
                self._files.pop(words[0]).close()
        return b"0\n"


def _counted(content: bytes) -> bytes:
    return b"%d\n%b" % (len(content), content)
