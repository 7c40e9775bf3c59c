"""TensorFlowOnSpark's stages: arguments and params as its own tests have them, and `transform`."""

from __future__ import annotations

import argparse
import pickle
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.tfrecord.jvm import collect
from tests.twice import save_twice

from gridflow.compat.tensorflowonspark import TFCluster
from gridflow.compat.tensorflowonspark.pipeline import (
    HasBatchSize,
    HasSteps,
    Namespace,
    TFEstimator,
    TFModel,
    TFParams,
    TFTypeConverters,
    get_meta_graph_def,
    yield_batch,
)
from gridflow.errors import SchemaError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VALUES = {"string": "foo", "integer": 1, "float": 3.14, "array": [1, 2, 3], "map": {"a": 1, "b": 2}}


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_twice(tmp_path_factory.mktemp("models") / "twice")


@pytest.mark.parametrize("given", [VALUES, argparse.Namespace(**VALUES), Namespace(VALUES)], ids=type)
def test_namespace_has_entries_as_attributes(given: Any) -> None:
    space = Namespace(given)
    assert (space.string, space.array, space.map) == ("foo", [1, 2, 3], {"a": 1, "b": 2})
    assert "integer" in space
    assert "missing" not in space
    assert space == Namespace(VALUES)
    assert repr(Namespace({"b": 2, "a": "one"})) == "Namespace(a='one', b=2)"


def test_namespace_keeps_a_list_of_arguments() -> None:
    space = Namespace(["--rate", "0.1"])
    assert space.argv == list(space) == ["--rate", "0.1"]
    assert Namespace(space) == ["--rate", "0.1"]


def test_namespace_refuses_what_is_none() -> None:
    with pytest.raises(TypeError, match="Unsupported Namespace args: foo"):
        Namespace("foo")


def test_namespace_is_read_without_spark() -> None:
    assert b"pipeline" not in pickle.dumps(Namespace(VALUES))


def test_arguments_without_params_are_merged_unchanged() -> None:
    class Bare(TFParams):
        def __init__(self, args: Namespace) -> None:
            super().__init__()
            self.args = args

    bare = Bare(Namespace({"a": 1, "b": 2}))
    merged = bare.merge_args_params()
    assert merged == bare.args
    assert merged is not bare.args


def test_params_are_merged_over_arguments() -> None:
    class Sized(TFParams, HasBatchSize, HasSteps):
        def __init__(self) -> None:
            super().__init__()
            self.args = Namespace({"a": 1, "batch_size": 7})
            self._setDefault(steps=5)

    sized = Sized().setBatchSize(32)
    merged = sized.merge_args_params()
    assert (merged.a, merged.batch_size, merged.steps) == (1, 32, 5)
    assert sized.args.batch_size == 7


def test_converter_takes_dicts_alone() -> None:
    assert TFTypeConverters.toDict({"a": 1}) == {"a": 1}
    with pytest.raises(TypeError, match=re.escape("Could not convert [1] to OrderedDict")):
        TFTypeConverters.toDict([1])


def test_estimator_has_the_defaults_of_its_model() -> None:
    estimator = TFEstimator(print, {})
    assert (estimator.getClusterSize(), estimator.getNumPS(), estimator.getMasterNode()) == (1, 0, "chief")
    assert (estimator.getBatchSize(), estimator.getEpochs(), estimator.getSteps()) == (100, 1, 1000)
    assert (estimator.getReaders(), estimator.getGraceSecs(), estimator.getProtocol()) == (1, 30, "grpc")
    assert (estimator.getModelDir(), estimator.getExportDir(), estimator.getTFRecordDir()) == (None, None, None)
    assert (estimator.getTensorboard(), estimator.getDriverPSNodes(), estimator.getInputMapping()) == (False, False, {})
    assert estimator.getInputMode() == TFCluster.InputMode.SPARK


def test_estimator_refuses_the_mode_in_which_nothing_is_fed() -> None:
    with pytest.raises(Exception, match=re.escape("InputMode.TENSORFLOW is deprecated")):
        TFEstimator(print, {}).setInputMode(TFCluster.InputMode.TENSORFLOW)


def test_batches_have_a_list_for_each_column_and_keep_bytes() -> None:
    rows = [(bytearray(b"\xff\x00"), 1), (bytearray(b"b"), 2), (bytearray(b"c"), 3), None, (bytearray(b"d"), 4)]
    assert list(yield_batch(rows, 2, 2)) == [[[b"\xff\x00", b"b"], [1, 2]], [[b"c"], [3]]]
    assert list(yield_batch([(1,), (2,)], 2)) == [[[1, 2]]]


def model_of(path: Path) -> TFModel:
    model = TFModel({}).setExportDir(str(path)).setTagSet("serve").setSignatureDefKey("serving_default")
    return model.setInputMapping({"x": "x"}).setOutputMapping({"y": "x"})


def test_transform_gives_the_columns_of_the_output_mapping_alone(spark: SparkSession, twice: Path) -> None:
    numbers = spark.range(4).selectExpr("id", "cast(id as float) as x")
    found = model_of(twice).transform(numbers)
    assert found.columns == ["x"]
    assert [row.x for row in collect(found)] == [0.0, 2.0, 4.0, 6.0]


def test_single_tensor_may_be_called_as_keras_2_did(spark: SparkSession, twice: Path) -> None:
    model = model_of(twice).setInputMapping({"number": "dense_input"}).setOutputMapping({"dense": "out"})
    assert [row.out for row in collect(model.transform(spark.sql("select 4.0f as number")))] == [8.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("setExportDir", "export_dir is not set (call setExportDir)"),
        ("setTagSet", "tag_set is 'gpu' (export the model with the tag 'serve')"),
    ],
)
def test_transform_says_what_it_needs(spark: SparkSession, twice: Path, change: str, message: str) -> None:
    model = getattr(model_of(twice), change)({"setTagSet": "gpu"}.get(change))
    with pytest.raises(UsageError, match=re.escape(message)):
        model.transform(spark.sql("select 4.0f as x"))


def test_column_for_no_input_is_named(spark: SparkSession, twice: Path) -> None:
    model = model_of(twice).setInputMapping({"x": "x", "label": "y_"})
    with pytest.raises(SchemaError, match="the model has no input 'y_'"):
        model.transform(spark.sql("select 4.0f as x, 1 as label"))


def test_graph_of_a_saved_model_is_found_by_its_tags(twice: Path) -> None:
    assert "serving_default" in get_meta_graph_def(str(twice), "serve").signature_def
    with pytest.raises(UsageError, match="has no graph with the tags 'gpu'"):
        get_meta_graph_def(str(twice), "gpu")
