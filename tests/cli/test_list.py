"""`gridflow list`: all runs, however some of them look."""

from __future__ import annotations

import json
import time

import pytest
from tests.cli.records import record_run
from tests.cli.terminal import gridflow


def test_runs_are_listed_the_newest_last() -> None:
    runs = [record_run(created=created, state=state) for created, state in ((2e9, "failed"), (1e9, "succeeded"))]
    done = gridflow("list")
    assert (done.returncode, done.stderr) == (0, "")
    older = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1e9))
    newer = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(2e9))
    assert done.stdout.splitlines() == [
        f"{older}  succeeded  local      {runs[1].run}",
        f"{newer}  failed     local      {runs[0].run}",
    ]


def test_json_is_a_list_with_the_documented_keys() -> None:
    folder = record_run(created=1e9)
    assert json.loads(gridflow("list", "--json").stdout) == [
        {"run": folder.run, "state": "succeeded", "platform": "local", "created": 1e9}
    ]


def test_no_runs_are_an_empty_list_or_a_hint() -> None:
    assert json.loads(gridflow("list", "--json").stdout) == []
    done = gridflow("list")
    assert (done.returncode, done.stdout.startswith("no runs yet in ")) == (0, True)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.json", b'{"run": "torn'),
        ("run.json", b""),
        ("run.json", b"[]"),
        ("job.json", None),
        ("job.json", b"{}"),
        ("job.json", b"\xff\xfe"),
    ],
)
def test_damaged_run_does_not_hide_the_others(name: str, content: bytes | None) -> None:
    good, damaged = record_run(name="good"), record_run(name="damaged")
    (damaged.path / name).unlink()
    if content is not None:
        (damaged.path / name).write_bytes(content)
    done = gridflow("list", "--json")
    assert done.returncode == 0
    assert [run["run"] for run in json.loads(done.stdout)] == [good.run]
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("gridflow: ")
    assert damaged.run in done.stderr


def test_folder_that_is_not_a_run_yet_is_left_out() -> None:
    good, unfinished = record_run(name="good"), record_run(name="unfinished")
    (unfinished.path / "run.json").unlink()
    done = gridflow("list", "--json")
    assert [run["run"] for run in json.loads(done.stdout)] == [good.run]
    assert (done.returncode, done.stderr) == (0, "")


def test_torn_events_do_not_hide_a_run() -> None:
    folder = record_run()
    with (folder.path / "events.jsonl").open("ab") as events:
        events.write(b'\xff\xfe{"time": 1, "eve')
    done = gridflow("list", "--json")
    assert [run["state"] for run in json.loads(done.stdout)] == ["succeeded"]
    assert (done.returncode, done.stderr) == (0, "")
