"""What a file means, worked out from TensorFlow's own protobuf classes: slow, plain, and the judge of both codecs.

Types carry Spark's names (`bigint`, `array<float>`), since both codecs have to agree on them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any

KINDS = {"int64_list": "bigint", "float_list": "float", "bytes_list": "bytes"}
INTEGERS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}

Row = dict[str, Any]


class MisfitError(Exception):
    """A record that a schema cannot hold; `kind` is one of those listed in golden/README.md."""

    def __init__(self, kind: str, record: int | None, column: str) -> None:
        super().__init__(f"{kind}: record {record}, column {column!r}")
        self.kind, self.record, self.column = kind, record, column


def feature_values(feature: Any) -> tuple[str, list[Any]] | None:
    """Return a feature's kind and values, or None if it has no kind."""
    which = feature.WhichOneof("kind")
    return None if which is None else (KINDS[which], list(getattr(feature, which).value))


def features_of(message: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the features and the feature lists of an Example or a SequenceExample."""
    if hasattr(message, "features"):
        return message.features.feature, {}
    return message.context.feature, message.feature_lists.feature_list


def infer(messages: Iterable[Any]) -> list[tuple[str, str]]:
    """Infer the schema of some messages: columns sorted by name."""
    flat: dict[str, list[Any]] = {}
    nested: dict[str, list[Any]] = {}
    for message in messages:
        features, feature_lists = features_of(message)
        for name, feature in features.items():
            flat.setdefault(name, []).append(feature)
        for name, feature_list in feature_lists.items():
            nested.setdefault(name, []).extend(feature_list.feature)
    both = flat.keys() & nested.keys()
    if both:
        raise MisfitError("mixed", None, min(both))
    types = {name: f"array<array<{_element(name, seen)}>>" for name, seen in nested.items()}
    for name, seen in flat.items():
        element = _element(name, seen)
        is_scalar = all(len(found[1]) == 1 for feature in seen if (found := feature_values(feature)))
        types[name] = element if is_scalar or element == "void" else f"array<{element}>"
    return sorted(types.items(), key=lambda item: item[0].encode())


def _element(name: str, features: Sequence[Any]) -> str:
    kinds: dict[str, list[Any]] = {}
    for feature in features:
        found = feature_values(feature)
        if found and found[1]:
            kinds.setdefault(found[0], []).extend(found[1])
    if not kinds:
        return "void"
    if "bytes" in kinds:
        if len(kinds) > 1:
            raise MisfitError("mixed", None, name)
        return "string" if all(_is_utf8(value) for value in kinds["bytes"]) else "binary"
    return "float" if "float" in kinds else "bigint"


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def read(messages: Iterable[Any], schema: Sequence[tuple[str, str]]) -> list[Row]:
    """Decode messages into rows of a schema."""
    return [
        {name: _cell(message, number, name, kind) for name, kind in schema} for number, message in enumerate(messages)
    ]


def _cell(message: Any, record: int, name: str, kind: str) -> Any:
    features, feature_lists = features_of(message)
    if inner := _inside(kind, "array<array<"):
        if name not in feature_lists:
            return None
        return [_values(feature, record, name, inner) for feature in feature_lists[name].feature]
    if name not in features:
        return None
    inner = _inside(kind, "array<")
    values = _values(features[name], record, name, inner or kind)
    if inner or values is None:
        return values
    if kind == "void":
        return None
    if len(values) != 1:
        raise MisfitError("count", record, name)
    return values[0]


def _inside(kind: str, prefix: str) -> str:
    return kind.removeprefix(prefix).rstrip(">") if kind.startswith(prefix) else ""


def _values(feature: Any, record: int, name: str, element: str) -> list[Any] | None:
    found = feature_values(feature)
    if found is None:
        return None
    return [_value(value, found[0], record, name, element) for value in found[1]]


def _value(value: Any, kind: str, record: int, name: str, element: str) -> Any:
    if kind == "bytes" and element == "binary":
        return value
    if kind == "bytes" and element == "string":
        if not _is_utf8(value):
            raise MisfitError("utf8", record, name)
        return value.decode()
    if kind == "bigint" and element in INTEGERS:
        if not -(2 ** (INTEGERS[element] - 1)) <= value < 2 ** (INTEGERS[element] - 1):
            raise MisfitError("range", record, name)
        return value
    if kind == "bigint" and element == "boolean":
        if value not in (0, 1):
            raise MisfitError("range", record, name)
        return bool(value)
    if kind in ("bigint", "float") and (digits := re.fullmatch(r"decimal\((\d+),(\d+)\)", element)):
        made = _as_decimal(value, int(digits[1]), int(digits[2]))
        if made is None:
            raise MisfitError("range", record, name)
        return made
    if kind in ("bigint", "float") and element in ("float", "double"):
        return _as_float32(value) if element == "float" else float(value)
    raise MisfitError("kind", record, name)


def _as_decimal(value: float, precision: int, scale: int) -> str | None:
    """Return the text of a decimal; None where the value has more digits."""
    import numpy as np

    if not math.isfinite(value):
        return None
    is_short = isinstance(value, float) and abs(value) < 2**24
    exact = Decimal(str(np.float32(value))) if is_short else Decimal(value)
    with localcontext(prec=200):
        rounded = exact.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP) + 0  # which makes 0 of -0
    return f"{rounded:f}" if abs(rounded.scaleb(scale)) < 10**precision else None


def _as_float32(value: float) -> float:
    import numpy as np

    return float(np.float32(value))
