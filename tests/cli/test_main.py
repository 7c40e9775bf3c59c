"""Finding the verb, and leaving with a line and an exit code."""

from __future__ import annotations

import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
from tests.cli.terminal import COMMAND, WAIT_SECONDS, gridflow
from tests.contract import PLACES, PROGRAMS

from gridflow.cli.main import VERBS
from gridflow.store import create_run


def test_version_is_the_packages() -> None:
    done = gridflow("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"gridflow {metadata.version('gridflow')}\n", "")


def test_help_lists_every_verb() -> None:
    done = gridflow("--help")
    assert done.returncode == 0
    for verb, text in VERBS.items():
        assert re.search(rf"^  {verb} +{re.escape(text)}$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_that_begins_as_the_list_says(verb: str) -> None:
    done = gridflow(verb, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: gridflow {verb} [OPTIONS]")
    # Those of `tfrecord` stand with its own verbs.
    assert verb == "tfrecord" or "--json" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["fly"], "No such command 'fly'. (see `gridflow --help`)"),
        (["run", "train.py", "--zzz", "3"], "No such option '--zzz'. (see `gridflow run --help`)"),
        (
            ["run", "--workers", "two", "train.py"],
            "Invalid value for '--workers': 'two' is not a valid integer. (see `gridflow run --help`)",
        ),
        (["cancel"], "Missing argument 'RUN'. (see `gridflow cancel --help`)"),
        (["tfrecord", "count"], "Missing argument 'PATHS...'. (see `gridflow tfrecord count --help`)"),
    ],
)
def test_wrong_usage_is_one_line_with_a_remedy(words: list[str], says: str) -> None:
    done = gridflow(*words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"gridflow: {says}\n")


@pytest.mark.parametrize("words", [["status"], ["logs"], ["cancel"], ["status", "--json"]])
def test_unknown_run_is_one_line_and_exit_code_2(words: list[str], tmp_path: Path) -> None:
    done = gridflow(*words, "nobody-20260101")
    home = tmp_path / "gridflow-home" / "runs"
    message = f"gridflow: there is no run 'nobody-20260101' in {home} (`gridflow list` shows the runs)\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


def test_beginning_of_an_id_that_fits_several_runs_is_refused(tmp_path: Path) -> None:
    runs = [
        create_run(tmp_path / "gridflow-home", PLACES["local"].job("hello.py"), "local", {}, now=1000.0 + n).run
        for n in range(2)
    ]
    done = gridflow("status", "hello")
    message = f"gridflow: 'hello' fits 2 runs (one of: {', '.join(runs)})\n"
    assert (done.returncode, done.stderr) == (2, message)


@pytest.mark.parametrize("name", ["run.json", "job.json"])
def test_damaged_run_is_one_line(name: str, tmp_path: Path) -> None:
    folder = create_run(tmp_path / "gridflow-home", PLACES["local"].job("hello.py"), "local", {}, now=1000.0)
    (folder.path / name).write_text('{"torn": ')
    done = gridflow("status", folder.run)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"gridflow: run {folder.run} is damaged: {name} cannot be read: ")
    assert done.stderr.endswith(f"(remove {folder.path})\n")


@pytest.mark.parametrize("words", [["run"], ["logs"]])
def test_reader_that_leaves_early_causes_no_traceback(words: list[str], tmp_path: Path) -> None:
    if words == ["logs"]:
        folder = create_run(tmp_path / "gridflow-home", PLACES["local"].job("hello.py"), "local", {}, now=1000.0)
        folder.log_file("worker/0").write_text("a line\n" * 1_000_000)
    else:
        words = ["run", str(PROGRAMS / "flood.py"), "--", "20", "lines"]
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(WAIT_SECONDS) == 141
