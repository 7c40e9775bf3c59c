"""Train as Keras's guide has it: what is lost with a slot is the matter of BackupAndRestore alone."""

import os
import time

import keras

EPOCHS, STEPS = 8, 4


def pause(epoch: int, _logs: object) -> None:
    """Say what is done, and leave time to be evicted."""
    print("epoch", epoch + 1, "done")  # noqa: T201
    time.sleep(0.7)


model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = keras.random.normal((32 * STEPS, 8), seed=1)
backup = keras.callbacks.BackupAndRestore(os.environ["GRIDFLOW_CHECKPOINT_DIR"])
callbacks = [backup, keras.callbacks.LambdaCallback(on_epoch_end=pause)]
model.fit(x, x[:, :1], epochs=EPOCHS, verbose=0, callbacks=callbacks)
print("steps in all", int(model.optimizer.iterations))  # noqa: T201
