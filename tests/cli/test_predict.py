"""`gridflow predict`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import csv, parquet

from gridflow import tfrecord
from gridflow.cli.main import _invoke


class Sums(tf.Module):  # type: ignore[misc]
    """Adds up each row."""

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")])  # type: ignore[untyped-decorator]
    def add(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"sum": tf.reduce_sum(x, axis=1)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    module, path = Sums(), tmp_path_factory.mktemp("sums")
    tf.saved_model.save(module, str(path), signatures={"serving_default": module.add})
    return str(path)


ROWS = pa.table({"id": ["a", "b", "c"], "x": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32()))})
SUMS = [3.0, 7.0, 11.0]


def test_rows_of_tfrecords_keep_their_columns(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tfrecord.write(ROWS, tmp_path / "rows.tfrecord")
    out = tmp_path / "answers.parquet"
    assert _invoke(["predict", model, str(tmp_path / "rows.tfrecord"), "--out", str(out), "--batch-size", "2"]) == 0
    assert f"{out}: 3 rows" in capsys.readouterr().out
    assert parquet.read_table(out).to_pydict() == {**ROWS.to_pydict(), "sum": SUMS}


def test_parquet_becomes_any_format_with_columns_named(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parquet.write_table(ROWS.rename_columns(["id", "pair"]), tmp_path / "rows.parquet")

    def predict(out: str, *more: str) -> int:
        words = ["predict", model, str(tmp_path / "rows.parquet"), "--out", str(tmp_path / out), "--input", "x=pair"]
        return _invoke([*words, *more])

    assert predict("a.csv", "--only-outputs", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 3
    assert csv.read_csv(tmp_path / "a.csv").to_pydict() == {"sum": SUMS}
    assert predict("a.jsonl") == 0
    assert json.loads((tmp_path / "a.jsonl").read_text().splitlines()[1]) == {"id": "b", "pair": [3, 4], "sum": 7}
    assert predict("a.tfrecord") == 0
    assert tfrecord.read(tmp_path / "a.tfrecord", columns=["sum"]).read_all().to_pydict() == {"sum": SUMS}


def test_columns_of_numbers_lie_side_by_side_in_the_input(model: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "more.csv").write_text("b,id,a\n2,x,1\n4,y,3\n")
    out = tmp_path / "out.csv"
    assert _invoke(["predict", model, str(tmp_path / "rows.csv"), "--out", str(out)]) == 0
    assert csv.read_csv(out).to_pydict() == {"a": [1, 3], "b": [2, 4], "sum": [3, 7]}
    which = ["--input", "x=a", "--input", "x=b", "--only-outputs"]
    assert _invoke(["predict", model, str(tmp_path / "more.csv"), "--out", str(out), *which]) == 0
    assert csv.read_csv(out).to_pydict() == {"sum": [3, 7]}


def test_an_array_gives_an_array(model: str, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.arange(8, dtype=np.float64).reshape(4, 2))
    assert _invoke(["predict", model, str(tmp_path / "rows.npy"), "--out", str(tmp_path / "sums.npy")]) == 0
    assert np.load(tmp_path / "sums.npy").tolist() == [1, 5, 9, 13]


def test_no_rows_give_an_empty_file_with_all_columns(model: str, tmp_path: Path) -> None:
    empty = pa.table({"x": pa.array([], pa.list_(pa.float32(), 2))})
    parquet.write_table(empty, tmp_path / "rows.parquet")
    out = tmp_path / "out.parquet"
    assert _invoke(["predict", model, str(tmp_path / "rows.parquet"), "--out", str(out)]) == 0
    assert parquet.read_table(out).schema.names == ["x", "sum"]


@pytest.mark.parametrize(
    ("rows", "words", "message"),
    [
        ("rows.npy", ["--input", "x"], "--input 'x' is not NAME=COLUMN"),
        ("rows.npy", ["--output", "mean"], "the model has no output 'mean' (it has sum)"),
        ("rows.npy", ["--signature", "other"], "has no signature 'other' (it has serving_default)"),
        ("text.npy", [], "text.npy: cannot be read as an array"),
    ],
)
def test_mistakes_are_said_in_a_line_and_nothing_is_written(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: str, words: list[str], message: str
) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((1, 2)))
    (tmp_path / "text.npy").write_text("x")
    out = tmp_path / "out.npy"
    assert _invoke(["predict", model, str(tmp_path / rows), "--out", str(out), *words]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()
