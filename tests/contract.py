"""What every platform does, as tests.

A platform adds its line to PLACES and nothing else. `tests/platforms/test_contract.py` runs the contract where no
foreign server is needed; elsewhere `integration/NAME/` subclasses `PlatformContract` and gives it a `place`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.cli.terminal import gridflow, started
from tests.waiting import until

from gridflow import Job, Run, RunState, TaskState, settings
from gridflow.errors import JobError, RunCancelledError, SettingsError, TaskFailedError
from gridflow.launcher import submit
from gridflow.platforms.base import Plan, Platform, load_platform

PROGRAMS = Path(__file__).parent / "platforms" / "programs"

RUN_KEYS = {
    "run", "platform", "state", "tasks", "reason", "restarts", "failed_task", "tensorboard_url", "started", "ended",
}  # fmt: skip
TASK_KEYS = {"task", "state", "exit_code", "signal", "host", "restarts", "reason"}


@dataclass(frozen=True)
class Place:
    """A platform, and what a test needs to use it."""

    platform: str
    options: Mapping[str, str] = field(default_factory=dict)
    #: The pytest fixtures that make the platform usable.
    fixtures: tuple[str, ...] = ()
    #: Whether a foreign system has to be started, so that `integration/` tests it.
    needs_system: bool = False
    #: How long a small run may take at most.
    run_seconds: float = 60

    def load(self) -> Platform:
        return load_platform(self.platform, self.options)

    def job(self, program: str, *args: str, **table: Any) -> Job:
        return Job.from_table({"program": str(PROGRAMS / program), "args": args, "folder": str(PROGRAMS), **table})

    def start(self, program: str, *args: str, attached: bool = True, **table: Any) -> Run:
        return submit(self.job(program, *args, **table), self.platform, self.options, attached=attached)

    @property
    def words(self) -> list[str]:
        """The place on a command line."""
        return ["--on", self.platform, *(f"--option={name}={value}" for name, value in self.options.items())]


#: A Spark whose executor is its driver, started as fast as a JVM can be.
SPARK = {
    "master": "local[2]",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.ui.enabled": "false",
}

PLACES = {
    "local": Place("local"),
    "spark": Place("spark", SPARK, needs_system=True, run_seconds=180),
    "htcondor": Place("htcondor", {"spool": "true"}, needs_system=True, run_seconds=180),
}


def find(run: str) -> Run:
    """Take up a run as somebody who did not start it."""
    return Run.find(settings.home(os.environ), run)


def wait_for_output(run: Run, task: str, text: str) -> None:
    until(lambda: text in "".join(run.logs(task)), f"{task} of {run.id} says {text!r}")


def check_schema(status: dict[str, Any]) -> None:
    assert status.keys() == RUN_KEYS
    assert status["state"] in set(RunState)
    for task in status["tasks"]:
        assert task.keys() == TASK_KEYS
        assert task["state"] in set(TaskState)
        assert task["exit_code"] is None or task["signal"] is None
        assert isinstance(task["restarts"], int)
        assert isinstance(task["reason"], str)


class PlatformContract:
    """The tests; the fixture `place` says where."""

    # A plan is data

    @pytest.mark.parametrize(
        "table",
        [
            {"worker": {"count": 2}},
            {"chief": {}, "worker": {"count": 2}, "ps": {}, "evaluator": {}, "data": {"count": 2}, "tensorboard": {}},
            {"worker": {"memory": "2 GB", "cpus": 2}, "env": {"SEED": "1"}, "max_restarts": 3, "timeout": "1h"},
        ],
    )
    def test_plan_is_pure_and_repeatable(self, place: Place, tmp_path: Path, table: dict[str, Any]) -> None:
        job = place.job("hello.py", "{task_index}", **table)
        before = job.to_table()
        files_before = sorted(tmp_path.rglob("*"))
        plan = place.load().plan(job)
        assert plan == place.load().plan(place.job("hello.py", "{task_index}", **table))
        assert job.to_table() == before
        assert sorted(tmp_path.rglob("*")) == files_before

    def test_plan_can_be_printed_for_people_and_for_scripts(self, place: Place) -> None:
        plan = place.load().plan(place.job("hello.py", worker={"count": 2}))
        assert json.loads(json.dumps(plan.to_dict())).keys() == {"files", "commands", "notes"}
        assert str(plan)
        assert plan != Plan()

    # A run that succeeds

    def test_run_goes_through_its_states_and_ends_with_every_task_succeeded(self, place: Place) -> None:
        run = place.start("hello.py", "--epochs", "3", worker={"count": 2})
        assert run.status().state in (RunState.PENDING, RunState.RUNNING)
        status = run.wait(place.run_seconds)
        check_schema(status.to_dict())
        assert (status.run, status.platform, status.state) == (run.id, place.platform, RunState.SUCCEEDED)
        assert (status.failed_task, status.reason, status.restarts) == (None, "", 0)
        assert [task.task for task in status.tasks] == ["worker/0", "worker/1"]
        for task in status.tasks:
            assert (task.state, task.exit_code, task.signal, task.reason) == (TaskState.SUCCEEDED, 0, None, "")
            assert task.host
            assert f"hello from {task.task} --epochs 3\n" in "".join(run.logs(task.task))
        assert status.started is not None
        assert status.ended is not None
        assert status.started <= status.ended

    def test_status_and_logs_are_the_same_for_a_process_that_did_not_submit(self, place: Place) -> None:
        run = place.start("hello.py")
        status = run.wait(place.run_seconds)
        assert json.loads(gridflow("status", run.id, "--json").stdout) == status.to_dict()
        assert gridflow("logs", run.id, "worker/0").stdout == "".join(run.logs("worker/0"))

    def test_status_that_somebody_asks_at_every_moment_never_harms_a_run(self, place: Place) -> None:
        with started("run", *place.words, "--quiet", PROGRAMS / "hello.py") as launcher:
            seen = []
            while launcher.poll() is None:
                listed = json.loads(gridflow("list", "--json").stdout)
                seen += [run["state"] for run in listed]
        assert launcher.returncode == 0
        assert set(seen) <= {"pending", "running", "succeeded"}

    def test_a_run_goes_on_when_the_process_that_submitted_it_detached_has_ended(self, place: Place) -> None:
        done = gridflow("submit", *place.words, PROGRAMS / "linger.py")
        assert done.returncode == 0, done.stderr
        with find(done.stdout.strip()) as run:
            wait_for_output(run, "worker/0", "ready")
            status = run.status()
            assert status.state is RunState.RUNNING
            assert status["worker/0"].state is TaskState.RUNNING
        assert run.status().state is RunState.CANCELLED

    def test_an_attached_run_ends_with_the_process_that_submitted_it(self, place: Place) -> None:
        code = (
            "import sys; from tests.contract import PLACES; "
            "print(PLACES[sys.argv[1]].start('linger.py').id, flush=True); sys.stdin.read()"
        )
        command = [sys.executable, "-c", code, place.platform]
        root = Path(__file__).parents[1]
        with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as launcher:
            assert launcher.stdout is not None
            run = find(launcher.stdout.readline().strip())
            wait_for_output(run, "worker/0", "ready")
            launcher.send_signal(signal.SIGKILL)
        status = run.wait(place.run_seconds)
        assert status.state is RunState.CANCELLED
        assert status.reason == "the process that launched it is gone"

    # Logs

    def test_logs_follow_a_task_to_the_end_of_the_run(self, place: Place) -> None:
        run = place.start("hello.py")
        followed = "".join(run.logs("worker/0", follow=True))
        assert "hello from worker/0\n" in followed
        assert run.status().state is RunState.SUCCEEDED
        assert followed == "".join(run.logs("worker/0"))

    def test_logs_of_a_task_that_the_job_does_not_have_are_refused(self, place: Place) -> None:
        run = place.start("hello.py")
        run.wait(place.run_seconds)
        with pytest.raises(JobError, match=r"the job has no task 'worker/7' \(its tasks: worker/0\)"):
            list(run.logs("worker/7"))

    # Cancel

    def test_cancel_stops_a_run_and_may_be_repeated_by_anybody(self, place: Place) -> None:
        run = place.start("linger.py", worker={"count": 2})
        wait_for_output(run, "worker/1", "ready")
        run.cancel()
        status = run.status()
        assert status.state is RunState.CANCELLED
        assert {task.state for task in status.tasks} == {TaskState.STOPPED}
        run.cancel()
        assert gridflow("cancel", run.id).returncode == 0
        assert find(run.id).status() == status
        with pytest.raises(RunCancelledError, match=f"run {run.id} cancelled"):
            run.result(place.run_seconds)

    def test_cancel_by_another_process_ends_the_run_for_the_one_that_submitted_it(self, place: Place) -> None:
        run = place.start("linger.py")
        wait_for_output(run, "worker/0", "ready")
        assert gridflow("cancel", run.id).stdout == f"{run.id} cancelled\n"
        assert run.status().state is RunState.CANCELLED

    def test_cancel_right_after_submit_leaves_nothing(self, place: Place) -> None:
        run = place.start("linger.py", worker={"count": 2})
        run.cancel()
        assert run.status().state is RunState.CANCELLED

    def test_cancel_of_a_run_that_has_ended_changes_nothing(self, place: Place) -> None:
        run = place.start("fail.py", "worker/0", "exit", "3")
        status = run.wait(place.run_seconds)
        run.cancel()
        find(run.id).cancel()
        assert run.status() == status
        assert status.state is RunState.FAILED

    # A run that fails

    @pytest.mark.parametrize(
        ("way", "detail", "exit_code", "signal_name", "reason"),
        [
            ("exit", "3", 3, None, "exit code 3"),
            ("signal", "SIGSEGV", None, "SIGSEGV", "killed by SIGSEGV"),
            ("raise", "no such table", 1, None, "ValueError: no such table"),
            ("stop", "no such table", 1, None, "no such table"),
        ],
    )
    def test_failed_run_names_the_task_how_it_ended_and_its_last_words(
        self, place: Place, way: str, detail: str, exit_code: int | None, signal_name: str | None, reason: str
    ) -> None:
        run = place.start("fail.py", "worker/1", way, detail, worker={"count": 2})
        status = run.wait(place.run_seconds)
        check_schema(status.to_dict())
        assert (status.state, status.failed_task) == (RunState.FAILED, "worker/1")
        assert status.reason == f"worker/1 failed: {reason}"
        failed = status["worker/1"]
        assert (failed.state, failed.exit_code, failed.signal, failed.reason) == (
            TaskState.FAILED, exit_code, signal_name, reason,
        )  # fmt: skip
        peer = status["worker/0"]
        assert (peer.state, peer.reason) == (TaskState.STOPPED, status.reason)
        with pytest.raises(TaskFailedError) as error:
            run.result(place.run_seconds)
        assert f"run {run.id} failed: worker/1 failed: {reason}\n--- the end of " in str(error.value)
        assert "the last words of worker/1\n" in str(error.value)

    def test_failed_gang_starts_again_with_the_same_checkpoints(self, place: Place) -> None:
        run = place.start("resume.py", "3", worker={"count": 2}, max_restarts=2)
        status = run.wait(place.run_seconds)
        assert (status.state, status.restarts) == (RunState.SUCCEEDED, 2)
        assert [task.restarts for task in status.tasks] == [2, 2]
        assert (run.folder / "checkpoints" / "worker-1").read_text().split() == ["0", "1", "2"]
        # It may have been stopped before it noted an attempt in which its peer failed.
        assert (run.folder / "checkpoints" / "worker-0").read_text().split()[-1] == "2"

    def test_deadline_of_the_run_stops_it(self, place: Place) -> None:
        run = place.start("linger.py", worker={"count": 2}, timeout="2s")
        status = run.wait(place.run_seconds)
        assert (status.state, status.failed_task) == (RunState.TIMED_OUT, None)
        assert status.reason == "the deadline of 2 s passed while worker/0, worker/1 still ran"
        assert {(task.state, task.reason) for task in status.tasks} == {(TaskState.STOPPED, status.reason)}

    # Options and usability

    def test_unknown_option_is_refused_with_the_valid_ones(self, place: Place) -> None:
        with pytest.raises(SettingsError) as error:
            load_platform(place.platform, {**place.options, "no_such_option": "1"})
        assert f"platform.{place.platform}.no_such_option is not a known key (valid keys: " in str(error.value)
        valid = str(error.value).partition("valid keys: ")[2].rstrip(")").split(", ")
        assert set(place.options) <= set(valid)
        done = gridflow("run", *place.words, "--option=no_such_option=1", PROGRAMS / "hello.py")
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"gridflow: {error.value}\n")

    def test_platform_says_whether_it_can_be_used(self, place: Place) -> None:
        platform = place.load()
        findings = platform.check()
        assert platform.description
        assert findings
        assert [finding for finding in findings if finding.is_required and not finding.is_good] == []
