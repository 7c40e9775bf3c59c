"""Files where Spark itself finds them, by way of Hadoop's file systems in the driver's JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCAL = "file:"


def place_of(spark: SparkSession, path: str) -> str:
    """Return what a path of Spark's means outside of Spark: a URL, or for a local file its absolute path."""
    system, found = _open(spark, path)
    # 'file:/tmp/rows', 'hdfs://namenode:8020/user/ada/rows'
    whole = str(system.makeQualified(found).toString())
    return "/" + whole.removeprefix(_LOCAL).lstrip("/") if whole.startswith(_LOCAL) else whole


def copy(spark: SparkSession, source: str, target: str) -> None:
    """Copy a file or a folder to a path of Spark's that is not there; a source without a scheme is a local file."""
    jvm: Any = spark.sparkContext._jvm
    from_system, from_path = _open(spark, source if "://" in source else f"{_LOCAL}//{source}")
    to_system, to_path = _open(spark, target)
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    jvm.org.apache.hadoop.fs.FileUtil.copy(from_system, from_path, to_system, to_path, False, settings)


def remove(spark: SparkSession, path: str) -> None:
    """Remove a file or a folder with all that is in it, if it is there."""
    system, found = _open(spark, path)
    system.delete(found, True)


def _open(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Return the file system of a path, and the path as Hadoop has it."""
    jvm: Any = spark.sparkContext._jvm
    found = jvm.org.apache.hadoop.fs.Path(path)
    return found.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()), found
