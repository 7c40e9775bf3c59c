"""What the supervisor does about its tasks: failures, restarts, services, deadlines, ports."""

from __future__ import annotations

import json
import os
import socket
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from tests.contract import PLACES, wait_for_output
from tests.platforms import run_processes
from tests.waiting import until

from gridflow import Run, RunState, TaskState
from gridflow.gang import MAX_PORT_RETRIES

HERE = PLACES["local"]


# Failures


@pytest.mark.parametrize(("way", "reason"), [("raise", "ValueError: the first to fail"), ("exit", "exit code 3")])
def test_first_failure_is_named_though_its_peer_was_gone_earlier(way: str, reason: str) -> None:
    run = HERE.start("blame.py", way, worker={"count": 2})
    status = run.wait(HERE.run_seconds)
    assert (status.failed_task, status.reason) == ("worker/1", f"worker/1 failed: {reason}")
    first, peer = status["worker/1"], status["worker/0"]
    assert (first.state, first.exit_code, first.reason) == (TaskState.FAILED, {"raise": 1, "exit": 3}[way], reason)
    assert (peer.state, peer.reason) == (TaskState.STOPPED, status.reason)


def test_task_that_ignores_being_stopped_is_killed_after_the_stop_timeout() -> None:
    run = HERE.start("linger.py", "--stubborn", worker={"count": 2}, stop_timeout="1s")
    wait_for_output(run, "worker/0", "ready")
    wait_for_output(run, "worker/1", "ready")
    run_processes.program(run, "worker/1").kill()
    status = run.wait(HERE.run_seconds)
    assert (status.state, status.failed_task) == (RunState.FAILED, "worker/1")
    assert (status["worker/0"].state, status["worker/0"].signal) == (TaskState.STOPPED, "SIGKILL")
    run_processes.until_none_is_left(run)


def test_gang_that_fails_once_too_often_fails_the_run() -> None:
    run = HERE.start("resume.py", "3", worker={"count": 2}, max_restarts=1)
    status = run.wait(HERE.run_seconds)
    assert (status.state, status.restarts, status.failed_task) == (RunState.FAILED, 1, "worker/1")
    assert status.reason == "worker/1 failed: attempt 1 is lost"
    assert "restart 1; starting" in "".join(run.logs("worker/1"))


def test_lost_parameter_server_returns_alone_at_its_address() -> None:
    run = HERE.start("server_returns.py", worker={}, ps={}, max_restarts=1)
    status = run.wait(HERE.run_seconds)
    assert (status.state, status.restarts) == (RunState.SUCCEEDED, 0)
    assert (status["worker/0"].restarts, status["ps/0"].restarts) == (0, 1)
    first, second = (json.loads((run.folder / "checkpoints" / f"roster-{n}").read_text()) for n in (0, 1))
    assert first == second


def test_parameter_server_that_is_lost_too_often_fails_the_run() -> None:
    run = HERE.start("fail.py", "ps/0", "exit", "5", worker={}, ps={}, max_restarts=1)
    status = run.wait(HERE.run_seconds)
    assert (status.state, status.failed_task, status["ps/0"].exit_code) == (RunState.FAILED, "ps/0", 5)
    assert (status["ps/0"].restarts, status["worker/0"].restarts) == (1, 0)


# What ends when training has ended


def test_services_are_stopped_when_the_workers_have_ended() -> None:
    status = HERE.start("linger.py", "ps/0", worker={"count": 2}, ps={}).wait(HERE.run_seconds)
    assert status.state is RunState.SUCCEEDED
    assert {task.task: task.state.value for task in status.tasks} == {
        "worker/0": "succeeded", "worker/1": "succeeded", "ps/0": "stopped",
    }  # fmt: skip
    assert status["ps/0"].reason == "training has ended"


def test_workers_of_a_chief_with_parameter_servers_are_stopped_when_the_chief_has_ended() -> None:
    run = HERE.start("linger.py", "worker/0", "worker/1", "ps/0", chief={}, worker={"count": 2}, ps={})
    status = run.wait(HERE.run_seconds)
    assert status.state is RunState.SUCCEEDED
    assert {task.task: task.state.value for task in status.tasks} == {
        "chief/0": "succeeded", "worker/0": "stopped", "worker/1": "stopped", "ps/0": "stopped",
    }  # fmt: skip


def test_evaluator_may_finish_after_training() -> None:
    run = HERE.start("linger.py", "evaluator/0", worker={}, evaluator={})
    until(lambda: run.status()["worker/0"].state is TaskState.SUCCEEDED, "training ends")
    wait_for_output(run, "evaluator/0", "ready")
    assert run.status()["evaluator/0"].state is TaskState.RUNNING
    (run.folder / "checkpoints" / "enough").touch()
    status = run.wait(HERE.run_seconds)
    assert (status.state, status["evaluator/0"].state) == (RunState.SUCCEEDED, TaskState.SUCCEEDED)


def test_evaluator_is_stopped_at_its_deadline() -> None:
    run = HERE.start("linger.py", "evaluator/0", worker={}, evaluator={}, evaluator_timeout="1s")
    status = run.wait(HERE.run_seconds)
    assert (status.state, status["evaluator/0"].state) == (RunState.SUCCEEDED, TaskState.STOPPED)
    assert status["evaluator/0"].reason == "training has ended"


# Deadlines


def test_task_that_never_joins_is_named_when_the_start_deadline_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "hang"
    path.mkdir()
    # Python runs this at its start: one agent hangs before it has done anything.
    (path / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "if sys.orig_argv[-1] == 'gridflow.task' and os.environ['GRIDFLOW_TASK'] == 'worker/1':\n"
        "    time.sleep(300)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(path), prepend=os.pathsep)
    run = HERE.start("hello.py", worker={"count": 3}, start_timeout="8s", max_restarts=2)
    status = run.wait(HERE.run_seconds)
    assert (status.state, status.failed_task, status.restarts) == (RunState.TIMED_OUT, "worker/1", 0)
    assert status.reason == "worker/1 never joined within 8 s"
    assert {task.state for task in status.tasks} <= {TaskState.STOPPED, TaskState.FAILED}
    run_processes.until_none_is_left(run)


# Ports


def steal_ports(run: Run, attempts: int) -> list[int]:
    """Listen on the port of the run's only task before it does, in this many attempts; let it be in the next one."""
    notes = run.folder / "checkpoints"
    ports = []
    with ExitStack() as thieves:
        for attempt in range(attempts + 1):
            file = notes / f"port-{attempt}"
            until(partial(_is_there_or_over, file, run), f"attempt {attempt} has a port")
            if not file.exists():
                break
            ports.append(int(file.read_text()))
            if attempt < attempts:
                thief = thieves.enter_context(socket.socket())
                thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                thief.bind(("127.0.0.1", ports[-1]))
                thief.listen()
            (notes / f"go-{attempt}").touch()
        run.wait(HERE.run_seconds)
    return ports


def _is_there_or_over(file: Path, run: Run) -> bool:
    return file.exists() or run.status().state.is_ended


@pytest.mark.parametrize("way", ["raise", "exit"])
def test_port_that_somebody_took_leads_to_another_port_and_costs_no_restart(way: str) -> None:
    run = HERE.start("take_port.py", way, max_restarts=0)
    ports = steal_ports(run, 2)
    status = run.status()
    assert (status.state, status.restarts, status["worker/0"].restarts) == (RunState.SUCCEEDED, 0, 0)
    assert len(set(ports)) == 3
    assert f"listening on {ports[-1]}\n" in "".join(run.logs("worker/0"))


def test_ports_are_drawn_anew_only_so_often() -> None:
    run = HERE.start("take_port.py", "raise")
    ports = steal_ports(run, 100)
    status = run.status()
    assert len(ports) == 1 + MAX_PORT_RETRIES
    assert (status.state, status.failed_task) == (RunState.FAILED, "worker/0")
    assert "Address already in use" in status.reason
