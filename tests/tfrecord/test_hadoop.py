"""The Hadoop formats in real MapReduce jobs, and in Spark under the class names of tensorflow-hadoop."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gridflow.tfrecord.jar import jar

JOB = Path(__file__).with_name("CopyJob.java")
RECORDS = [b"", b"\x00\xff", *(b"record %d" % number for number in range(2000)), b"x" * 1_000_000]
#: Hadoop's local job runner starts several threads; none of them needs the second compiler for so little work.
JAVA = ("java", "-Dlog4j2.level=WARN", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m")


@pytest.fixture(scope="module")
def job_classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the compiled job."""
    import pyspark

    classes = tmp_path_factory.mktemp("classes")
    path = f"{Path(pyspark.__file__).parent}/jars/*:{jar()}"
    subprocess.run(["javac", "-nowarn", "-cp", path, "-d", str(classes), str(JOB)], check=True, timeout=120)
    return f"{classes}:{path}"


def run(classes: str, api: str, given: Path, out: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    local = [f"-Dhadoop.tmp.dir={out.parent}/hadoop", *settings]
    argv = [*JAVA, "-cp", classes, "CopyJob", *local, api, str(given), str(out)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)


def write(path: Path, compression: str = "") -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in RECORDS:
            writer.write(record)


def read(path: Path, compression: str = "") -> list[bytes]:
    import tensorflow as tf

    dataset = tf.data.TFRecordDataset(str(path), compression_type=compression)
    return [bytes(record) for record in dataset.as_numpy_iterator()]


def test_mapreduce_copies_what_tensorflow_wrote(job_classes: str, tmp_path: Path) -> None:
    write(tmp_path / "in.tfrecord")
    done = run(job_classes, "mapreduce", tmp_path / "in.tfrecord", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert sorted(read(tmp_path / "out" / "part-r-00000")) == sorted(RECORDS)


def test_mapred_reads_and_writes_gzip(job_classes: str, tmp_path: Path) -> None:
    # The name does not tell the compression, but the first bytes do.
    write(tmp_path / "in.tfrecord", "GZIP")
    settings = [
        "-Dmapreduce.output.fileoutputformat.compress=true",
        "-Dmapreduce.output.fileoutputformat.compress.codec=org.apache.hadoop.io.compress.GzipCodec",
    ]
    done = run(job_classes, "mapred", tmp_path / "in.tfrecord", tmp_path / "out", *settings)
    assert done.returncode == 0, done.stderr
    assert sorted(read(tmp_path / "out" / "part-00000.gz", "GZIP")) == sorted(RECORDS)


def test_damaged_record_fails_the_job_unless_checksums_are_ignored(job_classes: str, tmp_path: Path) -> None:
    write(tmp_path / "in.tfrecord")
    content = bytearray((tmp_path / "in.tfrecord").read_bytes())
    content[16 + 12] ^= 1  # in the data of record 1
    (tmp_path / "in.tfrecord").write_bytes(content)
    failed = run(job_classes, "mapreduce", tmp_path / "in.tfrecord", tmp_path / "out")
    assert failed.returncode == 1
    assert "in.tfrecord, record 1 at byte 16: the checksum of the data does not match" in failed.stdout + failed.stderr
    setting = "-Dtensorflow.read.crc32check=false"
    assert run(job_classes, "mapreduce", tmp_path / "in.tfrecord", tmp_path / "again", setting).returncode == 0
    assert len(read(tmp_path / "again" / "part-r-00000")) == len(RECORDS)


PROGRAM = """
import sys
from gridflow.spark import session

config = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "512m",
    "spark.ui.enabled": "false",
}
spark = session(master="local[1]", config=config)
spark.read.format("tfrecord").option("recordType", "ByteArray").load(sys.argv[1]).count()
package, key = "org.tensorflow.hadoop.io.", "org.apache.hadoop.io.BytesWritable"
none = "org.apache.hadoop.io.NullWritable"
rdd = spark.sparkContext.newAPIHadoopFile(sys.argv[1], package + "TFRecordFileInputFormat", key, none)
rdd.saveAsNewAPIHadoopFile(sys.argv[2], package + "TFRecordFileOutputFormat", key, none)
again = spark.sparkContext.hadoopFile(sys.argv[2], package + "TFRecordFileInputFormatMapred", key, none)
again.saveAsHadoopFile(sys.argv[3], package + "TFRecordFileOutputFormatMapred", key, none)
"""


def test_session_from_the_start_knows_data_source_and_formats(tmp_path: Path) -> None:
    write(tmp_path / "in.tfrecord")
    argv = [sys.executable, "-c", PROGRAM, *(str(tmp_path / name) for name in ("in.tfrecord", "new", "old"))]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "new" / "part-r-00000") == RECORDS
    assert read(tmp_path / "old" / "part-00000") == RECORDS
