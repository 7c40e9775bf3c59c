"""The contract, on every platform that needs no foreign system."""

from __future__ import annotations

import pytest
from tests.contract import PLACES, Place, PlatformContract

from gridflow.platforms.base import PLATFORMS


@pytest.fixture(params=[name for name, place in PLACES.items() if not place.needs_system])
def place(request: pytest.FixtureRequest) -> Place:
    """Make a platform usable and say how."""
    place = PLACES[request.param]
    for fixture in place.fixtures:
        request.getfixturevalue(fixture)
    return place


class TestContract(PlatformContract):
    """The contract's tests."""


def test_every_platform_has_its_place() -> None:
    assert PLACES.keys() == PLATFORMS.keys()
