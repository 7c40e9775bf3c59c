"""The rows that measurements of feeds move, and what moving them costs; both sides of a comparison use this."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.locality.wait": "0",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
PARTITIONS = 2
_SAMPLE_SECONDS = 0.2
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Rows:
    """Rows of one kind; `row_bytes` counts their values only."""

    name: str
    columns: tuple[str, ...]
    row_bytes: int
    #: How many rows the peer and Gridflow are given, when there is no hurry.
    peer_count: int
    count: int


KINDS = {
    rows.name: rows
    for rows in (
        Rows(
            "784 floats",
            ("transform(sequence(1, 784), i -> cast(hash(id, i) / 2147483648 as float)) as image",),
            784 * 4,
            20_000,
            320_000,
        ),
        Rows(
            "784 bytes",
            ("substr(cast(repeat(sha2(string(id), 256), 13) as binary), 1, 784) as image",),
            784,
            20_000,
            1_600_000,
        ),
        Rows(
            "40 scalars",
            (
                *(f"xxhash64(id, {n}) as int{n}" for n in range(20)),
                *(f"cast(hash(id, {n}) / 2147483648 as float) as float{n}" for n in range(20)),
            ),
            20 * 8 + 20 * 4,
            20_000,
            1_000_000,
        ),
        Rows("one int", ("cast(id as int) as number",), 4, 20_000, 10_000_000),
    )
}


@dataclass(frozen=True)
class Pass:
    """What moving some rows took; the memory is that of all processes together, shared pages counted for each."""

    name: str
    rows: int
    seconds: float
    cpu_seconds: float
    peak_mb: float


def start_spark(master: str) -> SparkSession:
    """Start Spark with Python workers that run this interpreter."""
    from pyspark.sql import SparkSession

    # Tasks that outlive what started them would be no descendants of this process, and not be measured.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("bench")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def make_frame(spark: SparkSession, rows: Rows, count: int) -> DataFrame:
    """Make rows and keep them in the executors' memory."""
    df = spark.range(0, count, numPartitions=PARTITIONS).selectExpr(*rows.columns).cache()
    if df.count() != count:
        raise RuntimeError(f"{rows.name}: Spark made other than {count} rows")
    return df


def pass_through(df: DataFrame) -> int:
    """Bring a DataFrame's rows into Spark's Python workers and do nothing with them; return how many there were."""

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        yield pa.RecordBatch.from_pydict({"rows": [sum(batch.num_rows for batch in batches)]})

    return sum(row["rows"] for row in df.mapInArrow(count, "rows long").collect())


def measure(name: str, rows: int, work: Callable[[], object]) -> Pass:
    """Do some work, and watch what this process and all its descendants take for it."""
    me = psutil.Process()
    peak, is_done = [0.0], threading.Event()

    def watch() -> None:
        while not is_done.wait(_SAMPLE_SECONDS):
            peak[0] = max(peak[0], memory_mb(me))

    watcher = threading.Thread(target=watch)
    cpu, started = cpu_seconds(me), time.perf_counter()
    watcher.start()
    try:
        work()
        seconds = time.perf_counter() - started
    finally:
        is_done.set()
        watcher.join()
    return Pass(name, rows, seconds, cpu_seconds(me) - cpu, max(peak[0], memory_mb(me)))


def memory_mb(process: psutil.Process) -> float:
    """Return the resident memory of a process and its descendants."""
    return sum(_each(process, lambda one: one.memory_info().rss)) / 2**20


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU time of a process and its descendants, ended ones included."""
    return sum(_each(process, lambda one: sum(one.cpu_times()[:4])))


def _each(process: psutil.Process, ask: Callable[[psutil.Process], float]) -> Iterator[float]:
    for one in [process, *process.children(recursive=True)]:
        try:
            yield ask(one)
        except psutil.NoSuchProcess:
            continue


def print_passes(passes: list[Pass]) -> None:
    """Print what was measured on the last line, for the program that asked."""
    print(json.dumps([asdict(one) for one in passes]), flush=True)
