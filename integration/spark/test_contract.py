"""The contract of all platforms, with a Spark of each run's own."""

from __future__ import annotations

import pytest
from tests.contract import PLACES, Place, PlatformContract


@pytest.fixture
def place() -> Place:
    return PLACES["spark"]


class TestContract(PlatformContract):
    """The contract's tests."""
