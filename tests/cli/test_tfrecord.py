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
    assert _invoke(["tfrecord", "head", "--json", "-c", "id", "-n", "4", str(file), str(file)]) == 0
    assert capsys.readouterr().out == '{"id": 1}\n{"id": 2}\n{"id": 3}\n{"id": 1}\n'
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
    assert _invoke(["tfrecord", "convert", "--skip", "--json", str(file), str(file.with_suffix(".jsonl"))]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["records"], said["lost"]) == (2, 1)


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


def test_bytes_and_lists_go_through_json_lines_and_back(tmp_path: Path) -> None:
    table = pa.table({"b": [b"\xff\x00", None], "l": [[b"a", b"\x80"], []], "n": [[1, 2], [3]]})
    file, other, back = (str(tmp_path / name) for name in ("a.tfrecord", "a.jsonl", "back.tfrecord"))
    tfrecord.write(table, file)
    assert _invoke(["tfrecord", "convert", file, other]) == 0
    assert _invoke(["tfrecord", "convert", other, back]) == 0
    assert tfrecord.read(back).read_all() == table


@pytest.mark.parametrize(("column", "what"), [([[1, 2]], "lists"), ([b"\xff"], "bytes")])
def test_convert_refuses_what_csv_cannot_hold_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], column: list[object], what: str
) -> None:
    tfrecord.write(pa.table({"x": column}), tmp_path / "a.tfrecord")
    assert _invoke(["tfrecord", "convert", str(tmp_path / "a.tfrecord"), str(tmp_path / "x.csv")]) == 2
    assert f"CSV cannot hold the {what} of column 'x' (leave it out, or use .jsonl)" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["a.tfrecord"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.parquet", b"no parquet"),
        ("a.csv", b"a,b\n1\n"),
        ("a.csv", b""),
        ("a.jsonl", b'{"a": 1}\n{"a": '),
        ("a.jsonl", b'{"a": {"base64": "?"}}\n'),
        ("a.jsonl", b""),
    ],
)
def test_a_source_of_another_format_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes
) -> None:
    source, target = tmp_path / name, tmp_path / "target.tfrecord"
    source.write_bytes(content)
    assert _invoke(["tfrecord", "convert", str(source), str(target)]) == 2
    said = capsys.readouterr().err
    kind = {".jsonl": "json"}.get(source.suffix, source.suffix[1:])
    assert said.startswith(f"gridflow: {source}: cannot be read as {kind} (")
    assert said.count("\n") == 1
    assert [each.name for each in tmp_path.iterdir()] == [name]
