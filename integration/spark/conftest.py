"""What the tests of TensorFlow on Spark share: a cluster, and a session on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from integration.spark.standalone import Standalone, session_on, standalone_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A master and two workers, each with 2 cores and 2 GPUs."""
    with standalone_cluster(tmp_path_factory.mktemp("standalone")) as started:
        yield started


@pytest.fixture(scope="module")
def spark(cluster: Standalone) -> Iterator[SparkSession]:
    """A session with four executors of one core, two of them on each worker."""
    with session_on(cluster) as started:
        yield started
