"""The Java codec reads the golden files as their expectations say, rows and errors alike."""

from __future__ import annotations

import base64
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.tfrecord.jvm import cause, collect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GOLDEN = Path(__file__).parent / "golden"
EXPECTED = sorted(GOLDEN.glob("*.json"))

#: What the message of each kind of error says.
SAYS = {
    "cut": "the file ends inside the",
    "length-crc": "the checksum of the length does not match",
    "data-crc": "the checksum of the data does not match",
    "length": "is not possible here",
    "compression": "the compressed data is",
    "message": "not a well-formed message",
    "kind": "which cannot be read as",
    "count": "values, but the column takes exactly one",
    "range": "is out of range for",
    "utf8": "its bytes are not UTF-8",
    "mixed": "so it has no type",
}


@pytest.mark.parametrize("path", EXPECTED, ids=lambda path: path.stem)
def test_golden_file_is_read_as_expected(spark: SparkSession, path: Path) -> None:
    expected = json.loads(path.read_text())
    for read in expected["reads"]:
        if "error" in read:
            with pytest.raises(Exception, match=r".") as raised:
                rows(frame(spark, expected, read))
            check_error(cause(raised.value), expected["file"], read["error"])
        else:
            df = frame(spark, expected, read)
            if read["schema"] is None:
                assert [[field.name, field.dataType.simpleString()] for field in df.schema] == read["inferred"]
                assert df.count() == len(read["rows"])
            assert rows(df) == [{name: plain(value) for name, value in row.items()} for row in read["rows"]]


def frame(spark: SparkSession, expected: dict[str, Any], read: dict[str, Any]) -> DataFrame:
    reader = spark.read.format("tfrecord").option("recordType", expected["record_type"])
    if read["schema"] is not None:
        reader = reader.schema(", ".join(f"`{name}` {kind}" for name, kind in read["schema"]))
    return reader.load(str(GOLDEN / expected["file"]))


def rows(df: DataFrame) -> list[dict[str, Any]]:
    return [{name: comparable(value) for name, value in row.asDict().items()} for row in collect(df)]


def plain(value: Any) -> Any:
    """Make of JSON what Spark would give."""
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return comparable(value)


def comparable(value: Any) -> Any:
    if isinstance(value, list):
        return [comparable(inner) for inner in value]
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def check_error(message: str, file: str, error: dict[str, Any]) -> None:
    assert SAYS[error["kind"]] in message, message
    if error["record"] is not None:
        assert f"{file}, record {error['record']} at byte {error['offset']}: " in message
    if error["column"] is not None:
        assert f"column '{error['column']}'" in message
