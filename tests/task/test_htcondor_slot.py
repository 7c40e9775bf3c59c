from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from tests.rendezvous.starter import starting

from gridflow.errors import TaskError
from gridflow.job import Resources
from gridflow.rendezvous.chirp import Chirp
from gridflow.task import htcondor_slot

AD = """\
Name = "slot1_3@execute7.example.org"
MyAddress = "<10.1.7.3:9618?addrs=10.1.7.3-9618&alias=execute7.example.org&noUDP>"
GPUs_GPU_a0223334 = [ Id = "GPU-a0223334"; Capability = 8.0; GlobalMemoryMb = 47661; DeviceName = "A100" ]
GPUs_GPU_b1223334 = [ Id = "GPU-b1223334"; Capability = 8.0; GlobalMemoryMb = 24000; DeviceName = "A100" ]
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / ".machine.ad"
    path.write_text(AD)
    return {htcondor_slot.MACHINE_AD: str(path), "_CONDOR_AssignedGPUs": "GPU-a0223334, GPU-b1223334"}


def test_a_task_knows_its_slot_and_where_others_reach_it(environ: dict[str, str]) -> None:
    assert htcondor_slot.slot_name(environ) == "slot1_3@execute7.example.org"
    assert htcondor_slot.host(environ) == "10.1.7.3"


def test_without_the_slots_description_a_task_goes_by_its_machine(tmp_path: Path) -> None:
    environ = {htcondor_slot.MACHINE_AD: str(tmp_path / "nothing")}
    assert htcondor_slot.machine_ad(environ) == {}
    assert htcondor_slot.slot_name(environ) == socket.gethostname()
    assert htcondor_slot.host(environ) == socket.gethostbyname(socket.gethostname())


def test_lives_are_counted_by_htcondor(tmp_path: Path) -> None:
    assert htcondor_slot.start_count(None) == 1
    for attributes, count in (({"NumJobStarts": "3"}, 3), ({"NumJobStarts": "0"}, 1), ({}, 1)):
        with starting(tmp_path / "submit", attributes) as starter, Chirp.connect(starter.configure(tmp_path)) as chirp:
            assert htcondor_slot.start_count(chirp) == count


def test_spooled_tasks_meet_in_the_folder_of_the_first(tmp_path: Path) -> None:
    attributes = {"Iwd": '"/var/spool/condor/12/1/cluster12.proc1.subproc0"'}
    assert htcondor_slot.board_prefix("board.", None) == "board."
    with starting(tmp_path / "submit", attributes) as starter, Chirp.connect(starter.configure(tmp_path)) as chirp:
        assert htcondor_slot.board_prefix("board.", chirp) == "board."
        assert htcondor_slot.board_prefix("spool:", chirp) == "/var/spool/condor/12/0/cluster12.proc0.subproc0/board."


def test_what_there_is_is_told_and_a_home_that_is_not_there_is_put_right(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    said: list[str] = []
    given = {**environ, "HOME": "/no/such/home", "APPTAINER_CONTAINER": "/images/py.sif"}
    changed = htcondor_slot.describe(given, tmp_path, said.append)
    assert changed == {**given, "HOME": str(tmp_path)}
    assert said[0].startswith(
        f"slot slot1_3@execute7.example.org on {socket.gethostname()}, in container /images/py.sif"
    )
    assert said[1].startswith("GPUs: GPU-a0223334, GPU-b1223334; TensorFlow: 2.")
    assert htcondor_slot.describe({"HOME": os.sep}, tmp_path, said.append) == {"HOME": os.sep}
    assert "in no container" in said[2]
    assert said[3].startswith("GPUs: none; ")


@pytest.mark.parametrize("assigned", ["", "10000"])
def test_a_task_without_gpus_on_a_machine_that_has_some_has_none(assigned: str) -> None:
    assert htcondor_slot.assigned({"_CONDOR_AssignedGPUs": assigned}) == []


def test_the_gpus_that_htcondor_assigned_are_granted_with_all_of_their_memory(environ: dict[str, str]) -> None:
    grant = htcondor_slot.assigned_gpus(Resources(gpus=2), environ).grant
    assert grant.reason == "GPU-a0223334, GPU-b1223334, assigned by HTCondor"
    assert grant.environment["CUDA_VISIBLE_DEVICES"] == "GPU-a0223334,GPU-b1223334"
    assert list(grant.memory) == [47661, 24000]


def test_memory_that_the_job_claims_limits_the_grant(environ: dict[str, str]) -> None:
    grant = htcondor_slot.assigned_gpus(Resources(gpus=2, gpu_memory_mb=2048), environ).grant
    assert '"limits_mb":[2048,2048]' in grant.environment["GRIDFLOW_GRANT"]


def test_a_machine_of_the_old_kind_says_the_memory_of_all_its_gpus_at_once(tmp_path: Path) -> None:
    path = tmp_path / ".machine.ad"
    path.write_text("CUDAGlobalMemoryMb = 11178\n")
    environ = {htcondor_slot.MACHINE_AD: str(path), "_CONDOR_AssignedGPUs": "CUDA0"}
    grant = htcondor_slot.assigned_gpus(Resources(gpus=1), environ).grant
    assert list(grant.memory) == [11178]


def test_fewer_gpus_than_the_task_needs_are_an_error(environ: dict[str, str]) -> None:
    with pytest.raises(TaskError, match=r"is needed, but HTCondor assigned no GPU") as error:
        htcondor_slot.assigned_gpus(Resources(gpus=1), {})
    assert error.value.hint == "does the submit description have request_gpus?"
