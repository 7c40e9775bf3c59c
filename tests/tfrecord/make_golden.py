"""Writes tests/tfrecord/golden/: small files that the C++ and the Java codec must both read in the same way.

    python -m tests.tfrecord.make_golden

What is expected comes from TensorFlow's own writer and protobuf classes through reference.py; of damaged files, the
error is written here. golden/README.md describes the form.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf
from tests.tfrecord import reference

GOLDEN = Path(__file__).parent / "golden"

Schema = list[tuple[str, str]]
Example = tf.train.Example
SequenceExample = tf.train.SequenceExample


@dataclass
class Golden:
    """A file and what reading it gives."""

    name: str
    content: bytes
    record_type: str = "Example"
    reads: list[dict[str, Any]] = field(default_factory=list)
    skip: dict[str, Any] | None = None

    def write(self) -> None:
        (GOLDEN / self.name).write_bytes(self.content)
        table: dict[str, Any] = {"file": self.name, "record_type": self.record_type, "reads": self.reads}
        if self.skip is not None:
            table["skip"] = self.skip
        (GOLDEN / f"{self.name}.json").write_text(json.dumps(table, indent=1, default=encode) + "\n")


def encode(value: Any) -> Any:
    """Give JSON what it has no form for."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    raise TypeError(type(value))


def cells(value: Any) -> Any:
    """Replace floats that JSON has no form for by their names."""
    if isinstance(value, dict):
        return {name: cells(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [cells(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def frame(payload: bytes) -> bytes:
    """Frame one record as TensorFlow's own writer does."""
    path = GOLDEN / ".frame"
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(payload)
    content = path.read_bytes()
    path.unlink()
    return content


def feature(values: Sequence[Any] | None, kind: type | None = None) -> Any:
    """Make a feature; None has no kind, and the kind of an empty list must be told."""
    if values is None:
        return tf.train.Feature()
    kind = kind or type(values[0])
    if kind is int:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    if kind is float:
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def example(**features: Any) -> Any:
    """Make an Example from lists."""
    made = {name: value if isinstance(value, tf.train.Feature) else feature(value) for name, value in features.items()}
    return Example(features=tf.train.Features(feature=made))


def sequence(context: dict[str, Any], lists: dict[str, list[Any]]) -> Any:
    """Make a SequenceExample from lists and lists of lists."""
    made = {
        name: tf.train.FeatureList(
            feature=[value if isinstance(value, tf.train.Feature) else feature(value) for value in values]
        )
        for name, values in lists.items()
    }
    return SequenceExample(context=example(**context).features, feature_lists=tf.train.FeatureLists(feature_list=made))


def readable(
    name: str,
    messages: Sequence[Any],
    *schemas: Schema,
    payloads: Sequence[bytes] | None = None,
    pack: Callable[[bytes], bytes] = bytes,
) -> Golden:
    """Describe a sound file: its inferred schema and rows, and those that some given schemas lead to.

    `payloads` are the wire bytes, if they are to be others than the message's own.
    """
    payloads = [message.SerializeToString(deterministic=True) for message in messages] if payloads is None else payloads
    for message, payload in zip(messages, payloads, strict=True):
        assert type(message).FromString(payload) == message or has_nan(message), name
    records = [frame(payload) for payload in payloads]
    is_sequence = bool(messages) and isinstance(messages[0], SequenceExample)
    golden = Golden(name, pack(b"".join(records)), "SequenceExample" if is_sequence else "Example")
    for schema in (None, *schemas):
        entry: dict[str, Any] = {"schema": schema}
        try:
            if schema is None:
                entry["inferred"] = reference.infer(messages)
            entry["rows"] = cells(reference.read(messages, entry.get("inferred") or schema or []))
        except reference.MisfitError as error:
            offset = None if error.record is None else sum(map(len, records[: error.record]))
            entry["error"] = {
                "kind": error.kind,
                "record": error.record,
                "offset": offset,
                "column": error.column,
            }
        golden.reads.append(entry)
    return golden


def has_nan(message: Any) -> bool:
    return "nan" in str(message)


def damaged(
    name: str, content: bytes, kind: str, record: int, offset: int, *, survivors: Sequence[Any], lost: int
) -> Golden:
    """Describe a file whose reading ends with an error, and what is left of it where bad records are skipped."""
    schema = [("id", "bigint"), ("text", "string")]
    error = {"kind": kind, "record": record, "offset": offset, "column": None}
    rows = cells(reference.read(survivors, schema))
    return Golden(
        name, content, reads=[{"schema": schema, "error": error}], skip={"schema": schema, "rows": rows, "lost": lost}
    )


def varint(value: int) -> bytes:
    value &= 2**64 - 1  # negative ones are written as their complement
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def delimited(number: int, payload: bytes) -> bytes:
    """Encode a field of wire type 2."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def entry(key: str, *values: bytes) -> bytes:
    """Encode an entry of the map of features; `values` are the wire bytes of its Feature, given once or more."""
    return delimited(1, delimited(1, key.encode()) + b"".join(delimited(2, value) for value in values))


def sound_examples() -> list[Golden]:
    """Make Examples of each kind, and of each absence."""
    ints, floats = [0, 1, -1, 127, 128, 2**31, -(2**63), 2**63 - 1], [0.0, -0.0, 1.5, -2.25, 3.4e38, 1e-45, 0.1]
    texts = [b"", b"a", "grün".encode(), b"x" * 300]
    kinds = [
        example(i=[i], f=[f], s=[s]) for i, f, s in zip((1, 2, -3), (0.5, float("nan"), 1e10), texts, strict=False)
    ]
    lists = [
        example(i=ints, f=[*floats, math.inf, -math.inf], s=texts),
        example(i=[7], f=[7.5], s=[b"seven"]),
        example(
            i=feature([], int),
            f=feature([], float),
            s=feature([], bytes),
        ),
    ]
    return [
        readable(
            "scalars.tfrecord",
            kinds,
            [("i", "int"), ("f", "double"), ("s", "binary")],
            [("s", "string"), ("i", "smallint")],
            [("i", "double"), ("f", "float")],
            [("i", "array<bigint>"), ("s", "array<string>"), ("f", "array<float>")],
            [("i", "tinyint"), ("absent", "string"), ("gone", "array<float>")],
            [("i", "decimal(10,2)")],
            [("i", "string")],
            [("s", "bigint")],
            [("f", "bigint")],
            [("f", "string")],
        ),
        readable(
            "decimals.tfrecord",
            [
                example(i=[i], f=[f])
                for i, f in (
                    (0, 0.1),
                    (2**60 + 1, 2.5),
                    (-(2**63), -0.5),
                    (2**24 + 1, 2.0**24),
                    (-7, 123456792.0),
                    (5, -0.0),
                    (1, 1e-45),
                    (1, 0.3),
                    (1, 1.17549435e-38),
                    (1, 9999999.0),
                )
            ],
            [("i", "decimal(20,0)"), ("f", "decimal(30,10)")],
            [("f", "decimal(10,0)")],
            [("i", "decimal(38,18)")],
            [("f", "array<decimal(12,1)>")],
            [("i", "decimal(18,0)")],
            [("f", "decimal(9,1)")],
        ),
        readable("nan.tfrecord", [example(f=[1.0]), example(f=[math.nan])], [("f", "decimal(10,2)")]),
        readable("lists.tfrecord", lists, [("i", "bigint")], [("i", "array<int>")], [("f", "array<double>")]),
        readable("booleans.tfrecord", [example(b=[0]), example(b=[1]), example(b=[2])], [("b", "boolean")]),
        readable(
            "int-range.tfrecord", [example(i=[2**31 - 1]), example(i=[-(2**31)]), example(i=[2**31])], [("i", "int")]
        ),
        readable(
            "binary.tfrecord", [example(b=[b"\xff\x00"], t=[b"text"]), example(b=[b"ok"], t=[b""])], [("b", "string")]
        ),
        readable(
            "empty-lists-only.tfrecord",
            [example(a=feature([], int), b=feature([], bytes))] * 2,
            [("a", "array<bigint>"), ("b", "array<float>")],
            [("a", "bigint")],
        ),
        readable(
            "kindless.tfrecord",
            [example(a=None, b=[1]), example(a=[2], b=None), example(b=[3])],
            [("a", "array<bigint>")],
        ),
        readable("kindless-only.tfrecord", [example(a=None), example()]),
        readable("missing.tfrecord", [example(a=[1]), example(b=[b"x"]), example(), example(a=[4], b=[b"y"])]),
        readable("no-carry-over.tfrecord", [example(a=[1, 2], b=[b"x"]), example(), example(a=[3])]),
        readable("int-and-float.tfrecord", [example(a=[1]), example(a=[2.5]), example(a=[2**24 + 1])]),
        readable("int-and-float-lists.tfrecord", [example(a=[1, 2]), example(a=[2.5]), example(a=feature([], bytes))]),
        readable("int-and-bytes.tfrecord", [example(a=[1]), example(a=[b"x"])], [("a", "bigint")], [("a", "string")]),
        readable(
            "unicode-names.tfrecord",
            [
                Example(
                    features=tf.train.Features(
                        feature={"größe": feature([1]), "": feature([2]), "日本": feature([3]), "a b/c.d": feature([4])}
                    )
                )
            ],
        ),
        readable("zero-length-record.tfrecord", [example(), example(a=[1]), example()]),
        readable("empty.tfrecord", []),
        readable(
            "many-columns.tfrecord",
            [example(**{f"column{n:03}": [n + row] for n in range(150)}) for row in range(3)],
            [("column149", "int"), ("column000", "bigint")],
        ),
    ]


def odd_encodings() -> list[Golden]:
    """Make Examples whose wire bytes no usual writer makes, though every protobuf library reads them."""
    ints, floats = b"".join(map(varint, (1, 300, 2**64 - 1))), struct.pack("<3f", 1.5, 2.5, -3.5)
    packed = delimited(3, delimited(1, ints))
    unpacked = delimited(3, b"".join(b"\x08" + varint(value) for value in (1, 300, 2**64 - 1)))
    mixed = delimited(3, b"\x08\x01" + delimited(1, varint(300)) + b"\x08" + varint(2**64 - 1) + delimited(1, b""))
    overlong = delimited(3, delimited(1, b"\x81\x80\x80\x00" + varint(300) + varint(2**64 - 1)))
    float_packed = delimited(2, delimited(1, floats))
    float_unpacked = delimited(2, b"".join(b"\x0d" + floats[at : at + 4] for at in (0, 4, 8)))
    unknown = b"".join(
        [
            varint(100 << 3) + varint(5),  # a varint
            varint(101 << 3 | 1) + b"8 bytes.",
            delimited(102, b"unknown"),
            varint(103 << 3 | 3) + varint(1 << 3) + varint(7) + varint(103 << 3 | 4),  # a group
            varint(104 << 3 | 5) + b"4by.",
        ]
    )
    one, two = delimited(3, delimited(1, b"\x01")), delimited(3, delimited(1, b"\x02"))
    text = delimited(1, delimited(1, b"text"))
    cases = {
        "encodings.tfrecord": [
            delimited(1, entry("i", packed) + entry("f", float_packed)),
            delimited(1, entry("i", unpacked) + entry("f", float_unpacked)),
            delimited(1, entry("i", mixed) + entry("f", float_packed)),
            delimited(1, entry("i", overlong) + entry("f", float_unpacked)),
        ],
        "duplicate-keys.tfrecord": [
            delimited(1, entry("a", one) + entry("b", text) + entry("a", two)),
            delimited(1, entry("a", one)) + delimited(1, entry("a", two)),  # two Features messages are merged
            delimited(1, entry("a", one) + entry("a")),  # the last entry has a kind-less value
            delimited(1, entry("a", text) + entry("a", two)),
        ],
        "merged-values.tfrecord": [
            delimited(1, entry("a", one, two)),  # one entry, its value given twice: lists are joined
            delimited(1, entry("a", one + two)),
            delimited(1, entry("a", text, two)),  # of two kinds, the last counts
            delimited(1, entry("a", text + one + two)),
            delimited(1, entry("a", one + text + two)),
            delimited(1, delimited(1, delimited(2, two) + delimited(1, b"x") + delimited(1, b"a"))),  # value before key
            delimited(1, delimited(1, delimited(2, one)) + entry("a", two)),  # no key is the key ""
        ],
        "unknown-fields.tfrecord": [
            unknown + delimited(1, unknown + entry("a", one)) + unknown,
            # Not beside key and value: there protobuf's own libraries disagree whether the entry counts.
            delimited(1, entry("a", unknown + one + unknown)),
            delimited(1, entry("a", delimited(3, unknown + delimited(1, b"\x07") + unknown))),
            delimited(
                1, entry("a", delimited(3, b"\x0d1234" + delimited(1, b"\x08")))
            ),  # field 1 of a foreign wire type
        ],
    }
    made = []
    for name, payloads in cases.items():
        made.append(readable(name, [Example.FromString(payload) for payload in payloads], payloads=payloads))
    return made


def sequences() -> list[Golden]:
    """Make SequenceExamples: ragged, empty, of each kind, and such whose names clash."""
    messages = [
        sequence(
            {"id": [1], "tags": [b"a", b"b"]},
            {"i": [[1, 2], [3]], "f": [[0.5], feature([], float), [1.5, 2.5]], "s": [[b"x"], [b"y", b"z"]]},
        ),
        sequence({"id": [2]}, {"i": [], "f": [None, [4.5]], "s": [feature([], bytes)]}),
        sequence({}, {}),
        sequence({"id": [4], "tags": [b"c"]}, {"i": [feature([], int), [9]]}),
    ]
    empty = [sequence({"id": [1]}, {"e": []}), sequence({"id": [2]}, {"e": [feature([], float), None]})]
    return [
        readable(
            "sequence.tfrecord",
            messages,
            [("i", "array<array<int>>"), ("id", "int")],
            [("f", "array<array<double>>"), ("s", "array<array<binary>>")],
            [("tags", "array<string>")],
            [("s", "array<array<bigint>>")],
            [("tags", "array<array<string>>"), ("i", "array<bigint>")],
        ),
        readable("sequence-empty-lists.tfrecord", empty, [("e", "array<array<float>>")]),
        readable("sequence-int-and-float.tfrecord", [sequence({}, {"a": [[1], [2.5]]}), sequence({}, {"a": [[3, 4]]})]),
        readable(
            "sequence-name-clash.tfrecord",
            [sequence({"a": [1]}, {"a": [[2]]})],
            [("a", "bigint")],
            [("a", "array<array<bigint>>")],
        ),
    ]


def byte_arrays() -> Golden:
    payloads = [b"", b"\x00\xff", b"not an Example", b"x" * 200]
    rows = [{"byteArray": payload} for payload in payloads]
    schema = [("byteArray", "binary")]
    read = {"schema": None, "inferred": schema, "rows": rows}
    return Golden("byte-arrays.tfrecord", b"".join(map(frame, payloads)), "ByteArray", [read])


def compressed() -> list[Golden]:
    """Make files of each compression, of one member and of two."""
    messages = [example(id=[number], text=[b"text %d" % number]) for number in range(6)]
    half = sum(len(frame(message.SerializeToString(deterministic=True))) for message in messages[:3]) + 7

    def gz(content: bytes) -> bytes:
        return gzip.compress(content, mtime=0)

    def members(pack: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
        # The first member ends inside a record.
        return lambda content: pack(content[:half]) + pack(content[half:])

    return [
        readable("gzip.tfrecord.gz", messages, pack=gz),
        readable("gzip-two-members.tfrecord.gz", messages, pack=members(gz)),
        readable("gzip-named-plainly.tfrecord", messages, pack=gz),
        readable("gzip-empty.tfrecord.gz", [], pack=gz),
        readable("plain-named-gz.tfrecord.gz", messages),
        readable("zero-bytes.tfrecord.gz", []),
        readable("zlib.tfrecord.zlib", messages, pack=zlib.compress),
        readable("zlib-two-members.tfrecord.zlib", messages, pack=members(zlib.compress)),
    ]


def masked_crc(content: bytes) -> int:
    """Read the checksum that TensorFlow's writer gives to some bytes."""
    framed = frame(content)
    return int(struct.unpack("<I", framed[-4:])[0])


def all_damaged() -> list[Golden]:
    messages = [example(id=[number], text=[b"text %d" % number]) for number in range(4)]
    records = [frame(message.SerializeToString(deterministic=True)) for message in messages]
    content, size = b"".join(records), len(records[0])
    assert {len(record) for record in records} == {size}
    at = 2 * size  # record 2 is the damaged one

    def flipped(place: int, bit: int = 0) -> bytes:
        return content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]

    def cut(name: str, length: int) -> Golden:
        return damaged(f"cut-{name}.tfrecord", content[: at + length], "cut", 2, at, survivors=messages[:2], lost=1)

    def header(length: int) -> bytes:
        packed = struct.pack("<Q", length)
        return packed + struct.pack("<I", masked_crc(packed))

    def bad_message(name: str, payload: bytes) -> Golden:
        made = b"".join([*records[:2], frame(payload), records[3]])
        return damaged(f"message-{name}.tfrecord", made, "message", 2, at, survivors=others, lost=1)

    others = [*messages[:2], messages[3]]
    packer = zlib.compressobj(wbits=31)
    flushed = packer.compress(content[:at]) + packer.flush(zlib.Z_FULL_FLUSH)
    whole = gzip.compress(content, mtime=0)
    two: dict[str, Any] = {"survivors": messages[:2], "lost": 1}
    all_four: dict[str, Any] = {"survivors": messages, "lost": 1}
    end = len(content)
    return [
        cut("header-1", 1),
        cut("header-5", 5),
        cut("header-10", 10),
        cut("after-header", 12),
        cut("payload", 20),
        cut("before-footer", size - 4),
        cut("footer", size - 2),
        damaged("flip-length.tfrecord", flipped(at, 1), "length-crc", 2, at, survivors=others, lost=1),
        damaged("flip-length-crc.tfrecord", flipped(at + 9, 7), "length-crc", 2, at, survivors=others, lost=1),
        damaged("flip-payload.tfrecord", flipped(at + 20, 3), "data-crc", 2, at, survivors=others, lost=1),
        damaged("flip-data-crc.tfrecord", flipped(at + size - 1), "data-crc", 2, at, survivors=others, lost=1),
        damaged(
            "absurd-length.tfrecord",
            content[:at] + header(1 << 62) + content[at + 12 :],
            "length",
            2,
            at,
            survivors=others,
            lost=1,
        ),
        damaged(
            "length-past-end.tfrecord",
            content[:at] + header(1 << 20) + content[at + 12 :],
            "cut",
            2,
            at,
            survivors=others,
            lost=1,
        ),
        damaged("cut-gzip.tfrecord.gz", flushed + b"\x4b", "compression", 2, at, **two),
        damaged(
            "flip-gzip-crc.tfrecord.gz",
            whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:],
            "compression",
            4,
            end,
            **all_four,
        ),
        damaged("cut-gzip-trailer.tfrecord.gz", whole[:-3], "compression", 4, end, **all_four),
        damaged("gzip-then-garbage.tfrecord.gz", whole + b"garbage", "compression", 4, end, **all_four),
        bad_message("not-a-message", b"\xff"),
        bad_message("cut", records[2][12:-5]),
        bad_message("cut-varint", delimited(1, entry("id", delimited(3, delimited(1, b"\x80"))))),
        bad_message("long-varint", delimited(1, entry("id", delimited(3, delimited(1, b"\x80" * 10 + b"\x01"))))),
        bad_message("ragged-floats", delimited(1, entry("id", delimited(2, delimited(1, b"12345"))))),
        bad_message("length-past-end", b"\x0a\x7f\x01"),
        bad_message("huge-length", b"\x0a" + varint(2**64 - 1)),
        bad_message("bad-wire-type", b"\x0f\x01"),
        bad_message("open-group", varint(103 << 3 | 3) + b"\x08\x01"),
        bad_message("field-zero", b"\x02\x01\x00"),
        bad_message("key-not-utf8", delimited(1, delimited(1, delimited(1, b"\xff") + delimited(2, b"")))),
    ]


def check_messages(goldens: list[Golden]) -> None:
    """See that the protobuf classes refuse what is said to be no message."""
    from google.protobuf.message import DecodeError

    for golden in goldens:
        if golden.name.startswith("message-"):
            payloads = golden.content
            sizes, at = [], 0
            while at < len(payloads):
                length = struct.unpack_from("<Q", payloads, at)[0]
                sizes.append(payloads[at + 12 : at + 12 + length])
                at += length + 16
            try:
                Example.FromString(sizes[2])
            except DecodeError:
                continue
            raise AssertionError(f"protobuf reads the message of {golden.name}")


def main() -> None:
    """Write all files anew."""
    for old in [*GOLDEN.glob("*.tfrecord*")]:
        old.unlink()
    goldens = [*sound_examples(), *odd_encodings(), *sequences(), byte_arrays(), *compressed(), *all_damaged()]
    check_messages(goldens)
    assert len({golden.name for golden in goldens}) == len(goldens)
    for golden in goldens:
        golden.write()


if __name__ == "__main__":
    main()
