"""What a sender makes of the rows that it is given: blocks of about one size, which can be cut.

The same rows give the same blocks, so that a partition can be sent again.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import accumulate, chain
from typing import Any, Literal, Protocol, TypeAlias

import pyarrow as pa
from pyarrow import types

from gridflow.errors import SchemaError
from gridflow.feed.schema import FeedSchema
from gridflow.rendezvous.links import Bytes, Link
from gridflow.rendezvous.messages import Message

BLOCK_BYTES = 2 << 20
Form: TypeAlias = Literal["arrow", "rows"]
#: Rows written down, or a list of rows that are bytes anyway.
Encoded: TypeAlias = Bytes | list[bytes]
Convert: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]

_MAX_BLOCK_ROWS = 1 << 20
#: How long memory is kept for the next slice. Ten seconds without any are the end of a pass.
_KEEP_MILLISECONDS = 10_000


class Block(Protocol):
    """Some rows of a partition, one after another."""

    @property
    def rows(self) -> int: ...  # noqa: D102

    @property
    def cost(self) -> int:
        """About how many bytes the rows take."""

    def schema(self) -> FeedSchema:
        """Describe the rows."""

    def digest(self) -> int:
        """Return a number that other rows, or the same in another order, hardly have too."""

    def encode(self, start: int, rows: int) -> Encoded:
        """Write down some of the rows."""

    def columns(self) -> pa.Schema | None:
        """Return the rows' columns, if they have any."""


class ArrowBlock:
    """Rows in Arrow columns."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self.rows = batch.num_rows
        self.cost = max(batch.nbytes, 1)

    def schema(self) -> FeedSchema:
        """Describe the rows by their columns."""
        return FeedSchema.of(self._batch)

    def digest(self) -> int:
        """Judge by a few rows, as values: the bytes of a column may differ where they mean nothing."""
        return _digest(self._batch.slice(at, 1).to_pylist() for at in _samples(self.rows))

    def columns(self) -> pa.Schema | None:
        """Return the rows' columns."""
        return self._batch.schema

    def encode(self, start: int, rows: int) -> Bytes:
        """Write down some of the rows as an Arrow message, without its schema."""
        return memoryview(self._batch.slice(start, rows).serialize())


class RowsBlock:
    """Rows that are Python objects."""

    def __init__(self, rows: list[Any], cost: int) -> None:
        self._rows = rows
        self.rows = len(rows)
        self.cost = max(cost, 1)

    def schema(self) -> FeedSchema:
        """Say that the rows have no columns."""
        return FeedSchema(None)

    def digest(self) -> int:
        """Judge by a few rows."""
        return _digest(self._rows[at] for at in _samples(self.rows))

    def columns(self) -> pa.Schema | None:
        """Say that the rows have no columns."""
        return None

    def encode(self, start: int, rows: int) -> Bytes:
        """Pickle some of the rows."""
        return pickle.dumps(self._rows[start : start + rows], pickle.HIGHEST_PROTOCOL)


class BytesBlock:
    """Rows that are large pieces of bytes, which are sent as they are: nobody copies them to write them down."""

    def __init__(self, rows: list[bytes]) -> None:
        self._rows = rows
        self.rows = len(rows)
        self.cost = max(sum(map(len, rows)), 1)

    def schema(self) -> FeedSchema:
        """Say that the rows have no columns."""
        return FeedSchema(None)

    def digest(self) -> int:
        """Judge by a few rows."""
        digest = 0
        for at in _samples(self.rows):
            digest = zlib.crc32(self._rows[at], digest)
        return digest

    def columns(self) -> pa.Schema | None:
        """Say that the rows have no columns."""
        return None

    def encode(self, start: int, rows: int) -> Encoded:
        """Give some of the rows."""
        return self._rows[start : start + rows]


def _samples(rows: int) -> tuple[int, ...]:
    return 0, rows // 2, rows - 1


def _digest(values: Iterable[Any]) -> int:
    digest = 0
    for value in values:
        digest = zlib.crc32(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), digest)
    return digest


def arrow_blocks(
    batches: Iterable[pa.RecordBatch], convert: Convert | None = None, *, block_bytes: int = BLOCK_BYTES
) -> Iterator[ArrowBlock]:
    """Make blocks of batches, whatever the size of those."""
    return map(ArrowBlock, even_batches(map(convert, batches) if convert else batches, block_bytes))


def even_batches(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Join small batches and cut large ones, so that each has about so many bytes."""
    waiting: list[pa.RecordBatch] = []
    rows = cost = 0
    for given in batches:
        batch = _plain(given)
        if not batch.num_rows:
            continue
        if waiting and waiting[0].schema != batch.schema:
            raise SchemaError(f"the columns change within a partition: {waiting[0].schema} and {batch.schema}")
        waiting.append(batch)
        rows, cost = rows + batch.num_rows, cost + batch.nbytes
        if cost >= size or rows >= _MAX_BLOCK_ROWS:
            yield from _cut(_joined(waiting), size)
            waiting, rows, cost = [], 0, 0
    if waiting:
        yield from _cut(_joined(waiting), size)


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Write dictionaries out, since a slice is sent without any."""
    if not any(types.is_dictionary(column.type) for column in batch.schema):
        return batch.replace_schema_metadata(None)
    columns = [each.dictionary_decode() if types.is_dictionary(each.type) else each for each in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _cut(batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    parts = max(1, min(batch.num_rows, round(batch.nbytes / size)))
    rows = -(-batch.num_rows // parts)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def cut(content: Any, start: int, rows: int) -> Any:
    """Take some rows out of a batch or a list."""
    return content[start : start + rows] if isinstance(content, list) else content.slice(start, rows)


def join(parts: list[Any]) -> Any:
    """Make one batch or list of several, at least one."""
    if len(parts) == 1:
        return parts[0]
    return list(chain.from_iterable(parts)) if isinstance(parts[0], list) else pa.concat_batches(parts)


def decode_rows(content: Bytes) -> list[Any]:
    """Unpickle rows, which must have come over a link whose other side knows the run's secret."""
    rows: list[Any] = pickle.loads(content)  # noqa: S301
    return rows


def send_rows(link: Link, head: Message, content: Encoded) -> None:
    """Send a message, and after it some rows of a block."""
    if isinstance(content, list):
        sizes = [len(row) for row in content]
        link.send({**head, "size": sum(sizes), "row_sizes": sizes}, *content)
    else:
        link.send({**head, "size": len(content)}, content)


@cache
def _lasting_memory() -> pa.MemoryPool:
    """Return a pool that keeps for a while what is freed: new pages cost more than what is copied into them."""
    if "jemalloc" not in pa.supported_memory_backends():
        return pa.default_memory_pool()
    pa.jemalloc_set_decay_ms(_KEEP_MILLISECONDS)
    return pa.jemalloc_memory_pool()


def receive_content(link: Link, head: Message) -> pa.Buffer:
    """Receive the bytes that follow a message which tells their `size`."""
    content = pa.allocate_buffer(head["size"], memory_pool=_lasting_memory())
    if head["size"]:
        link.receive_bulk(memoryview(content))
    return content


def receive_rows(link: Link, head: Message) -> pa.Buffer | list[pa.Buffer]:
    """Receive what `send_rows` sent, after its message; rows that are bytes are not copied any more."""
    content, sizes = receive_content(link, head), head.get("row_sizes")
    if sizes is None:
        return content
    return [content.slice(end - size, size) for end, size in zip(accumulate(sizes), sizes, strict=True)]


def decode(content: pa.Buffer | list[pa.Buffer], schema: FeedSchema) -> Any:
    """Read the rows of a slice; Arrow columns, and rows that are bytes, lie where the slice does."""
    if isinstance(content, list):
        return content
    if schema.columns is None:
        return decode_rows(memoryview(content))
    return pa.ipc.read_record_batch(content, schema.columns)
