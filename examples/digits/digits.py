"""Handwritten digits with Keras `fit`, on as many workers as the task's TF_CONFIG names.

It is a plain TensorFlow program: without TF_CONFIG it trains in this process alone.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

GLOBAL_BATCH = 64


def load_data() -> tuple[tf.data.Dataset, tf.data.Dataset]:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).reshape(-1, 8, 8, 1).astype("float32")
    x, x_test, y, y_test = train_test_split(images, labels, test_size=360, random_state=1, stratify=labels)
    train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=1).batch(GLOBAL_BATCH, drop_remainder=True)
    test = tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(GLOBAL_BATCH)
    # Every worker holds all the data and takes its part of each batch.
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return train.with_options(options), test.with_options(options)


def build_model() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--checkpoint-dir", type=Path, default=os.environ.get("GRIDFLOW_CHECKPOINT_DIR", "checkpoints"))
    parser.add_argument("--log-dir", type=Path, default=os.environ.get("GRIDFLOW_LOG_DIR", "logs"))
    options = parser.parse_args()

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = build_model()
    train, test = load_data()
    is_first = strategy.extended.should_checkpoint
    callbacks = [keras.callbacks.BackupAndRestore(options.checkpoint_dir / "backup")]
    if is_first:
        callbacks.append(keras.callbacks.TensorBoard(options.log_dir))
    model.fit(
        train,
        epochs=options.epochs,
        validation_data=test,
        callbacks=callbacks,
        shuffle=False,  # the dataset does it
        verbose=2 if is_first else 0,
    )
    _, accuracy = model.evaluate(test, verbose=0)
    if is_first:
        workers = strategy.num_replicas_in_sync
        print(f"test accuracy {accuracy:.4f} after {options.epochs} epochs on {workers} worker(s)")


if __name__ == "__main__":
    main()
