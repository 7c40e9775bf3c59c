"""`gridflow status`: one run and its tasks."""

from __future__ import annotations

import json

from tests.cli.records import record_run
from tests.cli.terminal import gridflow
from tests.contract import check_schema


def test_run_and_tasks_are_described_in_plain_lines() -> None:
    folder = record_run(state="succeeded")
    done = gridflow("status", folder.run)
    assert (done.returncode, done.stderr) == (0, "")
    head, task, files = done.stdout.splitlines()
    assert head == f"{folder.run}  succeeded"
    assert task.split() == ["worker/0", "succeeded", "0:00", "last", "line"]
    assert files == f"files: {folder.path}"


def test_last_run_is_meant_where_none_is_named() -> None:
    record_run(created=1000.0)
    newest = record_run(created=3000.0)
    record_run(created=2000.0)
    for words in ([], ["last"]):
        assert gridflow("status", *words).stdout.startswith(f"{newest.run}  ")


def test_beginning_of_an_id_is_enough() -> None:
    folder = record_run(name="first")
    record_run(name="second")
    assert gridflow("status", "fir").stdout.startswith(f"{folder.run}  ")


def test_json_is_the_documented_object() -> None:
    folder = record_run()
    status = json.loads(gridflow("status", folder.run, "--json").stdout)
    check_schema(status)
    assert (status["run"], status["state"], status["platform"]) == (folder.run, "succeeded", "local")
    assert status["tasks"] == [
        {
            "task": "worker/0",
            "state": "succeeded",
            "exit_code": 0,
            "signal": None,
            "host": "here",
            "restarts": 0,
            "reason": "",
        }
    ]


def test_events_that_a_crash_left_torn_are_skipped() -> None:
    folder = record_run()
    events = (folder.path / "events.jsonl").read_bytes()
    (folder.path / "events.jsonl").write_bytes(events[:-20])
    done = gridflow("status", folder.run, "--json")
    # The end of the run is what was torn: nobody watches over it any more, and that is then its end.
    status = json.loads(done.stdout)
    assert (done.returncode, status["state"]) == (0, "failed")
    assert status["reason"] == "the run's supervisor process was killed"
    assert status["tasks"][0]["state"] == "succeeded"
    assert json.loads(gridflow("status", folder.run, "--json").stdout) == status


def test_no_run_at_all_is_said() -> None:
    done = gridflow("status")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gridflow: there is no run 'last' in ")
