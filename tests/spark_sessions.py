"""A pytest plugin: the Spark session of this machine's tests; and what others need to begin and end one."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.leaks import session_ports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def warm_up(session: SparkSession) -> None:
    """Run a first job: it opens a connection that stays, which no test is to be blamed for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        session.sparkContext.parallelize([1], 1).map(abs).count()


def end_jvm() -> None:
    """End the JVM that Spark would keep until the interpreter ends."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = None
    SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(timeout=60)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
        raise


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of two threads that was started without the jar, and then got it."""
    from pyspark.sql import SparkSession

    from gridflow.tfrecord.spark import register

    scratch = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local[2,2]").appName("tests")
    for key, value in _settings(scratch).items():
        builder = builder.config(key, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        session = builder.getOrCreate()
    gateway = session.sparkContext._gateway
    assert gateway is not None
    port = gateway.gateway_parameters.port
    session_ports.add(port)
    try:
        register(session)
        warm_up(session)
        yield session
        session.stop()
    finally:
        end_jvm()
        session_ports.discard(port)


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
