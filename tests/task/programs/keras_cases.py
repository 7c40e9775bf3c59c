"""Trains small Keras models, alone or as one of several workers: `keras_cases.py OUT [CASE ...]` writes the results.

The program is the same for any number of workers, and so must be its results.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gridflow.task import keras_multiworker

keras_multiworker.install()

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.threading.set_intra_op_parallelism_threads(1)

CONFIG = json.loads(os.environ.get("TF_CONFIG", "{}"))
INDEX = CONFIG["task"]["index"] if CONFIG else 0
WORKERS = len(CONFIG["cluster"]["worker"]) if CONFIG else 1
STRATEGY = tf.distribute.MultiWorkerMirroredStrategy() if CONFIG else tf.distribute.get_strategy()
ROWS, BATCH = 72, 12  # batches that two and three workers can share evenly

random = np.random.default_rng(5)
X = random.normal(size=(ROWS, 6)).astype("float32")
Y = (X @ random.normal(size=(6, 1)) + 0.3).astype("float32")
LABELS = (Y[:, 0] > 0).astype("int64")
WEIGHTS = random.uniform(0.2, 2, size=ROWS).astype("float32")
TOKENS = random.integers(0, 5, size=(ROWS, 3))

CASES: dict[str, Callable[[], dict[str, Any]]] = {}


def case(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    CASES[function.__name__] = function
    return function


def batches(*rows: Any, size: int = BATCH) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(rows if len(rows) > 1 else rows[0]).batch(size)


def outcome(model: keras.Model, history: keras.callbacks.History, **more: Any) -> dict[str, Any]:
    return {"weights": model.get_weights(), "history": history.history, **more}


def dense_model(**options: Any) -> keras.Model:
    with STRATEGY.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
        model.compile(**{"optimizer": "adam", "loss": "mse", **options})
    return model


@case
def sequential_with_momentum_and_schedule() -> dict[str, Any]:
    with STRATEGY.scope():
        model = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
        schedule = keras.optimizers.schedules.ExponentialDecay(0.05, decay_steps=2, decay_rate=0.9)
        optimizer = keras.optimizers.SGD(schedule, momentum=0.9)
        model.compile(optimizer, "mse", metrics=["mae", keras.metrics.RootMeanSquaredError()])
    steps: list[Any] = []
    callbacks = [
        keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: steps.append([step, sorted(logs)])),
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=1, min_delta=9.0),
    ]
    history = model.fit(
        batches(X, Y), epochs=5, validation_data=batches(X[:48], Y[:48]), callbacks=callbacks, verbose=2
    )
    return outcome(model, history, steps=steps, predicted=model.predict(batches(X), verbose=0))


@case
def functional_with_dicts_two_outputs_and_global_clipping() -> dict[str, Any]:
    with STRATEGY.scope():
        left, right = keras.Input((4,), name="left"), keras.Input((2,), name="right")
        hidden = keras.layers.Dense(5, activation="relu")(keras.layers.Concatenate()([left, right]))
        value = keras.layers.Dense(1, name="value")(hidden)
        label = keras.layers.Dense(2, name="label", activation="softmax")(hidden)
        model = keras.Model({"left": left, "right": right}, {"value": value, "label": label})
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.5, global_clipnorm=0.05),
            loss={"value": "mse", "label": "sparse_categorical_crossentropy"},
            loss_weights={"value": 1.0, "label": 0.5},
            metrics={"label": ["accuracy"]},
        )
    data = batches({"left": X[:, :4], "right": X[:, 4:]}, {"value": Y, "label": LABELS})
    history = model.fit(data, verbose=0)
    return outcome(model, history, predicted=model.predict(data, verbose=0))


@case
def subclassed_with_tuple_inputs_sample_weights_and_penalty() -> dict[str, Any]:
    class Model(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.hidden = keras.layers.Dense(4, activation="relu", kernel_regularizer=keras.regularizers.L2(0.01))
            self.output_layer = keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            left, right = inputs
            return self.output_layer(keras.ops.concatenate([self.hidden(left), right], axis=-1))

    with STRATEGY.scope():
        model = Model()
        model.compile(keras.optimizers.Adam(0.02, clipvalue=0.02), "mse", weighted_metrics=["mae"])
    data = batches((X[:, :4], X[:, 4:]), Y, WEIGHTS)
    return outcome(model, model.fit(data, validation_data=data, verbose=0))


@case
def embeddings_with_class_weights_and_several_steps_per_execution() -> dict[str, Any]:
    with STRATEGY.scope():
        layers = [keras.layers.Embedding(5, 4), keras.layers.Flatten(), keras.layers.Dense(2, activation="softmax")]
        model = keras.Sequential([keras.Input((3,), dtype="int64"), *layers])
        model.compile(
            keras.optimizers.Adam(0.05, clipnorm=0.02),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
            steps_per_execution=2,
        )
    data = batches(TOKENS, LABELS)
    history = model.fit(data.repeat(), steps_per_epoch=4, class_weight={0: 1.0, 1: 3.0}, verbose=0)
    return outcome(model, history, evaluated=model.evaluate(data, verbose=0, return_dict=True))


@case
def batch_normalization_over_all_workers() -> dict[str, Any]:
    with STRATEGY.scope():
        layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(synchronized=True), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        model.compile(keras.optimizers.SGD(0.05), "mse")
    return outcome(model, model.fit(batches(X, Y), verbose=0))


@case
def arrays() -> dict[str, Any]:
    model = dense_model(metrics=["mae"])
    history = model.fit(X, Y, batch_size=BATCH, validation_split=1 / 3, shuffle=False, verbose=0)
    return outcome(model, history, predicted=model.predict(X, batch_size=BATCH, verbose=0))


@case
def arrays_shuffled_alike() -> dict[str, Any]:
    keras.utils.set_random_seed(11)
    model = dense_model()
    return outcome(model, model.fit(X, Y, batch_size=BATCH, verbose=0))


@case
def batch_by_batch() -> dict[str, Any]:
    model = dense_model(metrics=["mae"])
    part = slice(INDEX * BATCH // WORKERS, (INDEX + 1) * BATCH // WORKERS)
    trained = [
        model.train_on_batch(X[start:][part], Y[start:][part], return_dict=True) for start in range(0, ROWS, BATCH)
    ]
    return {
        "weights": model.get_weights(),
        "trained": trained,
        "tested": model.test_on_batch(X[part], Y[part], return_dict=True),
        "predicted": model.predict_on_batch(X[part]),
    }


@case
def last_batch_is_evaluated_whole() -> dict[str, Any]:
    model = dense_model(metrics=["mae"])
    rows = ROWS - BATCH + 1  # the last batch holds one row: all but one worker get none of it
    return {
        "evaluated": model.evaluate(batches(X[:rows], Y[:rows]), verbose=0),
        "predicted": model.predict(batches(X[: rows + 1]), verbose=0),
    }


@case
def distributed_by_hand() -> dict[str, Any]:
    def shard(context: tf.distribute.InputContext) -> tf.data.Dataset:
        size = context.get_per_replica_batch_size(BATCH)
        return batches(X, Y, size=size).shard(context.num_input_pipelines, context.input_pipeline_id)

    model = dense_model(optimizer="sgd")
    data = STRATEGY.distribute_datasets_from_function(shard)
    return outcome(model, model.fit(data, steps_per_epoch=ROWS // BATCH, verbose=0))


@case
def rows_seen_under_each_way_of_sharding() -> dict[str, Any]:
    class Total(keras.metrics.Metric):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name="total")
            self.total = self.add_weight(initializer="zeros")

        def update_state(self, y_true: Any, *_others: Any, **_weights: Any) -> None:
            self.total.assign_add(keras.ops.sum(y_true))

        def result(self) -> Any:
            return keras.ops.convert_to_tensor(self.total)

    def total(data: tf.data.Dataset, policy: tf.data.experimental.AutoShardPolicy) -> Any:
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = policy
        return model.evaluate(data.with_options(options), verbose=0, return_dict=True)["total"]

    with STRATEGY.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(loss="mse", metrics=[Total()])
    rows = np.arange(ROWS, dtype="float32")[:, None]
    names = []
    for start, stop in ((0, 36), (36, 60), (60, ROWS)):  # files of different lengths
        names.append(f"{sys.argv[1]}.{start}")
        Path(names[-1]).write_text("\n".join(str(row) for row in range(start, stop)))

    def parse(line: Any) -> Any:
        row = tf.reshape(tf.strings.to_number(line), [1])
        return row, row

    policies = tf.data.experimental.AutoShardPolicy
    same_part = rows[: ROWS // WORKERS].sum() * WORKERS
    return {
        "data": total(batches(rows, rows), policies.DATA),
        "file": total(tf.data.TextLineDataset(names).map(parse).batch(BATCH), policies.FILE),
        "off: each worker sees the same first part": total(batches(rows, rows), policies.OFF) == same_part,
    }


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if isinstance(value, str) else np.asarray(value).tolist()


def main(out: Path, names: list[str]) -> None:
    results = {}
    for name in names or CASES:
        keras.utils.set_random_seed(7)
        results[name] = plain(CASES[name]())
        keras.backend.clear_session()
    out.write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
