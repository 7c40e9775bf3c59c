"""Saved models: which one and how it is loaded, what it takes and gives, and its files on this machine.

    hdfs://…/export ─▶ /tmp/gridflow-models-1000/3f9c…/copy/export

A copy is made once per machine and shared: everybody who uses it holds a shared lock on its folder, which the kernel
lets go of with the process. Whoever leaves last removes it, and whoever comes removes what the killed left behind.
"""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gridflow.errors import DeadlineError, GridflowError, TaskError, UsageError

_LOOK_SECONDS = 0.05
_COPY = "copy"


@dataclass(frozen=True)
class ModelPlan:
    """Which model is loaded, and how; two plans that are equal share a host."""

    path: str
    #: What changes when the model's files do.
    version: str
    signature: str | None = None
    inputs: tuple[str, ...] | None = None
    outputs: tuple[str, ...] | None = None
    claim: str | None = None
    memory_mb: float | None = None
    threads: int | None = None
    idle_seconds: float = 60.0
    timeout_seconds: float = 600.0

    def __post_init__(self) -> None:
        for name in ("memory_mb", "threads", "idle_seconds", "timeout_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"{name}={value!r} is not positive")
        for name in ("inputs", "outputs"):
            if (names := getattr(self, name)) is not None:
                object.__setattr__(self, name, tuple(names))

    def to_json(self) -> str:
        """Write the plan down for another process."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ModelPlan:
        """Read what `to_json` wrote."""
        return cls(**json.loads(text))

    @property
    def digest(self) -> str:
        """A name for the plan that is safe in paths."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Tensor:
    """What a model takes or gives under one name."""

    #: TensorFlow's name of the type, `float32`.
    dtype: str
    #: The shape of all rows together, None where a length varies; None where not even their number is known.
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True)
class Description:
    """What a model takes and gives."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]


@functools.lru_cache(maxsize=64)
def describe(plan: ModelPlan) -> Description:
    """Find out what a model takes and gives, in a process of its own: TensorFlow stays out of this one."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gridflow.spark.saved_models"],
            input=plan.to_json(),
            capture_output=True,
            text=True,
            env={**python_environment(), "CUDA_VISIBLE_DEVICES": "-1"},
            timeout=plan.timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DeadlineError(f"model {plan.path} was not loaded in {plan.timeout_seconds:g} s") from error
    if done.returncode:
        raise UsageError(f"model {plan.path} cannot be loaded: {done.stderr.strip()[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    if "error" in found:
        raise UsageError(found["error"], hint=found.get("hint", ""))
    parts = {part: {name: _tensor(*spec) for name, spec in found[part].items()} for part in ("inputs", "outputs")}
    return Description(**parts)


def _tensor(dtype: str, shape: list[int | None] | None) -> Tensor:
    return Tensor(dtype, None if shape is None else tuple(shape))


def _load_description(plan: ModelPlan) -> dict[str, Any]:
    from gridflow.inference.formats import load_function

    try:
        with on_this_machine(plan.path, plan.version, time.monotonic() + plan.timeout_seconds) as path:
            function = load_function(path, plan.signature, plan.inputs, plan.outputs)
    except Exception as error:  # noqa: BLE001 - the driver raises it
        return error_message(error, plan.path)
    return {
        part: {
            name: [spec.dtype.name, None if spec.shape.rank is None else spec.shape.as_list()]
            for name, spec in specs.items()
        }
        for part, specs in (("inputs", function.inputs), ("outputs", function.outputs))
    }


def error_message(error: Exception, path: str) -> dict[str, str]:
    """Put what a model failed with into a message."""
    if isinstance(error, GridflowError):
        return {"error": f"model {path}: {error.message}", "hint": error.hint}
    return {"error": f"model {path}: {type(error).__name__}: {error}"}


def python_environment() -> dict[str, str]:
    """Return an environment in which Python finds what it finds here, such as the files of `--py-files`."""
    return {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def fingerprint(path: str) -> str:
    """Return what changes when the files of a model do; fail where there are none."""
    from pyarrow import fs

    from gridflow.tfrecord.files import resolve

    system, within = resolve(path, None)
    info = system.get_file_info(within)
    if info.type == fs.FileType.NotFound:
        raise UsageError(f"model {path} is not there", hint="the driver has to be able to read it, as the executors do")
    is_folder = info.type == fs.FileType.Directory
    files = system.get_file_info(fs.FileSelector(within, recursive=True)) if is_folder else [info]
    known = sorted((each.path, each.size, each.mtime_ns) for each in files if each.type == fs.FileType.File)
    return hashlib.sha256(repr(known).encode()).hexdigest()[:16]


@contextmanager
def on_this_machine(path: str, version: str, deadline: float) -> Iterator[Path]:
    """Give a model's path on this machine, where it is copied to if need be, as long as the `with` block lasts."""
    if "://" not in path:
        yield Path(path).expanduser()
    elif path.startswith("file://"):
        yield Path(path.removeprefix("file://"))
    else:
        home = _own_folder(Path(tempfile.gettempdir()) / f"gridflow-models-{os.getuid()}")
        _remove_unused(home)
        folder = home / hashlib.sha256(f"{path}\n{version}".encode()).hexdigest()[:16]
        descriptor = _hold_copy(path, folder, deadline)
        try:
            yield folder / _COPY / _name(path)
        finally:
            _remove_if_unused(folder, descriptor)
            os.close(descriptor)


@contextmanager
def locked(folder: Path, deadline: float) -> Iterator[None]:
    """Hold the lock of a folder, which must be there."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(descriptor, fcntl.LOCK_EX, folder, deadline)
        yield
    finally:
        os.close(descriptor)


def _own_folder(path: Path) -> Path:
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.stat(follow_symlinks=False)
    if path.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise TaskError(f"{path} is open to others, or theirs", hint="remove it, or set TMPDIR")
    return path


def _hold_copy(path: str, folder: Path, deadline: float) -> int:
    """Make the copy if it is not there, and return the descriptor that holds it."""
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                _lock(descriptor, fcntl.LOCK_SH, folder, deadline)
                if _is_same(folder, descriptor) and (folder / _COPY).exists():
                    return descriptor
                _lock(descriptor, fcntl.LOCK_EX, folder, deadline)
                if _is_same(folder, descriptor) and not (folder / _COPY).exists():
                    _copy(path, folder)
            except BaseException:
                os.close(descriptor)
                raise
            # There is no way from one lock to the other without letting go, so look again.
            os.close(descriptor)


def _copy(path: str, folder: Path) -> None:
    from pyarrow import fs

    from gridflow.tfrecord.files import resolve

    aside = folder / "part"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    system, within = resolve(path, None)
    try:
        if system.get_file_info(within).type == fs.FileType.Directory:
            (aside / _name(path)).mkdir()
        fs.copy_files(within, str(aside / _name(path)), source_filesystem=system)
    except OSError as error:
        raise UsageError(f"model {path} cannot be copied to this machine ({error})") from error
    aside.rename(folder / _COPY)


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _remove_unused(home: Path) -> None:
    for folder in home.iterdir():
        with suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                _remove_if_unused(folder, descriptor)
            finally:
                os.close(descriptor)


def _remove_if_unused(folder: Path, descriptor: int) -> None:
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_same(folder, descriptor):
            shutil.rmtree(folder, ignore_errors=True)


def _is_same(folder: Path, descriptor: int) -> bool:
    """Tell whether the folder is still the one that was opened."""
    try:
        return os.path.samestat(folder.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _lock(descriptor: int, kind: int, folder: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise DeadlineError(f"{folder} was locked for too long", hint="see who holds it: fuser -v") from None
            time.sleep(_LOOK_SECONDS)  # the kernel has no lock with a deadline
        else:
            return


if __name__ == "__main__":
    # Loading may print; the answer is the last line.
    description = _load_description(ModelPlan.from_json(sys.stdin.read()))
    sys.stdout.write("\n" + json.dumps(description))
