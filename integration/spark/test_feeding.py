"""Rows of Spark in the tasks of a run, on a real cluster with executors of one core."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pytest
from tests.platforms import run_processes
from tests.waiting import until

import gridflow
import gridflow.spark
from gridflow.errors import DeadlineError, TaskFailedError, UsageError
from gridflow.feed.reading import Remainder
from gridflow.platforms.spark_crew import SparkCrew
from gridflow.spark import Cluster
from gridflow.spark.feeding import Route

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECONDS = 240
#: Longer than a feed takes to become a Spark job.
HEAD_START_SECONDS = 5
#: PySpark leaves the sockets through which results come to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def rows(spark: SparkSession, count: int, partitions: int = 5) -> DataFrame:
    """Return rows whose partitions differ in size: the first has about half of all."""
    columns = ["id", "cast(id % 7 as float) as label", "transform(sequence(1, 20), y -> cast(id + y as float)) as x"]
    return (
        spark.range(count)
        .selectExpr(*columns)
        .repartitionByRange(partitions, "x")
        .sortWithinPartitions("id")
        .union(spark.range(count, 2 * count, 1, 1).selectExpr(*columns))
    )


def results(cluster: Cluster) -> dict[str, Any]:
    """Return what the function returned in every task."""
    found = {}
    for task in cluster.run.job.tasks:
        path = cluster.run.folder / "results" / f"{task.replace('/', '-')}.pickle"
        found[task] = pickle.loads(path.read_bytes()).get("result")
    return found


def take_ids(epochs: int, batch_size: int, remainder: Remainder = "drop") -> list[tuple[int, list[int]]]:
    """Read epochs of a feed; return the number of batches and the ids of each."""
    feed = gridflow.context().feed("train")
    taken = []
    for _ in range(epochs):
        batches, ids = 0, []
        for batch in feed.batches(batch_size, remainder=remainder):
            batches += 1
            assert batch["x"].shape == (len(batch["id"]), 20)
            assert (batch["x"][:, 0] == batch["id"] + 1).all()
            ids += batch["id"].tolist()[: len(batch["id"]) - batch.padded]
        taken.append((batches, ids))
    return taken


def test_every_worker_gets_the_same_number_of_batches_and_every_row_once(spark: SparkSession) -> None:
    cluster = gridflow.spark.run(take_ids, spark=spark, workers=2, args=[2, 64])
    report = cluster.train(rows(spark, 1500), epochs=2)
    cluster.shutdown(SECONDS)
    taken = results(cluster)
    for epoch in range(2):
        batches, ids = zip(*(taken[task][epoch] for task in sorted(taken)), strict=True)
        assert batches == (23, 23)
        counted = Counter(id_ for part in ids for id_ in part)
        assert set(counted.values()) == {1}
        assert counted.keys() <= set(range(3000))
        assert len(counted) == 2 * 23 * 64
    assert report.epochs == 2
    assert sum(consumer.dropped for consumer in report.consumers.values()) == 2 * (3000 - 2 * 23 * 64)
    run_processes.until_none_is_left(cluster.run)


def test_padded_remainder_loses_no_row(spark: SparkSession) -> None:
    cluster = gridflow.spark.run(take_ids, spark=spark, workers=2, args=[1, 64, "pad"])
    report = cluster.train(rows(spark, 500))
    cluster.shutdown(SECONDS)
    taken = results(cluster)
    assert {taken[task][0][0] for task in taken} == {8}
    assert sorted(id_ for task in taken for id_ in taken[task][0][1]) == list(range(1000))
    assert sum(consumer.padded for consumer in report.consumers.values()) == 2 * 8 * 64 - 1000


def test_feed_takes_no_core_before_every_task_has_its_slot(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_spark = SparkCrew._ask_spark

    def ask_after_a_feed(crew: SparkCrew, *arguments: Any) -> Any:
        """Ask for slots when a feed has had the time to take all cores: it would keep them until the tasks read."""
        tracker, deadline = spark.sparkContext.statusTracker(), time.monotonic() + HEAD_START_SECONDS
        while not tracker.getActiveJobsIds() and time.monotonic() < deadline:
            time.sleep(0.05)
        return ask_spark(crew, *arguments)

    monkeypatch.setattr(SparkCrew, "_ask_spark", ask_after_a_feed)
    job = {"start_timeout": "60s"}
    cluster = gridflow.spark.run(take_ids, spark=spark, workers=4, args=[1, 50, "pad"], job=job)
    columns = ["id", "transform(sequence(1, 20), y -> cast(id + y as float)) as x"]
    cluster.train(spark.range(0, 1000, 1, 8).selectExpr(*columns))
    cluster.shutdown(SECONDS)
    taken = results(cluster)
    assert len(taken) == 4
    assert sorted(id_ for task in taken for id_ in taken[task][0][1]) == list(range(1000))
    run_processes.until_none_is_left(cluster.run)


def fit() -> tuple[int, list[float]]:
    import tensorflow as tf

    class Steps(tf.keras.callbacks.Callback):  # type: ignore[misc]
        count = 0

        def on_train_batch_end(self, _batch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras gives it
            self.count += 1

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    dataset = gridflow.context().feed("train").dataset(32).map(lambda row: (row["x"] / 1000, row["label"]))
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((20,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    steps = Steps()
    history = model.fit(dataset, epochs=2, verbose=0, callbacks=[steps])
    return steps.count, history.history["loss"]


def test_keras_fit_on_two_workers_takes_every_batch_of_its_feed(spark: SparkSession) -> None:
    cluster = gridflow.spark.run(fit, spark=spark, workers=2)
    cluster.train(rows(spark, 500), epochs=2)
    steps, losses = cluster.shutdown(SECONDS)
    # 15 batches for each worker in an epoch, which the strategy divides by the number of workers.
    assert steps == 2 * 15 * 2
    assert len(losses) == 2
    assert results(cluster)["worker/1"] == (steps, losses)


def train_and_validate() -> dict[str, int]:
    context = gridflow.context()
    validation, train = context.feed("validation"), context.feed("train")
    return {
        "train": sum(len(batch["id"]) for batch in train.batches(10)),
        "validation": sum(len(batch["id"]) for batch in validation.batches(10)),
    }


def test_two_named_feeds_run_at_once(spark: SparkSession) -> None:
    import threading

    cluster = gridflow.spark.run(train_and_validate, spark=spark, workers=1)
    other = threading.Thread(target=cluster.train, args=(rows(spark, 50),), kwargs={"feed": "validation"})
    other.start()
    cluster.train(rows(spark, 100))
    other.join()
    assert cluster.shutdown(SECONDS) == {"train": 200, "validation": 100}


def validate_first() -> dict[str, tuple[int, int]]:
    context = gridflow.context()
    feeds = {name: context.feed(name) for name in ("train", "validation")}
    found = {}
    for name in ("validation", "train"):
        ids = [int(each) for batch in feeds[name].batches(1000, remainder="keep") for each in batch["id"]]
        found[name] = (len(ids), sum(ids))
    return found


def test_feed_that_nobody_reads_gives_its_cores_to_one_that_is_waited_for(spark: SparkSession) -> None:
    import threading

    count = 800_000
    # More than a worker's window holds, so its senders wait, and they have all four cores.
    wide = spark.range(0, count, 1, 4).selectExpr("id", "array_repeat(cast(id as double), 20) as x")
    cluster = gridflow.spark.run(validate_first, spark=spark, workers=1)
    train = threading.Thread(target=cluster.train, args=(wide,))
    train.start()
    tracker = spark.sparkContext.statusTracker()

    def are_all_cores_taken() -> bool:
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        return any(stage is not None and stage.numActiveTasks == 4 for stage in stages)

    until(are_all_cores_taken, "the feed has all cores", seconds=SECONDS)
    cluster.train(spark.range(0, 100, 1, 2), feed="validation")
    train.join(SECONDS)
    assert cluster.shutdown(SECONDS) == {
        "train": (count, sum(range(count))),
        "validation": (100, sum(range(100))),
    }


def read_rdd() -> list[tuple[str, Any]]:
    feed = gridflow.context().feed("train")
    seen = []
    for batch in feed.batches(4, remainder="keep"):
        seen += [(name, batch[name].tolist()) for name in sorted(batch)]
    return seen


def test_rdd_of_tuples_is_fed_with_its_columns_numbered(spark: SparkSession) -> None:
    data = spark.sparkContext.parallelize([(1, [1.0, 2.0], "a"), (2, [3.0, 4.0], "b")], 1)
    cluster = gridflow.spark.run(read_rdd, spark=spark, workers=1)
    cluster.train(data)
    assert cluster.shutdown(SECONDS) == [("_1", [1, 2]), ("_2", [[1.0, 2.0], [3.0, 4.0]]), ("_3", ["a", "b"])]


class Words:
    """Rows that send themselves: each partition makes its own."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def send_to(self, route: Route) -> Callable[[], list[Any]]:
        def send(partition: int, _rows: Iterable[int]) -> Iterator[dict[str, Any]]:
            words = pa.record_batch({"word": [f"{partition}-{number}" for number in range(3)]})
            yield route.send(route.blocks([words]), partition)

        return self._spark.sparkContext.parallelize(range(2), 2).mapPartitionsWithIndex(send).collect


def read_words() -> list[str]:
    batches = gridflow.context().feed("train").batches(2, remainder="keep")
    return sorted(word for batch in batches for word in batch["word"].tolist())


def test_source_sends_its_rows_in_its_own_way(spark: SparkSession) -> None:
    cluster = gridflow.spark.run(read_words, spark=spark, workers=1)
    cluster.train(Words(spark))
    assert cluster.shutdown(SECONDS) == ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"]


def stop_early() -> int:
    context = gridflow.context()
    feed = context.feed("train")
    number = 0
    for number, _ in enumerate(feed.batches(10)):
        if number == 20 and context.index == 0:
            feed.stop()
            break
    return number


def test_early_stop_cancels_the_spark_job(spark: SparkSession) -> None:
    slow = spark.range(0, 1_000_000, 1, 400).selectExpr("id", "cast(id as float) as label", "array(id) as x")
    cluster = gridflow.spark.run(stop_early, spark=spark, workers=2)
    report = cluster.train(slow, epochs=50)
    assert report.is_stopped
    assert report.rows < 50 * 1_000_000
    assert cluster.shutdown(SECONDS) == 20
    until(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds(), "no Spark job is left")


def raise_after(batches: int) -> None:
    for number, _ in enumerate(gridflow.context().feed("train").batches(10)):
        if number == batches:
            raise ValueError("loss is not a number")


def test_training_error_reaches_the_driver_while_it_feeds(spark: SparkSession) -> None:
    cluster = gridflow.spark.run(raise_after, spark=spark, workers=2, args=[3])
    with pytest.raises(TaskFailedError, match=r"(?s)failed: ValueError: loss is not a number.*in raise_after"):
        cluster.train(rows(spark, 50_000), epochs=100)
    with pytest.raises(ValueError, match="loss is not a number"):
        cluster.shutdown(SECONDS)
    run_processes.until_none_is_left(cluster.run)


def never_read() -> None:
    time.sleep(600)


def test_feed_that_nobody_reads_says_so(spark: SparkSession) -> None:
    cluster = gridflow.spark.run(never_read, spark=spark, workers=1)
    with pytest.raises((DeadlineError, TaskFailedError), match="worker/0 never opened"):
        cluster.train(rows(spark, 50), timeout_seconds=5)
    cluster.cancel()
    run_processes.until_none_is_left(cluster.run)


def read_in_the_first_task() -> int:
    context = gridflow.context()
    if context.index:
        return 0
    return sum(len(batch["id"]) for batch in context.feed("train").batches(10, remainder="keep"))


def test_run_that_has_ended_keeps_no_feed_waiting(spark: SparkSession) -> None:
    cluster = gridflow.spark.run(read_in_the_first_task, spark=spark, workers=2)
    report = cluster.train(spark.range(100), equal=False)
    assert report.is_stopped
    assert report.consumers["worker/0"].rows == 100
    with pytest.raises(TaskFailedError, match="feed 'more': the run has ended, and nobody can read it"):
        cluster.train(spark.range(100), feed="more")
    assert cluster.shutdown(SECONDS) == 100


def test_feed_that_gets_no_core_says_so(spark: SparkSession) -> None:
    cluster = gridflow.spark.run(take_ids, spark=spark, workers=4, args=[1, 10], hold=True)
    with pytest.raises(DeadlineError, match=r"feed 'train': Spark gave no core for 3 s to the job that sends its rows"):
        cluster.train(rows(spark, 50), timeout_seconds=3)
    cluster.cancel()
    run_processes.until_none_is_left(cluster.run)
    until(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds(), "no Spark job is left")


def kill_a_sender(epochs: int) -> list[tuple[int, list[int]]]:
    """Read slowly; in the middle, kill a Python worker of Spark that sends."""
    feed = gridflow.context().feed("train")
    taken = []
    for _ in range(epochs):
        ids: list[int] = []
        for number, batch in enumerate(feed.batches(50, remainder="keep")):
            ids += batch["id"].tolist()
            if number == 2 and gridflow.context().index == 0:
                for process in psutil.process_iter(["cmdline"]):
                    if "pyspark.worker" in " ".join(process.info["cmdline"] or ()) and process.children() == []:
                        process.kill()
        taken.append((len(ids), ids))
    return taken


def test_rows_of_a_feed_task_that_was_killed_come_once(spark: SparkSession) -> None:
    slow = rows(spark, 20_000, 4)
    cluster = gridflow.spark.run(kill_a_sender, spark=spark, workers=2, args=[1])
    cluster.train(slow)
    cluster.shutdown(SECONDS)
    taken = results(cluster)
    assert sorted(id_ for task in taken for id_ in taken[task][0][1]) == list(range(40_000))


def lose_the_executor(epochs: int) -> list[tuple[int, list[int]]]:
    context = gridflow.context()
    feed = context.feed("train")
    taken = []
    while feed.epoch < epochs:
        ids: list[int] = []
        for number, batch in enumerate(feed.batches(50, remainder="keep")):
            ids += batch["id"].tolist()
            if feed.epoch == 1 and number == 2 and context.index == 1 and not context.restart:
                os.kill(os.getpid(), signal.SIGKILL)
        taken.append((feed.epoch, ids))
    return taken


def test_gang_that_starts_again_gets_its_epoch_again_from_the_first_row(spark: SparkSession) -> None:
    cluster = gridflow.spark.run(lose_the_executor, spark=spark, workers=2, max_restarts=1, args=[3])
    cluster.train(rows(spark, 2000), epochs=3)
    cluster.shutdown(SECONDS)
    assert cluster.status().restarts == 1
    taken = results(cluster)
    for epochs in zip(*taken.values(), strict=True):
        assert sorted(id_ for _, ids in epochs for id_ in ids) == list(range(4000))


def square_and_repeat() -> int:
    feed = gridflow.context().feed("inference")
    answered = 0
    for batch in feed.batches(7):
        keep = [value for value in batch["id"].tolist() for _ in range(value % 3)]
        feed.put({"id": keep, "square": [value * value for value in keep]})
        answered += len(keep)
    return answered


def test_inference_gives_any_number_of_answers_in_the_order_of_the_rows(spark: SparkSession) -> None:
    cluster = gridflow.spark.run(square_and_repeat, spark=spark, workers=2)
    answers = cluster.inference(spark.range(0, 1000, 1, 6), "id long, square long").collect()
    assert [row["id"] for row in answers] == [value for value in range(1000) for _ in range(value % 3)]
    assert all(row["square"] == row["id"] ** 2 for row in answers)
    cluster.shutdown(SECONDS)
    assert sum(results(cluster).values()) == 1000 - 1


def test_tensorboard_starts_with_the_cluster(spark: SparkSession) -> None:
    import urllib.request

    cluster = gridflow.spark.run(never_read, spark=spark, workers=1, tensorboard=True)
    url = cluster.tensorboard_url(SECONDS)
    assert url is not None

    def answers() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=5) as page:
                return bool(page.status == 200)
        except OSError:
            return False

    until(answers, f"TensorBoard answers at {url}", seconds=SECONDS)
    cluster.cancel()
    run_processes.until_none_is_left(cluster.run)


def pull(pattern: str) -> tuple[list[str], int]:
    from gridflow import tfrecord

    paths = gridflow.context().shard(pattern)
    return paths, sum(int(batch["id"].shape[0]) for batch in tfrecord.dataset(paths, 16))


def test_tasks_pull_their_own_part_of_the_files(spark: SparkSession, tmp_path: Path) -> None:
    from gridflow import tfrecord

    tfrecord.write_spark(spark.range(100).repartition(5), tmp_path / "data")
    run = gridflow.launch(pull, on="spark", spark=spark, workers=2, args=[f"{tmp_path}/data/*.tfrecord"])
    run.wait(SECONDS)
    (first, first_rows), (second, second_rows) = (
        pickle.loads((run.folder / "results" / f"worker-{index}.pickle").read_bytes())["result"] for index in (0, 1)
    )
    assert sorted(first + second) == sorted(map(str, (tmp_path / "data").glob("*.tfrecord")))
    assert first_rows + second_rows == 100


def test_feed_has_one_kind(spark: SparkSession) -> None:
    with gridflow.spark.run(square_and_repeat, spark=spark, workers=1) as cluster:
        cluster.inference(spark.range(3), "id long, square long").collect()
        with pytest.raises(UsageError, match="feed 'inference' is for inference"):
            cluster.train(spark.range(3), feed="inference")
