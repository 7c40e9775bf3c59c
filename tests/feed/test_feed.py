"""What programs see of feeds: batches, epochs, remainders, and how a feed ends."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from tests.feed.parties import SECONDS, SECRET, Driver, numbers, read_numbers, rows_block, send

from gridflow.errors import DeadlineError, SchemaError, TaskFailedError, UsageError
from gridflow.feed import sender
from gridflow.feed.blocks import BytesBlock
from gridflow.feed.feed import Feed, open_feed
from gridflow.feed.reading import Remainder, peeking

TASKS = ["worker/0", "worker/1"]


def test_workers_get_equal_batches_of_each_row_once_in_every_epoch(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS, epochs=3)
    workers = [
        driver.read("train", task, lambda feed: [(feed.epoch, read_numbers(feed)) for _ in range(4)]) for task in TASKS
    ]
    for _ in range(3):
        sent = driver.send_epoch("train", numbers(100, 0, 37, 1, 0))
        assert [each.rows for each in sent] == [100, 0, 37, 1, 0]
    assert driver.coordinator.begin_epoch("train") is None
    assert driver.coordinator.wait_read("train", SECONDS)
    read = [worker.result(SECONDS) for worker in workers]
    for epoch in range(3):
        batches = [worker[epoch] for worker in read]
        assert [number for number, _ in batches] == [epoch, epoch]
        assert [len(each) for _, each in batches] == [6, 6]
        rows = [row for _, each in batches for batch in each for row in batch]
        assert len(set(rows)) == len(rows) == 120
    assert [worker[3] for worker in read] == [(3, []), (3, [])]
    report = driver.coordinator.report("train")
    assert (report.rows, report.bytes, report.epochs, report.is_stopped) == (414, 414 * 8, 3, False)
    for task in TASKS:
        consumer = report.consumers[task]
        assert (consumer.rows, consumer.batches, consumer.dropped, consumer.padded) == (207, 18, 27, 0)


@pytest.mark.parametrize(
    ("remainder", "expected"),
    [
        ("drop", [[[0, 1], [2, 3]], [[5, 6], [7, 8]]]),
        ("keep", [[[0, 1], [2, 3], [4]], [[5, 6], [7, 8], [8]]]),
        ("pad", [[[0, 1], [2, 3], [4, 4]], [[5, 6], [7, 8], [8, 8]]]),
    ],
)
def test_remainder_is_dropped_kept_or_padded_and_batches_stay_equal(
    driver: Driver, remainder: Remainder, expected: list[list[list[int]]]
) -> None:
    driver.coordinator.open("train", TASKS, epochs=1)

    def read(feed: Feed) -> list[list[int]]:
        return [batch["n"].tolist() for batch in feed.batches(2, remainder=remainder)]

    workers = [driver.read("train", task, read) for task in TASKS]
    driver.send_epoch("train", numbers(9))
    assert [worker.result(SECONDS) for worker in workers] == expected
    consumers = driver.report("train").consumers.values()
    assert [each.dropped for each in consumers] == ([1, 0] if remainder == "drop" else [0, 0])
    assert [each.padded for each in consumers] == {"drop": [0, 0], "keep": [0, 1], "pad": [1, 2]}[remainder]


def test_worker_without_any_row_is_padded_with_blanks(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS, epochs=1)
    batch = pa.record_batch(
        {"n": [7], "s": ["x"], "v": [[1.0, 2.0]], "b": [True], "i": [b"ab"]},
        schema=pa.schema(
            {"n": pa.int32(), "s": pa.string(), "v": pa.list_(pa.float32()), "b": pa.bool_(), "i": pa.binary()}
        ),
    )

    def read(feed: Feed) -> list[tuple[int, dict[str, object]]]:
        return [
            (batch.padded, {name: column.tolist() for name, column in batch.items()})
            for batch in feed.batches(2, remainder="pad", shapes={"i": [2]})
        ]

    workers = [driver.read("train", task, read) for task in TASKS]
    driver.send_epoch("train", [[batch]])
    first, second = [worker.result(SECONDS) for worker in workers]
    ones = {"n": [7, 7], "s": ["x", "x"], "v": [[1.0, 2.0]] * 2, "b": [True, True], "i": [[97, 98]] * 2}
    assert first == [(1, ones)]
    blanks = {"n": [0, 0], "s": ["", ""], "v": [[0.0, 0.0]] * 2, "b": [False, False], "i": [[0, 0]] * 2}
    assert second == [(2, blanks)]


def test_feed_without_rows_ends_at_once_with_the_columns_that_were_told(driver: Driver) -> None:
    schema = pa.schema({"n": pa.int64(), "v": pa.list_(pa.float32())})
    driver.coordinator.open("train", TASKS, epochs=1, schema=schema)
    workers = [driver.read("train", task, lambda feed: (read_numbers(feed), feed.schema)) for task in TASKS]
    driver.send_epoch("train", [[], []])
    assert [worker.result(SECONDS) for worker in workers] == [([], schema)] * 2


def test_feed_that_ends_before_its_columns_are_known_says_so(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:1], epochs=1)
    worker = driver.read("train", TASKS[0], read_numbers)
    driver.send_epoch("train", [[]])
    driver.coordinator.finish("train")
    with pytest.raises(Exception, match="feed 'train' ended before its first row, so its columns are not known"):
        worker.result(SECONDS)


def test_without_equality_all_rows_arrive_wherever_there_is_room(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS, equal=False, epochs=1)
    workers = [driver.read("train", task, lambda feed: read_numbers(feed, remainder="keep")) for task in TASKS]
    driver.send_epoch("train", numbers(*[100] * 8))
    rows = [row for worker in workers for batch in worker.result(SECONDS) for row in batch]
    assert sorted(rows) == list(range(800))


def test_two_feeds_at_once_are_kept_apart(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS, epochs=1)
    driver.coordinator.open("validation", TASKS[:1], epochs=1)

    def read(task: str) -> tuple[list[list[int]], list[list[int]]]:
        with driver.join("train", task) as train:
            if task != TASKS[0]:
                return read_numbers(train), []
            with driver.join("validation", task) as validation:
                batches = train.batches(10)
                first = next(batches)["n"].tolist()
                validated = read_numbers(validation, 5)
                return [first, *(batch["n"].tolist() for batch in batches)], validated

    workers = [driver.run(read, task) for task in TASKS]
    sent = driver.run(driver.send_epoch, "train", numbers(100))
    driver.send_epoch("validation", numbers(20))
    sent.result(SECONDS)
    (train, validated), _ = [worker.result(SECONDS) for worker in workers]
    assert train == [list(range(start, start + 10)) for start in range(0, 50, 10)]
    assert validated == [list(range(start, start + 5)) for start in range(0, 20, 5)]


def test_stop_ends_the_feed_for_all_and_tells_senders_and_the_driver(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS, window_bytes=1000)
    epoch = driver.coordinator.begin_epoch("train")
    is_stopped = threading.Event()

    def stop(feed: Feed) -> None:
        next(feed.batches(10))
        feed.stop()
        assert feed.is_ended
        is_stopped.set()

    def read(feed: Feed) -> int:
        is_stopped.wait(SECONDS)
        return len(read_numbers(feed))

    workers = [driver.read("train", TASKS[0], stop), driver.read("train", TASKS[1], read)]
    [batches] = numbers(1_000_000, size=1000)
    sent = send(batches, driver.origin(epoch, 0))
    assert sent.was_stopped
    assert sent.rows < 1_000_000
    assert epoch is not None
    assert driver.coordinator.wait_interruption(epoch, SECONDS) == "stopped"
    assert driver.coordinator.is_stopped("train")
    assert not driver.coordinator.end_epoch(epoch, range(1))
    for worker in workers:
        worker.result(SECONDS)
    assert send(batches, driver.origin(epoch, 1)).was_stopped


def test_program_that_ends_before_the_feed_stops_it(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:1], window_bytes=1000)
    worker = driver.read("train", TASKS[0], lambda feed: next(feed.batches(10))["n"].tolist())
    epoch = driver.coordinator.begin_epoch("train")
    [batches] = numbers(1_000_000, size=1000)
    assert send(batches, driver.origin(epoch, 0)).was_stopped
    assert worker.result(SECONDS) == list(range(10))
    report = driver.coordinator.report("train")
    assert report.is_stopped
    assert report.consumers["worker/0"].unread > 0


def test_run_that_ends_well_ends_feeds_that_nobody_has_opened(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS)
    epoch = driver.coordinator.begin_epoch("train")
    [batches] = numbers(100)
    sender = driver.run(send, batches, driver.origin(epoch, 0))
    driver.coordinator.end()
    with pytest.raises(TaskFailedError, match="the run has ended, and no task has opened the feed"):
        sender.result(SECONDS)
    driver.coordinator.open("late", TASKS)
    epoch = driver.coordinator.begin_epoch("late")
    assert epoch is not None
    assert driver.coordinator.interruption(epoch) == "failed"
    assert driver.coordinator.failure("late") == "feed 'late': the run has ended, and nobody can read it"


def test_run_that_ends_well_stops_a_feed_that_one_task_has_never_opened(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS, equal=False, epochs=1)
    worker = driver.read("train", TASKS[0], read_numbers)
    driver.send_epoch("train", numbers(100))
    assert sorted(row for batch in worker.result(SECONDS) for row in batch) == list(range(100))
    assert driver.coordinator.absent("train") == TASKS[1:]
    driver.coordinator.end()
    assert driver.coordinator.is_stopped("train")


def test_run_that_ends_well_changes_nothing_of_a_feed_that_was_read(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:1], epochs=1)
    worker = driver.read("train", TASKS[0], read_numbers)
    driver.send_epoch("train", numbers(100))
    worker.result(SECONDS)
    driver.coordinator.end()
    assert driver.coordinator.wait_read("train", SECONDS)
    assert not driver.coordinator.report("train").is_stopped
    assert driver.coordinator.failure("train") is None


def test_failure_reaches_senders_and_consumers_with_its_text(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS, window_bytes=100)
    epoch = driver.coordinator.begin_epoch("train")
    failed_late = driver.read("train", TASKS[0], lambda feed: [batch["n"] for batch in feed.batches(10)])
    [batches] = numbers(1000, size=10)
    sender = driver.run(send, batches, driver.origin(epoch, 0))
    driver.coordinator.fail("worker/1 failed: ZeroDivisionError: division by zero")
    for party in (sender, failed_late):
        with pytest.raises(TaskFailedError, match="worker/1 failed: ZeroDivisionError: division by zero"):
            party.result(SECONDS)
    with pytest.raises(TaskFailedError, match="ZeroDivisionError"):
        driver.join("train", TASKS[1])
    assert epoch is not None
    assert driver.coordinator.interruption(epoch) == "failed"
    with pytest.raises(TaskFailedError, match="ZeroDivisionError"):
        driver.coordinator.end_epoch(epoch, range(1))


def test_tasks_that_start_again_read_the_epoch_from_its_first_row(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS, epochs=2, window_bytes=4000)
    have_begun = threading.Barrier(3)

    def lose(feed: Feed) -> list[list[int]]:
        read = read_numbers(feed)
        batches = feed.batches(10)
        next(batches)
        have_begun.wait(SECONDS)
        with pytest.raises(TaskFailedError, match="the tasks were started again"):
            list(batches)
        return read

    old = [driver.read("train", task, lose) for task in TASKS]
    driver.send_epoch("train", numbers(100))
    epoch = driver.coordinator.begin_epoch("train")
    assert epoch is not None
    assert epoch.number == 1
    [batches] = numbers(1_000_000, size=1000)
    sender = driver.run(send, batches, driver.origin(epoch, 0))
    have_begun.wait(SECONDS)
    driver.coordinator.restart(1)
    assert sender.result(SECONDS).was_stopped
    assert driver.coordinator.interruption(epoch) == "restarted"
    assert not driver.coordinator.end_epoch(epoch, range(1))
    for worker in old:
        assert len(worker.result(SECONDS)) == 5
    new = [driver.read("train", task, lambda feed: (feed.epoch, read_numbers(feed)), 1) for task in TASKS]
    driver.send_epoch("train", numbers(100))
    read = [worker.result(SECONDS) for worker in new]
    assert [number for number, _ in read] == [1, 1]
    assert sorted(row for _, batches in read for batch in batches for row in batch) == list(range(100))
    with pytest.raises(UsageError, match="worker/0 belongs to attempt 0, and attempt 1 has begun"):
        driver.join("train", TASKS[0])


def test_tasks_that_start_again_before_the_driver_knows_wait_for_it(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:1], epochs=1)
    worker = driver.read("train", TASKS[0], read_numbers, 1)
    driver.coordinator.restart(1)
    driver.send_epoch("train", numbers(10))
    assert worker.result(SECONDS) == [list(range(10))]
    with pytest.raises(UsageError, match="attempt 1 does not come after attempt 1"):
        driver.coordinator.restart(1)


def test_stall_names_who_does_not_read(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS, window_bytes=100, timeout_seconds=0.5)
    epoch = driver.coordinator.begin_epoch("train")
    [batches] = numbers(1000, size=10)
    with pytest.raises(
        TaskFailedError, match=r"nothing moved for 0.5 s: worker/0 never opened the feed; worker/1 never"
    ):
        send(batches, driver.origin(epoch, 0))
    driver.coordinator.open("idle", TASKS[:1], window_bytes=100, timeout_seconds=0.5)
    with driver.join("idle", TASKS[0]) as feed:
        epoch = driver.coordinator.begin_epoch("idle")
        with pytest.raises(
            TaskFailedError, match=r"nothing moved for 0.5 s: worker/0 does not read: [0-9,]+ rows wait"
        ):
            send([pa.record_batch({"n": range(1000)})] * 3000, driver.origin(epoch, 0))
        with pytest.raises(TaskFailedError, match="nothing moved"):
            read_numbers(feed)


def test_iteration_that_is_left_early_starts_the_epoch_over(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:1], epochs=2)

    def read(feed: Feed) -> list[object]:
        look = feed.batches(10)
        looked = [next(look)["n"].tolist() for _ in range(2)]
        whole = read_numbers(feed)
        assert next(look, None) is None
        return [looked, whole, feed.epoch, read_numbers(feed), feed.is_ended]

    worker = driver.read("train", TASKS[0], read)
    for _ in range(2):
        driver.send_epoch("train", numbers(45))
    tens = [list(range(start, start + 10)) for start in range(0, 40, 10)]
    assert worker.result(SECONDS) == [tens[:2], tens, 1, tens, True]
    consumer = driver.report("train").consumers["worker/0"]
    assert (consumer.batches, consumer.dropped) == (8, 10)


def test_iteration_that_took_exactly_all_batches_was_an_epoch(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:1], epochs=2)
    is_seen = threading.Event()

    def read(feed: Feed) -> list[list[int]]:
        taken = [next(batches)["n"].tolist() for batches in (feed.batches(10), feed.batches(10))]
        is_seen.wait(SECONDS)
        return taken

    worker = driver.read("train", TASKS[0], read)
    driver.send_epoch("train", numbers(15))
    driver.send_epoch("train", [[pa.record_batch({"n": range(100, 115)})]])
    assert driver.coordinator.wait_read("train", SECONDS)
    is_seen.set()
    assert worker.result(SECONDS) == [list(range(10)), list(range(100, 110))]
    assert not driver.coordinator.is_stopped("train")


def test_peek_at_the_only_batch_does_not_count_as_an_epoch(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:1], epochs=1)

    def read(feed: Feed) -> list[list[list[int]]]:
        with peeking():
            first = next(feed.batches(10))["n"].tolist()
        return [[first], read_numbers(feed), read_numbers(feed)]

    worker = driver.read("train", TASKS[0], read)
    driver.send_epoch("train", numbers(15))
    assert worker.result(SECONDS) == [[list(range(10))], [list(range(10))], []]


def test_iteration_that_is_left_late_goes_on_to_the_next_epoch(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:1], epochs=2)
    wide = pa.record_batch({"n": range(4096), "v": np.zeros((4096, 4096), np.uint8).tolist()[:1] * 4096})
    assert wide.nbytes > 100_000_000

    def read(feed: Feed) -> list[int]:
        batches = feed.batches(128)
        for _ in range(12):
            next(batches)
        return [int(next(feed.batches(128))["n"][0]), feed.epoch]

    worker = driver.read("train", TASKS[0], read)
    driver.send_epoch("train", [[wide]])
    driver.send_epoch("train", [[pa.record_batch({"n": range(4096, 8192), "v": wide["v"]})]])
    assert worker.result(SECONDS) == [4096, 1]
    assert driver.report("train").consumers["worker/0"].dropped >= 4096 - 12 * 128


def test_columns_are_not_handed_out_as_rows(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:1], equal=False, epochs=1)

    def read(feed: Feed) -> None:
        with pytest.raises(SchemaError, match=r"feed 'train' carries columns, not Python objects \(use batches"):
            feed.next_rows(2)

    worker = driver.read("train", TASKS[0], read)
    driver.send_epoch("train", [[pa.record_batch({"n": range(3)})]])
    worker.result(SECONDS)


def test_rows_that_are_python_objects_come_in_lists(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:1], equal=False, epochs=2)
    rows = [(number, {"name": str(number)}, None) for number in range(25)]

    def read(feed: Feed) -> list[object]:
        with pytest.raises(SchemaError, match=r"feed 'train' carries Python objects, not columns \(use rows"):
            next(feed.batches(10))
        first = [len(feed.next_rows(20)), len(feed.next_rows(3)), feed.next_rows(20), feed.next_rows(20)]
        return [*first, list(feed.rows(10)), feed.schema, feed.is_ended, feed.next_rows(1)]

    worker = driver.read("train", TASKS[0], read)
    for _ in range(2):
        epoch = driver.coordinator.begin_epoch("train")
        assert epoch is not None
        assert sender.send(rows_block(rows), driver.origin(epoch, 0)).rows == 25
        driver.coordinator.end_epoch(epoch, range(1))
    lists = [rows[:10], rows[10:20], rows[20:]]
    assert worker.result(SECONDS) == [20, 3, rows[23:], [], lists, None, True, []]


def test_rows_that_are_bytes_arrive_as_they_were_sent_and_are_told_from_others(driver: Driver) -> None:
    rows = [bytes([number]) * number for number in range(7)]
    driver.coordinator.open("train", TASKS, epochs=1)
    reads = [driver.read("train", task, lambda feed: list(map(bytes, feed.next_rows(100)))) for task in TASKS]
    epoch = driver.coordinator.begin_epoch("train")
    assert epoch is not None
    sent = sender.send(iter([BytesBlock(rows[:5]), BytesBlock(rows[5:])]), driver.origin(epoch, 0))
    assert (sent.rows, sent.bytes) == (7, sum(range(7)))
    driver.coordinator.end_epoch(epoch, [0])
    assert sorted(row for read in reads for row in read.result(SECONDS)) == rows
    assert BytesBlock(rows).digest() not in (BytesBlock(rows[::-1]).digest(), BytesBlock(rows[1:]).digest())


def test_who_has_all_rows_of_the_last_epoch_may_leave_without_asking_for_more(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS, epochs=1)
    has_left = threading.Event()

    def read_later(feed: Feed) -> list[object]:
        assert has_left.wait(SECONDS)
        return feed.next_rows(100)

    first = driver.read("train", TASKS[0], lambda feed: feed.next_rows(100))
    second = driver.read("train", TASKS[1], read_later)
    epoch = driver.coordinator.begin_epoch("train")
    assert epoch is not None
    sender.send(rows_block([1, 2, 3, 4]), driver.origin(epoch, 0))
    driver.coordinator.end_epoch(epoch, [0])
    assert first.result(SECONDS) == [1, 2]
    has_left.set()
    assert second.result(SECONDS) == [3, 4]


def test_columns_of_different_senders_must_agree(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:1], epochs=1)
    worker = driver.read("train", TASKS[0], read_numbers)
    epoch = driver.coordinator.begin_epoch("train")
    send(numbers(10)[0], driver.origin(epoch, 0))
    for columns, message in (
        ({"n": ["x"]}, "column 'n' of this feed is int64, and is sent as string"),
        ({"m": [1]}, r"this feed has the columns \['n'\], and is sent \['m'\]"),
    ):
        with pytest.raises(SchemaError, match=message):
            send([pa.record_batch(columns)], driver.origin(epoch, 1))
    with pytest.raises(SchemaError, match="either columns or Python objects, and this one is sent both"):
        sender.send(rows_block([1]), driver.origin(epoch, 1))
    assert epoch is not None
    with pytest.raises(UsageError, match="cannot end: of 2 partitions 1 were not sent, the first is 1"):
        driver.coordinator.end_epoch(epoch, range(2))
    driver.coordinator.end_epoch(epoch, range(1))
    assert worker.result(SECONDS) == [list(range(10))]


def test_batches_of_different_sizes_are_refused_where_they_must_be_equal(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS)
    workers = [
        driver.read("train", task, partial(read_numbers, batch_size=size))
        for task, size in zip(TASKS, (10, 20), strict=True)
    ]
    epoch = driver.coordinator.begin_epoch("train")
    sender = driver.run(send, numbers(1000)[0], driver.origin(epoch, 0))
    for worker in workers:
        with pytest.raises(
            TaskFailedError, match="batches of different sizes: worker/0 of 10, worker/1 of 20; use one"
        ):
            worker.result(SECONDS)
    sender.exception(SECONDS)


def test_feed_that_the_driver_will_not_open_any_more_is_refused_at_once(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:1])
    waiting = driver.run(lambda: driver.join("validation", TASKS[0]))
    driver.coordinator.open_no_more()
    with pytest.raises(UsageError, match=r"there is no feed 'validation' \(the driver opened \['train'\] before"):
        waiting.result(SECONDS)


def test_mistakes_are_named(driver: Driver) -> None:
    with pytest.raises(UsageError, match=r"feed 'x': GRIDFLOW_FEEDS is not set \(feeds come from Spark"):
        open_feed("x", {}, secret=SECRET, task="worker/0")
    driver.coordinator.open("train", TASKS)
    with pytest.raises(DeadlineError, match=r"feed 'x' was not opened in 0.1 s \(open are \['train'\]\)"):
        driver.join("x", "worker/0", timeout_seconds=0.1)
    with pytest.raises(
        UsageError, match=r"ps/0 is not among the consumers of feed 'train' \(they are worker/0, worker/1"
    ):
        driver.join("train", "ps/0")
    with pytest.raises(UsageError, match="feed 'train' is open already"):
        driver.coordinator.open("train", TASKS)
    with pytest.raises(UsageError, match=r"there is no feed 'y' \(open are \['train'\]\)"):
        driver.coordinator.begin_epoch("y")
    with driver.join("train", "worker/0", timeout_seconds=0.1) as feed:
        with pytest.raises(UsageError, match="worker/0 opens feed 'train' a second time"):
            driver.join("train", "worker/0")
        with pytest.raises(DeadlineError, match=r"feed 'train': no row came in 0.1 s"):
            next(feed.batches(10))
        with pytest.raises(UsageError, match=r"put\(\) answers rows, and none were taken"):
            feed.put({})
        with pytest.raises(UsageError, match="0 rows cannot be taken"):
            feed.next_rows(0)


def test_options_of_batches_are_checked(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:1], epochs=1)
    epoch = driver.coordinator.begin_epoch("train")
    with driver.join("train", TASKS[0]) as feed:
        send(numbers(10)[0], driver.origin(epoch, 0))
        for options, message in (
            ({"batch_size": 0}, "batch_size=0 is not positive"),
            ({"batch_size": 1, "remainder": "none"}, r"remainder='none' is unknown \(one of drop, pad, keep\)"),
            ({"batch_size": 1, "columns": ["m"]}, r"feed 'train' has no column 'm' \(it has \['n'\]\)"),
            ({"batch_size": 1, "defaults": {"m": 1}}, "defaults names 'm', which is no column"),
        ):
            with pytest.raises((UsageError, SchemaError), match=message):
                next(feed.batches(**options))


def test_program_that_fails_does_not_stop_the_feed(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:1])

    def fail(feed: Feed) -> None:
        next(feed.batches(10))
        raise ZeroDivisionError

    worker = driver.read("train", TASKS[0], fail)
    epoch = driver.coordinator.begin_epoch("train")
    sender = driver.run(send, numbers(100_000_000 // 100, size=1000)[0] * 20, driver.origin(epoch, 0))
    with pytest.raises(ZeroDivisionError):
        worker.result(SECONDS)
    assert not driver.coordinator.is_stopped("train")
    driver.coordinator.restart(1)
    assert sender.result(SECONDS).was_stopped
