"""TensorFlow as a stage of Spark ML: an estimator that trains on a cluster, and the model that it returns.

    TFEstimator.fit(df)         split ─▶ feeds "train" and "validation", or TFRecord files ─▶ train_fn in the tasks
                                         └ train_fn exports a model to params.export_dir ─▶ TFModel
    TFModel.transform(df)       gridflow.spark.predict: all columns, and those of the outputs

Every fit has folders of its own, so that those of a CrossValidator do not meet.
"""

from __future__ import annotations

import base64
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import cloudpickle
from pyspark.ml import Estimator, Model
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter

from gridflow.errors import UsageError
from gridflow.gpu import Claim
from gridflow.platforms.spark_jobs import speaking_to_jvm
from gridflow.spark import hadoop_files
from gridflow.spark.cluster import Cluster, run
from gridflow.spark.params import (
    TFRECORD,
    HasArgs,
    HasExportDir,
    HasModelColumns,
    HasModelPlace,
    HasRows,
    HasTasks,
    set_params,
)
from gridflow.spark.prediction import predict
from gridflow.spark.saved_models import fingerprint
from gridflow.tfrecord.spark import adopt_jars, register, write_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRAIN, VALIDATION = "train", "validation"
_FUNCTION = "trainFunction"
_MODEL = "model"


class TFEstimator(
    Estimator["TFModel"],
    HasTasks,
    HasRows,
    HasArgs,
    HasExportDir,
    HasModelColumns,
    MLWritable,
    MLReadable["TFEstimator"],
):
    """Trains a model with a function that runs in every chief, worker and evaluator.

    The function is given one object: all params and the entries of `args` are its attributes. It finds its rows in
    `gridflow.context().feed("train")`, and in `feed("validation")` where there is a `validation_split`; or, where
    `input_mode` is "tfrecord", in the files of `params.train_files` and `params.validation_files`, of which
    `gridflow.context().shard(...)` is its part. Its first task exports the model to `params.export_dir`, which is a
    new folder inside the estimator's own.

    A saved estimator holds its function as a pickle, which is not read when the estimator is loaded but when it is
    used: fit only those that come from where you trust.
    """

    def __init__(self, train_fn: Callable[[Any], Any] | None = None, **params: Any) -> None:
        super().__init__()
        self._function: Callable[[Any], Any] | _StoredFunction | None = train_fn
        self._setDefault(
            workers=1,
            ps=0,
            chief=False,
            evaluator=False,
            tensorboard=False,
            gpus=None,
            gpu_memory_mb=None,
            max_restarts=0,
            job={},
            input_mode="feed",
            tfrecord_dir=None,
            columns=None,
            batch_size=32,
            epochs=1,
            validation_split=0.0,
            seed=0,
            feed_timeout_seconds=600.0,
            end_timeout_seconds=3600.0,
            args={},
            export_dir=None,
            inputs=None,
            outputs=None,
            signature=None,
        )
        set_params(self, params)

    @property
    def train_fn(self) -> Callable[[Any], Any]:
        """The function that trains; of an estimator that was loaded, this reads its pickle."""
        if self._function is None:
            raise UsageError("the estimator has no train_fn", hint="TFEstimator(train_fn, …)")
        if isinstance(self._function, _StoredFunction):
            self._function = self._function.read()
        return self._function

    def _fit(self, dataset: DataFrame) -> TFModel:
        spark = dataset.sparkSession
        name = uuid.uuid4().hex[:12]
        params = self._train_params(name)
        frames = self._split(dataset)
        if params.input_mode == TFRECORD:
            folder = hadoop_files.place_of(spark, f"{params.tfrecord_dir}/{name}")
            with _files(frames, folder, tasks=self.getWorkers() + self.getChief()) as places:
                params.train_files, params.validation_files = places[TRAIN], places.get(VALIDATION)
                result = self._train(spark, params, {})
        else:
            result = self._train(spark, params, frames)
        return self._model(params.export_dir, result)

    def _train_params(self, name: str) -> SimpleNamespace:
        """Return what `train_fn` is given, in a fit of this name."""
        values = {param.name: self.getOrDefault(param) for param in self.params}
        values |= {"train_files": None, "validation_files": None}
        own = values.pop("args")
        if twice := sorted(own.keys() & values.keys()):
            raise UsageError(f"args has {twice[0]!r}, which is a param", hint="set the param, or give it another name")
        if values["export_dir"] is None:
            raise UsageError("export_dir is not set", hint="say where train_fn exports the model to")
        if values["input_mode"] == TFRECORD and values["tfrecord_dir"] is None:
            raise UsageError("tfrecord_dir is not set", hint="say where the rows are written for the tasks to read")
        return SimpleNamespace(**{**values, "export_dir": f"{_absolute(values['export_dir'])}/{name}"}, **own)

    def _split(self, dataset: DataFrame) -> dict[str, DataFrame]:
        columns, share = self.getColumns(), self.getValidationSplit()
        rows = dataset if columns is None else dataset.select(*columns)
        if not share:
            return {TRAIN: rows}
        train, validation = rows.randomSplit([1 - share, share], self.getSeed())
        return {TRAIN: train, VALIDATION: validation}

    def _train(self, spark: SparkSession, params: SimpleNamespace, frames: Mapping[str, DataFrame]) -> Any:
        """Run the function in a cluster that is fed with frames; return what it returned in the first task."""
        tasks = {
            "workers": self.getWorkers() or None,
            "ps": self.getPs() or None,
            **{name: getattr(params, name) for name in ("chief", "evaluator", "tensorboard", "gpus", "gpu_memory_mb")},
            **{name: getattr(params, name) for name in ("max_restarts", "job")},
        }
        # Without a feed nobody else needs the cores of the tasks. The cluster ends first, and thereby the feeds.
        with (
            ThreadPoolExecutor(max_workers=2, thread_name_prefix="gridflow-fit") as threads,
            run(self.train_fn, spark=spark, hold=not frames, args=[params], **tasks) as cluster,
        ):
            for fed in as_completed([threads.submit(self._feed, cluster, *each) for each in frames.items()]):
                fed.result()
            if not frames:
                cluster.run.wait()
            return cluster.shutdown(self.getEndTimeoutSeconds())

    def _feed(self, cluster: Cluster, name: str, frame: DataFrame) -> None:
        with speaking_to_jvm():
            timeout_seconds = self.getFeedTimeoutSeconds()
            cluster.train(frame, feed=name, epochs=self.getEpochs(), timeout_seconds=timeout_seconds)

    def _model(self, path: str, result: Any) -> TFModel:
        try:
            fingerprint(path)
        except UsageError as error:
            raise UsageError(
                f"train_fn has exported no model to {path}",
                hint="let its first task do so: model.export(params.export_dir)",
            ) from error
        model = TFModel(model_path=path)
        for param in (self.inputs, self.outputs, self.signature):
            if self.isSet(param):
                model._set(**{param.name: self.getOrDefault(param)})
        model.result = result
        return model

    def write(self) -> MLWriter:
        """Return what saves the estimator, with its function as a pickle."""
        return _EstimatorWriter(self)

    @classmethod
    def read(cls) -> MLReader[TFEstimator]:
        """Return what loads an estimator."""
        return _EstimatorReader()


class TFModel(Model, HasModelPlace, HasModelColumns, MLWritable, MLReadable["TFModel"]):
    """A saved model over DataFrames: `transform` keeps all columns and adds those of the outputs.

    Where `save` saves it, a copy of the model's files lies beside its params.
    """

    #: What `train_fn` returned in the first task; it is not saved.
    result: Any = None

    def __init__(self, **params: Any) -> None:
        super().__init__()
        self._setDefault(
            model_path=None,
            inputs=None,
            outputs=None,
            signature=None,
            batch_size=None,
            claim=None,
            memory_mb=None,
            timeout_seconds=600.0,
        )
        set_params(self, params)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        claim = self.getClaim()
        return predict(
            dataset,
            self.required_path(),
            inputs=self.getInputs(),
            outputs=self.getOutputs(),
            batch_size=self.getBatchSize(),
            signature=self.getSignature(),
            claim=None if claim is None else Claim(**claim),
            memory_mb=self.getMemoryMb(),
            timeout_seconds=self.getTimeoutSeconds(),
        )

    def required_path(self) -> str:
        """Return where the model is."""
        path = self.getModelPath()
        if path is None:
            raise UsageError("model_path is not set", hint="TFModel(model_path=…), or fit a TFEstimator")
        return path

    def write(self) -> MLWriter:
        """Return what saves the params and the model's files."""
        return _ModelWriter(self)

    @classmethod
    def read(cls) -> MLReader[TFModel]:
        """Return what loads a model."""
        return _ModelReader()


@contextmanager
def _files(frames: Mapping[str, DataFrame], folder: str, tasks: int) -> Iterator[dict[str, str]]:
    """Have frames as TFRecord files, as many for every task, as long as the `with` block lasts."""
    places = {name: f"{folder}/{name}" for name in frames}
    [spark, *_] = [frame.sparkSession for frame in frames.values()]
    register(spark)
    adopt_jars(spark)
    try:
        for name, frame in frames.items():
            rounds = -(-frame.rdd.getNumPartitions() // tasks)
            write_spark(frame.repartition(max(1, rounds) * tasks), places[name])
        yield places
    finally:
        hadoop_files.remove(spark, folder)


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))


class _StoredFunction:
    """A function as it was saved."""

    def __init__(self, text: str) -> None:
        self.text = text

    @classmethod
    def of(cls, function: Callable[[Any], Any]) -> Self:
        return cls(base64.b64encode(cloudpickle.dumps(function)).decode())

    def read(self) -> Callable[[Any], Any]:
        """Unpickle it, which runs what the pickle says."""
        function: Callable[[Any], Any] = cloudpickle.loads(base64.b64decode(self.text))
        return function


class _EstimatorWriter(MLWriter):
    def __init__(self, estimator: TFEstimator) -> None:
        super().__init__()
        self._estimator = estimator

    def saveImpl(self, path: str) -> None:  # noqa: N802 - Spark calls it
        function = self._estimator._function
        if callable(function):
            function = _StoredFunction.of(function)
        more = {_FUNCTION: function and function.text}
        DefaultParamsWriter.saveMetadata(self._estimator, path, self.sparkSession, more)


class _EstimatorReader(MLReader[TFEstimator]):
    def load(self, path: str) -> TFEstimator:
        metadata = DefaultParamsReader.loadMetadata(path, self.sparkSession)
        estimator = TFEstimator()
        if metadata[_FUNCTION] is not None:
            estimator._function = _StoredFunction(metadata[_FUNCTION])
        estimator._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(estimator, metadata)
        return estimator


class _ModelWriter(MLWriter):
    def __init__(self, model: TFModel) -> None:
        super().__init__()
        self._model = model

    def saveImpl(self, path: str) -> None:  # noqa: N802 - Spark calls it
        source = _absolute(self._model.required_path())
        # A model's kind is known by the end of its name: 'model.keras', 'graph.pb'.
        copy = f"{_MODEL}{os.path.splitext(source)[1]}"
        DefaultParamsWriter.saveMetadata(self._model, path, self.sparkSession, {_MODEL: copy})
        hadoop_files.copy(self.sparkSession, source, f"{path}/{copy}")


class _ModelReader(MLReader[TFModel]):
    def load(self, path: str) -> TFModel:
        metadata = DefaultParamsReader.loadMetadata(path, self.sparkSession)
        model = TFModel()
        model._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(model, metadata)
        return model.setModelPath(hadoop_files.place_of(self.sparkSession, f"{path}/{metadata[_MODEL]}"))
