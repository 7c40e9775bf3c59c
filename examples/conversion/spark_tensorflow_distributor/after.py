"""Fits a plane on two tasks of Spark, in step, each with rows of its own."""

from __future__ import annotations

from pyspark.sql import SparkSession
from gridflow.compat.spark_tensorflow_distributor import MirroredStrategyRunner


def train(steps: int) -> list[float]:
    import tensorflow as tf

    strategy = tf.distribute.get_strategy()
    task = strategy.cluster_resolver.task_id
    x = tf.random.stateless_normal([500, 3], seed=[task, 1])
    y = tf.linalg.matvec(x, [2.0, -1.0, 0.5])
    weights = tf.Variable(tf.zeros([3]))

    def replica_step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
        gradient = tape.gradient(loss, weights)
        weights.assign_sub(0.3 * tf.distribute.get_replica_context().all_reduce("mean", gradient))

    step = tf.function(lambda: strategy.run(replica_step))
    for _ in range(steps):
        step()
    return [float(weight) for weight in weights.numpy()]


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    weights = MirroredStrategyRunner(num_slots=2, use_gpu=False).run(train, steps=30)
    print("weights", *(f"{each:.2f}" for each in weights))
    spark.stop()


if __name__ == "__main__":
    main()
