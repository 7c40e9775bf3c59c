"""Streams into the tasks of a run.

Spark calls Python for each micro-batch over a connection that it keeps until the interpreter ends, so the driver is a
program of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from integration.spark.standalone import Standalone

PROGRAM = Path(__file__).parent / "programs" / "stream.py"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def scenes(cluster: Standalone, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the program told of each of its scenes."""
    folder = tmp_path_factory.mktemp("streams")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), cluster.url, json.dumps(cluster.settings()), str(folder)],
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "GRIDFLOW_HOME": str(folder / "home"),
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {each.pop("scene"): each for each in told}


def test_rows_of_all_micro_batches_come_once_until_the_query_is_stopped(scenes: dict[str, dict[str, Any]]) -> None:
    found = scenes["until_the_query_is_stopped"]
    assert found["batches"] >= 3
    assert found["ids"] == list(range(300))


def test_shutdown_ends_the_query_and_the_epoch(scenes: dict[str, dict[str, Any]]) -> None:
    found = scenes["until_the_cluster_is_shut_down"]
    # Two workers, in batches of ten: each has half of the rows.
    assert found["rows"] == len(found["ids"]) == 50
    assert not found["active"]


def test_tasks_that_have_enough_end_a_query_that_waits_for_rows(scenes: dict[str, dict[str, Any]]) -> None:
    found = scenes["until_the_tasks_have_enough"]
    assert found["ended"]
    assert len(found["ids"]) == len(set(found["ids"])) == 50
    assert found["exception"] == "None"


def test_task_that_fails_ends_the_query_and_shutdown_raises_its_error(scenes: dict[str, dict[str, Any]]) -> None:
    found = scenes["until_a_task_fails"]
    assert not found["active"]
    assert found["raised"] == "loss is not a number"


def test_rows_that_a_restart_lost_are_no_success(scenes: dict[str, dict[str, Any]]) -> None:
    found = scenes["until_the_tasks_start_again"]
    assert found["raised"].startswith(
        "feed 'train': the tasks were started again, and a stream's rows cannot be sent a second time"
    )
    assert not found["active"]
    assert found["state"] == "cancelled"
