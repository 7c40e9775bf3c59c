"""Partitions reach their consumers once, whatever happens to those who send them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import asdict

import pyarrow as pa
import pytest
from tests.feed.parties import SECONDS, Driver, numbers, read_numbers, result_of, send, start_program
from tests.waiting import until

from gridflow.errors import RendezvousError, TaskFailedError
from gridflow.feed import sender
from gridflow.feed.feed import Feed
from gridflow.feed.receiver import Receiver

TASKS = ["worker/0", "worker/1", "worker/2"]


@pytest.mark.parametrize(("transport", "equal"), [("unix", True), ("tcp", True), ("unix", False)])
def test_killed_sender_loses_and_doubles_no_row(driver: Driver, transport: str, equal: bool) -> None:
    driver.coordinator.open("train", TASKS, equal=equal, epochs=1, window_bytes=8000)
    workers = [driver.read("train", task, lambda feed: read_numbers(feed, 7, remainder="keep")) for task in TASKS]
    epoch = driver.coordinator.begin_epoch("train")
    assert epoch is not None
    partitions, rows = 3, 4000
    program = start_program(
        "send.py",
        coordinator=str(driver.address),
        epoch=asdict(epoch),
        transport=transport,
        partitions=partitions,
        rows=rows,
        kills=4,
        seed=f"{transport}{equal}",
    )
    assert result_of(program) == 4 * partitions
    assert driver.coordinator.end_epoch(epoch, range(partitions))
    got = [row for worker in workers for batch in worker.result(SECONDS) for row in batch]
    padded = sum(each.padded for each in driver.report("train").consumers.values())
    expected = [partition * 1_000_000 + row for partition in range(partitions) for row in range(rows)]
    assert len(got) == len(expected) + padded
    assert sorted(set(got)) == expected
    assert driver.coordinator.report("train").rows == partitions * rows


def test_two_attempts_of_one_partition_at_once_are_one(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:2], epochs=1)
    workers = [driver.read("train", task, lambda feed: read_numbers(feed, 5000)) for task in TASKS[:2]]
    epoch = driver.coordinator.begin_epoch("train")
    together = threading.Barrier(2)

    def slowly() -> Iterator[pa.RecordBatch]:
        for start in range(0, 3_000_000, 300_000):
            if start < 1_500_000:
                together.wait(SECONDS)
            yield pa.record_batch({"n": range(start, start + 300_000)})

    senders = [driver.run(send, slowly(), driver.origin(epoch, 0)) for _ in range(2)]
    assert [each.result(SECONDS).rows for each in senders] == [3_000_000] * 2
    assert epoch is not None
    assert driver.coordinator.end_epoch(epoch, range(1))
    rows = [row for worker in workers for batch in worker.result(SECONDS) for row in batch]
    assert sorted(rows) == list(range(3_000_000))
    # One that comes late has nothing to do.
    assert send(slowly(), driver.origin(epoch, 0)).rows == 0


def test_partition_whose_rows_changed_fails_the_feed(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:1])
    with driver.join("train", TASKS[0]):
        epoch = driver.coordinator.begin_epoch("train")

        def interrupted() -> Iterator[pa.RecordBatch]:
            yield pa.record_batch({"n": range(1_000_000)})
            raise InterruptedError

        with pytest.raises(InterruptedError):
            send(interrupted(), driver.origin(epoch, 0))
        with pytest.raises(TaskFailedError, match=r"partition 0 gave other rows when it was sent again: .* cache or"):
            send([pa.record_batch({"n": range(1000)})], driver.origin(epoch, 0))


def test_partition_whose_rows_come_in_another_order_fails_the_feed_rather_than_doubling_rows(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:1])
    blocks = [pa.record_batch({"n": range(start, start + 300_000)}) for start in range(0, 3_000_000, 300_000)]

    def interrupted() -> Iterator[pa.RecordBatch]:
        yield from blocks[:8]
        raise InterruptedError

    with driver.join("train", TASKS[0]):
        epoch = driver.coordinator.begin_epoch("train")
        with pytest.raises(InterruptedError):
            send(interrupted(), driver.origin(epoch, 0))
        with pytest.raises(TaskFailedError, match="block 0 had other rows, or the same in another order"):
            send(reversed(blocks), driver.origin(epoch, 0))


def test_consumer_that_dies_holds_senders_until_it_is_back(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:2], epochs=1, window_bytes=10_000)
    dying = start_program("read.py", coordinator=str(driver.address), feed="train", task=TASKS[0])
    with dying, driver.join("train", TASKS[1]) as feed:
        epoch = driver.coordinator.begin_epoch("train")
        [batches] = numbers(3_000_000, size=100_000)
        sending = driver.run(send, batches, driver.origin(epoch, 0))
        assert dying.stdout is not None
        assert dying.stdout.readline() == "took a batch\n"
        dying.kill()
        dying.wait(SECONDS)
        for _ in zip(range(3), feed.batches(10), strict=False):
            pass
        assert not sending.done()
        driver.coordinator.restart(1)
        assert sending.result(SECONDS).was_stopped

    def count(feed: Feed) -> int:
        return sum(batch.rows for batch in feed.batches(1000))

    workers = [driver.read("train", task, count, 1) for task in TASKS[:2]]
    driver.send_epoch("train", [batches])
    assert [worker.result(SECONDS) for worker in workers] == [1_500_000] * 2


def test_unread_rows_stay_within_the_window(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:2], epochs=1, window_bytes=5 << 20)
    is_enough = threading.Event()

    def slowly(feed: Feed) -> int:
        rows = 0
        for batch in feed.batches(1000):
            if not rows:
                is_enough.wait(SECONDS)
            rows += batch.rows
        return rows

    workers = [driver.read("train", task, slowly) for task in TASKS[:2]]
    [batches] = numbers(10_000_000, size=100_000)
    senders = [driver.run(driver.send_epoch, "train", [batches[:50], batches[50:]])]
    seen = list[int]()

    def has_settled() -> bool:
        seen.append(max(driver.coordinator.unread_bytes("train").values()))
        return len(seen) > 20 and seen[-20] == seen[-1] > 0

    until(has_settled, "senders fill the window")
    is_enough.set()
    assert [worker.result(SECONDS) for worker in workers] == [5_000_000] * 2
    senders[0].result(SECONDS)
    assert 5 << 20 <= max(seen) <= 7 << 20


def test_slice_that_is_lost_in_a_broken_link_is_noticed(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.coordinator.open("train", TASKS[:1], epochs=1)
    monkeypatch.setattr(sender, "_VERDICT_SECONDS", 0.1)
    worker = driver.read("train", TASKS[0], lambda feed: read_numbers(feed, 5))
    epoch = driver.coordinator.begin_epoch("train")
    with monkeypatch.context() as patch:
        patch.setattr(Receiver, "_take_slices", lambda *_: time.sleep(0.5))
        with pytest.raises(RendezvousError, match="worker/0 closed the connection before it had all rows"):
            send(numbers(10)[0], driver.origin(epoch, 0))
    driver.send_epoch("train", numbers(10))
    assert worker.result(SECONDS) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
