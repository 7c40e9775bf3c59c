"""A program of TensorFlowOnSpark's: trains and infers with clusters of one worker, then transforms a DataFrame.

    python -m programs.compat_program PACKAGE ROWS CLUSTERS MODEL

PACKAGE is where the API comes from, and all that differs between both sides of a comparison. ROWS are fed in each pass.
Of at least two CLUSTERS the first is trained, the second infers, and more are only started and shut down. MODEL is a
SavedModel for `transform`.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from programs.cluster_times import Times, few_rows, note, note_start, read_notes, take_times
from programs.spark_rows import KINDS, PARTITIONS, Pass, make_frame, measure, start_spark

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

WORKERS = 1
FLOATS = 784
BATCH_ROWS = 100
FEED_SECONDS = 600
#: How often each source is fed; the JVM is slow at first.
PASSES = 2


def make_row(number: int) -> list[float]:
    """Make a row that begins with its number."""
    return [float(number), *(number * each % 255 / 255 for each in range(1, FLOATS))]


def take_rows(folder: str, context: Any) -> None:
    """Take batches until there are no more, as a training loop would, and leave their number."""
    note_start(Path(folder, "stamps"), context.task_index)
    feed = context.get_data_feed()
    count = 0
    while not feed.should_stop():
        count += len(feed.next_batch(BATCH_ROWS))
    note(Path(folder, "counts"), context.task_index, count)


def answer_rows(folder: str, context: Any) -> None:
    """Answer each row by what it begins with."""
    note_start(Path(folder, "stamps"), context.task_index)
    feed = context.get_data_feed(train_mode=False)
    while not feed.should_stop():
        rows = feed.next_batch(BATCH_ROWS)
        if rows:
            feed.batch_results([row[0] for row in rows])


class Side:
    """One side of the comparison, and what was measured of it."""

    def __init__(self, package: str, spark: SparkSession, count: int) -> None:
        self._clusters = importlib.import_module(f"{package}.TFCluster")
        self._models = importlib.import_module(f"{package}.pipeline")
        self._spark = spark
        self._count = count
        #: Fed before anything is measured, so that what feeds and what is fed have loaded all they need.
        self._few = few_rows(spark, WORKERS).rdd
        self.times: list[Times] = []
        self.passes: list[Pass] = []

    def train(self, sources: dict[str, RDD[Any] | DataFrame]) -> None:
        """Feed some rows, all to one cluster, which must get each of them."""

        def feed(cluster: Any) -> None:
            cluster.train(self._few, 1, FEED_SECONDS)
            for name, rows in sources.items():
                for _ in range(PASSES):
                    self._measure(name, partial(cluster.train, rows, 1, FEED_SECONDS))

        with TemporaryDirectory() as folder:
            self._run(take_rows, Path(folder), feed)
            counts = read_notes(Path(folder, "counts"), WORKERS)
        self._check(sum(counts), self._few.count() + PASSES * len(sources) * self._count)

    def infer(self, rows: RDD[Any]) -> None:
        """Have some rows answered; the answers' sum must be that of the rows' numbers."""
        answers: list[float] = []

        def ask(cluster: Any) -> None:
            cluster.inference(self._few, FEED_SECONDS).count()
            answered = cluster.inference(rows, FEED_SECONDS)
            self._measure("inference", lambda: answers.append(answered.sum()))

        with TemporaryDirectory() as folder:
            self._run(answer_rows, Path(folder), ask)
        self._check(answers[0], self._count * (self._count - 1) / 2)

    def start_only(self) -> None:
        """Start a cluster, feed it a little, and shut it down."""
        with TemporaryDirectory() as folder:
            self._run(take_rows, Path(folder), lambda cluster: cluster.train(self._few, 1, FEED_SECONDS))

    def transform(self, frame: DataFrame, model_path: str) -> None:
        """Predict twice, so that the model is loaded when it counts."""
        model = self._models.TFModel({}).setInputMapping({"image": "image"}).setOutputMapping({"scores": "scores"})
        model.setExportDir(model_path).setSignatureDefKey("serving_default").setTagSet("serve")

        def predict() -> None:
            model.transform(frame).write.format("noop").mode("overwrite").save()

        predict()
        self._measure("transform", predict)

    def _run(self, function: Callable[..., None], folder: Path, use: Callable[[Any], object]) -> None:
        for name in ("stamps", "counts"):
            (folder / name).mkdir()
        mode = self._clusters.InputMode.SPARK
        start = partial(
            self._clusters.run, self._spark.sparkContext, function, str(folder), WORKERS, 0, input_mode=mode
        )
        self.times.append(take_times(folder / "stamps", WORKERS, start, use))

    def _measure(self, name: str, work: Callable[[], object]) -> None:
        self.passes.append(measure(name, self._count, work))

    def _check(self, found: float, expected: float) -> None:
        if found != expected:
            raise RuntimeError(f"{found:,.0f} came of the rows, and not {expected:,.0f}")


def main() -> None:
    """Measure everything, and print it on the last line."""
    package, count, clusters, model_path = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    spark = start_spark(f"local-cluster[{WORKERS},1,1024]")
    rows = spark.sparkContext.parallelize(range(count), PARTITIONS).map(make_row).cache()
    rows.count()
    frame = make_frame(spark, KINDS["784 floats"], count)
    side = Side(package, spark, count)
    # The peer takes no DataFrames.
    takes_frames = package.startswith("gridflow")
    side.train({"train": rows, "train, df.rdd": frame.rdd, "train, a DataFrame": frame if takes_frames else frame.rdd})
    side.infer(rows)
    for _ in range(clusters - len(side.times)):
        side.start_only()
    rows.unpersist(blocking=True)
    side.transform(frame, model_path)
    spark.stop()
    measured: dict[str, list[Any]] = {"times": side.times, "passes": side.passes}
    print(json.dumps({name: [asdict(each) for each in some] for name, some in measured.items()}), flush=True)


if __name__ == "__main__":
    main()
