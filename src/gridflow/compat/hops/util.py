"""How large the Spark application is: `util.num_executors()`, `util.num_param_servers()`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gridflow.compat.hops.search import grid_params

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

__all__ = ["get_job_name", "grid_params", "num_executors", "num_param_servers"]

NUM_PS = "NUM_TF_PS"
JOB_NAME = "HOPSWORKS_JOB_NAME"
_MOST_EXECUTORS = "spark.dynamicAllocation.maxExecutors"
_EXECUTORS = "spark.executor.instances"
_NUM_PS_SETTING = "spark.tensorflow.num.ps"


def num_executors(spark: SparkSession | None = None) -> int:
    """Return how many executors the application is to have; where nobody has said, how many it has."""
    context = (spark or _find_spark()).sparkContext
    settings = context.getConf()
    is_elastic = settings.get("spark.dynamicAllocation.enabled") == "true"
    for name in (_MOST_EXECUTORS, _EXECUTORS) if is_elastic or spark is None else (_EXECUTORS, _MOST_EXECUTORS):
        if settings.contains(name):
            return int(settings.get(name) or 1)
    # The driver is counted among them, unless it is the only one.
    return max(int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1, 1)


def has_executors_set(settings: SparkConf) -> bool:
    """Tell whether somebody has said how many executors there are to be."""
    return settings.contains(_MOST_EXECUTORS) or settings.contains(_EXECUTORS)


def num_param_servers(spark: SparkSession | None = None) -> int:
    """Return how many parameter servers the application is to have."""
    said: Any = os.environ.get(NUM_PS)
    if spark is not None or not said:
        said = (spark or _find_spark()).sparkContext.getConf().get(_NUM_PS_SETTING) or said
    return int(said or 0)


def get_job_name() -> str | None:
    """Return the name of the job that this program is, where it is one."""
    return os.environ.get(JOB_NAME)


def _find_spark() -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()
