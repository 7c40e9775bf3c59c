"""A slot: a process inside a Spark executor that runs one task's agent at a time, as the driver tells it.

    driver: spark_crew ◀══ link ══▶ slot ─▶ task agent ─▶ program
                                     ▲ started by a Spark task

A held slot keeps its Spark task, and so its cores, until it is released. A loose one lets the task end, so that the
cores can be used to feed what runs here; then nothing of Spark knows of it, and it goes by the executor's process.
Either way it ends with its executor, with the driver, and when it is told to.
"""

from __future__ import annotations

import base64
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gridflow import processes, shipping
from gridflow.errors import GridflowError, RendezvousError, TaskError
from gridflow.gpu.variables import VISIBLE
from gridflow.rendezvous.links import Link
from gridflow.rendezvous.roster import Address
from gridflow.store import RunFolder
from gridflow.task import identity

_LOG_PIECE_BYTES = 1 << 18
_STOP_SECONDS = 15.0
_READY_SECONDS = 60.0
#: Where executors keep what may go when they do: YARN's name for it, and Spark's own.
_SCRATCH_VARIABLES = ("LOCAL_DIRS", "SPARK_LOCAL_DIRS")


@dataclass(frozen=True)
class SlotOrder:
    """What the driver sends along with a Spark job, for each of its tasks to open a slot."""

    run: str
    #: Which attempt of the gang it is for.
    attempt: int
    #: Which of the job's kinds of tasks it is for; they differ in the resources they need.
    need: int
    driver: str
    secret: bytes
    is_held: bool
    #: What Spark calls the resource that is GPUs.
    gpu_resource: str
    #: The name, among Spark's files, of the archive with the program and its files; empty where there is none.
    archive: str = ""

    def open(self, partition: int, _rows: Iterable[Any]) -> Iterator[int]:
        """Open a slot; called in a Spark task."""
        from pyspark import SparkFiles, TaskContext

        context = TaskContext.get()
        gpus = context.resources().get(self.gpu_resource) if context is not None else None
        settings = {
            **asdict(self),
            "secret": base64.b64encode(self.secret).decode(),
            "archive": SparkFiles.get(self.archive) if self.archive else "",
            "partition": partition,
            "executor": _executor_process(os.getppid()),
            "gpus": devices(gpus.addresses, os.environ) if gpus else [],
        }
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "gridflow.platforms.spark_slot"],
                env={**os.environ, identity.RUN: self.run, "PYTHONPATH": _python_path()},
                stdin=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
            with process:
                assert process.stdin is not None  # noqa: S101 - it was asked for
                process.stdin.write(json.dumps(settings).encode() + b"\n")
                process.stdin.flush()
                # It stays open: its end tells a held slot that this Spark task is gone.
                returncode = process.wait()
            if returncode:
                errors.seek(0)
                said = errors.read()[-2000:].decode(errors="replace").strip()
                raise TaskError(f"slot {partition} of run {self.run} ended with exit code {returncode}: {said}")
        return iter([partition])


def devices(addresses: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    """Return the GPUs that Spark's addresses mean.

    An executor that may see only some may have been told of them by their names, or counts them from 0.
    """
    visible = [name for name in environ.get(VISIBLE, "").split(",") if name]
    counted = {str(number): name for number, name in enumerate(visible)}
    return [address if address in visible else counted.get(address, address) for address in addresses]


def _executor_process(pid: int) -> int:
    """Return the executor's JVM, which is above the Python worker and maybe Python's daemon."""
    while pid > 1:
        with suppress(OSError):
            if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                return pid
        pid = processes.parent(pid)
    raise TaskError("this Python process belongs to no Spark executor", hint="is it called outside of Spark?")


def _python_path() -> str:
    """Return what Spark has put on Python's path, so that a fresh interpreter finds it too."""
    return os.pathsep.join(entry for entry in sys.path if entry and not entry.startswith(sys.prefix))


class Slot:
    """One slot, from its opening to its release."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._secret = base64.b64decode(settings["secret"])
        self._selector = selectors.DefaultSelector()
        self._agent: _Agent | None = None
        self._is_released = False

    def run(self, opened: Callable[[], None]) -> None:
        """Serve the driver; `opened` is called once it knows of this slot."""
        executor = os.pidfd_open(self._settings["executor"])
        folder = RunFolder(Path(tempfile.mkdtemp(prefix="gridflow-", dir=_scratch(os.environ))))
        try:
            with Link.connect(Address.parse(self._settings["driver"]), self._secret) as link:
                self._enter(link, folder)
                opened()
                for source in (link, executor, *([sys.stdin] if self._settings["is_held"] else [])):
                    self._selector.register(source, selectors.EVENT_READ)
                self._serve(link, folder)
        finally:
            if self._agent is not None:
                self._agent.end()
            shutil.rmtree(folder.path, ignore_errors=True)

    def _enter(self, link: Link, folder: RunFolder) -> None:
        """Say who this is, and write down what the tasks need."""
        names = ("attempt", "need", "partition", "gpus")
        host = os.environ.get("NM_HOST") or link.own_host  # on YARN, the host's own name
        link.send({"type": "slot", "host": host, **{name: self._settings[name] for name in names}})
        message = link.receive(_READY_SECONDS)
        if message is None:
            raise RendezvousError(f"the driver at {self._settings['driver']} did not answer")
        function = bytearray(message["bytes"])
        link.receive_bulk(function)
        folder.write("secret", self._secret)
        folder.write("job.json", json.dumps(message["job"]))
        if function:
            folder.write("function.pickle", bytes(function))
        for path in (folder.result_file("x").parent, folder.path / "work"):
            path.mkdir()
        if self._settings["archive"]:
            shipping.unpack(Path(self._settings["archive"]), folder.path / "work")
        link.send({"type": "ready"})
        self._host = host

    def _serve(self, link: Link, folder: RunFolder) -> None:
        while not (self._is_released and self._agent is None):
            for source in [key.fileobj for key, _ in self._selector.select(timeout=1.0)]:
                if source is link:
                    self._obey(link, folder)
                elif self._agent is not None and source == self._agent.exit_fd:
                    self._report_end(link, self._agent, folder)
                elif self._agent is not None and source is self._agent.output:
                    self._forward(link, self._agent)
                elif source is sys.stdin or isinstance(source, int):
                    # The Spark task or the executor is gone.
                    return
            processes.reap_adopted({self._agent.pid} if self._agent else ())

    def _obey(self, link: Link, folder: RunFolder) -> None:
        message = link.receive(0)
        match message and message["type"]:
            case "start":
                self._start(message or {}, folder)
            case "signal" if self._agent is not None:
                processes.send_signal(self._agent.pid, (message or {})["number"])
            case "release":
                self._is_released = True
                if self._agent is not None:
                    processes.send_signal(self._agent.pid, signal.SIGTERM)

    def _start(self, message: Mapping[str, Any], folder: RunFolder) -> None:
        variables = {
            **message["environment"],
            identity.RUN_DIR: str(folder.path),
            identity.HOST: self._host,
            identity.PARENT_PID: str(os.getpid()),
            identity.DEVICES: ",".join(self._settings["gpus"]),
        }
        self._agent = _Agent(message["task"], variables, folder.path / "work")
        self._selector.register(self._agent.exit_fd, selectors.EVENT_READ)
        self._selector.register(self._agent.output, selectors.EVENT_READ)

    def _forward(self, link: Link, agent: _Agent) -> bool:
        """Send what an agent and its program have said; False where there is nothing to send."""
        content = agent.read()
        if content:
            link.send({"type": "log", "task": agent.task, "bytes": len(content)}, content)
        elif content is not None and agent.output in self._selector.get_map():
            # Nobody is left who could say more.
            self._selector.unregister(agent.output)
        return bool(content)

    def _report_end(self, link: Link, agent: _Agent, folder: RunFolder) -> None:
        self._selector.unregister(agent.exit_fd)
        returncode = agent.reap()
        while self._forward(link, agent):
            pass
        if agent.output in self._selector.get_map():
            self._selector.unregister(agent.output)
        agent.close()
        self._agent = None
        result = folder.result_file(agent.task)
        if result.exists():
            content = result.read_bytes()
            link.send({"type": "result", "task": agent.task, "bytes": len(content)}, content)
            result.unlink()
        link.send({"type": "ended", "task": agent.task, "returncode": returncode})


class _Agent:
    """A task's agent as a child of this process, with its output in a pipe."""

    def __init__(self, task: str, variables: Mapping[str, str], folder: Path) -> None:
        self.task = task
        self._run = variables[identity.RUN]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gridflow.task"],
            env={**os.environ, **variables},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        self.output = self._process.stdout
        os.set_blocking(self.output.fileno(), False)
        self.exit_fd = os.pidfd_open(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def read(self) -> bytes | None:
        """Return some of the output; None where there is none at the moment, nothing where it has ended."""
        try:
            return os.read(self.output.fileno(), _LOG_PIECE_BYTES)
        except BlockingIOError:
            return None

    def reap(self) -> int:
        """Return how the agent ended, when nothing is left of what it ran."""
        returncode = self._process.wait()
        if returncode:
            # It could not clean up after itself.
            processes.kill_marked(f"{identity.RUN}={self._run}", f"{identity.TASK}={self.task}")
            processes.kill_children()
        return returncode

    def close(self) -> None:
        self.output.close()
        os.close(self.exit_fd)

    def end(self) -> None:
        """End the agent: politely first, then by force."""
        processes.send_signal(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                self._process.kill()
            # Its output has to go somewhere, or it would wait for a reader.
            if not self.read():
                time.sleep(0.02)
        self.reap()
        self.close()


def _scratch(environ: Mapping[str, str]) -> str | None:
    """Return a folder for files that may go with the executor; None means the system's own."""
    places = [place for name in _SCRATCH_VARIABLES for place in environ.get(name, "").split(",") if place]
    return next((place for place in places if os.access(place, os.W_OK)), None)


def _detach() -> Callable[[], None]:
    """Go on as another process, so that the one that was started may end; returns what lets it."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        is_opened = os.read(reader, 1) == b"."
        os._exit(0 if is_opened else 1)
    os.close(reader)
    os.setsid()

    def opened() -> None:
        os.write(writer, b".")
        os.close(writer)

    return opened


def _read_line(descriptor: int) -> bytes:
    """Read one line and no byte more, so that what follows can be waited for."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(descriptor, 1)
        if not piece:
            raise TaskError("no line came on standard input", hint="slots are started by Spark tasks only")
        line += piece
    return line


def main() -> int:
    """Be the slot that standard input describes."""
    settings = json.loads(_read_line(sys.stdin.fileno()))
    tell_opened: Callable[[], None] = (lambda: None) if settings["is_held"] else _detach()
    is_open = False

    def opened() -> None:
        nonlocal is_open
        is_open = True
        tell_opened()

    processes.adopt_orphans()
    try:
        Slot(settings).run(opened)
    except GridflowError as error:
        if is_open and isinstance(error, RendezvousError):
            # The driver is gone, and with it all that this slot was for.
            return 0
        print(f"gridflow: {error}", file=sys.stderr, flush=True)  # noqa: T201 - for the Spark task that waits
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
