"""How long a cluster inside Spark takes to start and to shut down; both sides of a comparison use this."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START_SECONDS = 300


@dataclass(frozen=True)
class Times:
    """Seconds of one cluster: until its function ran in all tasks, and from the end of training to that of all."""

    start: float
    shutdown: float


def few_rows(spark: SparkSession, workers: int) -> DataFrame:
    """Return rows for every worker; counting them starts Spark's Python workers, which then are warm for all."""
    rows = spark.range(0, 1000, numPartitions=workers).selectExpr("cast(id as int) as number")
    rows.rdd.count()
    return rows


def note_start(stamps: Path, task: int) -> None:
    """Leave a stamp that tells when a task's function began to run."""
    note(stamps, task, time.time())


def note(folder: Path, task: int, number: float) -> None:
    """Leave a number of a task's."""
    made = folder / f".{task}"
    made.write_text(str(number))
    os.replace(made, folder / str(task))


def take_times(stamps: Path, workers: int, start: Callable[[], Any], train: Callable[[Any], object]) -> Times:
    """Start a cluster, train until all rows are read, shut it down."""
    called = time.time()
    cluster = start()
    began = max(read_notes(stamps, workers)) - called
    train(cluster)
    trained = time.perf_counter()
    cluster.shutdown()
    return Times(began, time.perf_counter() - trained)


def read_notes(folder: Path, workers: int) -> list[float]:
    """Wait until every task has left its number, and return them."""
    deadline = time.monotonic() + START_SECONDS
    while len(found := [path for path in folder.iterdir() if not path.name.startswith(".")]) < workers:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(found)} of {workers} tasks ran within {START_SECONDS} seconds")
        time.sleep(0.05)
    return [float(path.read_text()) for path in found]


def print_times(times: list[Times]) -> None:
    """Print what was measured on the last line, for the program that asked."""
    print(json.dumps([asdict(each) for each in times]), flush=True)
