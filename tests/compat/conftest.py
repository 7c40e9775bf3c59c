"""What the tests of other systems' APIs share: a session of two threads."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from tests.spark_sessions import local_spark

__all__ = ["local_spark"]


@pytest.fixture
def sockets_closed() -> Iterator[None]:
    """Close what Spark leaves open while the test that used it is still there to be warned."""
    yield
    gc.collect()
