"""Imports point down only, are light, and change nothing."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "gridflow"

#: Bottom first. A room (a module or package right under gridflow/) may import its own modules and the layers below it.
LAYERS = (
    "late",
    "errors",
    "tables processes state",
    "job",
    "gang settings store shipping",
    "tensors",
    "rendezvous gpu tfrecord",
    "feed",
    "task inference",
    "platforms",
    "run",
    "launcher",
    "spark",
    "gridflow",  # the public names, in gridflow/__init__.py
    "ui",
    "cli",
    "__main__",
    "compat",
)

#: Rooms that may import less than all below them.
ONLY = {
    "tensors": "errors",
    "feed": "errors tensors rendezvous",
    "tfrecord": "errors tensors",
    "rendezvous": "errors state job",
    "gpu": "late errors tables processes state job settings",
    "task": "errors processes state job gang store shipping rendezvous gpu feed tfrecord",
    # Of a task, a platform may know what is pure: how it is named, and what it would be told and execute.
    "platforms": "errors tables processes state job gang settings store shipping rendezvous gpu "
    "task.identity task.tf_config task.command task.paths task.htcondor_names",
}

FORBIDDEN = {"tensorflow", "pyspark"}
#: What these modules define derives from classes of Spark ML, so they load it; others import them when they need to.
OF_SPARK_ML = {
    "gridflow.compat.tensorflowonspark.pipeline",
    "gridflow.spark.estimator",
    "gridflow.spark.params",
}
CPU_SECONDS = 0.3


def test_import_direction_is_down_only() -> None:
    sources = {str(path.relative_to(SOURCE)): path.read_text() for path in SOURCE.rglob("*.py")}
    assert "errors.py" in sources
    assert violations(sources) == []


def test_import_direction_table_narrows_rooms_to_what_lies_below_them() -> None:
    layers = {room: layer for layer, rooms in enumerate(LAYERS) for room in rooms.split()}
    for room, allowed in ONLY.items():
        for target in allowed.split():
            assert layers[_room(target)] < layers[room], f"{room} may not import {target}"


@pytest.mark.parametrize(
    "statement",
    [
        "import gridflow.launcher",
        "import gridflow.launcher as start",
        "from gridflow import launcher",
        "from gridflow.launcher import launch",
        "from .. import launcher",
        "from ..launcher import launch",
        "def late():\n    from gridflow import launcher",
        "if TYPE_CHECKING:\n    pass\nelse:\n    from gridflow import launcher",
    ],
)
def test_import_direction_sees_every_form_of_import(statement: str) -> None:
    sources = {"task/agent.py": statement, "task/__init__.py": "", "launcher.py": "", "__init__.py": ""}
    [violation] = violations(sources)
    assert violation.startswith("task.agent imports launcher (line ")
    rooms = "errors processes state job gang store shipping rendezvous gpu feed tfrecord"
    assert violation.endswith(f"`task` may use {rooms} and itself")


@pytest.mark.parametrize(
    ("path", "statement"),
    [
        ("task/agent.py", "from gridflow.task.child import Child"),
        ("task/agent.py", "from . import child"),
        ("task/__init__.py", "from .child import Child"),
        ("task/agent.py", "if TYPE_CHECKING:\n    from gridflow.launcher import launch"),
        ("task/agent.py", "if typing.TYPE_CHECKING:\n    from gridflow.launcher import launch"),
        ("task/agent.py", "import tensorflow"),
        ("platforms/local.py", "from gridflow.task import tf_config"),
        ("cli/main.py", "from gridflow import __version__"),
    ],
)
def test_import_direction_allows_what_lies_below(path: str, statement: str) -> None:
    tree = ["__init__.py", "launcher.py", "task/__init__.py", "task/child.py", "task/tf_config.py"]
    assert violations({**dict.fromkeys(tree, ""), path: statement}) == []


@pytest.mark.parametrize(
    ("path", "statement", "target"),
    [
        ("platforms/local.py", "from gridflow.task import child", "task.child"),
        ("platforms/local.py", "from gridflow import task", "task"),
        ("feed/rows.py", "from gridflow.job import Job", "job"),
        ("store.py", "from gridflow import settings", "settings"),
        ("job.py", "from gridflow import __version__", "gridflow"),
    ],
)
def test_import_direction_refuses_what_lies_above_or_beside(path: str, statement: str, target: str) -> None:
    tree = ["__init__.py", "job.py", "settings.py", "task/__init__.py", "task/child.py"]
    [violation] = violations({**dict.fromkeys(tree, ""), path: statement})
    assert f" imports {target} (line 1)" in violation


def test_import_direction_asks_for_the_layer_of_a_new_room() -> None:
    assert violations({"novel/rows.py": "", "job.py": "import gridflow.novel.rows"}) == [
        "job imports novel.rows (line 1), but `job` may use late errors tables processes state and itself",
        "novel.rows belongs to no layer: add `novel` to LAYERS in tests/test_imports.py, "
        "above all that it imports and below all that import it",
    ]


@pytest.mark.parametrize("arguments", [("-c", "import gridflow"), ("-m", "gridflow", "--help")], ids=" ".join)
def test_start_is_light(arguments: tuple[str, ...]) -> None:
    # import time:       103 |       1203 |   gridflow.errors
    lines = _python("-X", "importtime", *arguments).stderr.splitlines()
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines if line.startswith("import time:")}
    assert "gridflow" in loaded
    assert not loaded & FORBIDDEN
    assert min(_cpu_seconds(*arguments) for _ in range(3)) < CPU_SECONDS


def test_importing_any_module_changes_nothing() -> None:
    # A `__main__` is a program rather than a module.
    paths = [path.relative_to(SOURCE.parent) for path in SOURCE.rglob("*.py") if path.name != "__main__.py"]
    modules = sorted(".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths)
    light = [name for name in modules if name not in OF_SPARK_ML]
    assert _python("-c", _REPORT_OF_CHANGES, *light).stdout.splitlines() == []
    assert set(modules) >= OF_SPARK_ML
    [handlers, packages] = _python("-c", _REPORT_OF_CHANGES, *sorted(OF_SPARK_ML)).stdout.splitlines()
    # Packages that Spark loads give their own loggers handlers that do nothing.
    assert handlers.startswith("handlers: ")
    assert "gridflow" not in handlers
    assert packages == "heavy packages: set() -> {'pyspark'}"


#: Prints what is different after the imports, one line each.
_REPORT_OF_CHANGES = """
import importlib, logging, os, signal, sys, threading

def state():
    loggers = {"root": logging.root, **logging.root.manager.loggerDict}
    return {
        "handlers": {name: logger.handlers for name, logger in loggers.items() if getattr(logger, "handlers", None)},
        "level": logging.root.level,
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "threads": threading.enumerate(),
        "environment": dict(os.environ),
        "working folder": os.getcwd(),
        "search path": list(sys.path),
        "finders": list(sys.meta_path),
        "excepthooks": (sys.excepthook, threading.excepthook),
        "heavy packages": {"tensorflow", "pyspark"} & set(sys.modules),
    }

before = state()
for name in sys.argv[1:]:
    importlib.import_module(name)
for what, value in state().items():
    if value != before[what]:
        print(f"{what}: {before[what]} -> {value}")
"""


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    return result


def _cpu_seconds(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _python(*arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def violations(sources: Mapping[str, str]) -> list[str]:
    """Return a sentence for each module without a layer and for each import that does not point down.

    `sources` maps paths below src/gridflow to their text. Modules are named as seen from there; the package itself,
    with its public names, is `gridflow`.
    """
    modules = {_module(path) for path in sources}
    found = []
    for path, source in sorted(sources.items()):
        module = _module(path)
        room = _room(module)
        allowed = _allowed(room)
        if allowed is None:
            found.append(
                f"{module} belongs to no layer: add `{room}` to LAYERS in tests/test_imports.py, "
                "above all that it imports and below all that import it"
            )
            continue
        found.extend(
            f"{module} imports {target} (line {line}), but `{room}` may use {' '.join([*allowed, 'and itself'])}"
            for target, line in _imports(ast.parse(source), path, modules)
            if _room(target) != room and not any(f"{target}.".startswith(f"{each}.") for each in allowed)
        )
    return found


def _module(path: str) -> str:
    """Turn `task/agent.py` into `task.agent`, and `task/__init__.py` into `task`."""
    return path.removesuffix(".py").replace("/", ".").removesuffix("__init__").removesuffix(".") or "gridflow"


def _room(module: str) -> str:
    return module.partition(".")[0]


def _allowed(room: str) -> list[str] | None:
    """Return what a room may import, or None if it has no place yet."""
    below: list[str] = []
    for layer in LAYERS:
        if room in layer.split():
            return ONLY[room].split() if room in ONLY else below
        below += layer.split()
    return None


def _imports(tree: ast.AST, path: str, modules: set[str]) -> Iterator[tuple[str, int]]:
    """Yield the modules of Gridflow that a file imports, late imports included, with their lines."""
    folders = ["gridflow", *path.split("/")[:-1]]
    for node in _run_time_nodes(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # One dot is the file's own folder, each further dot the one above.
            origin = folders[: len(folders) + 1 - node.level] if node.level else []
            base = [*origin, node.module] if node.module else origin
            names = [".".join([*base, alias.name]) for alias in node.names]
        else:
            continue
        for name in names:
            if name == "gridflow" or name.startswith("gridflow."):
                yield _known_module(name.removeprefix("gridflow."), modules), node.lineno


def _known_module(name: str, modules: set[str]) -> str:
    """Return the module of `task.agent.Agent`: the longest part of the name that is one."""
    while name not in modules and "." in name:
        name = name.rpartition(".")[0]
    return name if name in modules else "gridflow"


def _run_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree, leaving out what only type checkers see."""
    yield node
    children = ast.iter_child_nodes(node)
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        children = iter(node.orelse)
    for child in children:
        yield from _run_time_nodes(child)
