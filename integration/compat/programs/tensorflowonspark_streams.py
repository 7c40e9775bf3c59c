"""Feeds a cluster with streams, and tells what its nodes have read: `… MASTER SETTINGS FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.streaming import StreamingContext

from gridflow.compat.tensorflowonspark import TFCluster
from gridflow.spark import session


def read_thirty(folder: str, ctx: Any) -> None:
    feed = ctx.get_data_feed()
    rows: list[int] = []
    while len(rows) < 30:
        rows += feed.next_batch(10)
    Path(folder, str(ctx.task_index)).write_text(json.dumps(rows))
    feed.terminate()


def read_all(folder: str, ctx: Any) -> None:
    feed = ctx.get_data_feed()
    rows: list[Any] = []
    while not feed.should_stop():
        rows += [row.n for row in feed.next_batch(10)]
    Path(folder, str(ctx.task_index)).write_text(json.dumps(rows))


def tell(scene: str, folder: Path, **more: object) -> None:
    rows = sorted(row for path in folder.iterdir() for row in json.loads(path.read_text()))
    print(json.dumps({"scene": scene, "rows": rows, **more}), flush=True)  # noqa: T201


def feed_dstream(spark: SparkSession, folder: Path) -> None:
    context = spark.sparkContext
    stream = StreamingContext(context, 1)
    batches = [context.parallelize(range(10 * number, 10 * number + 10), 2) for number in range(3)]
    cluster = TFCluster.run(context, read_thirty, str(folder), 1, 0, input_mode=TFCluster.InputMode.SPARK)
    cluster.train(stream.queueStream(batches))
    stream.start()
    cluster.shutdown(stream)
    tell("dstream", folder, is_stopped=cluster.server.done)


def feed_streaming_frame(spark: SparkSession, folder: Path, source: Path) -> None:
    (source / "a.csv").write_text("".join(f"{n}\n" for n in range(50)))
    frame = spark.readStream.schema("n int").csv(str(source))
    cluster = TFCluster.run(spark.sparkContext, read_all, str(folder), 2, 0, input_mode=TFCluster.InputMode.SPARK)
    query = cluster.train(frame)
    query.processAllAvailable()
    (source / "b.csv").write_text("".join(f"{n}\n" for n in range(50, 70)))
    query.processAllAvailable()
    cluster.shutdown()
    tell("frame", folder, is_stopped=not query.isActive)


def main() -> None:
    master, settings, place = sys.argv[1:]
    folders = [Path(place, name) for name in ("dstream", "frame", "source")]
    for folder in folders:
        folder.mkdir()
    spark = session("streams", master=master, config=json.loads(settings))
    feed_dstream(spark, folders[0])
    feed_streaming_frame(spark, folders[1], folders[2])
    spark.stop()


if __name__ == "__main__":
    main()
