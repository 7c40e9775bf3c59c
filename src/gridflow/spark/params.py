"""The params of `TFEstimator` and `TFModel`, each with its getter and setter, as Spark ML has them.

A value is checked when it is set, so that a grid of them fails before anything is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters

from gridflow.errors import UsageError

Value = TypeVar("Value")

#: How rows reach the tasks: Spark feeds them, or the tasks read files that Spark wrote.
FEED, TFRECORD = "feed", "tfrecord"


def param(name: str, doc: str, convert: Callable[[Any], Value]) -> Param[Value]:
    """Return a param that any class of `Params` may have."""
    return Param(Params._dummy(), name, doc, convert)


# What values are checked with. What is not of the type is a TypeError, which Spark puts the param's name to.


def optional(convert: Callable[[Any], Value]) -> Callable[[Any], Value | None]:
    """Allow None too."""
    return lambda value: None if value is None else convert(value)


def to_dict(value: Any) -> dict[str, Any]:
    """Take a mapping with strings as its keys, which can be saved as JSON."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError(f"Could not convert {value!r} to a dict with strings as keys")
    return dict(value)


def to_columns(value: Any) -> str | dict[str, Any]:
    """Take a column, or a mapping to columns."""
    return value if isinstance(value, str) else to_dict(value)


def at_least(least: float, convert: Callable[[Any], Value]) -> Callable[[Any], Value]:
    """Take numbers that are not smaller."""

    def check(value: Any) -> Value:
        number = convert(value)
        if number < least:  # type: ignore[operator]
            raise UsageError(f"{value!r} is too small", hint=f"give at least {least:g}")
        return number

    return check


def to_share(value: Any) -> float:
    """Take a part of a whole, which is never all of it."""
    share = TypeConverters.toFloat(value)
    if not 0 <= share < 1:
        raise UsageError(f"{value!r} is no part of the rows", hint="give 0, or a fraction below 1")
    return share


def to_input_mode(value: Any) -> str:
    """Take one of the ways in which rows reach the tasks."""
    if value not in (FEED, TFRECORD):
        raise UsageError(f"input_mode is {value!r}", hint=f"choose {FEED!r} or {TFRECORD!r}")
    return str(value)


def to_names(value: Any) -> list[str]:
    """Take a list of names, and not a name alone."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"Could not convert {value!r} to a list of names")
    return TypeConverters.toListString(value)


_COUNT = at_least(0, TypeConverters.toInt)
_AT_LEAST_ONE = at_least(1, TypeConverters.toInt)
_AMOUNT = at_least(0, TypeConverters.toFloat)
_TEXT = TypeConverters.toString
_FLAG = TypeConverters.toBoolean


class HasBatchSize(Params):
    """How many rows are handled at a time."""

    batch_size = param("batch_size", "rows in a batch", optional(_AT_LEAST_ONE))

    def setBatchSize(self, value: int | None) -> Self:
        return self._set(batch_size=value)

    def getBatchSize(self) -> int:
        return self.getOrDefault(self.batch_size)  # type: ignore[return-value]


class HasEpochs(Params):
    """How often all rows are read."""

    epochs = param("epochs", "how often the tasks get all rows", _AT_LEAST_ONE)

    def setEpochs(self, value: int) -> Self:
        return self._set(epochs=value)

    def getEpochs(self) -> int:
        return self.getOrDefault(self.epochs)


class HasExportDir(Params):
    """Where models are exported to."""

    export_dir = param("export_dir", "where the trained model is exported to", optional(_TEXT))

    def setExportDir(self, value: str | None) -> Self:
        return self._set(export_dir=value)

    def getExportDir(self) -> str | None:
        return self.getOrDefault(self.export_dir)


class HasTFRecordDir(Params):
    """Where rows are written to on their way."""

    tfrecord_dir = param("tfrecord_dir", "where rows are written as TFRecords while a fit lasts", optional(_TEXT))

    def setTFRecordDir(self, value: str | None) -> Self:
        return self._set(tfrecord_dir=value)

    def getTFRecordDir(self) -> str | None:
        return self.getOrDefault(self.tfrecord_dir)


class HasTensorboard(Params):
    """Whether TensorBoard runs beside the training."""

    tensorboard = param("tensorboard", "whether TensorBoard runs beside the training", _FLAG)

    def setTensorboard(self, value: bool) -> Self:
        return self._set(tensorboard=value)

    def getTensorboard(self) -> bool:
        return self.getOrDefault(self.tensorboard)


class HasModelColumns(Params):
    """Which columns a model's inputs and outputs are, as `gridflow.spark.predict` takes them."""

    inputs = param("inputs", "the column or columns of each input of the model", optional(to_columns))
    outputs = param("outputs", "the column of each wanted output of the model", optional(to_columns))
    signature = param("signature", "the signature of the SavedModel", optional(_TEXT))

    def setInputs(self, value: str | Mapping[str, str | Sequence[str]] | None) -> Self:
        return self._set(inputs=value)

    def getInputs(self) -> str | dict[str, Any] | None:
        return self.getOrDefault(self.inputs)

    def setOutputs(self, value: str | Mapping[str, str] | None) -> Self:
        return self._set(outputs=value)

    def getOutputs(self) -> str | dict[str, Any] | None:
        return self.getOrDefault(self.outputs)

    def setSignature(self, value: str | None) -> Self:
        return self._set(signature=value)

    def getSignature(self) -> str | None:
        return self.getOrDefault(self.signature)


class HasTasks(HasTensorboard):
    """The job's groups and what its tasks get, as `gridflow.launch` takes them."""

    workers = param("workers", "how many workers train", _COUNT)
    ps = param("ps", "how many parameter servers there are", _COUNT)
    chief = param("chief", "whether a chief trains beside the workers", _FLAG)
    evaluator = param("evaluator", "whether an evaluator runs beside the training", _FLAG)
    gpus = param("gpus", "GPUs of each training task", optional(_AMOUNT))
    gpu_memory_mb = param("gpu_memory_mb", "memory of a GPU for each training task", optional(_AT_LEAST_ONE))
    max_restarts = param("max_restarts", "how often the tasks may start again after a failure", _COUNT)
    job = param("job", "further keys of a job file's [job] table", to_dict)

    def setWorkers(self, value: int) -> Self:
        return self._set(workers=value)

    def getWorkers(self) -> int:
        return self.getOrDefault(self.workers)

    def setPs(self, value: int) -> Self:
        return self._set(ps=value)

    def getPs(self) -> int:
        return self.getOrDefault(self.ps)

    def setChief(self, value: bool) -> Self:
        return self._set(chief=value)

    def getChief(self) -> bool:
        return self.getOrDefault(self.chief)

    def setEvaluator(self, value: bool) -> Self:
        return self._set(evaluator=value)

    def getEvaluator(self) -> bool:
        return self.getOrDefault(self.evaluator)

    def setGpus(self, value: float | None) -> Self:
        return self._set(gpus=value)

    def getGpus(self) -> float | None:
        return self.getOrDefault(self.gpus)

    def setGpuMemoryMb(self, value: int | None) -> Self:
        return self._set(gpu_memory_mb=value)

    def getGpuMemoryMb(self) -> int | None:
        return self.getOrDefault(self.gpu_memory_mb)

    def setMaxRestarts(self, value: int) -> Self:
        return self._set(max_restarts=value)

    def getMaxRestarts(self) -> int:
        return self.getOrDefault(self.max_restarts)

    def setJob(self, value: Mapping[str, Any]) -> Self:
        return self._set(job=value)

    def getJob(self) -> dict[str, Any]:
        return self.getOrDefault(self.job)


class HasRows(HasBatchSize, HasEpochs, HasTFRecordDir):
    """Which rows the tasks get, and how."""

    input_mode = param("input_mode", f"{FEED!r}, or {TFRECORD!r} for files that the tasks read", to_input_mode)
    columns = param("columns", "the columns that the tasks get; all unless told", optional(to_names))
    validation_split = param("validation_split", "the part of the rows that is kept for validation", to_share)
    seed = param("seed", "chooses the rows that are kept for validation", TypeConverters.toInt)
    feed_timeout_seconds = param("feed_timeout_seconds", "how long a task may read no row", _AMOUNT)
    end_timeout_seconds = param("end_timeout_seconds", "how long the tasks may take after their last row", _AMOUNT)

    def setInputMode(self, value: str) -> Self:
        return self._set(input_mode=value)

    def getInputMode(self) -> str:
        return self.getOrDefault(self.input_mode)

    def setColumns(self, value: Sequence[str] | None) -> Self:
        return self._set(columns=value)

    def getColumns(self) -> list[str] | None:
        return self.getOrDefault(self.columns)

    def setValidationSplit(self, value: float) -> Self:
        return self._set(validation_split=value)

    def getValidationSplit(self) -> float:
        return self.getOrDefault(self.validation_split)

    def setSeed(self, value: int) -> Self:
        return self._set(seed=value)

    def getSeed(self) -> int:
        return self.getOrDefault(self.seed)

    def setFeedTimeoutSeconds(self, value: float) -> Self:
        return self._set(feed_timeout_seconds=value)

    def getFeedTimeoutSeconds(self) -> float:
        return self.getOrDefault(self.feed_timeout_seconds)

    def setEndTimeoutSeconds(self, value: float) -> Self:
        return self._set(end_timeout_seconds=value)

    def getEndTimeoutSeconds(self) -> float:
        return self.getOrDefault(self.end_timeout_seconds)


class HasArgs(Params):
    """Values of the user's own."""

    args = param("args", "further values for train_fn, such as a learning rate", to_dict)

    def setArgs(self, value: Mapping[str, Any]) -> Self:
        return self._set(args=value)

    def getArgs(self) -> dict[str, Any]:
        return self.getOrDefault(self.args)


class HasModelPlace(HasBatchSize):
    """Which model predicts, and what its processes get, as `gridflow.spark.predict` takes them."""

    model_path = param("model_path", "a SavedModel, a .keras file or a frozen graph", optional(_TEXT))
    claim = param("claim", "what each executor's model asks of GPUs: the keywords of a Claim", optional(to_dict))
    memory_mb = param(
        "memory_mb", "memory that each executor's model may use", optional(at_least(1, TypeConverters.toFloat))
    )
    timeout_seconds = param("timeout_seconds", "how long a model may take to load, or over one batch", _AMOUNT)

    def setModelPath(self, value: str | None) -> Self:
        return self._set(model_path=value)

    def getModelPath(self) -> str | None:
        return self.getOrDefault(self.model_path)

    def setClaim(self, value: Mapping[str, Any] | None) -> Self:
        return self._set(claim=value)

    def getClaim(self) -> dict[str, Any] | None:
        return self.getOrDefault(self.claim)

    def setMemoryMb(self, value: float | None) -> Self:
        return self._set(memory_mb=value)

    def getMemoryMb(self) -> float | None:
        return self.getOrDefault(self.memory_mb)

    def setTimeoutSeconds(self, value: float) -> Self:
        return self._set(timeout_seconds=value)

    def getTimeoutSeconds(self) -> float:
        return self.getOrDefault(self.timeout_seconds)


def set_params(stage: Params, given: Mapping[str, Any]) -> None:
    """Set the params of a stage by their names; fail where it has none of a name."""
    known = sorted(each.name for each in stage.params)
    unknown = [name for name in given if name not in known]
    if unknown:
        raise UsageError(f"{type(stage).__name__} has no param {unknown[0]!r}", hint=f"it has {', '.join(known)}")
    stage._set(**given)
