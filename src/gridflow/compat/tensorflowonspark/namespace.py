"""Arguments as attributes. A module of its own, so that tasks which are given some need not load Spark ML."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any


class Namespace:
    """The entries of a dict, of parsed arguments or of another namespace as attributes; a list is kept as `argv`."""

    argv: list[Any] | None = None

    def __init__(self, d: Any) -> None:
        if isinstance(d, list):
            self.argv = d
        elif isinstance(d, dict):
            vars(self).update(d)
        elif isinstance(d, argparse.Namespace | Namespace):
            vars(self).update(vars(d))
        else:
            raise TypeError(f"Unsupported Namespace args: {d}")

    def __iter__(self) -> Iterator[Any]:
        return iter(self.argv or list(vars(self)))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __repr__(self) -> str:
        if self.argv:
            return str(self.argv)
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in sorted(vars(self).items()))})"

    def __eq__(self, other: object) -> bool:
        if self.argv:
            return self.argv == other
        return isinstance(other, Namespace | argparse.Namespace) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]
