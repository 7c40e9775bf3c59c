"""How Arrow types and features correspond; the table is in docs/tfrecord.md.

A column is decoded into one of few physical types, which the codec fills, and then cast to the type asked for, where
they differ. Encoding goes the other way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
from pyarrow import types

from gridflow.errors import SchemaError
from gridflow.tensors import is_list

RecordType = Literal["Example", "SequenceExample", "ByteArray"]
RECORD_TYPES = ("Example", "SequenceExample", "ByteArray")
BYTE_ARRAY = "byteArray"

_MIN, _MAX = -(2**63), 2**63 - 1
#: As many as a decimal of 128 bits has.
_DIGITS = 38
_PHYSICAL = {
    "int64": pa.int64(),
    "int32": pa.int32(),
    "uint8": pa.uint8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "null": pa.null(),
}
_REMEDIES = (
    (types.is_temporal, "cast it to int64 or string"),
    (types.is_struct, "make each of its fields a column"),
    (types.is_map, "make its keys and values two list columns"),
    (types.is_union, "make each of its kinds a column"),
)


@dataclass(frozen=True)
class Column:
    """A column as the codec knows it, and the type that its users see."""

    name: str
    physical: str
    depth: int
    fixed_size: int
    #: Integers must be within; of decimals, these are precision and scale.
    low: int
    high: int
    type: pa.DataType

    @property
    def codec_tuple(self) -> tuple[str, str, int, int, int, int]:
        """What the codec is told."""
        return self.name, self.physical, self.depth, self.fixed_size, self.low, self.high

    @property
    def codec_type(self) -> pa.DataType:
        """The type that the codec makes or takes."""
        type_ = pa.decimal128(self.low, self.high) if self.physical == "decimal" else _PHYSICAL[self.physical]
        for level in range(self.depth):
            is_fixed = self.fixed_size >= 0 and level == 0
            type_ = pa.list_(type_, self.fixed_size) if is_fixed else pa.list_(type_)
        return type_


def check_record_type(record_type: str) -> None:
    """Refuse an unknown record type."""
    if record_type not in RECORD_TYPES:
        raise SchemaError(f"record type {record_type!r} is unknown", hint=f"one of {', '.join(RECORD_TYPES)}")


def plan(schema: pa.Schema, record_type: RecordType, *, writing: bool) -> list[Column]:
    """Return how each column is decoded or encoded; refuse what records cannot hold."""
    check_record_type(record_type)
    if len(set(schema.names)) != len(schema.names):
        twice = next(name for name in schema.names if schema.names.count(name) > 1)
        raise SchemaError(f"column {twice!r} is there twice", hint="rename or drop one of them")
    if record_type == "ByteArray":
        return [_plan_byte_array(schema)]
    return [_plan(field, record_type, writing=writing) for field in schema]


def _plan_byte_array(schema: pa.Schema) -> Column:
    if len(schema) != 1 or not _is_bytes(schema.types[0]):
        raise SchemaError(
            f"records of type ByteArray are one column of bytes, not {', '.join(map(str, schema))}",
            hint=f"a single binary column, such as {BYTE_ARRAY!r}",
        )
    return Column(schema.names[0], "binary", 0, -1, _MIN, _MAX, schema.types[0])


def _is_bytes(type_: pa.DataType) -> bool:
    return bool(types.is_binary(type_) or types.is_large_binary(type_))


def _plan(field: pa.Field, record_type: RecordType, *, writing: bool) -> Column:
    element, depth, fixed_size = field.type, 0, -1
    while is_list(element):
        if types.is_fixed_size_list(element) and not writing:
            fixed_size = element.list_size
        element, depth = element.value_type, depth + 1
    if depth > 2 or (depth == 2 and record_type != "SequenceExample"):
        remedy = "flatten it" if depth > 2 else "use record type SequenceExample, or flatten it"
        raise SchemaError(f"column {field.name!r}: {record_type} cannot hold {field.type}", hint=remedy)
    physical, low, high = _plan_element(field, element, writing=writing)
    return Column(field.name, physical, depth, fixed_size if depth == 1 else -1, low, high, field.type)


def _plan_element(field: pa.Field, element: pa.DataType, *, writing: bool) -> tuple[str, int, int]:
    if types.is_dictionary(element):
        return _plan_element(field, element.value_type, writing=writing)
    if types.is_boolean(element):
        return ("int64", _MIN, _MAX) if writing else ("uint8", 0, 1)
    if types.is_integer(element):
        bits = element.bit_width - (0 if types.is_unsigned_integer(element) else 1)
        low = 0 if types.is_unsigned_integer(element) else -(2**bits)
        return "int64" if writing or element != pa.int32() else "int32", low, min(2**bits - 1, _MAX)
    if types.is_float16(element) or types.is_float32(element):
        return "float", _MIN, _MAX
    if types.is_float64(element):
        return "double", _MIN, _MAX
    if types.is_decimal(element):
        # The codec makes decimals of 128 bits; wider ones, which are rare, are made of those.
        return ("double", _MIN, _MAX) if writing else ("decimal", min(element.precision, _DIGITS), element.scale)
    if types.is_string(element) or types.is_large_string(element) or types.is_string_view(element):
        return "string", _MIN, _MAX
    if _is_bytes(element) or types.is_binary_view(element) or types.is_fixed_size_binary(element):
        return "binary", _MIN, _MAX
    if types.is_null(element):
        return "null", _MIN, _MAX
    remedy = next((text for is_it, text in _REMEDIES if is_it(element)), "cast it or drop it")
    raise SchemaError(f"column {field.name!r}: a TFRecord cannot hold {element}", hint=remedy)


def select(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return some of a schema's columns, in the order asked for."""
    if columns is None:
        return schema
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise SchemaError(f"there is no column {missing[0]!r}", hint=f"there are {', '.join(schema.names) or 'none'}")
    return pa.schema([schema.field(name) for name in columns])


@dataclass
class Seen:
    """What inference has seen of one name, over all files so far."""

    has_integers: bool = False
    has_floats: bool = False
    has_bytes: bool = False
    is_scalar: bool = True
    is_utf8: bool = True

    def add(self, found: dict[str, Any]) -> None:
        """Add what was seen in another file."""
        self.has_integers |= found["has_integers"]
        self.has_floats |= found["has_floats"]
        self.has_bytes |= found["has_bytes"]
        self.is_scalar &= found["is_scalar"]
        self.is_utf8 &= found["is_utf8"]

    @property
    def is_mixed(self) -> bool:
        """Whether no one type can hold it."""
        return self.has_bytes and (self.has_integers or self.has_floats)

    @property
    def element(self) -> pa.DataType:
        """The type that holds all values seen."""
        if self.has_bytes:
            return pa.string() if self.is_utf8 else pa.binary()
        if self.has_floats:
            return pa.float32()
        return pa.int64() if self.has_integers else pa.null()


def infer(features: dict[str, Seen], lists: dict[str, Seen], array_columns: Iterable[str]) -> pa.Schema:
    """Return the schema that follows from what was seen: columns sorted by the bytes of their names."""
    arrays = set(array_columns)
    unknown = arrays - features.keys()
    if unknown:
        raise SchemaError(f"array_columns names {min(unknown)!r}, which no record has")
    made = {name: pa.list_(pa.list_(seen.element)) for name, seen in lists.items()}
    for name, seen in features.items():
        is_array = name in arrays or not (seen.is_scalar or seen.element == pa.null())
        made[name] = pa.list_(seen.element) if is_array else seen.element
    return pa.schema([pa.field(name, made[name]) for name in sorted(made, key=str.encode)])
