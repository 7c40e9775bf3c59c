"""No damage goes unseen: each bit, each cut, and what is said of it."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pyarrow as pa
import pytest

from gridflow import tfrecord
from gridflow.errors import RecordError, UsageError
from gridflow.tfrecord import _codec

TABLE = pa.table({"id": [1, 2, 3], "text": ["one", "two", "three"]})


@pytest.fixture
def sound(tmp_path: Path) -> bytes:
    tfrecord.write(TABLE, tmp_path / "sound.tfrecord")
    return (tmp_path / "sound.tfrecord").read_bytes()


def masked(data: bytes) -> int:
    crc = _codec.crc32c(data)
    return (crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8 & 0xFFFFFFFF


def record(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return length + struct.pack("<I", masked(length)) + payload + struct.pack("<I", masked(payload))


def test_every_flipped_bit_is_an_error_that_says_where(tmp_path: Path, sound: bytes) -> None:
    path = tmp_path / "flipped.tfrecord"
    for bit in range(8 * len(sound)):
        content = bytearray(sound)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        with pytest.raises(RecordError, match=rf"^{path}, record \d at byte \d+: ") as caught:
            tfrecord.read(path, TABLE.schema).read_all()
        assert caught.value.offset is not None
        assert caught.value.offset <= bit // 8
        left = tfrecord.read(path, TABLE.schema, on_error="skip").read_all()
        assert left.num_rows == 2
        assert set(left["id"].to_pylist()) < {1, 2, 3}


def test_every_cut_but_between_records_is_an_error(tmp_path: Path, sound: bytes) -> None:
    path = tmp_path / "cut.tfrecord"
    borders = {0, *(sum(sizes) for sizes in _prefixes(sound))}
    assert len(borders) == 4
    for size in range(len(sound) + 1):
        path.write_bytes(sound[:size])
        if size in borders:
            assert tfrecord.count(path) == sorted(borders).index(size)
            continue
        with pytest.raises(RecordError, match="the file ends inside") as caught:
            tfrecord.count(path)
        assert caught.value.kind == "cut"
        assert caught.value.offset == max(border for border in borders if border < size)


def _prefixes(content: bytes) -> list[list[int]]:
    sizes: list[list[int]] = []
    at = 0
    while at < len(content):
        size = struct.unpack_from("<Q", content, at)[0] + 16
        sizes.append([*(sizes[-1] if sizes else []), size])
        at += size
    return sizes


def test_every_cut_and_flip_of_a_compressed_file_is_an_error(tmp_path: Path, sound: bytes) -> None:
    path = tmp_path / "file.tfrecord.gz"
    packed = gzip.compress(sound, mtime=0)
    for size in range(1, len(packed)):
        path.write_bytes(packed[:size])
        with pytest.raises(RecordError):
            tfrecord.count(path)
    unseen = []
    for bit in range(8 * len(packed)):
        content = bytearray(packed)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        try:
            assert tfrecord.read(path, TABLE.schema).read_all() == TABLE
            unseen.append(bit // 8)
        except RecordError:
            pass
    # What changes nothing: the time, the system and some flags of gzip's header, and the bits that fill up the last
    # byte before its trailer.
    assert set(unseen) <= {3, 4, 5, 6, 7, 8, 9, len(packed) - 9}


def test_a_compressed_file_read_as_plain_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "file.tfrecord.gz"
    tfrecord.write(TABLE, path)
    with pytest.raises(RecordError, match=r"record 0 at byte 0: .*is its compression right\?"):
        tfrecord.count(path, compression="none")


def test_a_plain_file_read_as_compressed_is_an_error(tmp_path: Path, sound: bytes) -> None:
    path = tmp_path / "file.tfrecord"
    path.write_bytes(sound)
    with pytest.raises(RecordError, match="the compressed data is damaged"):
        tfrecord.count(path, compression="gzip")


def test_a_record_that_begins_like_gzip_is_not_taken_for_it(tmp_path: Path) -> None:
    path = tmp_path / "file.tfrecord"
    payload = bytes(0x088B1F)
    path.write_bytes(record(payload))
    assert path.read_bytes().startswith(b"\x1f\x8b\x08")
    assert tfrecord.count(path) == 1


def test_an_absurd_length_is_refused_without_memory_for_it(tmp_path: Path, sound: bytes) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for length in (1 << 62, (1 << 64) - 1, (1 << 30) - 1):
        header = struct.pack("<Q", length)
        path = tmp_path / "absurd.tfrecord"
        path.write_bytes(header + struct.pack("<I", masked(header)) + sound)
        with pytest.raises(RecordError, match="record 0 at byte 0: "):
            tfrecord.count(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_a_record_longer_than_allowed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "long.tfrecord"
    path.write_bytes(record(bytes(1000)))
    assert tfrecord.count(path) == 1
    with pytest.raises(RecordError, match="longer than any record may be"):
        tfrecord.count(path, max_record_bytes=999)


def test_a_record_inside_a_damaged_record_is_not_taken_for_one(tmp_path: Path, sound: bytes) -> None:
    outer = bytearray(record(sound))
    outer[9] ^= 1  # the checksum of the length, not the length
    path = tmp_path / "nested.tfrecord"
    path.write_bytes(record(b"first") + outer + record(b"last"))
    read = tfrecord.read(path, record_type="ByteArray", on_error="skip").read_all()
    assert read["byteArray"].to_pylist() == [b"first", b"last"]


def test_skipping_reads_on_across_chunks_and_counts_bytes(tmp_path: Path) -> None:
    payloads = [bytes([number]) * 300_000 for number in range(20)]
    content = bytearray(b"".join(map(record, payloads)))
    size = 300_016
    content[3 * size] ^= 1
    content[9 * size + 100] ^= 1
    content[15 * size + 8] ^= 1
    path = tmp_path / "big.tfrecord"
    path.write_bytes(content)
    losses: list[tfrecord.Loss] = []
    read = tfrecord.read(path, record_type="ByteArray", on_error="skip", losses=losses).read_all()
    assert [value[0] for value in read["byteArray"].to_pylist()] == [n for n in range(20) if n not in (3, 9, 15)]
    assert losses == [tfrecord.Loss(str(path), 3, 3 * size)]


def test_verify_reports_every_file(tmp_path: Path, sound: bytes) -> None:
    (tmp_path / "a.tfrecord").write_bytes(sound)
    (tmp_path / "b.tfrecord").write_bytes(sound[:-1])
    first, second = tfrecord.verify([tmp_path / "a.tfrecord", tmp_path / "b.tfrecord"])
    assert (first.is_sound, first.records, first.bytes, first.lost) == (True, 3, len(sound), 0)
    assert (second.is_sound, second.records, second.lost) == (False, 2, 1)
    assert second.error is not None
    assert second.error.kind == "cut"


def test_verify_looks_into_messages_when_told(tmp_path: Path) -> None:
    path = tmp_path / "no-message.tfrecord"
    path.write_bytes(record(b"\xff"))
    assert tfrecord.verify(path)[0].is_sound
    assert not tfrecord.verify(path, decode=True)[0].is_sound


def test_an_unknown_way_with_errors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="on_error='ignore' is unknown"):
        tfrecord.count(tmp_path, on_error="ignore")
