"""TensorFlowOnSpark's stages of Spark ML: its params and classes over `TFCluster` and `gridflow.spark.predict`.

    TFEstimator.fit(df)         TFCluster.run, train, shutdown ─▶ TFModel
    TFModel.transform(df)       the columns of output_mapping, and no others

`gridflow.spark.TFEstimator` and `TFModel` do more: they can be saved, validate, read files, keep all columns.
"""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from pyspark.ml import Estimator, Model
from pyspark.ml.param import Params, TypeConverters

from gridflow.compat.tensorflowonspark import TFCluster, util
from gridflow.compat.tensorflowonspark.namespace import Namespace
from gridflow.errors import UsageError
from gridflow.spark.params import HasBatchSize, HasEpochs, HasExportDir, HasTensorboard, HasTFRecordDir, param
from gridflow.spark.prediction import predict
from gridflow.spark.saved_models import ModelPlan, describe, fingerprint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "HasBatchSize",
    "HasClusterSize",
    "HasEpochs",
    "HasExportDir",
    "HasFeedTimeout",
    "HasGraceSecs",
    "HasInputMapping",
    "HasInputMode",
    "HasMasterNode",
    "HasModelDir",
    "HasNumPS",
    "HasOutputMapping",
    "HasProtocol",
    "HasReaders",
    "HasSignatureDefKey",
    "HasSteps",
    "HasTFRecordDir",
    "HasTagSet",
    "HasTensorboard",
    "Namespace",
    "TFEstimator",
    "TFModel",
    "TFParams",
    "TFTypeConverters",
    "get_meta_graph_def",
    "single_node_env",
    "yield_batch",
]

_SERVE = "serve"
#: How long nodes may take to end when feeding them has failed.
_END_SECONDS = 10

_log = logging.getLogger(__name__)


class TFTypeConverters:
    """What Spark's own converters lack."""

    @staticmethod
    def toDict(value: Any) -> dict[Any, Any]:
        """Take a dict."""
        if type(value) is not dict:
            raise TypeError(f"Could not convert {value} to OrderedDict")
        return value


class HasClusterSize(Params):
    """How many nodes there are in all."""

    cluster_size = param("cluster_size", "nodes of the cluster, of all kinds", TypeConverters.toInt)

    def setClusterSize(self, value: int) -> Self:
        return self._set(cluster_size=value)

    def getClusterSize(self) -> int:
        return self.getOrDefault(self.cluster_size)


class HasFeedTimeout(Params):
    """How long a node may read nothing; TensorFlowOnSpark has no such param."""

    feed_timeout = param("feed_timeout", "seconds that a node may read no row", TypeConverters.toInt)

    def setFeedTimeout(self, value: int) -> Self:
        return self._set(feed_timeout=value)

    def getFeedTimeout(self) -> int:
        return self.getOrDefault(self.feed_timeout)


class HasGraceSecs(Params):
    """How long nodes were given to export a model; here they are waited for."""

    grace_secs = param("grace_secs", "seconds for what nodes do after the last row", TypeConverters.toInt)

    def setGraceSecs(self, value: int) -> Self:
        return self._set(grace_secs=value)

    def getGraceSecs(self) -> int:
        return self.getOrDefault(self.grace_secs)


class HasInputMapping(Params):
    """Which tensor each column is."""

    input_mapping = param("input_mapping", "the tensor of each column", TFTypeConverters.toDict)

    def setInputMapping(self, value: dict[str, str]) -> Self:
        return self._set(input_mapping=value)

    def getInputMapping(self) -> dict[str, str]:
        return self.getOrDefault(self.input_mapping)


class HasInputMode(Params):
    """How rows reach the nodes, of which there is one way here."""

    input_mode = param("input_mode", "how rows reach the nodes: InputMode.SPARK", TypeConverters.toInt)

    def setInputMode(self, value: int) -> Self:
        if value == TFCluster.InputMode.TENSORFLOW:
            raise UsageError("InputMode.TENSORFLOW is deprecated", hint="gridflow.spark.TFEstimator has such a mode")
        return self._set(input_mode=value)

    def getInputMode(self) -> int:
        return self.getOrDefault(self.input_mode)


class HasMasterNode(Params):
    """What the first node that trains is called."""

    master_node = param("master_node", "the job name of the chief", TypeConverters.toString)

    def setMasterNode(self, value: str | None) -> Self:
        return self._set(master_node=value)

    def getMasterNode(self) -> str | None:
        return self.getOrDefault(self.master_node)


class HasModelDir(Params):
    """Where checkpoints are."""

    model_dir = param("model_dir", "where checkpoints are", TypeConverters.toString)

    def setModelDir(self, value: str | None) -> Self:
        return self._set(model_dir=value)

    def getModelDir(self) -> str | None:
        return self.getOrDefault(self.model_dir)


class HasNumPS(Params):
    """How many parameter servers there are, and where."""

    num_ps = param("num_ps", "how many of the nodes are parameter servers", TypeConverters.toInt)
    driver_ps_nodes = param("driver_ps_nodes", "whether those are beside the driver", TypeConverters.toBoolean)

    def setNumPS(self, value: int) -> Self:
        return self._set(num_ps=value)

    def getNumPS(self) -> int:
        return self.getOrDefault(self.num_ps)

    def setDriverPSNodes(self, value: bool) -> Self:
        return self._set(driver_ps_nodes=value)

    def getDriverPSNodes(self) -> bool:
        return self.getOrDefault(self.driver_ps_nodes)


class HasOutputMapping(Params):
    """Which column each output is."""

    output_mapping = param("output_mapping", "the column of each output tensor", TFTypeConverters.toDict)

    def setOutputMapping(self, value: dict[str, str]) -> Self:
        return self._set(output_mapping=value)

    def getOutputMapping(self) -> dict[str, str]:
        return self.getOrDefault(self.output_mapping)


class HasProtocol(Params):
    """How nodes speak to each other; train_fn may read it."""

    protocol = param("protocol", "the protocol between nodes, grpc", TypeConverters.toString)

    def setProtocol(self, value: str) -> Self:
        return self._set(protocol=value)

    def getProtocol(self) -> str:
        return self.getOrDefault(self.protocol)


class HasReaders(Params):
    """How many readers there are; train_fn may read it."""

    readers = param("readers", "how many threads read", TypeConverters.toInt)

    def setReaders(self, value: int) -> Self:
        return self._set(readers=value)

    def getReaders(self) -> int:
        return self.getOrDefault(self.readers)


class HasSteps(Params):
    """How many steps are made; train_fn may read it."""

    steps = param("steps", "how many steps are made at most", TypeConverters.toInt)

    def setSteps(self, value: int) -> Self:
        return self._set(steps=value)

    def getSteps(self) -> int:
        return self.getOrDefault(self.steps)


class HasSignatureDefKey(Params):
    """Which signature of a SavedModel is called."""

    signature_def_key = param("signature_def_key", "the signature of the SavedModel", TypeConverters.toString)

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(signature_def_key=None)

    def setSignatureDefKey(self, value: str | None) -> Self:
        return self._set(signature_def_key=value)

    def getSignatureDefKey(self) -> str | None:
        return self.getOrDefault(self.signature_def_key)


class HasTagSet(Params):
    """Which graph of a SavedModel is loaded."""

    tag_set = param("tag_set", "the tags of the SavedModel's graph, with commas between", TypeConverters.toString)

    def setTagSet(self, value: str | None) -> Self:
        return self._set(tag_set=value)

    def getTagSet(self) -> str | None:
        return self.getOrDefault(self.tag_set)


class TFParams(Params):
    """Has arguments beside its params."""

    args: Any = None

    def merge_args_params(self) -> Any:
        """Return a copy of the arguments in which every param has its value, be it a default."""
        merged = copy.copy(self.args)
        vars(merged).update({each.name: self.getOrDefault(each) for each in self.params})
        return merged


class TFEstimator(
    Estimator["TFModel"],
    TFParams,
    HasInputMapping,
    HasClusterSize,
    HasNumPS,
    HasInputMode,
    HasMasterNode,
    HasProtocol,
    HasGraceSecs,
    HasFeedTimeout,
    HasTensorboard,
    HasModelDir,
    HasExportDir,
    HasTFRecordDir,
    HasBatchSize,
    HasEpochs,
    HasReaders,
    HasSteps,
):
    """Trains with `train_fn(args, ctx)` on a cluster that is fed with the columns of `input_mapping`, by their order.

    `args` is `tf_args` with the params in it; a list stays one, and becomes `sys.argv`. The function exports the model.
    """

    def __init__(self, train_fn: Callable[..., Any], tf_args: Any, export_fn: Callable[..., Any] | None = None) -> None:
        super().__init__()
        if export_fn is not None:
            _log.warning("export_fn is not called: let train_fn export the model")
        self.train_fn, self.export_fn = train_fn, export_fn
        self.args = Namespace(tf_args)
        self._setDefault(
            input_mapping={},
            cluster_size=1,
            num_ps=0,
            driver_ps_nodes=False,
            input_mode=TFCluster.InputMode.SPARK,
            master_node="chief",
            protocol="grpc",
            tensorboard=False,
            model_dir=None,
            export_dir=None,
            tfrecord_dir=None,
            batch_size=100,
            epochs=1,
            readers=1,
            steps=1000,
            grace_secs=30,
            feed_timeout=600,
        )

    def _fit(self, dataset: DataFrame) -> TFModel:
        merged = self.merge_args_params()
        cluster = TFCluster.run(
            dataset.sparkSession.sparkContext,
            self.train_fn,
            self.args.argv or merged,
            self.getClusterSize(),
            self.getNumPS(),
            self.getTensorboard(),
            TFCluster.InputMode.SPARK,
            master_node=self.getMasterNode(),
            driver_ps_nodes=self.getDriverPSNodes(),
        )
        rows = dataset.select(*sorted(self.getInputMapping()))
        try:
            cluster.train(rows, self.getEpochs(), self.getFeedTimeout())
        except BaseException:
            with suppress(Exception):  # what went wrong first says more
                cluster.shutdown(timeout=_END_SECONDS)
            raise
        cluster.shutdown(grace_secs=self.getGraceSecs())
        return self._copyValues(TFModel(self.args))


class TFModel(
    Model,
    TFParams,
    HasInputMapping,
    HasOutputMapping,
    HasBatchSize,
    HasModelDir,
    HasExportDir,
    HasSignatureDefKey,
    HasTagSet,
):
    """A SavedModel over DataFrames: `transform` gives the columns of `output_mapping`, by the order of its tensors."""

    def __init__(self, tf_args: Any) -> None:
        super().__init__()
        self.args = Namespace(tf_args)
        self._setDefault(
            input_mapping={},
            output_mapping={},
            batch_size=100,
            model_dir=None,
            export_dir=None,
            signature_def_key=None,
            tag_set=None,
        )

    def _transform(self, dataset: DataFrame) -> DataFrame:
        from pyspark.sql import functions

        path, signature = self.getExportDir(), self.getSignatureDefKey()
        if not path:
            raise UsageError("inference needs a SavedModel, and export_dir is not set", hint="call setExportDir")
        if self.getTagSet() not in (None, _SERVE):
            raise UsageError(f"tag_set is {self.getTagSet()!r}", hint=f"export the model with the tag {_SERVE!r}")
        model = describe(ModelPlan(path, fingerprint(path), signature))
        columns = sorted(self.getInputMapping())
        tensors = _present({self.getInputMapping()[column]: column for column in columns}, model.inputs)
        wanted = _present(dict(sorted(self.getOutputMapping().items())), model.outputs)
        # An output's column may be called as an input's is.
        aside = {tensor: f"gridflow_output_{number}" for number, tensor in enumerate(wanted)}
        found = predict(
            dataset.select(*columns),
            path,
            inputs=tensors,
            outputs=aside,
            signature=signature,
            batch_size=self.getBatchSize(),
        )
        return found.select(*(functions.col(aside[tensor]).alias(column) for tensor, column in wanted.items()))


def _present(mapping: Mapping[str, str], tensors: Mapping[str, Any]) -> dict[str, str]:
    """Take a single tensor for the one that is meant, since Keras 3 names tensors otherwise than Keras 2 did."""
    if len(mapping) == len(tensors) == 1 and mapping.keys() != tensors.keys():
        [(wanted, column)], [only] = mapping.items(), tensors
        _log.warning("the model has no tensor %r; its only one, %r, is taken for it", wanted, only)
        return {only: column}
    return dict(mapping) or {name: name for name in tensors}


def single_node_env(args: Any) -> None:
    """Set up this process for TensorFlow by itself: its arguments, and as many GPUs as they say, or one."""
    argv = args if isinstance(args, list) else args.argv
    if argv:
        sys.argv = argv
    util.single_node_env(args.num_gpus if "num_gpus" in args else 1)


def get_meta_graph_def(saved_model_dir: str, tag_set: str) -> Any:
    """Return the graph of a SavedModel that has these tags, which are separated by commas."""
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    with tf.io.gfile.GFile(f"{saved_model_dir}/saved_model.pb", "rb") as file:
        saved = saved_model_pb2.SavedModel.FromString(file.read())
    for graph in saved.meta_graphs:
        if set(graph.meta_info_def.tags) == set(tag_set.split(",")):
            return graph
    known = "; ".join(",".join(graph.meta_info_def.tags) for graph in saved.meta_graphs)
    raise UsageError(f"{saved_model_dir} has no graph with the tags {tag_set!r}", hint=f"it has {known}")


def yield_batch(iterable: Iterable[Any], batch_size: int, num_tensors: int = 1) -> Iterator[list[list[Any]]]:
    """Yield rows in batches, a list for each of their first `num_tensors` columns; None ends them."""
    tensors: list[list[Any]] = [[] for _ in range(num_tensors)]
    for row in iterable:
        if row is None:
            break
        for number, values in enumerate(tensors):
            value = row[number]
            values.append(bytes(value) if isinstance(value, bytearray) else value)
        if len(tensors[0]) >= batch_size:
            yield tensors
            tensors = [[] for _ in range(num_tensors)]
    if tensors[0]:
        yield tensors
