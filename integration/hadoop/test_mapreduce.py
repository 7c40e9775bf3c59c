"""MapReduce jobs on YARN that read what TensorFlow wrote, and write what TensorFlow reads."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from integration.hadoop.configuration import FAST_JVM
from integration.hadoop.running import Hadoop, get
from tests.waiting import until

from gridflow.tfrecord.jar import jar

pytestmark = pytest.mark.timeout(900)

JOB = Path(__file__).parents[2] / "tests" / "tfrecord" / "CopyJob.java"
RECORDS = [b"", b"\x00\xff", *(b"record %d" % number for number in range(2000)), b"x" * 1_000_000]
FILES = 2
GZIP = (
    "-Dmapreduce.output.fileoutputformat.compress=true",
    "-Dmapreduce.output.fileoutputformat.compress.codec=org.apache.hadoop.io.compress.GzipCodec",
)


@pytest.fixture(scope="module")
def job_classes(hadoop: Hadoop, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the compiled job: Hadoop's own jars and ours, nothing of Spark's."""
    classes = tmp_path_factory.mktemp("classes")
    path = f"{hadoop.exports['HADOOP_CLASSPATH']}:{jar()}"
    subprocess.run(["javac", "-nowarn", "-cp", path, "-d", str(classes), str(JOB)], check=True, timeout=240)
    return f"{classes}:{path}"


@pytest.mark.parametrize(
    ("api", "compression", "settings", "output"),
    [("mapreduce", "", (), "part-r-00000"), ("mapred", "GZIP", GZIP, "part-00000.gz")],
    ids=["mapreduce", "mapred-gzip"],
)
def test_mapreduce_on_yarn_copies_what_tensorflow_wrote(
    hadoop: Hadoop,
    hdfs: Any,
    job_classes: str,
    tmp_path: Path,
    api: str,
    compression: str,
    settings: tuple[str, ...],
    output: str,
) -> None:
    for number in range(FILES):
        write(tmp_path / f"{number}.tfrecord", compression)
        hdfs.put_file(str(tmp_path / f"{number}.tfrecord"), f"/mapreduce/{api}/in/{number}.tfrecord")
    folder = hadoop.url(f"/mapreduce/{api}")
    argv = ["java", *FAST_JVM.split(), "-Xmx512m", "-cp", job_classes, "CopyJob", f"-Dmapreduce.job.tags={api}"]
    argv += [*settings, api, f"{folder}/in", f"{folder}/out"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False, env=hadoop.environment)
    assert done.returncode == 0, done.stderr

    [application] = hadoop.applications(applicationTags=api)
    assert application["applicationType"] == "MAPREDUCE"
    assert (application["state"], application["finalStatus"]) == ("FINISHED", "SUCCEEDED")
    counters = counters_of(hadoop, application["id"])
    assert counters["TOTAL_LAUNCHED_MAPS"] == FILES
    assert counters["TOTAL_LAUNCHED_REDUCES"] == 1
    for name in ("MAP_INPUT_RECORDS", "MAP_OUTPUT_RECORDS", "REDUCE_INPUT_RECORDS", "REDUCE_OUTPUT_RECORDS"):
        assert counters[name] == FILES * len(RECORDS)

    hdfs.get_file(f"/mapreduce/{api}/out/{output}", str(tmp_path / "out"))
    assert sorted(read(tmp_path / "out", compression)) == sorted(FILES * RECORDS)
    assert counters["HDFS_BYTES_WRITTEN"] == (tmp_path / "out").stat().st_size


def write(path: Path, compression: str) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in RECORDS:
            writer.write(record)


def read(path: Path, compression: str) -> list[bytes]:
    import tensorflow as tf

    dataset = tf.data.TFRecordDataset(str(path), compression_type=compression)
    return [bytes(record) for record in dataset.as_numpy_iterator()]


def counters_of(hadoop: Hadoop, application: str) -> dict[str, int]:
    """Return a finished job's counters, once they have come to the job history."""
    job = application.replace("application", "job")
    jobs = f"{hadoop.exports['HISTORY_URL']}/mapreduce/jobs"

    def listed() -> bool:
        return any(each["id"] == job for each in (get(jobs)["jobs"] or {}).get("job", []))

    until(listed, f"{job} is in the job history", seconds=120)
    groups = get(f"{jobs}/{job}/counters")["jobCounters"]["counterGroup"]
    return {each["name"]: each["totalCounterValue"] for group in groups for each in group["counter"]}
