"""Spark sessions that know Gridflow's data source from their start."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gridflow.tfrecord.jar import jar
from gridflow.tfrecord.spark import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JARS = "spark.jars"


def session(
    name: str = "gridflow", *, master: str | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the session that runs, or start one with the data source `tfrecord` on its class path.

    `master` and `config` are for a new session, as `SparkSession.builder` takes them.
    """
    from pyspark.sql import SparkSession

    # Without it Spark's tasks run whatever `python3` is first on their path, which may have no Gridflow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = dict(config or {})
    settings[_JARS] = ",".join(filter(None, [settings.get(_JARS), str(jar())]))
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark
