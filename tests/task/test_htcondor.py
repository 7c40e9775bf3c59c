from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.rendezvous.starter import Starter, starting
from tests.task.htcondor_slots import Slot, started

from gridflow.errors import DeadlineError
from gridflow.job import Job
from gridflow.rendezvous.chirp import Chirp
from gridflow.task.htcondor import PoolTask

SAVES_ON_SIGTERM = """
import os, signal, sys, time
from pathlib import Path
state = Path(os.environ["GRIDFLOW_CHECKPOINT_DIR"], "state")
print("found", state.read_text() if state.exists() else "nothing", "restart", os.environ["GRIDFLOW_RESTART"])
def save(*_):
    state.write_text("step 7")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while not state.exists():
    time.sleep(0.05)
"""


@pytest.fixture
def submit(tmp_path: Path) -> Path:
    """The submit directory."""
    return tmp_path / "submit"


def job_of(folder: Path, text: str, **table: Any) -> Job:
    (folder / "program.py").write_text(text)
    return Job.from_table({"program": "program.py", "folder": str(folder), **table})


def states(slot: Slot) -> list[tuple[str, str]]:
    return [(event.get("task") or event["event"], event["state"]) for event in slot.reports]


def test_a_task_works_in_its_scratch_folder_and_reports_its_way(tmp_path: Path, submit: Path) -> None:
    job = job_of(tmp_path, "import os, sys; print(sys.argv[1:], os.getcwd())", args=["two words", "{task_index}"])
    with started(submit, job) as slot:
        assert slot.end() == 0
    assert f"['two words', '0'] {slot.scratch}/work\n" in slot.output
    own = [("worker/0", "starting"), ("worker/0", "running"), ("worker/0", "succeeded")]
    assert states(slot) == [*own, ("run", "succeeded")]
    # The log went along as it grew.
    assert slot.output.startswith((submit / "logs" / "worker-0.log").read_text())


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ("import sys; sys.exit(3)", 3, "exit code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -11, "killed by SIGSEGV"),
        ("raise ValueError('no such table')", 1, "ValueError: no such table"),
    ],
)
def test_a_task_ends_as_its_program_did(tmp_path: Path, submit: Path, text: str, code: int, reason: str) -> None:
    with started(submit, job_of(tmp_path, text)) as slot:
        assert slot.end() == code
    verdict = slot.reports[-1]
    assert (verdict["event"], verdict["state"], verdict["task"]) == ("run", "failed", "worker/0")
    assert verdict["reason"] == f"worker/0 failed: {reason}"


def test_a_program_that_fails_starts_again_in_the_same_slot(tmp_path: Path, submit: Path) -> None:
    text = (
        "import os, sys; print('life', os.environ['GRIDFLOW_RESTART']); sys.exit(os.environ['GRIDFLOW_RESTART'] < '2')"
    )
    with started(submit, job_of(tmp_path, text, max_restarts=2)) as slot:
        assert slot.end() == 0
    assert [line for line in slot.output.splitlines() if line.startswith("life")] == ["life 0", "life 1", "life 2"]
    assert slot.reports[-1]["state"] == "succeeded"


def test_restarts_are_counted_over_all_slots_of_a_task(tmp_path: Path, submit: Path) -> None:
    text = "import os, signal, time; print('life', os.environ['GRIDFLOW_RESTART'], flush=True)\n"
    job = job_of(tmp_path, text + "if os.environ['GRIDFLOW_RESTART'] == '1': time.sleep(60)\nexit(1)", max_restarts=1)
    with started(submit, job) as slot:
        slot.wait_for("life 1")
        slot.vacate()
        assert slot.end() == 85
    with started(submit, job, start=2) as slot:
        assert slot.end() == 1
    lives = [line for line in slot.output.splitlines() if line.startswith("life")]
    # Its last life began with the eviction, which cost none of its restarts, and gave it none.
    assert lives == ["life 0", "life 1", "life 2"]


def test_a_slot_that_is_wanted_back_lets_the_program_save_and_the_next_one_goes_on(
    tmp_path: Path, submit: Path
) -> None:
    job = job_of(tmp_path, SAVES_ON_SIGTERM)
    with started(submit, job) as slot:
        slot.wait_for("ready")
        slot.vacate()
        assert slot.end() == 85
    assert "found nothing restart 0" in slot.output
    assert "[gridflow] worker/0 loses its slot" in slot.output
    assert states(slot) == [("worker/0", "starting"), ("worker/0", "running")]
    with started(submit, job, start=2) as slot:
        assert slot.end() == 0
    assert "found step 7 restart 1" in slot.output
    assert states(slot)[-1] == ("run", "succeeded")


def test_a_program_that_has_saved_a_checkpoint_is_handed_to_htcondor_to_go_on(tmp_path: Path, submit: Path) -> None:
    with started(submit, job_of(tmp_path, "import sys; sys.exit(85)")) as slot:
        assert slot.end() == 85
    assert "[gridflow] worker/0 has saved a checkpoint" in slot.output
    assert ("run", "failed") not in states(slot)


def test_two_tasks_find_each_other_through_the_submit_directory(tmp_path: Path, submit: Path) -> None:
    text = "import json, os; print('roster', sorted(json.loads(os.environ['GRIDFLOW_ROSTER'])))"
    job = job_of(tmp_path, text, worker={"count": 2})
    with started(submit, job, "worker/0") as leader, started(submit, job, "worker/1") as follower:
        assert (follower.end(), leader.end()) == (0, 0)
    for slot in (leader, follower):
        assert "roster ['worker/0', 'worker/1']" in slot.output
    assert states(leader)[-1] == ("run", "succeeded")
    assert {task for task, _ in states(follower)} == {"worker/1"}


def test_a_task_whose_leader_never_comes_gives_its_slot_back(
    tmp_path: Path, submit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gridflow.task.htcondor.SIGN_SECONDS", 0.05)
    job = job_of(tmp_path, "", worker={"count": 2}, start_timeout="0.1s")
    with starting(submit) as starter, Chirp.connect(in_slot(tmp_path, job, starter)) as chirp:
        task = PoolTask(in_slot(tmp_path, job, starter), chirp)
        with pytest.raises(DeadlineError) as error:
            task.run()
    assert str(error.value) == (
        "worker/1 waited in vain for orders of worker/0, of which nothing was heard for 0.2 s "
        "(has HTCondor a slot for it? start_timeout may be longer)"
    )
    assert '{"type": "gone"}' in (submit / "board.worker-1.jsonl").read_text()


def in_slot(folder: Path, job: Job, starter: Starter) -> dict[str, str]:
    """Return the environment of worker/1 in a slot."""
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs" / "worker-1.log").touch()
    (folder / "job.json").write_text(json.dumps(job.to_table()))
    identity = {"GRIDFLOW_RUN": "run-1", "GRIDFLOW_TASK": "worker/1", "GRIDFLOW_RUN_DIR": str(folder)}
    return {**identity, "GRIDFLOW_BOARD": "board.", "GRIDFLOW_HOST": "127.0.0.1", **starter.configure(folder)}


def test_tasks_without_files_of_the_submit_machine_say_what_they_lack(tmp_path: Path, submit: Path) -> None:
    job = job_of(tmp_path, "", worker={"count": 2})
    with started(submit, job, _CONDOR_CHIRP_CONFIG="nowhere") as slot:
        assert slot.end() != 0
    assert "no live log and no reports: nowhere, which says how to reach HTCondor, cannot be read" in slot.output
    assert "the tasks of this run cannot find each other: HTCondor gives this job no Chirp" in slot.output
    assert "use one task with several GPUs" in slot.output


def test_a_task_of_a_sweep_has_its_own_arguments_and_its_result_is_kept(tmp_path: Path, submit: Path) -> None:
    job = job_of(tmp_path, "import json, sys; print(json.dumps({'args': sys.argv[1:]}))", args=["--all"])
    variants = [{"program": "", "args": [f"--lr={rate}"]} for rate in (0.1, 0.2)]
    with started(submit, job, "worker/1", variants=variants) as slot:
        assert slot.end() == 0
    assert (slot.scratch / "results" / "worker-1.json").read_text() == '{"args": ["--all", "--lr=0.2"]}'
    # It is one of many, so how the run ended is not for it to say.
    assert ("run", "succeeded") not in states(slot)
    assert states(slot)[-1] == ("worker/1", "succeeded")


def test_a_folder_that_a_program_removes_is_there_when_htcondor_takes_it(tmp_path: Path, submit: Path) -> None:
    job = job_of(tmp_path, "import os, shutil; shutil.rmtree(os.environ['GRIDFLOW_CHECKPOINT_DIR'])")
    with started(submit, job) as slot:
        assert slot.end() == 0
    assert (slot.scratch / "checkpoints").is_dir()


def test_what_a_program_was_to_make_is_put_where_htcondor_takes_it_from(tmp_path: Path, submit: Path) -> None:
    job = job_of(tmp_path, "open('weights', 'w').write('1')")
    submit.with_name("submit-worker-0").mkdir()
    (submit.with_name("submit-worker-0") / "outputs.json").write_text('["weights", "nothing"]')
    with started(submit, job) as slot:
        assert slot.end() == 0
    assert (slot.scratch / "outputs" / "weights").read_text() == "1"
    assert "the program made no 'nothing', which was to be brought back" in slot.output
