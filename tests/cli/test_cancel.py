"""`gridflow cancel`: nothing of the run is left when it returns."""

from __future__ import annotations

import json

from tests.cli.records import record_run
from tests.cli.terminal import gridflow
from tests.contract import PROGRAMS, check_schema, find, wait_for_output
from tests.platforms import run_processes

from gridflow import processes


def test_run_is_gone_when_the_command_returns() -> None:
    run = find(gridflow("submit", PROGRAMS / "linger.py", "--workers", "2").stdout.strip())
    wait_for_output(run, "worker/1", "ready")
    done = gridflow("cancel", run.id)
    assert processes.find([f"GRIDFLOW_RUN={run.id}"]) == []
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{run.id} cancelled\n", "")
    run_processes.until_none_is_left(run)


def test_ended_run_stays_as_it_is() -> None:
    folder = record_run(state="succeeded")
    events = (folder.path / "events.jsonl").read_bytes()
    done = gridflow("cancel", folder.run)
    assert (done.returncode, done.stdout) == (0, f"{folder.run} succeeded\n")
    assert (folder.path / "events.jsonl").read_bytes() == events


def test_json_is_the_final_status() -> None:
    folder = record_run(state="failed")
    status = json.loads(gridflow("cancel", "--json", folder.run).stdout)
    check_schema(status)
    assert (status["run"], status["state"]) == (folder.run, "failed")
