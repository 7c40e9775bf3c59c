"""The codec against TensorFlow's own protobuf classes and parser, on made-up records."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tfrecord import reference
from tests.tfrecord.make_golden import delimited, varint
from tests.tfrecord.test_golden import arrow_schema, bits, plain

from gridflow import tfrecord
from gridflow.errors import RecordError
from gridflow.tfrecord import _codec

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(width=32)
NAMES = st.sampled_from(["a", "b", "a long name of a feature, longer than sixteen bytes", "ü", ""])


@st.composite
def lists(draw: st.DrawFn, kind: str) -> bytes:
    """Draw a Feature's list on the wire: packed, unpacked, in pieces, with unknown fields between."""
    pieces = []
    for _ in range(draw(st.integers(0, 3))):
        if kind == "bytes":
            pieces.append(delimited(1, draw(st.binary(max_size=20) | st.text(max_size=10).map(str.encode))))
        elif kind == "float":
            values = np.array(draw(st.lists(FLOAT, max_size=5)), "<f4").tobytes()
            packed = draw(st.booleans())
            pieces.append(
                delimited(1, values)
                if packed
                else b"".join(b"\x0d" + values[at : at + 4] for at in range(0, len(values), 4))
            )
        else:
            numbers = draw(st.lists(INT64 | st.integers(0, 300), max_size=5))
            packed = draw(st.booleans())
            pieces.append(
                delimited(1, b"".join(map(varint, numbers)))
                if packed
                else b"".join(b"\x08" + varint(number) for number in numbers)
            )
        if draw(st.integers(0, 9)) == 0:
            pieces.append(draw(st.sampled_from([b"\x78\x01", b"\x7a\x01x", b"\x7d1234", b"\x7912345678"])))
    return b"".join(pieces)


@st.composite
def features(draw: st.DrawFn, kinds: Sequence[str] = ("int", "float", "bytes")) -> bytes:
    """Draw a Feature on the wire, at times of several kinds or none."""
    return b"".join(
        delimited({"bytes": 1, "float": 2, "int": 3}[kind], draw(lists(kind)))
        for kind in draw(st.lists(st.sampled_from(kinds), max_size=2))
    )


@st.composite
def examples(draw: st.DrawFn) -> bytes:
    """Draw an Example on the wire, at times with equal keys or in two parts."""
    parts = []
    for _ in range(draw(st.integers(0, 2))):
        entries = [
            delimited(1, delimited(1, draw(NAMES).encode()) + b"".join(delimited(2, value) for value in values))
            for values in draw(st.lists(st.lists(features(), max_size=2), max_size=5))
        ]
        parts.append(delimited(1, b"".join(entries)))
    return b"".join(parts)


def framed(payloads: Sequence[bytes]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for payload in payloads:
                writer.write(payload)
        return path.read_bytes()


def read_bytes(content: bytes, schema: pa.Schema | None = None, **options: Any) -> pa.Table:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(content)
        return tfrecord.read(path, schema, **options).read_all()


@settings(max_examples=150, deadline=None)
@given(st.lists(examples(), max_size=4))
def test_any_encoding_of_examples_is_read_as_protobuf_reads_it(payloads: list[bytes]) -> None:
    messages = [tf.train.Example.FromString(payload) for payload in payloads]
    content = framed(payloads)
    try:
        schema = reference.infer(messages)
    except reference.MisfitError as error:
        misfit = error.kind
        with pytest.raises(RecordError) as caught:
            read_bytes(content)
        assert caught.value.kind == misfit
        return
    table = read_bytes(content)
    table.validate(full=True)
    if not schema:
        assert table.num_columns == 0
        return
    assert table.schema == arrow_schema([list(pair) for pair in schema])
    assert bits(plain(table.to_pylist())) == bits(plain(reference.read(messages, schema)))


#: Names of up to 20 bytes can be predicted.
SIMILAR = {"id": "int", "x": "float", "n" * 20: "bytes", "m" * 21: "int", "y": "float"}


@st.composite
def similar_examples(draw: st.DrawFn) -> list[bytes]:
    """Draw Examples that mostly have the same scalars in the same order, so that each record predicts the next."""
    payloads = []
    for _ in range(draw(st.integers(1, 12))):
        names = list(SIMILAR)
        surprise = draw(st.sampled_from(["", "", "", "missing", "twice", "order", "list", "unpacked", "two parts"]))
        at = draw(st.integers(0, len(names) - 1))
        if surprise == "missing":
            del names[at]
        if surprise == "twice":
            names.insert(draw(st.integers(0, len(names))), names[at])
        if surprise == "order":
            names.reverse()
        entries = []
        for place, name in enumerate(names):
            kind = SIMILAR[name]
            count = 2 if surprise == "list" and place == at else 1
            values = {
                "int": lambda: varint(draw(INT64 | st.integers(0, 300))),
                "float": lambda: np.float32(draw(FLOAT)).tobytes(),
                "bytes": lambda: draw(st.text(max_size=40)).encode(),
            }
            if kind == "bytes":
                feature = delimited(1, b"".join(delimited(1, values[kind]()) for _ in range(count)))
            elif surprise == "unpacked" and place == at:
                feature = delimited(
                    {"float": 2, "int": 3}[kind], {"float": b"\x0d", "int": b"\x08"}[kind] + values[kind]()
                )
            else:
                packed = b"".join(values[kind]() for _ in range(count))
                feature = delimited({"float": 2, "int": 3}[kind], delimited(1, packed))
            entries.append(delimited(1, delimited(1, name.encode()) + delimited(2, feature)))
        halves = [entries[:at], entries[at:]] if surprise == "two parts" else [entries]
        payloads.append(b"".join(delimited(1, b"".join(half)) for half in halves))
    return payloads


@settings(max_examples=150, deadline=None)
@given(similar_examples(), st.data())
def test_records_that_resemble_each_other_until_they_do_not_are_read_as_protobuf_reads_them(
    payloads: list[bytes], data: st.DataObject
) -> None:
    messages = [tf.train.Example.FromString(payload) for payload in payloads]
    schema = reference.infer(messages)
    columns = data.draw(st.lists(st.sampled_from([name for name, _ in schema]), min_size=1, unique=True))
    chosen = [(name, kind) for name, kind in schema if name in columns]
    table = read_bytes(framed(payloads), arrow_schema([list(pair) for pair in chosen]), batch_size=5)
    table.validate(full=True)
    assert bits(plain(table.to_pylist())) == bits(plain(reference.read(messages, chosen)))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(examples(), min_size=1, max_size=4),
    st.dictionaries(
        NAMES,
        st.sampled_from(
            ["bigint", "int", "double", "string", "array<bigint>", "array<float>", "array<binary>", "void"]
        ),
        min_size=1,
    ),
)
def test_any_schema_reads_what_protobuf_reads_or_fails_at_the_same_record(
    payloads: list[bytes], wanted: dict[str, str]
) -> None:
    messages = [tf.train.Example.FromString(payload) for payload in payloads]
    schema = list(wanted.items())
    try:
        rows = reference.read(messages, schema)
    except reference.MisfitError as error:
        misfit = error.record
        with pytest.raises(RecordError) as caught:
            read_bytes(framed(payloads), arrow_schema([list(pair) for pair in schema]))
        assert caught.value.record == misfit
        return
    table = read_bytes(framed(payloads), arrow_schema([list(pair) for pair in schema]))
    assert bits(plain(table.to_pylist())) == bits(plain(rows))


@settings(max_examples=150, deadline=None)
@given(examples() | st.binary(max_size=40), st.data())
def test_what_protobuf_reads_is_read_and_what_it_refuses_is_never_a_crash(payload: bytes, data: st.DataObject) -> None:
    if payload and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload = payload[:at] + bytes([data.draw(st.integers(0, 255))]) + payload[at + 1 :]
    inference = _codec.Inference("Example", 1 << 30, False, True, -1)
    inference.append(framed([payload]))
    inference.finish()
    try:
        message = tf.train.Example.FromString(payload)
    except Exception:  # noqa: BLE001  protobuf's DecodeError is of no fixed class
        message = None
    try:
        inference.look()
        names = set(inference.features())
    except _codec.CodecError as error:
        kind = error.args[0]
        assert kind == "message"
        assert message is None
        return
    if message is not None:
        assert set(message.features.feature) <= names


ARROW_COLUMNS = {
    "i": (pa.int64(), INT64),
    "i32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "i8": (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    "i16": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "u8": (pa.uint8(), st.integers(0, 2**8 - 1)),
    "u16": (pa.uint16(), st.integers(0, 2**16 - 1)),
    "u32": (pa.uint32(), st.integers(0, 2**32 - 1)),
    "u64": (pa.uint64(), st.integers(0, 2**63 - 1)),
    "flag": (pa.bool_(), st.booleans()),
    "f": (pa.float32(), FLOAT),
    "d": (pa.float64(), FLOAT),
    "s": (pa.string(), st.text(max_size=20)),
    "b": (pa.binary(), st.binary(max_size=20)),
    "ls": (pa.large_string(), st.text(max_size=5)),
    "sv": (pa.string_view(), st.text(max_size=20)),
    "b4": (pa.binary(4), st.binary(min_size=4, max_size=4)),
    "dict": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["one", "two", ""])),
    "li": (pa.list_(pa.int64()), st.lists(INT64, max_size=20)),
    "lf": (pa.list_(pa.float32()), st.lists(FLOAT, max_size=40)),
    "lb": (pa.large_list(pa.binary()), st.lists(st.binary(max_size=200), max_size=3)),
    "pair": (pa.list_(pa.float32(), 2), st.lists(FLOAT, min_size=2, max_size=2)),
}
NESTED_COLUMNS = {
    "nested": (pa.list_(pa.list_(pa.int64())), st.lists(st.none() | st.lists(INT64, max_size=3), max_size=3)),
    "texts": (pa.list_(pa.list_(pa.string())), st.lists(st.lists(st.text(max_size=5), max_size=3), max_size=3)),
}


@st.composite
def tables(draw: st.DrawFn, columns: dict[str, Any]) -> pa.Table:
    names = draw(st.lists(st.sampled_from(sorted(columns)), unique=True, min_size=1))
    rows = draw(st.integers(0, 6))
    made = {
        name: pa.array(draw(st.lists(st.none() | columns[name][1], min_size=rows, max_size=rows)), columns[name][0])
        for name in names
    }
    table = pa.table(made)
    skipped = draw(st.integers(0, rows))
    return table.slice(skipped)


@settings(max_examples=100, deadline=None)
@given(tables(ARROW_COLUMNS))
def test_a_table_comes_back_as_it_was_written_and_protobuf_reads_the_same(table: pa.Table) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.tfrecord"
        assert tfrecord.write(table, path) == table.num_rows
        back = tfrecord.read(path, table.schema).read_all()
        messages = [tf.train.Example.FromString(raw.numpy()) for raw in tf.data.TFRecordDataset(str(path))]
    assert bits(plain(back.to_pylist())) == bits(plain(table.to_pylist()))
    for message, row in zip(messages, table.to_pylist(), strict=True):
        assert {name for name, cell in row.items() if cell is not None} == set(message.features.feature)
        for name, cell in row.items():
            if cell is not None:
                found = reference.feature_values(message.features.feature[name])
                cells = cell if isinstance(cell, list) else [cell]
                cells = [each.encode() if isinstance(each, str) else each for each in cells]
                assert found is not None
                assert bits(plain(found[1])) == bits(plain([int(c) if isinstance(c, bool) else c for c in cells]))


@settings(max_examples=100, deadline=None)
@given(tables({**ARROW_COLUMNS, **NESTED_COLUMNS}))
def test_a_nested_table_comes_back_as_sequence_examples(table: pa.Table) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.tfrecord"
        tfrecord.write(table, path, record_type="SequenceExample")
        back = tfrecord.read(path, table.schema, record_type="SequenceExample").read_all()
        messages = [tf.train.SequenceExample.FromString(raw.numpy()) for raw in tf.data.TFRecordDataset(str(path))]
    assert bits(plain(back.to_pylist())) == bits(plain(table.to_pylist()))
    nested = [name for name in table.column_names if name in NESTED_COLUMNS]
    for message, row in zip(messages, table.to_pylist(), strict=True):
        assert {name for name in nested if row[name] is not None} == set(message.feature_lists.feature_list)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(INT64, FLOAT, st.binary(max_size=9), st.lists(INT64, max_size=4)), min_size=1, max_size=5))
def test_the_feature_spec_lets_parse_example_read_the_same(rows: list[Any]) -> None:
    i, f, s, many = zip(*rows, strict=True)
    table = pa.table({"i": i, "f": pa.array(f, pa.float32()), "s": s, "many": pa.array(many, pa.list_(pa.int64()))})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.tfrecord"
        tfrecord.write(table, path)
        records = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
        parsed = tf.io.parse_example(records, tfrecord.feature_spec(table.schema))
        (ours,) = tfrecord.dataset(path, len(rows), table.schema)
    for name in table.column_names:
        is_ragged = name == "many"
        theirs = parsed[name].to_list() if is_ragged else parsed[name].numpy().tolist()
        mine = ours[name].to_list() if is_ragged else ours[name].numpy().tolist()
        assert bits(plain(mine)) == bits(plain(theirs))
        assert bits(plain(mine)) == bits(plain(table[name].to_pylist()))


@given(st.binary(max_size=4000))
def test_both_ways_to_a_checksum_agree(data: bytes) -> None:
    assert _codec.crc32c(data) == _codec.crc32c_table(data)


def test_the_checksum_is_that_of_the_standard() -> None:
    # RFC 3720, appendix B.4
    assert _codec.crc32c(b"\x00" * 32) == 0x8A9136AA
    assert _codec.crc32c(bytes(range(32))) == 0x46DD794E
    assert _codec.crc32c_table(b"\xff" * 32) == 0x62A8AB43
