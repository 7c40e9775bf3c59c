"""Jobs whose tasks run in the executors of a real cluster, with a session that the test has."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tests.platforms import run_processes
from tests.waiting import until

import gridflow
from gridflow import Run, RunState, TaskState
from gridflow.errors import DeadlineError, PlatformError, TaskFailedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 180
#: PySpark leaves the sockets through which results come to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def launch(spark: SparkSession, function: Any, **wanted: Any) -> Run:
    return gridflow.launch(function, on="spark", spark=spark, **wanted)


def who() -> dict[str, Any]:
    context = gridflow.context()
    executor = psutil.Process()
    while "java" not in executor.name():
        executor = executor.parent()
    return {"task": context.task, "roster": context.roster.to_dict(), "executor": executor.pid}


def linger() -> None:
    print("ready", flush=True)  # noqa: T201
    time.sleep(600)


def fail_first(how: str) -> str:
    context = gridflow.context()
    if context.task == "worker/1" and not context.restart:
        if how == "raise":
            raise ValueError("no such table")
        if how == "executor":
            executor = psutil.Process()
            while "java" not in executor.name():
                executor = executor.parent()
            executor.kill()
        else:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
    return f"{context.task} after {context.restart}"


def test_every_group_runs_and_the_first_task_answers(spark: SparkSession) -> None:
    run = launch(spark, who, chief=True, workers=2, ps=1)
    found = run.result(SECONDS)
    assert found["task"] == "chief/0"
    assert set(found["roster"]) == {"chief/0", "worker/0", "worker/1", "ps/0"}
    states = {task.task: task.state for task in run.status().tasks}
    assert states.keys() == {"chief/0", "worker/0", "worker/1", "ps/0"}
    assert states["chief/0"] is TaskState.SUCCEEDED
    run_processes.until_none_is_left(run)


def test_what_a_task_raises_is_raised_here_with_its_traceback(spark: SparkSession) -> None:
    run = launch(spark, fail_first, workers=2, args=["raise"])
    with pytest.raises(ValueError, match="no such table") as error:
        run.result(SECONDS)
    assert isinstance(error.value.__cause__, TaskFailedError)
    assert "in fail_first" in str(error.value.__cause__)
    assert run.status().failed_task == "worker/1"
    run_processes.until_none_is_left(run)


@pytest.mark.parametrize("how", ["raise", "program", "executor"])
def test_gang_starts_again_when_a_task_or_its_executor_is_lost(spark: SparkSession, how: str) -> None:
    run = launch(spark, fail_first, workers=2, args=[how], max_restarts=1)
    assert run.result(SECONDS) == "worker/0 after 1"
    status = run.status()
    assert (status.state, status.restarts) == (RunState.SUCCEEDED, 1)
    run_processes.until_none_is_left(run)


def test_executor_that_is_killed_is_named_and_nothing_is_left(spark: SparkSession) -> None:
    run = launch(spark, fail_first, workers=2, args=["executor"])
    status = run.wait(SECONDS)
    assert (status.state, status.failed_task) == (RunState.FAILED, "worker/1")
    assert re.search(r"worker/1 failed: its executor on 127\.0\.0\.[12] is gone", status.reason)
    run_processes.until_none_is_left(run)


def test_slots_that_are_missing_are_counted_and_explained(spark: SparkSession) -> None:
    status_of_memory = spark.sparkContext._jsc.sc().getExecutorMemoryStatus
    until(lambda: status_of_memory().size() == 5, "all executors are there, and the driver", seconds=SECONDS)
    run = launch(spark, linger, workers=5, job={"start_timeout": "12s"})
    status = run.wait(SECONDS)
    assert status.state is RunState.TIMED_OUT
    assert "never joined within 12 s" in status.reason
    assert "Spark gave 4 of 5 slots; 4 executors with 4 cores in all, 1 for each slot" in status.reason
    assert "dynamic allocation is off, so add executors or cores, or ask for fewer tasks" in status.reason
    with pytest.raises(DeadlineError):
        run.result(SECONDS)
    run_processes.until_none_is_left(run)


def test_cancel_ends_all_tasks_and_the_session_goes_on(spark: SparkSession) -> None:
    run = launch(spark, linger, workers=2)
    until(lambda: all("ready" in "".join(run.logs(task)) for task in ("worker/0", "worker/1")), "both linger")
    run.cancel()
    assert run.status().state is RunState.CANCELLED
    run_processes.until_none_is_left(run)
    assert spark.range(10).count() == 10


def test_two_runs_share_a_session(spark: SparkSession) -> None:
    first, second = launch(spark, who, workers=2), launch(spark, who, workers=2)
    assert {first.result(SECONDS)["task"], second.result(SECONDS)["task"]} == {"worker/0"}
    run_processes.until_none_is_left(second)


def test_session_run_cannot_be_detached(spark: SparkSession) -> None:
    with pytest.raises(PlatformError, match="cannot go on without this process, whose Spark session it uses"):
        launch(spark, who, detach=True)


def test_workers_hold_the_gpus_that_spark_chose_and_parameter_servers_none(spark: SparkSession) -> None:
    run = launch(spark, show_gpus, workers=2, ps=1, gpus=1)
    run.wait(SECONDS)
    told = {task: dict(_told(run, task)) for task in ("worker/0", "worker/1", "ps/0")}
    assert run.status().state is RunState.SUCCEEDED, run.status().reason
    for task in ("worker/0", "worker/1"):
        assert told[task]["granted"] == told[task]["chosen"]
        assert len(told[task]["granted"].split(",")) == 1
    assert told["worker/0"]["granted"] != told["worker/1"]["granted"]
    assert told["ps/0"] == {"granted": "", "chosen": "", "visible": "-1"}
    run_processes.until_none_is_left(run)


def show_gpus() -> None:
    context = gridflow.context()
    granted = ",".join(map(str, context.grant.devices))
    for name, value in (
        ("granted", granted),
        ("chosen", os.environ["GRIDFLOW_DEVICES"]),
        ("visible", os.environ.get("CUDA_VISIBLE_DEVICES", "")),
    ):
        print(f"{name}={value}", flush=True)  # noqa: T201
    if context.group == "ps":
        time.sleep(600)


def _told(run: Run, task: str) -> Iterator[tuple[str, str]]:
    for line in "".join(run.logs(task)).splitlines():
        name, separator, value = line.partition("=")
        if separator and name in ("granted", "chosen", "visible"):
            yield name, value
