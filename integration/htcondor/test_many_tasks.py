"""Tasks that find each other through Chirp."""

from __future__ import annotations

import re

import pytest
from integration.htcondor.pool import Pool
from integration.htcondor.runs import cluster, finish, output, start, succeeded, wait_for_output

from gridflow import RunState

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("reached")]


def test_two_workers_train_one_model(tensorflow_image: str) -> None:
    options = {"transfer_image": "false"}
    run = start("train.py", image=tensorflow_image, options=options, worker={"count": 2, "memory": "3 GB"})
    said = succeeded(run)
    loss = re.search(r"final loss (\S+) on 2 workers", said)
    assert loss is not None, said
    assert f"final loss {loss[1]} on 2 workers" in output(run, "worker/1")


def test_a_chief_a_worker_and_a_parameter_server_are_procs_of_one_cluster(tensorflow_image: str) -> None:
    group = {"memory": "2 GB"}
    options = {"transfer_image": "false"}
    run = start("coordinate.py", image=tensorflow_image, options=options, chief=group, worker=group, ps=group)
    succeeded(run)
    assert "total 8.0 on /job:ps/replica:0/task:0/" in output(run, "chief/0")
    assert [task.task for task in run.status().tasks] == ["chief/0", "worker/0", "ps/0"]


def test_tasks_of_the_parallel_universe_start_at_once_and_find_each_other() -> None:
    run = start("show.py", options={"parallel": "true"}, worker={"count": 2})
    assert '"worker/1"' in succeeded(run)
    assert '"worker/0"' in output(run, "worker/1")
    assert all(task.host for task in run.status().tasks)


def test_tasks_that_cannot_reach_each_other_say_so_before_training() -> None:
    # An address that belongs to documentation, so that nobody is there.
    variables = '"GRIDFLOW_RUN=x GRIDFLOW_TASK=$(task) GRIDFLOW_BOARD=spool: GRIDFLOW_HOST=192.0.2.1"'
    run = start("show.py", options={"submit": {"environment": variables}}, worker={"count": 2})
    status = finish(run)
    assert status.state is RunState.FAILED
    assert re.search(r"worker/\d at 192\.0\.2\.1:\d+ cannot reach worker/\d", status.reason)
    assert "this pool does not let tasks connect to each other: use one task with several GPUs" in status.reason
    assert "arguments" not in output(run)


def test_tasks_without_chirp_say_that_they_cannot_find_each_other() -> None:
    run = start("show.py", options={"submit": {"want_io_proxy": "false"}}, worker={"count": 2})
    status = finish(run)
    assert status.state is RunState.FAILED
    assert "want_io_proxy" in output(run)


def test_a_gang_starts_again_when_one_of_its_tasks_is_evicted(pool: Pool) -> None:
    run = start("count.py", worker={"count": 2})
    wait_for_output(run, "starting at step 0", "worker/0")
    wait_for_output(run, "starting at step 0", "worker/1")
    pool.tool("condor_vacate_job", f"{cluster(run)}.1")
    said = succeeded(run)
    assert said.count("starting at step") == 2
    assert "total 70210" in said
    assert "total 70210" in output(run, "worker/1")
