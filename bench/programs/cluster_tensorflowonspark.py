"""Starts and shuts down a cluster of TensorFlowOnSpark with two workers, as often as the argument says."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tensorflowonspark import TFCluster

from programs.cluster_times import few_rows, note_start, print_times, take_times
from programs.spark_rows import start_spark

WORKERS = 2
FEED_SECONDS = 600


def consume(stamps: str, context: Any) -> None:
    """Note the start, then take rows until there are no more."""
    note_start(Path(stamps), context.task_index)
    feed = context.get_data_feed()
    while not feed.should_stop():
        feed.next_batch(100)


def main() -> None:
    """Measure and print."""
    spark = start_spark(f"local-cluster[{WORKERS},1,1024]")
    rows = few_rows(spark, WORKERS).rdd
    times = []
    for _ in range(int(sys.argv[1])):
        with TemporaryDirectory() as stamps:
            times.append(
                take_times(
                    Path(stamps),
                    WORKERS,
                    lambda stamps=stamps: TFCluster.run(  # type: ignore[misc]
                        spark.sparkContext, consume, stamps, WORKERS, 0, input_mode=TFCluster.InputMode.SPARK
                    ),
                    lambda cluster: cluster.train(rows, 1, FEED_SECONDS),
                )
            )
    spark.stop()
    print_times(times)


if __name__ == "__main__":
    main()
