"""Records as tensors, decoded by the codec."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import tensorflow as tf

from gridflow import tfrecord
from gridflow.errors import SchemaError


def test_a_dataset_has_named_columns_of_the_right_shapes(tmp_path: Path) -> None:
    table = pa.table(
        {
            "label": [0, 1, 2, 3, 4],
            "image": pa.array([[float(row), 0.5] for row in range(5)], pa.list_(pa.float32(), 2)),
            "tags": pa.array([["a"], [], ["b", "c"], None, [""]]),
            "name": ["zero", "", "two", "three", ""],
        }
    )
    tfrecord.write(table, tmp_path / "f")
    dataset = tfrecord.dataset(tmp_path / "f", 2, table.schema)
    assert dataset.element_spec["label"] == tf.TensorSpec([None], tf.int64)
    assert dataset.element_spec["image"] == tf.TensorSpec([None, 2], tf.float32)
    assert dataset.element_spec["tags"] == tf.RaggedTensorSpec([None, None], tf.string, 1)
    batches = list(dataset)
    assert [batch["label"].numpy().tolist() for batch in batches] == [[0, 1], [2, 3], [4]]
    assert batches[1]["image"].numpy().tolist() == [[2.0, 0.5], [3.0, 0.5]]
    assert [batch["tags"].to_list() for batch in batches] == [[[b"a"], []], [[b"b", b"c"], []], [[b""]]]
    assert [batch["name"].numpy().tolist() for batch in batches] == [[b"zero", b""], [b"two", b"three"], [b""]]
    assert len(list(tfrecord.dataset(tmp_path / "f", 2, table.schema, drop_remainder=True))) == 2
    assert len(list(dataset)) == 3


def test_feature_lists_become_ragged_tensors(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2], "steps": [[[1, 2], [3]], []]})
    tfrecord.write(table, tmp_path / "f", record_type="SequenceExample")
    (batch,) = tfrecord.dataset(tmp_path / "f", 5, record_type="SequenceExample")
    assert batch["steps"].to_list() == [[[1, 2], [3]], []]


def test_nulls_need_defaults(tmp_path: Path) -> None:
    tfrecord.write(pa.table({"a": [1, None]}), tmp_path / "f")
    with pytest.raises(tf.errors.UnknownError, match="column 'a' has nulls"):
        list(tfrecord.dataset(tmp_path / "f", 2))
    (batch,) = tfrecord.dataset(tmp_path / "f", 2, defaults={"a": -1})
    assert batch["a"].numpy().tolist() == [1, -1]
    with pytest.raises(SchemaError, match="defaults names 'b', which is no column"):
        tfrecord.dataset(tmp_path / "f", 2, defaults={"b": 0})


def test_the_feature_spec_follows_the_schema() -> None:
    schema = pa.schema(
        [
            ("i", pa.int32()),
            ("d", pa.float64()),
            ("s", pa.string()),
            ("l", pa.list_(pa.binary())),
            ("x", pa.list_(pa.float32(), 3)),
        ]
    )
    assert tfrecord.feature_spec(schema, {"i": 7}) == {
        "i": tf.io.FixedLenFeature([], tf.int64, 7),
        "d": tf.io.FixedLenFeature([], tf.float32),
        "s": tf.io.FixedLenFeature([], tf.string),
        "l": tf.io.RaggedFeature(tf.string),
        "x": tf.io.FixedLenFeature([3], tf.float32),
    }
    with pytest.raises(SchemaError, match="Example cannot hold"):
        tfrecord.feature_spec(pa.schema([("n", pa.list_(pa.list_(pa.int64())))]))
