"""Runs on this machine, for those who submit them, ask about them and forget them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.contract import PLACES, PROGRAMS, find, wait_for_output
from tests.platforms import run_processes
from tests.waiting import until

from gridflow import Job, RunState, TaskState
from gridflow.errors import PlatformError
from gridflow.platforms.base import File
from gridflow.platforms.local import Local
from gridflow.store import RunFolder, create_run

HERE = PLACES["local"]


def new_folder(home: Path, *, age_seconds: float = 0) -> RunFolder:
    job = HERE.job("hello.py")
    return create_run(home, job, "local", {}, now=time.time() - age_seconds)


# The plan


def test_plan_starts_one_agent_per_task() -> None:
    job = HERE.job("hello.py", "3", chief={}, worker={"count": 2}, ps={})
    plan = Local({}).plan(job)
    assert plan.files == (File("job.json", json.dumps(job.to_table(), indent=2).encode()),)
    assert Job.from_table(json.loads(plan.files[0].content)) == job
    assert [(command.task, command.argv, dict(command.environment)) for command in plan.commands] == [
        (task, (sys.executable, "-P", "-m", "gridflow.task"), {"GRIDFLOW_TASK": task, "GRIDFLOW_HOST": "127.0.0.1"})
        for task in ("chief/0", "worker/0", "worker/1", "ps/0")
    ]
    assert plan.notes == ()


def test_plan_notes_what_this_machine_will_not_do() -> None:
    plan = Local({}).plan(HERE.job("hello.py", worker={"memory": "2 GB"}, image="tensorflow.sif"))
    assert plan.notes == (
        "memory is not limited on this machine",
        "image tensorflow.sif is not used on this machine: tasks run in this environment",
    )
    assert str(plan).startswith("# note: memory is not limited on this machine\n\n# note: image tensorflow.sif is")


# Submitting


def test_run_that_is_just_being_submitted_is_pending_for_whoever_asks(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    status = Local({}).status(folder)
    assert (status.state, status["worker/0"].state) == (RunState.PENDING, TaskState.PENDING)
    assert list(folder.events()) == []


def test_run_whose_launcher_was_killed_while_it_submitted_has_failed(tmp_path: Path) -> None:
    status = Local({}).status(new_folder(tmp_path, age_seconds=3600))
    assert (status.state, status.reason) == (RunState.FAILED, "the run's supervisor process was killed")
    assert status["worker/0"].state is TaskState.STOPPED


def test_supervisor_that_cannot_start_is_an_error_of_the_platform_and_ends_the_run(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    folder.secret_file.unlink()
    platform = Local({})
    with pytest.raises(PlatformError, match=r"(?s)the run's supervisor did not start: .*No such file.*/secret"):
        platform.submit(platform.plan(folder.job), folder, attached=False)
    status = platform.status(folder)
    assert status.state is RunState.FAILED
    assert "supervisor" in status.reason


def test_attached_run_is_cancelled_at_the_end_of_its_block() -> None:
    with HERE.start("linger.py") as run:
        wait_for_output(run, "worker/0", "ready")
    assert run.status().state is RunState.CANCELLED
    run_processes.until_none_is_left(run)


# Processes that are killed


def test_supervisor_that_is_killed_takes_every_task_with_it_and_the_status_says_so() -> None:
    run = HERE.start("linger.py", worker={"count": 2}, stop_timeout="1s")
    wait_for_output(run, "worker/0", "ready")
    wait_for_output(run, "worker/1", "ready")
    run_processes.supervisor(run).kill()
    run_processes.until_none_is_left(run)
    status = run.status()
    assert (status.state, status.reason) == (RunState.FAILED, "the run's supervisor process was killed")
    assert {(task.state, task.reason) for task in status.tasks} == {(TaskState.STOPPED, status.reason)}
    assert find(run.id).status() == status


def test_status_after_a_killed_supervisor_ends_even_tasks_that_ignore_being_stopped() -> None:
    run = HERE.start("linger.py", "--stubborn", stop_timeout="1h")
    wait_for_output(run, "worker/0", "ready")
    run_processes.supervisor(run).kill()
    assert find(run.id).wait(HERE.run_seconds).state is RunState.FAILED
    run_processes.until_none_is_left(run)
    assert run.status().state is RunState.FAILED


def test_supervisor_that_is_killed_before_an_agent_knew_it_leaves_no_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "late"
    path.mkdir()
    # Python runs this at its start: the agent comes to itself when its parent is gone.
    (path / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "if sys.orig_argv[-1] == 'gridflow.task':\n"
        "    parent = os.getppid()\n"
        "    print('late', flush=True)\n"
        "    while os.getppid() == parent:\n"
        "        time.sleep(0.01)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(path), prepend=os.pathsep)
    run = HERE.start("hello.py")
    wait_for_output(run, "worker/0", "late")
    run_processes.supervisor(run).kill()
    run_processes.until_none_is_left(run)
    assert "is gone" in "".join(run.logs("worker/0"))
    assert run.status().state is RunState.FAILED


@pytest.mark.parametrize("environment", ["marked", "--empty"])
def test_daemon_of_a_program_does_not_outlive_its_task(environment: str) -> None:
    run = HERE.start("daemonize.py", environment)
    assert run.wait(HERE.run_seconds).state is RunState.SUCCEEDED
    assert "[gridflow] killed 1 processes that worker/0 left behind\n" in "".join(run.logs("worker/0"))
    run_processes.until_none_is_left(run)


@pytest.mark.parametrize("environment", ["marked", "--empty"])
def test_daemon_of_a_program_does_not_outlive_an_agent_that_is_killed(environment: str) -> None:
    run = HERE.start("daemonize.py", environment, "--linger")
    wait_for_output(run, "worker/0", "ready")
    run_processes.agent(run, "worker/0").kill()
    assert run.wait(HERE.run_seconds).state is RunState.FAILED
    run_processes.until_none_is_left(run)


def test_agent_that_is_killed_is_named_as_its_task() -> None:
    run = HERE.start("linger.py", worker={"count": 2})
    wait_for_output(run, "worker/1", "ready")
    run_processes.agent(run, "worker/1").kill()
    status = run.wait(HERE.run_seconds)
    assert (status.state, status.failed_task, status["worker/1"].signal) == (RunState.FAILED, "worker/1", "SIGKILL")
    assert status.reason.startswith("worker/1 failed: its agent is gone: killed by SIGKILL (by a person, or")
    run_processes.until_none_is_left(run)


def test_program_that_is_killed_is_named_with_its_signal() -> None:
    run = HERE.start("linger.py", worker={"count": 2})
    wait_for_output(run, "worker/1", "ready")
    run_processes.program(run, "worker/1").kill()
    status = run.wait(HERE.run_seconds)
    assert (status.failed_task, status["worker/1"].signal) == ("worker/1", "SIGKILL")
    assert status.reason.startswith("worker/1 failed: killed by SIGKILL (by a person, or")


def test_agent_that_falls_silent_is_lost_after_its_lease_and_named() -> None:
    run = HERE.start("linger.py", worker={"count": 2})
    wait_for_output(run, "worker/1", "ready")
    run_processes.agent(run, "worker/1").send_signal(signal.SIGSTOP)
    status = run.wait(HERE.run_seconds)
    assert (status.state, status.failed_task) == (RunState.FAILED, "worker/1")
    assert status.reason == "worker/1 failed: nothing was heard of its agent for 30 s"
    run_processes.until_none_is_left(run)


# What a task runs


def test_agent_is_idle_while_a_command_runs(tmp_path: Path) -> None:
    command = tmp_path / "command"
    command.write_text("#!/bin/sh\necho ready\nexec sleep 2\n")
    command.chmod(0o755)
    run = HERE.start(str(command))
    wait_for_output(run, "worker/0", "ready")
    agent = run_processes.agent(run, "worker/0")
    before = sum(agent.cpu_times()[:2])
    used = before
    while not run.status().state.is_ended:
        if agent.is_running():
            used = sum(agent.cpu_times()[:2]) or used
        time.sleep(0.02)
    assert run.status().state is RunState.SUCCEEDED
    assert used - before < 0.2


def test_output_of_any_kind_is_kept_as_it_was_written() -> None:
    run = HERE.start("odd_output.py")
    followed = "".join(run.logs("worker/0", follow=True))
    assert "größer als 漢字 ✓ :fire: [bold]not markup[/]\nnot \ufffd\ufffd text\n" in followed
    assert "\nlong " + "y" * 300_000 + " tail\n" in followed
    assert "\n" + "ü" * 100_000 + "\n" in followed
    assert "".join(run.logs("worker/0")) == followed
    assert run.tail("worker/0", 1).startswith("no newline")


def test_tail_of_a_huge_log_is_its_last_lines() -> None:
    run = HERE.start("flood.py", "30", "lines")
    assert run.wait(HERE.run_seconds).state is RunState.FAILED
    assert run.tail("worker/0", 2) == "the end\n[gridflow] worker/0 has ended: exit code 3"


def test_tensorboard_that_fails_does_not_fail_the_run(tmp_path: Path) -> None:
    package = tmp_path / "broken" / "tensorboard"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "main.py").write_text("raise SystemExit('no TensorBoard today')\n")
    run = HERE.start("linger.py", tensorboard={}, env={"PYTHONPATH": str(tmp_path / "broken")})
    until(lambda: run.status()["tensorboard/0"].state is TaskState.FAILED, "TensorBoard fails")
    assert run.status()["tensorboard/0"].reason == "no TensorBoard today"
    (run.folder / "checkpoints" / "enough").touch()
    status = run.wait(HERE.run_seconds)
    assert (status.state, status.failed_task, status.reason) == (RunState.SUCCEEDED, None, "")
    assert status["worker/0"].state is TaskState.SUCCEEDED


def test_tensorboard_serves_the_runs_logs_until_the_run_has_ended() -> None:
    run = HERE.start("linger.py", tensorboard={})
    url = until(lambda: run.tensorboard_url or "", "the run has a TensorBoard")
    answer = until(lambda: fetch(url + "data/logdir"), "TensorBoard answers", seconds=180)
    assert json.loads(answer) == {"logdir": str(run.folder / "tensorboard")}
    run.cancel()
    assert fetch(url) == ""
    assert run.tensorboard_url is None


def fetch(url: str) -> str:
    """Return what a server says; nothing where there is none."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read(), "utf-8")
    except (urllib.error.URLError, ConnectionError):
        return ""


def test_programs_here_are_what_the_tests_name() -> None:
    named = "".join(path.read_text() for path in Path(__file__).parents[1].rglob("*.py") if path.parent != PROGRAMS)
    assert [path.name for path in PROGRAMS.glob("*.py") if f'"{path.name}"' not in named] == []
