"""Python reads and writes TFRecords in HDFS: webhdfs:// with fsspec alone, hdfs:// with the package hdfs-native."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from integration.hadoop.running import Hadoop

pytestmark = pytest.mark.timeout(900)

#: In a program of its own, since both packages keep their connections until the interpreter ends.
PROGRAM = """
import sys
import fsspec
import pyarrow as pa
from gridflow import tfrecord

folder = sys.argv[1]
files, path = fsspec.core.url_to_fs(folder)


def found():
    return files.find(path)


table = pa.table({"id": range(20_000), "text": [f"text {number}" for number in range(20_000)]})
"""
ROUND_TRIP = """
for name in ("b.tfrecord", "a.tfrecord.gz", "sub/c.tfrecord"):
    assert tfrecord.write(table, f"{folder}/{name}") == 20_000
assert tfrecord.read(f"{folder}/b.tfrecord").read_all() == table
assert tfrecord.read(f"{folder}/*.gz").read_all() == table
assert tfrecord.count(folder) == 60_000
assert [report.path for report in tfrecord.verify(folder)] == [
    f"{folder}/{name}" for name in ("a.tfrecord.gz", "b.tfrecord", "sub/c.tfrecord")
]
assert tfrecord.infer_schema(folder) == table.schema
large = pa.table({"data": [bytes([number % 251]) * 100_000 for number in range(300)]})
tfrecord.write(large, f"{folder}/large/data.tfrecord")
assert tfrecord.read(f"{folder}/large").read_all() == large
dataset = tfrecord.dataset(f"{folder}/sub", batch_size=1000)
assert [number for batch in dataset for number in batch["id"].numpy()] == list(range(20_000))
"""
FAILURE = """
def broken():
    yield table.to_batches()[0]
    raise RuntimeError("no more")

try:
    tfrecord.write(pa.RecordBatchReader.from_batches(table.schema, broken()), f"{folder}/broken.tfrecord")
except RuntimeError as error:
    assert str(error) == "no more"
assert found() == [], found()
"""
REPLACEMENT = """
tfrecord.write(table, f"{folder}/file.tfrecord")
tfrecord.write(table.slice(0, 10), f"{folder}/file.tfrecord")
assert tfrecord.count(f"{folder}/file.tfrecord") == 10
assert [name.rpartition("/")[2] for name in found()] == ["file.tfrecord"], found()
"""


@pytest.fixture(params=["webhdfs", "hdfs"])
def folder_url(request: pytest.FixtureRequest, hadoop: Hadoop) -> str:
    return f"{hadoop.exports[f'{request.param.upper()}_URL']}/files/{request.param}"


def run(program: str, url: str, hadoop: Hadoop, hdfs_native: Path) -> None:
    environment = hadoop.environment | {"PYTHONPATH": str(hdfs_native)}
    argv = [sys.executable, "-c", PROGRAM + program, url]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr


def test_files_in_hdfs_are_written_found_and_read(hadoop: Hadoop, hdfs_native: Path, folder_url: str) -> None:
    run(ROUND_TRIP, f"{folder_url}/round-trip", hadoop, hdfs_native)


def test_a_write_that_fails_leaves_nothing_in_hdfs(hadoop: Hadoop, hdfs_native: Path, folder_url: str) -> None:
    run(FAILURE, f"{folder_url}/failure", hadoop, hdfs_native)


def test_a_file_that_is_there_is_replaced(hadoop: Hadoop, hdfs_native: Path, folder_url: str) -> None:
    run(REPLACEMENT, f"{folder_url}/replacement", hadoop, hdfs_native)
