"""`gridflow tfrecord`."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from gridflow import tfrecord
from gridflow.cli.main import _invoke

TABLE = pa.table({"id": [1, 2, 3], "text": ["one", "two", None]})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tfrecord.write(TABLE, tmp_path / "data.tfrecord")
    return tmp_path / "data.tfrecord"


def test_head_schema_and_count_show_what_is_there(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _invoke(["tfrecord", "head", "-n", "1", str(file)]) == 0
    assert capsys.readouterr().out == 'record 0\n  id: 1\n  text: "one"\n'
    assert _invoke(["tfrecord", "head", "--json", "-c", "text", str(file)]) == 0
    assert capsys.readouterr().out == '{"text": "one"}\n{"text": "two"}\n{"text": null}\n'
    assert _invoke(["tfrecord", "schema", str(file)]) == 0
    assert capsys.readouterr().out == "id    int64\ntext  string\n"
    assert _invoke(["tfrecord", "count", str(file), str(file)]) == 0
    assert capsys.readouterr().out == "6\n"


def test_verify_leaves_with_1_and_says_where_the_damage_is(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _invoke(["tfrecord", "verify", str(file)]) == 0
    assert ": sound, 3 records, " in capsys.readouterr().out
    file.write_bytes(file.read_bytes()[:-1])
    assert _invoke(["tfrecord", "verify", "--json", str(file)]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "cut"
    assert _invoke(["tfrecord", "count", str(file)]) == 1
    assert "record 2 at byte " in capsys.readouterr().err
    assert _invoke(["tfrecord", "count", "--skip", "--json", str(file)]) == 0
    assert json.loads(capsys.readouterr().out) == {"records": 2, "lost": 1}


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_convert_goes_there_and_back(file: Path, tmp_path: Path, ending: str) -> None:
    other, back = tmp_path / f"other.{ending}", tmp_path / "back.tfrecord.gz"
    assert _invoke(["tfrecord", "convert", str(file), str(other)]) == 0
    assert _invoke(["tfrecord", "convert", str(other), str(back)]) == 0
    # CSV has no null: an empty text is what is left of it.
    expected = TABLE.set_column(1, "text", [["one", "two", ""]]) if ending == "csv" else TABLE
    assert tfrecord.read(back).read_all().to_pylist() == expected.to_pylist()
    if ending == "parquet":
        assert parquet.read_table(other).equals(TABLE)


def test_convert_refuses_lists_in_csv_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tfrecord.write(pa.table({"l": [[1, 2]]}), tmp_path / "lists.tfrecord")
    assert _invoke(["tfrecord", "convert", str(tmp_path / "lists.tfrecord"), str(tmp_path / "x.csv")]) == 2
    assert "CSV cannot hold the lists of column 'l'" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["lists.tfrecord"]
