"""Runs of an experiment on Spark: many trials, one in each executor at a time, or one training on all of them.

driver: run_trials, run_training ─▶ a Gridflow run ─▶ task: _call_in_task ─▶ the function
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gridflow import run as runs
from gridflow.compat.gathering import Gathering, Invitation, Member
from gridflow.compat.hops import hdfs, records, tensorboard, util
from gridflow.compat.hops.devices import EXECUTOR_GPUS
from gridflow.compat.hops.records import Trial
from gridflow.gpu.variables import VISIBLE
from gridflow.launcher import launch
from gridflow.platforms.spark_crew import driver_hosts
from gridflow.platforms.spark_jobs import speaking_to_jvm
from gridflow.task import identity
from gridflow.task.context import context as task_context
from gridflow.task.importing import around_import

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ML_ID = "ML_ID"
_GPUS = "spark.executor.resource.gpu.amount"
_UNCOUNTED_GPUS = f"spark.executorEnv.{EXECUTOR_GPUS}"
#: A trial may wait for one of the executors as long as others use them.
_TRIAL_START_SECONDS = 30 * 24 * 3600.0
#: Below the experiment's folder: where the events of a distributed training are.
_EVENTS = "logdir"
#: Where TensorFlow has its class of servers.
_SERVERS = "tensorflow.python.training.server_lib"


@dataclass(frozen=True)
class Setting:
    """What all runs of an experiment have in common."""

    spark: SparkSession
    experiment: str
    project: str
    name: str
    local_logdir: bool

    def launch(
        self, function: Callable[..., Any], arguments: Sequence[Any], start_seconds: float | None = None, **groups: Any
    ) -> runs.Run:
        """Start a run in Spark, in which every task but the services has the GPUs of an executor."""
        settings = self.spark.sparkContext.getConf()
        gpus = int(settings.get(_GPUS) or 0)
        env = {_ML_ID: self.experiment, hdfs.PROJECT_PATH: self.project}
        uncounted = int(settings.get(_UNCOUNTED_GPUS) or 0)
        if uncounted and not gpus:
            # Spark does not know of them, so they would be hidden from the tasks.
            env[VISIBLE] = ",".join(map(str, range(uncounted)))
        name = re.sub(r"[^a-z0-9]+", "-", self.name.lower())[:40].strip("-")
        job = {"env": env, "name": name or "experiment", **({"start_timeout": start_seconds} if start_seconds else {})}
        return launch(function, on="spark", spark=self.spark, args=arguments, gpus=gpus or None, job=job, **groups)


# Many trials


def run_trials(setting: Setting, function: Callable[..., Any], trials: Sequence[Trial]) -> list[Any]:
    """Run trials, some of them at once, and return what each of them returned; the first that fails ends all."""
    active = _ActiveRuns()

    def run_one(trial: Trial) -> Any:
        with speaking_to_jvm():
            trial.begin()
            call = (function, trial.params, trial.folder, setting.local_logdir)
            with active.following(setting.launch(_call_alone, call, _TRIAL_START_SECONDS, workers=1)) as run:
                return _result(run, trial.folder)

    at_once = min(_most_at_once(setting.spark), len(trials))
    with ThreadPoolExecutor(at_once, thread_name_prefix="gridflow-trial") as pool:
        futures = [pool.submit(run_one, trial) for trial in trials]
        try:
            return _results(futures)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            active.cancel()


def _most_at_once(spark: SparkSession) -> int:
    """Return how many trials can go on at once: one in each executor, or where they are not counted on each core."""
    context = spark.sparkContext
    if util.has_executors_set(context.getConf()):
        return util.num_executors(spark)
    return max(1, context.defaultParallelism // int(context.getConf().get("spark.task.cpus") or 1))


def _results(futures: Sequence[Future[Any]]) -> list[Any]:
    ended, _ = wait(futures, return_when=FIRST_EXCEPTION)
    for future in ended:
        future.result()
    return [future.result() for future in futures]


class _ActiveRuns:
    """The runs that go on, so that all of them can be stopped; none starts afterwards."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: set[runs.Run] = set()
        self._is_over = False

    @contextmanager
    def following(self, run: runs.Run) -> Iterator[runs.Run]:
        """Follow a run until its end."""
        with run:
            with self._lock:
                self._runs.add(run)
                is_over = self._is_over
            if is_over:
                run.cancel()
            try:
                yield run
            finally:
                with self._lock:
                    self._runs.discard(run)

    def cancel(self) -> None:
        """Stop all."""
        with self._lock:
            self._is_over = True
            active = list(self._runs)
        for run in active:
            run.cancel()


def _result(run: runs.Run, folder: str) -> Any:
    """Return what a run returned, and keep its logs."""
    try:
        return run.result()
    finally:
        for task, name in records.logs_of(run.job.tasks).items():
            if run.log_file(task).exists():
                hdfs.dump(run.log_file(task).read_bytes(), f"{folder}/{name}")


def _call_alone(function: Callable[..., Any], params: dict[str, Any], folder: str, is_local: bool) -> Any:
    """Call the function in a task that has no others beside it."""
    os.environ.pop("TF_CONFIG", None)
    with tensorboard.writing_to(folder, is_local=is_local):
        return records.keep_files(records.plain(function(**params)), folder)


# One training


def run_training(setting: Setting, function: Callable[..., Any], folder: str, **groups: Any) -> Any:
    """Run one training whose tasks know of each other, and return what its first task returned."""
    trainers = int(groups.get("chief", False)) + (groups.get("workers") or 0)
    with Gathering(trainers, *driver_hosts(setting.spark)) as gathering:
        call = (function, folder, setting.local_logdir, gathering.invitation)
        with setting.launch(_call_together, call, **groups) as run:
            return _result(run, folder)


def _call_together(function: Callable[..., Any], folder: str, is_local: bool, invitation: Invitation) -> Any:
    """Call the function in one of several tasks; the first writes where TensorBoard looks, and its result counts."""
    task = task_context()
    tasks = list(task.roster.tasks)
    if len(tasks) == 1:
        os.environ.pop("TF_CONFIG", None)
    trainers = [name for name in tasks if name.partition("/")[0] in ("chief", "worker")]
    is_first = task.task == trainers[0]
    with tensorboard.writing_to(f"{folder}/{_EVENTS}", is_local=is_local and is_first):
        if task.task not in trainers or not task.roster.group("ps"):
            value = function()
        else:
            with _serving_until_all_end(Member(invitation, trainers.index(task.task))):
                value = function()
        return records.keep_files(records.plain(value), folder) if is_first else None


@contextmanager
def _serving_until_all_end(member: Member) -> Iterator[None]:
    """Have a worker that only serves (`tf.distribute.Server(…).join()`) end when the others have.

    TensorFlow's own `join` never returns, and the training would go on for ever.
    """
    has_joined = threading.Event()

    def join(_server: Any) -> None:
        if not has_joined.is_set():
            has_joined.set()
            member.gather(os.environ.get(identity.TASK, ""))

    @contextmanager
    def correcting() -> Iterator[None]:
        yield
        sys.modules[_SERVERS].Server.join = join

    if _SERVERS in sys.modules:
        with correcting():
            pass
    else:
        around_import(_SERVERS, correcting)
    yield
    if not has_joined.is_set():
        join(None)
