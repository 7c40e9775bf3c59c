"""Gridflow on the submit machine itself, used by somebody without privileges: nothing is spooled."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from integration.htcondor.pool import Pool
from integration.htcondor.runs import PROGRAMS
from tests.waiting import until

import gridflow

pytestmark = pytest.mark.timeout(600)

#: How somebody inside the pool calls Gridflow.
COMMAND = ("env", "PYTHONPATH=/share/gridflow", "python3", "-m", "gridflow")

WORKFLOW = """\
[job]
program = "fit.py"
args = ["--fail-first", "1"]

[platform.htcondor]
retries = 2

[[platform.htcondor.then]]
program = "evaluate.py"

[[platform.htcondor.then]]
program = "export.py"
args = ["--to", "saved model"]
"""

LACKING = """\
[job]
program = "show.py"
[platform.htcondor]
inputs = ["/home/alice/nothere.dat"]
"""

Gridflow = Callable[..., str]


@pytest.fixture(scope="module")
def alice(pool: Pool) -> Gridflow:
    """Gridflow, installed on the submit machine, with programs in alice's home."""
    package = pool.folder / "share" / "gridflow"
    shutil.copytree(Path(gridflow.__file__).parent, package / "gridflow", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("show.py", "count.py", "fit.py", "evaluate.py", "export.py"):
        shutil.copy(PROGRAMS / name, pool.home)
        (pool.home / name).chmod(0o644)
    (pool.home / "workflow.toml").write_text(WORKFLOW)

    def call(*words: str, check: bool = True) -> str:
        return pool.run(*COMMAND, *words, check=check)

    return call


def status(alice: Gridflow, *words: str) -> dict[str, Any]:
    """Run a job to its end, and return what became of it."""
    found: dict[str, Any] = json.loads(alice("run", *words, "--on", "htcondor", "--quiet", "--json", check=False))
    return found


def wait_for(alice: Gridflow, run: str, state: str) -> dict[str, Any]:
    """Wait until a run is in a state."""

    def look() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(alice("status", run, "--json"))
        return found if found["state"] == state else {}

    return until(look, f"{run} is {state}")


def test_two_workers_find_each_other_in_the_runs_folder(alice: Gridflow) -> None:
    run = status(alice, "show.py", "--workers", "2")
    assert run["state"] == "succeeded"
    for task in ("worker/0", "worker/1"):
        assert '"worker/1"' in alice("logs", run["run"], task)


def test_a_run_is_followed_cancelled_and_listed(alice: Gridflow, pool: Pool) -> None:
    run = alice("submit", "count.py", "--on", "htcondor").strip()
    assert alice("cancel", run) == f"{run} cancelled\n"
    assert run in alice("list")
    assert pool.tool("condor_q", "-all", "-af", "ClusterId") == ""


def test_an_input_that_is_not_there_holds_the_run_until_it_is_there_and_released(alice: Gridflow, pool: Pool) -> None:
    (pool.home / "lacking.toml").write_text(LACKING)
    run = alice("submit", "lacking.toml", "--on", "htcondor").strip()
    found = wait_for(alice, run, "held")
    assert found["reason"].startswith("worker/0 is held: files cannot be brought to the slot: ")
    assert "/home/alice/nothere.dat: (errno 2) No such file or directory" in found["reason"]
    assert "is the path right, and may you read it?" in found["reason"]
    (pool.home / "nothere.dat").touch(0o644)
    pool.run("condor_release", "-all")
    assert wait_for(alice, run, "succeeded")["tasks"][0]["exit_code"] == 0


def test_a_workflow_trains_evaluates_and_exports_and_tries_a_stage_again(alice: Gridflow, pool: Pool) -> None:
    run = status(alice, "workflow.toml")
    assert run["state"] == "succeeded", run
    assert [task["state"] for task in run["tasks"]] == ["succeeded"] * 3
    assert "try 0\n" in alice("logs", run["run"], "worker/0")
    assert "try 1\n" in alice("logs", run["run"], "worker/0")
    assert "score 9\n" in alice("logs", run["run"], "worker/1")
    assert "exported 3 with score 9 --to saved model\n" in alice("logs", run["run"], "worker/2")
    folder = pool.home / ".gridflow" / "runs" / run["run"]
    assert (folder / "checkpoints" / "model").read_text() == "3"


def test_a_workflow_whose_stage_fails_goes_no_further(alice: Gridflow, pool: Pool) -> None:
    options = 'retries = 0\naccess = "tools"'
    (pool.home / "hopeless.toml").write_text(WORKFLOW.replace('"1"', '"9"').replace("retries = 2", options))
    run = status(alice, "hopeless.toml")
    assert (run["state"], run["failed_task"]) == ("failed", "worker/0")
    assert run["reason"] == "worker/0 failed: exit code 4"
    assert "exported" not in alice("logs", run["run"], "worker/2")


def test_a_workflow_that_is_cancelled_leaves_nothing(alice: Gridflow, pool: Pool) -> None:
    (pool.home / "slow.toml").write_text(WORKFLOW.replace("fit.py", "count.py"))
    run = alice("submit", "slow.toml", "--on", "htcondor").strip()
    wait_for(alice, run, "running")
    assert alice("cancel", run) == f"{run} cancelled\n"
    assert json.loads(alice("status", run, "--json"))["state"] == "cancelled"
    until(lambda: pool.tool("condor_q", "-all", "-af", "ClusterId") == "", "the stages have left the queue")
