"""Fits a plane on two executors as a stage of Spark ML, then predicts with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.ml import Pipeline
from pyspark.sql import SparkSession
from tensorflowonspark.pipeline import TFEstimator


def train(args: Any, ctx: Any) -> None:
    import tensorflow as tf

    plane = tf.Module()
    plane.weights = tf.Variable(tf.zeros([3]))
    points = tf.TensorSpec([None, 3], name="x")
    predict = tf.function(lambda x: {"y": tf.linalg.matvec(x, plane.weights)}, input_signature=[points])
    feed = ctx.get_data_feed(input_mapping=args.input_mapping)
    for _ in range(args.steps):
        batch = feed.next_batch(args.batch_size)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((predict(tf.constant(batch["x"]))["y"] - batch["y"]) ** 2)
        plane.weights.assign_sub(0.3 * tape.gradient(loss, plane.weights))
    if ctx.job_name == "chief":
        tf.saved_model.save(plane, args.export_dir, signatures=predict)
    feed.terminate()


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    points = spark.range(2000).selectExpr("array(randn(1), randn(2), 1.0D) as x")
    points = points.selectExpr("x", "2 * x[0] - x[1] + 0.5 as y").repartition(8)
    estimator = (
        TFEstimator(train, {})
        .setInputMapping({"x": "x", "y": "y"})
        .setClusterSize(2)
        .setEpochs(1)
        .setBatchSize(25)
        .setSteps(30)
        .setExportDir(str(Path("plane").absolute()))
        .setGraceSecs(0)
    )
    model: Any = Pipeline(stages=[estimator]).fit(points).stages[0]
    model.setInputMapping({"x": "x"}).setOutputMapping({"y": "prediction"})
    model.setSignatureDefKey("serving_default").setTagSet("serve")
    some = spark.createDataFrame([([0.0, 0.0, 1.0],), ([1.0, 2.0, 1.0],)], "x array<double>").coalesce(1)
    predictions = [row.prediction for row in model.transform(some).collect()]
    print("predictions", *(f"{each:.2f}" for each in predictions))
    spark.stop()


if __name__ == "__main__":
    main()
