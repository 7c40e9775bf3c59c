"""Whatever is killed on a real cluster, and whenever: every row of a run that succeeds comes once, and nothing is left.

Each round feeds a run and kills -9 an executor, a task's program or a Python worker of Spark that feeds, at a random
moment. What is random comes from one seed, which a round that fails shows, so that it can be repeated:

    GRIDFLOW_CHAOS_SEED=1234 pytest "integration/spark/test_chaos.py::test_rows_come_once_whatever_is_killed[7]"
    GRIDFLOW_CHAOS_ROUNDS=20 pytest integration/spark/test_chaos.py
"""

from __future__ import annotations

import json
import logging
import os
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyarrow as pa
import pytest
from integration.spark.standalone import Standalone
from tests.platforms import run_processes
from tests.waiting import until

import gridflow
import gridflow.spark
from gridflow import processes
from gridflow.spark import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEED = os.environ.get("GRIDFLOW_CHAOS_SEED") or str(secrets.randbelow(10**6))
ROUNDS = int(os.environ.get("GRIDFLOW_CHAOS_ROUNDS", "3"))
KINDS = ("executor", "program", "sender")
EPOCHS, ROWS, PARTITIONS = 2, 1200, 6
ROW_BYTES, ROWS_AT_ONCE = 40_000, 50
#: About how long a run takes that nobody disturbs.
LIFE_SECONDS = 8.0
RUN_SECONDS = 180
#: How often to try, each time with half the delay, where the run had ended before its moment came.
ATTEMPTS = 4
#: PySpark leaves the sockets through which results come to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# Pytest shows warnings with a test that fails.
_log = logging.getLogger(__name__)


def slow_rows(spark: SparkSession) -> DataFrame:
    """Return rows that come a few at a time, about a block each, so that senders live for a while."""

    def slowly(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for start in range(0, batch.num_rows, ROWS_AT_ONCE):
                time.sleep(0.2)
                ids = batch.column("id").slice(start, ROWS_AT_ONCE)
                contents = pa.array([bytes([id_ % 251]) * ROW_BYTES for id_ in ids.to_pylist()], pa.binary())
                yield pa.RecordBatch.from_arrays([ids, contents], ["id", "content"])

    return spark.range(0, ROWS, 1, PARTITIONS).mapInArrow(slowly, "id long, content binary")


def note_rows(folder: str) -> int:
    """Write down every row before the next is asked for; return how many there were in this attempt."""
    context = gridflow.context()
    feed = context.feed("train")
    count = 0
    while feed.epoch < EPOCHS:
        path = Path(folder, f"{feed.epoch}.{context.restart}.{context.index}")
        with path.open("a") as notes:
            for batch in feed.batches(20, remainder="keep"):
                ids = batch["id"].tolist()
                if any(
                    content != bytes([id_ % 251]) * ROW_BYTES
                    for id_, content in zip(ids, batch["content"], strict=True)
                ):
                    raise ValueError(f"a row among {ids} is not what was sent")
                notes.write(json.dumps(ids) + "\n")
                notes.flush()
                count += len(ids)
                time.sleep(0.01)
    return count


@dataclass(frozen=True)
class Kill:
    """What to kill, and how long after the run's start."""

    kind: str
    after_seconds: float

    def __str__(self) -> str:
        return f"kill one {self.kind} after {self.after_seconds:.2f} s"


@dataclass(frozen=True)
class Plan:
    """One round: what to kill; the job may start again as often as that, and once more for luck."""

    kills: tuple[Kill, ...]

    @classmethod
    def draw(cls, number: int) -> Plan:
        """Draw a round; every kind of process has its turn as the first victim."""
        draw = random.Random(f"{SEED}/{number}")
        kinds = [KINDS[number % len(KINDS)], *([draw.choice(KINDS)] if draw.random() < 0.3 else [])]
        moments = sorted(draw.uniform(0, LIFE_SECONDS) for _ in kinds)
        return cls(tuple(map(Kill, kinds, moments)))


@dataclass
class Striker:
    """Kills what a plan says while a run goes on, in a thread of its own."""

    plan: Plan
    standalone: Standalone
    cluster: Cluster
    draw: random.Random
    haste: float
    is_over: threading.Event = field(default_factory=threading.Event)
    killed: list[str] = field(default_factory=list)

    def __enter__(self) -> Striker:
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._strike_all, name="striker")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self._thread.join()

    def _strike_all(self) -> None:
        for kill in self.plan.kills:
            moment = self._began + kill.after_seconds * self.haste
            while not self.is_over.wait(max(moment - time.monotonic(), 0.02)):
                if victims := self._victims(kill.kind):
                    victim = self.draw.choice(victims)
                    victim.kill()
                    self.killed.append(f"{kill.kind} {victim.pid} after {time.monotonic() - self._began:.2f} s")
                    break

    def _victims(self, kind: str) -> list[psutil.Process]:
        if kind == "executor":
            return self.standalone.executors()
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                is_one = self._is_program(process) if kind == "program" else self._is_sender(process)
                found += [process] if is_one else []
        return found

    def _is_program(self, process: psutil.Process) -> bool:
        words = process.cmdline()
        return "gridflow.task.program" in words and process.environ().get("GRIDFLOW_RUN") == self.cluster.run.id

    def _is_sender(self, process: psutil.Process) -> bool:
        """Tell whether a Python worker of Spark is connected to the coordinator of this run's feeds."""
        if "pyspark.daemon" not in process.cmdline():
            return False
        port = self.cluster._platform.feeds.port
        return any(each.raddr and each.raddr.port == port for each in process.net_connections("tcp"))


@pytest.mark.parametrize("number", range(ROUNDS))
def test_rows_come_once_whatever_is_killed(
    number: int, spark: SparkSession, cluster: Standalone, tmp_path: Path
) -> None:
    plan = Plan.draw(number)
    _log.warning("GRIDFLOW_CHAOS_SEED=%s, round %d: %s", SEED, number, "; ".join(map(str, plan.kills)))
    for attempt in range(ATTEMPTS):
        notes = tmp_path / f"notes-{attempt}"
        notes.mkdir()
        killed = disturbed_round(plan, spark, cluster, notes, 0.5**attempt)
        if killed:
            return
    pytest.fail(f"the run had ended {ATTEMPTS} times before its moment came")


def disturbed_round(plan: Plan, spark: SparkSession, standalone: Standalone, notes: Path, haste: float) -> list[str]:
    """Feed a run and strike; return what was killed, after all is as it must be."""
    restarts = len(plan.kills) + 1
    job = {"start_timeout": f"{RUN_SECONDS}s"}
    fed = gridflow.spark.run(note_rows, spark=spark, workers=2, args=[str(notes)], max_restarts=restarts, job=job)
    began = time.monotonic()
    try:
        with Striker(plan, standalone, fed, random.Random(f"{SEED}/{plan}"), haste) as striker:
            report = fed.train(slow_rows(spark), epochs=EPOCHS, timeout_seconds=RUN_SECONDS)
            fed.shutdown(RUN_SECONDS)
    finally:
        fed.cancel()
        _log.warning("killed %s; the run took %.1f s: %s", striker.killed, time.monotonic() - began, fed.status())
    assert report.epochs == EPOCHS
    assert fed.status().state is gridflow.RunState.SUCCEEDED
    check_notes(notes)
    run_processes.until_none_is_left(fed.run)
    until(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds(), "no Spark job is left")
    assert not processes.find([f"GRIDFLOW_RUN={fed.run.id}"])
    return striker.killed


def check_notes(folder: Path) -> None:
    """Every epoch was read by all tasks of one attempt, each row once; what came of it before was given up."""
    notes: dict[int, dict[int, Counter[int]]] = {epoch: {} for epoch in range(EPOCHS)}
    for path in folder.iterdir():
        epoch, attempt, _ = map(int, path.name.split("."))
        counts = notes[epoch].setdefault(attempt, Counter())
        for line in path.read_text().splitlines():
            counts.update(json.loads(line))
    for epoch, attempts in notes.items():
        for attempt, counts in attempts.items():
            doubled = [id_ for id_, count in counts.items() if count > 1]
            assert not doubled, f"epoch {epoch} has rows twice in attempt {attempt}: {doubled[:5]}"
        assert sorted(attempts[max(attempts)]) == list(range(ROWS)), f"epoch {epoch} lacks rows"
