"""Arrays of numbers on their way out of Spark, as bytes rather than value by value.

Spark writes the values of an array into Arrow one at a time. Packed in the JVM first, an array is copied as a whole,
and on this side its bytes are taken for what they are:

    array<float> ─ pack ─▶ binary ─ Spark's Arrow stream ─▶ binary ─ unpack ─▶ list<float>

`pack` needs Spark, `unpack` only Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from gridflow.errors import SchemaError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

#: The names of Spark's types that are packed, and Arrow's for the same.
_ELEMENTS = {
    "boolean": "bool",
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "bigint": "int64",
    "float": "float",
    "double": "double",
}
_VECTOR = "org.apache.spark.ml.linalg.VectorUDT"
_CATALOG = "gridflow"
_CATALOG_CLASS = "io.gridflow.spark.Functions"


def pack(df: DataFrame) -> tuple[DataFrame, dict[str, str]]:
    """Return the DataFrame with its arrays of numbers and its vectors as bytes, and what each of those is made of.

    A null array stays null. A null among the values fails the Spark task, with an error that names the column.
    """
    from pyspark.sql import functions

    found = {field.name: _element(field.dataType) for field in df.schema.fields}
    packed = {name: element for name, element in found.items() if element is not None}
    if not packed:
        return df, {}
    _add_functions(df.sparkSession)
    columns = {
        name: functions.call_function(f"{_CATALOG}.pack", df[_quoted(name)], functions.lit(name)) for name in packed
    }
    return df.withColumns(columns), packed


def unpack(batch: pa.RecordBatch, packed: Mapping[str, str]) -> pa.RecordBatch:
    """Return a batch whose packed columns are lists again; their values are not copied, but for booleans."""
    columns = [
        _lists(name, column, packed[name]) if name in packed else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _element(kind: DataType) -> str | None:
    """Return Arrow's name for the values of a type, or None if it is not packed."""
    from pyspark.sql.types import ArrayType, UserDefinedType

    if isinstance(kind, UserDefinedType):
        return "double" if kind.scalaUDT() == _VECTOR else None
    return _ELEMENTS.get(kind.elementType.simpleString()) if isinstance(kind, ArrayType) else None


def _quoted(name: str) -> str:
    return "`{}`".format(name.replace("`", "``"))


def _add_functions(spark: SparkSession) -> None:
    """Let the session call the jar's functions; doing so again changes nothing."""
    from gridflow.tfrecord.spark import adopt_jars, register

    register(spark)
    # This may be another thread than the one that registered it.
    adopt_jars(spark)
    setting = f"spark.sql.catalog.{_CATALOG}"
    present = spark.conf.get(setting, None)
    if present not in (None, _CATALOG_CLASS):
        raise UsageError(f"the session's catalog {_CATALOG!r} is {present}", hint=f"do not set {setting}")
    spark.conf.set(setting, _CATALOG_CLASS)


def _lists(name: str, column: pa.Array, element: str) -> pa.Array:
    """Take the bytes of a binary column for the values of lists."""
    import numpy as np

    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        raise SchemaError(f"column {name!r}: packed values are bytes, not {column.type}")
    values_type = pa.uint8() if element == "bool" else pa.type_for_alias(element)
    size = values_type.bit_width // 8
    is_large = pa.types.is_large_binary(column.type)
    validity, offsets, data = column.buffers()
    # A slice of a bitmap begins at a whole byte, so up to 7 rows before the column's first come along.
    skipped = column.offset % 8
    first = column.offset - skipped
    starts = np.frombuffer(offsets, np.int64 if is_large else np.int32)[first : column.offset + len(column) + 1]
    if (starts % size).any():
        raise SchemaError(f"column {name!r}: its bytes are not whole values of type {element}")
    starts = starts // size
    values = pa.Array.from_buffers(values_type, int(starts[-1]), [None, data])
    if element == "bool":
        values = values.cast(pa.bool_())
    return pa.Array.from_buffers(
        pa.large_list(values.type) if is_large else pa.list_(values.type),
        len(column),
        [validity and validity.slice(first // 8), pa.py_buffer(starts)],
        offset=skipped,
        children=[values],
    )
