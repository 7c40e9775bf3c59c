"""TensorFlow in YARN's containers: fed by Spark, reading from HDFS, surviving a lost executor."""

from __future__ import annotations

import pickle
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from integration.hadoop.running import Hadoop

import gridflow
import gridflow.spark
from gridflow import tfrecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.timeout(900),
    # PySpark leaves the sockets through which results come to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SECONDS = 800


def results(run: gridflow.Run) -> list[Any]:
    files = [run.folder / "results" / f"{task.replace('/', '-')}.pickle" for task in run.job.tasks]
    return [pickle.loads(file.read_bytes())["result"] for file in files]


def fit() -> float:
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    dataset = gridflow.context().feed("train").dataset(20).map(lambda row: (row["x"], row["y"]))
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
        model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    return float(model.fit(dataset, epochs=2, verbose=0).history["loss"][-1])


def test_tensorflow_is_fed_in_containers(spark: SparkSession) -> None:
    rows = spark.range(0, 1000, 1, 3).selectExpr("array(rand(1), rand(2)) as x")
    rows = rows.selectExpr("transform(x, v -> cast(v as float)) as x", "cast(2 * x[0] - x[1] as float) as y")
    cluster = gridflow.spark.run(fit, spark=spark, workers=2)
    cluster.train(rows, epochs=2)
    loss = cluster.shutdown(SECONDS)
    assert loss < 0.2
    # Which of the nodes, is Spark's and YARN's choice.
    assert {task.host for task in cluster.status().tasks} <= {"127.0.0.2", "127.0.0.3"}
    assert results(cluster.run) == [loss, loss]


def pull(hdfs_native: str, url: str) -> tuple[list[str], int, str]:
    sys.path.insert(0, hdfs_native)
    context = gridflow.context()
    paths = context.shard(url)
    total = sum(int(batch["id"].numpy().sum()) for batch in tfrecord.dataset(paths, 32))
    return paths, total, context.absolute_path("model")


def test_tasks_read_their_own_files_from_hdfs(hadoop: Hadoop, hdfs_native: Path, spark: SparkSession) -> None:
    url = hadoop.url("/tensorflow/pull")
    tfrecord.write_spark(spark.range(0, 1000, 1, 5), url)
    run = gridflow.launch(pull, on="spark", spark=spark, workers=2, args=[str(hdfs_native), f"{url}/*.tfrecord"])
    status = run.wait(SECONDS)
    assert status.state is gridflow.RunState.SUCCEEDED, run.failure(status)
    (first, first_total, model), (second, second_total, _) = results(run)
    assert len({*first, *second}) == 5
    assert not {*first} & {*second}
    assert first_total + second_total == sum(range(1000))
    assert model == f"{hadoop.exports['HDFS_URL']}/user/{spark.sparkContext.sparkUser()}/model"


def lose_the_executor() -> list[int]:
    context = gridflow.context()
    ids: list[int] = []
    for number, batch in enumerate(context.feed("train").batches(10, remainder="keep")):
        ids += batch["id"].tolist()
        if number == 1 and context.index == 1 and not context.restart:
            executor = psutil.Process()
            while "CoarseGrainedExecutorBackend" not in " ".join(executor.cmdline()):
                executor = executor.parent()
            executor.kill()
            time.sleep(600)
    return ids


def test_executor_that_is_killed_costs_a_restart_and_no_row(spark: SparkSession) -> None:
    cluster = gridflow.spark.run(lose_the_executor, spark=spark, workers=2, max_restarts=1)
    cluster.train(spark.range(0, 2000, 1, 4))
    cluster.shutdown(SECONDS)
    assert cluster.status().restarts == 1
    assert sorted(id_ for ids in results(cluster.run) for id_ in ids) == list(range(2000))
