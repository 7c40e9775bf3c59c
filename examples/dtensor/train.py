"""Model parallel training with DTensor: each layer of a network is split over the devices of all tasks.

The tasks find each other by the DTENSOR_* variables; without them this process trains alone. The same steps are also
done without any splitting, to show that the results are equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

DEVICES_PER_TASK = 2
LEARNING_RATE = 0.1
STEPS = 20


def train_step(x: Any, y: Any, first: Any, second: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.matmul(tf.nn.relu(tf.matmul(x, first)), second) - y))
    for variable, gradient in zip((first, second), tape.gradient(loss, (first, second)), strict=True):
        variable.assign_sub(LEARNING_RATE * gradient)
    return loss


def train_split(mesh: Any, x: Any, y: Any, first: Any, second: Any) -> list[Any]:
    """Train with the first layer split by columns and the second by rows; return the loss and both layers."""
    everywhere = dtensor.Layout.replicated(mesh, rank=2)
    columns = dtensor.Layout([dtensor.UNSHARDED, "model"], mesh)
    rows = dtensor.Layout(["model", dtensor.UNSHARDED], mesh)
    x, y, first, second = (dtensor.copy_to_mesh(value, everywhere) for value in (x, y, first, second))
    layers = dtensor.DVariable(dtensor.relayout(first, columns)), dtensor.DVariable(dtensor.relayout(second, rows))
    step = tf.function(train_step)
    for _ in range(STEPS):
        loss = step(x, y, *layers)
    parts = [part.shape.as_list() for part in dtensor.unpack(layers[0].read_value())]
    print(f"this task holds {parts} of the first layer {first.shape.as_list()}")
    return [dtensor.unpack(value)[0].numpy() for value in (loss, *(dtensor.relayout(v, everywhere) for v in layers))]


def train_whole(x: Any, y: Any, first: Any, second: Any) -> list[Any]:
    """Train the same network without splitting; return the loss and both layers."""
    layers = tf.Variable(first), tf.Variable(second)
    step = tf.function(train_step)
    for _ in range(STEPS):
        loss = step(x, y, *layers)
    return [value.numpy() for value in (loss, *layers)]


def main() -> None:
    dtensor.initialize_accelerator_system("CPU", num_logical_cpu_devices=DEVICES_PER_TASK)
    devices = dtensor.num_global_devices("CPU")
    mesh = dtensor.create_distributed_mesh([("model", devices)], device_type="CPU")
    random = np.random.default_rng(seed=1)
    sizes = {"x": (64, 8), "y": (64, 1), "first": (8, 32), "second": (32, 1)}
    values = {name: random.normal(scale=0.5, size=size).astype("float32") for name, size in sizes.items()}

    split, whole = train_split(mesh, **values), train_whole(**values)
    for got, wanted in zip(split, whole, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)
    print(f"split over {devices} devices of {dtensor.num_clients()} tasks: loss {split[0]:.5f}")
    print(f"without splitting: loss {whole[0]:.5f}")


if __name__ == "__main__":
    main()
