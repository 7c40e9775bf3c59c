"""What a program inside a node uses: paths, and the rows that Spark feeds."""

from __future__ import annotations

import getpass
import logging
import queue
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from gridflow.compat.tensorflowonspark import marker
from gridflow.errors import UsageError

logger = logging.getLogger(__name__)

_SCHEMES = ("adl", "file", "hdfs", "oss", "s3", "s3a", "s3n", "swift", "viewfs", "wasb", "abfs", "abfss", "gs")
#: How long a queue must be empty for nobody to be filling it any more.
_DRAIN_SECONDS = 5.0


def hdfs_path(ctx: Any, path: str) -> str:
    """Return the URL of a path on the cluster's own file system, where relative ones start at a home."""
    default = ctx.defaultFS
    if path.startswith(tuple(f"{scheme}://" for scheme in _SCHEMES)):
        return path
    if path.startswith("/"):
        return f"{default}{path}"
    if default.startswith(("hdfs://", "viewfs://")):
        return f"{default}/user/{getpass.getuser()}/{path}"
    if default.startswith("file://"):
        return f"{default}/{ctx.working_dir[1:]}/{path}"
    logger.warning("the file system %s has no homes, so %s starts at its root", default, path)
    return f"{default}/{path}"


def start_cluster_server(ctx: Any, num_gpus: int = 1, rdma: bool = False) -> NoReturn:  # noqa: ARG001 - as it was
    """Refuse: TensorFlow 2 starts its servers itself."""
    raise UsageError("start_cluster_server() is of TensorFlow 1", hint="use a strategy of tf.distribute")


def export_saved_model(sess: Any, export_dir: str, tag_set: str, signatures: Any) -> NoReturn:  # noqa: ARG001 - as it was
    """Refuse: TensorFlow 2 exports models without sessions."""
    raise UsageError("export_saved_model() is of TensorFlow 1", hint="use compat.export_saved_model, or model.export()")


def next_batch(mgr: Any, batch_size: int, qname: str = "input") -> NoReturn:  # noqa: ARG001 - as it was
    """Refuse: rows come through a DataFeed."""
    raise _moved("next_batch")


def batch_results(mgr: Any, results: Any, qname: str = "output") -> NoReturn:  # noqa: ARG001 - as it was
    """Refuse: answers go through a DataFeed."""
    raise _moved("batch_results")


def terminate(mgr: Any, qname: str = "input") -> NoReturn:  # noqa: ARG001 - as it was
    """Refuse: a DataFeed is terminated."""
    raise _moved("terminate")


def _moved(name: str) -> UsageError:
    return UsageError(f"TFNode.{name}() is no more", hint=f"use TFNode.DataFeed(ctx.mgr).{name}()")


def release_port(ctx: Any) -> None:
    """Close the socket that kept the node's port, so that TensorFlow can have it."""
    if ctx.tmp_socket is None:
        logger.warning("release_port() was called, and no port is kept")
        return
    ctx.tmp_socket.close()
    ctx.tmp_socket = None


class DataFeed:
    """The rows that Spark feeds to this node, and the answers to them.

    `mgr` is the node's `ctx.mgr`, or a manager of `TFManager`. With `train_mode=False` a batch ends where a partition
    does. With an `input_mapping` of columns to tensors a batch is a dict of lists, one for each tensor in the order of
    the columns' names.
    """

    def __init__(
        self,
        mgr: Any,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: Mapping[str, str] | None = None,
    ) -> None:
        self.mgr = mgr
        self.train_mode = train_mode
        self.qname_in = qname_in
        self.qname_out = qname_out
        self.done_feeding = False
        self.input_tensors = None if input_mapping is None else [input_mapping[name] for name in sorted(input_mapping)]
        self.queue_in = mgr.get_queue(qname_in)
        self.queue_out = mgr.get_queue(qname_out)
        for name, found in ((qname_in, self.queue_in), (qname_out, self.queue_out)):
            if found is None:
                raise UsageError(f"there is no queue {name!r}", hint="name it in TFCluster.run(queues=[…])")

    def next_batch(self, batch_size: int) -> Any:
        """Wait for the next rows and return them; fewer at the end of the feed, and of a partition if not training."""
        rows = self._take(batch_size)
        if self.input_tensors is None:
            return rows
        return {tensor: [row[index] for row in rows] for index, tensor in enumerate(self.input_tensors)}

    def _take(self, batch_size: int) -> list[Any]:
        if not hasattr(self.queue_in, "take"):
            return self._take_one_by_one(batch_size)
        rows: list[Any] = self.queue_in.take(batch_size)
        self.done_feeding = self.done_feeding or (len(rows) < batch_size and self.queue_in.is_ended)
        return rows

    def _take_one_by_one(self, batch_size: int) -> list[Any]:
        """Take rows from a manager in another process."""
        rows: list[Any] = []
        while len(rows) < batch_size and not self.done_feeding:
            item = self.queue_in.get(block=True)
            self.queue_in.task_done()
            if item is None:
                self.done_feeding = True
            elif not isinstance(item, marker.EndPartition):
                rows.append(item)
            elif rows and not self.train_mode:
                break
        return rows

    def should_stop(self) -> bool:
        """Tell whether no more rows will come."""
        return self.done_feeding

    def batch_results(self, results: Iterable[Any]) -> None:
        """Answer the rows of the last batch, one output for each."""
        if hasattr(self.queue_in, "answer"):
            self.queue_in.answer(list(results))
            return
        for item in results:
            self.queue_out.put(item, block=True)

    def terminate(self) -> None:
        """Want no more rows: what is still fed to this node is dropped."""
        self.mgr.set("state", "terminating")
        self.done_feeding = True
        if hasattr(self.queue_in, "terminate"):
            self.queue_in.terminate()
            return
        try:
            while True:
                self.queue_in.get(block=True, timeout=_DRAIN_SECONDS)
                self.queue_in.task_done()
        except queue.Empty:
            return
