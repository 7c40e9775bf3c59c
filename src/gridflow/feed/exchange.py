"""Sends the rows of one partition to the consumers of an inference feed, and gives back their answers in order."""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gridflow.errors import DeadlineError, RendezvousError, TaskFailedError
from gridflow.feed.answers import decode_answer
from gridflow.feed.blocks import Block, Convert, arrow_blocks, decode_rows, receive_content, send_rows
from gridflow.feed.sender import Consumers, Desk, Origin, StoppedError
from gridflow.rendezvous.links import Link
from gridflow.rendezvous.messages import Message

#: So many blocks of a partition are with consumers at a time.
_BLOCKS_AT_ONCE = 3
_PAUSE_SECONDS = 0.1
_RECHECK_SECONDS = 1.0


def exchange(
    batches: Iterable[pa.RecordBatch],
    origin: Origin,
    *,
    convert: Convert | None = None,
    timeout_seconds: float = 600,
) -> Iterator[pa.RecordBatch]:
    """Yield the answers to the rows of a partition, in the rows' order.

    A consumer that keeps a block for `timeout_seconds` without an answer is an error, and so is a feed that is stopped.
    """
    for content in _exchange(arrow_blocks(batches, convert), origin, timeout_seconds):
        yield from decode_answer(content)


def exchange_rows(blocks: Iterator[Block], origin: Origin, *, timeout_seconds: float = 600) -> Iterator[Any]:
    """Do the same with blocks of rows that are Python objects."""
    for content in _exchange(blocks, origin, timeout_seconds):
        yield from decode_rows(memoryview(content))


def _exchange(blocks: Iterator[Block], origin: Origin, timeout_seconds: float) -> Iterator[pa.Buffer]:
    try:
        with Desk(origin) as desk, Consumers(origin, "loans") as consumers:
            partition = _Exchange(desk, consumers, blocks, timeout_seconds, time.monotonic)
            with closing(partition):
                yield from partition.run()
    except StoppedError:
        feed = origin.epoch.feed
        raise TaskFailedError(f"feed {feed!r} was stopped before all its rows were answered") from None


@dataclass
class _Lent:
    """A block on its way; it has a link while a consumer has it."""

    sequence: int
    block: Block
    consumer: str = ""
    link: Link | None = None
    answer: pa.Buffer | None = None


class _Exchange:
    """One partition: blocks go out as consumers have room, answers come back in any order."""

    def __init__(
        self,
        desk: Desk,
        consumers: Consumers,
        blocks: Iterator[Block],
        timeout_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._desk = desk
        self._consumers = consumers
        self._blocks = enumerate(blocks)
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._moved_at = clock()
        #: All blocks that were taken and not given back, in their order.
        self._open: deque[_Lent] = deque()
        #: Those of them that must be asked for, and the one that is.
        self._waiting: deque[_Lent] = deque()
        self._asked: _Lent | None = None
        self._answered: list[tuple[int, int]] = []
        self._idle: dict[str, list[Link]] = {}

    def run(self) -> Iterator[pa.Buffer]:
        """Yield the answers in the order of the blocks."""
        while True:
            self._ask()
            while self._open and (answer := self._open[0].answer) is not None:
                self._open.popleft()
                yield answer
                self._moved_at = self._clock()
                self._ask()
            if not self._open:
                break
            self._wait()
        self._desk.ask({"type": "lend", "answered": self._answered, "sequence": None})
        self._desk.answer()

    def close(self) -> None:
        """Close all links to consumers."""
        for lent in self._open:
            if lent.link is not None:
                lent.link.close()
        for links in self._idle.values():
            for link in links:
                link.close()

    def _ask(self) -> None:
        """Ask where the next block goes, if any may go."""
        if self._asked is not None:
            return
        if not self._waiting and len(self._open) < _BLOCKS_AT_ONCE:
            taken = next(self._blocks, None)
            if taken is not None:
                lent = _Lent(*taken)
                if lent.sequence == 0:
                    self._desk.agree(lent.block)
                self._open.append(lent)
                self._waiting.append(lent)
        if self._waiting:
            self._asked = self._waiting.popleft()
            block = self._asked.block
            answered, self._answered = self._answered, []
            about = {"sequence": self._asked.sequence, "rows": block.rows, "cost": block.cost}
            self._desk.ask({"type": "lend", "answered": answered, **about})

    def _wait(self) -> None:
        """Wait for the coordinator or a consumer."""
        with selectors.DefaultSelector() as selector:
            if self._asked is not None:
                selector.register(self._desk, selectors.EVENT_READ, self._asked)
            for lent in self._open:
                if lent.link is not None:
                    selector.register(lent.link, selectors.EVENT_READ, lent)
            for key, _ in selector.select(_RECHECK_SECONDS):
                self._moved_at = self._clock()
                if isinstance(key.fileobj, Link):
                    self._fetch(key.data, key.fileobj)
                else:
                    self._asked = None
                    self._lend(key.data, self._desk.answer())
        # While the coordinator is asked, it is the one to lose patience.
        if self._asked is None and self._clock() - self._moved_at >= self._timeout_seconds:
            holders = ", ".join(sorted({lent.consumer for lent in self._open if lent.link is not None}))
            raise DeadlineError(f"no answer from {holders} in {self._timeout_seconds:g} s")

    def _lend(self, lent: _Lent, answer: Message) -> None:
        """Send the block that was asked for to the consumer that was named."""
        self._consumers.note(answer)
        [[lent.consumer, rows, cost, _]] = answer["slices"]
        head = {"type": "loan", "sequence": lent.sequence, "rows": rows, "cost": cost}
        idle = self._idle.get(lent.consumer)
        try:
            lent.link = idle.pop() if idle else self._consumers.connect(lent.consumer)
            send_rows(lent.link, head, lent.block.encode(0, rows))
        except RendezvousError:
            self._lose(lent)

    def _fetch(self, lent: _Lent, link: Link) -> None:
        """Take a consumer's answer."""
        try:
            head = link.receive(_RECHECK_SECONDS)
            if head is not None:
                lent.answer = receive_content(link, head)
        except RendezvousError:
            self._lose(lent)
            return
        if lent.answer is not None:
            lent.link = None
            self._idle.setdefault(lent.consumer, []).append(link)
            self._answered.append((lent.sequence, lent.block.rows))

    def _lose(self, lent: _Lent) -> None:
        """Have a block go to another consumer, since this one is gone."""
        if lent.link is not None:
            lent.link.close()
            lent.link = None
        for link in self._idle.pop(lent.consumer, []):
            link.close()
        self._waiting.appendleft(lent)
        # The coordinator may hear of it a moment later.
        time.sleep(_PAUSE_SECONDS)
