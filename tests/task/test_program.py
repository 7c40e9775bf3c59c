from __future__ import annotations

import json
import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest

from gridflow.task.identity import PARENT_PID, REPORT_FD

SECONDS = 60.0
RUNNER = (sys.executable, "-P", "-m", "gridflow.task.program")


@dataclass(frozen=True)
class Ended:
    """How a program ended and what it left."""

    returncode: int
    stdout: str
    stderr: str
    reports: list[dict[str, str]]


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    # Without this, whether a program's output is buffered would depend on who runs the tests.
    return {**os.environ, "PYTHONUNBUFFERED": "1", **variables}


def run(folder: Path, *program: str, **variables: str) -> Ended:
    """Run a program through the runner, as the agent does, with `folder` as its working folder."""
    read, write = os.pipe()
    variables |= {REPORT_FD: str(write), PARENT_PID: str(os.getpid())}
    with open(read, "rb") as reports:
        try:
            result = subprocess.run(
                [*RUNNER, *program],
                cwd=folder,
                env=environment(variables),
                pass_fds=(write,),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        finally:
            os.close(write)
        lines = reports.read().splitlines()
    return Ended(result.returncode, result.stdout, result.stderr, [json.loads(line) for line in lines])


def run_plainly(folder: Path, *command: str) -> Ended:
    """Run a program as people do, by Python itself."""
    result = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment({}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return Ended(result.returncode, result.stdout, result.stderr, [])


def error(text: str) -> list[dict[str, str]]:
    return [{"type": "error", "error": text}]


# Scripts

#: Prints what a program can see of how it was started.
MIRROR = '''"""A mirror."""
import json, os, sys

def annotated(x: int) -> None: ...

print(json.dumps({
    "argv": sys.argv,
    "path": sys.path,
    "name": __name__,
    "file": __file__,
    "doc": __doc__,
    "package": __package__,
    "spec": str(__spec__ and (__spec__.name, __spec__.origin)),
    "loader": type(__loader__).__name__,
    "main": sys.modules["__main__"].__dict__ is globals(),
    "annotations": str(annotated.__annotations__),
    "folder": os.getcwd(),
    "variables": sorted(name for name in os.environ if name in ("GRIDFLOW_REPORT_FD", "GRIDFLOW_PARENT_PID")),
}))
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with `mirror.py`, `package/mirror.py` and a link to a script elsewhere."""
    work = tmp_path / "work"
    (work / "package").mkdir(parents=True)
    (work / "mirror.py").write_text(MIRROR)
    (work / "package" / "__init__.py").touch()
    (work / "package" / "mirror.py").write_text(f"{MIRROR}\nfrom . import __name__ as parent\nprint(parent)\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "linked.py").write_text(MIRROR)
    (work / "linked.py").symlink_to(tmp_path / "elsewhere" / "linked.py")
    return work


@pytest.mark.parametrize("script", ["mirror.py", "./mirror.py", "package/../mirror.py", "linked.py"])
def test_a_script_runs_as_python_would_run_it(folder: Path, script: str) -> None:
    arguments = (script, "--epochs", "3", "", "--help")
    plain = run_plainly(folder, *arguments)
    assert plain.returncode == 0
    assert json.loads(plain.stdout)["argv"] == list(arguments)
    assert run(folder, "script", *arguments) == plain


def test_a_script_is_found_by_its_full_path_from_anywhere(folder: Path, tmp_path: Path) -> None:
    script = str(folder / "mirror.py")
    assert run(tmp_path, "script", script) == run_plainly(tmp_path, script)


@pytest.mark.parametrize(
    "source",
    [
        "\N{BYTE ORDER MARK}print('größe')".encode(),
        "# coding: latin-1\nprint('größe')".encode("latin-1"),
        b"print('gr\xc3\xb6\xc3\x9fe')\r\nprint(1)\r\n",
    ],
    ids=["byte order mark", "latin-1", "Windows"],
)
def test_a_script_is_read_as_python_would_read_it(tmp_path: Path, source: bytes) -> None:
    (tmp_path / "train.py").write_bytes(source)
    plain = run_plainly(tmp_path, "train.py")
    assert plain.stdout.startswith("größe\n")
    assert run(tmp_path, "script", "train.py") == plain


def test_a_script_can_pickle_what_it_defines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import dataclasses, pickle, typing\n"
        "@dataclasses.dataclass\n"
        "class Point:\n"
        "    x: int\n"
        "    other: 'Point | None' = None\n"
        "print(pickle.loads(pickle.dumps(Point(3))), list(typing.get_type_hints(Point)))\n"
    )
    assert run(tmp_path, "script", "train.py") == Ended(0, "Point(x=3, other=None) ['x', 'other']\n", "", [])


@pytest.mark.parametrize("program", [("script", "train.py"), ("module", "train")], ids=" ".join)
def test_a_program_can_start_processes_of_its_own(tmp_path: Path, program: tuple[str, str]) -> None:
    (tmp_path / "double.py").write_text("def double(x): return 2 * x\n")
    (tmp_path / "train.py").write_text(
        "import multiprocessing\n"
        "from double import double\n"
        "def work(queue): queue.put((__name__, double(21)))\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    queue = context.SimpleQueue()\n"
        "    process = context.Process(target=work, args=(queue,))\n"
        "    process.start()\n"
        "    print(queue.get())\n"
        "    process.join()\n"
        "    print(process.exitcode)\n"
    )
    assert run(tmp_path, *program) == Ended(0, "('__mp_main__', 42)\n0\n", "", [])


def test_files_beside_a_script_that_are_named_like_ours_do_no_harm(tmp_path: Path) -> None:
    for name in ("socket", "gridflow", "json", "pickle", "processes", "traceback", "keras_multiworker", "signal"):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('this is {name}.py')\n")
    (tmp_path / "helper.py").write_text("number = 42\n")
    (tmp_path / "train.py").write_text("import helper\nprint(helper.number)\nraise ValueError('no data')\n")
    ended = run(tmp_path, "script", "train.py")
    assert (ended.returncode, ended.stdout, ended.reports) == (1, "42\n", error("ValueError: no data"))
    # Nor do they in the folder in which a module or a command works.
    assert run(tmp_path, "module", "helper") == Ended(0, "", "", [])


def test_the_runners_own_variables_and_descriptor_are_not_the_programs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, subprocess, sys\n"
        "print(sorted(name for name in os.environ if name.startswith('GRIDFLOW_R') or 'PARENT' in name))\n"
        "child = [sys.executable, '-c', 'import os; print(len(os.listdir(\"/proc/self/fd\")))']\n"
        "subprocess.run(child, close_fds=False)\n"
    )
    # standard input, output and error, and the folder that is being listed
    assert run(tmp_path, "script", "train.py").stdout == "[]\n4\n"


# Modules


def test_a_module_runs_as_python_would_run_it(folder: Path) -> None:
    arguments = ("package.mirror", "--epochs", "3")
    plain = run_plainly(folder, "-m", *arguments)
    assert plain.returncode == 0
    assert run(folder, "module", *arguments) == plain


def test_a_package_runs_by_its_main_module(folder: Path) -> None:
    (folder / "package" / "__main__.py").write_text(MIRROR)
    assert run(folder, "module", "package") == run_plainly(folder, "-m", "package")


def test_a_module_that_is_not_there_is_named(tmp_path: Path) -> None:
    ended = run(tmp_path, "module", "nowhere.train")
    assert ended.returncode == 1
    [report] = ended.reports
    assert "No module named 'nowhere'" in report["error"]
    assert "gridflow/task/program.py" not in ended.stderr


def test_an_exception_in_a_module_is_shown_from_its_first_line_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise ValueError('no data')\n")
    ended = run(tmp_path, "module", "train")
    assert ended.stderr == (
        "Traceback (most recent call last):\n"
        f'  File "{tmp_path}/train.py", line 1, in <module>\n'
        "    raise ValueError('no data')\n"
        "ValueError: no data\n"
    )
    assert (ended.returncode, ended.reports) == (1, error("ValueError: no data"))


# Commands


def make_executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_a_command_is_executed_as_it_is(tmp_path: Path) -> None:
    make_executable(
        tmp_path / "train.sh",
        '#!/bin/sh\necho "$@" in $(pwd) with $SEED; env | grep -c "GRIDFLOW_REPORT_FD\\|PARENT_PID"; exit 7\n',
    )
    ended = run(tmp_path, "command", "train.sh", "--epochs", "3 4", SEED="1")
    assert ended == Ended(7, f"--epochs 3 4 in {tmp_path} with 1\n0\n", "", [])


def test_a_command_that_cannot_be_executed_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("#!/bin/sh\n")
    ended = run(tmp_path, "command", "train.sh")
    message = f"PermissionError: [Errno 13] Permission denied: '{tmp_path}/train.sh'"
    assert (ended.returncode, ended.reports) == (1, error(message))


# Functions


def run_function(folder: Path, function: Callable[..., Any], *positional: Any, **named: Any) -> tuple[Ended, Any]:
    """Run a function through the runner; return how that ended and what it left in its result file."""
    call = cloudpickle.dumps((function, positional, named))
    (folder / "function.pickle").write_bytes(pickle.dumps({"path": [str(folder / "path"), *sys.path], "call": call}))
    ended = run(folder, "function", "function.pickle", "result.pickle")
    result = folder / "result.pickle"
    return ended, pickle.loads(result.read_bytes()) if result.exists() else None


def test_what_a_function_returns_is_kept(tmp_path: Path) -> None:
    def add(a: int, b: int, *, c: int) -> int:
        return a + b + c

    assert run_function(tmp_path, add, 1, 2, c=3) == (Ended(0, "", "", []), {"result": 6})


def test_a_function_finds_the_modules_of_whoever_launched_it(tmp_path: Path) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "only_here.py").write_text("number = 42\n")

    def look() -> int:
        import only_here  # type: ignore[import-not-found]

        return int(only_here.number)

    assert run_function(tmp_path, look)[1] == {"result": 42}


def test_what_a_function_raises_is_kept_shown_and_reported(tmp_path: Path) -> None:
    def fail() -> None:
        raise KeyError("no data")

    ended, outcome = run_function(tmp_path, fail)
    assert (ended.returncode, ended.reports) == (1, error("KeyError: 'no data'"))
    assert isinstance(outcome["error"], KeyError)
    assert outcome["error"].args == ("no data",)
    assert outcome["traceback"].endswith("KeyError: 'no data'\n")
    assert ended.stderr.startswith(f'Traceback (most recent call last):\n  File "{__file__}", line ')
    assert "gridflow/task/program.py" not in ended.stderr


def test_what_cannot_be_pickled_is_said(tmp_path: Path) -> None:
    def make() -> object:
        class Local:
            def __reduce__(self) -> Any:
                raise TypeError("this cannot be pickled")

        return Local()

    ended, outcome = run_function(tmp_path, make)
    assert ended == Ended(0, "", "", [])
    assert outcome == {"unpicklable": "this cannot be pickled", "traceback": None}


def test_an_exception_that_cannot_be_pickled_leaves_its_traceback(tmp_path: Path) -> None:
    def fail() -> None:
        import threading

        raise ValueError(threading.Lock())

    ended, outcome = run_function(tmp_path, fail)
    assert ended.returncode == 1
    assert "cannot pickle '_thread.lock' object" in outcome["unpicklable"]
    assert "ValueError: <unlocked _thread.lock object" in outcome["traceback"]


def test_a_function_that_leaves_by_an_exit_code_does_so(tmp_path: Path) -> None:
    def leave() -> None:
        sys.exit(5)

    ended, outcome = run_function(tmp_path, leave)
    assert (ended.returncode, ended.reports) == (5, error("exit code 5"))
    assert isinstance(outcome["error"], SystemExit)


def test_what_an_earlier_attempt_left_is_gone_before_the_next(tmp_path: Path) -> None:
    (tmp_path / "result.pickle").write_bytes(pickle.dumps({"result": "old"}))

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    ended, outcome = run_function(tmp_path, die)
    assert (ended.returncode, outcome) == (-signal.SIGKILL, None)


# How a program ends


@pytest.mark.parametrize(
    ("source", "reports"),
    [
        ("raise SystemExit", []),
        ("import sys; sys.exit(0)", []),
        ("import sys; sys.exit(3)", error("exit code 3")),
        ("import sys; sys.exit('no data in /data')", error("no data in /data")),
        ("import sys; sys.exit(['no', 'data'])", error("['no', 'data']")),
        ("import os; os._exit(4)", []),
        ("import os, signal; os.kill(os.getpid(), signal.SIGABRT)", []),
        ("import atexit; atexit.register(print, 'bye')", []),
        ("import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()", []),
    ],
)
def test_a_script_ends_as_it_would_without_us(tmp_path: Path, source: str, reports: list[dict[str, str]]) -> None:
    (tmp_path / "train.py").write_text(f"{source}\n")
    plain = run_plainly(tmp_path, "train.py")
    assert run(tmp_path, "script", "train.py") == replace(plain, reports=reports)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f():\n    raise ValueError('no data')\nf()", "ValueError: no data"),
        ("raise KeyError('x') from OSError('y')", "KeyError: 'x'"),
        ("def f(: pass", "invalid syntax"),
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        ("class MyError(Exception): pass\nraise MyError('größe\\nline 2')", "MyError: größe\nline 2"),
        ("raise ExceptionGroup('two', [ValueError(1), TypeError(2)])", "ExceptionGroup: two (2 sub-exceptions)"),
        ("import runpy; runpy.run_path('other.py')", "ZeroDivisionError: division by zero"),
        ("import sys; sys.excepthook = lambda *a: print('mine', a[1]); 1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_an_exception_is_shown_as_python_would_show_it_and_reported(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "other.py").write_text("1 / 0\n")
    (tmp_path / "train.py").write_text(f"{source}\n")
    plain = run_plainly(tmp_path, "train.py")
    ended = run(tmp_path, "script", "train.py")
    assert (ended.stdout, ended.stderr, ended.returncode) == (plain.stdout, plain.stderr, 1)
    [report] = ended.reports
    assert report["type"] == "error"
    assert message in report["error"]


def test_a_long_message_is_reported_by_its_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise ValueError('x' * 100_000 + 'the end')\n")
    [report] = run(tmp_path, "script", "train.py").reports
    assert report["error"].endswith("xthe end")
    assert len(report["error"]) == 4000


def test_a_missing_script_is_reported(tmp_path: Path) -> None:
    ended = run(tmp_path, "script", "train.py")
    [report] = ended.reports
    assert report["error"] == f"FileNotFoundError: [Errno 2] No such file or directory: '{tmp_path}/train.py'"
    assert ended.returncode == 1


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_an_exception_is_reported_while_the_program_is_still_tearing_down(tmp_path: Path, stack: ExitStack) -> None:
    (tmp_path / "train.py").write_text(
        "import atexit, os, time\n"
        "def tear_down():\n"
        "    while not os.path.exists('go'): time.sleep(0.01)\n"
        "atexit.register(tear_down)\n"
        "raise ValueError('no data')\n"
    )
    read, write = os.pipe()
    reports = stack.enter_context(os.fdopen(read, "rb"))
    process = stack.enter_context(
        subprocess.Popen(
            [*RUNNER, "script", "train.py"],
            cwd=tmp_path,
            env=environment({REPORT_FD: str(write), PARENT_PID: str(os.getpid())}),
            pass_fds=(write,),
            stderr=subprocess.PIPE,
        )
    )
    stack.callback(process.kill)
    os.close(write)
    assert select.select([reports], [], [], SECONDS)[0]
    assert [json.loads(reports.readline())] == error("ValueError: no data")
    assert process.poll() is None
    (tmp_path / "go").touch()
    assert process.wait(SECONDS) == 1


#: Stands in for the agent: starts a program, says its pid, and waits to be killed.
AGENT = """
import os, signal, sys
from gridflow.task.child import Child
child = Child([*sys.argv[1:]], dict(os.environ), 60.0)
print(child.pid, flush=True)
signal.pause()
"""


@pytest.mark.parametrize("kind", ["script", "command"])
def test_a_program_dies_with_its_agent(tmp_path: Path, stack: ExitStack, kind: str) -> None:
    make_executable(
        tmp_path / "train.py",
        f"#!{sys.executable}\nimport pathlib, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\npathlib.Path('up').touch()\nsignal.pause()\n",
    )
    agent = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-c", AGENT, *RUNNER, kind, "train.py"],
            cwd=tmp_path,
            env=environment({}),
            stdout=subprocess.PIPE,
            text=True,
        )
    )
    stack.callback(agent.kill)
    assert agent.stdout is not None
    program = psutil.Process(int(agent.stdout.readline()))
    wait_for(tmp_path / "up", program)
    agent.kill()
    agent.wait(SECONDS)
    _, alive = psutil.wait_procs([program], timeout=SECONDS)
    assert not alive


def wait_for(path: Path, program: psutil.Process) -> None:
    """Wait until a program has made a file."""
    while not path.exists():
        assert program.is_running()
        with pytest.raises(psutil.TimeoutExpired):
            program.wait(0.02)


def test_calls_below_the_runner_do_not_straddle_the_end_of_a_piece_of_stack(tmp_path: Path) -> None:
    # From some depth on, each of these would map a piece of Python's stack and give it back: a page fault each.
    (tmp_path / "deep.py").write_text(
        """
import resource

def call(depth):
    if depth:
        call(depth - 1)

def repeat(above):
    if above:
        return repeat(above - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(1000):
        call(3)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(max(repeat(above) for above in range(0, 400, 2)))
"""
    )
    assert int(run(tmp_path, "script", "deep.py").stdout) < 100
    assert int(run_plainly(tmp_path, "deep.py").stdout) >= 1000, "Python has become better: _with_room can go"
