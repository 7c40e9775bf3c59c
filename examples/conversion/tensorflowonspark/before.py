"""Fits a plane on two executors, in step, with rows that Spark feeds to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tensorflowonspark import TFCluster


def train(args: dict[str, Any], ctx: Any) -> None:
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weights = tf.Variable(tf.zeros([3, 1]))

    def replica_step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weights - y) ** 2)
        gradient = tape.gradient(loss, weights)
        weights.assign_sub(0.3 * tf.distribute.get_replica_context().all_reduce("mean", gradient))

    step = tf.function(lambda x, y: strategy.run(replica_step, args=(x, y)))
    feed = ctx.get_data_feed()
    for _ in range(args["steps"]):
        rows = np.array(feed.next_batch(args["batch_size"]), "float32")
        step(rows[:, :3], rows[:, 3:])
    if ctx.job_name == "chief":
        np.savetxt(args["weights"], weights.numpy())
    feed.terminate()


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    # Fewer steps than there are rows for, since executors do not get equally many.
    args: dict[str, Any] = {"batch_size": 25, "steps": 30, "weights": str(Path("weights.txt").absolute())}
    points = spark.range(0, 2000, numPartitions=8).selectExpr("randn(1) as a", "randn(2) as b", "1 as c")
    rows = points.selectExpr("a", "b", "c", "2 * a - b + 0.5 as y").rdd
    cluster = TFCluster.run(
        spark.sparkContext, train, args, 2, 0, input_mode=TFCluster.InputMode.SPARK, master_node="chief"
    )
    cluster.train(rows, num_epochs=1)
    cluster.shutdown()
    a, b, c = map(float, Path(args["weights"]).read_text().split())
    print(f"{a:.2f} a {b:+.2f} b {c:+.2f}")
    spark.stop()


if __name__ == "__main__":
    main()
