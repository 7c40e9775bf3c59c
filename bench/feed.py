"""Rows from Spark to a TensorFlow task: Gridflow's feed, TensorFlowOnSpark's, and Spark's way to Python alone.

    python bench/feed.py [--quick] [--json]

All three on a Spark cluster of one executor with one core, from rows that are cached there, to one worker that counts
them. Gridflow reads in batches of 1000 rows, TensorFlowOnSpark in batches of 100 (it moves rows one by one, so that
their number matters little), and `no-op` is a `mapInArrow` that looks at no row. The best of some passes counts for
Gridflow and the no-op, the only one for the peer, which is given fewer rows. Memory is that of all processes
together. The peer runs in an environment of its own (peers.py). With --quick there are two kinds of rows, not four.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from peers import peer_python
from programs.spark_rows import KINDS, Pass, Rows
from report import Measurement, make_parser, print_report

HERE = Path(__file__).parent
RUN_SECONDS = 1800
#: How much of the rows is fed with --quick; a pass of Gridflow's must still be longer than Spark takes for any job.
QUICK_PART, QUICK_PEER_PART = 0.2, 0.2
#: One kind for each goal.
QUICK_KINDS = ("784 floats", "40 scalars")
GOALS = {"784 floats": 20, "784 bytes": 20, "40 scalars": 100, "one int": 100}
NO_OP_GOAL = 0.8


def run_program(python: Path, name: str, *arguments: str) -> str:
    """Run a module of programs/ and return the last line that it printed."""
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    argv = [str(python), "-m", f"programs.{name}", *arguments]
    with TemporaryDirectory() as folder:
        # Spark's executors would leave their folders beside Spark's jars, and runs theirs among the user's.
        folders = {"SPARK_WORKER_DIR": f"{folder}/spark", "GRIDFLOW_HOME": f"{folder}/gridflow"}
        environ = {**os.environ, **folders, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(argv, timeout=RUN_SECONDS, capture_output=True, text=True, env=environ, cwd=folder)
    if done.returncode:
        # Spark and the tasks go on to complain after the error that matters.
        error = done.stderr[max(done.stderr.find("Traceback (most recent call last)"), 0) :]
        raise SystemExit(f"{name} failed with exit code {done.returncode}:\n{error[:4000]}")
    return done.stdout.splitlines()[-1]


def run_passes(python: Path, name: str, part: float, kinds: Sequence[str]) -> dict[str, Pass]:
    return {one["name"]: Pass(**one) for one in json.loads(run_program(python, name, str(part), *kinds))}


def compare(kind: Rows, ours: Mapping[str, Pass], peer: Pass) -> Iterator[Measurement]:
    no_op = ours[f"{kind.name}, no-op"]
    for name, one in ours.items():
        if not name.startswith(kind.name):
            continue
        speed = one.rows / one.seconds
        yield Measurement(f"{name}, MB/s", speed * kind.row_bytes / 1e6, "MB/s")
        yield Measurement(f"{name}, CPU", one.rows / one.cpu_seconds, "rows/CPU-s")
        yield Measurement(
            f"{name}, peak memory", one.peak_mb, "MB", f"TFoS ({peer.peak_mb:,.0f})", one.peak_mb / peer.peak_mb
        )
        if one is no_op:
            yield Measurement(name, speed, "rows/s")
            continue
        peer_speed, no_op_speed = peer.rows / peer.seconds, no_op.rows / no_op.seconds
        yield Measurement(
            name, speed, "rows/s", f"TFoS ({peer_speed:,.0f}), goal {GOALS[kind.name]}", speed / peer_speed
        )
        yield Measurement(name, speed, "rows/s", f"no-op ({no_op_speed:,.0f}), goal {NO_OP_GOAL}", speed / no_op_speed)


def main() -> None:
    """Measure both sides one after the other, and print."""
    options = make_parser(__doc__).parse_args()
    part, peer_part = (QUICK_PART, QUICK_PEER_PART) if options.quick else (1.0, 1.0)
    kinds = QUICK_KINDS if options.quick else tuple(KINDS)
    ours = run_passes(Path(sys.executable), "feed_gridflow", part, kinds)
    peer = run_passes(peer_python("tensorflowonspark"), "feed_tensorflowonspark", peer_part, kinds)
    measurements = [one for name in kinds for one in compare(KINDS[name], ours, peer[name])]
    print_report(measurements, as_json=options.json)


if __name__ == "__main__":
    main()
