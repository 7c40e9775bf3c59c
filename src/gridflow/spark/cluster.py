"""TensorFlow beside Spark: a run whose tasks live in Spark's executors, and the rows that Spark feeds to them.

    cluster = gridflow.spark.run(train, spark=spark, workers=2)
    cluster.train(df, epochs=3)           in the tasks: gridflow.context().feed("train").dataset(batch_size=128)
    cluster.shutdown()                    what `train` returned in the first task

Every Spark job that feeds is watched together with the run: whichever ends first ends the other's wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from gridflow.errors import DeadlineError, GridflowError, TaskFailedError, UsageError
from gridflow.feed.coordinator import Coordinator
from gridflow.feed.state import Epoch, Kind
from gridflow.feed.variables import FEEDS
from gridflow.job import TRAINING_GROUPS, Job
from gridflow.launcher import describe, submit_to
from gridflow.platforms.base import Plan
from gridflow.platforms.spark import Spark
from gridflow.platforms.spark_crew import driver_hosts
from gridflow.platforms.spark_jobs import SparkJob, speaking_to_jvm
from gridflow.rendezvous.roster import Address
from gridflow.run import Run
from gridflow.spark.feeding import Route, Source, exchange_frame, send_frame, send_rdd
from gridflow.spark.packing import pack
from gridflow.spark.sessions import session as open_session
from gridflow.spark.streams import Stream
from gridflow.state import RunState, RunStatus
from gridflow.store import RunFolder
from gridflow.tfrecord.spark import adopt_jars

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_SECONDS = 0.1
#: How late the end of a job that sends rows is noticed, which every epoch waits for.
_WATCH_SECONDS = 0.02
_CANCEL_SECONDS = 60.0
#: How often to see whether Spark has cores for a job.
_LOOK_SECONDS = 1.0
#: A feed that has not moved for so long gives its cores to another one that has none.
_YIELD_SECONDS = 5.0
_FEED_SECONDS = 600.0
_SHUTDOWN_SECONDS = 3600.0


def run(
    program: Any, *, spark: SparkSession | None = None, hold: bool = False, gpu_resource: str = "gpu", **job: Any
) -> Cluster:
    """Start a job's tasks in Spark's executors, ready to be fed; the keywords are those of `gridflow.launch`.

    With `hold` the tasks keep the cores that Spark gave them. Without, those are free for the Spark jobs that feed, so
    that executors of one core are enough; dynamic allocation takes idle executors away, so there they are kept.
    `gpu_resource` is what the cluster calls its GPUs.
    """
    from pyspark.sql import SparkSession

    spark = spark or SparkSession.getActiveSession() or open_session()
    return Cluster(spark, describe(program, **job), is_held=hold, gpu_resource=gpu_resource)


class Cluster:
    """A run inside Spark that rows are fed to; as a context manager it is shut down at the end of its block."""

    def __init__(self, spark: SparkSession, job: Job, *, is_held: bool = False, gpu_resource: str = "gpu") -> None:
        self.spark = spark
        self._feeds: dict[str, str] = {}
        self._streams: list[Stream] = []
        self._jobs = 0
        #: Feeds whose jobs get no core from Spark at the moment.
        self._starving: set[str] = set()
        self._platform = _FedSpark(spark, is_held=is_held, gpu_resource=gpu_resource)
        self.run: Run = submit_to(self._platform, job, attached=True)
        self._watch = threading.Thread(target=self._watch_run, name="gridflow-cluster", daemon=True)
        self._watch.start()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.shutdown()
        else:
            self.cancel()

    @property
    def _coordinator(self) -> Coordinator:
        return self._platform.coordinator

    # Feeding

    def train(
        self,
        data: DataFrame | RDD[Any] | Source,
        *,
        epochs: int = 1,
        feed: str = "train",
        equal: bool | None = None,
        more: bool = False,
        timeout_seconds: float = _FEED_SECONDS,
    ) -> Any:
        """Feed rows to the tasks and return when they have read them, or when one of them has ended the feed.

        `equal` gives all tasks the same number of batches, as synchronous training needs; without parameter servers
        that is the default. `more` tells them that another call will feed further epochs. If nothing moves for
        `timeout_seconds` an error says who does not read. A streaming DataFrame is fed until its query, which is
        returned, or the cluster is stopped. A `Source` sends rows in its own way.
        """
        if epochs < 1:
            raise UsageError(f"epochs={epochs} is not possible", hint="give at least 1")
        self._open(feed, "training", equal, timeout_seconds)
        if getattr(data, "isStreaming", False):
            return self._stream(cast("DataFrame", data), feed)
        last = self._coordinator.report(feed).epochs + epochs
        while not self._coordinator.is_stopped(feed):
            epoch = self._coordinator.begin_epoch(feed)
            if epoch is None:
                raise UsageError(f"feed {feed!r} has had all its epochs", hint="say more=True in the call before this")
            if not more:
                self._coordinator.expect(feed, last)
            has_sent = self._send(data, epoch)
            if has_sent and epoch.number + 1 < last:
                continue
            if self._await_readers(feed, epoch, timeout_seconds, is_taken_enough=isinstance(data, Source)):
                break
        return self._coordinator.report(feed)

    def inference(
        self, df: DataFrame, schema: str, *, feed: str = "inference", timeout_seconds: float = _FEED_SECONDS
    ) -> DataFrame:
        """Return what the tasks answer to a DataFrame's rows, in their order: 0, 1 or more rows for each.

        `schema` describes the answers. In the tasks: `for batch in feed.batches(n): feed.put(answers)`.
        """
        route = self.inference_route(feed, timeout_seconds=timeout_seconds)
        packed_frame, packed = pack(df)
        return exchange_frame(packed_frame, replace(route, packed=packed), schema)

    def inference_route(self, feed: str, *, timeout_seconds: float = _FEED_SECONDS) -> Route:
        """Open a feed for inference, and return the way to it for Spark jobs of one's own."""
        self._open(feed, "inference", False, timeout_seconds)
        epoch = self._coordinator.begin_epoch(feed)
        if epoch is None:
            raise UsageError(f"feed {feed!r} has ended", hint="ask before the cluster is shut down")
        self._await_slots(epoch)
        return self._route(epoch, {})

    def finish(self, feed: str) -> None:
        """Tell the tasks that a feed has no more epochs; one that was never fed has none."""
        if feed not in self._feeds:
            self._open(feed, "training", None, _FEED_SECONDS)
        self._coordinator.finish(feed)

    def _open(self, feed: str, kind: Kind, equal: bool | None, timeout_seconds: float) -> None:
        if feed in self._feeds:
            if self._feeds[feed] != kind:
                raise UsageError(
                    f"feed {feed!r} is for {self._feeds[feed]}", hint=f"give the feed for {kind} another name"
                )
            return
        job = self.run.job
        is_served = "worker" in job.serve
        groups = [job.group(name) for name in TRAINING_GROUPS if not (is_served and name == "worker")]
        tasks = [task for group in groups if group for task in group.tasks]
        is_equal = not job.group("ps") if equal is None else equal
        self._coordinator.open(
            feed,
            tasks,
            kind=kind,
            equal=is_equal,
            timeout_seconds=timeout_seconds,
        )
        self._feeds[feed] = kind

    def _route(self, epoch: Epoch, packed: Mapping[str, str], first_partition: int = 0) -> Route:
        return Route(self._platform.feeds, self._platform.secret, epoch, dict(packed), first_partition)

    def _send(self, data: DataFrame | RDD[Any] | Source, epoch: Epoch) -> bool:
        """Send an epoch's rows; False where it was interrupted, and must be sent again or not at all."""
        partitions = self._send_part(data, epoch)
        return partitions is not None and self._coordinator.end_epoch(epoch, partitions)

    def _send_part(
        self, data: DataFrame | RDD[Any] | Source, epoch: Epoch, first_partition: int = 0
    ) -> list[int] | None:
        """Run the Spark job that sends rows; None where it was interrupted."""
        if not self._await_slots(epoch):
            return None
        if hasattr(data, "mapInArrow"):
            packed_frame, packed = pack(cast("DataFrame", data))
            action = send_frame(packed_frame, self._route(epoch, packed, first_partition))
        elif isinstance(data, Source):
            action = data.send_to(self._route(epoch, {}, first_partition))
        else:
            action = send_rdd(data, self._route(epoch, {}, first_partition))
        while True:
            self._jobs += 1
            group = f"gridflow-{self.run.id}-feed-{self._jobs}"
            job = SparkJob(self.spark, group, f"feed {epoch.feed!r}", partial(self._act, action))
            try:
                has_yielded = self._watch_job(job, epoch)
            finally:
                self._starving.discard(epoch.feed)
            if self._is_interrupted(epoch):
                return None
            if not has_yielded:
                return [row["partition"] for row in job.result()]
            while self._starving and not self._is_interrupted(epoch):
                time.sleep(_POLL_SECONDS)

    def _watch_job(self, job: SparkJob, epoch: Epoch) -> bool:
        """Wait for the end of a job that sends rows; end it where that is not wanted any more, or gets no core.

        True where it was ended so that another feed gets cores: this one keeps them while its readers, who may wait for
        the other, take no rows. What it has sent already will not be sent twice.
        """
        patience, starving_since = self._coordinator.timeout_seconds(epoch.feed), time.monotonic()
        look_at = starving_since + _LOOK_SECONDS
        while job.is_running:
            if self._coordinator.wait_interruption(epoch, _WATCH_SECONDS) is not None:
                _end_job(job)
                return False
            if (now := time.monotonic()) < look_at:
                continue
            look_at = now + _LOOK_SECONDS
            if not job.is_starving:
                starving_since = now
                self._starving.discard(epoch.feed)
                if self._starving and self._coordinator.stalled_seconds(epoch.feed) > _YIELD_SECONDS:
                    _end_job(job)
                    return True
                continue
            self._starving.add(epoch.feed)
            if now - starving_since > patience:
                _end_job(job)
                raise DeadlineError(
                    f"feed {epoch.feed!r}: Spark gave no core for {patience:g} s to the job that sends its rows",
                    hint="tasks that keep theirs (hold=True, dynamic allocation) or other jobs have all of them",
                )
        return False

    def _await_slots(self, epoch: Epoch) -> bool:
        """Wait until the tasks have their slots; False where the epoch was interrupted before.

        A job that feeds holds cores until somebody reads: begun before the slots are open, it could hold theirs.
        """
        while not self._platform.has_all_slots.wait(_POLL_SECONDS):
            if self._is_interrupted(epoch):
                return False
        return True

    def _is_interrupted(self, epoch: Epoch) -> bool:
        """Tell whether an epoch need not be sent any further; raise where that is a failure."""
        interruption = self._coordinator.interruption(epoch)
        if interruption == "failed":
            raise self._failure(epoch.feed)
        return interruption is not None

    def _act(self, action: Callable[[], list[Any]]) -> list[Any]:
        adopt_jars(self.spark)
        return action()

    def _await_readers(self, feed: str, epoch: Epoch, timeout_seconds: float, *, is_taken_enough: bool = False) -> bool:
        """Wait until all that was sent has been read, or at least taken; False where the tasks were started again."""
        unread, since = -1, time.monotonic()
        while True:
            is_read = self._coordinator.wait_read(feed, _POLL_SECONDS)
            # Asked second: tasks that start again have nothing to read at first.
            interruption = self._coordinator.interruption(epoch)
            if interruption == "failed":
                raise self._failure(feed)
            if interruption == "restarted":
                return False
            if is_read or interruption == "stopped":
                return True
            report = self._coordinator.report(feed)
            waiting = {task: each.unread for task, each in report.consumers.items() if each.unread}
            if is_taken_enough and not waiting:
                return True
            idle = [f"{task} does not read: {rows:,} rows wait there" for task, rows in waiting.items()]
            idle += [f"{task} never opened the feed" for task in self._coordinator.absent(feed)]
            if sum(waiting.values()) != unread:
                unread, since = sum(waiting.values()), time.monotonic()
            elif idle and time.monotonic() - since > timeout_seconds:
                raise DeadlineError(f"feed {feed!r}: nothing moved for {timeout_seconds:g} s: {'; '.join(idle)}")

    def _stream(self, data: DataFrame, feed: str) -> StreamingQuery:
        stream = Stream(self._coordinator, feed, self._send_part)
        query = stream.start(data)
        self._streams.append(stream)
        return query

    # The run

    def status(self) -> RunStatus:
        """Return the state of the run and its tasks."""
        return self.run.status()

    def logs(self, task: str, *, follow: bool = False) -> Iterator[str]:
        """Yield a task's output in pieces."""
        return self.run.logs(task, follow=follow)

    def tensorboard_url(self, timeout_seconds: float = 60) -> str | None:
        """Return where TensorBoard is, once it has started; None where the job has none."""
        deadline = time.monotonic() + timeout_seconds
        while self.run.job.group("tensorboard") and time.monotonic() < deadline:
            status = self.run.status()
            if status.tensorboard_url or status.state.is_ended:
                return status.tensorboard_url
            time.sleep(_POLL_SECONDS)
        return None

    def shutdown(self, timeout_seconds: float = _SHUTDOWN_SECONDS) -> Any:
        """End all feeds, wait for the tasks to end, and return what the function returned in the first of them."""
        try:
            for stream in self._streams:
                stream.end()
            for feed in self._feeds:
                self._coordinator.finish(feed)
            self._coordinator.open_no_more()
            return self.run.result(timeout_seconds)
        except DeadlineError as error:
            raise DeadlineError(
                f"{error.message}, though its feeds have ended",
                hint="wait longer, or see what it does in its logs; it is cancelled now",
            ) from error
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Stop the run, whatever it does, and let go of everything."""
        self.run.cancel()
        self._watch.join()
        self._coordinator.stop()

    def _watch_run(self) -> None:
        """Tell the feeds how the run ended, so that nobody waits for its tasks; stop streams that nobody reads."""
        with speaking_to_jvm():
            while not (status := self.run.status()).state.is_ended:
                for stream in list(self._streams):
                    stream.tend()
                time.sleep(_POLL_SECONDS)
            if status.state is RunState.SUCCEEDED:
                self._coordinator.end()
            else:
                self._coordinator.fail(str(self.run.failure(status)))
            for stream in self._streams:
                stream.stop()

    def _failure(self, feed: str) -> GridflowError:
        """Return why feeding failed: because the run did, if so."""
        with suppress(DeadlineError):
            status = self.run.wait(_POLL_SECONDS)
            if status.state is not RunState.SUCCEEDED:
                return self.run.failure(status)
        return TaskFailedError(self._coordinator.failure(feed) or f"feed {feed!r} failed")


def _end_job(job: SparkJob) -> None:
    job.cancel()
    job.wait(_CANCEL_SECONDS)


class _FedSpark(Spark):
    """The platform, for one run whose tasks are fed."""

    def __init__(self, spark: SparkSession, *, is_held: bool, gpu_resource: str) -> None:
        super().__init__({"spark": spark, "gpu_resource": gpu_resource})
        self._spark = spark
        self._is_held = is_held

    def submit(self, plan: Plan, folder: RunFolder, *, attached: bool) -> None:  # noqa: ARG002 - it always is
        """Start the run and the coordinator of its feeds."""
        self.secret = folder.secret()
        self.coordinator = Coordinator(self.secret)
        try:
            self.prepare(plan, folder)
            crew = self.crew(folder, is_held=self._is_held)
            crew.on_restart = self.coordinator.restart
            self.has_all_slots = crew.has_all_slots
            host, bind_host = driver_hosts(self._spark)
            self.feeds = Address(host, self.coordinator.start(bind_host).port)
            self.supervise(folder, crew, {FEEDS: str(self.feeds)})
        except BaseException:
            self.coordinator.stop()
            raise
