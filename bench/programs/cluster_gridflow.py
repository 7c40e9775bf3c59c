"""Starts and shuts down a cluster of Gridflow with two workers, as often as the argument says."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import gridflow.spark
from programs.cluster_times import few_rows, note_start, print_times, take_times
from programs.spark_rows import start_spark

WORKERS = 2


def consume(stamps: str) -> None:
    """Note the start, then take rows until there are no more."""
    context = gridflow.context()
    note_start(Path(stamps), context.index)
    for _ in context.feed("train").batches(100):
        pass


def main() -> None:
    """Measure and print."""
    spark = start_spark(f"local-cluster[{WORKERS},1,1024]")
    rows = few_rows(spark, WORKERS)
    times = []
    for _ in range(int(sys.argv[1])):
        with TemporaryDirectory() as stamps:
            start = partial(gridflow.spark.run, partial(consume, stamps), spark=spark, workers=WORKERS)
            times.append(
                take_times(Path(stamps), WORKERS, start, lambda cluster: cluster.train(rows, epochs=1, feed="train"))
            )
    spark.stop()
    print_times(times)


if __name__ == "__main__":
    main()
