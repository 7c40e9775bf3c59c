"""Sessions that take executors away, run tasks twice, or die, on a real cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyarrow as pa
import pytest
from integration.spark.standalone import Standalone, session_on
from tests.platforms import run_processes
from tests.waiting import until

import gridflow
import gridflow.spark
from gridflow import processes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 200
IDLE_SECONDS = 2
ELASTIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": f"{IDLE_SECONDS}s",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.dynamicAllocation.maxExecutors": "4",
}
SPECULATIVE = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}
PROGRAM = Path(__file__).parent / "programs" / "feed_endlessly.py"
#: PySpark leaves the sockets through which results come to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def elastic_spark(cluster: Standalone) -> Iterator[SparkSession]:
    """A session that has executors while it has work for them."""
    with session_on(cluster, ELASTIC) as started:
        yield started


@pytest.fixture
def speculative_spark(cluster: Standalone) -> Iterator[SparkSession]:
    """A session that runs slow tasks twice at the same time."""
    with session_on(cluster, SPECULATIVE) as started:
        yield started


def note_ids(folder: str, rest_seconds: float) -> None:
    """Read one epoch, long after the start, and write down the ids."""
    time.sleep(rest_seconds)
    context = gridflow.context()
    batches = context.feed("train").batches(50, remainder="keep")
    ids = [id_ for batch in batches for id_ in batch["id"].tolist()]
    Path(folder, f"{context.index}.json").write_text(json.dumps(ids))


def noted(folder: Path) -> list[int]:
    return sorted(id_ for path in folder.glob("*.json") for id_ in json.loads(path.read_text()))


def test_dynamic_allocation_gives_executors_and_takes_none_that_has_a_task(
    elastic_spark: SparkSession, cluster: Standalone, tmp_path: Path
) -> None:
    until(lambda: not cluster.executors(), "idle executors are taken away", seconds=SECONDS)
    # The tasks do nothing that Spark could see for longer than it leaves an executor idle.
    fed = gridflow.spark.run(note_ids, spark=elastic_spark, workers=2, args=[str(tmp_path), 3 * IDLE_SECONDS])
    fed.train(elastic_spark.range(0, 2000, 1, 6))
    fed.shutdown(SECONDS)
    assert noted(tmp_path) == list(range(2000))
    assert fed.status().restarts == 0
    run_processes.until_none_is_left(fed.run)
    until(lambda: not cluster.executors(), "executors go when their tasks have gone", seconds=SECONDS)


def test_rows_of_a_feed_task_that_runs_twice_come_once(speculative_spark: SparkSession, tmp_path: Path) -> None:
    folder, rows, partitions = str(tmp_path), 1200, 4

    def straggle(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give rows a block at a time; the first partition stops in the middle until it runs a second time."""
        from pyspark import TaskContext

        context = TaskContext.get()
        is_slow = context is not None and context.partitionId() == 0
        attempt = context.attemptNumber() if context is not None else 0
        for batch in batches:
            for start in range(0, batch.num_rows, 50):
                if is_slow and start == 150:
                    Path(folder, f"attempt-{attempt}").touch()
                    deadline = time.monotonic() + SECONDS
                    while not Path(folder, "attempt-1").exists():
                        if time.monotonic() > deadline:
                            # Spark tries again what fails, which is not what is wanted here.
                            Path(folder, "attempt-failed").touch()
                            raise TimeoutError("the straggler was not run a second time")
                        time.sleep(0.05)
                ids = batch.column("id").slice(start, 50)
                contents = pa.array([b"x" * 50_000] * len(ids), pa.binary())
                yield pa.RecordBatch.from_arrays([ids, contents], ["id", "content"])

    fed = gridflow.spark.run(note_ids, spark=speculative_spark, workers=2, args=[folder, 0])
    # Spark looks for stragglers once other tasks are done.
    report = fed.train(speculative_spark.range(0, rows, 1, partitions).mapInArrow(straggle, "id long, content binary"))
    fed.shutdown(SECONDS)
    assert sorted(path.name for path in tmp_path.glob("attempt-*")) == ["attempt-0", "attempt-1"]
    assert report.rows == rows
    assert noted(tmp_path) == list(range(rows))
    run_processes.until_none_is_left(fed.run)


@contextmanager
def endless_driver(cluster: Standalone, folder: Path) -> Iterator[tuple[psutil.Process, str]]:
    """Have a driver whose tasks are fed without end; gives its process and its run."""
    output = folder / "output"
    home = folder / "home"
    with output.open("wb") as stdout:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), cluster.url, json.dumps(cluster.settings())],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "GRIDFLOW_HOME": str(home)},
            stdout=stdout,
            stderr=subprocess.STDOUT,
        )

    def told() -> str:
        assert process.poll() is None, output.read_text()
        return next((line for line in output.read_text().splitlines() if line.startswith("fed ")), "")

    try:
        yield psutil.Process(process.pid), until(told, "the tasks are fed", seconds=SECONDS).removeprefix("fed ")
    finally:
        process.kill()
        process.wait()
        processes.kill_marked(f"GRIDFLOW_HOME={home}")


@pytest.mark.parametrize("victim", ["python", "jvm"])
def test_driver_that_is_killed_takes_everything_with_it(victim: str, cluster: Standalone, tmp_path: Path) -> None:
    with endless_driver(cluster, tmp_path) as (driver, run):
        assert processes.find([f"GRIDFLOW_RUN={run}"])
        assert cluster.executors()
        [jvm] = [child for child in driver.children(recursive=True) if child.name() == "java"]
        (driver if victim == "python" else jvm).send_signal(signal.SIGKILL)
        until(lambda: not processes.find([f"GRIDFLOW_RUN={run}"]), "no process of the run is left", seconds=60)
        until(lambda: not cluster.executors(), "no executor is left", seconds=60)
        until(lambda: not jvm.is_running(), "the driver's JVM has ended", seconds=60)
        until(lambda: driver.status() == psutil.STATUS_ZOMBIE, "the driver has ended", seconds=60)
    if victim == "jvm":
        output = (tmp_path / "output").read_text()
        assert "Error" in output.splitlines()[-1], output
