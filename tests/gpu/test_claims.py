from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridflow import gpu
from gridflow.errors import JobError
from gridflow.gpu.claims import Claim
from gridflow.job import Resources


def test_the_public_names_are_there_and_load_nothing_before_they_are_used() -> None:
    assert [name for name in gpu.__all__ if not hasattr(gpu, name)] == []
    with pytest.raises(AttributeError, match=r"module 'gridflow.gpu' has no attribute 'lease'"):
        _ = gpu.lease
    code = "import sys, gridflow.gpu; print(sorted(name for name in sys.modules if name.startswith('gridflow')))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded == "['gridflow', 'gridflow.gpu', 'gridflow.late']\n"


def test_a_claim_that_says_nothing_is_one_gpu_alone() -> None:
    claim = gpu.Claim()
    assert (claim.count, claim.least_count, claim.is_shared, claim.memory_mb(1)) == (1, 1, False, None)


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"gpus": 0}, "gpus=0 claims nothing (make no claim where no GPU is needed)"),
        ({"gpus": -1}, "gpus=-1 is not possible (give a whole number, or a fraction of one GPU)"),
        ({"gpus": math.nan}, "gpus=nan is not possible (give a whole number, or a fraction of one GPU)"),
        ({"gpus": "all"}, "gpus='all' is not possible (give a whole number, or a fraction of one GPU)"),
        ({"gpus": 1.5}, "gpus=1.5 is neither whole nor below 1 (ask for 2, or for a fraction of one GPU)"),
        ({"gpus": 1, "device_ids": (0,)}, "gpus=1 and device_ids=[0] are both given (say how many GPUs, or which)"),
        ({"device_ids": (0, 0)}, "device_ids=[0, 0] holds a GPU twice (name each GPU once)"),
        (
            {"device_ids": (0,), "device_choice": "maybe"},
            "device_choice='maybe' is not possible (give required or preferred)",
        ),
        (
            {"memory_total_mb": 10, "memory_per_gpu_mb": 5},
            "memory_total_mb=10 and memory_per_gpu_mb=5 are both given (say the memory once, in total or on each GPU)",
        ),
        (
            {"gpus": 0.5, "memory_per_gpu_mb": 5},
            "gpus=0.5 and memory_per_gpu_mb=5 both say how much of a GPU "
            "(give the fraction alone, or the memory with gpus=1)",
        ),
        (
            {"shared": True},
            "shared=True without saying how much of a GPU (give memory_per_gpu_mb, or a fraction such as gpus=0.25)",
        ),
        (
            {"memory_per_gpu_mb": 0},
            "memory_per_gpu_mb=0 is not possible (give a positive number, or leave it out)",
        ),
        ({"weight": "much"}, "weight='much' is not possible (give a positive number, or leave it out)"),
        ({"wait_seconds": -1}, "wait_seconds=-1 is not possible (give 0 or more)"),
        ({"gang_size": 2}, "gang_size=2 without a gang (name the gang)"),
        ({"gpus": 2, "min_gpus": 3}, "min_gpus=3 of 2 GPUs is not possible (give 1 to 2)"),
        (
            {"gpus": 2, "min_gpus": 1, "gang": "run", "gang_size": 2},
            "min_gpus=1 in the gang 'run' (a gang gets all that it claims or nothing; leave min_gpus out)",
        ),
    ],
    ids=str,
)
def test_a_claim_that_is_not_possible_says_so_in_one_line(wishes: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError) as caught:
        Claim(**wishes)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({}, "1 GPU"),
        ({"gpus": 0.25}, "0.25 of a GPU"),
        ({"device_ids": [0, "GPU-7"]}, "2 GPUs (0, GPU-7)"),
        ({"gpus": 2, "memory_total_mb": 3001}, "2 GPUs with 1501 MB each"),
        ({"memory_per_gpu_mb": 2048.0, "shared": True}, "1 GPU with 2048 MB, shared"),
    ],
)
def test_a_claim_is_said_in_plain_words(wishes: dict[str, Any], said: str) -> None:
    assert str(Claim(**wishes)) == said


def test_total_memory_is_divided_among_the_devices_that_it_gets() -> None:
    claim = Claim(gpus=4, min_gpus=1, memory_total_mb=4000)
    assert [claim.memory_mb(count) for count in (4, 2, 1)] == [1000, 2000, 4000]


def test_a_group_that_says_how_much_memory_shares_the_rest_and_one_that_does_not_is_alone() -> None:
    alone, sharing = Claim.of_resources(Resources(gpus=2)), Claim.of_resources(Resources(gpus=1, gpu_memory_mb=4096))
    assert alone == Claim(gpus=2)
    assert sharing == Claim(gpus=1, memory_per_gpu_mb=4096, shared=True)


@given(
    st.builds(
        Claim,
        gpus=st.none() | st.integers(1, 16) | st.floats(0.01, 0.99),
        priority=st.integers(-9, 9),
        cpu_fallback=st.booleans(),
        min_capability=st.none() | st.floats(1, 12),
        wait_seconds=st.floats(0, 1e6),
        name=st.text(max_size=9),
    )
)
def test_a_claim_survives_its_way_through_the_ledger(claim: Claim) -> None:
    assert Claim.from_dict(claim.to_dict()) == claim
