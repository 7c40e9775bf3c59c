"""Drivers that are not this process: inside YARN's own containers, and `gridflow run`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from integration.hadoop.conftest import application_settings
from integration.hadoop.running import Hadoop
from tests.twice import save_twice

pytestmark = pytest.mark.timeout(900)
SECONDS = 600
#: Trains, predicts with a model from HDFS, and writes what came of it: driver.py MODEL OUTPUT.
DRIVER = """
import sys
from pyspark.sql import SparkSession
import gridflow
import gridflow.spark


def take():
    feed = gridflow.context().feed("train")
    return sum(int(batch["id"].sum()) for batch in feed.batches(10, remainder="pad"))


if __name__ == "__main__":
    model, output = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    cluster = gridflow.spark.run(take, spark=spark, workers=1)
    cluster.train(spark.range(0, 1000, 1, 3))
    total = cluster.shutdown(300)
    rows = spark.range(0, 100, 1, 2).selectExpr("cast(id as float) as x")
    twice = gridflow.spark.predict(rows, model).selectExpr("sum(y) as y").first().y
    spark.createDataFrame([(total, int(twice))], "total long, twice long").coalesce(1).write.csv(output)
"""


def small_settings(scratch: Path) -> dict[str, str]:
    """Return the settings of an application that fits beside one that runs."""
    return application_settings(scratch) | {
        "spark.driver.memoryOverhead": "128m",
        "spark.executor.instances": "1",
        "spark.executor.memoryOverhead": "128m",
        "spark.yarn.am.memoryOverhead": "128m",
    }


def test_driver_in_a_container_trains_and_predicts_with_a_model_from_hdfs(
    hadoop: Hadoop, hdfs: Any, hdfs_native: Path, tmp_path: Path
) -> None:
    import pyspark

    hdfs.put(str(save_twice(tmp_path / "model")), "/cluster-mode/model", recursive=True)
    (tmp_path / "driver.py").write_text(DRIVER)
    settings = small_settings(tmp_path) | {
        "spark.executorEnv.PYTHONPATH": str(hdfs_native),
        "spark.yarn.appMasterEnv.GRIDFLOW_HOME": str(tmp_path / "home"),
        "spark.yarn.appMasterEnv.PYSPARK_PYTHON": sys.executable,
        "spark.yarn.appMasterEnv.PYTHONPATH": str(hdfs_native),
        "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
        "spark.yarn.maxAppAttempts": "1",
    }
    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-submit"), "--master", "yarn", "--deploy-mode", "cluster"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    done = subprocess.run(
        [*command, str(tmp_path / "driver.py"), hadoop.url("/cluster-mode/model"), hadoop.url("/cluster-mode/out")],
        env={**hadoop.environment, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    [part] = [name for name in hdfs.find("/cluster-mode/out") if "/part-" in name]
    assert hdfs.cat_file(part).decode().strip() == f"{sum(range(1000))},{2 * sum(range(100))}"


PROGRAM = """
import gridflow

context = gridflow.context()
print(f"{context.task} of {len(context.roster.to_dict())} at {context.absolute_path('model')}", flush=True)
"""


def test_command_line_runs_a_program_in_containers(hadoop: Hadoop, tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(PROGRAM)
    options = [f"-o{name}={value}" for name, value in small_settings(tmp_path).items()]
    command = [sys.executable, "-m", "gridflow", "run", "hello.py", "--on", "spark", "--master", "yarn"]
    done = subprocess.run(
        [*command, "--workers", "1", "--start-timeout", f"{SECONDS}s", *options],
        cwd=tmp_path,
        env={**hadoop.environment, "SPARK_LOCAL_IP": "127.0.0.1", "GRIDFLOW_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"worker/0 of 1 at {hadoop.exports['HDFS_URL']}/user/" in done.stdout
    applications = hadoop.applications(applicationTypes="SPARK", states="FINISHED")
    assert [each["finalStatus"] for each in applications if each["name"].startswith("gridflow hello")] == ["SUCCEEDED"]
