"""Free GPUs, as a stand-in for `nvidia-smi` tells of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gridflow.compat.tensorflowonspark import gpu_info, util
from gridflow.errors import PlatformError, UsageError

Host = Callable[..., None]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Make a host with so many GPUs, of which some are busy."""
    monkeypatch.setattr(gpu_info, "_RETRY_SECONDS", 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def make(count: int, *busy: int) -> None:
        listed = "".join(f"echo 'GPU {n}: Tesla K80 (UUID: GPU-{n}-aa)'\n" for n in range(count))
        apps = "".join(f"echo GPU-{n}-aa\n" for n in busy)
        program = tmp_path / "nvidia-smi"
        program.write_text(f'#!/bin/sh\nif [ "$1" = --list-gpus ]; then\n:\n{listed}else\n:\n{apps}fi\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return make


def test_host_without_the_command_has_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not gpu_info.is_gpu_available()


def test_free_gpus_are_given_by_index_or_drawn(host: Host) -> None:
    host(4, 1)
    assert gpu_info.is_gpu_available()
    assert [gpu_info.get_gpus(1, index) for index in range(3)] == ["0", "2", "3"]
    assert gpu_info.get_gpus(2, 0, format=gpu_info.AS_LIST) == ["0", "2"]
    assert set(gpu_info.get_gpus(3, format=gpu_info.AS_LIST)) == {"0", "2", "3"}


def test_more_workers_than_gpus_share_them(host: Host) -> None:
    host(2)
    assert [gpu_info.get_gpus(1, index) for index in range(4)] == ["0", "1", "0", "1"]
    assert gpu_info.get_gpus(2, 1, format=gpu_info.AS_LIST) == ["0", "1"]


def test_busy_gpus_are_an_error_that_says_who_uses_them(host: Host) -> None:
    host(2, 0, 1)
    with pytest.raises(PlatformError, match=r"(?s)there are no 1 free GPUs of 2; they are used by.*GPU-1-aa"):
        gpu_info.get_gpus(1)


def test_unknown_format_is_refused(host: Host) -> None:
    host(1)
    with pytest.raises(UsageError, match="format='tuple' is unknown"):
        gpu_info.get_gpus(1, format="tuple")


def test_workers_of_one_host_see_different_gpus(host: Host) -> None:
    host(2)
    util.single_node_env(num_gpus=1, worker_index=2, nodes=["a:1", "b:1", "b:2"])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
    util.single_node_env(num_gpus=0)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
