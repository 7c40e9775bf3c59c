"""Where records come from and go to: paths, folders, globs, URLs, compression, and files that are never half there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from gridflow import tfrecord
from gridflow.errors import RecordError, SchemaError, UsageError
from gridflow.tfrecord.parallel import in_order

TABLE = pa.table({"id": [1, 2, 3], "text": ["one", "two", "three"]})


def test_folders_globs_and_lists_are_read_in_order_without_hidden_files(tmp_path: Path) -> None:
    for number, name in enumerate(["b.tfrecord", "a.tfrecord", "sub/c.tfrecord", "_SUCCESS", ".hidden.tfrecord"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        tfrecord.write(pa.table({"n": [number]}), tmp_path / name)
    assert tfrecord.read(tmp_path).read_all()["n"].to_pylist() == [1, 0, 2]
    assert tfrecord.read(tmp_path / "*.tfrecord").read_all()["n"].to_pylist() == [1, 0]
    assert tfrecord.read(f"{tmp_path}/*/*.tfrecord").read_all()["n"].to_pylist() == [2]
    both: list[Path | str] = [tmp_path / "b.tfrecord", str(tmp_path / "a.tfrecord")]
    assert tfrecord.read(both).read_all()["n"].to_pylist() == [0, 1]
    assert tfrecord.read(f"file://{tmp_path}/a.tfrecord").read_all()["n"].to_pylist() == [1]


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\*\.tfrecord: no such file"):
        tfrecord.read(tmp_path / "missing*.tfrecord")


def test_any_fsspec_url_is_written_and_read() -> None:
    url = "memory://folder/file.tfrecord.gz"
    tfrecord.write(TABLE, url)
    assert tfrecord.read(url).read_all() == TABLE
    assert tfrecord.read("memory://folder/*.gz").read_all() == TABLE
    assert fsspec.filesystem("memory").cat("/folder/file.tfrecord.gz").startswith(b"\x1f\x8b")
    assert [Path(name).name for name in fsspec.filesystem("memory").ls("/folder", detail=False)] == ["file.tfrecord.gz"]


class Unreplacing(MemoryFileSystem):  # type: ignore[misc]
    """Does not rename onto a file that is there, like HDFS, and may not even say so, like WebHDFS."""

    def __init__(self, *, is_silent: bool) -> None:
        super().__init__(skip_instance_cache=True)
        self.store: dict[str, Any] = {}
        self.pseudo_dirs = [""]
        self.is_silent = is_silent
        self.is_broken = False

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        if not self.exists(path2) and not (self.is_broken and path1.endswith(".part")):
            super().mv(path1, path2, **options)
        elif not self.is_silent:
            raise FileExistsError(path2)


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_file_is_replaced_where_renaming_does_not_replace(is_silent: bool) -> None:
    files: Any = Unreplacing(is_silent=is_silent)
    path = "/folder/file.tfrecord"
    tfrecord.write(TABLE, path, filesystem=files)
    tfrecord.write(TABLE.slice(0, 1), path, filesystem=files)
    assert tfrecord.read(path, filesystem=files).read_all() == TABLE.slice(0, 1)
    assert files.find("/") == [path]
    files.is_broken = True
    with pytest.raises(UsageError, match=r"file\.tfrecord: cannot be written"):
        tfrecord.write(TABLE, path, filesystem=files)
    assert tfrecord.read(path, filesystem=files).read_all() == TABLE.slice(0, 1)
    assert files.find("/") == [path]


def test_a_url_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="no file system is known for nowhere://"):
        tfrecord.read("nowhere://file")


@pytest.mark.parametrize("compression", ["none", "gzip", "zlib"])
def test_each_compression_is_written_and_detected(tmp_path: Path, compression: tfrecord.files.Compression) -> None:
    large = pa.table({"n": range(200_000)})
    tfrecord.write(large, tmp_path / "file", compression=compression)
    assert tfrecord.read(tmp_path / "file").read_all()["n"].to_pylist() == list(range(200_000))
    assert ((tmp_path / "file").stat().st_size < 2_000_000) == (compression != "none")


def test_many_files_are_read_by_threads_in_order(tmp_path: Path) -> None:
    for number in range(12):
        tfrecord.write(pa.table({"n": range(number * 1000, number * 1000 + 1000)}), tmp_path / f"{number:02}.tfrecord")
    read = tfrecord.read(tmp_path, threads=4, batch_size=100).read_all()
    assert read["n"].to_pylist() == list(range(12_000))
    assert tfrecord.count(tmp_path, threads=3) == 12_000


def test_a_reader_that_is_left_early_leaves_no_thread(tmp_path: Path) -> None:
    for number in range(6):
        tfrecord.write(pa.table({"n": range(1000)}), tmp_path / f"{number}.tfrecord")
    reader = tfrecord.read(tmp_path, threads=4, batch_size=10)
    assert reader.read_next_batch().num_rows == 10
    assert any(thread.name.startswith("tfrecord-") for thread in threading.enumerate())
    del reader
    assert not any(thread.name.startswith("tfrecord-") for thread in threading.enumerate())


def test_an_error_in_a_thread_comes_after_what_was_before_it() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise RecordError("broken", path="p", record=1, offset=2, kind="cut")

    items = in_order([[0], broken(), [2]], threads=2)
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(RecordError, match="p, record 1 at byte 2: broken"):
        next(items)


def test_a_failed_write_leaves_nothing_and_what_was_there_before(tmp_path: Path) -> None:
    path = tmp_path / "file.tfrecord"
    bad = pa.table({"a": [[1], [None]]})
    with pytest.raises(RecordError, match=r"file\.tfrecord, record 1: column 'a' has a null inside a list"):
        tfrecord.write(bad, path)
    assert list(tmp_path.iterdir()) == []
    tfrecord.write(TABLE, path)
    with pytest.raises(RecordError):
        tfrecord.write(bad, path)
    assert [each.name for each in tmp_path.iterdir()] == ["file.tfrecord"]
    assert tfrecord.read(path).read_all() == TABLE


def test_a_null_inside_nested_lists_is_named_with_its_record(tmp_path: Path) -> None:
    bad = pa.table({"a": [[[1]], [], [[2], [3, None]]]})
    with pytest.raises(RecordError, match=r"file, record 2: column 'a' has a null inside a list \(fill or drop"):
        tfrecord.write(bad, tmp_path / "file", record_type="SequenceExample")


def test_a_number_with_more_digits_than_its_decimal_is_named_with_its_record(tmp_path: Path) -> None:
    tfrecord.write(pa.table({"x": [1, 2, 1000]}), tmp_path / "file")
    schema = pa.schema([("x", pa.decimal128(3, 0))])
    with pytest.raises(RecordError, match=r"file, record 2 at byte 60: feature 'x': 1000 is out of the range"):
        tfrecord.read(tmp_path / "file", schema, batch_size=2).read_all()


def test_bytes_of_another_length_than_their_column_are_named_with_their_record(tmp_path: Path) -> None:
    tfrecord.write(pa.table({"x": [b"ab", b"cd", b"e"]}), tmp_path / "file")
    schema = pa.schema([("x", pa.binary(2))])
    with pytest.raises(RecordError, match=r"file, record 2: column 'x': .*widths must match"):
        tfrecord.read(tmp_path / "file", schema, batch_size=2).read_all()


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([[[1]]]), r"column 'x': Example cannot hold list<.*SequenceExample, or flatten it"),
        (pa.array([{"a": 1}]), r"column 'x': a TFRecord cannot hold struct<a: int64> \(make each of its fields"),
        (pa.array([0], pa.timestamp("s")), r"cannot hold timestamp\[s\] \(cast it to int64 or string\)"),
        (pa.array([2**64 - 1], pa.uint64()), "column 'x': Integer value 18446744073709551615 not in range"),
    ],
)
def test_what_a_record_cannot_hold_is_refused_with_a_remedy(tmp_path: Path, column: pa.Array, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        tfrecord.write(pa.table({"x": column}), tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_double_beyond_floats_is_an_error_and_an_infinite_one_is_not(tmp_path: Path) -> None:
    tfrecord.write(pa.table({"x": [float("inf"), 0.1]}), tmp_path / "file")
    with pytest.raises(RecordError, match="record 1: column 'x' holds a number that no 32-bit float can hold"):
        tfrecord.write(pa.table({"x": [0.1, 1e300]}), tmp_path / "file")


def test_columns_that_are_not_there_are_named(tmp_path: Path) -> None:
    tfrecord.write(TABLE, tmp_path / "file")
    with pytest.raises(SchemaError, match=r"there is no column 'nobody' \(there are id, text\)"):
        tfrecord.read(tmp_path / "file", columns=["nobody"])
    assert tfrecord.read(tmp_path / "file", columns=["text"]).read_all().column_names == ["text"]


def test_array_columns_and_samples_shape_the_schema(tmp_path: Path) -> None:
    tfrecord.write(
        pa.table({"a": [[1], [2], [3, 4]], "late": pa.array([None, None, 1.0], pa.float32())}), tmp_path / "f"
    )
    assert tfrecord.infer_schema(tmp_path / "f") == pa.schema([("a", pa.list_(pa.int64())), ("late", pa.float32())])
    assert tfrecord.infer_schema(tmp_path / "f", sample=2) == pa.schema([("a", pa.int64())])
    assert tfrecord.infer_schema(tmp_path / "f", sample=2, array_columns=["a"]).types == [pa.list_(pa.int64())]
    with pytest.raises(
        RecordError, match=r"record 2 .*'a' has 2 values, its column one value \(read the column as a list"
    ):
        tfrecord.read(tmp_path / "f", sample=2).read_all()


def test_bytes_are_written_and_read_as_they_are(tmp_path: Path) -> None:
    table = pa.table({"byteArray": [b"", b"\x00\xff", b"x" * 100_000]})
    tfrecord.write(table, tmp_path / "f", record_type="ByteArray")
    assert tfrecord.read(tmp_path / "f", record_type="ByteArray").read_all() == table
    with pytest.raises(SchemaError, match="one column of bytes"):
        tfrecord.write(TABLE, tmp_path / "f", record_type="ByteArray")


def test_batches_are_cut_by_rows(tmp_path: Path) -> None:
    tfrecord.write(pa.table({"n": range(25)}), tmp_path / "f")
    assert [batch.num_rows for batch in tfrecord.read(tmp_path / "f", batch_size=10)] == [10, 10, 5]
