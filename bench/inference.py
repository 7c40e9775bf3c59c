"""`gridflow.spark.predict` against PySpark's `predict_batch_udf`: the same model, cached rows and batch size.

    python bench/inference.py [--quick] [--json]

Each has a Spark of its own, and the best of some rounds counts, after some to warm up. Figures are per CPU-second of
Spark's JVM, its Python workers and the model's own process; wall time stands beside them. PySpark's way needs pandas;
where it is not installed, it is put into a folder that is removed again.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from report import Measurement, make_parser, print_report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PANDAS = ["pandas>=2.2,<3", "python-dateutil", "pytz", "six", "tzdata"]
#: Carried by all processes of one measurement, in their environment.
MARK = "GRIDFLOW_BENCH"
BATCH, OUTPUTS, SCALARS = 1024, 10, 20
WARM_UP = 3
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "3g",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
#: Saves a dense network of a number of inputs at a path.
SAVE_MODEL = f"""
import sys, keras
rows = keras.Input((int(sys.argv[1]),), name="rows")
layers = [keras.layers.Dense(128, activation="relu"), keras.layers.Dense({OUTPUTS})]
keras.Sequential([rows, *layers]).export(sys.argv[2], verbose=False)
"""


@dataclass(frozen=True)
class Case:
    """Rows, and a model for them."""

    name: str
    width: int
    rows: int
    columns: tuple[str, ...]
    expressions: tuple[str, ...]


def cases(*, is_quick: bool) -> list[Case]:
    scale = 2 if is_quick else 1
    names = tuple(f"x{n}" for n in range(SCALARS))
    floats = "transform(sequence(1, 784), i -> cast(hash(id, i) / 2147483648 as float)) as image"
    return [
        Case("784 floats", 784, 40_000 // scale, ("image",), (floats,)),
        Case(
            f"{SCALARS} scalars",
            SCALARS,
            400_000 // scale,
            names,
            tuple(f"cast(hash(id, {n}) / 2147483648 as float) as {name}" for n, name in enumerate(names)),
        ),
    ]


def with_gridflow(df: DataFrame, case: Case, model: Path) -> DataFrame:
    from gridflow.spark import predict

    return predict(df, model, inputs={"rows": case.columns}, outputs="scores", batch_size=BATCH)


def with_batch_udf(df: DataFrame, case: Case, model: Path) -> DataFrame:
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql import functions
    from pyspark.sql.types import ArrayType, FloatType

    path = str(model)

    def load() -> Callable[[Any], Any]:
        import tensorflow as tf

        loaded = tf.saved_model.load(path)
        function = loaded.signatures["serving_default"]
        [name] = function.structured_input_signature[1]
        [output] = function.structured_outputs

        def predict(rows: Any) -> Any:
            # The signature's function holds its variables only as long as somebody holds what was loaded.
            assert loaded is not None
            return function(**{name: tf.constant(rows)})[output].numpy()

        return predict

    function = predict_batch_udf(
        load, return_type=ArrayType(FloatType()), batch_size=BATCH, input_tensor_shapes=[[case.width]]
    )
    # Scalars are fastest in a struct, which becomes a DataFrame of pandas as it is.
    rows = functions.struct(*case.columns) if len(case.columns) > 1 else functions.col(*case.columns)
    return df.select("*", function(rows).alias("scores"))


def cpu_seconds() -> float:
    """CPU time of all processes that carry the mark: the JVM, Python workers, the model's process."""
    from gridflow.processes import find

    processes = [psutil.Process(pid) for pid in find([f"{MARK}={os.getpid()}"])]
    return sum(sum(each.cpu_times()[:4]) for each in processes)


def best(df: DataFrame, rounds: int) -> tuple[float, float]:
    """Return the least CPU-seconds and the least wall seconds of some rounds, after some to warm up."""
    taken = []
    for _ in range(rounds + WARM_UP):
        cpu, wall = cpu_seconds(), time.perf_counter()
        df.write.format("noop").mode("overwrite").save()
        taken.append((cpu_seconds() - cpu, time.perf_counter() - wall))
    cpus, walls = zip(*taken[WARM_UP:], strict=True)
    return min(cpus), min(walls)


def measure_way(way: str, cores: int, folder: Path, *, is_quick: bool) -> dict[str, tuple[float, float]]:
    from gridflow.spark import session

    spark = session(master=f"local[{cores}]", config=SETTINGS)
    found = {}
    for case in cases(is_quick=is_quick):
        df = spark.range(0, case.rows, numPartitions=cores).selectExpr("id", *case.expressions).cache()
        df.count()
        found[case.name] = best(WAYS[way](df, case, folder / f"{case.width}-inputs"), 4 if is_quick else 10)
        df.unpersist(blocking=True)
    spark.stop()
    return found


def measure_apart(way: str, cores: int, folder: Path, *, is_quick: bool) -> dict[str, list[float]]:
    """Measure one way in processes of its own: what a Python worker has imported slows all of its later tasks."""
    argv = [sys.executable, __file__, "--way", way, "--cores", str(cores), "--models", str(folder)]
    done = subprocess.run([*argv, *(["--quick"] if is_quick else [])], stdout=subprocess.PIPE, timeout=1800, check=True)
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(cores: int, folder: Path, *, is_quick: bool) -> Iterator[Measurement]:
    ours, peers = (measure_apart(way, cores, folder, is_quick=is_quick) for way in WAYS)
    for case in cases(is_quick=is_quick):
        for part, unit in enumerate(("rows/CPU-s", "rows/s")):
            own, peer = case.rows / ours[case.name][part], case.rows / peers[case.name][part]
            label = f"{case.name}, local[{cores}]"
            yield Measurement(label, own, unit, f"predict_batch_udf ({peer:,.0f})", own / peer)


def add_pandas(folder: Path) -> None:
    """Let the processes that this one brings about import pandas."""
    if importlib.util.find_spec("pandas"):
        return
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *PANDAS]
    subprocess.run(install, check=True, timeout=300)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(folder)]))


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--way", choices=sorted(WAYS), help="measure only this one")
    parser.add_argument("--cores", type=int, default=1, help="with --way: of how many")
    parser.add_argument("--models", type=Path, help="with --way: where the models are")
    options = parser.parse_args()
    os.environ.update({MARK: str(os.getpid())}, PYSPARK_PYTHON=sys.executable, TF_CPP_MIN_LOG_LEVEL="3")
    if options.way:
        print(json.dumps(measure_way(options.way, options.cores, options.models, is_quick=options.quick)))
        return
    measurements: list[Measurement] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        add_pandas(folder / "packages")
        for case in cases(is_quick=options.quick):
            save = [sys.executable, "-c", SAVE_MODEL, str(case.width), str(folder / f"{case.width}-inputs")]
            subprocess.run(save, check=True, timeout=300, stdout=subprocess.DEVNULL)
        for cores in (1,) if options.quick else (1, 2):
            measurements.extend(compare(cores, folder, is_quick=options.quick))
    print_report(measurements, as_json=options.json)


WAYS = {"gridflow": with_gridflow, "predict_batch_udf": with_batch_udf}


if __name__ == "__main__":
    main()
