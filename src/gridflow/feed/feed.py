"""A feed as a program sees it: a tf.data.Dataset, batches of arrays, or plain rows."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gridflow.errors import DeadlineError, RendezvousError, SchemaError, UsageError
from gridflow.feed.answers import Answers, Outputs
from gridflow.feed.batch import Batch, blank_rows, padded
from gridflow.feed.blocks import join
from gridflow.feed.inbox import Loan
from gridflow.feed.reading import Chunk, Reader, Remainder
from gridflow.feed.receiver import Receiver
from gridflow.feed.schema import FeedSchema
from gridflow.feed.variables import FEEDS
from gridflow.rendezvous.roster import Address
from gridflow.tensors import Layout

if TYPE_CHECKING:
    import tensorflow as tf

#: TensorFlow is handed about so many bytes at a time, which it cuts into batches itself: each time costs a millisecond.
_CHUNK_BYTES = 8 << 20


def open_feed(
    name: str,
    environ: Mapping[str, str],
    *,
    secret: bytes,
    task: str,
    attempt: int = 0,
    timeout_seconds: float = 600,
) -> Feed:
    """Open a feed of the run that this task belongs to; wait until the driver has opened it too.

    `attempt` says how often the tasks were started again; `timeout_seconds` is also how long to wait for the first row.
    """
    if FEEDS not in environ:
        raise UsageError(f"feed {name!r}: {FEEDS} is not set", hint="feeds come from Spark: run the program on it")
    receiver = Receiver(
        Address.parse(environ[FEEDS]),
        secret,
        feed=name,
        task=task,
        attempt=attempt,
        timeout_seconds=timeout_seconds,
    )
    return Feed(name, receiver, timeout_seconds)


class Feed:
    """Rows on their way from Spark into this task.

    One iteration is one epoch; beyond the last one an iteration ends at once. An iteration that is left early and begun
    again starts that epoch over if it has taken little, and goes on to the next one otherwise. A feed that is closed,
    as by the program's end, before it was read to its end is stopped for all.
    """

    def __init__(self, name: str, receiver: Receiver, timeout_seconds: float) -> None:
        self.name = name
        self._receiver = receiver
        self._inbox = receiver.inbox
        self._timeout_seconds = timeout_seconds
        self._reader = Reader(receiver.inbox, receiver.first_epoch, is_equal=receiver.is_equal)
        self._answers = Answers(receiver.inbox)
        atexit.register(self._close_at_exit)

    @property
    def epoch(self) -> int:
        """The epoch that is being read, or will be next, from 0."""
        return self._reader.epoch

    @property
    def is_ended(self) -> bool:
        """Whether all epochs were read, or the feed was stopped."""
        return self._reader.is_ended

    @property
    def is_stopped(self) -> bool:
        """Whether the feed was ended early."""
        with self._inbox.changed:
            return self._inbox.is_stopped

    @property
    def schema(self) -> pa.Schema | None:
        """The columns, None if rows are Python objects; known when the first rows are, so this waits for them."""
        return self._schema().columns

    def dataset(
        self,
        batch_size: int,
        *,
        remainder: Remainder = "drop",
        columns: Sequence[str] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        defaults: Mapping[str, Any] | None = None,
        ragged: Collection[str] = (),
        weights: str | None = None,
        prefetch: int = 0,
    ) -> tf.data.Dataset:
        """Return a tf.data.Dataset of batches, a dict of tensors by column name; `batch_size` rows for this worker.

        A remainder of rows at an epoch's end is dropped, padded by repeating its last row, or kept as a smaller batch.
        `weights` names a further column that is 0 for padded rows and 1 for all others.
        """
        self._refuse_inference("dataset")
        import tensorflow as tf

        layout = self._layout(columns, shapes, defaults, ragged)
        adds_weights = weights is not None

        def chunks() -> Iterator[tuple[Any, ...]]:
            chunk_rows = max(batch_size, self._chunk_rows())
            for chunk in self._reader.iterate(batch_size, remainder, max_rows=chunk_rows):
                parts = layout.flatten(self._batch(chunk, layout))
                yield (*parts, *([_weights(chunk)] if adds_weights else ()))

        def assemble(*parts: Any) -> dict[str, Any]:
            named = layout.assemble(*(parts[:-1] if adds_weights else parts))
            return {**named, weights: parts[-1]} if weights is not None else named

        signature = (*layout.signature(), *([tf.TensorSpec([None], tf.float32)] if adds_weights else ()))
        whole = tf.data.Dataset.from_generator(chunks, output_signature=signature).map(assemble)
        batches = whole.rebatch(batch_size, drop_remainder=remainder != "keep")
        options = tf.data.Options()
        # Each worker's rows are its own already, and nobody should take rows that the program does not ask for.
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        options.experimental_optimization.inject_prefetch = False
        batches = batches.with_options(options)
        return batches.prefetch(prefetch) if prefetch else batches

    def batches(
        self,
        batch_size: int,
        *,
        remainder: Remainder = "drop",
        columns: Sequence[str] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        defaults: Mapping[str, Any] | None = None,
        ragged: Collection[str] = (),
    ) -> Iterator[Batch]:
        """Yield batches of NumPy arrays by column name, of one epoch.

        Of an inference feed, yield all there are until the driver closes it; such a batch may be smaller, as it never
        crosses the border of what is answered together, and remainders do not matter.
        """
        make_layout = partial(self._layout, columns, shapes, defaults, ragged)
        if self.is_inference:
            for part in self._answers.iterate(batch_size):
                layout = make_layout()
                yield Batch(part.select(layout.schema.names), layout)
            return
        layout = make_layout()
        for chunk in self._reader.iterate(batch_size, remainder):
            yield Batch(self._batch(chunk, layout), layout, chunk.padded)

    @property
    def is_inference(self) -> bool:
        """Whether the rows want answers."""
        return bool(self._receiver.is_inference)

    def rows(self, count: int) -> Iterator[list[Any]]:
        """Yield lists of `count` rows, the last one of an epoch shorter, from a feed of Python objects."""
        if self.is_inference:
            yield from self._answers.iterate(count)
            return
        while rows := self.next_rows(count):
            yield rows

    def next_rows(self, count: int, *, least: int | None = None) -> list[Any]:
        """Return up to `count` rows: fewer at the end of an epoch, none behind it, and then those of the next epoch.

        With `least`, do not wait for more than so many.
        """
        self._refuse_inference("next_rows")
        if count < 1:
            raise UsageError(f"{count} rows cannot be taken")
        rows = self._reader.take(count, least)
        if rows and self._schema().columns is not None:
            raise SchemaError(f"feed {self.name!r} carries columns, not Python objects", hint="use batches()")
        return rows

    def put(self, outputs: Outputs) -> None:
        """Answer the rows of the batch that was taken last with any number of outputs.

        They are a dict of arrays or an Arrow batch or table; for rows that are Python objects, a list.
        """
        self._answers.put(outputs)

    def borrow(self) -> Loan | None:
        """Take a whole block of Python objects that wants an answer; None where there will be no more.

        Several may be taken before the first is answered.
        """
        return self._answers.borrow()

    def give_back(self, loan: Loan, outputs: list[Any]) -> None:
        """Answer a block that was borrowed."""
        self._answers.give_back(loan, outputs)

    def leave(self) -> None:
        """Want no more rows: what still comes is dropped, and the others read on; the last to leave ends the feed."""
        self._refuse_inference("leave")
        self._inbox.leave()

    def wait_for_end(self) -> None:
        """Wait until the driver has ended the feed, or somebody has stopped it."""
        with self._inbox.changed:
            self._inbox.wait(lambda: self._inbox.is_stopped or self._inbox.is_all_here)

    def stop(self) -> None:
        """End the feed for all: the driver stops sending."""
        with self._inbox.changing():
            self._inbox.is_stopped = True

    def close(self, *, has_failed: bool = False) -> None:
        """Leave the feed; one that was not read to its end is stopped for all, unless the program has failed."""
        atexit.unregister(self._close_at_exit)
        self._receiver.close(has_failed=has_failed)

    def _close_at_exit(self) -> None:
        # Python leaves the exception here that ended the program.
        self.close(has_failed=hasattr(sys, "last_value"))

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(has_failed=kind is not None)

    def _refuse_inference(self, method: str) -> None:
        if self.is_inference:
            raise UsageError(
                f"feed {self.name!r} wants answers, which {method}() cannot relate to rows",
                hint="use batches() or rows(), and put()",
            )

    def _schema(self) -> FeedSchema:
        inbox = self._inbox
        with inbox.changed:
            if not inbox.wait(
                lambda: inbox.schema is not None or inbox.is_beyond(inbox.known_epochs), self._timeout_seconds
            ):
                raise DeadlineError(f"feed {self.name!r}: no row came in {self._timeout_seconds:g} s")
            if inbox.schema is None:
                raise RendezvousError(f"feed {self.name!r} ended before its first row, so its columns are not known")
            return inbox.schema

    def _layout(
        self,
        columns: Sequence[str] | None,
        shapes: Mapping[str, Sequence[int]] | None,
        defaults: Mapping[str, Any] | None,
        ragged: Collection[str],
    ) -> Layout:
        schema = self._schema()
        if schema.columns is None:
            raise SchemaError(f"feed {self.name!r} carries Python objects, not columns", hint="use rows()")
        names = schema.columns.names if columns is None else list(columns)
        unknown = sorted(set(names) - set(schema.columns.names))
        if unknown:
            raise SchemaError(f"feed {self.name!r} has no column {unknown[0]!r}", hint=f"it has {schema.columns.names}")
        chosen = pa.schema([schema.columns.field(name) for name in names])
        return Layout(chosen, lengths=schema.lengths, shapes=shapes, defaults=defaults, ragged=ragged)

    def _batch(self, chunk: Chunk, layout: Layout) -> pa.RecordBatch:
        names = layout.schema.names
        parts = [part.select(names) for part in chunk.parts]
        if not chunk.padded:
            return join(parts)
        if not parts and chunk.last is not None:
            return padded(chunk.last.select(names), chunk.padded).slice(1)
        if not parts:
            return blank_rows(layout, chunk.padded)
        return padded(join(parts), chunk.padded)

    def _chunk_rows(self) -> int:
        """Judge by the rows that wait how many make a chunk."""
        return self._inbox.rows_of(_CHUNK_BYTES)


def _weights(chunk: Chunk) -> Any:
    import numpy as np

    weights = np.ones(chunk.rows + chunk.padded, np.float32)
    weights[chunk.rows :] = 0
    return weights
