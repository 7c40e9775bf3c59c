"""What the tests of TFRecords share: one Spark session, for they all can use the same."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session that was started without the jar, and then got it."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from gridflow.tfrecord.spark import register

    scratch = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local[2,2]").appName("tests")
    for key, value in _settings(scratch).items():
        builder = builder.config(key, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        session = builder.getOrCreate()
    register(session)
    # The first job of a Python program opens a connection that stays: no test is to be blamed for it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        session.sparkContext.parallelize([1], 1).map(abs).count()
    yield session
    session.stop()
    # Spark would keep its JVM until the interpreter ends.
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=30)
    SparkContext._gateway = None
    SparkContext._jvm = None


def _settings(scratch: Path) -> dict[str, str]:
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.local.dir": str(scratch / "local"),
        "spark.log.level": "FATAL",
        # Compiling a query takes longer than these tests' queries do.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
