"""What the batch guard costs when nothing is wrong: predictions through a loaded model against its bare function.

Both run the same rows in batches of the same size, in turns, and the best of some rounds of each counts, in seconds of
processor time. The guard is told of a memory that all batches fit into, so it also measures the first two.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from report import Measurement, make_parser, print_report

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
#: Threads that wait for work would count as work.
os.environ.update(TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1")
WIDTH, BATCH = 784, 256


def save_model(path: Path) -> None:
    import keras

    layers = [keras.Input((WIDTH,)), keras.layers.Dense(512, activation="relu"), keras.layers.Dense(10)]
    keras.Sequential(layers).export(path, verbose=False)


def best(rounds: int, *ways: Callable[[], object]) -> list[float]:
    """Return the processor seconds of each way's fastest round; they take turns."""
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for way, taken in zip(ways, seconds, strict=True):
            started = time.process_time()
            way()
            taken.append(time.process_time() - started)
    return [min(taken) for taken in seconds]


def measure(rows: int, rounds: int, folder: Path) -> list[Measurement]:
    import numpy as np
    import tensorflow as tf

    from gridflow import inference

    save_model(folder)
    data = np.random.default_rng(0).random((rows, WIDTH), np.float32)
    model = inference.load(folder, memory_mb=4096)
    model.predict(data[:BATCH], BATCH)
    function = tf.saved_model.load(str(folder)).signatures["serving_default"]
    (name,) = function.structured_input_signature[1]
    (output,) = function.structured_outputs

    def barely() -> object:
        pieces = [
            function(**{name: tf.constant(data[start : start + BATCH])})[output].numpy()
            for start in range(0, rows, BATCH)
        ]
        return np.concatenate(pieces)

    guarded, bare = best(rounds, lambda: model.predict(data, BATCH), barely)
    return [
        Measurement("predict with the guard", rows / guarded, "rows/CPU-s", "bare function", bare / guarded),
        Measurement("the guard's overhead", 100 * (guarded / bare - 1), "%"),
    ]


def main() -> None:
    """Measure and print."""
    arguments = make_parser(__doc__).parse_args()
    with TemporaryDirectory() as folder:
        rows, rounds = (20_000, 10) if arguments.quick else (50_000, 30)
        print_report(measure(rows, rounds, Path(folder)), as_json=arguments.json)


if __name__ == "__main__":
    main()
