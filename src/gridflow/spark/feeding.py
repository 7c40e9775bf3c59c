"""The Spark jobs that carry rows to a run's tasks, and their answers back.

    DataFrame ─ pack arrays ─ mapInArrow ─▶ feed.sender.send ══▶ tasks            (training)
    RDD ─ mapPartitions ─ rows to Arrow ─▶
    DataFrame ─ mapInArrow ─▶ feed.exchange.exchange ══▶ tasks ══▶ DataFrame      (inference)

What is here is pickled and runs in Spark's tasks; `cluster` starts the jobs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from gridflow.errors import SchemaError
from gridflow.feed.blocks import Block, arrow_blocks
from gridflow.feed.exchange import exchange
from gridflow.feed.sender import Origin, send
from gridflow.feed.state import Epoch
from gridflow.rendezvous.roster import Address
from gridflow.spark.packing import unpack

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame

#: What a Spark task that sends rows returns of them.
SENT_SCHEMA = "partition long, rows long, was_stopped boolean"
_SENT = pa.schema([("partition", pa.int64()), ("rows", pa.int64()), ("was_stopped", pa.bool_())])
_ROWS_PER_BATCH = 4096
MakeBlocks: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[Block]]


@dataclass(frozen=True)
class Route:
    """What a Spark task needs to know to send its rows; `repr` shows no secret."""

    coordinator: Address
    secret: bytes
    epoch: Epoch
    #: The element types of columns that were packed in the JVM.
    packed: Mapping[str, str]
    #: Added to the numbers of partitions, so that those of several jobs differ.
    first_partition: int = 0

    def __repr__(self) -> str:
        return f"Route({self.epoch})"

    def origin(self, partition: int) -> Origin:
        """Return where a partition's rows are sent from."""
        return Origin(self.coordinator, self.secret, self.epoch, self.first_partition + partition)

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Give packed columns their own types again."""
        return unpack(batch, self.packed) if self.packed else batch

    def blocks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Block]:
        """Make blocks of a partition's batches, as Spark gives them."""
        return arrow_blocks(batches, self.convert)

    def send(self, blocks: Iterator[Block], partition: int) -> dict[str, Any]:
        """Send a partition's rows; return what became of them."""
        origin = self.origin(partition)
        sent = send(blocks, origin)
        return {"partition": origin.partition, "rows": sent.rows, "was_stopped": sent.was_stopped}


@runtime_checkable
class Source(Protocol):
    """Rows that know themselves how they are sent."""

    def send_to(self, route: Route) -> Callable[[], list[Any]]:
        """Return the action of a Spark job that sends all rows; it gives what `Route.send` does for each partition."""


def send_frame(frame: DataFrame, route: Route, make_blocks: MakeBlocks | None = None) -> Callable[[], list[Any]]:
    """Return the action that sends a DataFrame's rows, in blocks of one's own making if so wanted."""
    make_blocks = make_blocks or route.blocks

    def send_partition(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([route.send(make_blocks(batches), _partition())], _SENT)

    return frame.mapInArrow(send_partition, SENT_SCHEMA).collect


def send_rdd(rows: RDD[Any], route: Route) -> Callable[[], list[Any]]:
    """Return the action that sends an RDD's rows."""

    def send_partition(partition: int, rows: Iterable[Any]) -> Iterator[dict[str, Any]]:
        yield route.send(route.blocks(arrow_batches(rows)), partition)

    return rows.mapPartitionsWithIndex(send_partition).collect


def exchange_frame(frame: DataFrame, route: Route, schema: str) -> DataFrame:
    """Return the answers to a DataFrame's rows, partition by partition in their order."""

    def exchange_partition(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        yield from exchange(batches, route.origin(_partition()), convert=route.convert)

    return frame.mapInArrow(exchange_partition, schema)


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise SchemaError("rows can only be sent from a Spark task", hint="call cluster.train or cluster.inference")
    return context.partitionId()


def arrow_batches(rows: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Turn Python rows into Arrow: Rows and dicts by their names, tuples and lists as `_1`, `_2`, …, others `value`."""
    remaining = iter(rows)
    while chunk := list(itertools.islice(remaining, _ROWS_PER_BATCH)):
        columns = _columns(chunk)
        yield pa.RecordBatch.from_arrays([_array(name, values) for name, values in columns.items()], list(columns))


def _columns(rows: Sequence[Any]) -> dict[str, Sequence[Any]]:
    first = rows[0]
    if isinstance(first, Mapping):
        return {name: [row[name] for row in rows] for name in first}
    if isinstance(first, tuple | list):
        names = getattr(first, "__fields__", None) or [f"_{number}" for number in range(1, len(first) + 1)]
        return dict(zip(names, zip(*rows, strict=True), strict=True))
    return {"value": rows}


def _array(name: str, values: Sequence[Any]) -> pa.Array:
    import numpy as np

    first = values[0]
    try:
        if isinstance(first, np.ndarray) and all(value.shape == first.shape for value in values):
            whole = np.stack(values)
            return pa.FixedSizeListArray.from_arrays(pa.array(whole.reshape(-1)), first.size)
        return pa.array([value.toArray() for value in values] if hasattr(first, "toArray") else values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, AttributeError) as error:
        raise SchemaError(
            f"column {name!r} of an RDD cannot be fed: {error}", hint="feed numbers, strings, bytes, or lists of these"
        ) from error
