"""A saved model for tests to which it does not matter what a model does: it gives twice its input."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_SAVE = """
import sys
import tensorflow as tf

class Twice(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    def __call__(self, x):
        return {"y": 2 * x}

twice = Twice()
tf.saved_model.save(twice, sys.argv[1], signatures=twice.__call__)
"""
_SAVE_SECONDS = 200


def save_twice(path: Path) -> Path:
    """Save the model, from a process of its own: TensorFlow stays out of this one."""
    command = [sys.executable, "-c", _SAVE, str(path)]
    subprocess.run(command, check=True, timeout=_SAVE_SECONDS, capture_output=True)
    return path
