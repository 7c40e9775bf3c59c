"""What the tests of feeds share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.feed import parties


@pytest.fixture
def driver() -> Iterator[parties.Driver]:
    with parties.started() as driver:
        yield driver
