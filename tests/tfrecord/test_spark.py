"""The data source `tfrecord` in Spark, and what TensorFlow makes of its files."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.tfrecord.jvm import cause, collect

from gridflow.errors import SchemaError, UsageError
from gridflow.tfrecord.spark import register, write_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[2]

#: A column's type, some values, and what they are after a round trip if not the same: floats have 32 bits.
COLUMNS: dict[str, tuple[Any, ...]] = {
    "tinyint": (-128, 127),
    "smallint": (-(2**15), 2**15 - 1),
    "int": (-(2**31), 2**31 - 1),
    "bigint": (-(2**63), 2**63 - 1),
    "boolean": (True, False),
    "float": (0.5, -(2.0**100)),
    "double": (0.25, 2.0**100),
    "decimal(10,2)": (Decimal("1.25"), Decimal("-1000.50")),
    "decimal(30,1)": (Decimal("0.5"), Decimal("-2.0")),
    "string": ("", "grün"),
    "binary": (b"", b"\xff\x00"),
}


def load(spark: SparkSession, path: Path, schema: str | None = None, **options: Any) -> DataFrame:
    reader = spark.read.format("tfrecord").options(**options)
    return (reader if schema is None else reader.schema(schema)).load(str(path))


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("part-*"))


def values(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in collect(df))


def test_every_type_comes_back_as_it_was_written(spark: SparkSession, tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(len(COLUMNS))]
    flat = ", ".join(f"{name} {kind}" for name, kind in zip(names, COLUMNS, strict=True))
    lists = ", ".join(f"l{name} array<{kind}>" for name, kind in zip(names, COLUMNS, strict=True))
    first, second = zip(*COLUMNS.values(), strict=True)
    rows = [
        (*first, *([a, b] for a, b in COLUMNS.values())),
        (*second, *([] for _ in COLUMNS)),
        (None,) * (2 * len(COLUMNS)),
        (*first, *([b] for _, b in COLUMNS.values())),
    ]
    schema = f"{flat}, {lists}"
    spark.createDataFrame(rows, schema).coalesce(1).write.format("tfrecord").save(str(tmp_path / "out"))
    assert [tuple(row) for row in collect(load(spark, tmp_path / "out", schema))] == rows


def test_nested_arrays_and_vectors_come_back_from_sequence_examples(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.ml.linalg import DenseVector, Vectors, VectorUDT
    from pyspark.sql.types import ArrayType, LongType, StringType, StructType

    schema = (
        StructType()
        .add("id", LongType())
        .add("vector", VectorUDT())
        .add("numbers", ArrayType(ArrayType(LongType())))
        .add("texts", ArrayType(ArrayType(StringType())))
        .add("vectors", ArrayType(VectorUDT()))
    )
    sparse = Vectors.sparse(4, [1, 3], [0.5, 2.0])
    rows = [
        (1, sparse, [[1, 2], [], None], [["a"], ["b", "c"]], [sparse, DenseVector([1.0])]),
        (2, None, [], None, []),
    ]
    write_spark(spark.createDataFrame(rows, schema).coalesce(1), tmp_path / "out", record_type="SequenceExample")
    df = (
        spark.read.format("tfrecord").option("recordType", "SequenceExample").schema(schema).load(str(tmp_path / "out"))
    )
    dense = DenseVector([0.0, 0.5, 0.0, 2.0])
    assert [tuple(row) for row in collect(df)] == [
        (1, dense, [[1, 2], [], None], [["a"], ["b", "c"]], [dense, DenseVector([1.0])]),
        (2, None, [], None, []),
    ]


def test_byte_arrays_are_the_bare_records(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(b"",), (b"\x00\xff",)]
    write_spark(spark.createDataFrame(rows, "data binary"), tmp_path / "out", record_type="ByteArray")
    df = load(spark, tmp_path / "out", recordType="ByteArray")
    assert df.columns == ["byteArray"]
    assert values(df) == rows
    with pytest.raises(Exception, match="ByteArray needs exactly one column, of type binary") as raised:
        write_spark(spark.range(1), tmp_path / "other", record_type="ByteArray")
    assert "the columns are struct<id:bigint>" in cause(raised.value)


def test_save_modes_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_spark(spark.range(3), out)
    with pytest.raises(Exception, match="PATH_ALREADY_EXISTS"):
        write_spark(spark.range(9), out)
    write_spark(spark.range(9), out, mode="ignore")
    assert load(spark, out).count() == 3
    write_spark(spark.range(3, 5), out, mode="append")
    assert values(load(spark, out)) == [(0,), (1,), (2,), (3,), (4,)]
    write_spark(spark.range(1), out, mode="overwrite")
    assert values(load(spark, out)) == [(0,)]
    with pytest.raises(UsageError, match=r"mode is 'replace' .choose one of error,"):
        write_spark(spark.range(1), out, mode="replace")


def test_partitions_are_written_found_and_pruned(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(1, "x"), (2, "a/b=c"), (3, None)]
    write_spark(spark.createDataFrame(rows, "id bigint, p string"), tmp_path / "out", partition_by="p")
    names = {name.split("/")[0] for name in files(tmp_path / "out")}
    assert names == {"p=x", "p=a%2Fb%3Dc", "p=__HIVE_DEFAULT_PARTITION__"}
    df = load(spark, tmp_path / "out")
    assert sorted(map(tuple, collect(df)), key=str) == rows
    assert values(df.where("p = 'x'").select("p", "id")) == [("x", 1)]
    assert sorted(row.p or "" for row in collect(df.select("p"))) == ["", "a/b=c", "x"]


def test_dynamic_overwrite_replaces_only_the_partitions_it_has(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_spark(spark.createDataFrame([(1, 1), (2, 2)], "id bigint, p int"), out, partition_by=["p"])
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        again = spark.createDataFrame([(20, 2)], "id bigint, p int")
        write_spark(again, out, mode="overwrite", partition_by=["p"])
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert values(load(spark, out)) == [(1, 1), (20, 2)]


def test_files_hold_at_most_so_many_records(spark: SparkSession, tmp_path: Path) -> None:
    write_spark(spark.range(10).coalesce(1), tmp_path / "out", max_records_per_file=4)
    counts = [load(spark, tmp_path / "out" / name).count() for name in files(tmp_path / "out")]
    assert sorted(counts) == [2, 4, 4]


@pytest.mark.parametrize(
    ("compression", "ending", "kind"),
    [
        (None, ".tfrecord", ""),
        ("gzip", ".tfrecord.gz", "GZIP"),
        ("zlib", ".tfrecord.deflate", "ZLIB"),
        ("org.apache.hadoop.io.compress.GzipCodec", ".tfrecord.gz", "GZIP"),
        ("bzip2", ".tfrecord.bz2", None),
    ],
)
def test_compressed_files_are_read_by_spark_and_tensorflow(
    spark: SparkSession, tmp_path: Path, compression: str | None, ending: str, kind: str | None
) -> None:
    import tensorflow as tf

    write_spark(spark.range(1000).coalesce(1), tmp_path / "out", compression=compression)
    [name] = files(tmp_path / "out")
    assert name.endswith(ending)
    assert [row.id for row in collect(load(spark, tmp_path / "out").sort("id"))] == list(range(1000))
    if kind is not None:
        dataset = tf.data.TFRecordDataset(str(tmp_path / "out" / name), compression_type=kind)
        spec = {"id": tf.io.FixedLenFeature([], tf.int64)}
        assert [int(tf.io.parse_single_example(record, spec)["id"]) for record in dataset] == list(range(1000))


def test_unknown_compression_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="must be none, gzip, zlib, or a codec that Hadoop knows"):
        write_spark(spark.range(1), tmp_path / "out", compression="zip9")


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        ("select array(array(1)) as deep", {}, "an Example cannot hold array<array<int>>"),
        ("select map(1, 2) as m", {}, "doesn't support the column `m`"),
        ("select 1 as i", {"compression": "lzzz"}, "compression is 'lzzz'"),
        ("select 1 as i", {"recordType": "ByteArray"}, "needs exactly one column, of type binary"),
        ("select 1 as i", {"recordType": "Foo"}, "recordType is 'Foo'"),
    ],
)
def test_what_an_overwrite_would_have_replaced_is_kept_where_it_is_refused(
    spark: SparkSession, tmp_path: Path, query: str, options: dict[str, str], message: str
) -> None:
    out = str(tmp_path / "out")
    spark.range(3).write.format("tfrecord").save(out)
    with pytest.raises(Exception, match=re.escape(message)):
        spark.sql(query).write.format("tfrecord").options(**options).mode("overwrite").save(out)
    assert spark.read.format("tfrecord").load(out).count() == 3


def test_types_that_no_record_holds_are_refused_before_anything_is_written(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_spark(spark.range(3), out)
    with pytest.raises(Exception, match='TFRecord datasource doesn\'t support the column `day` of the type "DATE"'):
        write_spark(spark.sql("select current_date() as day"), out, mode="overwrite")
    with pytest.raises(SchemaError, match=r"column 'deep': an Example cannot hold array<array<int>> .use record_type="):
        write_spark(spark.sql("select array(array(1)) as deep"), out, mode="overwrite")
    with pytest.raises(
        Exception, match="column 'deep': an Example cannot hold array<array<int>>; use the option"
    ) as raised:
        spark.sql("select array(array(1)) as deep").write.format("tfrecord").save(str(tmp_path / "new"))
    assert "recordType=SequenceExample" in cause(raised.value)
    assert values(load(spark, out)) == [(0,), (1,), (2,)]
    assert not files(tmp_path / "new")


def test_null_inside_an_array_names_its_column(spark: SparkSession, tmp_path: Path) -> None:
    for kind in ("float", "bigint", "string"):
        with pytest.raises(Exception, match=r".") as raised:
            write_spark(spark.sql(f"select array(cast(1 as {kind}), null) as a"), tmp_path / kind)
        assert "column 'a': an array holds a null" in cause(raised.value)
        assert not files(tmp_path / kind)


def test_tensorflow_parses_what_spark_wrote(spark: SparkSession, tmp_path: Path) -> None:
    import tensorflow as tf

    df = spark.sql("select 7 as i, float(0.5) as f, 'grün' as s, array(1L, -1L) as many, cast(null as int) as gone")
    write_spark(df, tmp_path / "out")
    [record] = list(tf.data.TFRecordDataset([str(tmp_path / "out" / name) for name in files(tmp_path / "out")]))
    parsed = tf.io.parse_single_example(
        record,
        {
            "i": tf.io.FixedLenFeature([], tf.int64),
            "f": tf.io.FixedLenFeature([], tf.float32),
            "s": tf.io.FixedLenFeature([], tf.string),
            "many": tf.io.FixedLenFeature([2], tf.int64),
            "gone": tf.io.FixedLenFeature([], tf.int64, default_value=-5),
        },
    )
    found = {name: tensor.numpy() for name, tensor in parsed.items()}
    assert (found["i"], found["f"], found["s"], found["gone"]) == (7, 0.5, "grün".encode(), -5)
    assert found["many"].tolist() == [1, -1]
    assert "gone" not in tf.train.Example.FromString(record.numpy()).features.feature


def test_spark_reads_what_tensorflow_wrote_by_globs_and_in_samples(spark: SparkSession, tmp_path: Path) -> None:
    import tensorflow as tf

    for number in range(3):
        with tf.io.TFRecordWriter(str(tmp_path / f"{number}.tfrecord")) as writer:
            for row in range(4):
                feature = {"n": tf.train.Feature(int64_list=tf.train.Int64List(value=[number] * (1 + (row > 1))))}
                writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    assert load(spark, tmp_path / "[01].tfrecord").count() == 8
    assert load(spark, tmp_path).schema.simpleString() == "struct<n:array<bigint>>"
    sampled = load(spark, tmp_path, sample=2, sampleFiles=1)
    assert sampled.schema.simpleString() == "struct<n:bigint>"
    with pytest.raises(Exception, match=r".") as raised:
        sampled.collect()
    assert "record 2 at byte " in cause(raised.value)
    assert "column 'n': it has 2 values, but the column takes exactly one" in cause(raised.value)


def test_count_reads_headers_only_and_pruned_columns_are_not_decoded(spark: SparkSession, tmp_path: Path) -> None:
    write_spark(spark.sql("select id, 'text' as s from range(5)").coalesce(1), tmp_path / "out")
    [name] = files(tmp_path / "out")
    content = bytearray((tmp_path / "out" / name).read_bytes())
    content[20] ^= 1
    damaged = tmp_path / "damaged.tfrecord"
    damaged.write_bytes(content)
    assert load(spark, damaged, "id bigint").count() == 5
    with pytest.raises(Exception, match=r".") as raised:
        load(spark, damaged, "id bigint").collect()
    assert "damaged.tfrecord, record 0 at byte 0: the checksum of the data does not match" in cause(raised.value)
    # The column is of another kind, which nobody notices who does not read it.
    wrong = load(spark, tmp_path / "out", "id bigint, s bigint")
    assert values(wrong.select("id")) == [(0,), (1,), (2,), (3,), (4,)]


def test_sql_creates_tables_and_selects_from_paths(spark: SparkSession, tmp_path: Path) -> None:
    write_spark(spark.range(3), tmp_path / "out")
    assert values(spark.sql(f"select id from tfrecord.`{tmp_path}/out` where id > 0")) == [(1,), (2,)]
    spark.sql(f"create table numbers (id int) using tfrecords location '{tmp_path}/out'")
    try:
        spark.sql("insert into numbers values (7)")
        assert values(spark.table("numbers")) == [(0,), (1,), (2,), (7,)]
    finally:
        spark.sql("drop table numbers")


def test_files_are_streamed_in_and_out(spark: SparkSession, tmp_path: Path) -> None:
    write_spark(spark.range(4), tmp_path / "in")
    stream = spark.readStream.format("tfrecord").schema("id bigint").load(str(tmp_path / "in"))
    query = (
        stream.selectExpr("id * 2 as double_id")
        .writeStream.format("tfrecord")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    assert query.awaitTermination(timeout=60)
    assert values(load(spark, tmp_path / "out")) == [(0,), (2,), (4,), (6,)]


def test_failed_attempt_leaves_nothing_behind(spark: SparkSession, tmp_path: Path) -> None:
    def fail_once(number: int) -> tuple[int]:
        from pyspark import TaskContext

        context = TaskContext.get()
        if number % 500 == 499 and context is not None and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails at its last row")
        return (number,)

    df = spark.createDataFrame(spark.sparkContext.range(0, 1000, numSlices=2).map(fail_once), "id bigint")
    write_spark(df, tmp_path / "out")
    assert values(load(spark, tmp_path / "out")) == [(number,) for number in range(1000)]
    assert len(files(tmp_path / "out")) == 2


def test_what_the_page_shows_of_spark_runs_and_every_option_is_named(spark: SparkSession, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tfrecord.md").read_text()
    options = (ROOT / "java/src/io/gridflow/tfrecord/spark/TFRecordOptions.java").read_text()
    named = {name.lower() for name in re.findall(r"`(\w+)`", page)}
    known = re.findall(r'given\.get\w*\("(\w+)"', options)
    assert len(known) == 6
    assert [name for name in known if name not in named] == []
    [shown] = [block for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL) if "spark" in block]
    for name in ("out", "by-id"):
        shown = shown.replace(f'"{name}"', repr(str(tmp_path / name)))
    exec(shown, {"spark": spark, "df": spark.sql("select id, 'x' as text from range(3)")})
    assert values(load(spark, tmp_path / "out")) == [(0, "x"), (1, "x"), (2, "x")]
    assert {name.split("/")[0] for name in files(tmp_path / "by-id")} == {"id=0", "id=1", "id=2"}


def test_another_session_gets_the_data_source_too(spark: SparkSession, tmp_path: Path) -> None:
    other = spark.newSession()
    register(other)
    register(other)
    write_spark(other.range(2), tmp_path / "out")
    assert values(load(other, tmp_path / "out")) == [(0,), (1,)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recordType": "Sample"}, "recordType is 'Sample', but must be one of Example, SequenceExample, ByteArray"),
        ({"sample": "0"}, "sample is '0', but must be a number from 1"),
        ({"crc32check": "no"}, "crc32check is 'no', but must be true or false"),
    ],
)
def test_wrong_options_are_refused(spark: SparkSession, tmp_path: Path, options: dict[str, str], message: str) -> None:
    write_spark(spark.range(1), tmp_path / "out")
    with pytest.raises(Exception, match=message):
        load(spark, tmp_path / "out", **options)
