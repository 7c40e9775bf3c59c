"""What the tests of other systems' APIs share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def sockets_closed() -> Iterator[None]:
    """Close what Spark leaves open while the test that used it is still there to be warned."""
    yield
    gc.collect()
