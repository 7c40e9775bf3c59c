"""The oldest form of Hops' API: `tflauncher.launch(spark, train, {"learning_rate": [0.1, 0.2]})`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gridflow.compat.hops import experiment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def launch(
    spark_session: SparkSession, map_fun: Callable[..., Any], args_dict: Mapping[str, Sequence[Any]] | None = None
) -> str:
    """Call a function once, or once for each position in lists of arguments; return the folder of what they wrote."""
    folder, _ = experiment.launch(map_fun, args_dict, spark=spark_session)
    return folder
