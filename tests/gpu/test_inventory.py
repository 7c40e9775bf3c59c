from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.gpu.hosts import TWO_OF_8_GB, Host, devices_of

from gridflow.errors import CommandError, PlatformError, SettingsError
from gridflow.gpu import nvidia_smi
from gridflow.gpu.grants import Grant
from gridflow.gpu.inventory import Device, take_inventory
from gridflow.gpu.nvidia_smi import OVERHEAD_MB

A100 = "0, GPU-8a56a4bc-e184, NVIDIA A100-SXM4-40GB, 40960, 8.0\n"
T4 = "1, GPU-77aa01, Tesla T4, 15360, 7.5\n"


# Declared


def test_declared_gpus_are_there_without_looking(host: Host) -> None:
    inventory = take_inventory(host.environ)
    assert inventory.devices == tuple(Device(index, 8192, "", "T4", 7.5) for index in (0, 1))
    assert inventory.source == f"declared in {host.folder / 'gpus.toml'}"
    assert (inventory.is_declared, inventory.usable) == (True, inventory.devices)


def test_a_declaration_is_found_where_runs_are_kept(tmp_path: Path) -> None:
    (tmp_path / "gpus.toml").write_text(TWO_OF_8_GB)
    assert len(take_inventory({"GRIDFLOW_HOME": str(tmp_path)}).devices) == 2


def test_reserved_gpus_are_never_claimed_whether_declared_or_found(host: Host) -> None:
    host.declare('reserved = [1, "GPU-5"]\n' + TWO_OF_8_GB + '[[gpu]]\nuuid = "GPU-55"\nmemory = 1024\n')
    inventory = take_inventory(host.environ)
    assert [device.index for device in inventory.usable] == [0]
    assert [inventory.why_not(device) for device in inventory.devices] == ["", "reserved", "reserved"]
    host.declare("reserved = [0]\n")
    found = take_inventory(host.environ, {"a test": lambda _: tuple(devices_of(10, 20))})
    assert (found.source, [device.index for device in found.usable]) == ("found by a test", [1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[gpu]]\n", 'gpus.toml.gpu[0] has no memory (write memory = "16 GB")'),
        (
            "[[gpu]]\nmemory = 1024\ncount = 0\n",
            "gpus.toml.gpu[0].count = 0 is not possible (give 1, or more without a uuid)",
        ),
        (
            "[[gpu]]\nmemory = 1024\noverhead_mb = 2048\n",
            "gpus.toml.gpu[0].overhead_mb = 2048 is not possible (give 0 or more, below 1024)",
        ),
        (
            "[[gpu]]\nmemori = 1024\n",
            "gpus.toml.gpu[0].memori is not a known key (did you mean 'memory'? "
            "valid keys: capability, count, memory, name, overhead_mb, uuid)",
        ),
        ("gpu = [1]\n", "gpus.toml.gpu holds 1 (write [[gpu]] above each table)"),
        ('order = "lifo"\n', "gpus.toml.order = 'lifo' is not known (one of: fifo, priority, fair)"),
        (
            '[[gpu]]\nuuid = "GPU-1"\nmemory = 1\n[[gpu]]\nuuid = "GPU-1"\nmemory = 1\n',
            "gpus.toml declares the GPU 'GPU-1' twice (give each a uuid of its own)",
        ),
    ],
)
def test_a_wrong_declaration_says_what_is_wrong(host: Host, text: str, message: str) -> None:
    host.declare(text)
    with pytest.raises(SettingsError) as caught:
        take_inventory(host.environ)
    assert str(caught.value) == message


def test_a_declaration_may_choose_the_policies(host: Host) -> None:
    host.declare('order = "fair"\nplacement = "best-fit"\n' + TWO_OF_8_GB)
    inventory = take_inventory(host.environ)
    assert (inventory.order, inventory.placement) == ("fair", "best-fit")
    host.declare('placement = "worst-fit"\n')
    with pytest.raises(SettingsError, match=r"gpus.toml.placement = 'worst-fit' is not known \(one of: .*best-fit"):
        take_inventory(host.environ)


def test_a_declaration_that_is_named_but_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"gpus.toml does not exist \(it must be TOML as in docs/gpus.md"):
        take_inventory({"GRIDFLOW_GPUS": str(tmp_path / "gpus.toml")})


# What is visible


@pytest.mark.parametrize(
    ("visible", "usable"),
    [("0", [0]), ("1,0", [0, 1]), ("", []), ("-1", []), ("GPU-77", [1]), ("GPU-8a56a4bc-e184, 1", [0, 1]), ("7", [])],
)
def test_only_what_cuda_shows_is_claimed(visible: str, usable: list[int], tmp_path: Path) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": visible, "GRIDFLOW_HOME": str(tmp_path)}
    inventory = take_inventory(environ, {"a test": lambda _: nvidia_smi.parse(A100 + T4)})
    assert [device.index for device in inventory.usable] == usable
    hidden = [device.index for device in inventory.devices if inventory.why_not(device) == "not visible"]
    assert sorted([*usable, *hidden]) == [0, 1]


def test_inside_a_task_its_own_grant_is_what_can_be_claimed() -> None:
    grant = Grant([1], [4096.0], ["GPU-77"], [3584], overhead_mb=512, reason="GPU 1", id="abc")
    inventory = take_inventory(grant.environment)
    assert inventory.usable == (Device(1, 3584, "GPU-77", part_of="abc"),)
    assert inventory.usable[0].key == "abc/GPU-77"
    assert inventory.source == "the grant of this task (GPU 1)"


# nvidia-smi


def fake_nvidia_smi(folder: Path, script: str) -> dict[str, str]:
    command = folder / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "GRIDFLOW_HOME": str(folder)}


def test_nvidia_smi_is_asked_for_its_csv(tmp_path: Path) -> None:
    environ = fake_nvidia_smi(tmp_path, f'echo "$@" > {tmp_path}/arguments\nprintf "{A100}{T4}"')
    inventory = take_inventory(environ)
    assert inventory.source == "found by nvidia-smi"
    assert inventory.devices == (
        Device(0, 40960, "GPU-8a56a4bc-e184", "NVIDIA A100-SXM4-40GB", 8.0, OVERHEAD_MB),
        Device(1, 15360, "GPU-77aa01", "Tesla T4", 7.5, OVERHEAD_MB),
    )
    asked = (tmp_path / "arguments").read_text().strip()
    assert asked == "--query-gpu=index,uuid,name,memory.total,compute_cap --format=csv,noheader,nounits"


def test_a_host_without_nvidia_smi_has_no_answer(tmp_path: Path) -> None:
    assert nvidia_smi.detect({"PATH": str(tmp_path)}) is None
    inventory = take_inventory({"PATH": str(tmp_path), "GRIDFLOW_HOME": str(tmp_path)})
    assert (inventory.devices, inventory.source) == ((), "no GPU was found")


def test_nvidia_smi_may_find_none(tmp_path: Path) -> None:
    assert nvidia_smi.detect(fake_nvidia_smi(tmp_path, 'echo "No devices were found"; exit 6')) == ()


def test_nvidia_smi_that_fails_is_shown(tmp_path: Path) -> None:
    environ = fake_nvidia_smi(tmp_path, 'echo "couldn\'t communicate with the NVIDIA driver" >&2; exit 9')
    with pytest.raises(CommandError, match="exit code 9; stderr: couldn't communicate with the NVIDIA driver"):
        nvidia_smi.detect(environ)


def test_nvidia_smi_that_does_not_know_a_gpus_memory_asks_for_a_declaration() -> None:
    with pytest.raises(PlatformError) as caught:
        nvidia_smi.parse("0, GPU-1, NVIDIA GB10, [N/A], 12.1\n")
    assert str(caught.value) == (
        "nvidia-smi printed '0, GPU-1, NVIDIA GB10, [N/A], 12.1' instead of index, uuid, name, memory.total, "
        "compute_cap (declare the GPUs in gpus.toml)"
    )


# NVML


@pytest.fixture(scope="module")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a library that answers like NVIDIA's."""
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).parent / "fake_nvml.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", source], check=True)
    return folder


ASK_NVML = """
import json, os
from gridflow.errors import PlatformError
from gridflow.gpu import nvml
try:
    devices = nvml.detect(os.environ)
    print(json.dumps(devices and [device.to_dict() for device in devices]))
except PlatformError as error:
    print(json.dumps(str(error)))
"""


def test_nvml_is_asked_through_nvidias_own_bindings(host: Host, nvml_library: Path) -> None:
    found = json.loads(host.run(ASK_NVML, variables={"LD_LIBRARY_PATH": str(nvml_library)}))
    assert [Device(**each) for each in found] == [
        Device(0, 40 * 1024, "GPU-70", "A100", 8.0, OVERHEAD_MB),
        Device(1, 39 * 1024, "GPU-71", "A100", 8.6, OVERHEAD_MB),
    ]


def test_a_host_without_nvml_has_no_answer(host: Host, tmp_path: Path) -> None:
    assert json.loads(host.run(ASK_NVML, variables={"LD_LIBRARY_PATH": str(tmp_path)})) is None


def test_nvml_without_its_driver_has_no_answer(host: Host, nvml_library: Path) -> None:
    driver_not_loaded = {"LD_LIBRARY_PATH": str(nvml_library), "FAKE_NVML_INIT": "9"}
    assert json.loads(host.run(ASK_NVML, variables=driver_not_loaded)) is None


def test_nvml_that_fails_is_shown(host: Host, nvml_library: Path) -> None:
    mismatch = {"LD_LIBRARY_PATH": str(nvml_library), "FAKE_NVML_INIT": "18"}
    assert json.loads(host.run(ASK_NVML, variables=mismatch)) == (
        "NVML failed: RM has detected an NVML/RM version mismatch. "
        "(does `nvidia-smi` work? Or declare the GPUs in gpus.toml)"
    )


def test_nvml_comes_before_nvidia_smi(host: Host, nvml_library: Path, tmp_path: Path) -> None:
    environ = {**fake_nvidia_smi(tmp_path, "exit 1"), "LD_LIBRARY_PATH": str(nvml_library), "GRIDFLOW_GPUS": ""}
    code = "import os; from gridflow import gpu; print(gpu.take_inventory(os.environ).source)"
    (tmp_path / "gpus.toml").unlink()
    assert host.run(code, variables=environ) == "found by NVML\n"
