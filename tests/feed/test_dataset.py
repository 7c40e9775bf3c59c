"""Feeds as TensorFlow sees them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import tensorflow as tf
from tests.feed.parties import SECONDS, Driver, numbers, result_of, send, start_program

from gridflow.errors import SchemaError, TaskFailedError
from gridflow.feed.feed import Feed

TASKS = ["worker/0", "worker/1"]

SCHEMA = pa.schema(
    {
        "flag": pa.bool_(),
        "small": pa.int8(),
        "long": pa.int64(),
        "half": pa.float16(),
        "single": pa.float32(),
        "double": pa.float64(),
        "price": pa.decimal128(10, 2),
        "text": pa.string(),
        "bytes": pa.binary(),
        "image": pa.list_(pa.float32()),
        "pair": pa.list_(pa.int32(), 2),
        "words": pa.list_(pa.string()),
        "steps": pa.list_(pa.list_(pa.int64())),
    }
)


def row(number: int) -> dict[str, Any]:
    return {
        "flag": bool(number % 2),
        "small": number % 100,
        "long": number,
        "half": 0.5,
        "single": number + 0.25,
        "double": number / 3,
        "price": 1,
        "text": f"ü{number}" if number % 3 else "",
        "bytes": bytes([number % 256, 0]),
        "image": [float(number)] * 6,
        "pair": [number, -number],
        "words": [f"w{number}"] * (number % 3),
        "steps": [[number] * (number % 2), [1]],
    }


def test_columns_become_tensors_of_their_types_and_shapes(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:1], epochs=1)
    batches = [pa.RecordBatch.from_pylist([row(number) for number in range(10)], SCHEMA)]

    def read(feed: Feed) -> tuple[Any, list[Any]]:
        dataset = feed.dataset(4, remainder="pad", shapes={"image": (2, 3)}, weights="weight")
        return dataset, list(dataset)

    worker = driver.read("train", TASKS[0], read)
    driver.send_epoch("train", [batches])
    dataset, read_batches = worker.result(SECONDS)
    assert dataset.element_spec == {
        "flag": tf.TensorSpec([4], tf.bool),
        "small": tf.TensorSpec([4], tf.int8),
        "long": tf.TensorSpec([4], tf.int64),
        "half": tf.TensorSpec([4], tf.float16),
        "single": tf.TensorSpec([4], tf.float32),
        "double": tf.TensorSpec([4], tf.float64),
        "price": tf.TensorSpec([4], tf.float64),
        "text": tf.TensorSpec([4], tf.string),
        "bytes": tf.TensorSpec([4], tf.string),
        "image": tf.TensorSpec([4, 2, 3], tf.float32),
        "pair": tf.TensorSpec([4, 2], tf.int32),
        "words": tf.RaggedTensorSpec([4, None], tf.string, 1),
        "steps": tf.RaggedTensorSpec([4, None, None], tf.int64, 2),
        "weight": tf.TensorSpec([4], tf.float32),
    }
    assert len(read_batches) == 3
    assert [batch["weight"].numpy().tolist() for batch in read_batches] == [[1] * 4, [1] * 4, [1, 1, 0, 0]]
    for index, batch in enumerate(read_batches):
        for position in range(4):
            number = min(index * 4 + position, 9)
            expected = row(number)
            assert batch["text"].numpy()[position].decode() == expected["text"]
            assert batch["image"].numpy()[position].tolist() == [[float(number)] * 3] * 2
            assert batch["words"][position].numpy().tolist() == [word.encode() for word in expected["words"]]
            assert batch["steps"][position].to_list() == expected["steps"]
            for name in ("flag", "small", "long", "half", "single", "double", "price", "bytes"):
                assert batch[name].numpy()[position] == expected[name]
            assert batch["pair"].numpy()[position].tolist() == expected["pair"]


def test_small_batches_are_cut_out_of_large_chunks_exactly(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS, epochs=2)

    def read(feed: Feed) -> list[list[list[int]]]:
        dataset = feed.dataset(3, prefetch=2)
        return [[batch["n"].numpy().tolist() for batch in dataset] for _ in range(3)]

    workers = [driver.read("train", task, read) for task in TASKS]
    for _ in range(2):
        driver.send_epoch("train", numbers(1001, 2, 996))
    read_epochs = [worker.result(SECONDS) for worker in workers]
    for epoch in range(2):
        assert [len(each[epoch]) for each in read_epochs] == [333, 333]
        rows = [row for each in read_epochs for batch in each[epoch] for row in batch]
        assert len(rows) == len(set(rows)) == 1998
    assert [each[2] for each in read_epochs] == [[], []]


def test_list_of_another_length_is_named_with_the_remedy(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:1], epochs=2)
    later = [pa.record_batch({"v": [[1.0, 2.0]] * 200_000}), pa.record_batch({"v": [[1.0]]})]

    def read(feed: Feed) -> Any:
        message = r"column 'v' has a list of 1 values, where lists of 2 came .*ragged=\['v'\]"
        with pytest.raises(tf.errors.UnknownError, match=message):
            list(feed.dataset(1000, remainder="keep"))
        [*_, last] = feed.dataset(1000, remainder="keep", ragged=["v"])
        return last["v"].to_list()

    worker = driver.read("train", TASKS[0], read)
    for _ in range(2):
        driver.send_epoch("train", [later])
    assert worker.result(SECONDS) == [[1.0]]


def test_nulls_take_their_defaults(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:1], epochs=2)
    batch = pa.record_batch({"n": [1, None], "s": [None, "x"], "v": [[1.0, 2.0], None], "w": [None, ["a"]]})

    def read(feed: Feed) -> Any:
        message = r"column 'n' has nulls, which no tensor can hold \(give it in"
        with pytest.raises(tf.errors.UnknownError, match=message):
            list(feed.dataset(2))
        [whole] = feed.dataset(2, shapes={"v": [2]}, defaults={"n": -1, "s": "-", "v": [0.0, 0.0]})
        return [whole[name].numpy().tolist() for name in "nsv"], whole["w"].to_list()

    worker = driver.read("train", TASKS[0], read)
    for _ in range(2):
        driver.send_epoch("train", [[batch]])
    assert worker.result(SECONDS) == ([[1, -1], [b"-", b"x"], [[1.0, 2.0], [0.0, 0.0]]], [[], [b"a"]])


def test_columns_that_no_tensor_holds_are_refused_or_left_out(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:1], epochs=1)
    batch = pa.record_batch({"n": [1], "t": pa.array([0], pa.timestamp("us")), "m": [{"a": 1}]})

    def read(feed: Feed) -> list[int]:
        message = r"column 't' is timestamp\[us\], which no tensor can hold \(cast it to a"
        with pytest.raises(SchemaError, match=message):
            feed.dataset(1)
        return [int(each["n"][0]) for each in feed.dataset(1, columns=["n"], remainder="keep")]

    worker = driver.read("train", TASKS[0], read)
    driver.send_epoch("train", [[batch]])
    assert worker.result(SECONDS) == [1]


def test_failure_in_the_run_ends_an_iteration_of_the_dataset(driver: Driver) -> None:
    driver.coordinator.open("train", TASKS[:1])
    worker = driver.read("train", TASKS[0], lambda feed: list(feed.dataset(10)))
    epoch = driver.coordinator.begin_epoch("train")
    send(numbers(100)[0], driver.origin(epoch, 0))
    driver.coordinator.fail("worker/1 failed: no space left")
    with pytest.raises((tf.errors.UnknownError, TaskFailedError), match="worker/1 failed: no space left"):
        worker.result(SECONDS)


@pytest.mark.parametrize("is_distributed", [False, True])
def test_keras_fit_sees_every_epoch_whole(driver: Driver, is_distributed: bool) -> None:
    driver.coordinator.open("train", TASKS[:1], epochs=3)
    options = {"is_distributed": is_distributed, "batch_size": 10, "epochs": 3}
    program = start_program("fit.py", coordinator=str(driver.address), task=TASKS[0], **options)
    sending = driver.run(lambda: [driver.send_epoch("train", numbers(105)) for _ in range(3)])
    try:
        result = result_of(program)
    finally:
        driver.coordinator.fail("the program has ended")
    sending.result(SECONDS)
    # Keras looks at a first batch before it trains, and takes later epochs' batches without asking for their end.
    expected = {"steps": [10] * 3, "total": [sum(range(100))] * 3, "epoch": 3, "is_ended": True}
    assert result == expected
    consumer = driver.report("train").consumers["worker/0"]
    assert (consumer.batches, consumer.dropped) == (30, 15)
    assert not driver.coordinator.is_stopped("train")
