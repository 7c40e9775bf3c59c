"""One table of settings, read key by key.

A table comes from a job file, from flags or from Python keywords. Every key is taken with its type; a wrong value is
an error that names key, value and remedy, and a key that nobody took is an error that lists the valid ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gridflow.errors import SettingsError

_NOT_GIVEN = object()

# One megabyte is 1024 x 1024 bytes, however it is spelled: clusters round memory up anyway.
_MEMORY_UNITS_MB = {"MB": 1, "MIB": 1, "M": 1, "GB": 1024, "GIB": 1024, "G": 1024, "TB": 1024**2, "TIB": 1024**2}
_DURATION_UNITS_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_memory_mb(value: object, key: str) -> int:
    """Return megabytes for `4096`, `"512 MB"` or `"1.5 GB"`."""
    number, unit = _split_unit(value, default_unit="MB")
    factor = _MEMORY_UNITS_MB.get(unit.upper())
    if factor is None or not 1 <= number * factor < math.inf:
        raise SettingsError(f"{key} = {value!r} is not an amount of memory", hint='write "512 MB" or "4 GB"')
    return int(number * factor)


def parse_duration_seconds(value: object, key: str) -> float:
    """Return seconds for `90`, `"90s"`, `"10m"` or `"2h"`."""
    number, unit = _split_unit(value, default_unit="s")
    factor = _DURATION_UNITS_SECONDS.get(unit.lower())
    if factor is None or not 0 < number * factor < math.inf:
        raise SettingsError(f"{key} = {value!r} is not a duration", hint='write "90s", "10m" or "2h"')
    return number * factor


def _split_unit(value: object, default_unit: str) -> tuple[float, str]:
    """Split a number from its unit; what is neither a number nor has one is not a number."""
    # '1.5 GB' -> ('1.5', 'GB'); Python itself writes '1e-05'
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([A-Za-z]*)\s*", str(value))
    if match is None or isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return math.nan, ""
    return float(match[1]), match[2] or default_unit


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, with errors that name it."""
    # Late, since every task's agent loads this module and reads no such file.
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"{path} does not exist", hint="check the path of the job file") from None
    except (OSError, ValueError) as error:  # ValueError: neither UTF-8 nor TOML, or a number beyond Python's limits
        raise SettingsError(f"{path} cannot be read: {error}", hint="the job file must be valid TOML") from error


def _flattened(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


class Table:
    """One table, consumed key by key; `close()` complains about what is left."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._left = {key: value for key, value in values.items() if value is not None}
        self._valid: list[str] = []
        self.where = where

    def key(self, name: str) -> str:
        """Return the full name of a key, as messages show it."""
        return f"{self.where}.{name}"

    def _take(self, name: str, kind: type | tuple[type, ...], wanted: str, default: Any) -> Any:
        self._valid.append(name)
        value = self._left.pop(name, default)
        if value is default:
            return None if value is _NOT_GIVEN else value
        if not isinstance(value, kind) or (isinstance(value, bool) and kind not in (bool, (bool, str))):
            raise SettingsError(f"{self.key(name)} = {value!r} is not {wanted}", hint=f"give {wanted}")
        return value

    def text(self, name: str, default: str = "") -> str:
        """Take a string."""
        return str(self._take(name, str, "a string", default))

    def integer(self, name: str, default: int | None) -> int | None:
        """Take a whole number."""
        value = self._take(name, int, "a whole number", default)
        return None if value is None else int(value)

    def number(self, name: str, default: float | None) -> float | None:
        """Take a number."""
        value = self._take(name, (int, float), "a number", default)
        return None if value is None else float(value)

    def flag(self, name: str) -> bool:
        """Take true or false; on a command line they are words."""
        value = self._take(name, (bool, str), "true or false", False)
        if value not in (True, False, "true", "false"):
            raise SettingsError(f"{self.key(name)} = {value!r} is not true or false", hint="give true or false")
        return value in (True, "true")

    def memory_mb(self, name: str) -> int | None:
        """Take an amount of memory such as "4 GB", in megabytes."""
        value = self._take(name, object, "an amount of memory", _NOT_GIVEN)
        return None if value is None else parse_memory_mb(value, self.key(name))

    def seconds(self, name: str, default: float | None) -> float | None:
        """Take a duration such as "10m", in seconds."""
        value = self._take(name, object, "a duration", _NOT_GIVEN)
        return default if value is None else parse_duration_seconds(value, self.key(name))

    def strings(self, name: str) -> tuple[str, ...]:
        """Take a list of strings; numbers are fine, since command lines are full of them."""
        values = self._take(name, (list, tuple), "a list", ())
        for value in values:
            if isinstance(value, bool) or not isinstance(value, (str, int, float)):
                raise SettingsError(f"{self.key(name)} holds {value!r}", hint="give a list of strings or numbers")
        return tuple(str(value) for value in values)

    def mapping(self, name: str) -> dict[str, str]:
        """Take a table of strings."""
        values = self._take(name, Mapping, "a table", {})
        for key, value in values.items():
            if isinstance(value, bool) or not isinstance(value, (str, int, float)):
                raise SettingsError(f"{self.key(name)}.{key} = {value!r} is not a string", hint="put it in quotes")
        return {str(key): str(value) for key, value in values.items()}

    def prefixed(self, prefix: str) -> dict[str, str]:
        """Take whatever is named `prefix.…`, also where TOML has made tables of the dots."""
        self._valid.append(f"{prefix}.*")
        names = [name for name in self._left if name == prefix or name.startswith(f"{prefix}.")]
        found = dict(_flattened({name: self._left.pop(name) for name in names}))
        self._valid += found
        for name, value in found.items():
            if not isinstance(value, (str, int, float)):
                raise SettingsError(f"{self.key(name)} = {value!r} is not a string", hint="put it in quotes")
        return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in found.items()}

    def table(self, name: str) -> Table | None:
        """Take a table below this one, or None where it is not there."""
        values = self._take(name, Mapping, "a table", _NOT_GIVEN)
        return None if values is None else Table(values, self.key(name))

    def tables(self, name: str) -> list[Table]:
        """Take a list of tables, `[[name]]`."""
        values = self._take(name, (list, tuple), "a list of tables", ())
        for value in values:
            if not isinstance(value, Mapping):
                raise SettingsError(f"{self.key(name)} holds {value!r}", hint=f"write [[{name}]] above each table")
        return [Table(value, f"{self.key(name)}[{index}]") for index, value in enumerate(values)]

    def close(self) -> None:
        """Refuse the keys that nobody took."""
        if not self._left:
            return
        import difflib

        name = next(iter(self._left))
        close = difflib.get_close_matches(name, self._valid, n=1)
        guess = f"did you mean {close[0]!r}? " if close else ""
        valid = ", ".join(sorted(self._valid)) or "none"
        raise SettingsError(f"{self.key(name)} is not a known key", hint=f"{guess}valid keys: {valid}")
