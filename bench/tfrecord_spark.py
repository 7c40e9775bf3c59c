"""Spark reading and writing TFRecords, against Spark's own Parquet and against TensorFlowOnSpark's dfutil.

    python bench/tfrecord_spark.py [--quick] [--json]

Figures are per CPU-second of Spark's JVM and all its children, the best of some repetitions after one to warm up, so
that other work on the machine matters little; wall time and memory stand beside them. `known` is what
linkedin/spark-tfrecord 0.7 reached on a machine of this kind. The images are fewer than the scalars, with three times
their bytes all the same, so that a full run ends within half an hour. dfutil runs in a process of its own, with the
published tensorflow-hadoop jar, on fewer rows; where pip or Maven cannot get the two, it is left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from report import Measurement, make_parser, print_report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCALARS = [
    *(f"cast(xxhash64(id, {n}) % 1000000000000 as bigint) as int{n}" for n in range(10)),
    *(f"cast(hash(id, {n}) / 2147483648 as float) as float{n}" for n in range(10)),
    "concat('row ', id, ' of the text') as text",
    "unhex(sha2(cast(id as string), 256)) as blob",
]
IMAGES = ["id % 10 as label", "transform(sequence(1, 784), i -> cast(hash(id, i) / 2147483648 as float)) as image"]

#: MB per CPU-second of linkedin/spark-tfrecord 0.7; the second read is on Spark 3.5 (on 4.1 it is 5.5).
KNOWN = {
    ("22 scalars", "read"): 31,
    ("784 floats", "read"): 40,
    ("22 scalars", "read inferred"): 19,
    ("22 scalars", "write"): 32,
    ("784 floats", "write"): 100,
}
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
HADOOP_JAR = "org.tensorflow:tensorflow-hadoop:1.15.0"


@dataclass(frozen=True)
class Data:
    """Files that hold the same rows as TFRecords and as Parquet."""

    name: str
    folder: Path
    rows: int
    two_columns: tuple[str, ...]

    @property
    def tfrecord(self) -> str:
        return str(self.folder / "tfrecord")

    @property
    def parquet(self) -> str:
        return str(self.folder / "parquet")

    @property
    def megabytes(self) -> float:
        return sum(path.stat().st_size for path in Path(self.tfrecord).glob("part-*")) / 1e6


@dataclass(frozen=True)
class Cost:
    """What one repetition took."""

    cpu_seconds: float
    wall_seconds: float


def make_data(spark: SparkSession, folder: Path, *, is_quick: bool) -> list[Data]:
    scale = 5 if is_quick else 1
    made = []
    for name, columns, rows, two in [
        ("22 scalars", SCALARS, 200_000 // scale, ("int3", "text")),
        ("784 floats", IMAGES, 40_000 // scale, ("label",)),
    ]:
        data = Data(name, folder / name.replace(" ", "-"), rows, two)
        df = spark.range(0, rows, numPartitions=2).selectExpr(*columns)
        df.write.format("tfrecord").save(data.tfrecord)
        df.write.option("compression", "none").parquet(data.parquet)
        made.append(data)
    return made


def measure(work: Callable[[], object], jvm: psutil.Process, repetitions: int) -> Cost:
    """Do the work once to warm up, then some times; the cheapest counts."""
    work()
    costs = []
    for _ in range(repetitions):
        cpu, wall = cpu_seconds(jvm), time.perf_counter()
        work()
        costs.append(Cost(cpu_seconds(jvm) - cpu, time.perf_counter() - wall))
    return min(costs, key=lambda cost: cost.cpu_seconds)


def cpu_seconds(process: psutil.Process) -> float:
    """CPU time of a process and its descendants, ended ones included."""
    return sum(sum(each.cpu_times()[:4]) for each in [process, *process.children(recursive=True)])


def consume(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


def operations(
    spark: SparkSession, data: Data
) -> Iterator[tuple[str, Callable[[], object], Callable[[], object] | None]]:
    """Yield each operation on TFRecords, and the same on Parquet where there is such a thing."""
    schema = spark.read.format("tfrecord").load(data.tfrecord).schema
    source = spark.read.format("tfrecord").schema(schema)
    out = str(data.folder / "written")

    def read() -> DataFrame:
        return source.load(data.tfrecord)

    def parquet() -> DataFrame:
        return spark.read.parquet(data.parquet)

    yield "read", lambda: consume(read()), lambda: consume(parquet())
    yield "read inferred", lambda: consume(spark.read.format("tfrecord").load(data.tfrecord)), None
    yield (
        f"read {len(data.two_columns)} of {len(schema)} columns",
        lambda: consume(read().select(*data.two_columns)),
        lambda: consume(parquet().select(*data.two_columns)),
    )
    yield "count", lambda: read().count(), lambda: parquet().count()
    cached = parquet().cache()
    cached.count()
    yield (
        "write",
        lambda: cached.write.format("tfrecord").mode("overwrite").save(out),
        lambda: cached.write.option("compression", "none").mode("overwrite").parquet(out),
    )
    cached.unpersist(blocking=True)


def measure_all(spark: SparkSession, data: Data, cores: int, repetitions: int) -> Iterator[Measurement]:
    jvm = spark_process()
    for name, work, parquet in operations(spark, data):
        cost = measure(work, jvm, repetitions)
        label = f"{name}, {data.name}, local[{cores}]"
        known = KNOWN.get((data.name, name))
        speed = data.megabytes / cost.cpu_seconds
        if known is None:
            yield Measurement(label, speed, "MB/CPU-s")
        else:
            yield Measurement(label, speed, "MB/CPU-s", f"known ({known})", speed / known)
        rows = data.rows / cost.cpu_seconds
        if parquet is None:
            yield Measurement(label, rows, "rows/CPU-s")
        else:
            peer_rows = data.rows / measure(parquet, jvm, repetitions).cpu_seconds
            yield Measurement(label, rows, "rows/CPU-s", f"Parquet ({peer_rows:,.0f})", rows / peer_rows)
        yield Measurement(label, data.megabytes / cost.wall_seconds, "MB/s")


def spark_process() -> psutil.Process:
    [jvm] = [child for child in psutil.Process().children() if "java" in child.name()]
    return jvm


def peak_memory_mb(process: psutil.Process) -> float:
    # VmHWM:   812340 kB
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024


def measure_dfutil(data: Data, folder: Path, speeds: dict[str, float]) -> Iterator[Measurement]:
    """Measure dfutil in a process of its own, since its jar has classes of the same names as ours."""
    packages, jar = folder / "packages", folder / "tensorflow-hadoop.jar"
    copy = [
        "mvn",
        "-q",
        "dependency:copy",
        f"-Dartifact={HADOOP_JAR}",
        f"-DoutputDirectory={folder}",
        "-Dmdep.stripVersion=true",
    ]
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        str(packages),
        "tensorflowonspark==2.2.5",
    ]
    program = [sys.executable, __file__, "--dfutil", str(jar), data.tfrecord, str(data.rows)]
    try:
        for argv in (copy, install):
            subprocess.run(argv, check=True, timeout=300, capture_output=True)
        environ = {**os.environ, "PYTHONPATH": str(packages), "PYSPARK_PYTHON": sys.executable}
        done = subprocess.run(program, check=True, timeout=900, capture_output=True, text=True, env=environ)
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or ""
        text = output.decode() if isinstance(output, bytes) else output
        print(f"dfutil is left out: {error} {text[-500:]}", file=sys.stderr)
        return
    for name, rows in json.loads(done.stdout.splitlines()[-1]).items():
        yield Measurement(
            f"{name}, {data.name}, local[1]", speeds[name], "rows/CPU-s", f"dfutil ({rows:,.0f})", speeds[name] / rows
        )


def run_dfutil(jar: str, path: str, rows: str) -> None:
    """Print dfutil's rows per CPU-second; it is found by PYTHONPATH, here and in Python workers."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.jars", jar)
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    from tensorflowonspark import dfutil

    jvm = spark_process()
    # It takes bytes for text unless told, and fails where they are none.
    df = dfutil.loadTFRecords(spark.sparkContext, path, binary_features=["blob"])
    read = measure(lambda: consume(df), jvm, 1)
    cached = df.cache()
    cached.count()
    with tempfile.TemporaryDirectory() as folder:
        outs = iter(range(9))
        write = measure(lambda: dfutil.saveAsTFRecords(cached, f"{folder}/{next(outs)}"), jvm, 1)
    print(json.dumps({"read": int(rows) / read.cpu_seconds, "write": int(rows) / write.cpu_seconds}))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--dfutil", nargs=3, metavar=("JAR", "PATH", "ROWS"), help="measure only dfutil")
    options = parser.parse_args()
    if options.dfutil:
        run_dfutil(*options.dfutil)
        return
    from gridflow.spark import session

    measurements: list[Measurement] = []
    repetitions = 2 if options.quick else 5
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spark = session(master="local[1]", config=SETTINGS)
        made = make_data(spark, folder, is_quick=options.quick)
        for cores in (1,) if options.quick else (1, 2):
            if cores > 1:
                spark.stop()
                spark = session(master=f"local[{cores}]", config=SETTINGS)
            for data in made:
                measurements.extend(measure_all(spark, data, cores, repetitions))
        measurements.append(
            Measurement("peak memory of Spark's JVM, heap limit 2 GB", peak_memory_mb(spark_process()), "MB")
        )
        if not options.quick:
            few = Data("22 scalars", folder / "few", 10_000, ())
            spark.range(0, few.rows, numPartitions=1).selectExpr(*SCALARS).write.format("tfrecord").save(few.tfrecord)
            speeds = {
                name: found.value
                for name in ("read", "write")
                for found in measurements
                if found.name == f"{name}, 22 scalars, local[1]" and found.unit == "rows/CPU-s"
            }
            measurements.extend(measure_dfutil(few, folder, speeds))
        spark.stop()
    print_report(measurements, as_json=options.json)


if __name__ == "__main__":
    main()
