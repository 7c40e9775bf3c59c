"""The stages of Spark ML: their params, how they are saved and loaded, and a model's `transform`.

What trains is tested on a cluster, in integration/compat/.
"""

from __future__ import annotations

import pickle
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.tfrecord.jvm import collect
from tests.twice import save_twice

from gridflow.errors import UsageError
from gridflow.spark import TFEstimator, TFModel
from gridflow.spark.hadoop_files import copy, place_of, remove

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: PySpark leaves the sockets through which results come to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_twice(tmp_path_factory.mktemp("models") / "twice")


@pytest.fixture
def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(5).selectExpr("cast(id as float) as x", "concat('row ', id) as name")


def train(params: Any) -> None:
    """Stand for a function that trains."""


def test_params_have_defaults_getters_and_setters() -> None:
    estimator = TFEstimator(train, workers=2, batch_size=64)
    assert (estimator.getWorkers(), estimator.getBatchSize()) == (2, 64)
    assert (estimator.getPs(), estimator.getEpochs(), estimator.getInputMode()) == (0, 1, "feed")
    assert estimator.setEpochs(3).setValidationSplit(0.25).setArgs({"rate": 0.1}) is estimator
    assert (estimator.getEpochs(), estimator.getValidationSplit(), estimator.getArgs()) == (3, 0.25, {"rate": 0.1})
    assert estimator.train_fn is train


@pytest.mark.parametrize("stage", [TFEstimator(train), TFModel()])
def test_every_param_can_be_set_and_got(stage: TFEstimator | TFModel) -> None:
    for param in stage.params:
        name = "TFRecordDir" if param.name == "tfrecord_dir" else param.name.title().replace("_", "")
        value = getattr(stage, f"get{name}")()
        assert getattr(stage, f"set{name}")(value) is stage
        assert stage.isSet(param)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"worker": 2}, "TFEstimator has no param 'worker' (it has args, batch_size, "),
        ({"epochs": 0}, "0 is too small (give at least 1)"),
        ({"workers": -1}, "-1 is too small (give at least 0)"),
        ({"validation_split": 1}, "1 is no part of the rows (give 0, or a fraction below 1)"),
        ({"input_mode": "spark"}, "input_mode is 'spark' (choose 'feed' or 'tfrecord')"),
    ],
)
def test_impossible_value_is_refused_when_it_is_set(params: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        TFEstimator(train, **params)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"batch_size": "many"}, 'Invalid param value given for param "batch_size". Could not convert'),
        ({"args": {1: 2}}, 'param "args". Could not convert {1: 2} to a dict with strings as keys'),
        ({"columns": "x"}, "param \"columns\". Could not convert 'x' to a list of names"),
    ],
)
def test_value_of_another_type_is_refused_with_the_name_of_its_param(params: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        TFEstimator(train, **params)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "export_dir is not set (say where train_fn exports the model to)"),
        ({"export_dir": "e", "input_mode": "tfrecord"}, "tfrecord_dir is not set (say where the rows are written"),
        ({"export_dir": "e", "args": {"epochs": 3}}, "args has 'epochs', which is a param"),
    ],
)
def test_fit_says_what_is_missing_before_it_starts_anything(
    numbers: DataFrame, params: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        TFEstimator(train, **params).fit(numbers)


def test_fit_without_a_function_says_so(numbers: DataFrame) -> None:
    with pytest.raises(UsageError, match=r"no train_fn \(TFEstimator\(train_fn, …\)\)"):
        TFEstimator(export_dir="e").fit(numbers)


def test_copy_has_values_of_its_own_and_the_same_function() -> None:
    estimator = TFEstimator(train, workers=2)
    copied = estimator.copy({estimator.epochs: 7})
    copied.setWorkers(4)
    assert (copied.getEpochs(), copied.getWorkers(), copied.train_fn) == (7, 4, train)
    assert (estimator.getEpochs(), estimator.getWorkers()) == (1, 2)


class _Alarm:
    """Leaves a file behind when its pickle is read."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, params: Any) -> None:
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


def test_estimator_is_loaded_without_reading_the_pickle_of_its_function(spark: SparkSession, tmp_path: Path) -> None:
    rung = tmp_path / "rung"
    estimator = TFEstimator(_Alarm(str(rung)), workers=3, gpus=None, inputs={"x": ["a", "b"]})
    estimator.save(str(tmp_path / "saved"))
    loaded = TFEstimator.load(str(tmp_path / "saved"))
    again = tmp_path / "again"
    loaded.write().overwrite().save(str(again))
    assert (loaded.uid, loaded.getWorkers(), loaded.getGpus()) == (estimator.uid, 3, None)
    assert loaded.getInputs() == {"x": ["a", "b"]}
    assert not rung.exists()
    with loaded.train_fn:  # type: ignore[attr-defined]
        assert rung.exists()


def test_loaded_estimator_has_the_function_that_was_saved(spark: SparkSession, tmp_path: Path) -> None:
    rate = 0.5
    TFEstimator(lambda params: rate * params).save(str(tmp_path / "saved"))
    assert TFEstimator.load(str(tmp_path / "saved")).train_fn(4) == 2.0


def test_transform_keeps_all_columns_and_adds_the_outputs(numbers: DataFrame, twice: Path) -> None:
    found = TFModel(model_path=str(twice), outputs="doubled").transform(numbers)
    assert found.columns == ["x", "name", "doubled"]
    assert [tuple(row) for row in collect(found)] == [(float(n), f"row {n}", 2.0 * n) for n in range(5)]


def test_transform_takes_further_params_for_one_call(numbers: DataFrame, twice: Path) -> None:
    model = TFModel(model_path=str(twice))
    renamed = numbers.withColumnRenamed("x", "number")
    found = model.transform(renamed, {model.inputs: {"x": "number"}, model.outputs: {"y": "z"}})
    assert found.columns == ["number", "name", "z"]
    assert model.getInputs() is None


def test_model_without_a_path_says_so(numbers: DataFrame) -> None:
    with pytest.raises(UsageError, match="model_path is not set"):
        TFModel().transform(numbers)


def test_saved_model_stage_is_whole_by_itself(numbers: DataFrame, twice: Path, tmp_path: Path) -> None:
    original = Path(shutil.copytree(twice, tmp_path / "export"))
    model = TFModel(model_path=str(original), outputs={"y": "doubled"}, batch_size=2)
    model.save(str(tmp_path / "saved"))
    shutil.rmtree(original)
    loaded = TFModel.load(str(tmp_path / "saved"))
    assert (loaded.uid, loaded.getBatchSize()) == (model.uid, 2)
    assert loaded.getModelPath() == str(tmp_path / "saved" / "model")
    assert [row.doubled for row in collect(loaded.transform(numbers))] == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_pipelines_are_saved_and_loaded_with_these_stages(
    spark: SparkSession, numbers: DataFrame, twice: Path, tmp_path: Path
) -> None:
    from pyspark.ml import Pipeline, PipelineModel
    from pyspark.ml.feature import SQLTransformer

    statement = SQLTransformer(statement="SELECT x + 1 AS x, name FROM __THIS__")
    estimator = TFEstimator(train, epochs=5)
    Pipeline(stages=[statement, estimator]).save(str(tmp_path / "pipeline"))
    _, loaded = Pipeline.load(str(tmp_path / "pipeline")).getStages()
    assert isinstance(loaded, TFEstimator)
    assert loaded.getEpochs() == 5

    PipelineModel([statement, TFModel(model_path=str(twice))]).save(str(tmp_path / "model"))
    found = PipelineModel.load(str(tmp_path / "model")).transform(numbers)
    assert [row.y for row in collect(found)] == [2.0, 4.0, 6.0, 8.0, 10.0]


def test_validator_is_saved_with_grids_over_params(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.ml.evaluation import RegressionEvaluator
    from pyspark.ml.tuning import CrossValidator, ParamGridBuilder

    estimator = TFEstimator(train)
    grid = ParamGridBuilder().addGrid(estimator.args, [{"rate": 0.1}, {"rate": 0.2}]).addGrid(estimator.epochs, [1, 2])
    validator = CrossValidator(estimator=estimator, estimatorParamMaps=grid.build(), evaluator=RegressionEvaluator())
    validator.save(str(tmp_path / "validator"))
    maps = CrossValidator.load(str(tmp_path / "validator")).getEstimatorParamMaps()
    named = [{param.name: value for param, value in each.items()} for each in maps]
    assert named == [{"args": {"rate": rate}, "epochs": epochs} for rate in (0.1, 0.2) for epochs in (1, 2)]


def test_params_reach_the_function_as_attributes_of_one_light_object(tmp_path: Path) -> None:
    estimator = TFEstimator(train, export_dir=str(tmp_path), epochs=4, args={"rate": 0.1})
    params = estimator._train_params("first")
    assert (params.epochs, params.rate, params.batch_size) == (4, 0.1, 32)
    assert params.export_dir == f"{tmp_path}/first"
    # Tasks need not load Spark to be given it.
    assert b"pyspark" not in pickle.dumps(params)
    assert b"gridflow" not in pickle.dumps(params).replace(str(tmp_path).encode(), b"")


def test_files_of_spark_are_found_copied_and_removed(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "one" / "inner").mkdir(parents=True)
    (tmp_path / "one" / "inner" / "file").write_text("here")
    assert place_of(spark, f"file://{tmp_path}/one") == place_of(spark, f"{tmp_path}/one") == str(tmp_path / "one")
    assert place_of(spark, "hdfs://127.0.0.1:8020/one") == "hdfs://127.0.0.1:8020/one"
    copy(spark, str(tmp_path / "one"), str(tmp_path / "two"))
    assert (tmp_path / "two" / "inner" / "file").read_text() == "here"
    remove(spark, str(tmp_path / "two"))
    remove(spark, str(tmp_path / "two"))
    assert not (tmp_path / "two").exists()
