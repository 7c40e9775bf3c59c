"""The golden files, read by the C++ codec."""

from __future__ import annotations

import base64
import json
import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gridflow import tfrecord
from gridflow.errors import RecordError

GOLDEN = Path(__file__).parent / "golden"
TABLES = {path.name: json.loads(path.read_text()) for path in sorted(GOLDEN.glob("*.json"))}
READS = [(name, number) for name, table in TABLES.items() for number in range(len(table["reads"]))]
SIMPLE = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "void": pa.null(),
}


def arrow_type(name: str) -> pa.DataType:
    if name.startswith("array<"):
        return pa.list_(arrow_type(name.removeprefix("array<").removesuffix(">")))
    if found := re.fullmatch(r"decimal\((\d+),(\d+)\)", name):
        return pa.decimal128(int(found[1]), int(found[2]))
    return SIMPLE[name]


def arrow_schema(pairs: list[list[str]]) -> pa.Schema:
    return pa.schema([(name, arrow_type(kind)) for name, kind in pairs])


def plain(value: Any) -> Any:
    """Bring a cell of a golden file or of a batch into a form that compares."""
    if isinstance(value, dict) and set(value) == {"base64"}:
        return base64.b64decode(value["base64"])
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def bits(value: Any) -> Any:
    """Tell 0.0 from -0.0, and 1 from 1.0."""
    return json.dumps(value, sort_keys=True, default=str)


@pytest.mark.parametrize(("name", "number"), READS, ids=lambda value: str(value))
def test_a_golden_file_is_read_as_it_should(name: str, number: int) -> None:
    table = TABLES[name]
    expected = table["reads"][number]
    path = GOLDEN / table["file"]
    schema = None if expected["schema"] is None else arrow_schema(expected["schema"])
    if "error" in expected:
        with pytest.raises(RecordError) as caught:
            tfrecord.read(path, schema, record_type=table["record_type"]).read_all()
        error = expected["error"]
        assert caught.value.kind == error["kind"]
        assert caught.value.path == str(path)
        if error["record"] is not None:
            assert (caught.value.record, caught.value.offset) == (error["record"], error["offset"])
            assert f"{path}, record {error['record']} at byte {error['offset']}: " in str(caught.value)
        if error["column"] is not None:
            assert repr(error["column"]) in str(caught.value)
        return
    read = tfrecord.read(path, schema, record_type=table["record_type"]).read_all()
    read.validate(full=True)
    if "inferred" in expected:
        assert read.schema == arrow_schema(expected["inferred"])
    assert bits(plain(read.to_pylist())) == bits(plain(expected["rows"]))


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if "skip" in table])
def test_what_is_left_of_a_damaged_golden_file_is_read_with_skip(name: str) -> None:
    table = TABLES[name]
    losses: list[tfrecord.Loss] = []
    path = GOLDEN / table["file"]
    schema = arrow_schema(table["skip"]["schema"])
    rows = tfrecord.read(path, schema, on_error="skip", losses=losses).read_all().to_pylist()
    assert rows == table["skip"]["rows"]
    assert [(loss.path, loss.places) for loss in losses] == [(str(path), table["skip"]["lost"])]


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if "skip" not in table])
def test_a_sound_golden_file_loses_nothing_with_skip(name: str) -> None:
    table = TABLES[name]
    losses: list[tfrecord.Loss] = []
    path = GOLDEN / table["file"]
    rows = tfrecord.count(path, on_error="skip", losses=losses)
    assert losses == []
    assert rows == tfrecord.count(path)
