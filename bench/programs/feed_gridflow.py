"""Feeds rows of each kind to one worker of Gridflow, which counts them, and passes the same rows through Spark alone.

The arguments say which part of the rows to feed, and of which kinds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import gridflow.spark
from programs.spark_rows import KINDS, Pass, make_frame, measure, pass_through, print_passes, start_spark

BATCH_ROWS = 1000
REPETITIONS = 2
#: How each kind is read, as a method of a feed and its arguments.
WAYS: dict[str, tuple[str, dict[str, Any]]] = {"dataset": ("dataset", {}), "batches": ("batches", {})}
BYTES_WAYS = {**WAYS, "dataset of uint8": ("dataset", {"shapes": {"image": [784]}})}


def ways_of(kind: str) -> dict[str, tuple[str, dict[str, Any]]]:
    return BYTES_WAYS if kind == "784 bytes" else WAYS


def count_rows(kinds: list[str]) -> dict[str, int]:
    """Read every feed to its end, in the order in which they are fed."""
    context = gridflow.context()
    counts = {}
    for kind in kinds:
        for way, (method, options) in ways_of(kind).items():
            feed = context.feed(f"{kind}, {way}")
            counts[feed.name] = 0
            while not feed.is_ended:
                for batch in getattr(feed, method)(BATCH_ROWS, remainder="keep", **options):
                    counts[feed.name] += len(next(iter(batch.values())))
    return counts


def best(name: str, rows: int, work: Callable[[], object]) -> Pass:
    """Do some work once to warm up, then some times; the quickest counts."""
    work()
    return min((measure(name, rows, work) for _ in range(REPETITIONS)), key=lambda one: one.seconds)


def main() -> None:
    """Measure some kinds of rows."""
    part, kinds = float(sys.argv[1]), sys.argv[2:]
    spark = start_spark("local-cluster[1,1,4096]")
    cluster = gridflow.spark.run(count_rows, spark=spark, workers=1, args=[kinds])
    passes, expected = [], {}
    for kind in map(KINDS.__getitem__, kinds):
        df = make_frame(spark, kind, count := int(kind.count * part))
        passes.append(best(f"{kind.name}, no-op", count, lambda df=df: pass_through(df)))  # type: ignore[misc]
        for way in ways_of(kind.name):
            name = f"{kind.name}, {way}"
            passes.append(best(name, count, lambda df=df, name=name: cluster.train(df, feed=name, more=True)))  # type: ignore[misc]
            cluster.finish(name)
            expected[name] = count * (1 + REPETITIONS)
        df.unpersist(blocking=True)
    if (counts := cluster.shutdown()) != expected:
        raise RuntimeError(f"the worker counted {counts}, but was fed {expected}")
    spark.stop()
    print_passes(passes)


if __name__ == "__main__":
    main()
