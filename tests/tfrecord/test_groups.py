"""Records that are decoded in groups, and the one among them that is not like the others."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from tests.tfrecord import reference
from tests.tfrecord.make_golden import delimited, varint
from tests.tfrecord.test_damage import record
from tests.tfrecord.test_golden import arrow_schema, bits, plain

from gridflow import tfrecord
from gridflow.errors import RecordError

#: Names of many sizes, since their bytes are compared by the word; types that have a loop of their own, and others.
SCHEMA = [
    ("i", "bigint"),
    ("integer", "bigint"),
    ("an integer", "bigint"),
    ("x", "float"),
    ("a float of 19 bytes", "float"),
    ("text", "string"),
    ("raw", "binary"),
    ("narrow", "int"),
    ("wide", "double"),
    ("many", "array<float>"),
    ("a name of more than 32 bytes: text", "string"),
    ("last", "bigint"),
]
COUNT = 300
#: A group has 64 records at most, and grows from one; batches of 100 cut some short.
PLACES = [0, 1, 2, 3, 62, 63, 64, 65, 99, 100, 127, 130, 298, 299]

Entries = dict[str, bytes]


def integers(*values: int) -> bytes:
    return delimited(3, delimited(1, b"".join(map(varint, values))))


def floats(*values: float) -> bytes:
    return delimited(2, delimited(1, np.array(values, "<f4").tobytes()))


def strings(*values: bytes) -> bytes:
    return delimited(1, b"".join(delimited(1, value) for value in values))


def usual(row: int) -> Entries:
    """Return what a record has; numbers and strings of all short sizes come by."""
    return {
        "i": integers(1 << row % 56),
        "integer": integers(row),
        "an integer": integers((1 << 7 * (row % 8)) - 1),
        "nobody asked": integers(row << 20),
        "x": floats(row / 7),
        "not for this": floats(row),
        "a float of 19 bytes": floats(-row),
        "text": strings(b"text " * (row % 19)),
        "raw": strings(bytes(range(row % 90))),
        "narrow": integers(row),
        "wide": floats(row / 3),
        "many": floats(*range(row % 70)),
        "a name of more than 32 bytes: text": strings(b"%d" % row),
        "": strings(b"empty name"),
        "last": integers(row % 5),
    }


def entry(name: str, feature: bytes) -> bytes:
    return delimited(1, delimited(1, name.encode()) + delimited(2, feature))


def example(entries: Entries) -> bytes:
    return delimited(1, b"".join(entry(name, feature) for name, feature in entries.items()))


def changed(**features: bytes) -> Callable[[Entries], bytes]:
    return lambda entries: example({**entries, **{name.replace("_", " "): value for name, value in features.items()}})


def without(*names: str) -> Callable[[Entries], bytes]:
    return lambda entries: example({name: value for name, value in entries.items() if name not in names})


def backwards(entries: Entries) -> bytes:
    return example(dict(reversed(entries.items())))


def ending_early(entries: Entries) -> bytes:
    """Return features that are said to end before the last entry, which stands behind them all the same."""
    whole = b"".join(entry(name, feature) for name, feature in entries.items())
    return b"\x0a" + varint(len(whole) - len(entry("last", entries["last"]))) + whole


def in_two_parts(entries: Entries) -> bytes:
    names = list(entries)
    return b"".join(example({name: entries[name] for name in half}) for half in (names[:4], names[4:]))


#: What can be read as well, though it is not as the other records are.
ODD: dict[str, Callable[[Entries], bytes]] = {
    "other order": backwards,
    "first missing": without("i"),
    "second of two missing": without("integer"),
    "float missing": without("a float of 19 bytes"),
    "what nobody asked for missing": without("nobody asked"),
    "last missing": without("last"),
    "all missing": without(*usual(0)),
    "extra in front": lambda entries: example({"new": integers(1), **entries}),
    "extra behind": lambda entries: example({**entries, "new": strings(b"new")}),
    "extra, longer": lambda entries: example({**entries, "new": strings(bytes(1000))}),
    "twice": lambda entries: example(entries) + example({"i": integers(77), "text": strings(b"the last")}),
    "twice in one": lambda entries: delimited(1, entry("i", integers(5)) + example(entries)[3:]),
    "twice behind": lambda entries: example(entries) + delimited(1, entry("last", integers(5))),
    "two parts": in_two_parts,
    "other field in front": lambda entries: delimited(9, b"x") + example(entries),
    "other field behind": lambda entries: example(entries) + delimited(9, b"x"),
    "negative": changed(i=integers(-1), integer=integers(-(2**63)), an_integer=integers(-5), narrow=integers(-1)),
    "nine bytes": changed(i=integers(2**62), integer=integers(2**63 - 1)),
    "zero of ten bytes": changed(integer=delimited(3, delimited(1, b"\x80" * 9 + b"\0"))),
    "zero of two bytes": changed(integer=delimited(3, delimited(1, b"\x80\0"))),
    "unpacked": changed(i=delimited(3, b"\x08\x05"), x=delimited(2, b"\x0d1234")),
    "integer in a float": changed(wide=integers(3), x=integers(4), a_float_of_19_bytes=integers(2**40)),
    "long text": changed(text=strings(b"long " * 60), raw=strings(bytes(200)), last=integers(3)),
    "text of 110 bytes": changed(text=strings(b"u" * 110), raw=strings(b"\xff" * 111)),
    "not ASCII": changed(text=strings("Zürich".encode()), raw=strings("Ångström".encode())),
    "long and not ASCII": changed(text=strings(("o" * 40 + "ö").encode())),
    "empty text": changed(text=strings(b""), raw=strings(b"")),
    "without a kind": changed(i=b"", text=b"", many=b""),
    "empty list": changed(many=delimited(2, b"")),
    "longer list": changed(many=floats(*range(5000))),
    "kind of what nobody asked for": changed(nobody_asked=strings(b"1", b"2"), not_for_this=integers(1, 2, 3)),
    "length of two bytes": lambda entries: delimited(1, b"\x0a\x85\x00\x0a\x01i\x12\x00") + without("i")(entries),
}

#: What no column can hold, and what kind of error it is.
BAD: dict[str, tuple[str, Callable[[Entries], bytes]]] = {
    "text in an integer": ("kind", changed(integer=strings(b"text"))),
    "float in an integer": ("kind", changed(integer=floats(1.0))),
    "integer in a text": ("kind", changed(text=integers(1))),
    "two integers": ("count", changed(i=integers(1, 2))),
    "two floats": ("count", changed(x=floats(1.0, 2.0))),
    "two texts": ("count", changed(text=strings(b"one", b"two"))),
    "two doubles": ("count", changed(wide=floats(1.0, 2.0))),
    "no integer": ("count", changed(last=delimited(3, b""))),
    "out of range": ("range", changed(narrow=integers(2**31))),
    "not UTF-8": ("utf8", changed(text=strings(b"\xff"))),
    "not UTF-8 at the end": ("utf8", changed(text=strings(b"a" * 60 + b"\xc3"))),
    "text of a long name that is not UTF-8": (
        "utf8",
        lambda entries: example({**entries, SCHEMA[10][0]: strings(b"\x80")}),
    ),
    "cut": ("message", lambda entries: example(entries)[:-1]),
    "cut in its middle": ("message", lambda entries: example(entries)[:40]),
    "cut inside": ("message", lambda entries: delimited(1, example(entries)[3:-1])),
    "entry behind the features": ("message", ending_early),
    "integer that goes on": ("message", changed(integer=delimited(3, delimited(1, b"\x80")))),
    "integer of eleven bytes": ("message", changed(i=delimited(3, delimited(1, b"\x80" * 10 + b"\0")))),
    "longer than what is around it": ("message", lambda entries: example(entries) + b"\x0a\x7f"),
}


@cache
def usual_payloads() -> tuple[bytes, ...]:
    return tuple(example(usual(row)) for row in range(COUNT))


@cache
def usual_rows() -> tuple[reference.Row, ...]:
    return tuple(expected_row(payload) for payload in usual_payloads())


def expected_row(payload: bytes) -> reference.Row:
    return reference.read([tf.train.Example.FromString(payload)], SCHEMA)[0]


def with_odd(place: int, payload: bytes) -> bytes:
    payloads = list(usual_payloads())
    payloads[place] = payload
    return b"".join(map(record, payloads))


def check(table: pa.Table, rows: list[reference.Row], names: list[str]) -> None:
    table.validate(full=True)
    wanted = [{name: row[name] for name in names} for row in rows]
    assert bits(plain(table.to_pylist())) == bits(plain(wanted))


@pytest.mark.parametrize("names", [[name for name, _ in SCHEMA], ["last", "text", "integer"], ["many"]], ids=len)
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_record_anywhere_in_a_group_is_read_as_protobuf_reads_it(
    tmp_path: Path, odd: str, names: list[str]
) -> None:
    path = tmp_path / "file.tfrecord"
    schema = arrow_schema([[name, kind] for name, kind in SCHEMA if name in names])
    for place in PLACES:
        payload = ODD[odd](usual(place))
        path.write_bytes(with_odd(place, payload))
        rows = list(usual_rows())
        rows[place] = expected_row(payload)
        check(tfrecord.read(path, schema, batch_size=100).read_all(), rows, schema.names)


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_record_anywhere_in_a_group_is_named_and_can_be_skipped(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "file.tfrecord"
    schema = arrow_schema([list(pair) for pair in SCHEMA])
    kind, make = BAD[bad]
    for place in PLACES:
        payload = make(usual(place))
        path.write_bytes(with_odd(place, payload))
        with pytest.raises(RecordError) as caught:
            tfrecord.read(path, schema, batch_size=100).read_all()
        offset = sum(len(other) + 16 for other in usual_payloads()[:place])
        assert (caught.value.kind, caught.value.record, caught.value.offset) == (kind, place, offset)
        losses: list[tfrecord.Loss] = []
        left = tfrecord.read(path, schema, batch_size=100, on_error="skip", losses=losses).read_all()
        check(left, [row for number, row in enumerate(usual_rows()) if number != place], schema.names)
        assert losses == [tfrecord.Loss(str(path), 1, len(payload) + 16)]


@pytest.mark.parametrize("odd", ["first missing", "other order", "long text", "negative"])
@pytest.mark.parametrize("every", [1, 2, 3, 10, 70])
def test_odd_records_may_come_as_often_as_they_like(tmp_path: Path, odd: str, every: int) -> None:
    path = tmp_path / "file.tfrecord"
    payloads = [ODD[odd](usual(row)) if row % every == 0 else usual_payloads()[row] for row in range(COUNT)]
    path.write_bytes(b"".join(map(record, payloads)))
    schema = arrow_schema([list(pair) for pair in SCHEMA])
    check(tfrecord.read(path, schema).read_all(), [expected_row(payload) for payload in payloads], schema.names)


@pytest.mark.parametrize("place", PLACES)
def test_what_is_before_a_damage_is_told_first(tmp_path: Path, place: int) -> None:
    """Records are framed ahead of those that are decoded."""
    path = tmp_path / "file.tfrecord"
    content = bytearray(b"".join(map(record, usual_payloads())))
    starts = [0]
    while starts[-1] < len(content):
        starts.append(starts[-1] + struct.unpack_from("<Q", content, starts[-1])[0] + 16)
    content[starts[place] + 20] ^= 1
    path.write_bytes(content)
    schema = arrow_schema([list(pair) for pair in SCHEMA])
    batches: list[pa.RecordBatch] = []
    with pytest.raises(RecordError, match="the checksum of the record's data is wrong") as caught:
        batches.extend(tfrecord.read(path, schema, batch_size=10, threads=1))
    assert (caught.value.record, caught.value.offset) == (place, starts[place])
    assert len(batches) == place // 10
    left = tfrecord.read(path, schema, on_error="skip").read_all()
    check(left, [row for number, row in enumerate(usual_rows()) if number != place], schema.names)


def test_a_bad_record_before_a_damage_is_told_first(tmp_path: Path) -> None:
    path = tmp_path / "file.tfrecord"
    _, make = BAD["not UTF-8"]
    content = bytearray(with_odd(100, make(usual(100))))
    content[sum(len(payload) + 16 for payload in usual_payloads()[:105])] ^= 1
    path.write_bytes(content)
    schema = arrow_schema([list(pair) for pair in SCHEMA])
    with pytest.raises(RecordError, match="is not UTF-8") as caught:
        tfrecord.read(path, schema).read_all()
    assert caught.value.record == 100


@pytest.mark.parametrize("column", ["s", "other"])
@pytest.mark.parametrize("place", PLACES)
def test_an_entry_that_is_longer_than_what_is_around_it_is_not_taken(tmp_path: Path, place: int, column: str) -> None:
    """The last two bytes of the text are a field of their own if the features are said to end before them."""
    usual_payload = example({"s": strings(b"textx\x01")})
    features = usual_payload[2:]
    payloads = [usual_payload] * COUNT
    payloads[place] = b"\x0a" + varint(len(features) - 2) + features
    path = tmp_path / "file.tfrecord"
    path.write_bytes(b"".join(map(record, payloads)))
    with pytest.raises(RecordError, match="a field is longer than what is around it") as caught:
        tfrecord.read(path, pa.schema([(column, pa.string())])).read_all()
    assert caught.value.record == place
