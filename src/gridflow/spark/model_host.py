"""One process per executor that holds a model, and how an executor's Python workers speak with it.

    Python worker ─┐  Unix socket in a folder of the executor's own      ┌─ thread ─┐
    Python worker ─┼──── request: JSON, then rows as an Arrow stream ───▶├─ thread ─┼─▶ inference.Model
    Python worker ─┘◀─── answer: JSON, then outputs likewise ────────────└─ thread ─┘

The first worker that needs the model starts the host, under the folder's lock. The host belongs to the executor's JVM
rather than to that worker: it ends with the JVM, or when nobody was connected for a while. It listens at once, and
answers when the model is loaded.

    python -m gridflow.spark.model_host       what the first worker starts; all else comes on the standard input
"""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridflow.errors import DeadlineError, TaskError
from gridflow.processes import start_time
from gridflow.spark.saved_models import ModelPlan, error_message, locked, on_this_machine, python_environment

if TYPE_CHECKING:
    import pyarrow as pa

    from gridflow.inference import Model

_SOCKET, _LOG = "socket", "log"
#: The lengths of a message's two parts, JSON and Arrow.
_LENGTHS = struct.Struct(">IQ")
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.5
_LOG_TAIL = 2000


@dataclass(frozen=True)
class Place:
    """Where a host is found: the folder of its socket, and the JVM that it belongs to."""

    folder: Path
    owner: int
    #: Tells the JVM from a later process with its number.
    owner_start: str

    @classmethod
    def of_executor(cls, plan: ModelPlan, environ: Mapping[str, str]) -> Place:
        """Find the place of a plan's host from inside a Python worker."""
        # '/tmp/spark-5b…/executor-1f…/blockmgr-09…,/data/…': each executor's own, and removed with it
        scratch = environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
        if not scratch:
            raise TaskError("SPARK_LOCAL_DIRS is not set", hint="this is for Python workers of Spark")
        owner = _nearest_jvm(os.getpid())
        return cls(Path(scratch) / f"gridflow-model-{plan.digest}", owner, start_time(owner) or "")


def _nearest_jvm(pid: int) -> int:
    """Return the executor's process: the nearest one above that is a Java, past `pyspark.daemon` and wrappers."""
    above = pid
    while above > 1:
        # 'PPid:\t4711'
        status = Path(f"/proc/{above}/status").read_text()
        above = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))
        with suppress(OSError):
            if Path(f"/proc/{above}/comm").read_text().strip() == "java":
                return above
    raise TaskError(f"process {pid} has no Java process above it", hint="this is for Python workers of Spark")


def send(connection: socket.socket, header: Mapping[str, Any], batch: pa.RecordBatch | None = None) -> None:
    """Send one message; its body is a batch as an Arrow stream, or nothing."""
    # The two parts of a stream, rather than a writer, whose memory would have to grow.
    parts = [] if batch is None else [batch.schema.serialize(), batch.serialize()]
    text = json.dumps(header).encode()
    connection.sendall(_LENGTHS.pack(len(text), sum(map(len, parts))) + text)
    for part in parts:
        connection.sendall(part)


def receive(connection: socket.socket) -> tuple[dict[str, Any], pa.RecordBatch | None]:
    """Receive one message; the batch uses the memory that it came into."""
    import pyarrow as pa

    text_length, body_length = _LENGTHS.unpack(_fill(connection, bytearray(_LENGTHS.size)))
    header: dict[str, Any] = json.loads(_fill(connection, bytearray(text_length)))
    if not body_length:
        return header, None
    with pa.ipc.open_stream(_fill(connection, pa.allocate_buffer(body_length))) as reader:
        return header, reader.read_next_batch()


def _fill(connection: socket.socket, buffer: Any) -> Any:
    view = memoryview(buffer)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return buffer


class HostConnection:
    """A Python worker's connection to the model host of its executor, which it starts if need be."""

    def __init__(self, plan: ModelPlan, place: Place) -> None:
        self._plan = plan
        self._place = place
        self._socket: socket.socket | None = None

    def __enter__(self) -> HostConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def predict(
        self, batch: pa.RecordBatch, columns: Mapping[str, Sequence[str]], batch_size: int | None
    ) -> pa.RecordBatch:
        """Have the outputs for a batch; a host that dies over it is started once more."""
        header = {"columns": {name: list(parts) for name, parts in columns.items()}, "batch_size": batch_size}
        for is_last in (False, True):
            try:
                return self._ask(header, batch)
            except (EOFError, ConnectionError) as error:
                self._close()
                if is_last:
                    raise TaskError(
                        f"the process that holds the model {self._plan.path} died twice over the same batch"
                        f"{_tail(self._place.folder)}",
                        hint="the model may take more memory than there is, or crash TensorFlow: try it by itself",
                    ) from error
        raise AssertionError("unreachable")

    def _ask(self, header: Mapping[str, Any], batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._socket is None:
            self._socket = self._connect()
        try:
            send(self._socket, header, batch)
            answer, outputs = receive(self._socket)
        except TimeoutError as error:
            raise DeadlineError(
                f"the model {self._plan.path} took more than {self._plan.timeout_seconds:g} s for a batch",
                hint="give a smaller batch_size, or a larger timeout_seconds",
            ) from error
        if "error" in answer:
            raise TaskError(answer["error"], hint=answer.get("hint", ""))
        return outputs

    def _connect(self) -> socket.socket:
        folder = self._place.folder
        folder.mkdir(mode=0o700, exist_ok=True)
        with locked(folder, time.monotonic() + 2 * _START_SECONDS):
            try:
                connection = _dial(folder)
            except (FileNotFoundError, ConnectionRefusedError):
                _start(self._plan, self._place)
                connection = _dial(folder)
        connection.settimeout(self._plan.timeout_seconds)
        return connection

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _dial(folder: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        with _short_path(folder) as path:
            connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


class _short_path:  # noqa: N801
    """The path of a folder's socket, short enough for the kernel however deep the folder lies."""

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)

    def __enter__(self) -> str:
        return f"/proc/self/fd/{self._descriptor}/{_SOCKET}"

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _start(plan: ModelPlan, place: Place) -> None:
    """Start a host, and return when it listens."""
    argument = json.dumps([plan.to_json(), str(place.folder), place.owner, place.owner_start])
    with open(place.folder / _LOG, "wb") as log:
        try:
            done = subprocess.run(
                # The path is for people who look at processes.
                [sys.executable, "-m", "gridflow.spark.model_host", plan.path],
                input=argument.encode(),
                stdout=log,
                stderr=log,
                env=python_environment(),
                timeout=_START_SECONDS,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise DeadlineError(
                f"the process that is to hold the model did not start in {_START_SECONDS:g} s"
            ) from error
    if done.returncode:
        raise TaskError(f"the process that is to hold the model did not start{_tail(place.folder)}")


def _tail(folder: Path) -> str:
    text = ""
    with suppress(OSError):
        text = (folder / _LOG).read_text(errors="replace").strip()[-_LOG_TAIL:]
    return f"; its log ends with: {text}" if text else ""


class Host:
    """The process that holds a model."""

    def __init__(self, plan: ModelPlan, place: Place, listener: socket.socket, owner: int) -> None:
        self._plan = plan
        self._place = place
        self._listener = listener
        #: A descriptor that can be read when the JVM is gone.
        self._owner = owner
        self._model: Future[Model] = Future()
        self._connections = 0
        self._lock = threading.Lock()
        self._idle_since = time.monotonic()

    def run(self) -> None:
        """Load the model and serve it until nobody needs it any more."""
        accepting = threading.Thread(target=self._accept, name="accept", daemon=True)
        accepting.start()
        with ExitStack() as stack:
            try:
                self._model.set_result(self._load(stack))
            except Exception as error:  # noqa: BLE001 - whatever it is, those who wait for the model are told
                self._model.set_exception(error)
            accepting.join()

    def _load(self, stack: ExitStack) -> Model:
        from gridflow import inference
        from gridflow.gpu import Claim

        plan = self._plan
        deadline = time.monotonic() + plan.timeout_seconds
        path = stack.enter_context(on_this_machine(plan.path, plan.version, deadline))
        claim = None if plan.claim is None else Claim(**json.loads(plan.claim))
        model = inference.load(
            path,
            claim,
            signature=plan.signature,
            inputs=plan.inputs,
            outputs=plan.outputs,
            threads=plan.threads,
            memory_mb=plan.memory_mb,
        )
        return stack.enter_context(model)

    def _accept(self) -> None:
        watched = select.poll()
        watched.register(self._owner, select.POLLIN)
        watched.register(self._listener, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in watched.poll(_LOOK_SECONDS * 1000)]
            # A driver that is its own executor may stop that, and with it the folder, but live on.
            if self._owner in ready or not (self._place.folder / _SOCKET).exists():
                # Nobody is left to be told, and the kernel takes back all that this process holds.
                shutil.rmtree(self._place.folder, ignore_errors=True)
                os._exit(0)
            if ready:
                self._serve_next()
            elif self._is_over() and self._stop_listening():
                return

    def _serve_next(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(True)
        with self._lock:
            self._connections += 1
        threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _is_over(self) -> bool:
        with self._lock:
            has_failed = self._model.done() and self._model.exception() is not None
            patience = 0 if has_failed else self._plan.idle_seconds
            return not self._connections and time.monotonic() >= self._idle_since + patience

    def _stop_listening(self) -> bool:
        """Stop, unless somebody has connected meanwhile; who comes later starts another host."""
        with locked(self._place.folder, time.monotonic() + _START_SECONDS):
            if select.select([self._listener], [], [], 0)[0]:
                return False
            (self._place.folder / _SOCKET).unlink()
            self._listener.close()
        return True

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(EOFError, ConnectionError):
                while True:
                    header, batch = receive(connection)
                    try:
                        answer = self._answer(header, batch)
                    except Exception as error:  # noqa: BLE001 - the worker is told, and this host goes on
                        send(connection, error_message(error, self._plan.path))
                    else:
                        send(connection, {}, answer)
        finally:
            with self._lock:
                self._connections -= 1
                self._idle_since = time.monotonic()

    def _answer(self, header: Mapping[str, Any], batch: pa.RecordBatch | None) -> pa.RecordBatch:
        import pyarrow as pa

        model = self._model.result()
        outputs = model.predict_columns(batch, header["batch_size"], header["columns"])
        return pa.RecordBatch.from_pydict(outputs)


def _serve_plan(text: str) -> None:
    plan_text, folder, owner, owner_start = json.loads(text)
    place = Place(Path(folder), owner, owner_start)
    descriptor = os.pidfd_open(owner)
    if start_time(owner) != owner_start:
        raise TaskError(f"the executor, process {owner}, is gone")
    with socket.socket(socket.AF_UNIX) as listener:
        with suppress(FileNotFoundError):
            (place.folder / _SOCKET).unlink()
        with _short_path(place.folder) as path:
            listener.bind(path)
        listener.listen(128)
        # The worker waits for this process alone, and its child belongs to nobody.
        if os.fork() == 0:
            Host(ModelPlan.from_json(plan_text), place, listener, descriptor).run()


if __name__ == "__main__":
    _serve_plan(sys.stdin.read())
