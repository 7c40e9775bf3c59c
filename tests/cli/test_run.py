"""`gridflow run`: exit codes, what is printed, and what is left when it is interrupted or killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.terminal import COMMAND, WAIT_SECONDS, gridflow, started
from tests.contract import PROGRAMS, check_schema, find, wait_for_output
from tests.platforms import run_processes
from tests.waiting import until

from gridflow import Run, RunState, settings
from gridflow.store import find_run, list_runs

HOME = "gridflow-home"
#: Far above what the command needs, far below the logs of these tests.
MEMORY_MB = 120


def last_run() -> Run:
    home = settings.home(os.environ)
    until(lambda: list_runs(home), "there is a run")
    return find(find_run(home, "last").run)


def status_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(done.stdout)
    check_schema(status)
    return status


# Exit codes and what is printed


def test_success_is_exit_code_0_and_plain_lines_in_a_pipe() -> None:
    done = gridflow("run", PROGRAMS / "hello.py", "--workers", "2", "--", "--epochs", "3")
    run = last_run()
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[0] == f"run {run.id}: worker/0, worker/1"
    assert "worker/0 | hello from worker/0 --epochs 3" in lines
    assert {"worker/0 succeeded", "worker/1 succeeded"} <= set(lines)
    assert lines[-1].startswith("succeeded after ")
    assert lines[-1].endswith(f" s; files: {run.folder}")
    assert "\x1b" not in done.stdout


def test_failure_is_exit_code_1_and_names_the_task_with_its_last_words() -> None:
    done = gridflow("run", PROGRAMS / "fail.py", "--workers", "2", "--", "worker/1", "exit", "3")
    run = last_run()
    assert done.returncode == 1
    assert done.stderr == (
        f"gridflow: run {run.id} failed: worker/1 failed: exit code 3\n"
        f"--- the end of {run.log_file('worker/1')}:\n" + run.tail("worker/1", 20) + "\n"
    )
    assert "the last words of worker/1\n" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no program is given (for example: gridflow run train.py --workers 2)"),
        (["gone.py"], "program '{cwd}/gone.py' does not exist ("),
        (["-m", "gone.train"], "there is no module 'gone' (it is looked for in {cwd}, on PYTHONPATH and among"),
        (["-m", "json.gone"], "there is no module 'json.gone' ("),
        (["plain.txt"], "program '{cwd}/plain.txt' is not executable (`chmod +x` it"),
        (["gone.toml"], "gone.toml does not exist (check the path of the job file)"),
        (["train.py", "--workers", "0"], "group 'worker' has count=0 (ask for at least one task"),
        (["train.py", "--ps", "1"], "the job has ps tasks but no workers ("),
        (["train.py", "--on", "mars"], "there is no platform 'mars' (valid platforms: local"),
        (["job.sub"], "job.sub is no program, but a request to a platform (use --on htcondor)"),
        (["job.sub", "--on", "spark"], "job.sub is no program, but a request to a platform (use --on htcondor)"),
        (["train.py", "--env", "SEED"], "--env 'SEED' is not NAME=VALUE (for example --env SEED=1)"),
        (["train.py", "--memory", "12 GBB"], "job.worker.memory = '12 GBB' is not an amount of memory ("),
    ],
)
def test_mistake_is_exit_code_2_one_line_and_no_run(words: list[str], message: str, tmp_path: Path) -> None:
    for name in ("train.py", "plain.txt", "job.sub"):
        (tmp_path / name).touch()
    done = gridflow("run", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"gridflow: {message.format(cwd=tmp_path)}")
    assert not (tmp_path / HOME).exists()


@pytest.mark.parametrize("home", ["a file", "a file as runs", "a broken link as runs", "no permission"])
def test_home_that_cannot_keep_runs_is_exit_code_3_and_one_line(home: str, tmp_path: Path) -> None:
    path = tmp_path / HOME
    if home == "a file":
        path.touch()
    elif home == "no permission":
        path = Path("/proc/self/no-such-folder")  # not even root can make it
    else:
        path.mkdir()
        (path / "runs").touch() if home == "a file as runs" else (path / "runs").symlink_to(tmp_path / "gone" / "x")
    done = gridflow("run", PROGRAMS / "hello.py", variables={"GRIDFLOW_HOME": str(path)})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert done.stderr.startswith(f"gridflow: no run can be kept in {path}: [Errno ")
    assert done.stderr.endswith("(set GRIDFLOW_HOME to a folder that you can write to)\n")


def test_deadline_is_exit_code_4() -> None:
    done = gridflow("run", PROGRAMS / "linger.py", "--timeout", "2s", "--quiet")
    run = last_run()
    assert (done.returncode, done.stdout) == (4, "")
    reason = "the deadline of 2 s passed while worker/0 still ran"
    assert done.stderr == f"gridflow: run {run.id} timed out: {reason}\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_is_exit_code_130_and_nothing_is_left(number: signal.Signals) -> None:
    with started("run", PROGRAMS / "linger.py", "--workers", "2", "--json") as launcher:
        run = last_run()
        wait_for_output(run, "worker/0", "ready")
        launcher.send_signal(number)
        stdout, stderr = launcher.communicate(timeout=WAIT_SECONDS)
    assert launcher.returncode == 130
    assert stderr == f"gridflow: stopping …\ngridflow: run {run.id} cancelled: it was cancelled\n"
    status = json.loads(stdout)
    check_schema(status)
    assert status["state"] == "cancelled"
    assert {task["state"] for task in status["tasks"]} == {"stopped"}
    run_processes.until_none_is_left(run)


def test_hangup_that_the_caller_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    try:
        with started("run", PROGRAMS / "linger.py") as launcher:
            run = last_run()
            wait_for_output(run, "worker/0", "ready")
            launcher.send_signal(signal.SIGHUP)
            run.cancel()
            _, stderr = launcher.communicate(timeout=WAIT_SECONDS)
        # A hangup that was heeded would have said that it stops the run.
        assert stderr == f"gridflow: run {run.id} cancelled: it was cancelled\n"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_second_interrupt_leaves_at_once_and_the_run_is_stopped_all_the_same() -> None:
    with started("run", PROGRAMS / "linger.py", "--stop-timeout", "2s", "--", "--stubborn") as launcher:
        run = last_run()
        wait_for_output(run, "worker/0", "ready")
        launcher.send_signal(signal.SIGINT)
        assert launcher.stderr is not None
        assert launcher.stderr.readline() == "gridflow: stopping …\n"
        launcher.send_signal(signal.SIGINT)
        _, stderr = launcher.communicate(timeout=WAIT_SECONDS)
    assert (launcher.returncode, stderr.strip()) == (130, "")
    assert run.wait(WAIT_SECONDS).state is RunState.CANCELLED
    run_processes.until_none_is_left(run)


def test_launcher_that_is_killed_takes_its_tasks_with_it() -> None:
    with started("run", PROGRAMS / "linger.py", "--workers", "2") as launcher:
        run = last_run()
        wait_for_output(run, "worker/1", "ready")
        launcher.kill()
    run_processes.until_none_is_left(run)
    status = run.status()
    assert (status.state, status.reason) == (RunState.CANCELLED, "the process that launched it is gone")


def test_supervisor_that_is_killed_is_exit_code_1() -> None:
    with started("run", PROGRAMS / "linger.py", "--quiet") as launcher:
        run = last_run()
        wait_for_output(run, "worker/0", "ready")
        run_processes.supervisor(run).kill()
        _, stderr = launcher.communicate(timeout=WAIT_SECONDS)
    message = f"gridflow: run {run.id} failed: the run's supervisor process was killed\n"
    assert (launcher.returncode, stderr) == (1, message)
    run_processes.until_none_is_left(run)


def test_run_that_somebody_else_cancels_is_exit_code_130() -> None:
    with started("run", PROGRAMS / "linger.py", "--quiet") as launcher:
        run = last_run()
        wait_for_output(run, "worker/0", "ready")
        assert gridflow("cancel", run.id).returncode == 0
        stdout, stderr = launcher.communicate(timeout=WAIT_SECONDS)
    assert (launcher.returncode, stdout) == (130, "")
    assert stderr == f"gridflow: run {run.id} cancelled: it was cancelled\n"


# JSON


def test_json_is_one_object_and_nothing_else() -> None:
    done = gridflow("run", "--json", PROGRAMS / "hello.py", "--workers", "2")
    status = status_of(done)
    assert (done.returncode, done.stderr) == (0, "")
    assert (status["state"], status["platform"], status["failed_task"]) == ("succeeded", "local", None)
    assert [task["task"] for task in status["tasks"]] == ["worker/0", "worker/1"]


def test_json_of_a_failure_has_its_words_on_the_side() -> None:
    done = gridflow("run", "--json", PROGRAMS / "fail.py", "--", "worker/0", "signal", "SIGABRT")
    status = status_of(done)
    assert (done.returncode, status["state"], status["failed_task"]) == (1, "failed", "worker/0")
    (task,) = status["tasks"]
    assert (task["exit_code"], task["signal"], task["reason"]) == (None, "SIGABRT", "killed by SIGABRT")
    assert f"gridflow: run {status['run']} failed: worker/0 failed: killed by SIGABRT\n" in done.stderr


# Programs and job files


def test_job_file_stands_in_place_of_the_program_and_flags_win(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys\nprint('seed', os.environ['SEED'], os.environ['SHARD'], 'of', *sys.argv[1:], os.getcwd())\n"
    )
    (tmp_path / "job.toml").write_text(
        '[job]\nprogram = "train.py"\nname = "from-file"\nargs = ["--epochs", 3]\n'
        'env = { SEED = "1", SHARD = "7" }\n[job.worker]\ncount = 3\n[platform.local]\n'
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = gridflow("run", "../job.toml", "--workers", "2", "--env", "SEED=2", "--", "--epochs", "5", cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("run from-file-")
    assert f"worker/0 | seed 2 7 of --epochs 5 {tmp_path}\n" in done.stdout
    assert "worker/1 succeeded" in done.stdout
    assert "worker/2" not in done.stdout


def test_mistake_in_a_job_file_names_key_and_remedy(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('[job]\nprogram = "train.py"\n[job.worker]\ncuont = 3\n')
    done = gridflow("run", "job.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "gridflow: job.worker.cuont is not a known key "
        "(did you mean 'count'? valid keys: count, cpus, gpu_memory_mb, gpus, memory)\n"
    )


def test_module_runs_as_python_would_run_it(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "rows.py").write_text("COUNT = 3\n")
    (package / "train.py").write_text(
        "import sys\nfrom package.rows import COUNT\nif __name__ == '__main__':\n    print(COUNT, *sys.argv[1:])\n"
    )
    done = gridflow("run", "-m", "package.train", "--", "--epochs", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("run train-")
    assert "worker/0 | 3 --epochs 2\n" in done.stdout


def test_any_executable_is_a_program(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text('#!/bin/sh\necho "$GRIDFLOW_TASK: $*"\nexit 4\n')
    script.chmod(0o755)
    done = gridflow("run", "./train.sh", "--", "a b", "c", cwd=tmp_path)
    assert done.returncode == 1
    assert "worker/0 | worker/0: a b c\n" in done.stdout
    assert "worker/0 failed: exit code 4\n" in done.stderr


# Output


@pytest.mark.parametrize("words", [["--json", "--", "200", "lines"], ["--", "200", "bar"]])
def test_huge_log_does_not_fill_the_memory(words: list[str]) -> None:
    # A child's peak begins at its parent's size, so a small process stands between it and these tests.
    between = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:]); "
        "print('peak', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(done.returncode)"
    )
    command = [sys.executable, "-c", between, *COMMAND, "run", str(PROGRAMS / "flood.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    shown, _, peak_kb = done.stdout.rpartition("peak ")
    assert done.returncode == 1
    assert "failed" in shown
    assert done.stderr.endswith("the end\n[gridflow] worker/0 has ended: exit code 3\n")
    assert int(peak_kb) < MEMORY_MB * 1024


def test_output_of_any_kind_becomes_plain_lines() -> None:
    done = gridflow("run", PROGRAMS / "odd_output.py")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "worker/0 | größer als 漢字 ✓ :fire: [bold]not markup[/]" in lines
    assert "worker/0 | not \ufffd\ufffd text" in lines
    assert "worker/0 | red plain " in lines
    assert "worker/0 | 100% done" in lines
    assert any(line.startswith("worker/0 | ") and line.endswith("yyy tail") for line in lines)
    assert not set("\x1b\x07\r") & set(done.stdout)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_output_that_the_terminal_cannot_show_does_not_end_the_run(encoding: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    command = [*COMMAND, "run", str(PROGRAMS / "odd_output.py")]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=WAIT_SECONDS, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"not markup" in done.stdout
    assert b"succeeded after" in done.stdout


def test_interpreter_of_a_task_is_the_one_of_the_launcher(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(sys.executable)\n")
    done = gridflow("run", "train.py", cwd=tmp_path)
    assert f"worker/0 | {sys.executable}\n" in done.stdout
