"""Feeds streams to tasks, and prints what became of them as JSON, one line each: stream.py MASTER SETTINGS FOLDER."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.waiting import until

import gridflow
import gridflow.spark
from gridflow.errors import TaskFailedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECONDS = 200
COLUMNS = ["id", "array(cast(id as float), 1f) as x"]


def take(most: int) -> list[int]:
    """Return the ids that were read; stop the feed after so many."""
    feed = gridflow.context().feed("train")
    ids: list[int] = []
    for batch in feed.batches(10, remainder="keep"):
        assert (batch["x"][:, 0] == batch["id"]).all()
        ids += batch["id"].tolist()
        if len(ids) >= most:
            feed.stop()
            break
    return ids


def fail() -> None:
    for _ in gridflow.context().feed("train").batches(10):
        raise ValueError("loss is not a number")


def die_once() -> int:
    context = gridflow.context()
    count = 0
    for batch in context.feed("train").batches(10):
        count += len(batch["id"])
        if not context.restart:
            os.kill(os.getpid(), signal.SIGKILL)
    return count


class Folder:
    """Files that a stream is made of."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self._spark, self._path = spark, path
        path.mkdir()

    def add(self, first: int, end: int) -> None:
        self._spark.range(first, end, 1, 3).selectExpr(*COLUMNS).write.mode("append").parquet(str(self._path))

    def stream(self) -> DataFrame:
        schema = self._spark.range(0).selectExpr(*COLUMNS).schema
        return self._spark.readStream.schema(schema).parquet(str(self._path))


def until_the_query_is_stopped(spark: SparkSession, folder: Folder) -> dict[str, Any]:
    cluster = gridflow.spark.run(take, spark=spark, workers=1, args=[10_000])
    query: Any = cluster.train(folder.stream())
    for batch in range(3):
        folder.add(100 * batch, 100 * batch + 100)
        query.processAllAvailable()
    query.stop()
    ids = cluster.shutdown(SECONDS)
    return {"batches": query.lastProgress["batchId"] + 1, "ids": sorted(ids)}


def until_the_cluster_is_shut_down(spark: SparkSession, folder: Folder) -> dict[str, Any]:
    cluster = gridflow.spark.run(take, spark=spark, workers=2, args=[10_000])
    folder.add(0, 100)
    query: Any = cluster.train(folder.stream())
    query.processAllAvailable()
    first = cluster.shutdown(SECONDS)
    return {"rows": len(first), "ids": sorted(set(first)), "active": query.isActive}


def until_the_tasks_have_enough(spark: SparkSession, folder: Folder) -> dict[str, Any]:
    cluster = gridflow.spark.run(take, spark=spark, workers=1, args=[50])
    query: Any = cluster.train(folder.stream())
    folder.add(0, 100)
    # No row comes after those that were enough, so nothing but the tasks' word ends the query.
    is_ended = query.awaitTermination(SECONDS)
    ids = cluster.shutdown(SECONDS)
    return {"ended": is_ended, "ids": sorted(ids), "exception": str(query.exception())}


def until_a_task_fails(spark: SparkSession, folder: Folder) -> dict[str, Any]:
    from pyspark.errors import StreamingQueryException

    cluster = gridflow.spark.run(fail, spark=spark, workers=1)
    folder.add(0, 100)
    query: Any = cluster.train(folder.stream())
    try:
        query.awaitTermination(SECONDS)
    except StreamingQueryException as error:
        told = str(error)
    else:
        told = ""
    try:
        cluster.shutdown(SECONDS)
    except ValueError as error:
        return {"active": query.isActive, "told": told, "raised": str(error)}
    raise AssertionError("shutdown raised nothing")


def until_the_tasks_start_again(spark: SparkSession, folder: Folder) -> dict[str, Any]:
    from pyspark.errors import StreamingQueryException

    cluster = gridflow.spark.run(die_once, spark=spark, workers=1, max_restarts=1)
    folder.add(0, 100)
    query: Any = cluster.train(folder.stream())
    # The query fails where the tasks are started again before it has sent all, and otherwise nobody but shutdown knows.
    with suppress(StreamingQueryException):
        query.processAllAvailable()
    until(lambda: cluster.status().restarts == 1, "the task is started again", seconds=SECONDS)
    try:
        cluster.shutdown(SECONDS)
    except TaskFailedError as error:
        return {"active": query.isActive, "raised": str(error), "state": cluster.status().state.value}
    raise AssertionError("shutdown raised nothing")


def main(master: str, settings: str, folder: str) -> None:
    spark = gridflow.spark.session("streams", master=master, config=json.loads(settings))
    for scene in (
        until_the_query_is_stopped,
        until_the_cluster_is_shut_down,
        until_the_tasks_have_enough,
        until_a_task_fails,
        until_the_tasks_start_again,
    ):
        found = scene(spark, Folder(spark, Path(folder, scene.__name__)))
        print(json.dumps({"scene": scene.__name__, **found}), flush=True)  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
