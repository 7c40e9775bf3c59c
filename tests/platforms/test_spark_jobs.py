"""Spark jobs beside their caller."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from tests.waiting import until

from gridflow.platforms.spark_jobs import SparkJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 60
#: PySpark leaves the sockets through which results come to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_job_that_is_cancelled_before_spark_has_heard_of_it_never_runs(spark: SparkSession) -> None:
    is_cancelled = threading.Event()

    def act() -> int:
        is_cancelled.wait(SECONDS)
        return spark.range(10).count()

    job = SparkJob(spark, "cancelled-early", "counts", act)
    until(lambda: job.is_running, "it has begun")
    job.cancel()
    is_cancelled.set()
    with pytest.raises(Exception, match="cancelled-early"):
        job.result()


def test_job_whose_tasks_find_no_core_is_starving(spark: SparkSession) -> None:
    def sleep(_number: int) -> None:
        time.sleep(SECONDS)

    context = spark.sparkContext
    blocked = SparkJob(spark, "blocks", "keeps all cores", lambda: context.range(0, 2, 1, 2).foreach(sleep))
    tracker = context.statusTracker()
    until(lambda: tracker.getJobIdsForGroup("blocks") and not blocked.is_starving, "a core is taken", seconds=SECONDS)
    starving = SparkJob(spark, "starves", "gets no core", lambda: context.range(0, 2, 1, 2).count())
    until(lambda: starving.is_starving, "the second job has no core", seconds=SECONDS)
    assert not blocked.is_starving
    blocked.cancel()
    assert starving.result() == 2
    assert not starving.is_starving
    with pytest.raises(Exception, match="blocks"):
        blocked.result()
