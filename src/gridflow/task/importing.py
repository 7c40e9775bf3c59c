"""Does something around the program's import of a module: before it, after it, or both."""

from __future__ import annotations

import contextlib
import gc
import importlib.abc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: How many new objects Python waits for before it looks for garbage, instead of 700.
_MANY_OBJECTS = 50_000


def around_import(module: str, context: Callable[[], AbstractContextManager[None]]) -> None:
    """Have the first import of `module` happen inside `context()`."""
    sys.meta_path.insert(0, _Finder(module, context))


@contextlib.contextmanager
def collecting_rarely() -> Iterator[None]:
    """Look for garbage seldom: an import makes hardly any, but half a million objects, looked through again and again.

    TensorFlow's import takes a seventh less of the processor this way.
    """
    before = gc.get_threshold()
    gc.set_threshold(_MANY_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for the import of one module, and is gone when that begins."""

    def __init__(self, module: str, context: Callable[[], AbstractContextManager[None]]) -> None:
        self.module = module
        self.context = context

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.module:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, self)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """Loads a module with the loader that would have loaded it anyway, and leaves no trace in it."""

    def __init__(self, original: importlib.abc.Loader, finder: _Finder) -> None:
        self.original = original
        self.finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self.original
        module.__loader__ = self.original
        # Found only once: a finder that only looked (importlib.util.find_spec) must not use this one up.
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self.finder)
        with self.finder.context():
            self.original.exec_module(module)

    def __getattr__(self, name: str) -> Any:
        # pkgutil and importlib.resources ask the loader of a spec for get_data, get_filename, ...
        return getattr(self.original, name)
