"""Train for a while; when the slot is wanted back, save after the epoch and end."""

import os
import signal
import sys
import time
from types import FrameType

import keras
import tensorflow as tf

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = tf.random.stateless_normal((256, 8), seed=(1, 2))
y = tf.reduce_sum(x, axis=1, keepdims=True)
epoch = tf.Variable(0)
model.train_on_batch(x[:1] * 0, y[:1] * 0)  # so that the optimizer has all of its variables
checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, epoch=epoch)
checkpoints = tf.train.CheckpointManager(checkpoint, os.environ["GRIDFLOW_CHECKPOINT_DIR"], max_to_keep=1)
if checkpoints.restore_or_initialize():
    print("restored epoch", int(epoch))  # noqa: T201
is_wanted_back = False


def note(_number: int, _frame: FrameType | None) -> None:
    global is_wanted_back
    is_wanted_back = True


signal.signal(signal.SIGTERM, note)
while epoch < 8:
    model.fit(x, y, batch_size=32, epochs=1, shuffle=False, verbose=0)
    epoch.assign_add(1)
    print("epoch", int(epoch), "done")  # noqa: T201
    time.sleep(0.4)
    if is_wanted_back:
        checkpoints.save()
        sys.exit(0)
print("weights", [float(value) for weights in model.get_weights() for value in weights.ravel()])  # noqa: T201
