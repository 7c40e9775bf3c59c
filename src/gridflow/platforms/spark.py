"""Spark: every task is a process inside an executor, on any cluster that Spark runs on.

    gridflow run ─▶ supervisor (Spark's driver) ─▶ slots in executors ─▶ agents ─▶ programs
    launch(fn, on="spark", spark=session) ─▶ a thread of this process does the same, with that session

Options: `master`, any setting of Spark (`spark.executor.memory`, …), `gpu_resource` where the cluster does not call its
GPUs `gpu`, and from Python `spark`, a session that runs.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gridflow import shipping
from gridflow.errors import PlatformError
from gridflow.job import Job
from gridflow.platforms.base import Command, File, Finding, Plan, job_files
from gridflow.platforms.crew import Crew
from gridflow.platforms.spark_crew import SparkCrew, needs
from gridflow.platforms.spark_jobs import speaking_to_jvm
from gridflow.platforms.supervised import SupervisedPlatform
from gridflow.platforms.supervisor import Supervisor
from gridflow.state import RunState
from gridflow.store import ARCHIVE, RunFolder
from gridflow.tables import Table
from gridflow.task import identity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SESSION = "spark"
_GPU_RESOURCE = "gpu"
_EXIT_SECONDS = 20.0


class Spark(SupervisedPlatform):
    """Tasks are processes inside Spark's executors."""

    name = "spark"
    description = "executors of a Spark cluster: standalone, YARN, Kubernetes, or on this machine"
    #: A cluster that is busy lets an application in late.
    open_seconds = 300.0
    close_seconds = 120.0
    crew_type: type[SparkCrew] = SparkCrew

    def __init__(self, options: Mapping[str, Any]) -> None:
        given = options.get(_SESSION)
        self._session: SparkSession | None = None if isinstance(given, Mapping) else given
        super().__init__(options if self._session is None else {**options, _SESSION: None})

    def read_options(self, table: Table) -> None:
        """Take the address of the cluster, and Spark's own settings."""
        self._settings = table.prefixed("spark")
        self._master = table.text("master") or self._settings.get("spark.master", "")
        self._gpu_resource = table.text("gpu_resource") or _GPU_RESOURCE

    @property
    def recorded_options(self) -> dict[str, Any]:
        """The options that a later process can use: a session belongs to this one."""
        own = {"master": self._master} if self._master else {}
        if self._gpu_resource != _GPU_RESOURCE:
            own["gpu_resource"] = self._gpu_resource
        return own | self._settings

    def plan(self, job: Job) -> Plan:
        """Return one agent per task, and the settings of the Spark application."""
        agent = ("python", "-P", "-m", "gridflow.task")
        settings = self._application(job)
        notes = ["Spark's executors must have Gridflow and TensorFlow installed"]
        if any(group.resources.memory_mb for group in job.groups):
            notes.append("memory is that of the executors: set spark.executor.memoryOverhead")
        if job.image:
            notes.append(f"image {job.image} is not used: executors run where the cluster starts them")
        return Plan(
            files=(*job_files(job), File("spark.properties", _properties(settings))),
            commands=tuple(Command(agent, {identity.TASK: task}, task) for task in job.tasks),
            notes=tuple(notes),
        )

    def submit(self, plan: Plan, folder: RunFolder, *, attached: bool) -> None:
        """Start the supervisor: a process, or a thread where a session is given."""
        if self._session is None:
            super().submit(plan, folder, attached=attached)
            return
        if not attached:
            raise PlatformError(
                f"run {folder.run} cannot go on without this process, whose Spark session it uses",
                hint="give master instead of spark, or do not detach",
            )
        self.prepare(plan, folder)
        self.supervise(folder, self.crew(folder), {})

    def prepare(self, plan: Plan, folder: RunFolder) -> None:
        """Write what the tasks need into the run's folder."""
        super().prepare(plan, folder)
        if shipping.carried(folder.job):
            folder.write(ARCHIVE, shipping.pack(folder.job))

    def supervise(self, folder: RunFolder, crew: Crew, environment: dict[str, str]) -> None:
        """Watch over a run in a thread of this process; return when it has begun."""
        thread = threading.Thread(
            target=_supervise, args=(folder, crew, environment), name=f"gridflow-{folder.run}", daemon=True
        )
        thread.start()
        atexit.register(_end, folder, thread)
        self.wait_until_open(folder, None)

    def crew(self, folder: RunFolder, *, is_held: bool = True) -> SparkCrew:
        """Return the slots of a run; `is_held` tells whether they keep their Spark tasks."""
        return self.crew_type(
            folder,
            lambda: self._open_session(folder),
            is_held=is_held,
            is_own_session=self._session is None,
            gpu_resource=self._gpu_resource,
        )

    def _open_session(self, folder: RunFolder) -> SparkSession:
        if self._session is not None:
            return self._session
        try:
            from pyspark.sql import SparkSession
        except ImportError as error:
            raise PlatformError("pyspark is not installed", hint="pip install gridflow[spark]") from error
        settings = self._application(folder.job)
        # Spark's Python goes by this variable, and reads the setting only in `spark-submit`.
        os.environ["PYSPARK_PYTHON"] = settings["spark.pyspark.python"]
        builder = SparkSession.builder.appName(f"gridflow {folder.run}")
        for name, value in settings.items():
            builder = builder.config(name, value)
        try:
            return builder.getOrCreate()
        except Exception as error:
            raise PlatformError(
                f"Spark at {self._master or 'its default master'} cannot be reached: {_cause(error)}",
                hint=f"see {folder.supervisor_log}",
            ) from error

    def _application(self, job: Job) -> dict[str, str]:
        """Return the settings of an application that runs a job."""
        from gridflow.gpu.claims import Claim
        from gridflow.gpu.cluster_requests import spark_request

        settings = {"spark.ui.showConsoleProgress": "false"}
        settings["spark.pyspark.python"] = os.environ.get("PYSPARK_PYTHON") or sys.executable
        gpus = [resources for resources, _ in needs(job) if resources.gpus]
        if gpus:
            most = max(gpus, key=lambda resources: resources.gpus)
            amount = spark_request(Claim.of_resources(most)).settings["spark.executor.resource.gpu.amount"]
            settings[f"spark.executor.resource.{self._gpu_resource}.amount"] = amount
        if self._master:
            settings["spark.master"] = self._master
        return settings | self._settings

    def check(self) -> list[Finding]:
        """Look for pyspark and a Java."""
        import shutil
        from importlib.util import find_spec

        has_pyspark = find_spec("pyspark") is not None
        java = shutil.which("java") or os.environ.get("JAVA_HOME")
        return [
            Finding("pyspark", has_pyspark, "installed" if has_pyspark else "pip install gridflow[spark]"),
            Finding("java", bool(java), java or "install a JDK 17 or newer, or set JAVA_HOME"),
        ]


def _supervise(folder: RunFolder, crew: Crew, environment: dict[str, str]) -> None:
    with speaking_to_jvm():
        try:
            asyncio.run(Supervisor(folder, crew, environment=environment).run(is_thread=True))
        except Exception as error:
            folder.append_event("run", state=RunState.FAILED, reason=f"the run's supervisor failed: {error}")
            raise


def _end(folder: RunFolder, thread: threading.Thread) -> None:
    """End a run with the process that has its session."""
    if thread.is_alive():
        folder.request_cancel()
        thread.join(_EXIT_SECONDS)


def _properties(settings: Mapping[str, str]) -> bytes:
    return "".join(f"{name} {value}\n" for name, value in sorted(settings.items())).encode()


def _cause(error: Exception) -> str:
    """Return what Spark says of itself, less Java's stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "Exception:" in line), lines[0] if lines else repr(error))
