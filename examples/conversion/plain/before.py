"""Fits a small network with Keras."""

from __future__ import annotations

import keras
import numpy as np


def main() -> None:
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(1).normal(size=(512, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(x, y, batch_size=64, epochs=4, shuffle=False, verbose=0)
    print(f"loss {history.history['loss'][-1]:.3f}")


if __name__ == "__main__":
    main()
