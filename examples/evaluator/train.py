"""Workers train with Keras `fit`; beside them an evaluator judges every checkpoint as it appears.

The same program runs in every task. Without TF_CONFIG it trains in this process alone.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

#: How long the evaluator waits for the next checkpoint.
SILENCE_SECONDS = 300


def load_data() -> list[Any]:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")
    return list(train_test_split(images, labels, test_size=360, random_state=1, stratify=labels))


def build_model() -> keras.Model:
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10, activation="softmax")]
    )
    model.compile(keras.optimizers.Adam(5e-3), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def train(checkpoint_dir: str, epochs: int) -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = build_model()
    callbacks = []
    if strategy.extended.should_checkpoint:
        manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), checkpoint_dir, max_to_keep=None)
        callbacks.append(keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, _: manager.save(epoch + 1)))
    x, _, y, _ = load_data()
    model.fit(x, y, batch_size=64, epochs=epochs, callbacks=callbacks, verbose=2 if callbacks else 0)


def evaluate(checkpoint_dir: str, epochs: int, output: Path) -> None:
    _, x_test, _, y_test = load_data()
    model = build_model()
    accuracies: dict[str, float] = {}
    for _ in tf.train.checkpoints_iterator(checkpoint_dir, timeout=SILENCE_SECONDS):
        for path in tf.train.get_checkpoint_state(checkpoint_dir).all_model_checkpoint_paths:
            name = Path(path).name
            if name in accuracies:
                continue
            tf.train.Checkpoint(model=model).restore(path).expect_partial()
            _, accuracies[name] = model.evaluate(x_test, y_test, verbose=0)
            print(f"{name}: accuracy {accuracies[name]:.4f}", flush=True)
        if f"ckpt-{epochs}" in accuracies:
            break
    else:
        raise TimeoutError(f"no new checkpoint in {checkpoint_dir} for {SILENCE_SECONDS} s")
    output.write_text(json.dumps(accuracies))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--checkpoint-dir", default=os.environ.get("GRIDFLOW_CHECKPOINT_DIR", "checkpoints"))
    parser.add_argument("--output-dir", type=Path, default=os.environ.get("GRIDFLOW_RUN_DIR", "."))
    options = parser.parse_args()
    if tf.distribute.cluster_resolver.TFConfigClusterResolver().task_type == "evaluator":
        evaluate(options.checkpoint_dir, options.epochs, options.output_dir / "accuracies.json")
    else:
        train(options.checkpoint_dir, options.epochs)


if __name__ == "__main__":
    main()
