"""Trains with Keras' fit on parameter servers: `keras_on_parameter_servers.py OUT` on the chief writes the results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gridflow.errors import UsageError
from gridflow.task import keras_multiworker

keras_multiworker.install()

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

STEPS, EPOCHS = 8, 12
X = np.random.default_rng(0).uniform(size=(64, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def main(out: Path) -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type != "chief":
        server = tf.distribute.Server(resolver.cluster_spec(), resolver.task_type, resolver.task_id, protocol="grpc")
        server.join()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.02, momentum=0.5, clipnorm=1.0), "mse", metrics=["mae"])
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(64).batch(len(X) // STEPS)
    backup = keras.callbacks.BackupAndRestore(out.with_name("backup"))
    history = model.fit(data, epochs=EPOCHS, validation_data=data, callbacks=[backup], verbose=2).history
    iterations = int(model.optimizer.iterations.numpy())
    model.fit(X, Y, batch_size=8, sample_weight=np.ones(len(X)), verbose=0)
    model.fit(data.repeat(), steps_per_epoch=5, verbose=0)
    model.train_on_batch(X[:8], Y[:8])
    try:
        model.fit(((X, Y) for _ in range(3)), verbose=0)
        refusal = ""
    except UsageError as error:
        refusal = str(error)
    predicted = model.predict(data, verbose=0)
    evaluated = model.evaluate(X, Y, verbose=0)
    expected = float(np.mean((model(X).numpy() - Y) ** 2))
    results = {
        "history": history,
        "iterations": iterations,
        "refusal": refusal,
        "predicted": predicted.shape,
        "evaluated": evaluated[0],
        "expected": expected,
    }
    out.write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
