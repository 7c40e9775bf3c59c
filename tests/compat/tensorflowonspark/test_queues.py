"""What a program takes from the queues of its node while the driver feeds them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
from tests.feed.parties import SECONDS, Driver, started

from gridflow.compat.tensorflowonspark.chunks import chunk_blocks
from gridflow.compat.tensorflowonspark.queues import FeedManager, InputQueue
from gridflow.compat.tensorflowonspark.TFNode import DataFeed
from gridflow.feed import sender
from gridflow.feed.exchange import exchange_rows

TASKS = ["worker/0", "worker/1"]


@pytest.fixture
def driver() -> Iterator[Driver]:
    with started() as driver:
        yield driver


def chunks(*rows: range) -> list[bytes]:
    return [pickle.dumps(list(each)) for each in rows]


def queue_of(driver: Driver, task: str = TASKS[0]) -> InputQueue:
    return InputQueue("input", lambda name: driver.join(name, task))


def send(driver: Driver, feed: str, *rows: range) -> None:
    """Send an epoch of one partition."""
    epoch = driver.coordinator.begin_epoch(feed)
    assert epoch is not None
    sender.send(chunk_blocks(chunks(*rows)), driver.origin(epoch, 0))
    driver.coordinator.end_epoch(epoch, [0])


def end(driver: Driver, feed: str, tasks: list[str]) -> None:
    """End a queue: behind its last feed is one without epochs."""
    driver.coordinator.open(feed, tasks)
    driver.coordinator.finish(feed)


def test_batch_reaches_over_chunks_and_epochs_until_the_queue_ends(driver: Driver) -> None:
    driver.coordinator.open("input", TASKS[:1])
    queue = queue_of(driver)
    taken = driver.run(lambda: [queue.take(4) for _ in range(4)])
    send(driver, "input", range(3), range(3, 5))
    send(driver, "input", range(5, 10))
    driver.coordinator.finish("input")
    end(driver, "input-1", TASKS[:1])
    assert taken.result(SECONDS) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], []]
    assert queue.is_ended
    queue.linger()


def test_rows_in_large_chunks_are_taken_in_their_order_and_answered(driver: Driver) -> None:
    large = [pickle.dumps([(number, bytes(40_000)) for number in range(start, start + 2)]) for start in (0, 2, 4)]
    driver.coordinator.open("input", TASKS[:1])
    driver.coordinator.open("input-1", TASKS[:1], kind="inference")
    queue = queue_of(driver)
    taken = driver.run(lambda: [[row[0] for row in queue.take(5)] for _ in range(3)])
    epoch = driver.coordinator.begin_epoch("input")
    assert epoch is not None
    sender.send(chunk_blocks(large), driver.origin(epoch, 0))
    driver.coordinator.end_epoch(epoch, [0])
    driver.coordinator.finish("input")
    asking = driver.coordinator.begin_epoch("input-1")
    asked = driver.run(lambda: list(exchange_rows(chunk_blocks(large), driver.origin(asking, 0))))
    assert taken.result(SECONDS) == [[0, 1, 2, 3, 4], [5], [0, 1, 2, 3, 4]]
    queue.answer(["a", "b", "c", "d", "e"])
    assert len(queue.take(5)) == 1
    queue.answer(["f"])
    assert asked.result(SECONDS) == ["a", "b", "c", "d", "e", "f"]
    driver.coordinator.finish("input-1")
    end(driver, "input-2", TASKS[:1])
    assert queue.take(1) == []


def test_inference_follows_training_in_the_same_queue(driver: Driver) -> None:
    driver.coordinator.open("input", TASKS[:1])
    driver.coordinator.open("input-1", TASKS[:1], kind="inference")
    manager = FeedManager(["input", "output", "error"], lambda name: driver.join(name, TASKS[0]), lambda: None)

    def answer() -> list[int]:
        feed, sizes = DataFeed(manager, train_mode=False), []
        while not feed.should_stop():
            batch = feed.next_batch(3)
            sizes.append(len(batch))
            feed.batch_results([-row for row in batch])
        return sizes

    sizes = driver.run(answer)
    send(driver, "input", range(4))
    driver.coordinator.finish("input")
    epoch = driver.coordinator.begin_epoch("input-1")
    assert epoch is not None
    asked = driver.run(lambda: list(exchange_rows(chunk_blocks(chunks(range(7))), driver.origin(epoch, 0))))
    assert asked.result(SECONDS) == [0, -1, -2, -3, -4, -5, -6]
    driver.coordinator.finish("input-1")
    end(driver, "input-2", TASKS[:1])
    assert sizes.result(SECONDS) == [3, 1, 3, 3, 1, 0]


def test_answers_belong_to_rows_in_the_order_in_which_those_were_taken(driver: Driver) -> None:
    driver.coordinator.open("input", TASKS[:1], kind="inference")
    queue = queue_of(driver)
    epoch = driver.coordinator.begin_epoch("input")

    def ask(partition: int) -> list[int]:
        content = chunk_blocks(chunks(range(10 * partition, 10 * partition + 4)))
        return list(exchange_rows(content, driver.origin(epoch, partition)))

    asked = [driver.run(ask, partition) for partition in range(2)]
    rows = [row for _ in range(4) for row in queue.take(2)]
    assert sorted(rows) == [0, 1, 2, 3, 10, 11, 12, 13]
    queue.answer([-row for row in rows[:5]])
    queue.answer([-row for row in rows[5:]])
    assert [each.result(SECONDS) for each in asked] == [[0, -1, -2, -3], [-10, -11, -12, -13]]
    driver.coordinator.finish("input")
    end(driver, "input-1", TASKS[:1])
    assert queue.take(1) == []


def test_terminated_queue_drops_its_rows_and_others_read_on(driver: Driver) -> None:
    driver.coordinator.open("input", TASKS)
    stopped: list[bool] = []
    first = FeedManager(["input", "output"], lambda name: driver.join(name, TASKS[0]), lambda: stopped.append(True))
    second = queue_of(driver, TASKS[1])

    def leave() -> int:
        feed = DataFeed(first)
        taken = len(feed.next_batch(1))
        feed.terminate()
        assert str(first.get("state")) == "'terminating'"
        first.linger()
        return taken

    left, read = driver.run(leave), driver.run(second.take, 100)
    send(driver, "input", *[range(start, start + 10) for start in range(0, 100, 10)])
    send(driver, "input", *[range(start, start + 10) for start in range(0, 100, 10)])
    assert len(read.result(SECONDS)) == 100
    assert (stopped, driver.coordinator.is_stopped("input")) == ([True], False)
    second.terminate()
    second.linger()
    assert left.result(SECONDS) == 1
    assert driver.coordinator.is_stopped("input")


def test_node_that_has_ended_stays_until_nothing_more_comes(driver: Driver) -> None:
    driver.coordinator.open("input", TASKS)
    manager = FeedManager(["input"], lambda name: driver.join(name, TASKS[0]), lambda: None)
    other = queue_of(driver, TASKS[1])

    def take_one_and_end() -> None:
        manager.get_queue("input").get()
        manager.linger()

    ended, read = driver.run(take_one_and_end), driver.run(other.take, 1000)
    send(driver, "input", *[range(start, start + 10) for start in range(0, 100, 10)])
    assert not ended.done()
    driver.coordinator.finish("input")
    end(driver, "input-1", TASKS)
    assert len(read.result(SECONDS)) == 50
    ended.result(SECONDS)


def test_queues_and_values_look_as_those_of_a_manager(driver: Driver) -> None:
    manager = FeedManager(["input", "output", "error"], lambda name: driver.join(name, TASKS[0]), lambda: None)
    assert manager.get_queue("other") is None
    manager.get_queue("error").put("what")
    assert manager.get_queue("error").get() == "what"
    manager.get_queue("output").put("nobody asked")
    manager.set("step", 7)
    assert str(manager.get("step")) == "7"
