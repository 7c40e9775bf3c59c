"""Rows on their way from Spark as chunks: lists of rows that were pickled once.

    cached RDD, DataFrame.rdd ─ as the JVM pickles them ─▶ chunks ─▶ blocks ══▶ task: unpickled there
    rows that Python computes ─ pickled, many a time ────▶
    DataFrame ─ Arrow columns (frames.py) ───────────────▶

A Spark task that forwards a chunk need not look into it, which is most of the work of feeding.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gridflow.feed.blocks import BLOCK_BYTES, Block, BytesBlock, RowsBlock
from gridflow.feed.exchange import exchange_rows
from gridflow.spark.feeding import Route

if TYPE_CHECKING:
    from pyspark import RDD

#: Small, so that several tasks get about equally many rows.
CHUNK_BYTES = 1 << 17
#: Chunks of at least this size are forwarded as they are; smaller ones are cut into rows, see `leveled`.
_WHOLE_BYTES = 1 << 16
#: What is sent first, so that slow rows do not keep the tasks waiting.
_FIRST_ROWS = 16
_FIRST_BYTES = 1 << 8


@dataclass(frozen=True)
class RowSource:
    """An RDD whose rows are sent as Python objects."""

    rows: RDD[Any]

    def send_to(self, route: Route) -> Callable[[], list[Any]]:
        """Return the action of the Spark job that sends all rows."""

        def send_partition(partition: int, chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
            yield route.send(level_blocks(chunks), partition)

        return chunked(self.rows).mapPartitionsWithIndex(send_partition).collect


def answered(rows: RDD[Any], route: Route, timeout_seconds: float) -> RDD[Any]:
    """Return what the tasks answer to an RDD's rows, partition by partition in their order."""

    def exchange_partition(partition: int, chunks: Iterable[bytes]) -> Iterator[Any]:
        return exchange_rows(chunk_blocks(chunks), route.origin(partition), timeout_seconds=timeout_seconds)

    return chunked(rows).mapPartitionsWithIndex(exchange_partition)


def chunked(rows: RDD[Any]) -> RDD[bytes]:
    """Return an RDD's rows as chunks: those that Spark holds, or else new ones."""
    from pyspark import RDD
    from pyspark.serializers import NoOpSerializer

    if _is_pickled(rows):
        return RDD(rows._jrdd, rows.ctx, NoOpSerializer())
    return rows.mapPartitions(pickled)


def _is_pickled(rows: RDD[Any]) -> bool:
    """Tell whether Spark holds an RDD as pickled lists; one that Python has yet to compute is better pickled there."""
    from pyspark.core.rdd import PipelinedRDD
    from pyspark.serializers import AutoBatchedSerializer, BatchedSerializer, CPickleSerializer

    if isinstance(rows, PipelinedRDD) and rows._is_pipelinable():
        return False
    serializer = rows._jrdd_deserializer
    # Serializers that derive from these put the rows together in other ways.
    is_batched = type(serializer) in (AutoBatchedSerializer, BatchedSerializer)
    return is_batched and type(serializer.serializer) is CPickleSerializer  # type: ignore[attr-defined]


def pickled(rows: Iterable[Any]) -> Iterator[bytes]:
    """Pickle a partition's rows: few at first, since they may come slowly, then as many as a chunk holds."""
    source, count = iter(rows), _FIRST_ROWS
    while part := list(islice(source, count)):
        chunk = pickle.dumps(part, pickle.HIGHEST_PROTOCOL)
        yield chunk
        if len(chunk) < CHUNK_BYTES:
            count *= 2
        elif len(chunk) > 2 * CHUNK_BYTES:
            count = max(1, count // 2)


def leveled(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Cut small chunks into rows, so that tasks which get equally many chunks get about equally many rows.

    Spark pickles 1 row, then 2, 4, and so on, until a chunk is large; from then on they are alike.
    """
    for chunk in chunks:
        if len(chunk) >= _WHOLE_BYTES:
            yield chunk
        else:
            yield from (pickle.dumps([row], pickle.HIGHEST_PROTOCOL) for row in unpickled(chunk))


def unpickled(chunk: bytes | pa.Buffer) -> list[Any]:
    """Return a chunk's rows; it must have come over a link whose other side knows the run's secret."""
    # As Spark does it: what Java has pickled may hold strings of bytes.
    rows: list[Any] = pickle.loads(chunk, encoding="bytes")  # noqa: S301
    return rows


def level_blocks(chunks: Iterable[bytes]) -> Iterator[Block]:
    """Put chunks together into blocks that tasks can share evenly; the first are small."""
    return chunk_blocks(leveled(chunks), first_bytes=_FIRST_BYTES)


def chunk_blocks(chunks: Iterable[bytes], *, first_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """Put chunks together into blocks; the first has about `first_bytes`, and each may be twice the one before it.

    Tasks share a block, so small chunks and large ones do not come together.
    """
    waiting: list[bytes] = []
    size, limit = 0, first_bytes
    for chunk in chunks:
        is_other = waiting and (len(chunk) < _WHOLE_BYTES) != (len(waiting[0]) < _WHOLE_BYTES)
        if waiting and (is_other or size + len(chunk) > limit):
            yield _block(waiting, size)
            waiting, size, limit = [], 0, min(2 * limit, BLOCK_BYTES)
        waiting.append(chunk)
        size += len(chunk)
    if waiting:
        yield _block(waiting, size)


def _block(chunks: list[bytes], size: int) -> Block:
    """Make a block of chunks; many small ones travel better as one pickle."""
    return BytesBlock(chunks) if len(chunks[0]) >= _WHOLE_BYTES else RowsBlock(chunks, size)
