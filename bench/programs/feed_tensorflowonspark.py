"""Feeds rows of some kinds to one worker of TensorFlowOnSpark, which counts them.

The arguments say which part of the rows to feed, and of which kinds. One cluster is fed several times, since only the
feeding is measured.
"""

from __future__ import annotations

import sys
from typing import Any

from tensorflowonspark import TFCluster

from programs.spark_rows import KINDS, make_frame, measure, print_passes, start_spark

BATCH_ROWS = 100
FEED_SECONDS = 600


def count_rows(_: Any, context: Any) -> None:
    """Take batches until there are no more, as a training loop would."""
    feed = context.get_data_feed()
    while not feed.should_stop():
        feed.next_batch(BATCH_ROWS)


def main() -> None:
    """Measure some kinds of rows."""
    part, kinds = float(sys.argv[1]), sys.argv[2:]
    spark = start_spark("local-cluster[1,1,4096]")
    cluster = TFCluster.run(
        spark.sparkContext, count_rows, {}, num_executors=1, num_ps=0, input_mode=TFCluster.InputMode.SPARK
    )
    passes = []
    for kind in map(KINDS.__getitem__, kinds):
        df = make_frame(spark, kind, count := int(kind.peer_count * part))
        rows = df.rdd
        passes.append(measure(kind.name, count, lambda rows=rows: cluster.train(rows, 1, FEED_SECONDS)))  # type: ignore[misc]
        df.unpersist(blocking=True)
    cluster.shutdown()
    spark.stop()
    print_passes(passes)


if __name__ == "__main__":
    main()
