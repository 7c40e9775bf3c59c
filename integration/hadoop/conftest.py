"""A real HDFS and YARN of two nodes, and Spark on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from integration.hadoop.configuration import FAST_JVM
from integration.hadoop.running import Hadoop, running
from integration.system import require
from tests.spark_sessions import end_jvm, warm_up

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What the cluster needs of the system, and Debian's package with it.
PACKAGES = {"javac": "default-jdk-headless", "mvn": "maven"}
HDFS_NATIVE = "hdfs-native==0.14.7"
NODES = 2
_INSTALL_SECONDS = 600


@pytest.fixture(scope="session")
def cache() -> Path:
    """Where downloads are kept."""
    folder = Path(os.environ.get("GRIDFLOW_TEST_CACHE", "~/.cache/gridflow-test")).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def hadoop(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    """The cluster; there is one for all tests."""
    require(PACKAGES)
    with running(tmp_path_factory.mktemp("hadoop"), cache, nodes=NODES) as cluster:
        yield cluster


@pytest.fixture
def hdfs(hadoop: Hadoop) -> Iterator[Any]:
    """The files of the cluster, over HTTP."""
    import fsspec

    files, _ = fsspec.core.url_to_fs(hadoop.exports["WEBHDFS_URL"], skip_instance_cache=True)
    yield files
    files.session.close()


@pytest.fixture(scope="session")
def hdfs_native(cache: Path) -> Path:
    """A folder for Python's path with the package that reads hdfs:// without Java."""
    folder = cache / HDFS_NATIVE.replace("==", "-")
    if not folder.is_dir():
        aside = cache / f"{folder.name}.{os.getpid()}"
        argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(aside), HDFS_NATIVE]
        subprocess.run(argv, check=True, timeout=_INSTALL_SECONDS)
        aside.rename(folder)
    return folder


@pytest.fixture(scope="session")
def spark(hadoop: Hadoop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session whose executors are YARN's containers, one on each node."""
    from gridflow.spark import session

    own = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    interrupted = signal.getsignal(signal.SIGINT)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (hadoop.exports | own).items():
                patch.setenv(name, value)
            started = session(
                "integration", master="yarn", config=application_settings(tmp_path_factory.mktemp("spark"))
            )
        # Spark's own handler asks the JVM to cancel jobs; amid another question that fails, and pytest would go on.
        signal.signal(signal.SIGINT, interrupted)
        warm_up(started)
        yield started
        started.stop()
    finally:
        end_jvm()


def application_settings(scratch: Path) -> dict[str, str]:
    """Return the settings of a Spark application on YARN."""
    import pyspark

    return {
        # Every node is this machine, so the containers take Spark's jars where they lie.
        "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": FAST_JVM,
        "spark.yarn.am.memory": "512m",
        "spark.yarn.am.extraJavaOptions": FAST_JVM,
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": FAST_JVM,
        "spark.executor.instances": str(NODES),
        # No job before every executor is there.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "180s",
        "spark.local.dir": str(scratch / "local"),
        "spark.log.level": "FATAL",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
