"""What differs between versions of TensorFlow and Keras, for programs that should not care."""

from __future__ import annotations

import tempfile
from typing import Any


def export_saved_model(model: Any, export_dir: str, is_chief: bool = False) -> None:
    """Write a model as a SavedModel: the chief to `export_dir`, the others, which must take part, aside."""
    with tempfile.TemporaryDirectory(prefix="worker_model-") as aside:
        target = export_dir if is_chief else aside
        if hasattr(model, "export"):
            model.export(target)
        else:
            model.save(target, save_format="tf")  # Keras 2 before it had `export`


def disable_auto_shard(options: Any) -> None:
    """Have tf.data leave each worker its own rows."""
    import tensorflow as tf

    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF


def is_gpu_available() -> bool:
    """Tell whether TensorFlow sees GPUs."""
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))
