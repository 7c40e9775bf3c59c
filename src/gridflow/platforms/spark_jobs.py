"""Spark jobs that run beside their caller: each in a thread of its own, under a name by which it can be cancelled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkJob:
    """A Spark action at work; `ended` is called in its thread when it has ended, with its error if it has failed."""

    def __init__(
        self,
        spark: SparkSession,
        group: str,
        description: str,
        action: Callable[[], Any],
        ended: Callable[[Exception | None], None] = lambda _error: None,
    ) -> None:
        self._spark = spark
        self._group = group
        self._description = description
        self._action = action
        self._ended = ended
        self._result: Any = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._act, name="gridflow-spark-job", daemon=True)
        self._thread.start()

    def _act(self) -> None:
        with speaking_to_jvm():
            try:
                self._spark.sparkContext.setJobGroup(self._group, self._description, True)
                self._result = self._action()
            except Exception as error:  # noqa: BLE001 - the root of a thread; raised by `result`
                self._error = error
        self._ended(self._error)

    @property
    def is_running(self) -> bool:
        """Whether the action has not ended yet."""
        return self._thread.is_alive()

    @property
    def is_starving(self) -> bool:
        """Whether Spark has the job and runs no part of it at this moment."""
        tracker = self._spark.sparkContext.statusTracker()
        active = set(tracker.getJobIdsForGroup(self._group)) & set(tracker.getActiveJobsIds())
        infos = [info for job in active if (info := tracker.getJobInfo(job)) is not None]
        stages = [tracker.getStageInfo(stage) for info in infos for stage in info.stageIds]
        return bool(active) and not any(stage is not None and stage.numActiveTasks for stage in stages)

    def cancel(self) -> None:
        """Have Spark end the job, also one that it has not heard of yet; its end is another thing."""
        with suppress(Exception):  # the session may be gone, and the job with it
            self._spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(self._group)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for the end; False where it has not come in time."""
        self._thread.join(timeout_seconds)
        return not self.is_running

    def result(self) -> Any:
        """Wait for the end and return what the action returned, or raise what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result


@contextmanager
def speaking_to_jvm() -> Iterator[None]:
    """Close, at the end, the connection to Spark's JVM that this thread has if it spoke to it; Python would keep it."""
    try:
        yield
    finally:
        from pyspark import SparkContext

        gateway = SparkContext._gateway
        find = getattr(getattr(gateway, "_gateway_client", None), "get_thread_connection", None)
        connection = find() if find is not None else None
        if connection is not None:
            connection.close()
