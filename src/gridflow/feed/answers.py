"""Blocks that want answers: what a program takes of them and what it puts for them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from gridflow.errors import SchemaError, UsageError
from gridflow.feed.blocks import cut, decode
from gridflow.feed.inbox import Inbox, Loan

Outputs: TypeAlias = Mapping[str, Any] | pa.RecordBatch | pa.Table | Sequence[Any]


class Answers:
    """Lends a program one block after another, and collects what it puts for each."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._outputs: list[Outputs] | None = None

    def iterate(self, count: int) -> Iterator[Any]:
        """Yield up to `count` rows at a time, never of two blocks, until the driver closes the feed."""
        if count < 1:
            raise UsageError(f"batch_size={count} is not positive")
        while (loan := self._next()) is not None:
            try:
                content = decode(loan.content, self._inbox.known_schema)
                self._outputs = []
                for start in range(0, loan.rows, count):
                    with self._inbox.changing():
                        self._inbox.check()
                        self._inbox.progress.batches += 1
                    yield cut(content, start, count)
                answer = encode_answer(self._outputs, is_rows=isinstance(content, list))
            except BaseException:
                # Left in the middle: another consumer may have it.
                with self._inbox.changing():
                    loan.is_abandoned = True
                raise
            finally:
                self._outputs = None
            with self._inbox.changing():
                loan.answer = answer

    def borrow(self) -> Loan | None:
        """Take the next block as a whole; None once the driver has closed the feed."""
        loan = self._next()
        if loan is not None:
            loan.items = decode(loan.content, self._inbox.known_schema)
        return loan

    def give_back(self, loan: Loan, outputs: list[Any]) -> None:
        """Answer a block that was borrowed."""
        with self._inbox.changing():
            self._inbox.progress.batches += 1
            loan.answer = encode_answer([outputs], is_rows=True)

    def put(self, outputs: Outputs) -> None:
        """Add to the answer to the block that is with the program."""
        if self._outputs is None:
            raise UsageError("put() answers rows, and none were taken", hint="call it for each batch of batches()")
        self._outputs.append(outputs)

    def _next(self) -> Loan | None:
        inbox = self._inbox
        with inbox.changing():
            inbox.wait(lambda: bool(inbox.loans and inbox.schema) or inbox.is_stopped or inbox.epochs is not None)
            if inbox.is_stopped or not (inbox.loans and inbox.schema):
                inbox.progress.epochs_read = inbox.epochs or 0
                return None
            return inbox.loans.popleft()


def encode_answer(outputs: Sequence[Outputs], *, is_rows: bool) -> bytes | memoryview:
    """Write down all outputs for a block."""
    if is_rows:
        flat: list[Any] = []
        for each in outputs:
            if not isinstance(each, list):
                raise SchemaError(f"rows that are Python objects are answered with lists, not {type(each).__name__}")
            flat += each
        return pickle.dumps(flat, pickle.HIGHEST_PROTOCOL)
    batches = [batch for each in outputs for batch in _batches(each)]
    # What has no rows may have no types either.
    batches = [batch for batch in batches if batch.num_rows] or batches[:1]
    if not batches:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            if batch.schema != batches[0].schema:
                raise SchemaError(f"outputs differ in their columns: {batches[0].schema} and {batch.schema}")
            writer.write_batch(batch)
    return memoryview(sink.getvalue())


def decode_answer(content: pa.Buffer) -> list[pa.RecordBatch]:
    """Read the batches of an answer."""
    return list(pa.ipc.open_stream(content)) if content.size else []


def _batches(outputs: Outputs) -> list[pa.RecordBatch]:
    if isinstance(outputs, pa.Table):
        return list(outputs.to_batches())
    if isinstance(outputs, pa.RecordBatch):
        return [outputs]
    if not isinstance(outputs, Mapping):
        raise SchemaError(f"columns are answered with a dict of arrays or an Arrow batch, not {type(outputs).__name__}")
    return [pa.RecordBatch.from_arrays([_column(value) for value in outputs.values()], names=list(outputs))]


def _column(value: Any) -> pa.Array:
    """Make a column of an array, a tensor or a list; further dimensions become lists of a fixed size."""
    import numpy as np

    if isinstance(value, pa.ChunkedArray):
        return value.combine_chunks()
    if isinstance(value, pa.Array | list):
        return pa.array(value)
    if hasattr(value, "to_list"):
        return pa.array(value.to_list())  # a RaggedTensor
    array = np.asarray(value)
    column = pa.array(np.ascontiguousarray(array).reshape(-1))
    for size in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column
