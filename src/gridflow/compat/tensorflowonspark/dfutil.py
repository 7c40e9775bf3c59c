"""DataFrames as TFRecord files and back, by the data source `tfrecord`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from gridflow.errors import SchemaError
from gridflow.tfrecord.spark import register, write_spark

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.types import DataType, StructType

#: Where DataFrames were loaded from.
loadedDF: WeakKeyDictionary[DataFrame, str] = WeakKeyDictionary()

#: Which list of a feature holds a column of a type.
_FLOATS = ("float", "double")
_INTEGERS = ("boolean", "tinyint", "smallint", "int", "bigint", "long")
_BYTES = ("binary", "string")
_LISTS = {
    **dict.fromkeys(_FLOATS, "float_list"),
    **dict.fromkeys(_INTEGERS, "int64_list"),
    **dict.fromkeys(_BYTES, "bytes_list"),
}


def isLoadedDF(df: DataFrame) -> bool:
    """Tell whether this very DataFrame came from `loadTFRecords`."""
    return df in loadedDF


def saveAsTFRecords(df: DataFrame, output_dir: str) -> None:
    """Write a DataFrame as TFRecord files into a folder that is not there yet."""
    write_spark(df, output_dir)


def loadTFRecords(sc: SparkContext, input_dir: str, binary_features: Collection[str] = ()) -> DataFrame:  # noqa: ARG001
    """Read TFRecord files; strings of bytes are text, except in the columns that `binary_features` names.

    Columns come in the order of their names. One that never has more than one value is no array.
    """
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructField, StructType

    spark = SparkSession.builder.getOrCreate()
    register(spark)
    found = spark.read.format("tfrecord").load(input_dir).schema
    fields = [
        StructField(field.name, _loaded_type(field.dataType, is_binary=field.name in binary_features))
        for field in sorted(found.fields, key=lambda field: field.name)
    ]
    df = spark.read.format("tfrecord").schema(StructType(fields)).load(input_dir)
    loadedDF[df] = input_dir
    return df


def _loaded_type(kind: DataType, *, is_binary: bool) -> DataType:
    from pyspark.sql.types import ArrayType, BinaryType, DoubleType, FloatType, StringType

    if isinstance(kind, ArrayType):
        return ArrayType(_loaded_type(kind.elementType, is_binary=is_binary))
    if isinstance(kind, FloatType):
        return DoubleType()
    if isinstance(kind, StringType | BinaryType):
        return BinaryType() if is_binary else StringType()
    return kind


def toTFExample(dtypes: Iterable[tuple[str, str]]) -> Callable[[Iterable[Row]], list[tuple[bytearray, None]]]:
    """Return the function that makes serialized Examples of a partition's rows, whose columns are of these types."""
    columns = list(dtypes)

    def to_examples(rows: Iterable[Row]) -> list[tuple[bytearray, None]]:
        import tensorflow as tf

        return [(bytearray(_example(tf, row, columns).SerializeToString()), None) for row in rows]

    return to_examples


def _example(tf: Any, row: Row, columns: Iterable[tuple[str, str]]) -> Any:
    example = tf.train.Example()
    for name, dtype in columns:
        element = dtype.removeprefix("array<").removesuffix(">")
        if element not in _LISTS:
            raise SchemaError(f"column {name!r}: an Example cannot hold {dtype}", hint="cast it or drop it")
        values = row[name] if dtype.startswith("array<") else [row[name]]
        if element in _BYTES:
            values = [value.encode() if isinstance(value, str) else bytes(value) for value in values]
        getattr(example.features.feature[name], _LISTS[element]).value.extend(values)
    return example


def infer_schema(example: Any, binary_features: Collection[str] = ()) -> StructType:
    """Return the columns that an Example has: arrays where there is more than one value."""
    from pyspark.sql.types import ArrayType, BinaryType, DoubleType, LongType, StringType, StructField, StructType

    kinds: Mapping[str, DataType] = {"int64_list": LongType(), "float_list": DoubleType(), "bytes_list": StringType()}

    def kind(name: str, feature: Any) -> DataType:
        if name in binary_features:
            return BinaryType()
        which, values = _values(feature)
        return ArrayType(kinds[which]) if len(values) > 1 else kinds[which]

    features = sorted(example.features.feature.items())
    return StructType([StructField(name, kind(name, feature), True) for name, feature in features])


def fromTFExample(iter: Iterable[Any], binary_features: Collection[str] = ()) -> list[Row]:  # noqa: A002 - its name
    """Return the rows of a partition of serialized Examples, each the first of a pair."""
    import tensorflow as tf
    from pyspark.sql import Row

    rows = []
    for record in iter:
        example = tf.train.Example.FromString(bytes(record[0]))
        features = sorted(example.features.feature.items())
        rows.append(Row(**{name: _value(feature, name in binary_features) for name, feature in features}))
    return rows


def _values(feature: Any) -> tuple[str, Any]:
    which = feature.WhichOneof("kind") or "bytes_list"
    return which, getattr(feature, which).value


def _value(feature: Any, is_binary: bool) -> Any:
    which, values = _values(feature)
    if which == "bytes_list":
        values = [bytearray(value) if is_binary else value.decode() for value in values]
    if len(values) > 1:
        return list(values)
    return values[0] if values else None
