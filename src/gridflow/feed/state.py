"""What the coordinator knows of one feed. Pure: time comes in as `now`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import pyarrow as pa

from gridflow.errors import UsageError
from gridflow.feed.pacing import Loans, Pacing
from gridflow.feed.schema import FeedSchema
from gridflow.rendezvous.messages import Message

Kind: TypeAlias = Literal["training", "inference"]
Interruption: TypeAlias = Literal["stopped", "restarted", "failed"]


@dataclass(frozen=True)
class Epoch:
    """One pass over a feed's rows, for one start of its consumers; what senders are told to send for."""

    feed: str
    number: int
    attempt: int


@dataclass(frozen=True)
class Settings:
    """How a feed was opened."""

    consumers: tuple[str, ...]
    kind: Kind = "training"
    #: Whether all consumers get the same number of batches; where they do not, each block goes where most room is.
    is_equal: bool = True
    #: What the columns are if no row ever comes.
    schema: pa.Schema | None = None
    #: How many epochs there are in all, where that is known.
    epochs: int | None = None
    window_bytes: int = 64 << 20
    timeout_seconds: float = 600

    def __post_init__(self) -> None:
        if not self.consumers:
            raise UsageError("a feed needs at least one consumer")
        if len(set(self.consumers)) != len(self.consumers):
            raise UsageError(f"a feed's consumers are listed twice: {', '.join(self.consumers)}")
        if self.kind not in ("training", "inference"):
            raise UsageError(f"kind={self.kind!r} is no kind of feed", hint="one of training, inference")
        if self.window_bytes < 1 or self.timeout_seconds <= 0:
            raise UsageError(
                f"window_bytes={self.window_bytes}, timeout_seconds={self.timeout_seconds}: both must be positive"
            )


@dataclass(frozen=True)
class ConsumerReport:
    """What one consumer did; `rows` were granted to it, `unread` is what of them no batch was made of."""

    rows: int = 0
    batches: int = 0
    dropped: int = 0
    padded: int = 0
    unread: int = 0


@dataclass(frozen=True)
class Report:
    """What became of a feed's rows."""

    rows: int
    bytes: int
    epochs: int
    is_stopped: bool
    consumers: Mapping[str, ConsumerReport]


@dataclass
class Consumer:
    """A task that has opened the feed."""

    places: Sequence[str]
    epochs_read: int
    has_left: bool = False
    batches: int = 0
    dropped: int = 0
    padded: int = 0


@dataclass
class FeedState:
    """One feed: its settings, its consumers, where it is in its epochs, and how it ended."""

    name: str
    settings: Settings
    attempt: int
    now: float
    failure: str | None = None
    is_stopped: bool = False
    #: Counts what consumers must hear of.
    version: int = 1
    #: The epoch that is being sent, or will be next.
    number: int = 0
    is_sending: bool = False
    first_number: int = 0
    schema: FeedSchema | None = None
    consumers: dict[str, Consumer] = field(default_factory=dict)
    #: For each epoch since `first_number`, the rows of each consumer.
    ended: list[dict[str, int]] = field(default_factory=list)
    progress_at: float = 0.0
    #: What happened to rows of consumers that are forgotten.
    past: dict[str, ConsumerReport] = field(default_factory=dict)
    past_rows: int = 0
    past_bytes: int = 0

    def __post_init__(self) -> None:
        self.progress_at = self.now
        self.epochs = self.settings.epochs
        self._renew()

    def _renew(self) -> None:
        names, window_bytes = self.settings.consumers, self.settings.window_bytes
        self.pacing = Pacing(names, is_equal=self.settings.is_equal, window_bytes=window_bytes)
        self.loans = Loans(names, window_bytes=window_bytes)

    @property
    def is_training(self) -> bool:
        """Whether rows only go to the consumers, and come in epochs."""
        return self.settings.kind == "training"

    @property
    def _paced(self) -> Pacing | Loans:
        return self.pacing if self.is_training else self.loans

    def begin_epoch(self) -> Epoch | None:
        """Begin the next epoch, unless one has begun and not ended; None after the last."""
        if not self.is_sending and self.epochs is not None and self.number >= self.epochs:
            return None
        if not self.is_sending:
            self.is_sending = True
            self.pacing.begin_epoch()
        return Epoch(self.name, self.number, self.attempt)

    def expect(self, epochs: int) -> None:
        """Let there be so many epochs in all."""
        self.epochs = epochs
        self.version += 1

    def finish(self) -> None:
        """Let there be no epoch after the one that is being sent, or that was sent last."""
        self.epochs = self.number + self.is_sending
        self.version += 1

    def end_epoch(self, partitions: Collection[int]) -> None:
        """End the epoch: from now on consumers know how many rows it had."""
        missing = self.pacing.missing(partitions)
        if missing:
            raise UsageError(
                f"epoch {self.number} of feed {self.name!r} cannot end: of {len(partitions)} partitions "
                f"{len(missing)} were not sent, the first is {missing[0]}"
            )
        if self.schema is None and self.settings.schema is not None:
            self.schema = FeedSchema(self.settings.schema)
        self.ended.append(self.pacing.epoch_rows())
        self.number += 1
        self.is_sending = False
        self.version += 1

    def restart(self, attempt: int) -> None:
        """Forget the consumers, and go back to the first epoch that not all of them have read."""
        unread = self.pacing.unread_rows() if self.is_training else {}
        for name in self.settings.consumers:
            self.past[name] = self._consumer_report(name, unread.get(name, 0))
        self.past_rows += self._paced.total_rows
        self.past_bytes += self._paced.total_cost
        if not self.is_stopped:
            self.number = self.read_number()
        self.attempt = attempt
        self.first_number, self.is_sending = self.number, False
        self.consumers.clear()
        self.ended.clear()
        self._renew()
        self.version += 1

    def read_number(self) -> int:
        """Return the first epoch that not all consumers have read."""
        return min(
            (self.consumers[name].epochs_read if name in self.consumers else self.first_number)
            for name in self.settings.consumers
        )

    def arrive(self, name: str, places: Sequence[str]) -> None:
        """Take a consumer in."""
        if name not in self.settings.consumers:
            raise UsageError(
                f"{name} is not among the consumers of feed {self.name!r}",
                hint=f"they are {', '.join(self.settings.consumers)}",
            )
        if name in self.consumers:
            raise UsageError(
                f"{name} opens feed {self.name!r} a second time", hint="keep the feed that was opened first"
            )
        self.consumers[name] = Consumer(places, self.first_number)
        self.pacing.arrive(name)
        self.loans.arrive(name)

    def leave(self, name: str) -> None:
        """Note that a consumer's connection is gone."""
        self.pacing.leave(name)
        self.loans.leave(name)

    def stop(self) -> None:
        """End the feed early."""
        self.is_stopped = True
        self.version += 1

    def end(self) -> None:
        """Let nobody wait for tasks that have ended well: what they have not read, no one will."""
        if self.is_sending and not self.consumers:
            self.fail(f"feed {self.name!r}: the run has ended, and no task has opened the feed")
        elif not self.is_read():
            self.stop()

    def fail(self, message: str) -> None:
        """End the feed with an error, the first of which counts."""
        if self.failure is None:
            self.failure = message
            self.version += 1

    def note_report(self, name: str, message: Message, now: float) -> None:
        """Take in what a consumer says that it has got and read."""
        for number, partition, sequence in message["acknowledged"]:
            if number == self.number and self.is_sending:
                self.pacing.acknowledge(name, partition, sequence)
        consumer = self.consumers[name]
        consumer.batches, consumer.dropped, consumer.padded = (message[key] for key in ("batches", "dropped", "padded"))
        has_moved = consumer.epochs_read != message["epochs_read"] or bool(message["acknowledged"])
        consumer.epochs_read = message["epochs_read"]
        has_moved |= self.pacing.note_read(name, message["rows"], message["cost"], message["batch_rows"])
        if has_moved:
            self.progress_at = now
        sizes = self.pacing.batch_sizes()
        if self.settings.is_equal and self.is_training and len(set(sizes.values())) > 1:
            listed = ", ".join(f"{task} of {size}" for task, size in sizes.items())
            self.fail(
                f"feed {self.name!r} is read in batches of different sizes: {listed}; use one size, or equal=False"
            )
        consumer.has_left |= message["left"]
        if (message["stop"] or self._have_all_left()) and not self.is_stopped:
            self.stop()

    def _have_all_left(self) -> bool:
        return all(name in self.consumers and self.consumers[name].has_left for name in self.settings.consumers)

    def interruption(self, epoch: Epoch) -> Interruption | None:
        """Say why an epoch need not be sent any further."""
        if self.failure is not None:
            return "failed"
        if epoch.attempt != self.attempt and self.is_training:
            return "restarted"
        return "stopped" if self.is_stopped else None

    def has_consumers(self) -> bool:
        """Tell whether a consumer is there that may have something to say."""
        return any(self.pacing.is_present(name) for name in self.settings.consumers)

    def absent(self) -> list[str]:
        """Return the consumers that have never opened the feed."""
        return [name for name in self.settings.consumers if name not in self.consumers]

    def is_read(self) -> bool:
        """Tell whether every consumer has read all epochs that have ended."""
        return not self.is_sending and self.read_number() >= self.number

    def state_for(self, name: str, known_epochs: int) -> Message:
        """Write down for a consumer what it must know; of the epochs only those that it has not heard of."""
        return {
            "type": "state",
            "version": self.version,
            "schema": None if self.schema is None else self.schema.to_message(),
            "ended": [
                [min(rows.values()), max(rows.values()), rows[name]] if self.settings.is_equal else [rows[name]] * 3
                for rows in self.ended[known_epochs:]
            ],
            "epochs": self.epochs,
            "is_stopped": self.is_stopped,
            "failure": self.failure,
        }

    def stall(self, waited_seconds: float) -> str:
        """Say who keeps the feed from going on."""
        obstacles = "; ".join(self._paced.obstacles())
        return (
            f"feed {self.name!r}: nothing moved for {waited_seconds:g} s: {obstacles or 'what was sent is not there'}"
        )

    def report(self) -> Report:
        """Sum up what became of the rows."""
        unread = self.pacing.unread_rows()
        return Report(
            self.past_rows + self._paced.total_rows,
            self.past_bytes + self._paced.total_cost,
            self.number,
            self.is_stopped,
            {name: self._consumer_report(name, unread[name]) for name in self.settings.consumers},
        )

    def _consumer_report(self, name: str, unread: int) -> ConsumerReport:
        past, now = self.past.get(name, ConsumerReport()), self.consumers.get(name)
        rows = sum(epoch[name] for epoch in self.ended) + (self.pacing.epoch_rows()[name] if self.is_sending else 0)
        return ConsumerReport(
            past.rows + rows,
            past.batches + (now.batches if now else 0),
            past.dropped + (now.dropped if now else 0),
            past.padded + (now.padded if now else 0),
            past.unread + unread,
        )
