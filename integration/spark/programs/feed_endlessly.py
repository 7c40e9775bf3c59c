"""Feeds tasks without end, and says `fed RUN` when both have read something: feed_endlessly.py MASTER SETTINGS."""

from __future__ import annotations

import json
import sys
import threading
import time

import gridflow
import gridflow.spark
from gridflow.spark import Cluster


def read() -> None:
    for _ in gridflow.context().feed("train").batches(10):
        print("read", flush=True)  # noqa: T201
        time.sleep(0.1)


def tell(cluster: Cluster) -> None:
    """Say when all tasks have read something."""
    while not all("read" in "".join(cluster.logs(task)) for task in cluster.run.job.tasks):
        time.sleep(0.1)
    print(f"fed {cluster.run.id}", flush=True)  # noqa: T201


def main(master: str, settings: str) -> None:
    spark = gridflow.spark.session("endless", master=master, config=json.loads(settings))
    cluster = gridflow.spark.run(read, spark=spark, workers=2)
    threading.Thread(target=tell, args=[cluster], daemon=True).start()
    cluster.train(spark.range(0, 100_000_000, 1, 4), epochs=1000)


if __name__ == "__main__":
    main(*sys.argv[1:])
