"""DataFrames become TFRecord files and come back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gridflow.compat.tensorflowonspark import dfutil
from gridflow.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: What Spark collects from an RDD comes through a socket that it leaves to Python to close.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROW = ("text string", 1, [2, 3, 4, 5], -1.1, [-2.2, -3.3, -4.4, -5.5], bytearray(b"\xff\xfe\xfd\xfc"))
SCHEMA = "a string, b bigint, c array<bigint>, d double, e array<double>, f binary"


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([ROW], SCHEMA)


def test_columns_of_all_types_come_back(spark: SparkSession, frame: DataFrame, tmp_path: Path) -> None:
    folder = str(tmp_path / "records")
    dfutil.saveAsTFRecords(frame, folder)
    loaded = dfutil.loadTFRecords(spark.sparkContext, folder, binary_features=["f"])
    assert loaded.schema.simpleString() == frame.schema.simpleString()
    [row] = loaded.collect()
    assert (row.a, row.b, row.c, row.f) == (ROW[0], ROW[1], ROW[2], ROW[5])
    assert row.d == pytest.approx(ROW[3])
    assert row.e == pytest.approx(ROW[4])


def test_loaded_frame_is_known_and_others_are_not(spark: SparkSession, frame: DataFrame, tmp_path: Path) -> None:
    folder = str(tmp_path / "records")
    dfutil.saveAsTFRecords(frame, folder)
    loaded = dfutil.loadTFRecords(spark.sparkContext, folder)
    assert dfutil.isLoadedDF(loaded)
    assert dfutil.loadedDF[loaded] == folder
    assert not dfutil.isLoadedDF(frame)
    assert not dfutil.isLoadedDF(loaded.filter("b > 0"))


def test_examples_are_made_and_read_one_by_one(spark: SparkSession, frame: DataFrame) -> None:
    import tensorflow as tf

    [(content, nothing)] = dfutil.toTFExample(frame.dtypes)(frame.collect())
    assert nothing is None
    example = tf.train.Example.FromString(bytes(content))
    assert dfutil.infer_schema(example, ["f"]).simpleString() == frame.schema.simpleString()
    [row] = dfutil.fromTFExample([(content, None)], ["f"])
    assert (row.a, row.b, row.c, row.f) == (ROW[0], ROW[1], ROW[2], ROW[5])
    assert row.e == pytest.approx(ROW[4])
    with pytest.raises(SchemaError, match=r"column 'm': an Example cannot hold map<int,int>"):
        dfutil.toTFExample([("m", "map<int,int>")])([{"m": {}}])  # type: ignore[list-item]
