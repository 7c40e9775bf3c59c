"""Trains a small model with Keras `fit` on all workers, backed up after each epoch; worker 0 writes the weights."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

EPOCHS = 8
BATCHES = 5
EPOCH_SECONDS = 0.3


def main() -> None:
    """Train, or go on training, and write the final weights."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(3)
    random = np.random.default_rng(3)
    x, y = random.normal(size=(16 * BATCHES, 6)).astype("float32"), random.normal(size=(16 * BATCHES, 1))
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    backup = keras.callbacks.BackupAndRestore(os.path.join(os.environ["GRIDFLOW_CHECKPOINT_DIR"], "backup"))
    model.fit(
        tf.data.Dataset.from_tensor_slices((x, y.astype("float32"))).batch(16),
        epochs=EPOCHS,
        verbose=2,
        callbacks=[
            backup,
            keras.callbacks.LambdaCallback(on_epoch_begin=lambda _epoch, _logs: time.sleep(EPOCH_SECONDS)),
        ],
    )
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
        np.savez(Path(os.environ["GRIDFLOW_RUN_DIR"], "weights.npz"), *model.get_weights())


if __name__ == "__main__":
    main()
