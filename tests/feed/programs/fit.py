"""Fits a Keras model, which adds up the rows that it is trained on, on a feed."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import tensorflow as tf

from gridflow.feed.feed import open_feed
from gridflow.feed.variables import FEEDS

options = json.loads(sys.argv[1])


class Adder(keras.Model):  # type: ignore[misc]
    """Has the sum of an epoch's rows and the number of its batches as metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.total = keras.metrics.Sum(name="total")
        self.steps = keras.metrics.Sum(name="steps")

    def call(self, rows: Any) -> Any:
        return rows

    def train_step(self, rows: Any) -> dict[str, Any]:
        self.total.update_state(rows)
        self.steps.update_state(1)
        return {"total": self.total.result(), "steps": self.steps.result()}


environ = {FEEDS: options["coordinator"]}
strategy = tf.distribute.MirroredStrategy(["CPU:0"]) if options["is_distributed"] else tf.distribute.get_strategy()
with open_feed("train", environ, secret=options["secret"].encode(), task=options["task"]) as feed:
    dataset = feed.dataset(options["batch_size"]).map(lambda row: row["n"][:, None])
    with strategy.scope():
        model = Adder()
        model.compile()
    history = model.fit(dataset, epochs=options["epochs"], verbose=0).history
    sys.stdout.write(json.dumps({**history, "epoch": feed.epoch, "is_ended": feed.is_ended}) + "\n")
