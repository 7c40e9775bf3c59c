"""Around an import: before it, after it, once, and with no trace left."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gridflow.task.importing import around_import, collecting_rarely


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path; what is imported from it is forgotten."""
    monkeypatch.syspath_prepend(str(tmp_path))
    finders, modules = list(sys.meta_path), set(sys.modules)
    yield tmp_path
    sys.meta_path[:] = finders
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_the_import_happens_inside_the_context_and_only_the_first(place: Path) -> None:
    (place / "heavy.py").write_text("import sys\nsys.happened.append('import')\n")
    happened: list[str] = []
    sys.happened = happened  # type: ignore[attr-defined]

    @contextmanager
    def context() -> Iterator[None]:
        happened.append("before")
        yield
        happened.append("after")

    finders = list(sys.meta_path)
    around_import("heavy", context)
    assert importlib.util.find_spec("heavy") is not None, "looking is not importing"
    module = importlib.import_module("heavy")
    assert happened == ["before", "import", "after"]
    assert sys.meta_path == finders
    assert type(module.__loader__) is type(importlib.import_module("pathlib").__loader__)
    importlib.reload(module)
    assert happened == ["before", "import", "after", "import"]
    del sys.happened  # type: ignore[attr-defined]


def test_an_import_that_fails_fails_as_it_would_have(place: Path) -> None:
    (place / "broken.py").write_text("raise OSError('no such library')\n")
    thresholds = gc.get_threshold()
    around_import("broken", collecting_rarely)
    with pytest.raises(OSError, match="no such library"):
        importlib.import_module("broken")
    assert gc.get_threshold() == thresholds


def test_a_module_that_is_missing_stays_missing(place: Path) -> None:
    around_import("nowhere", collecting_rarely)
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        importlib.import_module("nowhere")


def test_garbage_is_looked_for_less_often_only_during_the_import(place: Path) -> None:
    (place / "curious.py").write_text("import gc\nseen = gc.get_threshold()\n")
    thresholds = gc.get_threshold()
    around_import("curious", collecting_rarely)
    seen = importlib.import_module("curious").seen
    assert seen[0] > 10 * thresholds[0]
    assert seen[1:] == thresholds[1:]
    assert gc.get_threshold() == thresholds
