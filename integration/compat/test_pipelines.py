"""TensorFlow as a stage of Spark ML, on a real cluster: trained with rows that are fed or read from files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import gridflow
from gridflow.errors import TaskFailedError, UsageError
from gridflow.spark import TFEstimator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: PySpark leaves the sockets through which results come to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

#: What the rows' `y` are made with, and what a model must find again.
WEIGHTS = (3.14, 1.618)


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    columns = ["id", "rand(1) as a", "rand(2) as b"]
    made = spark.range(0, 1000, 1, 5).selectExpr(*columns)
    return made.selectExpr("*", "array(a, b) as x", f"{WEIGHTS[0]} * a + {WEIGHTS[1]} * b as y").persist()


def fit_with_keras(params: Any) -> Any:
    import tensorflow as tf

    strategy, context = tf.distribute.MultiWorkerMirroredStrategy(), gridflow.context()
    feeds = {
        name: context.feed(name).dataset(params.batch_size).map(lambda row: (row["x"], row["y"]))
        for name in ("train", "validation")
    }
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((2,), name="x"), tf.keras.layers.Dense(1, use_bias=False)])
        model.compile(tf.keras.optimizers.SGD(params.rate), "mse")
    history = model.fit(feeds["train"], validation_data=feeds["validation"], epochs=params.epochs, verbose=0)
    if context.index == 0:
        model.export(params.export_dir, verbose=False)
    return history.history


def test_fit_feeds_two_workers_with_rows_to_train_and_to_validate(rows: DataFrame, tmp_path: Path) -> None:
    estimator = TFEstimator(
        fit_with_keras,
        workers=2,
        epochs=3,
        batch_size=16,
        validation_split=0.2,
        columns=["x", "y"],
        export_dir=str(tmp_path / "export"),
        args={"rate": 0.5},
        outputs="predicted",
    )
    model = estimator.fit(rows)
    assert len(model.result["val_loss"]) == 3
    assert model.result["val_loss"][-1] < 0.001
    assert model.getModelPath() == str(next((tmp_path / "export").iterdir()))
    found = model.transform(rows.limit(3).selectExpr("id", "array(1.0D, 1.0D) as x")).collect()
    assert [list(row.asDict()) for row in found] == [["id", "x", "predicted"]] * 3
    assert [row.predicted[0] for row in found] == pytest.approx([sum(WEIGHTS)] * 3, abs=0.005)


def save_linear_model(weights: Any, offset: float, path: str) -> None:
    """Save a model that multiplies vectors `x` with weights."""
    import tensorflow as tf

    class Linear(tf.Module):  # type: ignore[misc]
        @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")])  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            return {"prediction": tf.linalg.matvec(x, tf.constant(weights, tf.float32)) + offset}

    linear = Linear()
    tf.saved_model.save(linear, path, signatures=linear.__call__)


def solve_files(params: Any) -> dict[str, Any]:
    """Find the weights from files; each worker says how many rows and validation rows were its part."""
    import numpy as np

    from gridflow import tfrecord

    context = gridflow.context()
    parts = [context.shard(files) for files in (params.train_files, params.validation_files)]
    tables = [tfrecord.read(part, columns=["x", "y"]).read_all() for part in parts]
    train, validation = tables
    x = np.array(train.column("x").to_pylist())
    weights, *_ = np.linalg.lstsq(x, train.column("y").to_numpy(), rcond=None)
    if context.index == 0:
        save_linear_model(weights, 0.0, params.export_dir)
    return {"files": [len(part) for part in parts], "rows": [train.num_rows, validation.num_rows]}


def test_fit_lets_workers_read_their_parts_of_files_that_are_gone_afterwards(rows: DataFrame, tmp_path: Path) -> None:
    estimator = TFEstimator(solve_files, workers=2, input_mode="tfrecord", tfrecord_dir=str(tmp_path / "rows"))
    estimator.setExportDir(str(tmp_path / "export")).setValidationSplit(0.5).setColumns(["x", "y"])
    model = estimator.fit(rows)
    # Five partitions become six files, as many for each worker.
    assert model.result["files"] == [3, 3]
    train, validation = model.result["rows"]
    assert 150 < train < 350
    assert 150 < validation < 350
    assert list((tmp_path / "rows").iterdir()) == []
    [row] = model.transform(rows.limit(1)).collect()
    assert row.prediction == pytest.approx(row.y, abs=0.005)


def solve_feed(params: Any) -> None:
    import numpy as np

    feed = gridflow.context().feed("train")
    batches = [(batch["features"], batch["y"]) for batch in feed.batches(params.batch_size, remainder="keep")]
    x, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    weights, *_ = np.linalg.lstsq(x, y, rcond=None)
    save_linear_model(weights, params.offset, params.export_dir)


def test_cross_validator_finds_the_better_of_two_pipelines(rows: DataFrame, tmp_path: Path) -> None:
    from pyspark.ml import Pipeline, PipelineModel
    from pyspark.ml.evaluation import RegressionEvaluator
    from pyspark.ml.feature import VectorAssembler
    from pyspark.ml.tuning import CrossValidator, CrossValidatorModel, ParamGridBuilder

    estimator = TFEstimator(
        solve_feed, columns=["features", "y"], inputs="features", export_dir=str(tmp_path / "export")
    )
    pipeline = Pipeline(stages=[VectorAssembler(inputCols=["a", "b"], outputCol="features"), estimator])
    grid = ParamGridBuilder().addGrid(estimator.args, [{"offset": 5.0}, {"offset": 0.0}]).build()
    evaluator = RegressionEvaluator(labelCol="y")
    validator = CrossValidator(estimator=pipeline, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2, seed=1)
    # In one partition: with more of them, more executors load TensorFlow to predict with each of the models.
    model = validator.fit(rows.coalesce(1))
    assert model.avgMetrics == pytest.approx([5.0, 0.0], abs=0.001)
    # Each of the two folds' fits, and the last one with all rows, has exported a model of its own.
    assert len(list((tmp_path / "export").iterdir())) == 2 * 2 + 1
    model.save(str(tmp_path / "saved"))
    best = CrossValidatorModel.load(str(tmp_path / "saved")).bestModel
    assert isinstance(best, PipelineModel)
    [row] = best.transform(rows.limit(1)).collect()
    assert row.prediction == pytest.approx(row.y, abs=0.005)


def fail(params: Any) -> None:
    raise ValueError(f"a rate of {params.rate} is too much")


def test_error_of_the_function_is_raised_by_fit(rows: DataFrame, tmp_path: Path) -> None:
    estimator = TFEstimator(fail, validation_split=0.1, args={"rate": 7}, export_dir=str(tmp_path))
    with pytest.raises(TaskFailedError, match="ValueError: a rate of 7 is too much"):
        estimator.fit(rows)


def read_train_only(params: Any) -> None:
    for _ in gridflow.context().feed("train").batches(params.batch_size):
        pass


def test_feed_that_the_function_never_reads_is_named(rows: DataFrame, tmp_path: Path) -> None:
    estimator = TFEstimator(read_train_only, validation_split=0.1, export_dir=str(tmp_path))
    with pytest.raises(TaskFailedError, match="feed 'validation': the run has ended, and no task has opened"):
        estimator.fit(rows)


def test_function_that_exports_nothing_is_told_to(rows: DataFrame, tmp_path: Path) -> None:
    estimator = TFEstimator(read_train_only, export_dir=str(tmp_path / "export"))
    with pytest.raises(UsageError, match=re.escape("train_fn has exported no model to ")):
        estimator.fit(rows)


def fit_as_tensorflowonspark_does(args: Any, ctx: Any) -> None:
    import tensorflow as tf

    from gridflow.compat.tensorflowonspark import TFNode, compat

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1, name="dense")])
        model.compile(tf.keras.optimizers.Adam(0.2), "mse")
    feed = TFNode.DataFeed(ctx.mgr, input_mapping=args.input_mapping)

    def rows_of_the_feed() -> Any:
        while not feed.should_stop():
            batch = feed.next_batch(1)
            if not batch["x"]:
                return
            yield batch["x"][0], [batch["y_"][0]]

    signature = (tf.TensorSpec([2], tf.float32), tf.TensorSpec([1], tf.float32))
    options = tf.data.Options()
    compat.disable_auto_shard(options)
    rows = tf.data.Dataset.from_generator(rows_of_the_feed, output_signature=signature).with_options(options)
    # Nine tenths of an epoch, since nodes may get different numbers of rows.
    steps = int(args.rows * 0.9 // (args.batch_size * ctx.num_workers))
    model.fit(rows.batch(args.batch_size), epochs=args.epochs, steps_per_epoch=steps, verbose=0)
    compat.export_saved_model(model, args.export_dir, ctx.job_name == "chief")
    feed.terminate()


def test_stages_of_tensorflowonspark_fit_and_transform(rows: DataFrame, tmp_path: Path) -> None:
    from gridflow.compat.tensorflowonspark.pipeline import TFEstimator as PeerEstimator

    estimator = PeerEstimator(fit_as_tensorflowonspark_does, {"rows": 1000})
    estimator.setInputMapping({"x": "x", "y": "y_"}).setExportDir(str(tmp_path / "export"))
    estimator.setClusterSize(2).setMasterNode("chief").setBatchSize(1).setEpochs(1).setGraceSecs(0)
    model = estimator.fit(rows.repartition(2))
    # Keras 3 calls these tensors otherwise, but there is only one of each.
    model.setInputMapping({"x": "dense_input"}).setOutputMapping({"dense": "cout"})
    model.setTagSet("serve").setSignatureDefKey("serving_default")
    ones = rows.limit(1).selectExpr("id", "array(1.0D, 1.0D) as x")
    [found] = model.transform(ones).collect()
    assert found.asDict() == {"cout": [pytest.approx(sum(WEIGHTS), abs=0.005)]}
