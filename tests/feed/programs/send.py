"""Sends partitions of numbered rows from child processes, which are killed at random moments and begun again."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator

import pyarrow as pa

from gridflow.feed import sender
from gridflow.feed.blocks import arrow_blocks
from gridflow.feed.state import Epoch
from gridflow.rendezvous.roster import Address

options = json.loads(sys.argv[1])
if options["transport"] == "tcp":
    sender.Consumers._connect_here = lambda *_: None  # type: ignore[method-assign]


def batches(partition: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, options["rows"], 100):
        time.sleep(0.003)
        first = partition * 1_000_000 + start
        yield pa.record_batch({"n": pa.array(range(first, first + 100), pa.int64())})


def send(partition: int) -> None:
    epoch = Epoch(**options["epoch"])
    origin = sender.Origin(Address.parse(options["coordinator"]), options["secret"].encode(), epoch, partition)
    # Many small blocks, so that there are many moments.
    sent = sender.send(arrow_blocks(batches(partition), block_bytes=2000), origin)
    assert not sent.was_stopped


def start(partition: int) -> int:
    child = os.fork()
    if not child:
        send(partition)
        os._exit(0)
    return child


def main() -> None:
    choose = random.Random(options["seed"])
    kills = 0
    for partition in range(options["partitions"]):
        while True:
            child = start(partition)
            if kills < options["kills"] * (partition + 1):
                time.sleep(choose.uniform(0, 0.15))
                os.kill(child, signal.SIGKILL)
                kills += 1
            # One that ended before it was killed is begun again too, as a speculative one would be.
            _, status = os.waitpid(child, 0)
            if status == 0 and kills >= options["kills"] * (partition + 1):
                break
    sys.stdout.write(json.dumps(kills) + "\n")


main()
