"""DataFrames become chunks of columns, and these the Rows that Spark itself would give."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from gridflow.compat.tensorflowonspark.chunks import CHUNK_BYTES, RowSource, unpickled
from gridflow.compat.tensorflowonspark.frames import FrameSource, column_chunks, source_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, Row, SparkSession

#: What Spark collects from an RDD comes through a socket that it leaves to Python to close.
pytestmark = [
    pytest.mark.usefixtures("sockets_closed"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def rows_by_chunks(frame: DataFrame) -> list[Row]:
    """Carry a DataFrame's rows through chunks made in Spark's tasks."""

    def chunk(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"chunk": pa.array(list(column_chunks(batches)), pa.binary())})

    return [row for each in frame.mapInArrow(chunk, "chunk binary").collect() for row in unpickled(bytes(each[0]))]


def shown(rows: list[Row]) -> list[Any]:
    """Return rows with the types of all that is in them; a NaN is not equal to itself, but its text is."""
    return [(row.__fields__, repr(row), [type(value) for value in row]) for row in rows]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("boolean", [True, False, None]),
        ("tinyint", [-128, 127, None]),
        ("smallint", [-(2**15), None]),
        ("int", [2**31 - 1, None]),
        ("bigint", [-(2**63), None]),
        ("float", [0.1, float("nan"), float("-inf"), None]),
        ("double", [0.1, 1e300, None]),
        ("string", ["", "zwölf", None]),
        ("binary", [b"\x00\xff", b"", None]),
        ("array<float>", [[0.5, 0.1], [], None, [None, 1.0]]),
        ("array<double>", [[0.5, 0.1], [1.0, 2.0], [3.0, 4.0]]),
        ("array<int>", [[1], [2, 3, 4], [5, 6]]),
        ("array<bigint>", [[], []]),
        ("array<boolean>", [[True], [False] * 9]),
        ("array<string>", [["a", None], []]),
        ("array<binary>", [[b"x"], None]),
        ("array<array<int>>", [[[1], [], [2, 3]], [], None, [None]]),
    ],
)
def test_rows_are_what_spark_itself_makes_of_them(spark: SparkSession, kind: str, values: list[Any]) -> None:
    for some in (values, [value for value in values if value is not None]):
        frame = spark.createDataFrame([(value, 7) for value in some], f"a {kind}, `b c` int").coalesce(1)
        assert isinstance(source_of(frame), FrameSource)
        assert shown(rows_by_chunks(frame)) == shown(frame.rdd.collect())


@pytest.mark.parametrize("kind", ["date", "timestamp", "decimal(9,2)", "struct<x: int>", "map<string, int>", "void"])
def test_columns_that_arrow_gives_otherwise_are_left_to_spark(spark: SparkSession, kind: str) -> None:
    for each in (kind, f"array<{kind}>"):
        assert isinstance(source_of(spark.createDataFrame([], f"a int, b {each}")), RowSource)


def test_bytes_are_left_to_spark_where_it_makes_bytearrays_of_them(spark: SparkSession) -> None:
    setting = "spark.sql.execution.pyspark.binaryAsBytes"
    frame = spark.createDataFrame([(b"x",)], "a binary")
    spark.conf.set(setting, "false")
    try:
        assert isinstance(source_of(frame), RowSource)
    finally:
        spark.conf.unset(setting)


def test_chunks_are_of_one_size_whatever_the_batches_are() -> None:
    narrow = [pa.record_batch({"n": range(start, start + 1000)}) for start in range(0, 100_000, 1000)]
    for batches in (narrow, [pa.Table.from_batches(narrow).combine_chunks().to_batches()[0]]):
        chunks = list(column_chunks(batches))
        assert all(CHUNK_BYTES // 2 < len(chunk) < 2 * CHUNK_BYTES for chunk in chunks[:-1])
        assert [row.n for chunk in chunks for row in unpickled(chunk)] == list(range(100_000))
    assert list(column_chunks([])) == []


def test_same_rows_give_the_same_bytes() -> None:
    """A partition that is sent again is recognised by them."""
    values = pa.array([[1, None], None, [3]] * 100)
    again = pa.array([[9], [1, None], None, [3]] * 100).filter(pa.array([False, True, True, True] * 100))
    # A null's place in a buffer may hold anything.
    holes = pa.Array.from_buffers(pa.int64(), 300, [pa.py_buffer(b"\x00" * 38), pa.py_buffer(bytes(range(240)) * 10)])
    for first, second in ((values, again), (pa.nulls(300, pa.int64()), holes)):
        one, other = (list(column_chunks([pa.record_batch({"a": column})])) for column in (first, second))
        assert one == other
        assert pickle.loads(one[0])[1] == pickle.loads(other[0])[1]
