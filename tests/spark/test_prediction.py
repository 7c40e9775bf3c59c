"""Saved models of every format over real DataFrames, against TensorFlow's own answer."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
from tests.tfrecord.jvm import cause, collect
from tests.waiting import until

from gridflow.errors import SchemaError, UsageError
from gridflow.spark import predict
from gridflow.spark.prediction import bind_inputs, executor_cores, name_outputs, spark_type
from gridflow.spark.saved_models import Tensor, fingerprint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 50
#: Saves the models in the folder that is given, and what they make of the rows in images.npy.
SAVE = """
import sys
from pathlib import Path
import keras, numpy as np, tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

folder = Path(sys.argv[1])
keras.utils.set_random_seed(0)
layers = [keras.Input((6, 4), name="image"), keras.layers.Flatten(), keras.layers.Dense(3, name="scores")]
network = keras.Sequential(layers)
network.export(folder / "export", verbose=False)
network.save(folder / "model.keras")
frozen = tf.function(lambda image: {"scores": network(image)})
frozen = frozen.get_concrete_function(tf.TensorSpec([None, 6, 4], tf.float32, "image"))
graph = convert_variables_to_constants_v2(frozen).graph.as_graph_def()
(folder / "graph.pb").write_bytes(graph.SerializeToString())
np.save(folder / "scores.npy", network(np.load(folder / "images.npy").reshape(-1, 6, 4)).numpy())

signature = [tf.TensorSpec([None, 3], tf.float32, "numbers"), tf.TensorSpec([None], tf.string, "text")]

class Several(tf.Module):
    @tf.function(input_signature=signature)
    def __call__(self, numbers, text):
        numbers = tf.debugging.check_numerics(numbers, "these numbers are not finite")
        total = tf.reduce_sum(numbers, axis=1)
        return {"total": total, "twice": tf.strings.join([text, text]), "long": tf.strings.length(text)}

several = Several()
tf.saved_model.save(several, str(folder / "several"), signatures=several.__call__)

class Gate(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "folder")])
    def __call__(self, folder):
        "Say that it has begun, then wait for the word to go on."
        said = tf.io.write_file(folder[0] + "/begun", "")
        # The pattern ends with no letter of a number that changes: nobody can know its matches beforehand.
        found = lambda count: tf.io.matching_files(folder[0] + "/go" + tf.strings.substr(tf.as_string(count), 0, 0))
        with tf.control_dependencies([said]):
            tries = tf.while_loop(lambda count: tf.size(found(count)) < 1, lambda count: [count + 1], [0])
        with tf.control_dependencies(tries):
            return {"length": tf.strings.length(folder)}

gate = Gate()
tf.saved_model.save(gate, str(folder / "gate"), signatures=gate.__call__)
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    np.save(folder / "images.npy", np.random.default_rng(0).random((ROWS, 24), np.float32))
    subprocess.run([sys.executable, "-c", SAVE, str(folder)], check=True, timeout=200, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def images(spark: SparkSession, models: Path) -> DataFrame:
    rows = [(f"row {n}", image, n) for n, image in enumerate(np.load(models / "images.npy").tolist())]
    return spark.createDataFrame(rows, "name string, picture array<float>, number int").repartitionByRange(4, "number")


def hosts(spark: SparkSession, path: Path) -> list[psutil.Process]:
    """Return the processes that hold a model for this session's executor."""
    scratch = spark.conf.get("spark.local.dir")
    assert scratch
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cmdline()[1:] == ["-m", "gridflow.spark.model_host", str(path)]:
                found += [process] if process.environ()["SPARK_LOCAL_DIRS"].startswith(scratch) else []
    return found


@pytest.mark.parametrize("name", ["export", "model.keras", "graph.pb"])
def test_every_format_keeps_the_columns_and_the_order_of_rows(
    spark: SparkSession, images: DataFrame, models: Path, name: str
) -> None:
    # By way of fsspec, one of them is a model that is copied to this machine first.
    path = f"local://{models / name}" if name == "model.keras" else str(models / name)
    found = predict(images, path, inputs={"image": "picture"}, batch_size=7)
    output = found.columns[-1]
    assert found.schema.simpleString().startswith("struct<name:string,picture:array<float>,number:int,")
    assert found.schema[output].dataType.simpleString() == "array<float>"
    rows = collect(found)
    assert [tuple(row[:3]) for row in rows] == [tuple(row) for row in collect(images)]
    np.testing.assert_allclose([row[3] for row in rows], np.load(models / "scores.npy"), rtol=1e-5, atol=1e-5)


def test_all_python_workers_share_one_model_and_a_killed_one_is_started_again(
    spark: SparkSession, images: DataFrame, models: Path
) -> None:
    found = predict(images.repartition(8), models / "export", inputs="picture", outputs="scores")
    for _ in range(2):
        scores = {row.number: row.scores for row in collect(found)}
        expected = np.load(models / "scores.npy")
        np.testing.assert_allclose([scores[n] for n in range(ROWS)], expected, rtol=1e-5, atol=1e-5)
        [host] = hosts(spark, models / "export")
        host.send_signal(signal.SIGKILL)
        until(lambda host=host: not host.is_running(), "the host to be gone")  # type: ignore[misc]


def test_a_host_that_is_killed_amid_a_batch_costs_nothing(spark: SparkSession, models: Path, tmp_path: Path) -> None:
    rows = [(str(tmp_path),)] * 20
    found = predict(spark.createDataFrame(rows, "folder string").coalesce(1), models / "gate")
    with ThreadPoolExecutor(max_workers=1) as pool:
        collecting = pool.submit(collect, found)
        until((tmp_path / "begun").exists, "the model is at a batch", seconds=120)
        [host] = hosts(spark, models / "gate")
        host.send_signal(signal.SIGKILL)
        (tmp_path / "go").touch()
        assert [row.length for row in collecting.result()] == [len(str(tmp_path))] * 20
    [again] = hosts(spark, models / "gate")
    assert again != host


def test_a_host_ends_when_nobody_needs_it_and_is_started_again_when_somebody_does(
    spark: SparkSession, images: DataFrame, models: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(models / "export", tmp_path / "export"))
    found = predict(images, model, inputs="picture", outputs="scores", idle_seconds=3)
    for _ in range(2):
        scores = [row.scores for row in collect(found)]
        np.testing.assert_allclose(scores, np.load(models / "scores.npy"), rtol=1e-5, atol=1e-5)
        until(lambda: not hosts(spark, model), "the idle process with the model has ended")


def test_several_columns_several_outputs_texts_and_vectors(spark: SparkSession, models: Path) -> None:
    from pyspark.ml.linalg import Vectors

    rows = [(n, 0.5, float(n), "é" * n, Vectors.sparse(3, [1], [float(n)])) for n in range(5)]
    df = spark.createDataFrame(rows, ["a", "b b", "c.c", "text", "vector"])
    wanted = {"twice": "texts", "total": "sum"}
    found = predict(df, models / "several", inputs={"numbers": ["a", "b b", "c.c"]}, outputs=wanted, batch_size=2)
    assert found.columns == [*df.columns, "texts", "sum"]
    assert [(row.texts, row.sum) for row in collect(found)] == [("é" * 2 * n, 2 * n + 0.5) for n in range(5)]
    of_vectors = predict(df, models / "several", inputs={"numbers": "vector"}, outputs=wanted)
    assert [row.sum for row in collect(of_vectors.filter("a > 1").select("sum"))] == [2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, 2.0, float("nan")], "model .*/several: InvalidArgumentError: .*these numbers are not finite"),
        ([1.0, 2.0], r"input 'numbers' takes rows of shape \(3,\), not \(2,\)"),
        ([1.0, None, 2.0], "column 'values'.* null"),
        (None, r"column 'values' has 1 nulls \(fill them or filter them out\)"),
    ],
)
def test_what_is_wrong_with_rows_is_in_the_error(
    spark: SparkSession, models: Path, values: list[Any] | None, message: str
) -> None:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    df = spark.createDataFrame([(values, "x")], "values array<float>, text string")
    found = predict(df, models / "several", inputs={"numbers": "values"}, outputs={"twice": "texts", "total": "sum"})
    with pytest.raises((PySparkException, Py4JJavaError)) as error:
        collect(found)
    assert re.search(message, cause(error.value), re.DOTALL)


def test_a_request_that_cannot_be_met_fails_before_anything_runs(images: DataFrame, models: Path) -> None:
    with pytest.raises(UsageError, match=r"model /nowhere is not there \(the driver has to be able to read it"):
        predict(images, "/nowhere")
    with pytest.raises(UsageError, match="has no signature 'train'"):
        predict(images, models / "export", signature="train")
    with pytest.raises(SchemaError, match=r"there is no column 'image' for the model's input 'image' .*name, picture"):
        predict(images, models / "export")
    with pytest.raises(SchemaError, match="column 'name' is string, and the model's input 'image' takes float32"):
        predict(images, models / "export", inputs="name")
    with pytest.raises(UsageError, match="batch_size=0 is not positive"):
        predict(images, models / "export", batch_size=0)
    with pytest.raises(UsageError, match="idle_seconds=0 is not positive"):
        predict(images, models / "export", inputs="picture", idle_seconds=0)


def test_a_model_that_is_replaced_is_read_again(models: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.write_bytes(b"one")
    before = fingerprint(str(model))
    assert fingerprint(str(model)) == before
    model.write_bytes(b"another")
    assert fingerprint(str(model)) != before


FLOATS, TEXTS = Tensor("float32", (None, 3)), Tensor("string", (None,))


def test_inputs_are_columns_of_their_names_unless_told() -> None:
    both = {"x": FLOATS, "y": TEXTS}
    assert bind_inputs(None, both, ["y", "x"]) == {"x": ("x",), "y": ("y",)}
    assert bind_inputs({"x": ["a", "b"]}, both, ["a", "b", "y"]) == {"x": ("a", "b"), "y": ("y",)}
    assert bind_inputs(None, {"x": FLOATS}, ["only"]) == {"x": ("only",)}
    assert bind_inputs("b", {"x": FLOATS}, ["a", "b"]) == {"x": ("b",)}
    with pytest.raises(SchemaError, match=r"one column, 'a', for a model with 2 inputs .*x, y"):
        bind_inputs("a", both, ["a"])
    with pytest.raises(SchemaError, match=r"the model has no input 'z' .*it has x, y"):
        bind_inputs({"z": "a"}, both, ["a"])


def test_outputs_have_names_that_no_column_has() -> None:
    both = {"x": FLOATS, "y": TEXTS}
    assert name_outputs(None, both, ["a"]) == {"x": "x", "y": "y"}
    assert name_outputs({"y": "text"}, both, ["y"]) == {"y": "text"}
    with pytest.raises(SchemaError, match=r"there is a column 'x' already .*'x': …"):
        name_outputs(None, both, ["x"])
    with pytest.raises(SchemaError, match="there is a column 'same' already"):
        name_outputs({"x": "same", "y": "same"}, both, [])
    with pytest.raises(SchemaError, match=r"the model has no output 'z' .*it has x, y"):
        name_outputs({"z": "a"}, both, [])
    with pytest.raises(SchemaError, match="one column, 'a', for a model with 2 outputs"):
        name_outputs("a", both, [])


def test_an_output_is_an_array_as_deep_as_its_shape() -> None:
    assert spark_type("x", TEXTS) == "string"
    assert spark_type("x", Tensor("uint8", (None, 28, 28))) == "array<array<smallint>>"
    with pytest.raises(SchemaError, match="output 'x' is complex64, which Spark cannot hold"):
        spark_type("x", Tensor("complex64", (None,)))
    with pytest.raises(SchemaError, match="output 'x' has no known shape"):
        spark_type("x", Tensor("float32", None))
    with pytest.raises(SchemaError, match="output 'x' has one value for all rows"):
        spark_type("x", Tensor("float32", ()))


@pytest.mark.parametrize(
    ("master", "setting", "cores"),
    [
        ("local[3]", None, 3),
        ("local[2,4]", None, 2),
        ("local-cluster[2,3,1024]", None, 3),
        ("yarn", "4", 4),
        ("spark://host:7077", None, None),
        ("local[*]", None, None),
    ],
)
def test_the_model_has_as_many_threads_as_the_executor_has_processors(
    master: str, setting: str | None, cores: int | None
) -> None:
    assert executor_cores(master, setting) == cores
