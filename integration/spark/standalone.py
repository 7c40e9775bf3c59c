"""A real Spark cluster on this machine: a master and two workers, from the pyspark package alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import psutil
import pytest
from tests.spark_sessions import end_jvm, warm_up
from tests.waiting import until

from gridflow.gpu.variables import DECLARED, LEDGER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: '… INFO Master: Starting Spark master at spark://127.0.0.1:7077'
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Successfully registered with master"
_START_SECONDS = 120


@dataclass(frozen=True)
class Standalone:
    """The cluster's address and its processes."""

    url: str
    folder: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def settings(self, cores: int = 1) -> dict[str, str]:
        """Return an application's settings: executors of so many cores, and a driver that starts quickly."""
        return {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": _QUICK_JVM,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.cores": str(cores),
            "spark.executor.extraJavaOptions": _QUICK_JVM,
            "spark.executor.memory": "512m",
            "spark.executor.resource.gpu.amount": str(cores),
            f"spark.executorEnv.{DECLARED}": str(self.folder / "gpus.toml"),
            f"spark.executorEnv.{LEDGER}": str(self.folder / "ledger"),
            "spark.local.dir": str(self.folder / "local"),
            "spark.log.level": "FATAL",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }

    def executors(self) -> list[psutil.Process]:
        """Return the JVMs of all executors."""
        children = [child for worker in self.workers for child in psutil.Process(worker.pid).children(recursive=True)]
        return [child for child in children if "CoarseGrainedExecutorBackend" in " ".join(_command(child))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[Standalone]:
    """Run a master and two workers of 2 cores and 2 declared GPUs each."""
    (folder / "gpus.toml").write_text('[[gpu]]\nname = "T4"\nmemory = "8 GB"\ncapability = 7.5\ncount = 4\n')
    with ExitStack() as daemons:
        log = folder / "master.log"
        daemons.enter_context(_daemon("master.Master", "--host", "127.0.0.1", "--port", "0", log=log))
        until(lambda: _MASTER.search(_text(log)), "the master runs", seconds=_START_SECONDS)
        cluster = Standalone(_MASTER.findall(_text(log))[0], folder)
        logs = [folder / f"worker-{number}.log" for number in range(2)]
        for number, log in enumerate(logs):
            # Spark runs a task twice at the same time on different hosts only.
            host = f"127.0.0.{number + 1}"
            arguments = ("--host", host, "--cores", "2", "--memory", "4g", "--work-dir", str(folder / "work"))
            script = _discovery_script(folder / f"gpus-{number}.sh", [2 * number, 2 * number + 1])
            resources = f"-Dspark.worker.resource.gpu.amount=2 -Dspark.worker.resource.gpu.discoveryScript={script}"
            worker = _daemon("worker.Worker", *arguments, cluster.url, log=log, SPARK_WORKER_OPTS=resources)
            cluster.workers.append(daemons.enter_context(worker))
        for log in logs:
            until(partial(_says, log, _REGISTERED), f"a worker is registered: {log}", seconds=_START_SECONDS)
        yield cluster


@contextmanager
def session_on(cluster: Standalone, more: Mapping[str, str] = MappingProxyType({})) -> Iterator[SparkSession]:
    """Have a session with executors of one core and these settings; its JVM ends with it."""
    from gridflow.spark import session

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYSPARK_PYTHON", sys.executable)
            started = session("tests", master=cluster.url, config=cluster.settings() | dict(more))
        warm_up(started)
        yield started
        started.stop()
    finally:
        end_jvm()


def _discovery_script(path: Path, gpus: list[int]) -> Path:
    """Write the program that Spark asks for a worker's GPUs."""
    answer = json.dumps({"name": "gpu", "addresses": [str(gpu) for gpu in gpus]})
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return path


def _says(log: Path, words: str) -> bool:
    return words in _text(log)


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


@contextmanager
def _daemon(name: str, *arguments: str, log: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    import pyspark

    home = Path(pyspark.__file__).parent
    own: Mapping[str, str] = {
        "SPARK_HOME": str(home),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _QUICK_JVM,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        **variables,
    }
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--webui-port", "0", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env={**os.environ, **own}, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
