"""Trains with BackupAndRestore, and dies after an epoch: `keras_backup.py OUT BACKUPS EPOCH_TO_DIE_AFTER`."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from gridflow.task import keras_multiworker

keras_multiworker.install()

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

EPOCHS = 6
X = np.random.default_rng(3).normal(size=(48, 4)).astype("float32")
Y = X[:, :1] * X[:, 1:2]


def main(out: Path, backups: Path, last_epoch: int) -> None:
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    epochs: list[int] = []

    def begin(epoch: int, _logs: object) -> None:
        if epoch == last_epoch and index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        epochs.append(epoch)

    callbacks = [
        keras.callbacks.BackupAndRestore(backups / "backup"),
        keras.callbacks.ModelCheckpoint(backups / "latest.keras"),
        keras.callbacks.ModelCheckpoint(
            backups / "best.weights.h5", save_best_only=True, save_weights_only=True, monitor="loss"
        ),
        keras.callbacks.LambdaCallback(on_epoch_begin=begin),
    ]
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    model.fit(data, epochs=EPOCHS, callbacks=callbacks, verbose=0)
    loaded = keras.saving.load_model(backups / "latest.keras")
    weights = [each.tolist() for each in model.get_weights()]
    saved = [each.tolist() for each in loaded.get_weights()]
    out.write_text(json.dumps({"epochs": epochs, "weights": weights, "saved": saved}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
