"""`gridflow logs`: a task's output, now or as it comes."""

from __future__ import annotations

import json

from tests.cli.records import record_run
from tests.cli.terminal import WAIT_SECONDS, gridflow, started
from tests.contract import PROGRAMS, find, wait_for_output


def test_output_is_printed_as_it_was_written() -> None:
    folder = record_run()
    text = "größer 漢字\r100%\x1b[0m\n" + "ü" * 100_000 + "\nno newline"
    folder.log_file("worker/0").write_text(text, newline="")
    done = gridflow("logs", folder.run, "worker/0")
    assert (done.returncode, done.stderr) == (0, "")
    # What reads the pipe here takes a lone carriage return for the end of a line.
    assert done.stdout == text.replace("\r", "\n")


def test_first_task_of_the_last_run_is_meant_where_nothing_is_named() -> None:
    record_run()
    assert gridflow("logs").stdout == "first line\nlast line\n"


def test_task_that_the_job_does_not_have_is_refused() -> None:
    folder = record_run()
    done = gridflow("logs", folder.run, "ps/0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gridflow: the job has no task 'ps/0' (its tasks: worker/0)\n"


def test_task_that_has_written_nothing_yet_prints_nothing() -> None:
    folder = record_run()
    folder.log_file("worker/0").unlink()
    done = gridflow("logs", folder.run)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_json_is_one_object() -> None:
    folder = record_run()
    done = gridflow("logs", folder.run, "--json")
    assert json.loads(done.stdout) == {"run": folder.run, "task": "worker/0", "log": "first line\nlast line\n"}


def test_follow_prints_what_comes_and_ends_with_the_run() -> None:
    with find(gridflow("submit", PROGRAMS / "linger.py").stdout.strip()) as run:
        wait_for_output(run, "worker/0", "ready")
        with started("logs", "-f", run.id) as follower:
            assert follower.stdout is not None
            assert "worker/0 is 127.0.0.1:" in follower.stdout.readline()
            assert follower.stdout.readline() == "ready\n"
            assert follower.poll() is None
            (run.folder / "checkpoints" / "enough").touch()
            rest, errors = follower.communicate(timeout=WAIT_SECONDS)
    assert (rest, errors) == ("[gridflow] worker/0 has ended: exit code 0\n", "")
    assert follower.returncode == 0
