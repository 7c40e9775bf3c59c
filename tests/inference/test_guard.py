"""The guard's arithmetic, and that what it decides always comes to an end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridflow.errors import TaskError
from gridflow.inference.guard import FIRST_SAMPLES, SECOND_SAMPLES, BatchGuard


def test_nothing_known_means_everything_at_once() -> None:
    guard = BatchGuard()
    assert guard.next_size(1_000_000) == 1_000_000
    assert not guard.is_measuring


def test_two_batches_tell_how_many_samples_fit() -> None:
    guard = BatchGuard(limit_bytes=10_000)
    assert guard.next_size(1000) == FIRST_SAMPLES
    guard.measured(FIRST_SAMPLES, 1000 + 10 * FIRST_SAMPLES)
    assert guard.next_size(1000) == SECOND_SAMPLES
    guard.measured(SECOND_SAMPLES, 1000 + 10 * SECOND_SAMPLES)
    assert not guard.is_measuring
    # Nine tenths of 10,000 bytes, of which 1,000 are taken, for samples of 10 bytes.
    assert guard.largest == 800
    assert guard.next_size(1000) == 800
    assert guard.next_size(5) == 5


def test_a_batch_that_did_not_fit_is_halved_and_never_tried_again() -> None:
    guard = BatchGuard(max_batch=100)
    guard.ran_out(100, "OOM")
    assert guard.next_size(1000) == 50
    guard.ran_out(50, "OOM")
    assert guard.next_size(1000) == 25
    guard.ran_out(80, "OOM, heard of late by another thread")
    assert guard.next_size(1000) == 25


def test_a_single_sample_that_does_not_fit_is_an_error() -> None:
    message = "the model runs out of memory with a single sample: OOM at Conv2D .claim more memory"
    with pytest.raises(TaskError, match=message):
        BatchGuard().ran_out(1, "OOM at Conv2D")


@given(
    fixed=st.integers(0, 10_000),
    per_sample=st.integers(0, 1000),
    limit=st.integers(1, 100_000),
    samples=st.integers(0, 2000),
    is_measured=st.booleans(),
)
def test_all_samples_are_run_or_one_alone_is_too_large(
    fixed: int, per_sample: int, limit: int, samples: int, is_measured: bool
) -> None:
    guard = BatchGuard(limit if is_measured else None)
    left, tries = samples, 0
    while left:
        size = guard.next_size(left)
        assert 1 <= size <= left
        tries += 1
        if fixed + per_sample * size > limit:
            if size == 1:
                with pytest.raises(TaskError):
                    guard.ran_out(size, "OOM")
                return
            guard.ran_out(size, "OOM")
            continue
        if guard.is_measuring:
            guard.measured(size, fixed + per_sample * size)
        left -= size
        assert tries <= samples + 20
