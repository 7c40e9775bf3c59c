"""Sends the rows of one partition to the consumers of a training feed, from the process that has the rows."""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from gridflow.errors import RendezvousError, TaskFailedError
from gridflow.feed.blocks import Block, Encoded, send_rows
from gridflow.feed.schema import FeedSchema
from gridflow.feed.state import Epoch
from gridflow.rendezvous.links import Link
from gridflow.rendezvous.messages import Message
from gridflow.rendezvous.roster import Address

#: So many blocks are asked for before the first of them is sent, which hides the coordinator's answering time.
_AHEAD_BLOCKS = 2
#: The coordinator itself sees to it that an answer comes, or an error; this is for one that hangs.
_ANSWER_SECONDS = 7 * 24 * 3600.0
_VERDICT_SECONDS = 10.0
_PAUSE_SECONDS = 0.2
_MAX_CONNECTS = 50


@dataclass(frozen=True)
class Origin:
    """Where rows are sent from: a partition of an epoch; and the coordinator that says where to."""

    coordinator: Address
    secret: bytes
    epoch: Epoch
    partition: int

    def __repr__(self) -> str:
        return f"Origin(coordinator={self.coordinator}, epoch={self.epoch}, partition={self.partition})"


@dataclass(frozen=True)
class Sent:
    """What a sender has sent; less than it was given if the feed was stopped or its consumers were started again."""

    rows: int
    bytes: int
    was_stopped: bool


class StoppedError(Exception):
    """The feed takes no more rows from this sender."""


def send(blocks: Iterator[Block], origin: Origin) -> Sent:
    """Send the blocks of a partition, which must give the same ones each time: each row is sent once all the same.

    Return when all rows have reached their consumers' memory.
    """
    rows = size = 0
    was_stopped = False
    try:
        with Desk(origin) as desk, Consumers(origin, "slices") as consumers:
            for block in _Sender(desk, consumers).send(blocks):
                rows += block.rows
                size += block.cost
    except StoppedError:
        was_stopped = True
    return Sent(rows, size, was_stopped)


class Desk:
    """The sender's link to the coordinator: questions and, in the same order, answers."""

    def __init__(self, origin: Origin) -> None:
        self._link = Link.connect(origin.coordinator, origin.secret)
        epoch = origin.epoch
        try:
            hello = {"feed": epoch.feed, "number": epoch.number, "attempt": epoch.attempt}
            self._link.send({"type": "sender", "partition": origin.partition, **hello})
            self.is_done = self.answer()["type"] == "done"
        except BaseException:
            self._link.close()
            raise

    def ask(self, message: Message) -> None:
        """Ask something, for which an answer must be fetched later."""
        self._link.send(message)

    def answer(self) -> Message:
        """Wait for the next answer; raise if it is that the feed has ended."""
        message = self._link.receive(_ANSWER_SECONDS)
        if message is None:
            raise RendezvousError(f"the coordinator of feeds gave no answer in {_ANSWER_SECONDS:g} s")
        if message["type"] == "failed":
            raise TaskFailedError(message["message"])
        if message["type"] == "stopped":
            raise StoppedError
        return message

    def agree(self, block: Block) -> None:
        """Check that the rows are what the feed carries, or decide it."""
        self.ask({"type": "schema", "schema": block.schema().to_message()})
        FeedSchema.from_message(self.answer()["schema"]).check(block.columns())

    def fileno(self) -> int:
        """Give the descriptor that is readable when an answer has begun to arrive."""
        return self._link.fileno()

    def __enter__(self) -> Desk:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()


class Consumers:
    """The sender's links to consumers, opened when first needed."""

    def __init__(self, origin: Origin, purpose: Literal["slices", "loans"]) -> None:
        self._secret = origin.secret
        epoch = origin.epoch
        about = {"number": epoch.number, "attempt": epoch.attempt, "partition": origin.partition}
        self._hello: Message = {"type": purpose, "feed": epoch.feed, **about}
        self._places: dict[str, list[str]] = {}
        self._links: dict[str, Link] = {}

    def note(self, answer: Message) -> None:
        """Learn where consumers are."""
        self._places.update(answer.get("places", {}))

    def link(self, name: str) -> Link:
        """Return the link to a consumer."""
        if name not in self._links:
            self._links[name] = self.connect(name)
        return self._links[name]

    def connect(self, name: str) -> Link:
        """Open a link of the caller's own, by Unix socket where the consumer is on this host."""
        address, here = self._places[name]
        link = self._connect_here(here) or Link.connect(Address.parse(address), self._secret)
        link.send(self._hello)
        return link

    def _connect_here(self, socket_name: str) -> Link | None:
        try:
            return Link.connect(socket_name, self._secret)
        except RendezvousError:
            return None  # it is on another host, or in another container

    def open_links(self) -> Iterable[tuple[str, Link]]:
        """Return the links to consumers, which say nothing; one that can be read is broken."""
        return self._links.items()

    def drop(self, name: str) -> None:
        """Close the link to a consumer."""
        link = self._links.pop(name, None)
        if link is not None:
            link.close()

    def __enter__(self) -> Consumers:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._links):
            self.drop(name)


@dataclass
class _Asked:
    sequence: int
    block: Block
    answer: Message | None = None


class _Sender:
    """One partition on its way."""

    def __init__(self, desk: Desk, consumers: Consumers) -> None:
        self._desk = desk
        self._consumers = consumers
        self._asked: deque[_Asked] = deque()

    def send(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """Send all blocks, and give each back when it is on its way."""
        if self._desk.is_done:
            return
        sequence = -1
        for sequence, block in enumerate(blocks):
            if sequence == 0:
                self._desk.agree(block)
            about = {"rows": block.rows, "cost": block.cost, "digest": block.digest()}
            self._desk.ask({"type": "block", "sequence": sequence, **about})
            self._asked.append(_Asked(sequence, block))
            if len(self._asked) > _AHEAD_BLOCKS:
                yield self._deliver()
        while self._asked:
            yield self._deliver()
        self._desk.ask({"type": "done", "blocks": sequence + 1})
        self._wait_for_done()

    def _wait_for_done(self) -> None:
        """Wait until all is acknowledged, which what was in a broken link never will be."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._desk, selectors.EVENT_READ)
            for name, link in self._consumers.open_links():
                selector.register(link, selectors.EVENT_READ, name)
            lost = [key.data for key, _ in selector.select(_ANSWER_SECONDS) if key.data]
            for _, link in self._consumers.open_links():
                selector.unregister(link)
            # A consumer that is gone for good is something that the coordinator will tell.
            if lost and not selector.select(_VERDICT_SECONDS):
                raise RendezvousError(
                    f"{lost[0]} closed the connection before it had all rows", hint="the partition can be sent again"
                )
        self._desk.answer()

    def _deliver(self) -> Block:
        asked = self._asked[0]
        answer = asked.answer or self._fetch(asked)
        start = 0
        for consumer, rows, cost, is_acknowledged in answer["slices"]:
            if not is_acknowledged:
                head = {"type": "slice", "sequence": asked.sequence, "rows": rows, "cost": cost}
                self._carry(consumer, head, asked.block.encode(start, rows))
            start += rows
        self._asked.popleft()
        return asked.block

    def _fetch(self, asked: _Asked) -> Message:
        asked.answer = self._desk.answer()
        self._consumers.note(asked.answer)
        return asked.answer

    def _carry(self, consumer: str, head: Message, content: Encoded) -> None:
        """Bring a slice to its consumer, which takes slices of a partition in their order only."""
        for _ in range(_MAX_CONNECTS):
            try:
                send_rows(self._consumers.link(consumer), head, content)
                return
            except RendezvousError as error:
                lost = error
                self._consumers.drop(consumer)
                self._wait_for(consumer)
        raise RendezvousError(f"{consumer} cannot be reached: {lost}") from lost

    def _wait_for(self, consumer: str) -> None:
        """Hear from the coordinator what becomes of a lost consumer; raises if it will not be back."""
        for asked in self._asked:
            if asked.answer is None:
                self._fetch(asked)
        self._desk.ask({"type": "lost", "consumer": consumer})
        self._desk.answer()
        time.sleep(_PAUSE_SECONDS)
