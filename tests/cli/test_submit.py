"""`gridflow submit`: a run that goes on by itself."""

from __future__ import annotations

import json

from tests.cli.terminal import WAIT_SECONDS, gridflow
from tests.contract import PROGRAMS, check_schema, find, wait_for_output

from gridflow import RunState


def test_id_is_all_that_is_printed_and_the_run_goes_on_to_its_end() -> None:
    done = gridflow("submit", PROGRAMS / "linger.py", "--workers", "2")
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    with find(done.stdout.strip()) as run:
        wait_for_output(run, "worker/1", "ready")
        (run.folder / "checkpoints" / "enough").touch()
        assert run.wait(WAIT_SECONDS).state is RunState.SUCCEEDED


def test_json_is_the_status_of_a_run_that_goes_on() -> None:
    done = gridflow("submit", "--json", PROGRAMS / "linger.py")
    status = json.loads(done.stdout)
    check_schema(status)
    with find(status["run"]):
        assert (done.returncode, status["state"], status["ended"]) == (0, "running", None)


def test_mistake_is_exit_code_2() -> None:
    done = gridflow("submit", "gone.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert "does not exist" in done.stderr
