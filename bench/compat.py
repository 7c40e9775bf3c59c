"""One program of TensorFlowOnSpark's, by its own package and by Gridflow's of the same API.

    python bench/compat.py [--quick] [--json]

One worker on a Spark cluster of one executor with one core. The program (programs/compat_program.py) is the same file
for both; what it imports is not. All figures are rates, so that a ratio above 1 is in Gridflow's favour: clusters
that start and shut down in a minute (the median without the first cluster, which loads everything for the first time),
and rows of 784 floats that `train` with `next_batch` (the better of two passes), `inference` and `TFModel.transform`
move in a second, and for a second of all processes' CPU time. The peer is given fewer rows, and DataFrames as RDDs,
since it takes no others. With --quick these are so few that what each of its jobs costs at least weighs much: only a
full run tells how fast it feeds.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from feed import run_program
from peers import peer_python
from programs.cluster_times import Times
from programs.spark_rows import Pass
from report import Measurement, make_parser, print_report

PEER = "tensorflowonspark"
#: Rows for Gridflow and for the peer, and the number of clusters.
FULL, QUICK = (40_000, 10_000, 6), (20_000, 2_000, 2)
GOAL, TRAIN_GOAL = 1, 10
FLOATS, CLASSES = 784, 10


@dataclass(frozen=True)
class Measured:
    """What the program measured of one side."""

    times: list[Times]
    passes: list[Pass]

    def rates(self) -> Iterator[tuple[str, float, str]]:
        for name in ("start", "shutdown"):
            yield name, 60 / median(getattr(each, name) for each in self.times[1:]), "clusters/min"
        for name in dict.fromkeys(one.name for one in self.passes):
            one = min((each for each in self.passes if each.name == name), key=lambda each: each.seconds)
            yield one.name, one.rows / one.seconds, "rows/s"
            yield f"{one.name}, CPU", one.rows / one.cpu_seconds, "rows/CPU-s"


def run_side(python: Path, package: str, rows: int, clusters: int, model: Path) -> Measured:
    found = json.loads(run_program(python, "compat_program", package, str(rows), str(clusters), str(model)))
    return Measured([Times(**each) for each in found["times"]], [Pass(**each) for each in found["passes"]])


def save_model(folder: Path) -> None:
    """Save a layer that gives ten scores to an image."""
    import tensorflow as tf

    layer = tf.Module()
    layer.weights = tf.Variable(tf.random.stateless_normal([FLOATS, CLASSES], seed=[1, 2]))
    images = tf.TensorSpec([None, FLOATS], name="image")
    score = tf.function(lambda image: {"scores": image @ layer.weights}, input_signature=[images])
    tf.saved_model.save(layer, str(folder), signatures=score)


def compare(ours: Measured, peer: Measured) -> Iterator[Measurement]:
    for (name, mine, unit), (_, other, _) in zip(ours.rates(), peer.rates(), strict=True):
        goal = TRAIN_GOAL if name.startswith("train") else GOAL
        yield Measurement(name, mine, unit, f"TFoS ({other:,.1f}), goal {goal}", mine / other)


def main() -> None:
    """Measure both sides one after the other, and print."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    options = make_parser(__doc__).parse_args()
    rows, peer_rows, clusters = QUICK if options.quick else FULL
    with TemporaryDirectory() as folder:
        model = Path(folder, "model")
        save_model(model)
        ours = run_side(Path(sys.executable), f"gridflow.compat.{PEER}", rows, clusters, model)
        peer = run_side(peer_python(PEER), PEER, peer_rows, clusters, model)
    print_report(compare(ours, peer), as_json=options.json)


if __name__ == "__main__":
    main()
