from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gpu.hosts import devices_of

from gridflow.gpu.claims import Claim
from gridflow.gpu.fit import largest_count, obstacle, options
from gridflow.gpu.inventory import Device

MIXED = [
    Device(0, 16384, "GPU-0", "T4", 7.5),
    Device(1, 40960, "GPU-1", "A100", 8.0),
    Device(2, 40960, "GPU-2", "A100", 8.0),
]


def indices(claim: Claim, count: int | None = None) -> list[list[int]]:
    return [[device.index for device in option.devices] for option in options(claim, MIXED, count or claim.count)]


def test_devices_are_chosen_by_what_they_are() -> None:
    assert indices(Claim()) == [[0, 1, 2]]
    assert indices(Claim(min_capability=8.0)) == [[1, 2]]
    assert indices(Claim(min_device_mb=20000)) == [[1, 2]]
    assert indices(Claim(memory_per_gpu_mb=20000)) == [[1, 2]]
    assert indices(Claim(gpus=2, memory_total_mb=60000)) == [[1, 2]]


def test_devices_can_be_named_by_index_or_uuid() -> None:
    assert indices(Claim(device_ids=(0, "GPU-2"))) == [[0, 2]]
    assert indices(Claim(device_ids=(2,), device_choice="preferred")) == [[2], [0, 1, 2]]


def test_a_fraction_is_taken_of_the_smallest_devices_first() -> None:
    ways = [(option.share_mb, len(option.devices)) for option in options(Claim(gpus=0.1), MIXED, 1)]
    assert ways == [(1639, 1), (4096, 2)]


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        (
            {"gpus": 4},
            "4 GPUs can never be had here: 3 of 3 GPUs will do (ask for 3 at most)",
        ),
        (
            {"gpus": 3, "min_capability": 8.0},
            "3 GPUs can never be had here: 2 of 3 GPUs will do, since GPU 0 (T4) has compute capability 7.5, not 8 "
            "(ask for 2 at most)",
        ),
        (
            {"min_capability": 9.0},
            "1 GPU can never be had here: GPU 0 (T4) has compute capability 7.5, not 9 (lower min_capability)",
        ),
        (
            {"min_device_mb": 80000, "min_capability": 8.0},
            "1 GPU can never be had here: GPU 1 (A100) has 40960 MB, not 80000 (lower min_device_mb)",
        ),
        (
            {"memory_per_gpu_mb": 50000, "shared": True},
            "1 GPU with 50000 MB, shared can never be had here: GPU 0 (T4) has 16384 MB, not 50000 "
            "(ask for less memory)",
        ),
        (
            {"device_ids": (7,)},
            "1 GPU (7) can never be had here: there is no GPU 7 (there are GPU 0 (T4), GPU 1 (A100), GPU 2 (A100))",
        ),
        (
            {"memory_per_gpu_mb": 100, "shared": True, "fixed_mb": 120, "mb_per_sample": 2},
            "1 GPU with 100 MB, shared can never be had here: 100 MB on GPU 0 (T4) are too few: CUDA itself takes "
            "0 MB, and 122 MB are needed (ask for more memory)",
        ),
    ],
    ids=str,
)
def test_what_can_never_be_had_says_why_and_what_would_help(wishes: dict[str, Any], message: str) -> None:
    problem = obstacle(Claim(**wishes), MIXED)
    assert problem is not None
    assert f"{problem.message} ({problem.hint})" == message


def test_a_host_without_gpus_says_so() -> None:
    problem = obstacle(Claim(), [])
    assert problem is not None
    assert problem.message == "1 GPU can never be had here: no GPU can be claimed"


def test_less_than_cuda_itself_takes_is_never_granted() -> None:
    problem = obstacle(Claim(memory_per_gpu_mb=512, shared=True), devices_of(8192, overhead_mb=512))
    assert problem is not None
    assert "512 MB on GPU 0 (T4) are too few: CUDA itself takes 512 MB" in problem.message


def test_fewer_devices_will_do_where_the_claim_says_so() -> None:
    assert largest_count(Claim(gpus=8, min_gpus=2), MIXED) == 3
    assert largest_count(Claim(gpus=8, min_gpus=2, min_capability=8.0), MIXED) == 2
    assert largest_count(Claim(gpus=8, min_gpus=3, min_capability=8.0), MIXED) == 0


@given(
    st.lists(st.integers(1, 100_000), max_size=5),
    st.integers(1, 6) | st.floats(0.01, 0.99),
    st.none() | st.integers(1, 120_000),
    st.booleans(),
)
def test_a_claim_has_an_obstacle_or_a_way(
    memories_mb: list[int], gpus: float, memory_mb: int | None, shared: bool
) -> None:
    if gpus < 1:
        memory_mb = None
    claim = Claim(gpus=gpus, memory_per_gpu_mb=memory_mb, shared=shared and memory_mb is not None)
    devices = devices_of(*memories_mb)
    ways = [option for option in options(claim, devices, claim.count) if len(option.devices) >= claim.count]
    assert (obstacle(claim, devices) is None) == bool(ways)
    for way in ways:
        assert all((way.share_mb or memory_mb or 0) <= device.memory_mb for device in way.devices)
