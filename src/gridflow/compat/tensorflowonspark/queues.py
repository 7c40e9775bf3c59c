"""A node's queues inside the task that runs it: what `ctx.mgr` is.

input    rows of Spark: one feed of the run after another, as the driver opens them
output   answers to those rows, one for each
others   plain queues within the process
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from gridflow.compat.tensorflowonspark.chunks import unpickled
from gridflow.feed.feed import Feed
from gridflow.feed.inbox import Loan

#: So many chunks are taken at a time, if they are there.
_CHUNKS = 16
OUTPUT = "output"
ERROR = "error"
STATE = "state"
TERMINATING = "terminating"


def feed_name(queue_name: str, number: int) -> str:
    """Return the name of a queue's feed: training and inference take turns, and each turn has a feed of its own."""
    return queue_name if not number else f"{queue_name}-{number}"


@dataclass
class _Borrowed:
    """A block that wants answers, and those it has."""

    loan: Loan
    feed: Feed
    rows: int
    outputs: list[Any] = field(default_factory=list)


class InputQueue:
    """The rows of one queue, and the answers to them; one thread may take rows while another answers."""

    def __init__(self, name: str, open_feed: Callable[[str], Feed]) -> None:
        self._name = name
        self._open_feed = open_feed
        self._number = -1
        self._feed: Feed | None = None
        self._chunks: deque[bytes | pa.Buffer] = deque()
        self._rows: list[Any] = []
        self._position = 0
        self._taking = threading.Lock()
        self._answering = threading.Lock()
        self._borrowed: deque[_Borrowed] = deque()
        self.is_ended = False

    def take(self, count: int) -> list[Any]:
        """Return the next rows: fewer where a block ends that wants answers, or at the end of all."""
        taken: list[Any] = []
        with self._taking:
            while len(taken) < count and (self._position < len(self._rows) or self._fill(is_begun=bool(taken))):
                end = self._position + count - len(taken)
                taken += self._rows[self._position : end]
                self._position = min(end, len(self._rows))
        return taken

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: ARG002 - as `queue.Queue` has it
        """Return one row; None at the end."""
        rows = self.take(1)
        return rows[0] if rows else None

    def task_done(self) -> None:
        """Do nothing: a row counts as done when it was taken."""

    def answer(self, outputs: Sequence[Any]) -> None:
        """Answer the rows that have no answers yet, in their order; rows for training want none."""
        waiting = list(outputs)
        with self._answering:
            while waiting and self._borrowed:
                first = self._borrowed[0]
                missing = first.rows - len(first.outputs)
                first.outputs += waiting[:missing]
                del waiting[:missing]
                if len(first.outputs) == first.rows:
                    self._borrowed.popleft()
                    first.feed.give_back(first.loan, first.outputs)

    def terminate(self) -> None:
        """Want no more rows; others go on to get theirs."""
        with self._taking:
            self._chunks.clear()
            self._hold([])
            if self.is_ended:
                return
            feed = self._feed or self._open_next()
            if feed.is_inference:
                feed.stop()
            else:
                feed.leave()
            self.is_ended = True

    def linger(self) -> None:
        """Stay until the driver ends the feed, if it was opened: what still comes must have somebody to drop it."""
        feed = self._feed
        if feed is None or feed.is_inference:
            return
        self.terminate()
        feed.wait_for_end()
        feed.close()

    def _hold(self, rows: list[Any]) -> None:
        self._rows, self._position = rows, 0

    def _fill(self, *, is_begun: bool) -> bool:
        """Fetch some rows; False at the end of all, and where a batch has begun that rows which want answers end."""
        self._hold([])
        while not self._rows and not self.is_ended:
            feed = self._feed or self._open_next()
            if is_begun and feed.is_inference:
                return False
            rows = self._borrow(feed) if feed.is_inference else self._next_chunk(feed)
            if rows is not None:
                self._hold(rows)
            elif feed.is_inference or feed.is_ended:
                self._go_on(feed)
        return bool(self._rows)

    def _next_chunk(self, feed: Feed) -> list[Any] | None:
        """Unpickle one chunk only: the memory of the rows before it is still in the processor's cache."""
        if not self._chunks:
            self._chunks += feed.next_rows(_CHUNKS, least=1)
        return unpickled(self._chunks.popleft()) if self._chunks else None

    def _borrow(self, feed: Feed) -> list[Any] | None:
        loan = feed.borrow()
        if loan is None:
            return None
        rows = [row for chunk in loan.items for row in unpickled(chunk)]
        with self._answering:
            self._borrowed.append(_Borrowed(loan, feed, len(rows)))
        return rows

    def _open_next(self) -> Feed:
        self._number += 1
        self._feed = self._open_feed(feed_name(self._name, self._number))
        return self._feed

    def _go_on(self, feed: Feed) -> None:
        """Leave a feed that has ended. The last of all is one for training that has no epoch."""
        self.is_ended = feed.is_stopped or (feed.epoch == 0 and not feed.is_inference)
        feed.close()
        self._feed = None


class OutputQueue:
    """Where answers are put, one by one."""

    def __init__(self, answer: Callable[[Sequence[Any]], None]) -> None:
        self._answer = answer

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:  # noqa: ARG002 - as above
        """Give one answer."""
        self._answer([item])


class Value:
    """A value of a manager; like a proxy, it shows the value's representation."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __str__(self) -> str:
        return repr(self._value)

    def _getvalue(self) -> Any:
        return self._value


class FeedManager:
    """The queues and values of a node, as TensorFlowOnSpark's manager offers them."""

    def __init__(
        self, queues: Sequence[str], open_feed: Callable[[str], Feed], on_terminate: Callable[[], None]
    ) -> None:
        self._on_terminate = on_terminate
        self._values: dict[str, Any] = {STATE: "running"}
        self._inputs = {name: InputQueue(name, open_feed) for name in queues if name not in (OUTPUT, ERROR)}
        self._others: dict[str, Any] = {
            name: queue.Queue() if name == ERROR else OutputQueue(self.answer) for name in queues
        }

    def get_queue(self, name: str) -> Any:
        """Return a queue; None where there is none of that name."""
        return self._inputs.get(name) or self._others.get(name)

    def get(self, key: str) -> Value:
        """Return a value."""
        return Value(self._values[key])

    def set(self, key: str, value: Any) -> None:
        """Keep a value."""
        self._values[key] = value
        if (key, value) == (STATE, TERMINATING):
            self._on_terminate()

    def answer(self, outputs: Sequence[Any]) -> None:
        """Answer rows, of whichever queue they came."""
        for each in self._inputs.values():
            each.answer(outputs)

    def linger(self) -> None:
        """Stay until the driver has ended all feeds that were opened."""
        for each in self._inputs.values():
            each.linger()
