"""Train one model on all workers."""

import keras
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = tf.random.stateless_normal((256, 8), seed=(1, 2))
data = tf.data.Dataset.from_tensor_slices((x, tf.reduce_sum(x, axis=1))).batch(32)
history = model.fit(data, epochs=2, verbose=2)
loss = history.history["loss"][-1]
print(f"final loss {loss:.6f} on {strategy.num_replicas_in_sync} workers")  # noqa: T201
