"""The agent claims GPUs for its task: real runs on a host whose GPUs are declared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.contract import PLACES, wait_for_output
from tests.gpu.hosts import TWO_OF_8_GB, Host, declared_host
from tests.platforms import run_processes
from tests.waiting import until

from gridflow import Run, RunState, TaskState, gpu
from gridflow.gpu.claims import Claim
from gridflow.job import Job
from gridflow.rendezvous.roster import Roster
from gridflow.task.gpus import claim_of
from gridflow.task.identity import TaskIdentity

HERE = PLACES["local"]
SHOW = str(Path(__file__).parent / "programs" / "show_grant.py")


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return declared_host(tmp_path, monkeypatch)


def shown(run: Run, task: str) -> list[Any]:
    """Return what a task printed of its grant: devices, memory, limits, variables."""
    (line,) = [line for line in "".join(run.logs(task)).splitlines() if line.startswith("grant ")]
    found: list[Any] = json.loads(line.removeprefix("grant "))
    return found


def held(run: Run, task: str) -> str:
    """Wait until a task is held, and return why."""
    until(lambda: run.status()[task].state is TaskState.HELD, f"{task} is held")
    return run.status()[task].reason


# What is claimed


def identity_of(task: str, **values: Any) -> TaskIdentity:
    defaults = {"rendezvous": "h:1", "host": "h", "port": None, "restart": 0}
    return TaskIdentity("train-1", task, Path("/runs/train-1"), **{**defaults, **values})


def test_tasks_on_one_host_are_a_gang() -> None:
    table = {
        "program": "x.py",
        "chief": {"gpus": 2},
        "worker": {"count": 3, "gpus": 1, "gpu_memory_mb": 4096},
        "ps": {},
    }
    job = Job.from_table({**table, "start_timeout": "7m"})
    hosts = {"chief/0": "a:1", "worker/0": "a:2", "worker/1": "b:1", "worker/2": "a:3", "ps/0": "a:4"}
    roster = Roster.from_dict(hosts)
    assert claim_of(job, roster, identity_of("worker/2")) == Claim(
        gpus=1,
        memory_per_gpu_mb=4096,
        shared=True,
        name="train-1 worker/2",
        wait_seconds=420,
        gang="train-1",
        gang_size=3,
    )
    assert claim_of(job, roster, identity_of("worker/1")).gang == ""


def test_a_task_that_comes_back_alone_waits_for_nobody() -> None:
    job = Job.from_table({"program": "x.py", "worker": {"count": 2, "gpus": 1}})
    roster = Roster.from_dict({"worker/0": "h:1", "worker/1": "h:2"})
    assert claim_of(job, roster, identity_of("worker/0", port=4000, restart=1)).gang_size == 1


# What a task gets


def test_each_task_has_a_gpu_and_services_see_none(host: Host) -> None:
    run = HERE.start(SHOW, worker={"count": 2, "gpus": 1}, ps={}, env={"CUDA_VISIBLE_DEVICES": "7"})
    assert run.wait(HERE.run_seconds).state is RunState.SUCCEEDED
    workers = [shown(run, task) for task in ("worker/0", "worker/1")]
    assert [devices for devices, *_ in workers] == [[0], [1]]
    assert [variables["CUDA_VISIBLE_DEVICES"] for *_, variables in workers] == ["0", "1"]
    assert {variables["CUDA_DEVICE_ORDER"] for *_, variables in workers} == {"PCI_BUS_ID"}
    assert shown(run, "ps/0") == [[], [], [], {"CUDA_VISIBLE_DEVICES": "-1", "CUDA_DEVICE_ORDER": None}]
    assert "[gridflow] worker/0 has GPU 0 (T4), alone" in "".join(run.logs("worker/0"))
    assert host.ledger.read().holdings == {}


def test_tasks_that_say_how_much_memory_they_need_share_a_gpu() -> None:
    run = HERE.start(SHOW, worker={"count": 2, "gpus": 1, "gpu_memory_mb": 3000})
    assert run.wait(HERE.run_seconds).state is RunState.SUCCEEDED
    for task in ("worker/0", "worker/1"):
        devices, memory, limits, _ = shown(run, task)
        assert (devices, memory, limits) == ([0], [3000.0], [3000])


def test_a_task_that_claims_none_sees_none_unless_the_job_shows_it_some() -> None:
    with gpu.claim(1) as outer, pytest.MonkeyPatch.context() as patch:
        # As where the run is started by a task that has a grant itself.
        for name, value in outer.environment.items():
            patch.setenv(name, value)
        plain, shows = HERE.start(SHOW), HERE.start(SHOW, env={"CUDA_VISIBLE_DEVICES": "0"})
        for run in (plain, shows):
            assert run.wait(HERE.run_seconds).state is RunState.SUCCEEDED
    assert shown(plain, "worker/0")[::3] == [[], {"CUDA_VISIBLE_DEVICES": "-1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}]
    assert shown(shows, "worker/0")[3]["CUDA_VISIBLE_DEVICES"] == "0"


def test_tensorflow_obeys_the_grant_from_its_import_on() -> None:
    run = HERE.start(SHOW, "tensorflow", worker={"gpus": 0.5})
    assert run.wait(HERE.run_seconds).state is RunState.SUCCEEDED
    # Here the GPUs are only declared: TensorFlow does not see them, and that was looked at.
    assert "TensorFlow sees 0 of the 1 GPUs that were granted: 0; they were declared" in "".join(run.logs("worker/0"))


def test_a_program_may_see_to_tensorflows_limits_itself(tmp_path: Path) -> None:
    # A TensorFlow of which nothing can be asked.
    (tmp_path / "tensorflow.py").touch()
    env = {"PYTHONPATH": str(tmp_path)}
    left_alone = HERE.start(SHOW, "tensorflow", worker={"gpus": 1}, env={**env, "GRIDFLOW_GPU_LIMITS": "off"})
    asked = HERE.start(SHOW, "tensorflow", worker={"gpus": 1}, env=env)
    assert left_alone.wait(HERE.run_seconds).state is RunState.SUCCEEDED
    assert "module 'tensorflow' has no attribute 'config'" in asked.wait(HERE.run_seconds).reason


# Waiting


def test_a_task_that_waits_says_so_and_goes_on_when_a_gpu_is_free() -> None:
    first = HERE.start("linger.py", worker={"count": 2, "gpus": 1})
    wait_for_output(first, "worker/0", "ready")
    second = HERE.start(SHOW, worker={"gpus": 2})
    why = held(second, "worker/0")
    assert why.startswith(f"it waits for 2 GPUs: held by {first.id} worker/")
    assert f"[gridflow] worker/0 is held: {why}" in "".join(second.logs("worker/0"))
    (first.folder / "checkpoints" / "enough").touch()
    assert first.wait(HERE.run_seconds).state is RunState.SUCCEEDED
    assert second.wait(HERE.run_seconds).state is RunState.SUCCEEDED
    assert shown(second, "worker/0")[0] == [0, 1]
    assert second.status()["worker/0"].reason == ""


def test_a_wait_ends_with_the_start_timeout() -> None:
    with gpu.claim(2, name="somebody"):
        status = HERE.start(SHOW, worker={"gpus": 1}, start_timeout="2s").wait(HERE.run_seconds)
    assert status.state is RunState.FAILED
    assert status.reason.startswith("worker/0 failed: 1 GPU was not free within 2 s: held by somebody (")


def test_a_run_that_is_cancelled_while_it_waits_leaves_nothing_behind(host: Host) -> None:
    with gpu.claim(1):
        run = HERE.start(SHOW, worker={"count": 2, "gpus": 1})
        held(run, "worker/1")
        run.cancel()
        assert run.status().state is RunState.CANCELLED
        run_processes.until_none_is_left(run)
        assert host.ledger.read().waiting == {}
    assert host.ledger.read().holdings == {}


def test_two_runs_never_hold_half_of_what_they_need_each() -> None:
    runs = [HERE.start(SHOW, worker={"count": 2, "gpus": 1}) for _ in range(2)]
    assert [run.wait(HERE.run_seconds).state for run in runs] == [RunState.SUCCEEDED] * 2
    assert {run.status().restarts for run in runs} == {0}


# What cannot be


@pytest.mark.parametrize(
    ("worker", "reason"),
    [
        ({"gpus": 3}, "worker/0 failed: 3 GPUs can never be had here: 2 of 2 GPUs will do (ask for 2 at most)"),
        (
            {"gpus": 1, "gpu_memory_mb": 9000},
            "worker/0 failed: 1 GPU with 9000 MB, shared can never be had here: GPU 0 (T4) has 8192 MB, not 9000 "
            "(ask for less memory)",
        ),
        (
            {"gpus": 1.5},
            "worker/0 failed: gpus=1.5 is neither whole nor below 1 (ask for 2, or for a fraction of one GPU)",
        ),
    ],
)
def test_a_claim_that_can_never_be_met_fails_at_once(worker: dict[str, Any], reason: str, host: Host) -> None:
    status = HERE.start(SHOW, worker=worker).wait(HERE.run_seconds)
    assert (status.state, status.reason) == (RunState.FAILED, reason)
    assert status["worker/0"].reason == reason.removeprefix("worker/0 failed: ")


def test_tasks_that_never_fit_together_fail_at_once(host: Host) -> None:
    run = HERE.start(SHOW, worker={"count": 3, "gpus": 1})
    status = run.wait(HERE.run_seconds)
    assert status.state is RunState.FAILED
    assert status.reason.endswith(
        f"the 3 claims of '{run.id}' do not fit on the 2 GPUs here together: each asks for 1 GPU, 3 GPUs in all "
        "(use fewer tasks, or let them share GPUs: a fraction, or their memory)"
    )
    assert host.ledger.read().waiting == {}


def test_a_host_without_gpus_says_so_at_once(host: Host) -> None:
    host.declare("reserved = [0, 1]\n" + TWO_OF_8_GB)
    status = HERE.start(SHOW, worker={"gpus": 1}).wait(HERE.run_seconds)
    assert status.reason == (
        "worker/0 failed: 1 GPU can never be had here: no GPU can be claimed "
        "(`gridflow gpus` shows those that there are, and why not)"
    )


# Whatever happens


@pytest.mark.parametrize("who", ["agent", "program"])
def test_gpus_come_back_when_somebody_is_killed(who: str, host: Host) -> None:
    run = HERE.start("linger.py", worker={"gpus": 2})
    wait_for_output(run, "worker/0", "ready")
    getattr(run_processes, who)(run, "worker/0").kill()
    assert run.wait(HERE.run_seconds).state is RunState.FAILED
    with gpu.claim(2) as grant:
        assert grant.devices == [0, 1]


def test_a_restarted_run_claims_anew(host: Host) -> None:
    run = HERE.start("resume.py", "2", worker={"count": 2, "gpus": 1}, max_restarts=1)
    status = run.wait(HERE.run_seconds)
    assert (status.state, status.restarts) == (RunState.SUCCEEDED, 1)
    assert host.ledger.read().holdings == {}


def test_a_ledger_that_cannot_be_written_at_the_end_does_not_fail_the_task(host: Host) -> None:
    run = HERE.start("linger.py", worker={"gpus": 1})
    wait_for_output(run, "worker/0", "ready")
    host.ledger.file.write_text("no ledger")
    (run.folder / "checkpoints" / "enough").touch()
    assert run.wait(HERE.run_seconds).state is RunState.SUCCEEDED
    assert "[gridflow] error: " in "".join(run.logs("worker/0"))
    assert "is not a ledger of GPUs" in "".join(run.logs("worker/0"))
