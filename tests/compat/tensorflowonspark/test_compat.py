"""Keras models are exported by the chief, and aside by others."""

from __future__ import annotations

from pathlib import Path

from gridflow.compat.tensorflowonspark import compat


def test_chief_exports_a_model_that_can_be_loaded_and_others_write_aside(tmp_path: Path) -> None:
    import keras
    import numpy as np
    import tensorflow as tf

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    compat.export_saved_model(model, str(tmp_path / "aside"))
    assert not (tmp_path / "aside").exists()
    compat.export_saved_model(model, str(tmp_path / "model"), is_chief=True)
    predict = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    [output] = predict(tf.constant([[1.0, 2.0]])).values()
    assert np.asarray(output).tolist() == [[3.0]]


def test_auto_shard_is_switched_off() -> None:
    import tensorflow as tf

    options = tf.data.Options()
    compat.disable_auto_shard(options)
    assert options.experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.OFF
    assert not compat.is_gpu_available()
