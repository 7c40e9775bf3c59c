"""The driver's side of a cluster: start it, feed it, shut it down."""

from __future__ import annotations

import logging
import math
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gridflow.compat.tensorflowonspark import TFSparkNode, reservation
from gridflow.compat.tensorflowonspark.nodes import Node
from gridflow.compat.tensorflowonspark.queues import ERROR, OUTPUT, feed_name
from gridflow.compat.tensorflowonspark.services import Service
from gridflow.errors import DeadlineError, TaskFailedError, UsageError
from gridflow.feed.state import Kind
from gridflow.launcher import describe

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.streaming import StreamingContext

    from gridflow.spark.cluster import Cluster

logger = logging.getLogger(__name__)

#: How the last cluster of this process failed, under `error`.
tf_status: dict[str, Any] = {}

_EPOCHS = 10
_POLL_SECONDS = 0.2
#: How long an evaluator may go on when all others have ended.
_EVALUATOR_SECONDS = 15
_JOIN_SECONDS = 10.0


class InputMode:
    """Who reads the data."""

    TENSORFLOW = 0
    SPARK = 1


class TFCluster:
    """A cluster that runs; made by `run`."""

    sc: SparkContext
    defaultFS: str
    working_dir: str
    num_executors: int
    nodeRDD: RDD[int]
    cluster_id: int
    cluster_info: list[dict[str, Any]]
    cluster_meta: dict[str, Any]
    meta: dict[str, Any]
    input_mode: int
    queues: Sequence[str]
    server: reservation.Server

    def __init__(self, engine: Cluster, services: Sequence[Service] = ()) -> None:
        self._engine = engine
        self._services = services
        #: For each queue, what its present feed is for, and how many there were before it.
        self._turns: dict[str, tuple[Kind, int]] = {}

    def train(self, dataRDD: Any, num_epochs: int = 0, feed_timeout: float = 600, qname: str = "input") -> Any:
        """Feed the rows of an RDD, a DataFrame or a stream of either; return when all of them were taken.

        A stream is fed from when it is started until it is stopped; of a streaming DataFrame the query is returned.
        """
        self._check_fed("train", qname)
        assert num_epochs >= 0, "num_epochs cannot be negative"  # noqa: S101 - what its callers expect
        feed = self._feed(qname, "training")

        def train(source: Any, epochs: int) -> Any:
            return self._engine.train(source, epochs=epochs, feed=feed, more=True, timeout_seconds=feed_timeout)

        return self._tell(lambda: _train(dataRDD, num_epochs or _EPOCHS, train))

    def inference(self, dataRDD: Any, feed_timeout: float = 600, qname: str = "input") -> RDD[Any]:
        """Return what the nodes answer to the rows of an RDD, one for each; nothing happens until that is asked for."""
        from gridflow.compat.tensorflowonspark.chunks import answered

        self._check_fed("inference", qname)
        feed = self._feed(qname, "inference")
        route = self._tell(lambda: self._engine.inference_route(feed, timeout_seconds=feed_timeout))
        return answered(getattr(dataRDD, "rdd", dataRDD), route, feed_timeout)

    def _check_fed(self, name: str, qname: str) -> None:
        assert self.input_mode == InputMode.SPARK, f"TFCluster.{name}() requires InputMode.SPARK"  # noqa: S101
        assert qname in self.queues, f"Unknown queue: {qname}"  # noqa: S101

    def _feed(self, qname: str, kind: Kind) -> str:
        """Return the feed of a queue that serves a purpose; the one before it ends."""
        before, number = self._turns.get(qname, (kind, 0))
        if before != kind:
            self._engine.finish(feed_name(qname, number))
            number += 1
        self._turns[qname] = (kind, number)
        return feed_name(qname, number)

    def shutdown(self, ssc: StreamingContext | None = None, grace_secs: float = 0, timeout: float = 259200) -> None:  # noqa: ARG002
        """Tell the nodes that no more rows come, and wait until their programs have ended; raise what they raised.

        With a streaming context, first wait for its end, or until a node wants no more rows. `grace_secs` is not
        needed: nothing is ended before its program has. A `timeout` of -1 means to wait for ever.
        """
        try:
            self._tell(lambda: self._shut_down(ssc, timeout))
        finally:
            for service in self._services:
                service.end()
            self.server.stop()

    def _shut_down(self, ssc: StreamingContext | None, timeout: float) -> None:
        if ssc is not None:
            self._await_stream(ssc)
        if self.input_mode == InputMode.SPARK:
            for qname in self.queues:
                if qname not in (OUTPUT, ERROR):
                    # Behind a queue's last feed is one without rows, by which its readers know that it was the last.
                    _, number = self._turns.get(qname, ("", -1))
                    self._engine.finish(feed_name(qname, number + 1))
        self._engine.shutdown(timeout if timeout > 0 else math.inf)

    def _await_stream(self, ssc: StreamingContext) -> None:
        while not self.server.done and not self._engine.status().state.is_ended:
            # Spark's own types know neither fractions of seconds nor that it answers.
            wait: Callable[[float], bool] = ssc.awaitTerminationOrTimeout  # type: ignore[assignment]
            if wait(_POLL_SECONDS):
                return
        ssc.stop(stopSparkContext=False, stopGraceFully=True)

    def _tell(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except Exception as error:
            tf_status["error"] = str(error)
            raise

    def tensorboard_url(self) -> str | None:
        """Return where TensorBoard is; None where none was asked for."""
        found = [f"http://{node['host']}:{node['tb_port']}" for node in self.cluster_info if node["tb_port"]]
        return found[0] if found else None


def _train(data: Any, epochs: int, train: Callable[[Any, int], Any]) -> Any:
    from gridflow.compat.tensorflowonspark.chunks import RowSource
    from gridflow.compat.tensorflowonspark.frames import StreamedRows, source_of

    if hasattr(data, "foreachRDD"):
        data.foreachRDD(lambda rdd: train(RowSource(rdd), 1) and None)
        return None
    if getattr(data, "isStreaming", False):
        return train(StreamedRows(data), 1)
    train(source_of(data) if hasattr(data, "mapInArrow") else RowSource(data), epochs)
    return None


def run(
    sc: SparkContext,
    map_fun: TFSparkNode.MapFunction,
    tf_args: Any,
    num_executors: int,
    num_ps: int,
    tensorboard: bool = False,
    input_mode: int = InputMode.TENSORFLOW,
    log_dir: str | None = None,
    driver_ps_nodes: bool = False,
    master_node: str | None = None,
    reservation_timeout: float = 600,
    queues: Sequence[str] = ("input", "output", "error"),
    eval_node: bool = False,
    release_port: bool = True,
) -> TFCluster:
    """Start a cluster in Spark's executors, and return when all its nodes are there.

    Each node calls `map_fun(tf_args, ctx)`. Of `num_executors` nodes the first `num_ps` are parameter servers, then
    comes one that leads, if `master_node` names its group, then an evaluator, and the rest are workers.
    """
    if input_mode != InputMode.TENSORFLOW and (driver_ps_nodes or eval_node):
        which = "driver_ps_nodes" if driver_ps_nodes else "eval_node"
        raise UsageError(f"{which} needs InputMode.TENSORFLOW", hint="leave it out, or have TensorFlow read the data")
    template = cluster_template(num_executors, num_ps, master_node, eval_node)
    is_fed = input_mode == InputMode.SPARK
    first = num_ps if driver_ps_nodes else 0
    tf_status.clear()
    server = reservation.Server(num_executors)
    cluster_meta: dict[str, Any] = {
        "id": random.getrandbits(64),
        "cluster_template": template,
        "num_executors": num_executors,
        "default_fs": TFSparkNode.default_file_system(sc),
        "working_dir": os.getcwd(),
        "server_addr": server.start(sc.getConf().get("spark.driver.host")),
        "release_port": release_port,
    }
    tasks = engine_tasks(template, first, is_fed=is_fed)
    node = Node(map_fun, tf_args, cluster_meta, tasks, first, list(queues) if is_fed else [], tensorboard, log_dir)
    services: list[Service] = []
    engine = None
    try:
        engine = _start(sc, node, is_held=not is_fed, reservation_timeout=reservation_timeout)
        services += [Service(map_fun, tf_args, cluster_meta, number) for number in range(first)]
        cluster = TFCluster(engine, services)
        cluster.cluster_info = _await_nodes(engine, services, server, reservation_timeout)
    except BaseException as error:
        tf_status["error"] = str(error)
        if engine is not None:
            engine.cancel()
        for service in services:
            service.end()
        server.stop()
        raise
    cluster.sc, cluster.server, cluster.queues, cluster.input_mode = sc, server, list(queues), input_mode
    cluster.meta = cluster.cluster_meta = cluster_meta
    cluster.defaultFS, cluster.working_dir = cluster_meta["default_fs"], cluster_meta["working_dir"]
    cluster.num_executors, cluster.cluster_id = num_executors, cluster_meta["id"]
    cluster.nodeRDD = sc.parallelize(range(first, num_executors), num_executors - first)
    return cluster


def cluster_template(num_executors: int, num_ps: int, master_node: str | None, eval_node: bool) -> dict[str, list[int]]:
    """Return the numbers of the nodes of each group."""
    workers = max(num_executors - num_ps - bool(eval_node) - bool(master_node), 0)
    counts = {"ps": num_ps, master_node or "": int(bool(master_node)), "evaluator": int(eval_node), "worker": workers}
    total = sum(counts.values())
    assert total == num_executors, (  # noqa: S101 - what its callers expect
        f"TensorFlow cluster requires {total} nodes, but only {num_executors} executors available"
    )
    assert counts[master_node or ""] + workers > 0, (  # noqa: S101
        "TensorFlow cluster requires at least one worker or master/chief node"
    )
    template: dict[str, list[int]] = {}
    start = 0
    for name, count in counts.items():
        if count:
            template[name] = list(range(start, start + count))
            start += count
    return template


def engine_tasks(template: Mapping[str, Sequence[int]], first: int, *, is_fed: bool) -> list[str]:
    """Return the task of each node, from the number `first`.

    Whoever leads is a chief, unless it must not decide alone when the work is done: it does where there are parameter
    servers, since the other workers then serve it. Those that are fed all have work of their own, though.
    """
    leads_workers = "worker" in template and not (is_fed and "ps" in template)
    tasks: list[str] = []
    for name in template:
        is_leader = name not in ("ps", "evaluator", "worker")
        group = ("chief" if leads_workers or "ps" not in template else "worker") if is_leader else name
        before = sum(task.startswith(f"{group}/") for task in tasks)
        tasks += [f"{group}/{before + index}" for index in range(len(template[name]))]
    return tasks[first:]


def _start(sc: SparkContext, node: Node, *, is_held: bool, reservation_timeout: float) -> Cluster:
    from pyspark.sql import SparkSession

    from gridflow.spark.cluster import Cluster

    counts = {name: sum(task.startswith(f"{name}/") for task in node.tasks) for name in ("worker", "ps")}
    job = describe(
        node,
        workers=counts["worker"] or None,
        ps=counts["ps"] or None,
        chief="chief/0" in node.tasks,
        evaluator="evaluator/0" in node.tasks,
        gpus=_gpus(sc, node.tf_args),
        job={"start_timeout": reservation_timeout, "evaluator_timeout": _EVALUATOR_SECONDS},
    )
    return Cluster(SparkSession.builder.getOrCreate(), job, is_held=is_held)


def _gpus(sc: SparkContext, tf_args: Any) -> float | None:
    """Return how many GPUs each node asks of Spark where its tasks get any; elsewhere nodes look themselves."""
    each = float(sc.getConf().get("spark.task.resource.gpu.amount") or 0)
    wanted = TFSparkNode.argument(tf_args, "num_gpus")
    return (each if wanted is None else wanted) or None if each else None


def _await_nodes(
    engine: Cluster, services: Sequence[Service], server: reservation.Server, timeout_seconds: float
) -> list[dict[str, Any]]:
    """Wait until all nodes have said where they are; that some did not join is the run's to say."""
    deadline = time.monotonic() + timeout_seconds + _JOIN_SECONDS
    while not server.reservations.wait(_POLL_SECONDS):
        status = engine.status()
        if status.state.is_ended:
            raise engine.run.failure(status)
        failed = [number for number, service in enumerate(services) if service.exit_code is not None]
        if failed:
            raise TaskFailedError(
                f"ps:{failed[0]} beside the driver ended with exit code {services[failed[0]].exit_code}"
            )
        if time.monotonic() > deadline:
            raise DeadlineError(f"{server.reservations.remaining()} nodes did not come in {timeout_seconds:g} s")
    return server.reservations.get()
