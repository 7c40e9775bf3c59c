"""A node as the program of a task: what Gridflow starts in an executor for each node of a cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gridflow.compat.tensorflowonspark import TFSparkNode, reservation, util
from gridflow.errors import GridflowError
from gridflow.gpu.variables import VISIBLE
from gridflow.task.context import Context, context
from gridflow.task.identity import ATTEMPT

if TYPE_CHECKING:
    from gridflow.compat.tensorflowonspark.queues import FeedManager
    from gridflow.feed.feed import Feed

#: Programs wait for the driver to feed them however long that takes.
_FEED_SECONDS = 7 * 24 * 3600.0


@dataclass(frozen=True)
class Node:
    """What each task of the cluster is told; called there."""

    fn: TFSparkNode.MapFunction
    tf_args: Any
    cluster_meta: dict[str, Any]
    #: The task of each node, from the number of the first one that runs in an executor.
    tasks: Sequence[str]
    first: int
    #: The queues through which Spark feeds rows; none where the program reads data itself.
    queues: Sequence[str]
    tensorboard: bool
    log_dir: str | None

    def __post_init__(self) -> None:
        # Runs are named by what they call.
        object.__setattr__(self, "__qualname__", getattr(self.fn, "__qualname__", "map_fun"))

    def __call__(self) -> None:
        """Be the node: meet the others, call the program, and stay until nobody feeds it any more."""
        task = context()
        executor_id = self.first + list(self.tasks).index(task.task)
        util.expand_hadoop_classpath()
        manager = self._manager(task) if self.queues else None
        ctx = TFSparkNode.join_cluster(
            self.cluster_meta,
            executor_id,
            self._place(task),
            manager,
            tensorboard=self.tensorboard,
            log_dir=self.log_dir,
        )
        if ctx.job_name == "ps":
            os.environ[VISIBLE] = ""
        elif not task.grant.devices:
            TFSparkNode.show_gpus(self.tf_args, ctx)
        TFSparkNode.call(self.fn, self.tf_args, ctx)
        if manager is not None:
            manager.linger()

    def _place(self, task: Context) -> TFSparkNode.Place:
        """Return where TensorFlow listens: on the port that the task's agent keeps, or one that the program frees."""
        address = task.roster[task.task]
        port, keeper = address.port, None
        if TFSparkNode.PORT in os.environ or not self.cluster_meta["release_port"]:
            port, keeper = TFSparkNode.keep_port()
        return TFSparkNode.Place(address.host, port, keeper, attempt=int(os.environ.get(ATTEMPT, "0")))

    def _manager(self, task: Context) -> FeedManager:
        from gridflow.compat.tensorflowonspark.queues import FeedManager

        def open_feed(name: str) -> Feed:
            return task.feed(name, timeout_seconds=_FEED_SECONDS)

        return FeedManager(self.queues, open_feed, self._tell_stop)

    def _tell_stop(self) -> None:
        """Tell the driver that this node wants no more rows: it ends a stream then."""
        with suppress(GridflowError):  # the driver may be past caring
            client = reservation.Client(self.cluster_meta["server_addr"])
            client.request_stop()
            client.close()
