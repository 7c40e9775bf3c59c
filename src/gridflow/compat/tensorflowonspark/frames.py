"""A DataFrame's rows as chunks of columns, which become Rows where the program takes them.

    DataFrame ─ mapInArrow ─▶ columns, pickled as arrays ─▶ blocks ══▶ task: Rows

Spark's JVM pickles rows value by value, at half the speed of Arrow where they hold arrays. What is pickled here is
unpickled as a list of Rows too, so that whoever takes a chunk need not know how it was made.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gridflow.compat.tensorflowonspark.chunks import CHUNK_BYTES, RowSource, level_blocks
from gridflow.feed.blocks import Block, even_batches
from gridflow.spark.feeding import Route, Source, send_frame
from gridflow.tensors import Array, is_list

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import DataType

#: The names of Spark's types whose values Arrow gives as Spark's pickles do; of bytes only if Spark is set so.
_PLAIN = {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string"}
_BINARY_AS_BYTES = "spark.sql.execution.pyspark.binaryAsBytes"


def source_of(frame: DataFrame) -> Source:
    """Return how a DataFrame's rows are sent as Python objects: by Arrow, where that makes the same of them."""
    plain = _PLAIN | {"binary"} if _has_bytes(frame.sparkSession) else _PLAIN
    is_plain = all(_element(field.dataType) in plain for field in frame.schema.fields)
    return FrameSource(frame) if is_plain else RowSource(frame.rdd)


def _has_bytes(spark: SparkSession) -> bool:
    """Tell whether Spark gives Python bytes, and not bytearrays as it did before 4.1."""
    from pyspark.errors import PySparkException

    try:
        return spark.conf.get(_BINARY_AS_BYTES) == "true"
    except PySparkException:
        return False


def _element(kind: DataType) -> str:
    from pyspark.sql.types import ArrayType

    return _element(kind.elementType) if isinstance(kind, ArrayType) else kind.simpleString()


@dataclass(frozen=True)
class FrameSource:
    """A DataFrame of plain columns whose rows are sent as Python objects."""

    frame: DataFrame

    def send_to(self, route: Route) -> Callable[[], list[Any]]:
        """Return the action of the Spark job that sends all rows."""
        return send_frame(self.frame, route, _blocks)


class StreamedRows:
    """A streaming DataFrame whose micro-batches are sent as Python objects; to the engine it looks like one."""

    isStreaming = True

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame

    @property
    def writeStream(self) -> StreamedRows:
        """Stand in for Spark's writer."""
        return self

    def foreachBatch(self, send: Callable[[Any, int], None]) -> Any:
        """Have each micro-batch sent by its rows."""
        return self._frame.writeStream.foreachBatch(lambda frame, number: send(source_of(frame), number))


def _blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[Block]:
    return level_blocks(column_chunks(batches))


def column_chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Put a partition's batches together and cut them into chunks."""
    for batch in even_batches(batches, CHUNK_BYTES):
        yield pickle.dumps(_Columns(batch), pickle.HIGHEST_PROTOCOL)


@dataclass(frozen=True)
class _Columns:
    """Arrow columns that are unpickled as a list of Rows."""

    batch: pa.RecordBatch

    def __reduce__(self) -> tuple[Callable[..., list[Row]], tuple[list[str], list[Any]]]:
        return rows_of, (self.batch.schema.names, [_portable(column) for column in self.batch.columns])


@dataclass(frozen=True)
class _Lists:
    """Lists as their values, one after another, and where each of them ends."""

    values: Any
    ends: Array


def _portable(column: pa.Array) -> Any:
    """Return what stands for a column in a pickle: arrays of numbers as they are, other values as objects.

    Nothing of Arrow's buffers that has no meaning comes along: the same rows give the same bytes.
    """
    if is_list(column.type) and not column.null_count:
        return _Lists(_portable(column.flatten()), np.cumsum(column.value_lengths().to_numpy(), dtype=np.int64))
    if pa.types.is_primitive(column.type) and not column.null_count:
        return np.array(column.to_numpy(zero_copy_only=False))
    return column.to_pylist()


def rows_of(names: list[str], columns: list[Any]) -> list[Row]:
    """Return the Rows of a chunk, as Spark would give them."""
    from pyspark.sql.types import _create_row

    return [_create_row(names, values) for values in zip(*map(_objects, columns), strict=True)]


def _objects(column: Any) -> list[Any]:
    if isinstance(column, _Lists):
        if isinstance(column.values, np.ndarray) and (length := _common_length(column.ends)):
            return _objects(column.values.reshape(-1, length))
        values = _objects(column.values)
        return [values[start:end] for start, end in pairwise([0, *column.ends.tolist()])]
    objects: list[Any] = column.tolist() if isinstance(column, np.ndarray) else column
    return objects


def _common_length(ends: Array) -> int:
    """Return the length of lists that all have the same; 0 of others."""
    return int(ends[0]) if len(ends) and (np.diff(ends) == ends[0]).all() else 0
