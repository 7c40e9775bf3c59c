"""TFRecords in Spark: the data source `tfrecord` for a session that runs, and writing with it in one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridflow.errors import SchemaError, UsageError
from gridflow.tfrecord.jar import jar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

_MODES = ("error", "errorifexists", "append", "overwrite", "ignore")
#: A setting of the session alone, since a jar is added to one session.
_ADDED = "gridflow.tfrecord.jar"
_RECORD_TYPES = ("Example", "SequenceExample", "ByteArray")


def register(spark: SparkSession) -> None:
    """Add the data source `tfrecord` to a session that runs already; doing so again changes nothing."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise UsageError(
            "this session speaks to a Spark Connect server, which must have the data source itself",
            hint=f"start the server with --jars {jar()}",
        )
    path = str(jar())
    on_class_path = spark.sparkContext.getConf().get("spark.jars", "") or ""
    if spark.conf.get(_ADDED, None) == path or any(each.endswith(path) for each in on_class_path.split(",")):
        return
    spark.sql("ADD JAR '{}'".format(path.replace("\\", "\\\\").replace("'", "\\'")))
    spark.conf.set(_ADDED, path)


def adopt_jars(spark: SparkSession) -> None:
    """Let Spark jobs that this thread starts use the session's jars; Spark gives them to the adding thread alone."""
    loader = spark._jsparkSession.sharedState().jarClassLoader()
    spark.sparkContext._jvm.java.lang.Thread.currentThread().setContextClassLoader(loader)  # type: ignore[union-attr]


def write_spark(
    df: DataFrame,
    path: str | Path,
    *,
    mode: str = "error",
    partition_by: str | Sequence[str] = (),
    compression: str | None = None,
    max_records_per_file: int | None = None,
    record_type: str = "Example",
) -> None:
    """Write a DataFrame as TFRecord files; the arguments are those of `df.write`.

    `compression` is `gzip`, `zlib`, None or a codec that Hadoop knows; `record_type` is Example, SequenceExample or
    ByteArray.
    """
    if mode not in _MODES:
        raise UsageError(f"mode is {mode!r}", hint=f"choose one of {', '.join(_MODES)}")
    if record_type not in _RECORD_TYPES:
        raise UsageError(f"record_type is {record_type!r}", hint=f"choose one of {', '.join(_RECORD_TYPES)}")
    partitions = [partition_by] if isinstance(partition_by, str) else list(partition_by)
    _refuse_nested(df, partitions, record_type)
    register(df.sparkSession)
    writer = df.write.format("tfrecord").mode(mode).option("recordType", record_type)
    writer = writer.option("compression", compression or "none")
    if max_records_per_file is not None:
        writer = writer.option("maxRecordsPerFile", max_records_per_file)
    if partitions:
        writer = writer.partitionBy(*partitions)
    writer.save(str(path))


def _refuse_nested(df: DataFrame, partitions: Sequence[str], record_type: str) -> None:
    """Refuse arrays of arrays before an overwrite removes anything: Spark asks the data source only after that."""
    if record_type != "Example":
        return
    for field in df.schema.fields:
        if field.name not in partitions and _is_nested(field.dataType):
            raise SchemaError(
                f"column {field.name!r}: an Example cannot hold {field.dataType.simpleString()}",
                hint="use record_type='SequenceExample', or flatten it",
            )


def _is_nested(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, UserDefinedType

    return isinstance(kind, ArrayType) and isinstance(kind.elementType, ArrayType | UserDefinedType)
