"""Which rows of a feed go where, and when.

Pure: no sockets, threads or clock. `Pacing` is for training: each block is cut over the consumers, and what was granted
once stays granted, whoever asks for it. `Loans` is for inference: each block goes to one consumer and comes back.

A consumer has room while what it was granted and has not read stays below its window, or is less than two of its
batches. The second keeps consumers in lock-step going whatever the window: if one of them waits for rows, the others
have read all batches that it has, and were granted at most one row more, so they have room too.

That holds unless rows are stranded: granted, lost with their sender, and not asked for again. Senders that wait for
room may then hold the very cores that the lost one needs to come back, so once all has stalled they need none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gridflow.errors import RendezvousError, UsageError


@dataclass(frozen=True)
class Slice:
    """Rows of a block that go to one consumer, in the block's order; `cost` is their part of the block's bytes."""

    consumer: str
    rows: int
    cost: int
    is_acknowledged: bool = False


@dataclass
class _Consumer:
    is_present: bool = False
    was_present: bool = False
    batch_rows: int = 0
    epoch_rows: int = 0
    granted_rows: int = 0
    granted_cost: int = 0
    read_rows: int = 0
    read_cost: int = 0

    @property
    def unread_rows(self) -> int:
        return self.granted_rows - self.read_rows

    @property
    def unread_cost(self) -> int:
        return self.granted_cost - self.read_cost

    def has_room(self, window_bytes: int) -> bool:
        return self.unread_cost < window_bytes or self.unread_rows < 2 * self.batch_rows + 4


@dataclass
class _Granted:
    """A slice that was granted; stranded while nobody holds it and nobody has acknowledged it."""

    rows: int
    cost: int
    is_acknowledged: bool = False
    holders: set[int] = field(default_factory=set)

    @property
    def is_stranded(self) -> bool:
        return not self.is_acknowledged and not self.holders


@dataclass
class _Partition:
    is_done: bool = False
    #: Of each block, how many rows it had and which.
    kinds: list[tuple[int, int]] = field(default_factory=list)
    blocks: list[dict[str, _Granted]] = field(default_factory=list)


class Pacing:
    """The rows of one training feed, for one start of its consumers."""

    def __init__(self, consumers: Sequence[str], *, is_equal: bool, window_bytes: int) -> None:
        self._consumers = {name: _Consumer() for name in consumers}
        self._is_equal = is_equal
        self._window_bytes = window_bytes
        self._partitions: dict[int, _Partition] = {}
        self._epoch_rows = 0
        self._held: dict[int, list[tuple[str, _Granted]]] = {}
        self._stranded = 0
        #: What was granted so far, in all epochs; each block counts once.
        self.total_rows = self.total_cost = 0

    def begin_epoch(self) -> None:
        """Forget the partitions of the last epoch."""
        self._partitions.clear()
        self._held.clear()
        self._epoch_rows = self._stranded = 0
        for consumer in self._consumers.values():
            consumer.epoch_rows = 0

    def arrive(self, name: str) -> None:
        """Note that a consumer can be sent rows."""
        consumer = self._consumers[name]
        consumer.is_present = consumer.was_present = True

    def leave(self, name: str) -> None:
        """Note that a consumer can be sent nothing any more."""
        self._consumers[name].is_present = False

    def is_present(self, name: str) -> bool:
        """Tell whether a consumer can be sent rows."""
        return self._consumers[name].is_present

    def note_read(self, name: str, rows: int, cost: int, batch_rows: int) -> bool:
        """Note how much a consumer has read since it arrived, and how large its batches are; tell if that is news."""
        consumer = self._consumers[name]
        has_moved = rows > consumer.read_rows
        consumer.read_rows, consumer.read_cost, consumer.batch_rows = rows, cost, batch_rows
        return has_moved

    def batch_sizes(self) -> dict[str, int]:
        """Return the size of each consumer's batches, where it is known."""
        return {name: each.batch_rows for name, each in self._consumers.items() if each.batch_rows}

    def ask(
        self,
        sender: int,
        partition: int,
        sequence: int,
        rows: int,
        cost: int,
        digest: int = 0,
        *,
        is_stalled: bool = False,
    ) -> tuple[Slice, ...] | None:
        """Say where the rows of a block go; None while they must wait. The same block gets the same answer.

        `digest` tells rows from others; `is_stalled` says that nothing has moved for a while.
        """
        known = self._partitions.setdefault(partition, _Partition())
        if known.is_done:
            return ()
        if sequence < len(known.blocks):
            had_rows, had_digest = known.kinds[sequence]
            if had_rows != rows:
                raise _unrepeatable(partition, f"block {sequence} had {had_rows:,} rows, now {rows:,}")
            if had_digest != digest:
                raise _unrepeatable(partition, f"block {sequence} had other rows, or the same in another order")
            return self._grant_again(sender, known.blocks[sequence])
        if sequence > len(known.blocks):
            raise RendezvousError(f"partition {partition}: block {sequence} before block {len(known.blocks)}")
        shares = self._share(rows, needs_room=not (is_stalled and self._stranded))
        if shares is None:
            return None
        block = {name: _Granted(count, cost * count // rows) for name, count in shares.items()}
        known.kinds.append((rows, digest))
        known.blocks.append(block)
        self._stranded += len(block)
        self._epoch_rows += rows
        self.total_rows += rows
        self.total_cost += cost
        for name, granted in block.items():
            self._consumers[name].epoch_rows += granted.rows
        return self._grant_again(sender, block)

    def acknowledge(self, name: str, partition: int, sequence: int) -> None:
        """Note that a consumer has a slice in its memory."""
        known = self._partitions.get(partition)
        if known is None or known.is_done:
            return
        granted = known.blocks[sequence][name]
        if granted.is_stranded:
            self._count(name, granted, 1)
        granted.is_acknowledged = True
        granted.holders.clear()

    def leave_sender(self, sender: int) -> None:
        """Note that a sender is gone: what it held and nobody has acknowledged takes no room until it is asked for."""
        for name, granted in self._held.pop(sender, ()):
            if sender in granted.holders:
                granted.holders.discard(sender)
                if granted.is_stranded:
                    self._count(name, granted, -1)

    def finish(self, partition: int, blocks: int) -> bool:
        """Tell whether all slices of a partition with so many blocks have reached their consumers."""
        known = self._partitions.setdefault(partition, _Partition())
        if known.is_done:
            return True
        if len(known.blocks) != blocks:
            raise _unrepeatable(partition, f"it had {len(known.blocks)} blocks, now {blocks}")
        if not all(granted.is_acknowledged for block in known.blocks for granted in block.values()):
            return False
        known.is_done = True
        known.blocks.clear()
        return True

    def is_done(self, partition: int) -> bool:
        """Tell whether all of a partition has reached its consumers."""
        known = self._partitions.get(partition)
        return known is not None and known.is_done

    def missing(self, partitions: Iterable[int]) -> list[int]:
        """Return those partitions that are not done."""
        return [each for each in partitions if not self.is_done(each)]

    def epoch_rows(self) -> dict[str, int]:
        """Return how many rows of this epoch each consumer was granted."""
        return {name: consumer.epoch_rows for name, consumer in self._consumers.items()}

    def unread_rows(self) -> dict[str, int]:
        """Return how many rows each consumer was granted and has not read."""
        return {name: consumer.unread_rows for name, consumer in self._consumers.items()}

    def unread_bytes(self) -> dict[str, int]:
        """Return how many bytes each consumer was granted and has not read."""
        return {name: consumer.unread_cost for name, consumer in self._consumers.items()}

    def obstacles(self) -> list[str]:
        """Say who keeps rows from being granted, one sentence each."""
        found = []
        for name, consumer in self._consumers.items():
            if not consumer.was_present:
                found.append(f"{name} never opened the feed")
            elif not consumer.is_present:
                found.append(f"{name} is gone")
            elif not consumer.has_room(self._window_bytes):
                found.append(f"{name} does not read: {consumer.unread_rows:,} rows wait there")
        return found

    def _share(self, rows: int, *, needs_room: bool) -> dict[str, int] | None:
        if self._is_equal:
            if not all(consumer.is_present for consumer in self._consumers.values()):
                return None
            count = len(self._consumers)
            before, after = self._epoch_rows, self._epoch_rows + rows
            # Of n rows in all, consumer i has n // count, and one more where i < n % count.
            shares = {
                name: (after + count - 1 - index) // count - (before + count - 1 - index) // count
                for index, name in enumerate(self._consumers)
            }
            shares = {name: share for name, share in shares.items() if share}
        else:
            present = [name for name, consumer in self._consumers.items() if consumer.is_present]
            if not present:
                return None
            shares = {min(present, key=lambda name: self._consumers[name].unread_cost): rows}
        has_room = all(self._consumers[name].has_room(self._window_bytes) for name in shares)
        return shares if has_room or not needs_room else None

    def _grant_again(self, sender: int, block: dict[str, _Granted]) -> tuple[Slice, ...] | None:
        waiting = {name: granted for name, granted in block.items() if not granted.is_acknowledged}
        if not all(self._consumers[name].is_present for name in waiting):
            return None
        for name, granted in waiting.items():
            if granted.is_stranded:
                self._count(name, granted, 1)
            granted.holders.add(sender)
            self._held.setdefault(sender, []).append((name, granted))
        return tuple(
            Slice(name, granted.rows, granted.cost, granted.is_acknowledged) for name, granted in block.items()
        )

    def _count(self, name: str, granted: _Granted, sign: int) -> None:
        self._stranded -= sign
        self._consumers[name].granted_rows += sign * granted.rows
        self._consumers[name].granted_cost += sign * granted.cost


def _unrepeatable(partition: int, difference: str) -> UsageError:
    return UsageError(
        f"partition {partition} gave other rows when it was sent again: {difference}",
        hint="rows must come in the same order each time: cache or checkpoint what they are computed from",
    )


class Loans:
    """The blocks of one inference feed that are with consumers."""

    def __init__(self, consumers: Sequence[str], *, window_bytes: int) -> None:
        self._window_bytes = window_bytes
        self._is_present = dict.fromkeys(consumers, False)
        self._was_present: set[str] = set()
        self._lent: dict[str, dict[tuple[int, int], int]] = {name: {} for name in consumers}
        #: What was given back so far.
        self.total_rows = self.total_cost = 0

    def arrive(self, name: str) -> None:
        """Note that a consumer can be sent blocks."""
        self._is_present[name] = True
        self._was_present.add(name)

    def leave(self, name: str) -> None:
        """Note that a consumer is gone, and its blocks with it."""
        self._is_present[name] = False
        self._lent[name].clear()

    def is_present(self, name: str) -> bool:
        """Tell whether a consumer can be sent blocks."""
        return self._is_present[name]

    def ask(self, sender: int, sequence: int, cost: int) -> str | None:
        """Choose the consumer with most room for a block; None while none has any."""
        self._forget(sender, sequence)
        present = [name for name, is_present in self._is_present.items() if is_present]
        if not present:
            return None
        name = min(present, key=self._load)
        if self._load(name) >= self._window_bytes:
            return None
        self._lent[name][sender, sequence] = cost
        return name

    def give_back(self, sender: int, sequence: int, rows: int) -> None:
        """Note that a block of so many rows was answered."""
        cost = self._forget(sender, sequence)
        if cost is not None:
            self.total_rows += rows
            self.total_cost += cost

    def leave_sender(self, sender: int) -> None:
        """Note that nobody waits for the answers to a sender's blocks any more."""
        for lent in self._lent.values():
            for key in [key for key in lent if key[0] == sender]:
                del lent[key]

    def obstacles(self) -> list[str]:
        """Say who keeps blocks from being lent, one sentence each."""
        found = []
        for name, is_present in self._is_present.items():
            if name not in self._was_present:
                found.append(f"{name} never opened the feed")
            elif not is_present:
                found.append(f"{name} is gone")
            elif self._load(name) >= self._window_bytes:
                found.append(f"{name} does not answer: {len(self._lent[name])} blocks wait there")
        return found

    def _forget(self, sender: int, sequence: int) -> int | None:
        for lent in self._lent.values():
            if (sender, sequence) in lent:
                return lent.pop((sender, sequence))
        return None

    def _load(self, name: str) -> int:
        return sum(self._lent[name].values())
