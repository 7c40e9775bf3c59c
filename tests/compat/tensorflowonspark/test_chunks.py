"""RDDs become chunks, pickled once."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from gridflow.compat.tensorflowonspark.chunks import chunk_blocks, chunked, leveled, pickled, unpickled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What Spark collects from an RDD comes through a socket that it leaves to Python to close.
pytestmark = [
    pytest.mark.usefixtures("sockets_closed"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_rows_that_spark_holds_are_forwarded_as_they_are(spark: SparkSession) -> None:
    context = spark.sparkContext
    listed = [[float(number)] * 3 for number in range(100)]
    held = context.parallelize(listed, 4)
    cached = held.map(lambda row: row[:2]).cache()
    frame = spark.createDataFrame([(number, "x") for number in range(10)], "n int, s string")
    for rows in (held, cached, frame.rdd, context.union([held, held])):
        # Nothing of Python's stands between Spark and the chunks.
        assert chunked(rows)._jrdd is rows._jrdd
        assert chunked(rows).flatMap(unpickled).collect() == rows.collect()


def test_rows_that_python_computes_are_pickled_where_they_are(spark: SparkSession) -> None:
    rows = spark.sparkContext.parallelize(range(1000), 2).map(lambda number: (number, "x" * number))
    assert chunked(rows).flatMap(unpickled).collect() == rows.collect()
    assert 2 < chunked(rows).count() < 100


def test_lines_and_other_ways_of_holding_rows_are_read_first(spark: SparkSession, tmp_path: object) -> None:
    context = spark.sparkContext
    pairs = context.parallelize(range(3), 1).cartesian(context.parallelize("ab", 1))
    zipped = context.parallelize(range(3), 1).zip(context.parallelize("abc", 1))
    for rows in (pairs, zipped):
        assert chunked(rows).flatMap(unpickled).collect() == rows.collect()


def test_blocks_hold_whole_chunks() -> None:
    chunks = [bytes(900_000), bytes(900_000), bytes(900_000), bytes(5_000_000), b"x"]
    blocks = list(chunk_blocks(chunks))
    assert [(block.rows, block.cost) for block in blocks] == [(2, 1_800_000), (1, 900_000), (1, 5_000_000), (1, 1)]
    assert list(chunk_blocks([])) == []


def test_large_chunks_are_sent_as_they_are_and_small_ones_as_one_pickle() -> None:
    large, small = chunk_blocks([bytes(70_000), bytes(80_000), b"x", b"y"])
    assert large.encode(0, 2) == [bytes(70_000), bytes(80_000)]
    encoded = small.encode(0, 2)
    assert isinstance(encoded, bytes)
    assert pickle.loads(encoded) == [b"x", b"y"]


def test_first_blocks_are_small_so_that_slow_rows_are_not_waited_for() -> None:
    blocks = list(chunk_blocks([bytes(100)] * 100, first_bytes=200))
    assert [block.rows for block in blocks] == [2, 4, 8, 16, 32, 38]
    assert [len(unpickled(chunk)) for chunk in pickled(range(200))] == [16, 32, 64, 88]


def test_pickled_rows_come_back_in_order() -> None:
    rows = [{"n": number, "text": f"{number:04}" * 250} for number in range(1000)]
    chunks = list(pickled(rows))
    assert len(chunks) > 3
    assert [row for chunk in chunks for row in unpickled(chunk)] == rows


def test_small_chunks_are_cut_into_rows_and_kept_apart_from_large_ones() -> None:
    # As Spark pickles them: 1 row, then twice as many, until a chunk is large.
    sizes = [1, 2, 4, 8, 16, 32, 64, 64, 64, 3]
    rows = [f"{number:02000}" for number in range(sum(sizes))]
    chunks, start = [], 0
    for size in sizes:
        chunks.append(pickle.dumps(rows[start : start + size]))
        start += size
    cut = list(leveled(chunks))
    assert [len(unpickled(chunk)) for chunk in cut] == [1] * 63 + [64, 64, 64] + [1] * 3
    assert [row for chunk in cut for row in unpickled(chunk)] == rows
    assert [block.rows for block in chunk_blocks(cut)] == [63, 3, 3]
