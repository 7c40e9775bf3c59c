"""The runner: turns into the user's program, as Python itself would have started it.

    python -m gridflow.task.program script train.py --epochs 3
                                    module package.train
                                    function function.pickle result.pickle
                                    command ./train.sh
                                    server | data

It dies with the agent, corrects Keras where that is needed, speeds up TensorFlow's import, makes TensorFlow obey the
task's grant, and tells the agent of an exception the moment it is raised: by the time TensorFlow has torn itself down,
other tasks have failed for want of this one.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import pickle
import runpy
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gridflow import processes
from gridflow.gpu.variables import GRANT, LIMITS
from gridflow.task import keras_multiworker
from gridflow.task.identity import PARENT_PID, REPORT_FD
from gridflow.task.importing import around_import, collecting_rarely


def run_script(target: str, arguments: Sequence[str]) -> None:
    """Run a Python file as `python FILE` does."""
    path = os.path.join(os.getcwd(), target)
    sys.argv = [target, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    main = types.ModuleType("__main__")
    main.__file__ = path
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    # Pickling, multiprocessing and typing look the program up by this name.
    sys.modules["__main__"] = main
    # This file's own `from __future__` imports are not the program's.
    exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), main.__dict__)  # noqa: S102


def run_module(target: str, arguments: Sequence[str]) -> None:
    """Run a module as `python -m MODULE` does."""
    sys.argv = [target, *arguments]
    sys.path.insert(0, os.getcwd())
    runpy.run_module(target, run_name="__main__", alter_sys=True)


def run_function(target: str, arguments: Sequence[str]) -> None:
    """Call a pickled function and keep what it returns or raises."""
    import cloudpickle

    from gridflow.store import write_whole

    (result_file,) = arguments
    Path(result_file).unlink(missing_ok=True)  # what an earlier attempt left
    call = pickle.loads(Path(target).read_bytes())  # noqa: S301 - written by this user's own launcher
    sys.path[:] = [*call["path"], *(entry for entry in sys.path if entry not in call["path"])]
    function, positional, named = pickle.loads(call["call"])  # noqa: S301
    outcome: dict[str, object]
    try:
        outcome = {"result": function(*positional, **named)}
    except BaseException as error:
        outcome = {"traceback": traceback.format_exc(), "error": error}
        raise
    finally:
        try:
            content = cloudpickle.dumps(outcome)
        except Exception as unpicklable:  # noqa: BLE001 - a user's object may raise anything when pickled
            content = cloudpickle.dumps({"unpicklable": str(unpicklable), "traceback": outcome.get("traceback")})
        write_whole(Path(result_file), content)


def run_command(target: str, arguments: Sequence[str]) -> None:
    """Become another program."""
    path = os.path.abspath(target)
    try:
        os.execv(path, [path, *arguments])  # noqa: S606 - that is what a command is
    except OSError as error:
        error.filename = path
        raise


def run_server(_target: str, _arguments: Sequence[str]) -> None:
    """Be TensorFlow's standard server for this task."""
    from gridflow.task import services

    services.serve_tensorflow(os.environ)


def run_data(_target: str, _arguments: Sequence[str]) -> None:
    """Be a part of the tf.data service."""
    from gridflow.task import services

    services.serve_data(os.environ)


RUNNERS: dict[str, Callable[[str, Sequence[str]], None]] = {
    "script": run_script,
    "module": run_module,
    "function": run_function,
    "command": run_command,
    "server": run_server,
    "data": run_data,
}


def _with_room(function: Callable[..., None]) -> Callable[..., None]:
    """Give the function, and so all that it calls, one large piece of Python's stack.

    Python takes its stack in pieces of 16 kB, each from the kernel, and gives a piece back when the last call in it
    returns. Calls that straddle the end of a piece map and unmap it every time: below the few calls of a runner,
    TensorFlow's import did so 67,000 times instead of 10,000. A function that asks for more gets a piece that is the
    next power of two, so with this number half of a megabyte is left for those below it.
    """
    function.__code__ = function.__code__.replace(co_stacksize=(1 << 16) + (1 << 12))
    return function


@_with_room
def _run(kind: str, target: str, arguments: Sequence[str]) -> None:
    RUNNERS[kind](target, arguments)


@contextmanager
def _importing_tensorflow() -> Iterator[None]:
    with collecting_rarely():
        yield
    if os.environ.get(GRANT) and os.environ.get(LIMITS) != "off":
        from gridflow.gpu.grants import Grant
        from gridflow.gpu.limits import apply

        apply(Grant.read(os.environ))


def main(argv: Sequence[str]) -> int:
    """Run what the arguments name and report an exception that nobody caught."""
    kind, target, *arguments = [*argv, ""] if len(argv) == 1 else argv
    report_fd = int(os.environ.pop(REPORT_FD))
    os.set_inheritable(report_fd, False)
    processes.die_with_parent(int(os.environ.pop(PARENT_PID)))
    keras_multiworker.install(os.environ)
    around_import("tensorflow", _importing_tensorflow)
    try:
        _run(kind, target, arguments)
    except SystemExit as stop:
        if stop.code:
            sys.last_value = stop
            _tell(f"exit code {stop.code}" if isinstance(stop.code, int) else str(stop.code), report_fd)
        raise
    except Exception as error:  # noqa: BLE001 - the root of the program
        _report(error, report_fd)
        return 1
    return 0


def _report(error: Exception, report_fd: int) -> None:
    """Print the exception as Python would, without the runner's own frames, and tell the agent."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        frames = frames.tb_next
    # As Python would: what runs at the interpreter's end can see that the program has failed.
    sys.last_value = error
    sys.excepthook(type(error), error.with_traceback(frames), frames)
    sys.stdout.flush()
    sys.stderr.flush()
    _tell("".join(traceback.format_exception_only(error)).strip(), report_fd)


def _tell(error: str, report_fd: int) -> None:
    os.write(report_fd, json.dumps({"type": "error", "error": error[-4000:]}).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
