"""Arrays that are packed in Spark's JVM and taken for lists again in Arrow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tfrecord.jvm import cause, collect

from gridflow.errors import SchemaError
from gridflow.spark.packing import pack, unpack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: A type of Spark's, Arrow's name for it, and values that need all its bits.
ELEMENTS: dict[str, tuple[str, list[Any]]] = {
    "boolean": ("bool", [True, False, True]),
    "tinyint": ("int8", [-128, 127]),
    "smallint": ("int16", [-(2**15), 2**15 - 1]),
    "int": ("int32", [-(2**31), 2**31 - 1]),
    "bigint": ("int64", [-(2**63), 2**63 - 1]),
    "float": ("float", [0.5, -(2.0**100), float("inf")]),
    "double": ("double", [0.1, -(2.0**1000)]),
}
SCHEMA = ", ".join(f"c_{kind} array<{kind}>" for kind in ELEMENTS)
#: More values than one word of Spark's bitmap of nulls has bits.
ROWS: list[tuple[Any, ...]] = [
    tuple(values for _, values in ELEMENTS.values()),
    tuple([] for _ in ELEMENTS),
    (None,) * len(ELEMENTS),
    tuple(values * 70 for _, values in ELEMENTS.values()),
]


def unpacked(df: DataFrame) -> list[dict[str, Any]]:
    """Pack in the JVM, bring the bytes here, unpack."""
    frame, packed = pack(df)
    rows = [row.asDict() for row in collect(frame)]
    assert all(isinstance(row[name], bytes | bytearray | None) for row in rows for name in packed)
    columns = {
        name: pa.array([row[name] for row in rows], pa.binary() if name in packed else None) for name in frame.columns
    }
    listed: list[dict[str, Any]] = unpack(pa.RecordBatch.from_pydict(columns), packed).to_pylist()
    return listed


def as_dicts(rows: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [dict(zip((f"c_{kind}" for kind in ELEMENTS), row, strict=True)) for row in rows]


def test_arrays_of_every_number_come_back_as_they_were(spark: SparkSession) -> None:
    df = spark.createDataFrame(ROWS, SCHEMA).coalesce(1)
    assert pack(df)[1] == {f"c_{kind}": name for kind, (name, _) in ELEMENTS.items()}
    assert unpacked(df) == as_dicts(ROWS)


def test_arrays_that_spark_holds_as_columns_or_objects_are_packed_too(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.createDataFrame(ROWS, SCHEMA).coalesce(1)
    df.write.parquet(str(tmp_path / "columns"))
    assert unpacked(spark.read.parquet(str(tmp_path / "columns"))) == as_dicts(ROWS)
    # `reverse` makes an array of objects.
    reversed_twice = df.selectExpr(*(f"reverse(reverse({name})) as {name}" for name in df.columns))
    assert unpacked(reversed_twice) == as_dicts(ROWS)


def test_generated_code_packs_as_interpreted_code_does(spark: SparkSession) -> None:
    df = spark.range(0, 1, numPartitions=1).selectExpr("array(float(id), 2.5f) as x")
    for setting in ("CODEGEN_ONLY", "NO_CODEGEN"):
        spark.conf.set("spark.sql.codegen.factoryMode", setting)
        try:
            assert unpacked(df) == [{"x": [0.0, 2.5]}]
        finally:
            spark.conf.unset("spark.sql.codegen.factoryMode")


def test_what_is_no_array_of_numbers_is_left_alone(spark: SparkSession) -> None:
    df = spark.sql(
        "select 1 as n, array('a') as texts, array(array(1)) as nested, array(struct(1)) as structs, "
        "array(cast(1 as decimal(5, 2))) as decimals, array(1, 2) as `the.int``s`"
    )
    frame, packed = pack(df)
    assert packed == {"the.int`s": "int32"}
    assert frame.columns == df.columns
    assert [kind for name, kind in frame.dtypes if name not in packed] == [
        kind for name, kind in df.dtypes if name not in packed
    ]
    plain = df.select("n", "texts")
    assert pack(plain) == (plain, {})


def test_vectors_are_packed_with_their_zeros(spark: SparkSession) -> None:
    from pyspark.ml.linalg import Vectors

    rows = [(Vectors.dense([1.0, -2.5]),), (Vectors.sparse(4, [1, 3], [5.0, 0.25]),), (None,), (Vectors.dense([]),)]
    df = spark.createDataFrame(rows, ["v"]).coalesce(1)
    assert unpacked(df) == [{"v": [1.0, -2.5]}, {"v": [0.0, 5.0, 0.0, 0.25]}, {"v": None}, {"v": []}]


@pytest.mark.parametrize("array", ["array(1, 2, null)", "reverse(array(null, 2, 1))"])
def test_a_null_among_the_values_is_an_error_that_names_the_column(spark: SparkSession, array: str) -> None:
    from py4j.protocol import Py4JJavaError

    frame, _ = pack(spark.range(0, 1, numPartitions=1).selectExpr(f"if(id < 0, null, {array}) as pixels"))
    with pytest.raises(Py4JJavaError) as caught:
        collect(frame)
    assert (
        "column 'pixels': value 2 of an array is null, which a tensor cannot hold; fill it, or drop the row"
        in cause(caught.value)
    )


@settings(deadline=None)
@given(
    rows=st.lists(st.sampled_from([None, [], [1], [-(2**31), 2**31 - 1, 7]]), max_size=20),
    start=st.integers(0, 20),
    is_large=st.booleans(),
)
def test_any_slice_of_a_batch_is_unpacked_without_copying_values(
    rows: list[list[int] | None], start: int, is_large: bool
) -> None:
    column = pa.array(
        [None if row is None else b"".join(value.to_bytes(4, "little", signed=True) for value in row) for row in rows],
        pa.large_binary() if is_large else pa.binary(),
    )
    batch = pa.RecordBatch.from_arrays([column], names=["x"]).slice(start)
    lists = unpack(batch, {"x": "int32"}).column(0)
    lists.validate(full=True)
    assert lists.type == (pa.large_list(pa.int32()) if is_large else pa.list_(pa.int32()))
    assert lists.to_pylist() == rows[start:]
    assert lists.null_count == rows[start:].count(None)
    assert lists.values.buffers()[1].address == column.buffers()[2].address


def test_bytes_that_are_not_whole_values_are_refused() -> None:
    batch = pa.RecordBatch.from_pydict({"x": pa.array([b"12345678", b"123"])})
    with pytest.raises(SchemaError, match="column 'x': its bytes are not whole values of type float"):
        unpack(batch, {"x": "float"})


def test_a_column_that_holds_no_bytes_is_refused() -> None:
    batch = pa.RecordBatch.from_pydict({"x": pa.array([1])})
    with pytest.raises(SchemaError, match="column 'x': packed values are bytes, not int64"):
        unpack(batch, {"x": "float"})
