"""Prediction on a real cluster: one process holds the model in each executor, and ends with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from integration.spark.standalone import Standalone, session_on
from tests.twice import save_twice
from tests.waiting import until

from gridflow.spark import predict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 120
#: PySpark leaves the sockets through which results come to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_twice(tmp_path / "model")


@pytest.fixture
def spark(cluster: Standalone) -> Iterator[SparkSession]:
    """A session with two executors of two cores."""
    with session_on(cluster, cluster.settings(cores=2)) as started:
        yield started


def hosts(model: Path) -> set[psutil.Process]:
    """Return the processes that hold a model."""
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cmdline()[1:] == ["-m", "gridflow.spark.model_host", str(model)]:
                found.add(process)
    return found


def executors(spark: SparkSession, but: str = "") -> str:
    """Wait until Spark has two executors, and not just the same as once; return what it calls them."""

    def found() -> str:
        known = spark.sparkContext._jsc.sc().getExecutorMemoryStatus()
        # The driver is one of them.
        names = str(known.keySet().toString())
        return names if known.size() == 3 and names != but else ""

    return until(found, "Spark has both executors", seconds=SECONDS)


def check_predictions(spark: SparkSession, model: Path) -> None:
    rows = predict(spark.range(0, 1000, 1, 8).selectExpr("id", "cast(id as float) as x"), model).collect()
    assert [(row.id, row.y) for row in rows] == [(number, 2.0 * number) for number in range(1000)]


def test_each_executor_has_one_process_with_the_model_and_takes_it_along(
    cluster: Standalone, spark: SparkSession, model: Path
) -> None:
    before = executors(spark)
    check_predictions(spark, model)
    first = hosts(model)
    assert len(first) == len({process.environ()["SPARK_LOCAL_DIRS"] for process in first}) == 2
    killed, *_ = cluster.executors()
    killed.kill()
    until(lambda: len(hosts(model)) == 1, "the killed executor's process with the model ends", seconds=SECONDS)
    executors(spark, but=before)
    check_predictions(spark, model)
    second = hosts(model)
    assert len(second) == 2
    assert len(first & second) == 1
    spark.stop()
    until(lambda: not hosts(model), "nobody holds the model when the session has stopped", seconds=SECONDS)
