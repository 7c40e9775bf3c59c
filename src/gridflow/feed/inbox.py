"""What has reached a consumer and waits to be read: filled by the receiver's threads, emptied by the program's.

Everything is guarded by `changed`; what is taken in is always accepted, since the coordinator granted it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from gridflow.errors import RendezvousError, TaskFailedError
from gridflow.feed.blocks import cut, decode
from gridflow.feed.schema import FeedSchema
from gridflow.rendezvous.messages import Message


class Totals(NamedTuple):
    """How many rows of an epoch the consumers got: who got least, who most, and this one."""

    least: int
    most: int
    own: int


@dataclass
class Piece:
    """Rows that wait to be read, as they came or decoded; not fresh if they were read before."""

    content: Any
    rows: int
    cost: int = 0
    is_fresh: bool = True


@dataclass
class Loan:
    """A block that wants an answer."""

    content: pa.Buffer | list[pa.Buffer]
    rows: int
    answer: bytes | memoryview | None = None
    is_abandoned: bool = False
    #: What the content was, where the whole block was borrowed.
    items: list[Any] = field(default_factory=list)


@dataclass
class Progress:
    """What the coordinator is told of this consumer."""

    epochs_read: int = 0
    batch_rows: int = 0
    rows: int = 0
    cost: int = 0
    batches: int = 0
    dropped: int = 0
    padded: int = 0


@dataclass
class _Epoch:
    pieces: deque[Piece] = field(default_factory=deque)
    received: int = 0


class Inbox:
    """The rows of one feed in one consumer."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.progress = Progress()
        self.schema: FeedSchema | None = None
        #: How many epochs there are in all, once that is known.
        self.epochs: int | None = None
        self.is_stopped = False
        #: Whether this consumer wants no more rows.
        self.has_left = False
        self.failure: str | None = None
        self._first = 0
        self._ended: list[Totals] = []
        self._epochs: dict[int, _Epoch] = {}
        self._highest: dict[tuple[int, int], int] = {}
        self._acknowledged: list[tuple[int, int, int]] = []
        self.loans: deque[Loan] = deque()
        self._has_news = False
        self._passed = 0
        self._taken_in_rows = self._taken_in_cost = 0
        #: Called when the coordinator has said something.
        self.on_news: Callable[[], None] = lambda: None

    def begin(self, first: int) -> None:
        """Say which epoch is the first to be read; rows of it may be here already."""
        with self.changed:
            self._first = self._passed = self.progress.epochs_read = first

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Change something of which the coordinator and the program's thread must hear."""
        with self.changed:
            yield
            self._has_news = True
            self.changed.notify_all()

    def take_in(self, number: int, partition: int, sequence: int, piece: Piece) -> None:
        """Take a slice, unless it is there already: slices of a partition come in their order."""
        with self.changing():
            if sequence <= self._highest.get((number, partition), -1):
                return
            self._highest[number, partition] = sequence
            self._taken_in_rows += piece.rows
            self._taken_in_cost += piece.cost
            if number < self._passed or self.has_left:
                self.progress.rows += piece.rows
                self.progress.cost += piece.cost
                self.progress.dropped += piece.rows
            else:
                epoch = self._epochs.setdefault(number, _Epoch())
                epoch.pieces.append(piece)
                epoch.received += piece.rows
            self._acknowledged.append((number, partition, sequence))

    def lend(self, loan: Loan) -> None:
        """Take a block that wants an answer."""
        with self.changing():
            self.loans.append(loan)

    def note(self, news: Message) -> None:
        """Take in what the coordinator says."""
        with self.changing():
            if self.schema is None and news["schema"] is not None:
                self.schema = FeedSchema.from_message(news["schema"])
            for totals in news["ended"]:
                # All slices of an epoch are here before it ends; none of it comes again.
                number = self._first + len(self._ended)
                self._highest = {key: value for key, value in self._highest.items() if key[0] != number}
                self._ended.append(Totals(*totals))
            self.epochs = news["epochs"]
            if self.has_left:
                self.progress.epochs_read = self._first + len(self._ended)
            self.is_stopped |= news["is_stopped"]
            self.failure = self.failure or news["failure"]
            self.on_news()

    def fail(self, message: str) -> None:
        """Let whoever reads know that nothing more will come; what is here already can still be read."""
        with self.changing():
            if not (self.is_stopped or self.is_all_here):
                self.failure = self.failure or message

    def report(self, timeout_seconds: float) -> Message | None:
        """Wait for something that the coordinator must hear, and return it; None where there is nothing."""
        with self.changed:
            if not self._has_news and not self.changed.wait_for(lambda: self._has_news, timeout_seconds):
                return None
            self._has_news = False
            acknowledged, self._acknowledged = self._acknowledged, []
            ends = {"stop": self.is_stopped, "left": self.has_left}
            return {"acknowledged": acknowledged, **ends, **vars(self.progress)}

    @property
    def known_schema(self) -> FeedSchema:
        """What the rows are, which is known before any of them can be read."""
        if self.schema is None:
            raise RendezvousError("rows were read before it was known what they are")
        return self.schema

    @property
    def known_epochs(self) -> int:
        """How many epochs are known to have ended."""
        return len(self._ended)

    @property
    def is_all_here(self) -> bool:
        """Whether nothing more will come."""
        return self.epochs is not None and self._first + len(self._ended) >= self.epochs

    @property
    def is_all_read(self) -> bool:
        """Whether no epoch is left to read."""
        return self.epochs is not None and self.progress.epochs_read >= self.epochs

    def is_beyond(self, number: int) -> bool:
        """Tell whether there is no such epoch, and never will be."""
        return self.is_stopped or self.has_left or (self.epochs is not None and number >= self.epochs)

    def is_last(self, number: int) -> bool:
        """Tell whether an epoch is known to be the last one."""
        return self.epochs is not None and number == self.epochs - 1

    def totals(self, number: int) -> Totals | None:
        """Return how many rows an epoch has, once that is known."""
        index = number - self._first
        return self._ended[index] if index < len(self._ended) else None

    def received(self, number: int) -> int:
        """Return how many rows of an epoch are or were here, and can be read: they may come before their schema."""
        epoch = self._epochs.get(number)
        return epoch.received if epoch and self.schema is not None else 0

    def forget(self, number: int) -> None:
        """Drop what is left of an epoch, and whatever still comes of it."""
        pieces = self._epochs.pop(number, _Epoch()).pieces
        self.progress.rows += sum(piece.rows for piece in pieces if piece.is_fresh)
        self.progress.cost += sum(piece.cost for piece in pieces if piece.is_fresh)
        self.progress.dropped += sum(piece.rows for piece in pieces)
        self._passed = number + 1

    def leave(self) -> None:
        """Drop all rows that are here, and those that still come."""
        with self.changing():
            self.has_left = True
            for number in list(self._epochs):
                self.forget(number)

    def rows_of(self, size: int) -> int:
        """Judge how many rows take about so many bytes, by all that were received."""
        with self.changed:
            return max(1, size * self._taken_in_rows // max(1, self._taken_in_cost))

    def take(self, number: int, rows: int) -> list[Any]:
        """Take so many rows of an epoch, which must be there, in as many parts as they came."""
        pieces, parts = self._epochs.setdefault(number, _Epoch()).pieces, []
        while rows:
            piece = pieces[0]
            if isinstance(piece.content, pa.Buffer):
                piece.content = decode(piece.content, self.known_schema)
            count = min(rows, piece.rows)
            parts.append(cut(piece.content, 0, count))
            cost = piece.cost * count // piece.rows
            if piece.is_fresh:
                self.progress.rows += count
                self.progress.cost += cost
            if count == piece.rows:
                pieces.popleft()
            else:
                piece.content = cut(piece.content, count, piece.rows - count)
                piece.rows, piece.cost = piece.rows - count, piece.cost - cost
            rows -= count
        return parts

    def put_back(self, number: int, parts: list[Any]) -> None:
        """Put rows that were taken back to the front of their epoch."""
        pieces = [Piece(part, len(part), is_fresh=False) for part in parts]
        self._epochs.setdefault(number, _Epoch()).pieces.extendleft(reversed(pieces))

    def wait(self, look: Callable[[], bool], timeout_seconds: float | None = None) -> bool:
        """Wait, with `changed` held, until `look` is true; raise if the feed fails."""
        self.changed.wait_for(lambda: self.failure is not None or look(), timeout_seconds)
        self.check()
        return look()

    def check(self) -> None:
        """Raise if the feed has failed."""
        if self.failure is not None:
            raise TaskFailedError(self.failure)
