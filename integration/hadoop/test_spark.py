"""Spark on YARN reads and writes TFRecords in HDFS, by the data source and by the Hadoop formats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from integration.hadoop.configuration import host
from integration.hadoop.running import Hadoop
from tests.tfrecord.jvm import collect
from tests.waiting import until

from gridflow.tfrecord.spark import write_spark

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(900)


def load(spark: SparkSession, url: str) -> DataFrame:
    return spark.read.format("tfrecord").load(url)


def values(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in collect(df))


def files(hdfs: Any, folder: str) -> list[str]:
    """Return all files in a folder, hidden ones too, by their paths within it."""
    return sorted(name.removeprefix(f"{folder}/") for name in hdfs.find(folder))


def test_spark_on_yarn_reads_what_tensorflow_wrote_and_tensorflow_reads_what_it_wrote(
    hadoop: Hadoop, hdfs: Any, spark: SparkSession, tmp_path: Path
) -> None:
    import tensorflow as tf

    for part in range(4):
        with tf.io.TFRecordWriter(str(tmp_path / f"{part}.tfrecord")) as writer:
            for number in range(part * 100, part * 100 + 100):
                numbers = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
                texts = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"text", b"%d" % number]))
                features = tf.train.Features(feature={"id": numbers, "texts": texts})
                writer.write(tf.train.Example(features=features).SerializeToString())
        hdfs.put_file(str(tmp_path / f"{part}.tfrecord"), f"/spark/in/{part}.tfrecord")

    df = load(spark, hadoop.url("/spark/in"))
    assert df.schema.simpleString() == "struct<id:bigint,texts:array<string>>"
    assert df.count() == 400
    doubled = df.selectExpr("id * 2 as id", "texts").coalesce(1)
    doubled.write.format("tfrecord").option("compression", "gzip").save(hadoop.url("/spark/out"))

    [application] = hadoop.applications(applicationTypes="SPARK", states="RUNNING")
    assert application["id"] == spark.sparkContext.applicationId
    success, part_file = files(hdfs, "/spark/out")
    assert success == "_SUCCESS"
    hdfs.get_file(f"/spark/out/{part_file}", str(tmp_path / "out"))
    spec = {"id": tf.io.FixedLenFeature([], tf.int64), "texts": tf.io.FixedLenFeature([2], tf.string)}
    dataset = tf.data.TFRecordDataset(str(tmp_path / "out"), compression_type="GZIP").batch(400)
    [parsed] = [tf.io.parse_example(records, spec) for records in dataset]
    texts = dict(zip(parsed["id"].numpy().tolist(), parsed["texts"].numpy().tolist(), strict=True))
    assert texts == {2 * number: [b"text", b"%d" % number] for number in range(400)}


def test_dynamic_overwrite_replaces_only_the_partitions_it_has(hadoop: Hadoop, hdfs: Any, spark: SparkSession) -> None:
    out = hadoop.url("/partitions")
    write_spark(spark.createDataFrame([(1, "x"), (2, "a/b=c")], "id bigint, p string"), out, partition_by="p")
    assert {name.rpartition("/")[0] for name in files(hdfs, "/partitions")} == {"", "p=x", "p=a%2Fb%3Dc"}
    again = spark.createDataFrame([(10, "x"), (30, "z")], "id bigint, p string")
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        write_spark(again, out, mode="overwrite", partition_by="p")
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert values(load(spark, out)) == [(2, "a/b=c"), (10, "x"), (30, "z")]
    assert values(load(spark, out).where("p = 'x'").select("id")) == [(10,)]
    assert not [name for name in files(hdfs, "/partitions") if name.startswith((".spark-staging", "_temporary"))]
    write_spark(again.where("id = 30"), out, mode="overwrite", partition_by="p")
    assert values(load(spark, out)) == [(30, "z")]


def test_overwrite_holds_nothing_of_an_attempt_that_failed(hadoop: Hadoop, hdfs: Any, spark: SparkSession) -> None:
    def fail_once(number: int) -> tuple[int]:
        from pyspark import TaskContext

        context = TaskContext.get()
        if number % 500 == 499 and context is not None and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails at its last row")
        return (number,)

    out = hadoop.url("/overwrite")
    write_spark(spark.range(7), out)
    df = spark.createDataFrame(spark.sparkContext.range(0, 1000, numSlices=2).map(fail_once), "id bigint")
    write_spark(df, out, mode="overwrite")
    assert values(load(spark, out)) == [(number,) for number in range(1000)]
    success, *parts = files(hdfs, "/overwrite")
    assert success == "_SUCCESS"
    assert [name[: len("part-00000")] for name in parts] == ["part-00000", "part-00001"]
    with pytest.raises(Exception, match="doesn't support the column `day`"):
        write_spark(spark.sql("select current_date() as day"), out, mode="overwrite")
    assert load(spark, out).count() == 1000


def test_programs_written_for_tensorflow_hadoop_find_its_classes(hadoop: Hadoop, spark: SparkSession) -> None:
    write_spark(spark.range(1000), hadoop.url("/formats/in"))
    context, package = spark.sparkContext, "org.tensorflow.hadoop.io."
    types = ("org.apache.hadoop.io.BytesWritable", "org.apache.hadoop.io.NullWritable")
    new: RDD[Any] = context.newAPIHadoopFile(hadoop.url("/formats/in"), f"{package}TFRecordFileInputFormat", *types)
    new.saveAsNewAPIHadoopFile(hadoop.url("/formats/new"), f"{package}TFRecordFileOutputFormat", *types)
    old: RDD[Any] = context.hadoopFile(hadoop.url("/formats/new"), f"{package}TFRecordFileInputFormatMapred", *types)
    old.saveAsHadoopFile(hadoop.url("/formats/old"), f"{package}TFRecordFileOutputFormatMapred", *types)
    assert values(load(spark, hadoop.url("/formats/old"))) == [(number,) for number in range(1000)]


def test_a_node_that_is_lost_during_a_write_costs_no_row_and_doubles_none(
    hadoop: Hadoop, hdfs: Any, spark: SparkSession, tmp_path: Path
) -> None:
    parts, rows, folder = 2, 4000, str(tmp_path)

    def stop_halfway(part: int, numbers: Iterable[int]) -> Iterator[tuple[int, str]]:
        """Stop in the middle of the file until the node is lost."""
        import time
        from pathlib import Path

        from pyspark import TaskContext

        context = TaskContext.get()
        for index, number in enumerate(numbers):
            if index == rows // parts // 2 and context is not None:
                Path(folder, f"halfway-{part}-{context.attemptNumber()}").touch()
                deadline = time.monotonic() + 300
                while not Path(folder, "lost").exists():
                    # No assert: pytest's own would want pytest in the container.
                    if time.monotonic() > deadline:
                        raise TimeoutError("waited 300 s in vain for the node to be lost")
                    time.sleep(0.1)
            yield number, f"{number:01000}"

    def lose(node: int) -> None:
        """Lose a node as soon as all parts are being written."""
        until(lambda: len(list(tmp_path.glob("halfway-*"))) == parts, "all tasks are halfway", seconds=300)
        until(lambda: len(hdfs.find("/lost")) == parts, "all files are being written", seconds=60)
        hadoop.order("kill", node)
        (tmp_path / "lost").touch()

    [application] = hadoop.applications(applicationTypes="SPARK", states="RUNNING")
    # Spark's master lives on, or YARN would have to start another first.
    [node] = [each for each in (1, 2) if not application["amHostHttpAddress"].startswith(f"{host(each)}:")]
    numbers = spark.sparkContext.range(0, rows, numSlices=parts)
    df = spark.createDataFrame(numbers.mapPartitionsWithIndex(stop_halfway), "id bigint, text string")
    with ThreadPoolExecutor(max_workers=1) as pool:
        losing = pool.submit(lose, node)
        write_spark(df, hadoop.url("/lost"))
        losing.result()
    try:
        assert values(load(spark, hadoop.url("/lost"))) == [(number, f"{number:01000}") for number in range(rows)]
    finally:
        hadoop.order("start", node)
    success, *written = files(hdfs, "/lost")
    assert success == "_SUCCESS"
    assert [name[: len("part-00000")] for name in written] == ["part-00000", "part-00001"]
    attempts = sorted(path.name for path in tmp_path.glob("halfway-*"))
    assert len(attempts) > parts, f"no task was attempted again: {attempts}"
