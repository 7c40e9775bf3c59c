"""The driver's side of a run on Spark: gets slots from Spark, and has them run the agents.

    Supervisor ─▶ SparkCrew ── a Spark job per kind of task ──▶ executors: SlotOrder.open ─▶ slots
                      ▲                                                                       │
                      └────────────── a link from each slot: its logs, results, ends ◀────────┘

Each attempt of the gang gets slots of its own, so an executor that was lost, or a slot that came late, is never in the
way of the next attempt. A slot too many (Spark ran a task twice) waits as a spare.
"""

from __future__ import annotations

import asyncio
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gridflow import processes, shipping
from gridflow.errors import RendezvousError
from gridflow.job import Job, Resources
from gridflow.platforms.crew import Crew, Watcher
from gridflow.platforms.spark_jobs import SparkJob
from gridflow.platforms.spark_slot import SlotOrder
from gridflow.rendezvous.links import Link, LinkServer
from gridflow.rendezvous.roster import Address
from gridflow.store import RunFolder, write_whole
from gridflow.task import identity, paths

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

_SLOT_HELLO_SECONDS = 60.0
#: A program's files may be large, and its host slow.
_SLOT_READY_SECONDS = 600.0
_RECEIVE_SECONDS = 60.0
#: How long slots may take to go when they are released, on top of the job's own stop timeout.
_RELEASE_SECONDS = 10.0
_POLL_SECONDS = 0.02
_JVM_SECONDS = 30.0


@dataclass(eq=False)
class _Slot:
    """A slot that has come, and the task it runs."""

    link: Link
    attempt: int
    need: int
    host: str
    task: str | None = None
    #: The task whose agent ran here last: it can come back to its address.
    last_task: str | None = None

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message; a slot that is gone is noticed by whoever reads from it."""
        with suppress(RendezvousError):
            self.link.send(message)


class SparkCrew(Crew):
    """The slots of one run, and what runs in them."""

    def __init__(
        self,
        folder: RunFolder,
        open_session: Callable[[], SparkSession],
        *,
        is_held: bool,
        is_own_session: bool,
        gpu_resource: str,
    ) -> None:
        self._folder = folder
        self._job = folder.job
        self._open_session = open_session
        self._is_held = is_held
        self._is_own_session = is_own_session
        self._gpu_resource = gpu_resource
        self._secret = folder.secret()
        self._attempt = -1
        self._needs = needs(self._job)
        self._slots: set[_Slot] = set()
        self._waiting: dict[str, Mapping[str, str]] = {}
        self._jobs: list[SparkJob] = []
        self._server = LinkServer(self._secret, self._serve)
        self._has_changed = asyncio.Event()
        #: Set while every task of the present attempt has its slot: until then Spark's cores are wanted for those.
        self.has_all_slots = threading.Event()
        #: Called with the number of each attempt after the first, before its tasks start.
        self.on_restart: Callable[[int], None] = lambda _attempt: None

    # The supervisor's requests

    async def open(self, watcher: Watcher) -> None:
        """Open the session, and listen for slots."""
        await super().open(watcher)
        self._loop = asyncio.get_running_loop()
        if self._is_own_session:
            # Spark's own processes may outlive its JVM for a moment.
            processes.adopt_orphans()
        self._spark = await asyncio.to_thread(self._open_session)
        context = self._spark.sparkContext
        self.host, self.bind_host = driver_hosts(self._spark)
        self._is_held = self._is_held or _is_elastic(context)
        self._server_address = Address(self.host, self._server.listen(self.bind_host).port)
        self._archive = ""
        if self._folder.archive_file.exists():
            named = self._folder.path / f"{self._folder.run}.tar"
            self._folder.archive_file.rename(named)
            context.addFile(str(named))
            self._archive = named.name
        # Checkpoints and TensorBoard's logs are kept where all see them.
        self._shipped = replace(
            shipping.shipped(self._job),
            checkpoint_dir=self._job.checkpoint_dir or str(self._folder.checkpoint_dir),
            log_dir=self._job.log_dir or str(self._folder.log_dir),
        )
        self._variables = _file_system(context)

    async def begin(self) -> None:
        """Ask Spark for a slot per task."""
        await self._release_all()
        if self._attempt:
            self.on_restart(self._attempt)
        self._waiting.clear()
        for need, (resources, tasks) in enumerate(self._needs):
            order = SlotOrder(
                run=self._folder.run,
                attempt=self._attempt,
                need=need,
                driver=str(self._server_address),
                secret=self._secret,
                is_held=self._is_held,
                gpu_resource=self._gpu_resource,
                archive=self._archive,
            )
            self._jobs.append(self._ask_spark(order, resources, tasks))

    def start(self, task: str, environment: Mapping[str, str]) -> None:
        """Start a task in a slot that is free, or in the next that comes."""
        spare = [slot for slot in self._slots if slot.task is None and self._fits(slot, task)]
        if not spare and not any(job.is_running for job in self._jobs):
            # It is to come back alone, and its slot is lost; Spark was asked once, for all tasks.
            self._loop.call_soon(self.watcher.agent_ended, task, None, "its executor is gone")
            return
        if not spare:
            self._waiting[task] = environment
            return
        self._assign(max(spare, key=lambda slot: slot.last_task == task), task, environment)

    def terminate(self, task: str) -> None:
        """Have the slot send SIGTERM; a task that has no slot yet ends at once."""
        self._signal(task, signal.SIGTERM)

    def kill(self, task: str) -> None:
        """Have the slot send SIGKILL."""
        self._signal(task, signal.SIGKILL)

    def _signal(self, task: str, number: int) -> None:
        if self._waiting.pop(task, None) is not None:
            self._loop.call_soon(self.watcher.agent_ended, task, -number)
        for slot in self._slots:
            if slot.task == task:
                slot.tell({"type": "signal", "number": int(number)})

    def why_missing(self, tasks: Collection[str]) -> str:
        """Say how many slots Spark has not given, and what it has."""
        waiting = [task for task in tasks if task in self._waiting]
        if not waiting:
            return ""
        wanted = len(self._job.tasks)
        return f"Spark gave {wanted - len(self._waiting)} of {wanted} slots; {self._describe_cluster(waiting)}"

    async def close(self) -> None:
        """Release all slots, and let go of Spark."""
        await self._release_all()
        # Here rather than in asyncio's threads, which are gone when this runs at the end of the interpreter.
        self._server.stop()
        if self._is_own_session:
            _end_session(self._spark)
            processes.kill_children()

    # What Spark gives

    def _ask_spark(self, order: SlotOrder, resources: Resources, tasks: Sequence[str]) -> SparkJob:
        """Begin the Spark job that opens slots; a held slot's part of it ends with the slot."""

        def open_slots() -> None:
            context = self._spark.sparkContext
            rows = context.parallelize(range(len(tasks)), len(tasks))
            profile = self.profile(resources, context.getConf())
            if profile is not None:
                rows = rows.withResources(profile)
            rows.mapPartitionsWithIndex(order.open).count()

        def ended(error: Exception | None) -> None:
            if error is not None:
                self._post(self._spark_failed, order, _cause(error))

        description = f"gridflow {order.run}: {', '.join(tasks)}"
        return SparkJob(self._spark, self._group(order.attempt), description, open_slots, ended)

    def profile(self, resources: Resources, settings: SparkConf) -> Any:
        """Return what a slot asks of Spark beyond the session's own settings; None where that is nothing."""
        return resource_profile(resources, settings, self._gpu_resource)

    def _group(self, attempt: int) -> str:
        return f"gridflow-{self._folder.run}-{attempt}"

    def _spark_failed(self, order: SlotOrder, why: str) -> None:
        """Give up the tasks that still wait for a slot: none will come."""
        if order.attempt != self._attempt:
            return
        _, tasks = self._needs[order.need]
        for task in [task for task in tasks if task in self._waiting]:
            del self._waiting[task]
            self.watcher.agent_ended(task, None, f"Spark gave it no slot: {why}")

    def _describe_cluster(self, waiting: Sequence[str]) -> str:
        context = self._spark.sparkContext
        settings = context.getConf()
        # The driver is counted among the executors, unless it is the only one.
        executors = max(context._jsc.sc().getExecutorMemoryStatus().size() - 1, 1)
        cores = context.defaultParallelism
        each = settings.get("spark.task.cpus", "1")
        said = [f"{executors} executor{'s' if executors > 1 else ''} with {cores} cores in all, {each} for each slot"]
        active = len(context.statusTracker().getActiveJobsIds()) - len(self._needs)
        if active > 0:
            said.append(f"{active} other Spark job{'s' if active > 1 else ''} at work")
        gpus = max(self._job.group_of(task).resources.gpus for task in waiting)
        if gpus:
            offered = settings.get(f"spark.executor.resource.{self._gpu_resource}.amount", "0")
            said.append(f"{gpus:g} GPU{'s' if gpus > 1 else ''} needed for each, {offered} in an executor")
        if _is_elastic(context):
            most = settings.get("spark.dynamicAllocation.maxExecutors", "any number of")
            said.append(f"dynamic allocation may add up to {most} executors")
        else:
            said.append("dynamic allocation is off, so add executors or cores, or ask for fewer tasks")
        return "; ".join(said)

    # What slots say; in a thread of each

    def _serve(self, link: Link) -> None:
        hello = link.receive(_SLOT_HELLO_SECONDS)
        if hello is None or hello["type"] != "slot":
            return
        slot = _Slot(link, hello["attempt"], hello["need"], hello["host"])
        payload = self._job.program.payload
        link.send({"type": "run", "job": self._shipped.to_table(), "bytes": len(payload)}, payload)
        if link.receive(_SLOT_READY_SECONDS) is None:
            return
        self._post(self._slot_came, slot)
        why = "its executor is gone"
        try:
            while True:
                message = link.receive(_RECEIVE_SECONDS)
                if message is not None:
                    self._take(slot, message)
        except RendezvousError as error:
            why = f"its executor on {slot.host} is gone ({error.message})"
        finally:
            self._post(self._slot_went, slot, why)

    def _take(self, slot: _Slot, message: Mapping[str, Any]) -> None:
        task = message["task"]
        content = bytearray(message.get("bytes", 0))
        slot.link.receive_bulk(content)
        match message["type"]:
            case "log":
                with self._folder.log_file(task).open("ab") as log:
                    log.write(content)
            case "result":
                write_whole(self._folder.result_file(task), bytes(content))
            case "ended":
                self._post(self._agent_ended, slot, message["returncode"])

    def _post(self, call: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended, and the run with it
            self._loop.call_soon_threadsafe(call, *arguments)

    # What follows from it; in the loop

    def _slot_came(self, slot: _Slot) -> None:
        if slot.attempt != self._attempt:
            slot.tell({"type": "release"})
            return
        self._slots.add(slot)
        came = Counter(each.need for each in self._slots)
        if all(came[need] >= len(tasks) for need, (_, tasks) in enumerate(self._needs)):
            self.has_all_slots.set()
        for task, environment in self._waiting.items():
            if self._fits(slot, task):
                del self._waiting[task]
                self._assign(slot, task, environment)
                return

    def _fits(self, slot: _Slot, task: str) -> bool:
        return slot.attempt == self._attempt and task in self._needs[slot.need][1]

    def _assign(self, slot: _Slot, task: str, environment: Mapping[str, str]) -> None:
        slot.task = slot.last_task = task
        variables = {**self._variables, **environment, identity.ATTEMPT: str(self._attempt)}
        slot.tell({"type": "start", "task": task, "environment": variables})
        self.watcher.agent_started(task, slot.host)

    def _agent_ended(self, slot: _Slot, returncode: int) -> None:
        task, slot.task = slot.task, None
        if task is not None and slot in self._slots:
            self.watcher.agent_ended(task, returncode)

    def _slot_went(self, slot: _Slot, why: str) -> None:
        self._slots.discard(slot)
        self._has_changed.set()
        if slot.task is not None:
            self.watcher.agent_ended(slot.task, None, why)

    async def _release_all(self) -> None:
        """Have all slots go, and wait until they have; those that come late are of an attempt that is over."""
        self.has_all_slots.clear()
        # Not the number of restarts: ports that are drawn anew make an attempt too.
        self._attempt += 1
        for slot in self._slots:
            slot.tell({"type": "release"})
        deadline = time.monotonic() + self._job.timeouts.stop_seconds + _RELEASE_SECONDS
        while self._slots and time.monotonic() < deadline:
            self._has_changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_changed.wait(), max(deadline - time.monotonic(), 0.01))
        for job in self._jobs:
            if job.is_running:
                # Slots that Spark has not given yet are not wanted any more.
                job.cancel()
        while any(job.is_running for job in self._jobs) and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
        self._jobs.clear()


def driver_hosts(spark: SparkSession) -> tuple[str, str]:
    """Return the name under which executors reach the driver, and the address on which it listens for them."""
    settings = spark.sparkContext.getConf()
    host = settings.get("spark.driver.host") or "127.0.0.1"
    return host, settings.get("spark.driver.bindAddress") or host


def _file_system(context: SparkContext) -> dict[str, str]:
    """Return the variables that tell tasks which file system is the cluster's, and whose home is meant."""
    default = context._jsc.hadoopConfiguration().get("fs.defaultFS")
    return {paths.DEFAULT_FS: default or "file:///", paths.USER: context.sparkUser()}


def _is_elastic(context: SparkContext) -> bool:
    return context.getConf().get("spark.dynamicAllocation.enabled") == "true"


def needs(job: Job) -> list[tuple[Resources, tuple[str, ...]]]:
    """Return the job's tasks by what they need of Spark: each kind becomes one Spark job."""
    kinds: dict[Resources, tuple[str, ...]] = {}
    for task in job.tasks:
        resources = job.group_of(task).resources
        kind = Resources(cpus=resources.cpus, gpus=resources.gpus, gpu_memory_mb=resources.gpu_memory_mb)
        kinds[kind] = (*kinds.get(kind, ()), task)
    return list(kinds.items())


def resource_profile(resources: Resources, settings: SparkConf, gpu_resource: str) -> Any:
    """Return what a task asks of Spark beyond the session's own settings; None where that is nothing."""
    # A session may want a GPU for each of its tasks, and then a task that needs none must say so.
    has_gpu_anyway = float(settings.get(f"spark.task.resource.{gpu_resource}.amount") or 0) > 0
    if resources.cpus is None and not resources.gpus and not has_gpu_anyway:
        return None
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    from gridflow.gpu.claims import Claim
    from gridflow.gpu.cluster_requests import spark_request

    requests = TaskResourceRequests()
    requests.cpus(max(1, round(resources.cpus or int(settings.get("spark.task.cpus") or 1))))
    if resources.gpus:
        amount = spark_request(Claim.of_resources(resources)).settings["spark.task.resource.gpu.amount"]
        requests.resource(gpu_resource, float(amount))
    return ResourceProfileBuilder().require(requests).build


def _cause(error: Exception) -> str:
    """Return what a failed Spark job has to say in one line, and what to do about it where that is known."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    said = next((line for line in reversed(lines) if re.match(r"[\w.]*(Error|Exception): ", line)), lines[0])
    if said == "ModuleNotFoundError: No module named 'gridflow'":
        said += " (install it where the executors run, or set spark.pyspark.python to a Python that has it)"
    return said


def _end_session(spark: SparkSession) -> None:
    """Stop a session and the JVM that Spark would keep until the interpreter ends."""
    from pyspark import SparkContext

    spark.stop()
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=_JVM_SECONDS)
