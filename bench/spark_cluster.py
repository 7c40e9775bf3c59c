"""How long a TensorFlow cluster inside Spark takes to start and to shut down, against TensorFlowOnSpark.

    python bench/spark_cluster.py [--quick] [--json]

Two workers on a Spark cluster of two executors with one core each, whose Python workers are warm. Start is from the
call until the function runs in both tasks, shutdown from the end of training until the call has returned. Each side
starts several clusters in one Spark session. The median counts; the first one, which loads everything for the first
time, is left out and shown beside it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from feed import run_program
from peers import peer_python
from programs.cluster_times import Times
from report import Measurement, make_parser, print_report

START_GOAL = 0.5
SHUTDOWN_GOAL_SECONDS = 1


def take_times(python: Path, program: str, clusters: int) -> list[Times]:
    return [Times(**each) for each in json.loads(run_program(python, program, str(clusters)))]


def compare(ours: list[Times], peer: list[Times]) -> Iterator[Measurement]:
    for name, mine, other in [
        ("first start", ours[0].start, peer[0].start),
        ("start", median(each.start for each in ours[1:]), median(each.start for each in peer[1:])),
        ("shutdown", median(each.shutdown for each in ours[1:]), median(each.shutdown for each in peer[1:])),
    ]:
        goal = f"goal {START_GOAL}" + (f" and {SHUTDOWN_GOAL_SECONDS} s" if name == "shutdown" else "")
        yield Measurement(name, mine, "s", f"TFoS ({other:.2f}), {goal}", mine / other)


def main() -> None:
    """Measure both sides one after the other, and print."""
    options = make_parser(__doc__).parse_args()
    clusters = 3 if options.quick else 8
    ours = take_times(Path(sys.executable), "cluster_gridflow", clusters)
    peer = take_times(peer_python("tensorflowonspark"), "cluster_tensorflowonspark", clusters)
    print_report(compare(ours, peer), as_json=options.json)


if __name__ == "__main__":
    main()
