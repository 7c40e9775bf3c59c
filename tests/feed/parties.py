"""The parties of a feed: the driver's side here, tasks in threads or in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from gridflow.feed import sender
from gridflow.feed.blocks import RowsBlock, arrow_blocks
from gridflow.feed.coordinator import Coordinator
from gridflow.feed.feed import Feed, open_feed
from gridflow.feed.sender import Origin, Sent
from gridflow.feed.state import Epoch, Report
from gridflow.feed.variables import FEEDS

SECRET = b"s" * 32
SECONDS = 60
PROGRAMS = Path(__file__).parent / "programs"


class Driver:
    """A coordinator, and the threads in which a test plays tasks and senders."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.address = coordinator.start("127.0.0.1")
        self.environ = {FEEDS: str(self.address)}
        self.pool = ThreadPoolExecutor(32, thread_name_prefix="test-party")

    def origin(self, epoch: Epoch | None, partition: int) -> Origin:
        assert epoch is not None
        return Origin(self.address, SECRET, epoch, partition)

    def join(self, feed: str, task: str, attempt: int = 0, *, timeout_seconds: float = SECONDS) -> Feed:
        return open_feed(feed, self.environ, secret=SECRET, task=task, attempt=attempt, timeout_seconds=timeout_seconds)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        return self.pool.submit(function, *arguments)

    def read(self, feed: str, task: str, use: Callable[[Feed], Any], attempt: int = 0) -> Future[Any]:
        """Open a feed in a thread and give it to `use`."""

        def body() -> Any:
            with self.join(feed, task, attempt) as opened:
                return use(opened)

        return self.run(body)

    def report(self, feed: str) -> Report:
        """Return the report on a feed as soon as its consumers were heard to have read or stopped it."""
        self.coordinator.wait_read(feed, SECONDS)
        return self.coordinator.report(feed)

    def send_epoch(self, feed: str, partitions: Sequence[Iterable[pa.RecordBatch]]) -> list[Sent]:
        """Send one epoch, all its partitions at once."""
        epoch = self.coordinator.begin_epoch(feed)
        sent = [self.run(send, batches, self.origin(epoch, number)) for number, batches in enumerate(partitions)]
        results = [each.result(SECONDS) for each in sent]
        assert epoch is not None
        self.coordinator.end_epoch(epoch, range(len(partitions)))
        return results


@contextmanager
def started() -> Iterator[Driver]:
    with Coordinator(SECRET) as coordinator:
        driver = Driver(coordinator)
        try:
            yield driver
        finally:
            coordinator.stop()
            driver.pool.shutdown()


def send(batches: Iterable[pa.RecordBatch], origin: Origin) -> Sent:
    """Send a partition's batches, as Spark's tasks do."""
    return sender.send(arrow_blocks(batches), origin)


def rows_block(rows: Sequence[Any]) -> Iterator[RowsBlock]:
    """Make a partition of one block."""
    yield RowsBlock(list(rows), cost=100 * len(rows))


def numbers(*counts: int, size: int = 50) -> list[list[pa.RecordBatch]]:
    """Make partitions of a column `n` with so many rows, which goes on counting from one to the next."""
    partitions, start = [], 0
    for count in counts:
        table = pa.table({"n": pa.array(range(start, start + count), pa.int64())})
        partitions.append(table.to_batches(max_chunksize=size))
        start += count
    return partitions


def read_numbers(feed: Feed, batch_size: int = 10, **options: Any) -> list[list[int]]:
    return [batch["n"].tolist() for batch in feed.batches(batch_size, **options)]


def start_program(name: str, **options: Any) -> subprocess.Popen[str]:
    """Start one of the programs beside this file with its options as JSON."""
    return subprocess.Popen(
        [sys.executable, str(PROGRAMS / name), json.dumps({"secret": SECRET.decode(), **options})],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result_of(process: subprocess.Popen[str]) -> Any:
    """Return what a program printed last, as JSON."""
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])
