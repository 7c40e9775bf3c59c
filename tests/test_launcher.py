from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import gridflow
from gridflow import launcher, settings
from gridflow.errors import DeadlineError, JobError, RunCancelledError, TaskFailedError, UsageError
from gridflow.job import Job
from gridflow.run import Run
from gridflow.state import RunState, TaskState
from gridflow.store import list_runs

SECONDS = 120.0

Calls = list[tuple[Job, str, dict[str, Any]]]


@pytest.fixture
def home() -> Path:
    return settings.home(os.environ)


# Functions


def test_what_a_function_returns_in_the_first_task_is_the_result(tmp_path: Path) -> None:
    def describe(a: int, b: int, *, c: int) -> dict[str, Any]:
        return {
            "task": gridflow.context().task,
            "sum": a + b + c,
            "folder": os.getcwd(),
            "tf": "tensorflow" in sys.modules,
        }

    arguments = {"a": 1, "b": 2, "c": 3}
    with gridflow.launch(describe, chief=True, workers=2, args=arguments, job={"folder": str(tmp_path)}) as run:
        assert run.result(SECONDS) == {"task": "chief/0", "sum": 6, "folder": str(tmp_path), "tf": False}
        assert [task.task for task in run.status().tasks] == ["chief/0", "worker/0", "worker/1"]
        assert run.job.name == "describe"
        assert run.tensorboard_url is None
        assert run.result() == run.result()


def test_a_function_without_chief_is_called_with_positional_arguments() -> None:
    with gridflow.launch(lambda *numbers: (gridflow.context().task, sum(numbers)), workers=2, args=[1, 2, 3]) as run:
        assert run.result(SECONDS) == ("worker/0", 6)
        assert run.job.name == "function"


def test_what_a_function_raises_is_raised_again_with_the_tasks_traceback(home: Path) -> None:
    class NoDataError(Exception):
        pass

    def descend(depth: int) -> None:
        if depth:
            descend(depth - 1)
        raise NoDataError("no data in /data", 12)

    with gridflow.launch(descend, args=[30]) as run:
        with pytest.raises(Exception, match="no data in /data") as caught:
            run.result(SECONDS)
        assert type(caught.value).__name__ == "NoDataError"
        assert caught.value.args == ("no data in /data", 12)
        cause = caught.value.__cause__
        assert isinstance(cause, TaskFailedError)
        first, heading, *traceback = str(cause).splitlines()
        assert first.startswith(f"run {run.id} failed: worker/0 failed: ")
        assert first.endswith("NoDataError: ('no data in /data', 12)")
        assert heading == "--- what worker/0 raised:"
        assert traceback[0] == "Traceback (most recent call last):"
        # from the first frame to the last, however deep
        assert sum(line.endswith(", in descend") for line in traceback) >= 3
        assert traceback[-1].endswith("NoDataError: ('no data in /data', 12)")
        # any later process can ask again
        with pytest.raises(Exception, match="no data in /data"):
            Run.find(home, run.id).result(SECONDS)


def test_the_first_task_that_failed_is_named_whichever_it_is() -> None:
    def fail_in_one() -> None:
        if gridflow.context().task != "worker/1":
            time.sleep(SECONDS)
        raise ValueError("no data")

    with gridflow.launch(fail_in_one, workers=3) as run:
        with pytest.raises(ValueError, match=r"^no data$") as caught:
            run.result(SECONDS)
        assert str(caught.value.__cause__).startswith(f"run {run.id} failed: worker/1 failed: ValueError: no data\n")
        status = run.status()
    assert (status.state, status.failed_task) == (RunState.FAILED, "worker/1")
    assert [task.state for task in status.tasks] == [TaskState.STOPPED, TaskState.FAILED, TaskState.STOPPED]
    assert (status["worker/1"].exit_code, status["worker/1"].reason) == (1, "ValueError: no data")


def test_a_result_that_cannot_be_pickled_is_said_to_be_so() -> None:
    with gridflow.launch(threading.Lock) as run:
        assert run.wait(SECONDS).state is RunState.SUCCEEDED
        with pytest.raises(TaskFailedError) as caught:
            run.result(SECONDS)
    assert str(caught.value) == (
        "worker/0 returned something that cannot be pickled: cannot pickle '_thread.lock' object "
        "(return plain data: numbers, lists, arrays)"
    )


def test_an_exception_that_cannot_be_unpickled_does_not_hide_the_failure() -> None:
    class TwoPartError(Exception):
        def __init__(self, one: str, two: str) -> None:
            super().__init__(f"{one} and {two}")

    def fail() -> None:
        raise TwoPartError("this", "that")

    with gridflow.launch(fail) as run, pytest.raises(TaskFailedError) as caught:
        run.result(SECONDS)
    first, heading, *rest = str(caught.value).splitlines()
    assert first.startswith(f"run {run.id} failed: worker/0 failed: ")
    assert first.endswith("TwoPartError: this and that")
    assert heading == f"--- the end of {run.log_file('worker/0')}:"
    assert any(line.endswith("TwoPartError: this and that") for line in rest)


def test_a_function_that_is_killed_in_its_second_attempt_is_not_blamed_for_what_it_raised_in_the_first() -> None:
    def fail_in_turn() -> None:
        if gridflow.context().restart == 0:
            raise ValueError("the first attempt")
        os.kill(os.getpid(), signal.SIGKILL)

    with gridflow.launch(fail_in_turn, max_restarts=1) as run, pytest.raises(TaskFailedError) as caught:
        run.result(SECONDS)
    assert str(caught.value).startswith(
        f"run {run.id} failed: worker/0 failed: killed by SIGKILL (by a person, or by the system when memory ran out)\n"
    )


def test_a_function_that_fails_at_first_returns_its_result_after_a_restart() -> None:
    def succeed_later() -> int:
        if gridflow.context().restart < 2:
            raise ValueError("not yet")
        return gridflow.context().restart

    with gridflow.launch(succeed_later, max_restarts=2) as run:
        assert run.result(SECONDS) == 2
        assert run.status().restarts == 2


# Waiting and cancelling


def test_a_wait_has_its_deadline_and_a_block_cancels_what_still_goes_on(home: Path) -> None:
    with gridflow.launch(time.sleep, args=[SECONDS]) as run:
        with pytest.raises(DeadlineError) as caught:
            run.wait(0.2)
        assert str(caught.value) == f"run {run.id} is still running after 0.2 s (wait longer, or cancel it)"
    assert repr(run) == f"Run({run.id!r})"
    status = run.status()
    assert (status.state, status.reason) == (RunState.CANCELLED, "it was cancelled")
    assert status["worker/0"].state is TaskState.STOPPED
    with pytest.raises(RunCancelledError) as cancelled:
        run.result(SECONDS)
    assert str(cancelled.value) == f"run {run.id} cancelled: it was cancelled"
    run.cancel()
    assert Run.find(home, "last").status() == status


def test_a_block_that_is_left_by_an_exception_cancels_the_run_too() -> None:
    with pytest.raises(ZeroDivisionError), gridflow.launch(time.sleep, args=[SECONDS]) as run:
        raise ZeroDivisionError
    assert run.status().state is RunState.CANCELLED


def test_a_run_that_takes_longer_than_it_may_has_timed_out() -> None:
    with gridflow.launch(time.sleep, args=[SECONDS], job={"timeout": 2}) as run:
        with pytest.raises(DeadlineError) as caught:
            run.result(SECONDS)
        assert str(caught.value) == f"run {run.id} timed out: the deadline of 2 s passed while worker/0 still ran"
        assert run.status().state is RunState.TIMED_OUT


# Programs


def test_a_script_runs_with_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv, flush=True)\nprint('größe')\n")
    monkeypatch.chdir(tmp_path)
    with gridflow.launch(Path("train.py"), args=["--epochs", 3]) as run:
        assert run.wait(SECONDS).state is RunState.SUCCEEDED
        assert run.result() is None
        assert "['train.py', '--epochs', '3']\ngröße\n" in "".join(run.logs("worker/0"))
        assert run.tail("worker/0", 2) == "größe\n[gridflow] worker/0 has ended: exit code 0"
        assert run.folder == Path(os.environ["GRIDFLOW_HOME"]) / "runs" / run.id
        with pytest.raises(JobError, match=r"^the job has no task 'worker/1' \(its tasks: worker/0\)$"):
            list(run.logs("worker/1"))


JOB_FILE = '[job]\nprogram = "train.py"\nargs = ["from", "file"]\nmax_restarts = 1\n[job.worker]\ncount = 2\ncpus = 1\n'


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "gridflow.toml"
    path.write_text(JOB_FILE)
    (tmp_path / "train.py").write_text("import sys; print(sys.argv)")
    return path


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What `launch` would have submitted."""
    calls: Calls = []

    def submit(job: Job, on: str, options: dict[str, Any], *, attached: bool) -> None:
        calls.append((job, on, dict(options)))

    monkeypatch.setattr(launcher, "submit", submit)
    return calls


def test_keywords_win_over_a_job_file(job_file: Path, submitted: Calls) -> None:
    gridflow.launch(job_file)
    gridflow.launch(str(job_file), workers=3, args=["x"], max_restarts=0, gpus=1, job={"env": {"A": "1"}})
    plain, changed = (job for job, _, _ in submitted)
    assert plain == Job.from_file(job_file)
    table = {**plain.to_table(), "args": ["x"], "max_restarts": 0, "env": {"A": "1"}}
    assert changed == Job.from_table({**table, "worker": {"count": 3, "cpus": 1, "gpus": 1}})


def test_keywords_win_over_further_keys_of_the_job(submitted: Calls) -> None:
    further = {"args": ["a"], "max_restarts": 2, "worker": {"cpus": 2}, "name": "other", "folder": "/work"}
    gridflow.launch("train.py", workers=3, job=further)
    job, on, _ = submitted[0]
    assert (job.args, job.max_restarts, job.name, job.folder, on) == (("a",), 2, "other", "/work", "local")
    assert job.to_table()["worker"] == {"count": 3, "cpus": 2.0}
    assert further["worker"] == {"cpus": 2}


def test_options_of_the_platform_come_from_the_job_file_with_keywords_on_top(job_file: Path, submitted: Calls) -> None:
    job_file.write_text(f'{JOB_FILE}[platform.local]\nqueue = "slow"\nnice = 1\n')
    gridflow.launch(job_file, queue="fast")
    assert submitted[0][2] == {"queue": "fast", "nice": 1}


def test_a_job_is_launched_as_it_is(submitted: Calls) -> None:
    job = Job.from_table({"program": "train.py", "worker": {"count": 2}})
    gridflow.launch(job)
    assert submitted[0][0] == job
    with pytest.raises(JobError) as caught:
        gridflow.launch(job, workers=3, args=["x"])
    assert str(caught.value) == "worker, args beside a Job (put it into the Job)"


# Mistakes


@pytest.mark.parametrize(
    ("program", "keywords", "message"),
    [
        ("nowhere.py", {"job": {"folder": "/"}}, "program '/nowhere.py' does not exist (check its path)"),
        ("nowhere.toml", {}, "nowhere.toml does not exist (check the path of the job file)"),
        (len, {"workers": 0}, "group 'worker' has count=0 (ask for at least one task, or leave the group out)"),
        (len, {"workers": "2"}, "job.worker.count = '2' is not a whole number (give a whole number)"),
        (len, {"on": "moon"}, "there is no platform 'moon' (valid platforms: local, spark, htcondor)"),
        (len, {"queue": "x"}, "platform.local.queue is not a known key (valid keys: none)"),
        (len, {"args": "abc"}, "args = 'abc' is one string (give a list: one entry per argument)"),
        ("x.py", {"args": "--epochs 3"}, "args = '--epochs 3' is one string (give a list: one entry per argument)"),
        ("x.py", {"args": {"a": 1}}, "args = {'a': 1} for a program (give a list of strings; names are for functions)"),
        (
            len,
            {"args": [threading.Lock()]},
            "<built-in function len> or its arguments cannot be pickled: cannot pickle '_thread.lock' object "
            "(open files, locks and sessions inside the function)",
        ),
    ],
)
def test_a_mistake_is_said_before_anything_is_started(
    home: Path, program: Any, keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        gridflow.launch(program, **keywords)
    assert str(caught.value) == message
    assert list_runs(home) == []


def test_counts_become_the_group_tables_of_a_job_file() -> None:
    assert launcher.group_tables(None, None, False, False, None, False, {}) == {}
    assert launcher.group_tables(2, 1, True, True, 3, True, {"gpus": 1, "cpus": None}) == {
        "chief": {"count": 1, "gpus": 1},
        "worker": {"count": 2, "gpus": 1},
        "ps": {"count": 1},
        "evaluator": {"count": 1},
        "data": {"count": 3},
        "tensorboard": {"count": 1},
    }
    assert launcher.group_tables(None, None, False, False, None, True, {"gpus": 1}) == {
        "worker": {"gpus": 1},
        "tensorboard": {"count": 1},
    }
