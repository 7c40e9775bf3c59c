"""Tries learning rates side by side on Spark's executors, and says which one is best."""

from __future__ import annotations

from gridflow.compat.hops import experiment, tensorboard
from gridflow.compat.hops.experiment import Direction
from pyspark.sql import SparkSession


def train(learning_rate: float, steps: int) -> dict[str, float]:
    import tensorflow as tf

    x = tf.random.stateless_normal([500, 3], seed=[1, 2])
    y = tf.linalg.matvec(x, [2.0, -1.0, 0.5])
    weights = tf.Variable(tf.zeros([3]))
    with tf.summary.create_file_writer(tensorboard.logdir()).as_default():
        for step in range(steps):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
            weights.assign_sub(learning_rate * tape.gradient(loss, weights))
            tf.summary.scalar("loss", loss, step)
    return {"loss": float(loss)}


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    grid: dict[str, list[float]] = {"learning_rate": [0.01, 0.3], "steps": [5, 15]}
    _, best, _ = experiment.grid_search(train, grid, direction=Direction.MIN, name="plane", optimization_key="loss")
    print("best:", *(f"{name} {float(value):g}" for name, value in sorted(best.items())))
    spark.stop()


if __name__ == "__main__":
    main()
