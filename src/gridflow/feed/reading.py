"""One consumer's way through the epochs of a feed: which rows make its next batch, and where an epoch ends for it.

With `equal`, any two consumers were granted as many rows, give or take one, at any time. So whoever has one row more
than a batch needs knows that all others will have that batch too, and may read it before the epoch's end is known.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from gridflow.errors import UsageError
from gridflow.feed.blocks import cut, join
from gridflow.feed.inbox import Inbox, Totals

Remainder: TypeAlias = Literal["drop", "pad", "keep"]

#: What an iteration has taken is kept until it is more than both of these, for one that starts over.
_REPLAY_BYTES = 32 << 20
_REPLAY_BATCHES = 8


@dataclass(frozen=True)
class Cutting:
    """How rows become batches."""

    batch_rows: int
    remainder: Remainder = "drop"
    is_equal: bool = True

    def __post_init__(self) -> None:
        if self.batch_rows < 1:
            raise UsageError(f"batch_size={self.batch_rows} is not positive")
        if self.remainder not in get_args(Remainder):
            raise UsageError(
                f"remainder={self.remainder!r} is unknown", hint=f"one of {', '.join(get_args(Remainder))}"
            )

    def batches(self, totals: Totals) -> int:
        """Return how many batches an epoch has, for every consumer."""
        if not self.is_equal:
            totals = Totals(totals.own, totals.own, totals.own)
        size = self.batch_rows
        return totals.least // size if self.remainder == "drop" else -(-totals.most // size)

    def ready(self, received: int, totals: Totals | None) -> int:
        """Return how many whole batches of an epoch may be read, of all that were received of it."""
        if totals is not None:
            return min(self.batches(totals), received // self.batch_rows)
        must_see_more = self.is_equal and self.remainder == "drop"
        return max(0, received - must_see_more) // self.batch_rows


@dataclass
class Chunk:
    """Rows for one or more batches; `padded` of them are to be added to fill the last one."""

    parts: list[Any]
    rows: int
    batches: int
    padded: int = 0
    #: The last row that was read before, where there are none of this chunk's own.
    last: Any = None


@dataclass
class _Iteration:
    number: int
    cutting: Cutting
    is_peek: bool
    batches: int = 0
    rows: int = 0
    padded: int = 0
    taken: list[Any] | None = field(default_factory=list)
    taken_bytes: int = 0
    last: Any = None
    is_ended: bool = False
    #: Whether rows are taken in any number.
    is_taking: bool = False


class Reader:
    """Reads epoch after epoch; each iteration is one."""

    def __init__(self, inbox: Inbox, first_epoch: int, *, is_equal: bool) -> None:
        self._inbox = inbox
        self._is_equal = is_equal
        self._current: _Iteration | None = None
        self.epoch = first_epoch
        inbox.on_news = self._end_if_exhausted

    @property
    def is_ended(self) -> bool:
        """Whether nothing is left to read."""
        with self._inbox.changed:
            return self._inbox.is_stopped or self._inbox.is_all_read

    def iterate(self, batch_rows: int, remainder: Remainder, *, max_rows: int = 1) -> Iterator[Chunk]:
        """Yield the rows of one epoch, in chunks of whole batches of up to `max_rows` rows but at least one batch.

        The first chunks are small: whoever wants one batch only should not be handed many.
        """
        iteration = self._begin(Cutting(batch_rows, remainder, self._is_equal))
        limit = 1
        while (chunk := self._next(iteration, min(limit, max(1, max_rows // batch_rows)))) is not None:
            yield chunk
            limit *= 2

    def take(self, rows: int, least: int | None = None) -> list[Any]:
        """Take up to so many rows, fewer than `least` only at the end of an epoch; none once, where that is reached.

        Without `least`, wait for all of them.
        """
        least = rows if least is None else least
        with self._inbox.changing():
            iteration = self._current
            if iteration is None or iteration.is_ended or not iteration.is_taking:
                iteration = self._begin(Cutting(least, "keep", is_equal=False))
                iteration.taken, iteration.is_taking = None, True
            number = iteration.number
            self._inbox.progress.batch_rows = least
            self._inbox.wait(lambda: self._is_over(iteration) or self._waiting(iteration) >= least)
            count = min(rows, self._waiting(iteration))
            if self._inbox.is_beyond(number) or count <= 0:
                self._end(iteration)
                return []
            parts = self._inbox.take(number, count)
            iteration.rows += count
            self._inbox.progress.batches += 1
            self._end_if_exhausted()
            return list(join(parts))

    def _waiting(self, iteration: _Iteration) -> int:
        return self._inbox.received(iteration.number) - iteration.rows

    def _begin(self, cutting: Cutting) -> _Iteration:
        """Begin an iteration. One that was left early starts over, if what it took is still there."""
        with self._inbox.changing():
            left, self._current = self._current, None
            if left is not None and not left.is_ended:
                if not left.is_peek and (left.taken is None or self._is_exhausted(left)):
                    self._end(left)
                else:
                    self._take_back(left)
            self._current = _Iteration(self.epoch, cutting, _peeking.is_set())
            self._inbox.progress.batch_rows = cutting.batch_rows
            return self._current

    def _take_back(self, iteration: _Iteration) -> None:
        self._inbox.put_back(iteration.number, iteration.taken or [])
        self._inbox.progress.batches -= iteration.batches
        self._inbox.progress.padded -= iteration.padded

    def _is_over(self, iteration: _Iteration) -> bool:
        """Tell whether no more rows will come for an iteration than are there."""
        return (
            iteration is not self._current
            or self._inbox.is_beyond(iteration.number)
            or self._inbox.totals(iteration.number) is not None
        )

    def _ready(self, iteration: _Iteration) -> int:
        number = iteration.number
        ready = iteration.cutting.ready(self._inbox.received(number), self._inbox.totals(number))
        return ready - iteration.batches

    def _is_exhausted(self, iteration: _Iteration) -> bool:
        """Tell whether an iteration was handed all batches of its epoch; wait until that is known."""
        self._inbox.wait(
            lambda: (
                self._ready(iteration) > 0
                or self._inbox.is_beyond(iteration.number)
                or self._inbox.totals(iteration.number) is not None
            )
        )
        return self._ready(iteration) <= 0 and self._has_all(iteration)

    def _has_all(self, iteration: _Iteration) -> bool:
        totals = self._inbox.totals(iteration.number)
        if totals is None:
            return False
        if iteration.is_taking:
            # Whoever takes rows is told of an epoch's end by getting none, but need not ask behind the last epoch.
            return self._inbox.is_last(iteration.number) and iteration.rows >= totals.own
        return iteration.batches >= iteration.cutting.batches(totals)

    def _next(self, iteration: _Iteration, limit: int) -> Chunk | None:
        """Wait for the next batches of an iteration, at most `limit`; None at its end."""
        with self._inbox.changing():
            if iteration.is_ended:
                return None
            self._inbox.wait(lambda: self._is_over(iteration) or self._ready(iteration) > 0)
            if iteration is not self._current or self._inbox.is_beyond(iteration.number):
                return None
            ready = min(self._ready(iteration), limit)
            if ready > 0:
                chunk = self._take(iteration, ready * iteration.cutting.batch_rows, ready)
            elif self._has_all(iteration):
                chunk = None
            else:
                chunk = self._take(iteration, self._waiting(iteration), 1)
            self._end_if_exhausted()
            return chunk

    def _take(self, iteration: _Iteration, rows: int, batches: int) -> Chunk:
        cutting = iteration.cutting
        parts = self._inbox.take(iteration.number, rows)
        wanted = batches * cutting.batch_rows if cutting.remainder == "pad" else max(rows, 1)
        chunk = Chunk(parts, rows, batches, wanted - rows, iteration.last)
        if parts:
            iteration.last = cut(parts[-1], len(parts[-1]) - 1, 1)
        iteration.batches += batches
        iteration.rows += rows
        self._inbox.progress.batches += batches
        iteration.padded += chunk.padded
        self._inbox.progress.padded += chunk.padded
        self._keep(iteration, parts)
        return chunk

    def _keep(self, iteration: _Iteration, parts: list[Any]) -> None:
        """Remember what was taken for an iteration that starts over, as long as that is little."""
        if iteration.taken is None:
            return
        iteration.taken += parts
        iteration.taken_bytes += sum(getattr(part, "nbytes", 0) for part in parts)
        is_much = iteration.taken_bytes > _REPLAY_BYTES and iteration.batches > _REPLAY_BATCHES
        if is_much and not iteration.is_peek:
            iteration.taken = None

    def _end_if_exhausted(self) -> None:
        """End an iteration as soon as it was handed all batches, since nobody need ask whether there are more."""
        iteration = self._current
        if iteration is None or iteration.is_ended or iteration.is_peek:
            return
        if self._has_all(iteration):
            self._end(iteration)

    def _end(self, iteration: _Iteration) -> None:
        iteration.is_ended = True
        iteration.taken = None
        if self._inbox.is_beyond(iteration.number):
            return
        self._inbox.forget(iteration.number)
        self.epoch = self._inbox.progress.epochs_read = iteration.number + 1


#: Set while a batch is looked at ahead of training.
_peeking = threading.Event()


@contextmanager
def peeking() -> Iterator[None]:
    """Let an iteration that begins inside start over afterwards, whatever was taken of it."""
    _peeking.set()
    try:
        yield
    finally:
        _peeking.clear()
