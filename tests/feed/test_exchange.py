"""Rows go to consumers and their answers come back in order."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from tests.feed.parties import SECONDS, Driver, numbers, rows_block, start_program

from gridflow.errors import DeadlineError, SchemaError, TaskFailedError, UsageError
from gridflow.feed.exchange import exchange, exchange_rows
from gridflow.feed.feed import Feed

TASKS = ["worker/0", "worker/1"]


def double(feed: Feed) -> int:
    rows = 0
    for batch in feed.batches(1000):
        feed.put({"m": batch["n"] * 2, "v": np.stack([batch["n"]] * 2, axis=1)})
        rows += batch.rows
    return rows


def test_answers_come_in_the_order_of_the_rows(driver: Driver) -> None:
    driver.coordinator.open("serve", TASKS, kind="inference")
    workers = [driver.read("serve", task, double) for task in TASKS]
    epoch = driver.coordinator.begin_epoch("serve")

    def ask(partition: int) -> pa.Table:
        [batches] = numbers(1_000_000, size=10_000)
        return pa.Table.from_batches(exchange(batches, driver.origin(epoch, partition)))

    for answers in [driver.run(ask, partition) for partition in range(3)]:
        table = answers.result(SECONDS)
        assert table["m"].to_numpy().tolist() == list(range(0, 2_000_000, 2))
        assert table.schema.field("v").type == pa.list_(pa.int64(), 2)
    driver.coordinator.finish("serve")
    assert sum(worker.result(SECONDS) for worker in workers) == 3_000_000
    report = driver.coordinator.report("serve")
    assert (report.rows, report.is_stopped) == (3_000_000, False)


def test_answers_may_be_none_or_many(driver: Driver) -> None:
    driver.coordinator.open("serve", TASKS[:1], kind="inference")

    def answer(feed: Feed) -> None:
        for batch in feed.batches(4):
            for number in batch["n"].tolist():
                feed.put({"m": [number] * (number % 3)})

    driver.read("serve", TASKS[0], answer)
    epoch = driver.coordinator.begin_epoch("serve")
    answers = pa.Table.from_batches(exchange(numbers(10)[0], driver.origin(epoch, 0)))
    assert answers["m"].to_pylist() == [1, 2, 2, 4, 5, 5, 7, 8, 8]
    assert list(exchange([], driver.origin(epoch, 1))) == []
    driver.coordinator.finish("serve")


def test_python_rows_are_answered_with_lists(driver: Driver) -> None:
    driver.coordinator.open("serve", TASKS[:1], kind="inference")

    def answer(feed: Feed) -> None:
        for rows in feed.rows(7):
            feed.put([{"square": row * row} for row in rows])

    driver.read("serve", TASKS[0], answer)
    epoch = driver.coordinator.begin_epoch("serve")
    answers = list(exchange_rows(rows_block(range(100)), driver.origin(epoch, 0)))
    assert answers == [{"square": row * row} for row in range(100)]
    driver.coordinator.finish("serve")


def test_block_of_a_consumer_that_dies_goes_to_another(driver: Driver) -> None:
    driver.coordinator.open("serve", TASKS, kind="inference")
    dying = start_program("read.py", coordinator=str(driver.address), feed="serve", task=TASKS[0])
    epoch = driver.coordinator.begin_epoch("serve")
    [batches] = numbers(1_000_000, size=10_000)
    with dying:
        answers = driver.run(lambda: pa.Table.from_batches(exchange(batches, driver.origin(epoch, 0))))
        assert dying.stdout is not None
        assert dying.stdout.readline() == "took a batch\n"
        worker = driver.read("serve", TASKS[1], double)
        dying.kill()
    assert answers.result(SECONDS)["m"].to_numpy().tolist() == list(range(0, 2_000_000, 2))
    driver.coordinator.finish("serve")
    assert worker.result(SECONDS) == 1_000_000


def test_block_waits_for_tasks_that_start_again(driver: Driver) -> None:
    driver.coordinator.open("serve", TASKS[:1], kind="inference")
    epoch = driver.coordinator.begin_epoch("serve")
    has_begun = threading.Event()

    def give_up(feed: Feed) -> None:
        batches = feed.batches(10)
        next(batches)
        has_begun.set()
        with pytest.raises(TaskFailedError, match="the tasks were started again"):
            list(batches)

    driver.read("serve", TASKS[0], give_up)
    [rows] = numbers(3_000_000, size=100_000)
    answers = driver.run(lambda: pa.Table.from_batches(exchange(rows, driver.origin(epoch, 0))))
    has_begun.wait(SECONDS)
    driver.coordinator.restart(1)
    driver.read("serve", TASKS[0], double, 1)
    assert answers.result(SECONDS)["m"].to_numpy().tolist() == list(range(0, 6_000_000, 2))
    driver.coordinator.finish("serve")


def test_failure_reaches_a_sender_that_waits_for_an_answer(driver: Driver) -> None:
    driver.coordinator.open("serve", TASKS[:1], kind="inference")
    epoch = driver.coordinator.begin_epoch("serve")
    has_begun, may_end = threading.Event(), threading.Event()

    def hang(feed: Feed) -> None:
        for _ in feed.batches(10):
            has_begun.set()
            may_end.wait(SECONDS)

    worker = driver.read("serve", TASKS[0], hang)
    answers = driver.run(lambda: list(exchange(numbers(10)[0], driver.origin(epoch, 0))))
    has_begun.wait(SECONDS)
    driver.coordinator.fail("worker/0 failed: out of memory")
    with pytest.raises(TaskFailedError, match="worker/0 failed: out of memory"):
        answers.result(SECONDS)
    may_end.set()
    worker.exception(SECONDS)


def test_answer_that_does_not_come_is_named(driver: Driver) -> None:
    driver.coordinator.open("serve", TASKS[:1], kind="inference")
    epoch = driver.coordinator.begin_epoch("serve")
    may_end = threading.Event()
    driver.read("serve", TASKS[0], lambda feed: [may_end.wait(SECONDS) for _ in feed.batches(10)])
    with pytest.raises(DeadlineError, match=r"no answer from worker/0 in 0.1 s"):
        list(exchange(numbers(10)[0], driver.origin(epoch, 0), timeout_seconds=0.1))
    may_end.set()
    driver.coordinator.finish("serve")


def test_answers_of_the_wrong_kind_are_refused(driver: Driver) -> None:
    driver.coordinator.open("serve", TASKS[:1], kind="inference")
    epoch = driver.coordinator.begin_epoch("serve")

    def put(feed: Feed, outputs: list[object]) -> None:
        for _ in feed.batches(10):
            for each in outputs:
                feed.put(each)

    def use(feed: Feed) -> None:
        with pytest.raises(SchemaError, match="answered with a dict of arrays or an Arrow batch, not list"):
            put(feed, [[1]])
        with pytest.raises(SchemaError, match="outputs differ in their columns: a: int64 and b: int64"):
            put(feed, [{"a": [1]}, pa.record_batch({"b": [1]})])
        for method in (feed.dataset, feed.next_rows):
            with pytest.raises(UsageError, match=r"wants answers, which .*\(\) cannot relate to rows \(use batches"):
                method(10)
        put(feed, [pa.table({"a": [1]}), {"a": pa.array([2])}])

    worker = driver.read("serve", TASKS[0], use)
    assert pa.Table.from_batches(exchange(numbers(10)[0], driver.origin(epoch, 0)))["a"].to_pylist() == [1, 2]
    driver.coordinator.finish("serve")
    worker.result(SECONDS)


def test_feed_that_is_stopped_is_an_error_of_those_who_want_answers(driver: Driver) -> None:
    driver.coordinator.open("serve", TASKS[:1], kind="inference")
    epoch = driver.coordinator.begin_epoch("serve")

    def leave(feed: Feed) -> None:
        next(feed.batches(10))

    driver.read("serve", TASKS[0], leave)

    def endless() -> Iterator[pa.RecordBatch]:
        while True:
            yield numbers(100_000, size=100_000)[0][0]

    with pytest.raises(TaskFailedError, match="feed 'serve' was stopped before all its rows were answered"):
        list(exchange(endless(), driver.origin(epoch, 0)))
    assert driver.coordinator.is_stopped("serve")
