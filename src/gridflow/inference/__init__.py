"""Prediction with saved models, in batches that fit the memory that was granted.

load(path) ─▶ formats: SavedModel, .keras, frozen .pb ─▶ Model.predict(numpy, Arrow or tf.data)
                                                            │ rows: to and from what the model takes
                                                            └ guard: how many samples at once

>>> model = inference.load("export/", claim=Claim(memory_per_gpu_mb=2048, shared=True))    # doctest: +SKIP
>>> model.predict(images)                                                                  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridflow import late

if TYPE_CHECKING:
    from gridflow.inference.model import Model, load

__all__ = ["Model", "load"]

__getattr__ = late.names_of(__name__, {"model": __all__})
