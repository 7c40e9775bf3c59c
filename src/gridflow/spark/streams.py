"""A streaming DataFrame on its way into a feed: a Spark job sends each micro-batch, and all of them are one epoch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from gridflow.errors import TaskFailedError, UsageError
from gridflow.feed.coordinator import Coordinator
from gridflow.feed.state import Epoch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

#: Sends rows as part of an epoch, whose partitions are counted from a number; None where it was interrupted.
Send: TypeAlias = "Callable[[DataFrame, Epoch, int], list[int] | None]"

#: Micro-batches number their partitions from a multiple of this.
_PARTITIONS_PER_BATCH = 1_000_000


class Stream:
    """A streaming query whose micro-batches are one epoch."""

    def __init__(self, coordinator: Coordinator, feed: str, send: Send) -> None:
        self._coordinator = coordinator
        self._feed = feed
        self._send_part = send
        self._epoch: Epoch | None = None
        self._partitions: list[int] = []
        self._is_over = False
        #: Held while a micro-batch is sent.
        self._sending = threading.Lock()

    def start(self, data: DataFrame) -> StreamingQuery:
        """Start the query."""
        self._query: StreamingQuery = data.writeStream.foreachBatch(self._send).start()
        return self._query

    def _send(self, frame: DataFrame, batch: int) -> None:
        """Send one micro-batch; once nobody wants its rows they go nowhere, and the query is about to be stopped."""
        with self._sending:
            if self._is_over:
                return
            epoch = self._coordinator.begin_epoch(self._feed)
            if epoch is None:
                raise UsageError(
                    f"feed {self._feed!r} has had all its epochs", hint="give the stream a feed of its own"
                )
            if self._epoch is not None and epoch != self._epoch:
                raise self._restarted()
            self._epoch = epoch
            sent = self._send_part(frame, epoch, batch * _PARTITIONS_PER_BATCH)
            if sent is not None:
                self._partitions += sent
            elif not self._coordinator.is_stopped(self._feed):
                raise self._restarted()

    def _restarted(self) -> TaskFailedError:
        return TaskFailedError(
            f"feed {self._feed!r}: the tasks were started again, and a stream's rows cannot be sent a second time",
            hint="start the stream anew, or without max_restarts",
        )

    def tend(self) -> None:
        """Stop the query if its readers have ended the feed."""
        if not self._is_over and self._coordinator.is_stopped(self._feed):
            self.stop()

    def stop(self) -> None:
        """Stop the query, which ends when its present micro-batch does."""
        self._is_over = True
        with suppress(Exception):  # a query that failed has said so already
            self._query.stop()

    def end(self) -> None:
        """Stop the query after its present micro-batch, and end the epoch."""
        with self._sending:
            self._is_over = True
        self.stop()
        if self._epoch is None:
            return
        try:
            is_whole = self._coordinator.end_epoch(self._epoch, self._partitions)
        except TaskFailedError:
            return  # the end of the run says more
        if not is_whole and not self._coordinator.is_stopped(self._feed):
            raise self._restarted()
