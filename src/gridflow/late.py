"""Names of a package that are loaded when they are first used, so that importing the package stays light."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence


def names_of(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package whose names are at home in some of its modules."""

    def load(name: str) -> object:
        for home, names in homes.items():
            if name in names:
                return getattr(importlib.import_module(f"{package}.{home}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load
