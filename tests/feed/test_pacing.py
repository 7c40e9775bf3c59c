"""Who gets which rows when: pure, so whole feeds are played through with every order of events."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gridflow.errors import RendezvousError, UsageError
from gridflow.feed.inbox import Totals
from gridflow.feed.pacing import Loans, Pacing, Slice
from gridflow.feed.reading import Cutting

TASKS = ["worker/0", "worker/1", "worker/2"]


def paced(*, is_equal: bool = True, window_bytes: int = 1000, tasks: list[str] = TASKS[:2]) -> Pacing:
    pacing = Pacing(tasks, is_equal=is_equal, window_bytes=window_bytes)
    for task in tasks:
        pacing.arrive(task)
    pacing.begin_epoch()
    return pacing


def test_block_is_split_evenly_and_the_odd_row_goes_round() -> None:
    pacing = paced()
    assert pacing.ask(1, 0, 0, 5, 50) == (Slice("worker/0", 3, 30), Slice("worker/1", 2, 20))
    assert pacing.ask(1, 0, 1, 1, 10) == (Slice("worker/1", 1, 10),)
    assert pacing.epoch_rows() == {"worker/0": 3, "worker/1": 3}


def test_nothing_is_granted_before_all_equal_consumers_are_there() -> None:
    pacing = Pacing(TASKS, is_equal=True, window_bytes=1000)
    pacing.arrive("worker/0")
    assert pacing.ask(1, 0, 0, 5, 50) is None
    assert pacing.obstacles() == ["worker/1 never opened the feed", "worker/2 never opened the feed"]


def test_without_equality_a_block_goes_where_most_room_is() -> None:
    pacing = paced(is_equal=False)
    assert pacing.ask(1, 0, 0, 5, 50) == (Slice("worker/0", 5, 50),)
    assert pacing.ask(1, 0, 1, 5, 60) == (Slice("worker/1", 5, 60),)
    assert pacing.ask(1, 0, 2, 5, 50) == (Slice("worker/0", 5, 50),)


def test_full_window_holds_rows_back_until_some_are_read() -> None:
    pacing = paced(window_bytes=100)
    assert pacing.ask(1, 0, 0, 100, 400) is not None
    assert pacing.ask(1, 0, 1, 100, 400) is None
    assert pacing.obstacles() == [
        "worker/0 does not read: 50 rows wait there",
        "worker/1 does not read: 50 rows wait there",
    ]
    pacing.note_read("worker/0", 40, 160, 10)
    assert pacing.ask(1, 0, 1, 100, 400) is None
    pacing.note_read("worker/1", 40, 160, 10)
    assert pacing.ask(1, 0, 1, 100, 400) is not None


def test_less_than_two_batches_is_room_whatever_the_window() -> None:
    pacing = paced(window_bytes=1)
    for task in TASKS[:2]:
        pacing.note_read(task, 0, 0, 10)
    granted = [pacing.ask(1, 0, sequence, 10, 1000) is not None for sequence in range(6)]
    assert granted == [True, True, True, True, True, False]


def test_retry_gets_the_same_grant_and_skips_what_has_arrived() -> None:
    pacing = paced()
    pacing.ask(1, 7, 0, 5, 50)
    pacing.acknowledge("worker/0", 7, 0)
    pacing.leave_sender(1)
    assert pacing.ask(2, 7, 0, 5, 50) == (Slice("worker/0", 3, 30, True), Slice("worker/1", 2, 20))
    assert not pacing.finish(7, 1)
    pacing.acknowledge("worker/1", 7, 0)
    assert pacing.finish(7, 1)
    assert pacing.ask(3, 7, 0, 5, 50) == ()
    assert pacing.total_rows == 5


def test_rows_that_died_with_their_sender_take_no_room() -> None:
    pacing = paced(window_bytes=10)
    pacing.ask(1, 0, 0, 100, 100)
    assert pacing.ask(2, 1, 0, 100, 100) is None
    pacing.leave_sender(1)
    assert pacing.unread_rows() == {"worker/0": 0, "worker/1": 0}
    assert pacing.ask(2, 1, 0, 100, 100) is not None
    pacing.acknowledge("worker/0", 0, 0)  # it had arrived after all
    assert pacing.unread_rows() == {"worker/0": 100, "worker/1": 50}


def test_partition_that_changed_is_refused() -> None:
    pacing = paced()
    pacing.ask(1, 3, 0, 5, 50)
    with pytest.raises(
        UsageError, match="partition 3 gave other rows when it was sent again: block 0 had 5 rows, now 6"
    ):
        pacing.ask(2, 3, 0, 6, 50)
    with pytest.raises(UsageError, match="block 0 had other rows, or the same in another order"):
        pacing.ask(2, 3, 0, 5, 50, digest=1)
    with pytest.raises(UsageError, match=r"it had 1 blocks, now 0 \(rows must come in the same order each time"):
        pacing.finish(3, 0)
    with pytest.raises(RendezvousError, match="partition 3: block 2 before block 1"):
        pacing.ask(1, 3, 2, 5, 50)


def test_loans_go_to_the_idlest_and_come_back_once() -> None:
    loans = Loans(TASKS[:2], window_bytes=100)
    assert loans.ask(1, 0, 60) is None
    assert loans.obstacles() == ["worker/0 never opened the feed", "worker/1 never opened the feed"]
    for task in TASKS[:2]:
        loans.arrive(task)
    assert [loans.ask(1, sequence, 60) for sequence in range(5)] == [
        "worker/0",
        "worker/1",
        "worker/0",
        "worker/1",
        None,
    ]
    assert loans.obstacles() == [f"{task} does not answer: 2 blocks wait there" for task in TASKS[:2]]
    loans.give_back(1, 1, 7)
    loans.give_back(1, 1, 7)
    assert loans.total_rows == 7
    assert loans.ask(1, 4, 60) == "worker/1"
    loans.leave("worker/1")
    assert loans.ask(1, 1, 60) is None
    loans.leave_sender(1)
    assert loans.ask(2, 0, 60) == "worker/0"


@dataclass
class Worker:
    """A consumer in lock-step: it reads up to `prefetch` batches ahead of the step that all take together."""

    prefetch: int
    epoch: int = 0
    received: list[int] = field(default_factory=lambda: [0, 0, 0])
    batches: int = 0
    ahead: int = 0
    steps: list[int] = field(default_factory=lambda: [0, 0, 0])
    read: int = 0
    seen: Counter[tuple[int, int, int]] = field(default_factory=Counter)


@dataclass
class Sender:
    number: int
    partition: int
    next: int = 0
    in_flight: deque[tuple[int, Slice]] = field(default_factory=deque)


class Play:
    """A feed from its first to its last row, with everything happening in any order."""

    def __init__(self, random: Random, partitions: list[list[int]], workers: list[Worker], cutting: Cutting) -> None:
        self.random = random
        self.partitions = partitions
        self.workers = dict(zip([f"worker/{index}" for index in range(len(workers))], workers, strict=True))
        self.cutting = cutting
        self.slots = random.randint(1, 3)
        self.window = random.randint(1, 100)
        self.kills = random.randint(0, 5)
        self.has_kills = bool(self.kills)
        self.pacing = paced(tasks=list(self.workers), window_bytes=self.window)
        for name in self.workers:
            self.pacing.note_read(name, 0, 0, cutting.batch_rows)
        self.epoch, self.totals = 0, list[Totals]()
        self.senders: list[Sender] = []
        self.numbers = 0
        self.pending = deque(range(len(partitions)))

    def run(self, epochs: int) -> None:
        while not (self.epoch == epochs and all(worker.epoch == epochs for worker in self.workers.values())):
            if self.epoch < epochs and not self.pending and not self.senders:
                rows = self.pacing.epoch_rows()
                assert self.pacing.missing(range(len(self.partitions))) == []
                assert max(rows.values()) - min(rows.values()) <= 1
                self.totals += [Totals(min(rows.values()), max(rows.values()), 0)]
                self.epoch += 1
                self.pending = deque(range(len(self.partitions)) if self.epoch < epochs else ())
                self.pacing.begin_epoch()
                continue
            while self.pending and len(self.senders) < self.slots:
                self.numbers += 1
                self.senders.append(Sender(self.numbers, self.pending.popleft()))
            actions = [self.act_on(sender) for sender in self.senders] + [
                lambda name=name: self.consume(name) for name in self.workers
            ]
            actions.append(self.step)
            self.random.shuffle(actions)
            self.is_stalled = False
            if not any(action() for action in actions):
                self.is_stalled = True
                assert any(action() for action in actions), f"deadlock: {self.pacing.obstacles()}"
                assert self.has_kills, f"stalled: {self.pacing.obstacles()}"
            if self.kills and self.senders and self.random.random() < 0.1:
                self.kill(self.random.choice(self.senders))
            self.check_memory()

    def act_on(self, sender: Sender) -> Callable[[], bool]:
        return lambda: sender in self.senders and self.send(sender)

    def send(self, sender: Sender) -> bool:
        """Ask for the next block or deliver a slice of an earlier one; a slice is never held up for long."""
        if sender.in_flight and self.random.random() < 0.7:
            return self.deliver(sender)
        return self.ask(sender) or (bool(sender.in_flight) and self.deliver(sender))

    def ask(self, sender: Sender) -> bool:
        blocks = self.partitions[sender.partition]
        if sender.next == len(blocks):
            is_done = self.pacing.finish(sender.partition, len(blocks))
            if is_done:
                self.senders.remove(sender)
            return is_done
        rows = blocks[sender.next]
        about = (sender.partition, sender.next, rows, rows)
        slices = self.pacing.ask(sender.number, *about, is_stalled=self.is_stalled)
        if slices is None:
            return False
        sender.in_flight.extend((sender.next, each) for each in slices if not each.is_acknowledged)
        sender.next += 1
        return True

    def deliver(self, sender: Sender) -> bool:
        sequence, slice_ = sender.in_flight.popleft()
        worker = self.workers[slice_.consumer]
        key = (self.epoch, sender.partition, sequence)
        if not worker.seen[key]:
            worker.received[self.epoch] += slice_.rows
        worker.seen[key] += 1
        self.pacing.acknowledge(slice_.consumer, sender.partition, sequence)
        return True

    def kill(self, sender: Sender) -> None:
        self.kills -= 1
        self.senders.remove(sender)
        self.pacing.leave_sender(sender.number)
        # Its slot may go to any other partition first.
        self.pending.append(sender.partition)

    def consume(self, name: str) -> bool:
        worker, size = self.workers[name], self.cutting.batch_rows
        if worker.epoch == len(worker.received) - 1 or worker.ahead > worker.prefetch:
            return False
        totals = self.totals[worker.epoch] if worker.epoch < len(self.totals) else None
        if self.cutting.ready(worker.received[worker.epoch], totals) > worker.batches:
            worker.batches += 1
            worker.ahead += 1
            worker.read += size
        elif totals is not None and not worker.ahead:
            assert worker.batches == self.cutting.batches(totals)
            worker.read += worker.received[worker.epoch] - worker.batches * size
            worker.epoch, worker.batches = worker.epoch + 1, 0
        else:
            return False
        self.pacing.note_read(name, worker.read, worker.read, size)
        return True

    def step(self) -> bool:
        """Train on one batch of each worker, as a collective operation does."""
        workers = self.workers.values()
        if len({worker.epoch for worker in workers}) > 1 or not all(worker.ahead for worker in workers):
            return False
        for worker in workers:
            worker.ahead -= 1
            worker.steps[worker.epoch] += 1
        return True

    def check_memory(self) -> None:
        if not self.has_kills:
            largest = max(rows for blocks in self.partitions for rows in blocks)
            bound = max(self.window, 2 * self.cutting.batch_rows + 4) + largest
            assert max(self.pacing.unread_bytes().values()) <= bound


@settings(max_examples=200, deadline=None)
# A sender is lost whose rows one worker has and the others wait for, and its slot goes to one that waits for room.
@example(random=Random(397), partitions=[[33], [1, 3, 3]], prefetch=[0, 0, 0], batch_rows=1)
@given(
    # Every choice of a `randoms()` would be recorded, and there are thousands of them.
    random=st.integers(0, 2**32).map(Random),
    partitions=st.lists(st.lists(st.integers(1, 40), max_size=6), min_size=1, max_size=6).filter(any),
    prefetch=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    batch_rows=st.integers(1, 30),
)
def test_workers_in_lock_step_get_the_same_batches_and_never_wait_for_each_other(
    random: Random, partitions: list[list[int]], prefetch: list[int], batch_rows: int
) -> None:
    play = Play(random, partitions, [Worker(each) for each in prefetch], Cutting(batch_rows))
    play.run(epochs=2)
    rows = sum(map(sum, partitions))
    for epoch in range(2):
        steps = {worker.steps[epoch] for worker in play.workers.values()}
        assert steps == {rows // len(prefetch) // batch_rows}
        assert sum(worker.received[epoch] for worker in play.workers.values()) == rows
