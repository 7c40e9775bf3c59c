"""Arrow columns as tensors and arrays."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from gridflow.errors import SchemaError
from gridflow.tensors import Layout

TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(st.characters(exclude_categories=["Cs"]))),
    (pa.large_binary(), st.binary()),
]


def tensors(layout: Layout, batch: pa.RecordBatch) -> dict[str, Any]:
    return layout.assemble(*map(tf.constant, layout.flatten(batch)))


def listed(value: Any) -> Any:
    if isinstance(value, np.ndarray | list):
        return [listed(each) for each in value]
    return value.encode() if isinstance(value, str) else value


@settings(max_examples=60, deadline=None)
@given(data=st.data(), chosen=st.sampled_from(TYPES), depth=st.integers(0, 2), start=st.integers(0, 3))
def test_tensors_and_arrays_hold_what_the_column_holds(
    data: st.DataObject, chosen: tuple[pa.DataType, st.SearchStrategy[Any]], depth: int, start: int
) -> None:
    type_, values = chosen
    for _ in range(depth):
        type_, values = pa.list_(type_), st.lists(values, max_size=4)
    rows = data.draw(st.lists(values, max_size=12))
    # A part of a batch shares its buffers with the whole.
    batch = pa.record_batch({"c": pa.array(rows, type_)}).slice(start)
    layout = Layout(batch.schema)
    tensor = tensors(layout, batch)["c"]
    assert layout.spec(None)["c"].is_compatible_with(tensor)
    assert (tensor.to_list() if depth else tensor.numpy().tolist()) == listed(rows[start:])
    assert listed(layout.arrays(batch)["c"].tolist()) == listed(rows[start:])


def test_lists_of_a_known_length_are_tensors_of_that_shape() -> None:
    batch = pa.record_batch({"c": [[1, 2, 3, 4], [5, 6, 7, 8]], "s": [["a", "b"], ["c", ""]]})
    layout = Layout(batch.schema, lengths={"c": 4, "s": 2}, shapes={"c": [2, 2]})
    assert layout.spec(2) == {"c": tf.TensorSpec([2, 2, 2], tf.int64), "s": tf.TensorSpec([2, 2], tf.string)}
    made = tensors(layout, batch)
    assert made["c"].numpy().tolist() == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
    assert made["s"].numpy().tolist() == [[b"a", b"b"], [b"c", b""]]
    assert layout.arrays(batch)["s"].tolist() == [["a", "b"], ["c", ""]]
    with pytest.raises(
        SchemaError, match=r"column 'c' has a list of 1 values, where lists of 4 came before \(pass ragged"
    ):
        layout.flatten(pa.record_batch({"c": [[1]], "s": [["a", "b"]]}))


@pytest.mark.parametrize("type_", [pa.binary(), pa.large_binary(), pa.binary(4)], ids=str)
def test_bytes_with_a_shape_are_numbers_that_are_not_copied(type_: pa.DataType) -> None:
    whole = pa.record_batch({"c": pa.array([b"xxxx", b"\0\1\2\3", b"\xff\0ab"], type_)})
    batch = whole.slice(1)
    layout = Layout(batch.schema, shapes={"c": [2, 2]})
    assert layout.spec(2) == {"c": tf.TensorSpec([2, 2, 2], tf.uint8)}
    expected = [[[0, 1], [2, 3]], [[255, 0], [97, 98]]]
    assert tensors(layout, batch)["c"].numpy().tolist() == expected
    assert layout.arrays(batch)["c"].tolist() == expected
    held = np.frombuffer(whole.column(0).buffers()[-1], np.uint8)
    assert np.shares_memory(layout.arrays(batch)["c"], held) or type_ == pa.binary(4)
    assert Layout(batch.schema, shapes={"c": [4]}).arrays(batch.slice(2))["c"].shape == (0, 4)


def test_bytes_that_do_not_fill_their_shape_are_an_error_and_missing_ones_need_a_default() -> None:
    batch = pa.record_batch({"c": pa.array([b"abc", None])})
    with pytest.raises(SchemaError, match="column 'c' has nulls, which no tensor can hold"):
        Layout(batch.schema, shapes={"c": [3]}).flatten(batch)
    layout = Layout(batch.schema, shapes={"c": [3]}, defaults={"c": b"\0\0\1"})
    assert layout.arrays(batch)["c"].tolist() == [[97, 98, 99], [0, 0, 1]]
    with pytest.raises(SchemaError, match=r"column 'c' has a row of 2 bytes, where its shape takes 3 \(leave it out"):
        layout.flatten(pa.record_batch({"c": pa.array([b"ab", b"abc"])}))
    with pytest.raises(SchemaError, match="shapes: column 'c' is string, and cannot be of shape"):
        Layout(pa.schema([("c", pa.string())]), shapes={"c": [3]})


def test_dictionaries_and_decimals_become_what_they_stand_for() -> None:
    batch = pa.record_batch({"d": pa.array(["x", "y", "x"]).dictionary_encode(), "p": [Decimal("1.5")] * 3})
    made = tensors(Layout(batch.schema), batch)
    assert made["d"].numpy().tolist() == [b"x", b"y", b"x"]
    assert made["p"].numpy().tolist() == [1.5] * 3


def test_nulls_inside_lists_need_defaults_too() -> None:
    batch = pa.record_batch({"c": [[1, None], None]})
    with pytest.raises(SchemaError, match="column 'c' has nulls, which no tensor can hold"):
        Layout(batch.schema).flatten(batch)
    assert tensors(Layout(batch.schema, defaults={"c": 0}), batch)["c"].to_list() == [[1, 0], []]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shapes": {"x": (1,)}}, r"shapes names 'x', which is no column \(there are \['n', 'v', 'f'\]\)"),
        ({"ragged": ["n"]}, "column 'n' is int64, which cannot be ragged"),
        ({"shapes": {"n": (1,)}}, r"shapes: column 'n' is int64, and cannot be of shape \(1,\)"),
        ({"shapes": {"f": (3,)}}, r"shapes: column 'f' has 2 values a row, and cannot be of shape \(3,\)"),
        ({"shapes": {"v": (3,)}, "ragged": ["v"]}, r"shapes: column 'v' is ragged, and cannot be of shape \(3,\)"),
    ],
)
def test_options_that_do_not_fit_the_columns_are_refused(options: dict[str, Any], message: str) -> None:
    schema = pa.schema({"n": pa.int64(), "v": pa.list_(pa.int64()), "f": pa.list_(pa.int64(), 2)})
    with pytest.raises(SchemaError, match=message):
        Layout(schema, **options)
