"""The contract of all platforms, on a real pool, over each way to its schedd."""

from __future__ import annotations

import pytest
from integration.htcondor.pool import Pool
from tests.contract import PLACES, Place, PlatformContract

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def place(reached: Pool) -> Place:
    return PLACES["htcondor"]


class TestContract(PlatformContract):
    """The contract's tests."""
